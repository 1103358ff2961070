//! Jobs on a terminal: the plan, the progress, and the report.

mod list;
mod plan;
mod progress;
mod report;

pub use list::{draw_agreement, draw_evaluations};
pub use plan::draw_plan;
pub use progress::{JobProgressLine, JobState, progress_line};
pub use report::{draw_failures, draw_report};
