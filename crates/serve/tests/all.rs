//! The tests of this crate.

mod conformance;
mod guard_watch;
mod host;
mod http;
