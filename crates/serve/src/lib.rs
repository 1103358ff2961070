//! The surfaces: one [`SpellHost`] behind every protocol.
//!
//! A surface reads its protocol, calls the [`SpellHost`], and writes the reply back. It decides nothing: the service
//! decides what may be done, by whom and with whose money, so that a cast means the same on every surface.

pub mod acp;
mod broadcaster;
mod feed;
pub mod http;
pub mod limits;
pub mod mcp;
mod metrics;
mod spell_catalog;
mod spell_host;
mod takeover;

pub use broadcaster::RunBroadcaster;
pub use spell_catalog::{SpellCatalog, SpellSummary};
pub use spell_host::{SpellHost, StartedCast, local_owner};
pub use takeover::Takeover;
