//! The surfaces: one house behind every protocol.
//!
//! A surface reads its wire, asks the [`House`], and writes the reply back. It decides nothing: what may be done, by whom
//! and with whose money is the service's, so that a cast means the same whichever door it came in by.

pub mod acp;
mod grimoire;
mod house;
mod hub;
pub mod limits;
pub mod mcp;

pub use grimoire::{Card, Grimoire};
pub use house::{Begun, House};
pub use hub::Hub;
