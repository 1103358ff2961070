//! What did an evaluation find?
//!
//! The body has every number that the report shows and that a decision depends on. It is computed from the rows of the
//! trials, so that anybody can compute it again and compare the hash. Scores and amounts are integers in millionths,
//! probabilities in parts per million.

use std::collections::BTreeMap;

use cantrip_canon::json::to_value;
use cantrip_canon::{Currency, Hash, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ids::hash;
use crate::{CandidateId, EvalId, ReportId, Split, Subject, Unscored};

/// The way in which an evaluation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvalStatus {
    Succeeded,
    /// Too many examples could not be scored, or a judge was inconsistent.
    Incomplete,
    BudgetExhausted,
    Cancelled,
    Failed,
}

impl EvalStatus {
    pub const ALL: [Self; 5] =
        [Self::Succeeded, Self::Incomplete, Self::BudgetExhausted, Self::Cancelled, Self::Failed];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Incomplete => "incomplete",
            Self::BudgetExhausted => "budget_exhausted",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }
}

/// The result of a comparison with the baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvalVerdict {
    Better,
    Worse,
    /// The difference is not statistically significant.
    Undecided,
}

impl EvalVerdict {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Undecided => "undecided",
        }
    }
}

/// The models of an evaluation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelsPart {
    pub task: Option<String>,
    pub judge: Option<String>,
}

/// A number for each side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SideCounts {
    pub subject: u64,
    pub baseline: u64,
}

/// The method by which the interval of a score was computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IntervalMethod {
    Wilson,
    Bootstrap,
}

/// A mean score with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScorePart {
    pub mean: u64,
    pub low: u64,
    pub high: u64,
    pub method: IntervalMethod,
}

/// The paired difference with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeltaPart {
    pub mean: i64,
    pub low: i64,
    pub high: i64,
    pub wins: u64,
    pub losses: u64,
    pub ties: u64,
    /// The sign test, two-sided.
    pub sign_p_ppm: u64,
    /// The flip test for `better`, one-sided.
    pub flip_p_ppm: u64,
}

/// The look, with the bounds of the difference at its level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LookPart {
    /// The number of the look, from 1.
    pub k: u64,
    pub level_ppm: u64,
    pub low: i64,
    pub high: i64,
}

/// The cost in millionths of the currency.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostPart {
    pub currency: Option<Currency>,
    pub total: u64,
    pub judge: u64,
    /// Held for calls whose outcome is unknown.
    pub unreconciled: u64,
    /// Rounded up.
    pub per_call: u64,
    pub baseline_per_call: u64,
}

/// Percentiles (nearest rank) of the trials of the subject.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatencyPart {
    pub p50: u64,
    pub p95: u64,
    pub p99: u64,
}

/// The judge of the metric: its agreement with people, and its consistency.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JudgePart {
    /// The latest agreement of this metric with people, if there is one.
    pub agreement: Option<AgreementPart>,
    /// The share of pairs whose choice changed with the place, in millionths; for `prefer.v1` alone.
    pub position_flips: Option<u64>,
}

/// The agreement of a judge with the verdicts of people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgreementPart {
    /// The number of verdicts.
    pub n: u64,
    /// How many of them the judge agreed with.
    pub agree: u64,
    /// The lower Wilson bound of the share, in millionths.
    pub low: u64,
    /// Cohen's kappa, in millionths.
    pub kappa: i64,
}

/// The examples with one label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelPart {
    pub label: String,
    /// The number of scored examples.
    pub examples: u64,
    pub mean: u64,
    /// The difference to the baseline; none without one.
    pub delta: Option<i64>,
}

/// The casts of a spell's trials, of the subject.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CastsPart {
    pub terminated: u64,
    /// The number of truncated casts by reason.
    pub truncated: BTreeMap<String, u64>,
    /// Turns of a cast, in millionths.
    pub turns_per_cast: u64,
    /// Seconds of a cast, in millionths.
    pub seconds_per_cast: u64,
}

/// The body of an evaluation: everything that is hashed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvalReport {
    /// Always 1.
    pub v: u32,
    /// Always `eval_report`.
    pub kind: String,
    pub eval_id: EvalId,
    pub report_id: ReportId,
    pub job_hash: Hash,
    pub status: EvalStatus,
    /// The signature, or `spell:` and the name of a spell.
    pub signature_id: Subject,
    pub compiled_id: CandidateId,
    pub baseline_id: Option<CandidateId>,
    pub dataset_hash: Hash,
    pub split: Split,
    pub metric_hash: Hash,
    pub results_hash: Hash,
    pub models: ModelsPart,
    pub epochs: u64,
    /// The number of examples of the split.
    pub examples: u64,
    /// The number of groups and examples without a group that were scored.
    pub units: u64,
    /// The number of examples that were scored, on both sides if there is a baseline.
    pub scored: u64,
    /// The number of trials without a score, by reason.
    pub unscored: BTreeMap<Unscored, u64>,
    pub own_failures: SideCounts,
    /// None if nothing was scored.
    pub score: Option<ScorePart>,
    pub baseline: Option<ScorePart>,
    pub delta: Option<DeltaPart>,
    /// None on other splits than test, and without a baseline.
    pub look: Option<LookPart>,
    pub verdict: Option<EvalVerdict>,
    /// The smallest difference that would probably show.
    pub detectable: Option<u64>,
    pub cost: CostPart,
    /// None if no trial ran.
    pub latency_ms: Option<LatencyPart>,
    pub judge: Option<JudgePart>,
    pub labels: Vec<LabelPart>,
    /// Only in reports about spells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub casts: Option<CastsPart>,
    /// Only present as `false`: the metric runs a command whose result may change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reproducible: Option<bool>,
    pub created_at: Timestamp,
}

/// The reason why a value is not the body of an evaluation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not the report of an evaluation: {0}")]
pub struct EvalReportFault(String);

impl EvalReport {
    /// The value of `v`.
    pub const VERSION: u32 = 1;
    /// The value of `kind`.
    pub const KIND: &'static str = "eval_report";

    /// The whole content, as it is hashed and stored.
    pub fn content(&self) -> Value {
        to_value(self).expect("ids, hashes, texts and numbers that were checked")
    }

    /// The report hash.
    pub fn hash(&self) -> Hash {
        hash(&self.content())
    }

    /// Reads a stored body strictly: no unknown field, no missing one.
    pub fn from_value(content: &Value) -> Result<Self, EvalReportFault> {
        let report: Self =
            serde_json::from_value(content.clone()).map_err(|fault| EvalReportFault(fault.to_string()))?;
        if report.v != Self::VERSION || report.kind != Self::KIND {
            let (kind, version) = (&report.kind, report.v);
            return Err(EvalReportFault(format!("it is {kind} {version}, and this version reads {} 1", Self::KIND)));
        }
        if report.reproducible == Some(true) {
            return Err(EvalReportFault("reproducible is false or absent".to_owned()));
        }
        // An absent key reads as null, but is another content.
        if report.content() != *content {
            let whole = report.content();
            let mut keys = whole.as_object().into_iter().flat_map(|fields| fields.keys());
            let rule = match keys.find(|key| content.get(key.as_str()).is_none()) {
                Some(key) => format!("{key} is missing"),
                None => "a part of it lacks a field".to_owned(),
            };
            return Err(EvalReportFault(rule));
        }
        Ok(report)
    }
}
