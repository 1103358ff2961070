//! Runs on a terminal: their list, their details, and the files that they changed.

mod changes;
mod list;

pub use changes::{draw_file_diff, draw_undo, unknown_changes};
pub use list::{
    Holder, Presence, RunDetails, RunRow, RunStatus, describe_job, describe_pending, draw_call, draw_details, draw_runs,
};
