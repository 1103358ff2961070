//! Backtests: what would another model, or another version of a spell, have done with the work of last week?
//!
//! A backtest casts recorded intents anew. Gate calls are answered from the record wherever the original made the same
//! call, so nothing outside is touched and only the crystal costs money. Its trials, budget, resume and cancellation
//! are those of every job; its report says for each run how far the record carried, where the run first went another
//! way, and what changed in the answer, the turns, the tokens and the money.
//!
//! The answers of the crystal come from the record too, as long as the cantrip is the recorded one and the run has
//! followed the record so far: the same request was answered before. Asking again was the alternative, and would tell
//! how much a model varies, not what a change does.

mod answers;
mod casts;
mod closer;
mod costs;
mod crystal;
mod finding;
mod gather;
mod matcher;
mod plan;
mod prepare;
mod record;
mod report;
mod request;
mod runner;
mod scorer;
mod setup;
mod steps;
mod stored;

pub use answers::RecordAnswers;
pub use casts::{BacktestCasts, BacktestSpell};
pub use finding::{AnsweredCalls, Finding, Pair};
pub use gather::{RecordFilter, SkippedRun};
pub use matcher::CallMatcher;
pub use plan::BacktestPlan;
pub use prepare::PreparedBacktest;
pub use record::{RecordedCall, RecordedRun};
pub use report::{BacktestReport, BacktestRow, PairedPart, ReportInputs, ResultText, RunStatus, make_report};
pub use request::{BacktestRequest, MissingCalls, MissingCallsFault, SpellSource};
pub use steps::{Divergence, DivergenceKind, Step, first_divergence};
pub use stored::{StoredBacktest, backtest_parts, is_backtest, stored_backtest, stored_backtests};

/// The id that the specification of a backtest has in place of an optimiser.
pub const BACKTEST_ID: &str = "backtest.v1";
