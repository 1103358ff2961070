//! The finding about one run of a backtest: how it compares with the original.
//!
//! It is written as the feedback of the run's result, so that the report is made from the rows alone and the original
//! may be removed later.

use cantrip::canon::json::{canonical, read};
use cantrip::canon::{Money, RunId};
use cantrip_contract::Unscored;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::answers::NOT_RECORDED;
use super::record::RecordedRun;
use super::request::MissingCalls;
use super::steps::{Divergence, first_divergence};
use crate::limits::BACKTEST_STEP_BYTES_MAX;

/// A number of the original and of the new run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair<T> {
    pub original: T,
    pub new: T,
}

/// The gate calls of a run, by who answered them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnsweredCalls {
    /// Calls that the original made too.
    pub record: u64,
    /// Calls for which a model found a recorded call that means the same.
    pub judge: u64,
    /// Calls that the gate itself answered.
    pub live: u64,
    /// Calls that were denied because they are not in the record.
    pub denied: u64,
    /// Calls that the circle refused, as it does in every run.
    pub refused: u64,
}

impl AnsweredCalls {
    pub(super) fn add(&mut self, other: &Self) {
        self.record += other.record;
        self.judge += other.judge;
        self.live += other.live;
        self.denied += other.denied;
        self.refused += other.refused;
    }
}

/// The finding about one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    pub v: u32,
    pub original: RunId,
    pub run: RunId,
    /// None if the run is identical.
    pub divergence: Option<Divergence>,
    /// The number of steps that both took before the first difference.
    pub carried: u64,
    /// The number of steps of each run, its end included.
    pub steps: Pair<u64>,
    pub calls: AnsweredCalls,
    /// The number of requests that the record answered in place of the crystal.
    pub repeated: u64,
    pub turns: Pair<u64>,
    /// The tokens of each run. Answers that were repeated from the record count as they did then.
    pub tokens: Pair<u64>,
    /// The cost of each run, in the same way; none if it is unknown.
    pub cost: Pair<Option<Money>>,
    /// The money that the backtest paid for the run.
    pub spent: Option<Money>,
    /// The score of the original's answer by the metric, in millionths.
    pub original_score: Option<u64>,
    pub original_unscored: Option<Unscored>,
    /// The feedback of the metric on the new answer.
    pub feedback: String,
}

impl Finding {
    /// Compares a new run with its original. Scores and feedback are added by the caller.
    pub fn compare(original: &RecordedRun, new: &RecordedRun, follows: bool, missing: MissingCalls) -> Self {
        let divergence = first_divergence(&original.steps, &new.steps);
        let carried = divergence.as_ref().map_or(new.steps.len() as u64, |found| found.step - 1);
        let repeated = if follows { repeated_answers(new) } else { 0 };
        let before: Vec<_> = original.utterances().take(repeated).map(|turn| &turn.metadata).collect();
        let tokens: u64 = before.iter().map(|used| used.tokens_prompt + used.tokens_completion).sum();
        let saved = before.iter().try_fold(None, |sum: Option<Money>, used| match (sum, used.cost) {
            (Some(sum), Some(cost)) => sum.plus(cost).ok().map(Some),
            (None, Some(cost)) => Some(Some(cost)),
            (_, None) => None,
        });
        // A cost that is unknown stays unknown; one that is zero has no currency.
        let cost = match (saved, new.cost()) {
            (None, _) if repeated > 0 => None,
            (None | Some(None), cost) => cost,
            (Some(saved), None) => saved,
            (Some(Some(saved)), Some(cost)) if cost.micros() == 0 => Some(saved),
            (Some(Some(saved)), Some(cost)) => saved.plus(cost).ok(),
        };
        let cut = |found: Divergence| Divergence {
            asked: found.asked.map(|step| step.cut(BACKTEST_STEP_BYTES_MAX)),
            recorded: found.recorded.map(|step| step.cut(BACKTEST_STEP_BYTES_MAX)),
            ..found
        };
        Self {
            v: 1,
            original: original.run,
            run: new.run,
            divergence: divergence.map(cut),
            carried,
            steps: Pair { original: original.steps.len() as u64, new: new.steps.len() as u64 },
            calls: answered_calls(original, new, missing),
            repeated: repeated as u64,
            turns: Pair { original: original.outcome.turns, new: new.outcome.turns },
            tokens: Pair { original: original.tokens(), new: new.tokens() + tokens },
            cost: Pair { original: original.cost(), new: cost },
            spent: new.cost(),
            original_score: None,
            original_unscored: None,
            feedback: String::new(),
        }
    }

    pub fn is_identical(&self) -> bool {
        self.divergence.is_none()
    }

    /// Returns the text that the result of the run keeps.
    pub fn to_text(&self) -> String {
        let value = cantrip::canon::json::to_value(self).unwrap_or_default();
        canonical(&value).unwrap_or_default()
    }

    /// Reads the finding of a result; none if its feedback is another text, because the run had no outcome.
    pub fn from_text(text: &str) -> Option<Self> {
        let value: Value = read(text).ok()?;
        serde_json::from_value(value).ok()
    }
}

/// Returns the number of first answers that were repeated from the record: those that used nothing.
fn repeated_answers(new: &RecordedRun) -> usize {
    new.utterances().take_while(|turn| turn.metadata.tokens_prompt == 0 && turn.metadata.tokens_completion == 0).count()
}

/// Counts the calls of the new run by who answered them. Each call of the original answers once.
fn answered_calls(original: &RecordedRun, new: &RecordedRun, missing: MissingCalls) -> AnsweredCalls {
    let mut open: Vec<(&str, &str)> = original
        .calls
        .iter()
        .filter(|call| call.was_answered())
        .map(|call| (call.gate.as_str(), call.key.as_str()))
        .collect();
    let mut counted = AnsweredCalls::default();
    for call in &new.calls {
        let is_denied = call.data.get("backtest").and_then(Value::as_str) == Some(NOT_RECORDED);
        if is_denied {
            counted.denied += 1;
        } else if !call.was_answered() {
            counted.refused += 1;
        } else if let Some(place) = open.iter().position(|known| *known == (call.gate.as_str(), call.key.as_str())) {
            open.remove(place);
            counted.record += 1;
        } else if missing == MissingCalls::Judge {
            counted.judge += 1;
        } else {
            counted.live += 1;
        }
    }
    counted
}
