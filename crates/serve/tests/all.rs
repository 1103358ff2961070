//! The tests of this crate.

mod conformance;
mod host;
mod http;
