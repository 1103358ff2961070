//! The surfaces: one house behind every protocol.
//!
//! A surface reads its wire, asks the [`House`], and writes the reply back. It decides nothing: what may be done, by whom
//! and with whose money is the service's, so that a cast means the same whichever door it came in by.

pub mod acp;
mod feed;
mod grimoire;
mod house;
pub mod http;
mod hub;
pub mod limits;
pub mod mcp;
mod metrics;
mod takeover;

pub use grimoire::{Card, Grimoire};
pub use house::{Begun, House, local};
pub use hub::Hub;
pub use takeover::Takeover;
