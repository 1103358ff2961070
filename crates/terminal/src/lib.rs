//! The terminal: renders replies, shows a cast while it runs, and asks the user.
//!
//! Only the answer goes to standard output; all other output goes to standard error.

pub mod approve;
mod cursor;
pub mod datasets;
pub mod guard;
pub mod improve;
pub mod interrupt;
pub mod job;
pub mod limits;
pub mod loom;
pub mod metrics;
pub mod pointers;
pub mod present;
pub mod receipts;
pub mod review;
pub mod run;
pub mod spend;
pub mod tap;
pub mod user;
pub mod waiting;
pub mod watch;
