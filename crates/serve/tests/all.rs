//! The suite of this room.

mod conformance;
mod house;
mod http;
