//! Jobs on a terminal: the plan, the progress, and the report.

mod backtest;
mod compile_plan;
mod compile_report;
mod list;
mod plan;
mod progress;
mod report;

pub use backtest::{draw_backtest, draw_backtest_plan, draw_backtests};
pub use compile_plan::draw_compile_plan;
pub use compile_report::{draw_changes, draw_compile_report, draw_compile_reports};
pub use list::{draw_agreement, draw_evaluations};
pub use plan::draw_plan;
pub use progress::{JobProgressLine, JobState, progress_line};
pub use report::{draw_failures, draw_report};
