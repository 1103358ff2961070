//! The suite of this room.

mod conformance;
mod host;
mod http;
