//! Compile as a job: from a request to a report, with everything between that can be killed and resumed.
//!
//! The search itself is pure and knows no store. This module resolves what a caller named, runs the trials and proposals
//! that the search asks for, tests the winner beside the base on examples that no candidate has seen, and makes the
//! reports of both. Nothing is promoted, and no file of the user is changed.

mod closer;
mod costs;
mod plan;
mod prepare;
mod replay;
mod report;
mod request;
mod runner;
mod setup;
mod source;
mod stored;

pub use plan::CompilePlan;
pub use prepare::PreparedCompile;
pub(crate) use prepare::stored_compile_parts;
pub use replay::{CompileDifference, ReplayedCompile, replay_compile};
pub use report::{CompileMoney, CompileReportInputs, make_compile_report, selected_of};
pub use request::CompileRequest;
pub use stored::{StoredCandidate, StoredChange, StoredCompile, StoredProposal, resolve_compile, stored_compile};
