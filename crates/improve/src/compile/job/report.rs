//! The report of a compile, as a pure function of its rows and of what its receipts say.
//!
//! Nothing here reads a clock or a store: who has the rows of a compile makes the same report, byte for byte.

use std::collections::BTreeMap;

use cantrip::canon::{Currency, Timestamp};
use cantrip_contract::{
    BudgetAsked, BudgetUsed, CandidateId, CompileBudgetPart, CompileCandidatePart, CompileReport, CompileTrialsPart,
    EvalReport, EvalStatus, ExampleResultRow, JobBounds, JobSpec, ReportId, Split, SuggestionPart, Unscored,
};

use crate::compile::Walk;
use crate::limits::EVAL_UNSCORED_PERCENT_MAX;

/// The reason for a candidate of which nothing was decided when its job ended.
const NOT_COMPLETED: &str = "not_completed";

/// The money that the receipts of a compile tell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompileMoney {
    pub currency: Option<Currency>,
    /// Trials, judgements and proposals together, in millionths.
    pub total: u64,
    /// The captured money and the number of the receipts of each candidate's trials, without judgements.
    pub by_candidate: BTreeMap<CandidateId, (u64, u64)>,
    /// Held for calls whose outcome is unknown, in millionths.
    pub unreconciled: u64,
}

/// Everything that the report of a compile is made of.
#[derive(Debug, Clone)]
pub struct CompileReportInputs<'a> {
    pub spec: &'a JobSpec,
    /// The end of the job, if it did not make everything.
    pub ended: Option<EvalStatus>,
    /// The path of the search, as far as the rows carry it.
    pub walk: &'a Walk,
    /// The rows of the job, in any order.
    pub rows: &'a [ExampleResultRow],
    pub bounds: &'a JobBounds,
    pub max_proposals: Option<u64>,
    pub money: &'a CompileMoney,
    /// The report of the final test, if there was one.
    pub tested: Option<&'a EvalReport>,
    pub suggestion: SuggestionPart,
    pub created_at: Timestamp,
}

impl CompileReportInputs<'_> {
    /// Returns the candidate that the search chose: its winner, or the best one that was tried on all of holdout. None
    /// if no candidate was.
    pub fn selected(&self) -> Option<CandidateId> {
        selected_of(self.walk)
    }
}

/// Returns the candidate that a search chose, or would choose now; none if no candidate was tried on all of holdout.
pub fn selected_of(walk: &Walk) -> Option<CandidateId> {
    let is_tried = walk.candidate(&walk.best)?.holdout_micro.is_some();
    is_tried.then(|| walk.best.clone())
}

/// Returns true if more than 5 % of the trials of a search failed through no fault of their candidates. An example without
/// an expected output is no failure: no candidate can be scored on it. The final test counts for itself.
fn has_too_many_failures(rows: &[ExampleResultRow]) -> bool {
    let searched = || rows.iter().filter(|row| row.split != Split::Test);
    let is_failure = |row: &&ExampleResultRow| match row.unscored {
        Some(Unscored::MetricFailed | Unscored::JudgeFailed | Unscored::Infrastructure) => true,
        Some(Unscored::NoExpected | Unscored::NoReward) | None => false,
    };
    let failures = searched().filter(is_failure).count() as u64;
    failures * 100 > searched().count() as u64 * EVAL_UNSCORED_PERCENT_MAX
}

/// Makes the report. Returns none if the job is no compile.
pub fn make_compile_report(inputs: &CompileReportInputs<'_>) -> Option<CompileReport> {
    let CompileReportInputs { spec, walk, rows, bounds, money, .. } = inputs;
    let (selected, job_hash) = (inputs.selected(), spec.job_hash());
    let in_split = |split: Split| rows.iter().filter(|row| row.split == split).count() as u64;
    let is_incomplete =
        inputs.tested.is_some_and(|report| report.status == EvalStatus::Incomplete) || has_too_many_failures(rows);
    let status = match inputs.ended {
        Some(ended) => ended,
        None if is_incomplete => EvalStatus::Incomplete,
        None => EvalStatus::Succeeded,
    };
    let asked = BudgetAsked {
        currency: bounds.budget.map(cantrip::canon::Money::currency),
        amount: bounds.budget.map(|budget| u64::try_from(budget.micros()).unwrap_or(0)),
        calls: bounds.max_calls,
        proposals: inputs.max_proposals,
    };
    let used = BudgetUsed {
        currency: money.currency,
        amount: money.total,
        unreconciled: money.unreconciled,
        calls: rows.len() as u64,
        proposals: walk.proposals.made,
    };
    let holdout = selected.as_ref().and_then(|id| walk.candidate(id)?.holdout_micro);
    Some(CompileReport {
        v: CompileReport::VERSION,
        kind: CompileReport::KIND.to_owned(),
        report_id: ReportId::of_compile(&spec.of, job_hash, selected.as_ref()),
        job_hash,
        status,
        signature_id: spec.of.clone(),
        dataset_hash: spec.dataset_hash,
        metric_hash: spec.metric_hash(),
        optimiser: spec.optimiser.clone()?,
        models: spec.models.clone(),
        seed: spec.seed.clone(),
        compiler_version: spec.compiler_version.clone(),
        base: spec.base.clone()?,
        candidates: candidates(inputs),
        curve: walk.curve.clone(),
        proposals: walk.proposals.clone(),
        trials: CompileTrialsPart {
            train: in_split(Split::Train),
            holdout: in_split(Split::Holdout),
            test: in_split(Split::Test),
            unscored: rows.iter().filter(|row| row.unscored.is_some()).count() as u64,
        },
        budget: CompileBudgetPart { asked, used },
        optimism: optimism(holdout, inputs.tested),
        eval_id: inputs.tested.map(|report| report.eval_id.clone()),
        selected,
        suggestion: inputs.suggestion.clone(),
        created_at: inputs.created_at,
    })
}

/// Returns the winner's mean on holdout less its mean on test.
fn optimism(holdout: Option<u64>, tested: Option<&EvalReport>) -> Option<i64> {
    let test = i64::try_from(tested?.score?.mean).ok()?;
    Some(i64::try_from(holdout?).ok()? - test)
}

fn candidates(inputs: &CompileReportInputs<'_>) -> Vec<CompileCandidatePart> {
    let mut trials: BTreeMap<&CandidateId, u64> = BTreeMap::new();
    for row in inputs.rows {
        *trials.entry(&row.candidate_id).or_default() += 1;
    }
    let part = |candidate: &crate::compile::Candidate| {
        let (captured, calls) = inputs.money.by_candidate.get(&candidate.id).copied().unwrap_or_default();
        let (accepted, reason) = match &candidate.decision {
            Some(decision) => (decision.accepted, decision.reason.clone()),
            None => (false, Some(NOT_COMPLETED.to_owned())),
        };
        CompileCandidatePart {
            compiled_id: candidate.id.clone(),
            ordinal: candidate.ordinal,
            parents: candidate.parents.clone(),
            op: candidate.op.clone(),
            component: candidate.component.clone(),
            accepted,
            reason,
            holdout: candidate.holdout_micro,
            trials: trials.get(&candidate.id).copied().unwrap_or(0),
            per_call: if calls == 0 { 0 } else { captured.div_ceil(calls) },
        }
    };
    inputs.walk.candidates.iter().map(part).collect()
}
