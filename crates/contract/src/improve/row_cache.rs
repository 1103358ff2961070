//! May a row about datasets, metrics, jobs or reports be written, and which rows are written then? One answer for every
//! store: see [`ContractCache`](crate::ContractCache).

use std::collections::{BTreeMap, BTreeSet};

use cantrip_canon::{Hash, JobId, RunId, Timestamp, bytes_hash};
use cantrip_reply::{Refusal, codes};
use serde_json::json;

use super::job_row::{JobRow, JobStatus, JobUpdate};
use super::report_row::{CompileReportDraft, CompileReportRow, EvalReportDraft, EvalReportRow, LookQuery, LookRow};
use super::row::{
    CandidateRow, DatasetDraft, DatasetExampleRow, DatasetRow, DatasetVersionRow, ExampleResultRow, GuardRow,
    ImproveRow, JudgeCheckRow, MetricRow, TrialRef, VerdictRow,
};
use crate::limits::SCORE_MICRO_MAX;
use crate::{CandidateId, ContractFault, DatasetName, EvalId, ReceiptId, SignatureId, VerdictId};

/// The looks that stand before the look of an evaluation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LookStanding {
    /// The number of the evaluation's own look, if it is stored.
    pub own: Option<u64>,
    /// How many stored looks of other evaluations [count](super::is_look_at).
    pub earlier: u64,
}

impl LookStanding {
    /// Returns the number that the look of the evaluation has, or gets.
    pub fn k(&self) -> u64 {
        self.own.unwrap_or(self.earlier + 1)
    }
}

/// Rows of a store about datasets, metrics, jobs and reports, as far as a step needs them.
#[derive(Debug, Clone, Default)]
pub struct ImproveCache {
    datasets: BTreeSet<Hash>,
    versions: BTreeMap<(DatasetName, u64), DatasetVersionRow>,
    receipts: BTreeSet<ReceiptId>,
    verdicts: BTreeMap<VerdictId, VerdictRow>,
    metrics: BTreeSet<Hash>,
    judge_checks: BTreeMap<(Hash, Hash, Timestamp), JudgeCheckRow>,
    jobs: BTreeMap<JobId, JobRow>,
    candidates: BTreeMap<(JobId, CandidateId), CandidateRow>,
    results: BTreeMap<TrialRef, ExampleResultRow>,
    eval_reports: BTreeMap<EvalId, EvalReportRow>,
    compile_reports: BTreeMap<JobId, CompileReportRow>,
    looks: BTreeMap<LookQuery, LookStanding>,
    guards: BTreeMap<SignatureId, GuardRow>,
}

/// A row for the store to write. Only jobs and guards replace a row with the same key.
#[derive(Debug, Clone, PartialEq)]
pub enum ImproveUpsert {
    Dataset(DatasetRow),
    Example(DatasetExampleRow),
    DatasetVersion(DatasetVersionRow),
    Verdict(VerdictRow),
    Metric(MetricRow),
    JudgeCheck(JudgeCheckRow),
    Job(JobRow),
    Candidate(CandidateRow),
    Result(ExampleResultRow),
    EvalReport(EvalReportRow),
    CompileReport(CompileReportRow),
    Look(LookRow),
    Guard(GuardRow),
}

/// The reason why a row about datasets, metrics, jobs or reports is not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImproveFault {
    /// The same job is there. Nothing was written; the caller joins it, or takes its report.
    #[error("job {job_id} with run {run_id} is the same job")]
    JobExists { job_hash: Hash, job_id: JobId, run_id: RunId, status: JobStatus },
    #[error("job {job_id} has ended as {}", status.as_str())]
    JobEnded { job_id: JobId, status: JobStatus },
    #[error("the newest version of dataset {name} is {newest}, so {asked} cannot be added")]
    Version { name: DatasetName, newest: u64, asked: u64 },
    /// Another look came first, or the report is no look. `k` is the number that the look has now.
    #[error("the look of {eval_id} has the number {k:?}, not {asked:?}")]
    Look { eval_id: EvalId, k: Option<u64>, asked: Option<u64> },
    #[error("the guard of {signature} was looked at {looks} times, not {expected}")]
    Guard { signature: SignatureId, looks: u64, expected: u64 },
    /// The row contradicts itself, which is a mistake of its writer.
    #[error("{kind} {id}: {rule}")]
    Unfit { kind: &'static str, id: String, rule: &'static str },
}

impl ImproveFault {
    /// The reply to the caller that asked for the write.
    pub fn refusal(&self) -> Refusal {
        match self {
            Self::JobExists { job_id, run_id, status, .. } => {
                codes::busy("job", job_id.to_string(), run_id.to_string())
                    .data(json!({"reason": "in_flight", "job_id": job_id, "run_id": run_id, "status": status}))
                    .into()
            }
            Self::JobEnded { job_id, status } => {
                let wanted = "one that can be continued";
                codes::wrong_state("job", job_id.to_string(), status.as_str(), "changing it", wanted).into()
            }
            Self::Version { name, newest, asked } => {
                codes::version_conflict("dataset", name.to_string(), *newest, asked.saturating_sub(1)).into()
            }
            Self::Look { eval_id, k, asked } => {
                codes::version_conflict("look", eval_id.to_string(), k.unwrap_or(0), asked.unwrap_or(0)).into()
            }
            Self::Guard { signature, looks, expected } => {
                codes::version_conflict("guard", signature.to_string(), *looks, *expected).into()
            }
            Self::Unfit { kind, id, rule } => codes::schema(format!("{kind} {id}"), "", *rule).into(),
        }
    }
}

type Written = Result<Vec<ImproveUpsert>, ContractFault>;

fn guard_fault(row: &GuardRow, looks: u64, expected: u64) -> ContractFault {
    ContractFault::Improve(ImproveFault::Guard { signature: row.signature_id.clone(), looks, expected })
}

fn unknown(kind: &'static str, id: impl ToString) -> ContractFault {
    ContractFault::Unknown { kind, id: id.to_string() }
}

fn unfit(kind: &'static str, id: impl ToString, rule: &'static str) -> ContractFault {
    ContractFault::Improve(ImproveFault::Unfit { kind, id: id.to_string(), rule })
}

/// Returns nothing to write if the stored row is the same one, else the conflict; `row` if none is stored.
fn once<T: PartialEq>(
    stored: Option<&T>,
    row: &T,
    written: impl FnOnce() -> ImproveUpsert,
    named: impl FnOnce() -> (&'static str, String),
) -> Written {
    match stored {
        None => Ok(vec![written()]),
        Some(stored) if stored == row => Ok(Vec::new()),
        Some(_) => {
            let (kind, id) = named();
            Err(ContractFault::Other { kind, id })
        }
    }
}

impl ImproveCache {
    /// Records that a dataset is stored.
    pub fn insert_dataset(&mut self, hash: Hash) {
        self.datasets.insert(hash);
    }

    pub fn insert_version(&mut self, row: DatasetVersionRow) {
        self.versions.insert((row.name.clone(), row.version), row);
    }

    /// Records that a receipt is stored.
    pub fn insert_receipt(&mut self, id: ReceiptId) {
        self.receipts.insert(id);
    }

    pub fn insert_verdict(&mut self, row: VerdictRow) {
        self.verdicts.insert(row.verdict_id.clone(), row);
    }

    /// Records that a metric is stored.
    pub fn insert_metric(&mut self, hash: Hash) {
        self.metrics.insert(hash);
    }

    pub fn insert_judge_check(&mut self, row: JudgeCheckRow) {
        self.judge_checks.insert((row.metric_hash, row.dataset_hash, row.at), row);
    }

    pub fn insert_job(&mut self, row: JobRow) {
        self.jobs.insert(row.job_id, row);
    }

    pub fn insert_candidate(&mut self, row: CandidateRow) {
        self.candidates.insert((row.job_id, row.candidate_id.clone()), row);
    }

    pub fn insert_result(&mut self, row: ExampleResultRow) {
        self.results.insert(row.key(), row);
    }

    /// Records the newest report of an evaluation.
    pub fn insert_eval_report(&mut self, row: EvalReportRow) {
        self.eval_reports.insert(row.eval_id.clone(), row);
    }

    /// Records the newest report of a compile job.
    pub fn insert_compile_report(&mut self, row: CompileReportRow) {
        self.compile_reports.insert(row.job_id, row);
    }

    pub fn insert_looks(&mut self, query: LookQuery, standing: LookStanding) {
        self.looks.insert(query, standing);
    }

    pub fn insert_guard(&mut self, row: GuardRow) {
        self.guards.insert(row.signature_id.clone(), row);
    }

    pub(crate) fn insert(&mut self, written: &ImproveUpsert) {
        match written {
            ImproveUpsert::Dataset(row) => self.insert_dataset(row.dataset_hash),
            // Nothing is checked against an example.
            ImproveUpsert::Example(_) => {}
            ImproveUpsert::DatasetVersion(row) => self.insert_version(row.clone()),
            ImproveUpsert::Verdict(row) => self.insert_verdict(row.clone()),
            ImproveUpsert::Metric(row) => self.insert_metric(row.metric_hash),
            ImproveUpsert::JudgeCheck(row) => self.insert_judge_check(row.clone()),
            ImproveUpsert::Job(row) => self.insert_job(row.clone()),
            ImproveUpsert::Candidate(row) => self.insert_candidate(row.clone()),
            ImproveUpsert::Result(row) => self.insert_result(row.clone()),
            ImproveUpsert::EvalReport(row) => self.insert_eval_report(row.clone()),
            ImproveUpsert::CompileReport(row) => self.insert_compile_report(row.clone()),
            ImproveUpsert::Look(row) => {
                for (query, standing) in &mut self.looks {
                    if query.eval_id == row.eval_id {
                        standing.own = Some(row.k);
                    } else if query.subject == row.subject && query.dataset_hash == row.dataset_hash {
                        standing.earlier += 1;
                    }
                }
            }
            ImproveUpsert::Guard(row) => self.insert_guard(row.clone()),
        }
    }

    /// Checks a row against the loaded rows, and returns the rows to write.
    pub(crate) fn upserts_for(&self, row: &ImproveRow) -> Written {
        match row {
            ImproveRow::Dataset(draft) => self.dataset_added(draft),
            ImproveRow::DatasetVersion(row) => self.version_added(row),
            ImproveRow::Verdict(row) => {
                self.known_receipt(&row.receipt_id)?;
                let named = || ("verdict", row.verdict_id.to_string());
                let written = || ImproveUpsert::Verdict(VerdictRow::clone(row));
                once(self.verdicts.get(&row.verdict_id), &**row, written, named)
            }
            ImproveRow::Metric(row) => {
                if bytes_hash(row.body.as_bytes()) != row.metric_hash {
                    return Err(unfit("metric", row.metric_hash, "its text has another hash"));
                }
                let there = self.metrics.contains(&row.metric_hash);
                Ok(if there { Vec::new() } else { vec![ImproveUpsert::Metric(MetricRow::clone(row))] })
            }
            ImproveRow::JudgeCheck(row) => {
                self.known_metric(row.metric_hash)?;
                self.known_dataset(row.dataset_hash)?;
                self.known_job(row.job_id)?;
                let key = (row.metric_hash, row.dataset_hash, row.at);
                let named = || ("agreement of metric", row.metric_hash.to_string());
                let written = || ImproveUpsert::JudgeCheck(JudgeCheckRow::clone(row));
                once(self.judge_checks.get(&key), &**row, written, named)
            }
            ImproveRow::Job(row) => self.job_added(row),
            ImproveRow::JobMoved(change) => self.job_moved(change),
            ImproveRow::Candidate(row) => {
                self.known_job(row.job_id)?;
                let key = (row.job_id, row.candidate_id.clone());
                let named = || ("candidate", row.candidate_id.to_string());
                let written = || ImproveUpsert::Candidate(CandidateRow::clone(row));
                once(self.candidates.get(&key), &**row, written, named)
            }
            ImproveRow::Result(row) => self.result_added(row),
            ImproveRow::EvalReport(draft) => self.eval_reported(draft),
            ImproveRow::CompileReport(draft) => self.compile_reported(draft),
            ImproveRow::Guard { row, expected_looks } => self.guard_written(row, *expected_looks),
        }
    }

    /// A setting leaves the looks as they are, and a look leaves the setting as it is: two processes may write both at
    /// the same time.
    fn guard_written(&self, row: &GuardRow, expected_looks: Option<u64>) -> Written {
        let kept = self.guards.get(&row.signature_id);
        let mut written = row.clone();
        match (kept, expected_looks) {
            (None, None | Some(0)) => {}
            (None, Some(expected)) => return Err(guard_fault(row, 0, expected)),
            (Some(kept), None) => (written.canary_audit, written.looks) = (kept.canary_audit, kept.looks),
            (Some(kept), Some(expected)) => {
                // The count begins anew with each canary, so an equal number alone does not show a new look.
                let is_taken = kept.canary_audit == row.canary_audit && kept.looks >= row.looks;
                if kept.looks != expected || is_taken {
                    return Err(guard_fault(row, kept.looks, expected));
                }
                (written.action, written.margin_micro) = (kept.action, kept.margin_micro);
            }
        }
        Ok(if kept == Some(&written) { Vec::new() } else { vec![ImproveUpsert::Guard(written)] })
    }

    fn known_dataset(&self, hash: Hash) -> Result<(), ContractFault> {
        if self.datasets.contains(&hash) { Ok(()) } else { Err(unknown("dataset", hash)) }
    }

    fn known_metric(&self, hash: Hash) -> Result<(), ContractFault> {
        if self.metrics.contains(&hash) { Ok(()) } else { Err(unknown("metric", hash)) }
    }

    fn known_receipt(&self, id: &ReceiptId) -> Result<(), ContractFault> {
        if self.receipts.contains(id) { Ok(()) } else { Err(unknown("receipt", id)) }
    }

    fn known_job(&self, id: JobId) -> Result<&JobRow, ContractFault> {
        self.jobs.get(&id).ok_or_else(|| unknown("job", id))
    }

    fn dataset_added(&self, draft: &DatasetDraft) -> Written {
        let DatasetDraft { row, examples } = draft;
        if self.datasets.contains(&row.dataset_hash) {
            return Ok(Vec::new());
        }
        let mut ids = BTreeSet::new();
        let sound =
            examples.iter().all(|example| example.dataset_hash == row.dataset_hash && ids.insert(&example.example_id));
        if !sound {
            let rule = "an example is there twice, or belongs to another dataset";
            return Err(unfit("dataset", row.dataset_hash, rule));
        }
        if row.hash_with(examples) != row.dataset_hash {
            return Err(unfit("dataset", row.dataset_hash, "its examples have another hash"));
        }
        let mut sorted = examples.clone();
        sorted.sort_by(|a, b| a.example_id.cmp(&b.example_id));
        let first = ImproveUpsert::Dataset(row.clone());
        Ok([first].into_iter().chain(sorted.into_iter().map(ImproveUpsert::Example)).collect())
    }

    fn version_added(&self, row: &DatasetVersionRow) -> Written {
        self.known_dataset(row.dataset_hash)?;
        let same =
            |kept: &DatasetVersionRow| kept.dataset_hash == row.dataset_hash && kept.parent_hash == row.parent_hash;
        if self.versions.get(&(row.name.clone(), row.version)).is_some_and(same) {
            return Ok(Vec::new());
        }
        let mut of_name = self.versions.range((row.name.clone(), 0)..=(row.name.clone(), u64::MAX));
        let newest = of_name.next_back().map(|(_, newest)| newest);
        // The same content again adds no version.
        if newest.is_some_and(|newest| newest.dataset_hash == row.dataset_hash) {
            return Ok(Vec::new());
        }
        let (number, parent) = (newest.map_or(0, |newest| newest.version), newest.map(|newest| newest.dataset_hash));
        if row.version != number + 1 || row.parent_hash != parent {
            let fault = ImproveFault::Version { name: row.name.clone(), newest: number, asked: row.version };
            return Err(ContractFault::Improve(fault));
        }
        Ok(vec![ImproveUpsert::DatasetVersion(row.clone())])
    }

    fn job_added(&self, row: &JobRow) -> Written {
        if let Some(kept) = self.jobs.values().find(|kept| kept.job_hash == row.job_hash) {
            if kept.job_id == row.job_id && kept.run_id == row.run_id {
                return Ok(Vec::new());
            }
            let (job_id, run_id, status) = (kept.job_id, kept.run_id, kept.status);
            let fault = ImproveFault::JobExists { job_hash: row.job_hash, job_id, run_id, status };
            return Err(ContractFault::Improve(fault));
        }
        self.known_dataset(row.dataset_hash)?;
        self.known_metric(row.metric_hash)?;
        if bytes_hash(row.spec.as_bytes()) != row.job_hash {
            return Err(unfit("job", row.job_id, "its specification has another hash"));
        }
        if row.status.is_end() || row.finished_at.is_some() {
            return Err(unfit("job", row.job_id, "a job that begins has not ended"));
        }
        Ok(vec![ImproveUpsert::Job(row.clone())])
    }

    fn job_moved(&self, change: &JobUpdate) -> Written {
        let kept = self.known_job(change.job_id)?;
        let JobUpdate { job_id, status, metric_calls, proposals, ref bounds, ref error, at } = *change;
        let reopens = kept.status.can_reopen() && status == JobStatus::Running;
        let finished_at = if kept.status == status { kept.finished_at } else { status.is_end().then_some(at) };
        let moved = JobRow {
            status,
            metric_calls,
            proposals,
            bounds: bounds.clone().unwrap_or_else(|| kept.bounds.clone()),
            error: error.clone(),
            started_at: kept.started_at.or((status != JobStatus::Queued).then_some(at)),
            finished_at,
            ..kept.clone()
        };
        if moved == *kept {
            return Ok(Vec::new());
        }
        if kept.status.is_end() && !reopens {
            return Err(ContractFault::Improve(ImproveFault::JobEnded { job_id, status: kept.status }));
        }
        if metric_calls < kept.metric_calls || proposals < kept.proposals {
            return Err(unfit("job", job_id, "its counts never go back"));
        }
        if kept.status == JobStatus::Running && status == JobStatus::Queued {
            return Err(unfit("job", job_id, "a job that runs is not queued again"));
        }
        Ok(vec![ImproveUpsert::Job(moved)])
    }

    fn result_added(&self, row: &ExampleResultRow) -> Written {
        self.known_job(row.job_id)?;
        if let Some(receipt) = &row.receipt_id {
            self.known_receipt(receipt)?;
        }
        let named = || ("result", format!("{} {} {}", row.candidate_id, row.example_id, row.epoch));
        if row.score_micro.is_some() == row.unscored.is_some()
            || row.score_micro.is_some_and(|score| score > SCORE_MICRO_MAX)
            || row.epoch == 0
            || row.try_number == 0
        {
            let rule = "it has a score from 0 to 1 or the reason why it has none, an epoch and a try";
            return Err(unfit("result", named().1, rule));
        }
        once(self.results.get(&row.key()), row, || ImproveUpsert::Result(row.clone()), named)
    }

    fn eval_reported(&self, draft: &EvalReportDraft) -> Written {
        let (job, report) = (self.known_job(draft.job_id)?, &draft.report);
        let (eval_id, body) = (report.eval_id.clone(), draft.body());
        let (report_hash, newest) = (bytes_hash(body.as_bytes()), self.eval_reports.get(&eval_id));
        if newest.is_some_and(|newest| newest.report_hash == report_hash) {
            return Ok(Vec::new());
        }
        if report.job_hash != job.job_hash || report.dataset_hash != job.dataset_hash {
            return Err(unfit("evaluation", &eval_id, "its job is another one"));
        }
        let attempt = match newest {
            None => 1,
            Some(newest) => {
                // Only what a job left behind that did not finish is followed by another report.
                let status = newest.report().map(|report| JobStatus::from(report.status));
                if !status.is_ok_and(JobStatus::can_reopen) {
                    return Err(ContractFault::Other { kind: "evaluation", id: eval_id.to_string() });
                }
                newest.attempt + 1
            }
        };
        let query = draft.look_query();
        let standing = self.looks.get(&query).copied().unwrap_or_default();
        let k = draft.is_look().then(|| standing.k());
        let told = report.look.map(|look| look.k);
        if draft.look != k || (told.is_some() && told != k) {
            let asked = if draft.look == k { told } else { draft.look };
            return Err(ContractFault::Improve(ImproveFault::Look { eval_id, k, asked }));
        }
        let (job_id, at) = (draft.job_id, report.created_at);
        let row = EvalReportRow { eval_id: eval_id.clone(), job_id, attempt, report_hash, body };
        let mut written = vec![ImproveUpsert::EvalReport(row)];
        if let Some(k) = k.filter(|_| standing.own.is_none()) {
            let LookQuery { subject, dataset_hash, .. } = query;
            written.push(ImproveUpsert::Look(LookRow { eval_id, report_hash, subject, dataset_hash, k, at }));
        }
        Ok(written)
    }

    fn compile_reported(&self, draft: &CompileReportDraft) -> Written {
        let job = self.known_job(draft.job_id)?;
        let (report_hash, newest) = (bytes_hash(draft.body.as_bytes()), self.compile_reports.get(&draft.job_id));
        let unread = || unfit("compile report", report_hash, "its body cannot be read");
        let facts = draft.facts().ok_or_else(unread)?;
        if newest.is_some_and(|newest| newest.report_hash == report_hash) {
            return Ok(Vec::new());
        }
        if facts.job_hash != job.job_hash || facts.dataset_hash != job.dataset_hash {
            return Err(unfit("compile report", &facts.report_id, "its job is another one"));
        }
        let attempt = match newest {
            None => 1,
            Some(newest) => {
                let status = newest.facts().map(|facts| JobStatus::from(facts.status));
                if !status.is_ok_and(JobStatus::can_reopen) {
                    return Err(ContractFault::Other { kind: "compile report", id: facts.report_id.to_string() });
                }
                newest.attempt + 1
            }
        };
        let (report_id, job_id, body) = (facts.report_id, draft.job_id, draft.body.clone());
        Ok(vec![ImproveUpsert::CompileReport(CompileReportRow { report_id, job_id, attempt, report_hash, body })])
    }
}
