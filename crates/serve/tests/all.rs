//! The suite of this room.

mod house;
mod http;
