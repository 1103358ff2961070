//! The report of a compile: its winner, its candidates and their costs.
//!
//! The body names every candidate with its parents, what it scored on the holdout split, and how the winner did on the
//! test split. It is computed from the rows and the records of the job, so that anybody can compute it again and
//! compare the hash. Scores are integers in millionths, amounts of money in millionths of the currency.

use std::collections::BTreeMap;

use cantrip_canon::json::to_value;
use cantrip_canon::{Currency, Hash, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ids::hash;
use crate::{CandidateId, EvalId, EvalStatus, JobModels, OptimiserSpec, ReportId, Subject};

/// A candidate in the report of a compile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompileCandidatePart {
    pub compiled_id: CandidateId,
    /// 0 for the base; then in the order in which candidates were made.
    pub ordinal: u64,
    pub parents: Vec<CandidateId>,
    /// The step that made it, as in `reflect` or `merge`.
    pub op: String,
    /// The slot that the step changed, if it was one.
    pub component: Option<String>,
    pub accepted: bool,
    /// The reason why it was not accepted.
    pub reason: Option<String>,
    /// The mean score on the holdout split; none unless all of it was tried.
    pub holdout: Option<u64>,
    /// The number of trials, on all splits.
    pub trials: u64,
    /// The cost of a trial, rounded up.
    pub per_call: u64,
}

/// The proposals of a compile.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProposalsPart {
    pub made: u64,
    /// The number of rejected texts by reason.
    pub rejected: BTreeMap<String, u64>,
    /// The number of texts that became part of an accepted candidate.
    pub accepted: u64,
}

/// The number of trials of a compile by split.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompileTrialsPart {
    pub train: u64,
    pub holdout: u64,
    pub test: u64,
    /// How many of all of them have no score.
    pub unscored: u64,
}

/// The bounds that were asked for. None is no bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetAsked {
    pub currency: Option<Currency>,
    pub amount: Option<u64>,
    pub calls: Option<u64>,
    pub proposals: Option<u64>,
}

/// The use of the budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetUsed {
    pub currency: Option<Currency>,
    /// Trials, judgements and proposals together.
    pub amount: u64,
    /// Held for calls whose outcome is unknown.
    pub unreconciled: u64,
    pub calls: u64,
    pub proposals: u64,
}

/// The budget of a compile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompileBudgetPart {
    pub asked: BudgetAsked,
    pub used: BudgetUsed,
}

/// The suggested next step: `promote`, `canary` or `keep`, with its reason in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuggestionPart {
    pub action: String,
    pub reason: String,
}

/// The body of a compile report: everything that is hashed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompileReport {
    /// Always 1.
    pub v: u32,
    /// Always `compile_report`.
    pub kind: String,
    pub report_id: ReportId,
    pub job_hash: Hash,
    pub status: EvalStatus,
    /// The signature, or `spell:` and the name of a spell.
    pub signature_id: Subject,
    pub dataset_hash: Hash,
    pub metric_hash: Hash,
    pub optimiser: OptimiserSpec,
    pub models: JobModels,
    pub seed: String,
    pub compiler_version: String,
    pub base: CandidateId,
    /// The winner; the base if nothing was better.
    pub selected: Option<CandidateId>,
    /// By ordinal.
    pub candidates: Vec<CompileCandidatePart>,
    /// The best mean on holdout after so many trials, one pair for each improvement.
    pub curve: Vec<(u64, u64)>,
    pub proposals: ProposalsPart,
    pub trials: CompileTrialsPart,
    pub budget: CompileBudgetPart,
    /// The winner's mean on holdout less its mean on test; none if it was not tested.
    pub optimism: Option<i64>,
    /// The evaluation on test; none if the base won or the job ended before it.
    pub eval_id: Option<EvalId>,
    pub suggestion: SuggestionPart,
    pub created_at: Timestamp,
}

/// The reason why a value is not the body of a compile report.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not the report of a compile: {0}")]
pub struct CompileReportFault(String);

impl CompileReport {
    /// The value of `v`.
    pub const VERSION: u32 = 1;
    /// The value of `kind`.
    pub const KIND: &'static str = "compile_report";

    /// The whole content, as it is hashed and stored.
    pub fn content(&self) -> Value {
        to_value(self).expect("ids, hashes, texts and values that were checked")
    }

    /// The report hash.
    pub fn hash(&self) -> Hash {
        hash(&self.content())
    }

    /// Returns a candidate by its id.
    pub fn candidate(&self, id: &CandidateId) -> Option<&CompileCandidatePart> {
        self.candidates.iter().find(|candidate| candidate.compiled_id == *id)
    }

    /// Reads a stored body strictly: no unknown field, no missing one.
    pub fn from_value(content: &Value) -> Result<Self, CompileReportFault> {
        let report: Self =
            serde_json::from_value(content.clone()).map_err(|fault| CompileReportFault(fault.to_string()))?;
        if report.v != Self::VERSION || report.kind != Self::KIND {
            let (kind, version) = (&report.kind, report.v);
            return Err(CompileReportFault(format!("it is {kind} {version}, and this version reads {} 1", Self::KIND)));
        }
        // An absent key reads as null, but is another content.
        if report.content() != *content {
            let whole = report.content();
            let mut keys = whole.as_object().into_iter().flat_map(|fields| fields.keys());
            let rule = match keys.find(|key| content.get(key.as_str()).is_none()) {
                Some(key) => format!("{key} is missing"),
                None => "a part of it lacks a field".to_owned(),
            };
            return Err(CompileReportFault(rule));
        }
        Ok(report)
    }
}
