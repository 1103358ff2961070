//! Does a canary serve its callers worse than the primary does?
//!
//! A live evaluation reads the receipts of both artifacts since the canary was set. It asks no model and costs nothing.
//! The two sides serve different callers, so they are independent samples and nothing is paired. The unit is the root
//! run of an owner: ten calls of one conversation say little more than one, and counted one by one they would make
//! every interval too narrow.

mod read;
mod report;
mod unit;
mod window;

pub use read::{LiveCall, LiveCalls, live_calls};
pub use report::{LiveCost, LiveDelta, LiveReport, LiveSide, live_report};
pub use unit::{LiveUnit, live_units};
pub use window::{LiveWindow, live_window};
