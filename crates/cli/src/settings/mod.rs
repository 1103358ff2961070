//! The settings of the user and of the project: configuration files, keys, endpoints, models.

pub(crate) mod addresses;
pub(crate) mod choice;
pub(crate) mod config;
pub(crate) mod config_keys;
pub(crate) mod endpoints;
pub(crate) mod keys;
pub(crate) mod models;

use std::path::PathBuf;

use cantrip_reply::{Refusal, codes};

/// Returns the current folder, in which spells, settings and the store are looked for.
pub(crate) fn current_folder() -> Result<PathBuf, Refusal> {
    std::env::current_dir().map_err(|error| codes::io_failed("find", ".", error.to_string()).into())
}
