//! The surfaces: one [`SpellHost`] behind every protocol.
//!
//! A surface reads its protocol, calls the service of its caller, and writes the reply back. It decides nothing: the service
//! decides what may be done, by whom and with whose money, so that a cast means the same on every surface.

mod feed;
mod guard_watch;
pub mod http;
pub mod limits;
pub mod mcp;
mod metrics;
mod run_watcher;
mod spell_host;
mod takeover;

pub use guard_watch::GuardWatch;
pub use spell_host::{SpellHost, local_owner};
pub use takeover::Takeover;
