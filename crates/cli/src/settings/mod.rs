//! The settings of the user and of the project: configuration files, keys, endpoints, models.

pub(crate) mod addresses;
pub(crate) mod choice;
pub(crate) mod config;
pub(crate) mod endpoints;
pub(crate) mod keys;
pub(crate) mod models;
