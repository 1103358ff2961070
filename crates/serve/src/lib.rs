//! The surfaces: one house behind every protocol.
//!
//! A surface reads its wire, asks the [`SpellHost`], and writes the reply back. It decides nothing: what may be done, by whom
//! and with whose money is the service's, so that a cast means the same whichever door it came in by.

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
