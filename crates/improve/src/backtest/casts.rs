//! The casts of a backtest: what it needs of the crate that builds and casts spells.

use std::sync::Arc;

use cantrip::CastReply;
use cantrip::reply::Refusal;
use futures_util::future::BoxFuture;

use super::answers::RecordAnswers;
use super::request::SpellSource;
use crate::eval::SpellTrial;
use cantrip_ds::job::CostBound;

/// The version of a spell that a backtest casts.
#[derive(Debug, Clone, PartialEq)]
pub struct BacktestSpell {
    /// The id of its cantrip, as text. Runs that were cast from the same cantrip are answered from the record.
    pub cantrip_id: String,
    /// The name of its crystal.
    pub crystal: String,
    /// True if nothing but its calls can make a run differ: it acts by tool calls and not by programs.
    pub is_conversation: bool,
    /// The servers of tools that are not started, in declared order. Their tools are taken from the record.
    pub servers: Vec<String>,
    /// True if it has a program that verifies answers. A backtest does not run it, and takes its verdicts from the record.
    pub is_verified: bool,
    /// The most that one cast can cost.
    pub worst: CostBound,
}

/// Builds and casts the spells of backtests.
pub trait BacktestCasts: Send + Sync {
    /// Returns the spell as it will be cast. Nothing is cast, and no server is started. A spell whose medium acts on
    /// files is refused: its programs cannot be answered from a record.
    fn look<'a>(&'a self, spell: &'a SpellSource) -> BoxFuture<'a, Result<BacktestSpell, Refusal>>;

    /// Casts one recorded intent anew, or resumes the cast. Its calls are answered by `answers`.
    fn cast<'a>(
        &'a self,
        spell: &'a SpellSource,
        trial: SpellTrial,
        answers: Arc<RecordAnswers>,
    ) -> BoxFuture<'a, Result<CastReply, Refusal>>;
}
