//! The HTTP surface, over real connections to a real server.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

mod agents;
mod chat;
mod contracts;
mod feeds;
mod owners;
pub(crate) mod pages_browser;
mod pages_forms;
mod pages_parts;
mod pages_reading;
mod pages_sessions;
mod refusals;
mod routes;
pub(crate) mod support;
