//! The settings of the user and of the project: configuration files, keys, endpoints, models.

pub mod addresses;
pub mod choice;
pub mod config;
pub mod config_keys;
pub mod endpoints;
pub mod keys;
pub mod limits;
pub mod models;

use std::path::PathBuf;

use cantrip_reply::{Refusal, codes};

/// Returns the current folder, in which spells, settings and the store are looked for.
pub fn current_folder() -> Result<PathBuf, Refusal> {
    std::env::current_dir().map_err(|error| codes::io_failed("find", ".", error.to_string()).into())
}
