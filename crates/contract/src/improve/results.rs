//! What did each trial of an evaluation give, and which hash proves it?

use std::fmt;
use std::str::FromStr;

use cantrip_canon::Hash;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ids::hash;
use crate::{ExampleId, ReceiptId};

/// The side of a comparison. Sorted by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    Baseline,
    Subject,
}

impl Side {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Subject => "subject",
        }
    }
}

/// The reason why a trial has no score. A trial without a score is never counted as zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unscored {
    /// The example has no expected output at the place that the metric reads.
    NoExpected,
    /// The thread of the trial has no reward.
    NoReward,
    /// The program or command of the metric failed.
    MetricFailed,
    /// The judge gave no answer after its tries.
    JudgeFailed,
    /// The model or the network failed in every try.
    Infrastructure,
}

/// A text that is not a reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a reason why a trial has no score")]
pub struct UnscoredFault(String);

impl Unscored {
    pub const ALL: [Self; 5] =
        [Self::NoExpected, Self::NoReward, Self::MetricFailed, Self::JudgeFailed, Self::Infrastructure];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoExpected => "no_expected",
            Self::NoReward => "no_reward",
            Self::MetricFailed => "metric_failed",
            Self::JudgeFailed => "judge_failed",
            Self::Infrastructure => "infrastructure",
        }
    }
}

impl fmt::Display for Unscored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Unscored {
    type Err = UnscoredFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|known| known.as_str() == text);
        known.ok_or_else(|| UnscoredFault(text.chars().take(80).collect()))
    }
}

/// The part of a trial's result that the hash of the results covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrialResult {
    pub example_id: ExampleId,
    pub side: Side,
    /// From 1.
    pub epoch: u64,
    /// In millionths, from 0 to 1,000,000.
    pub score: Option<u64>,
    pub unscored: Option<Unscored>,
    pub receipt_id: Option<ReceiptId>,
}

/// The hash of the results of an evaluation, in any order.
pub fn results_hash(results: &[TrialResult]) -> Hash {
    let mut sorted: Vec<&TrialResult> = results.iter().collect();
    sorted.sort_by(|one, other| {
        (&one.example_id, one.side, one.epoch).cmp(&(&other.example_id, other.side, other.epoch))
    });
    let rows: Vec<Value> = sorted
        .into_iter()
        .map(|row| json!([row.example_id, row.side, row.epoch, row.score, row.unscored, row.receipt_id]))
        .collect();
    hash(&Value::Array(rows))
}
