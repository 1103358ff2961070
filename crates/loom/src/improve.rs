//! The read side of a store's datasets, metrics, jobs and reports. They are written only by steps.

mod memory;

use cantrip_canon::{Hash, JobId, RunId};
use cantrip_contract::{
    CandidateId, CandidateRow, CompileReportRow, DatasetExampleRow, DatasetName, DatasetRow, DatasetVersionRow, EvalId,
    EvalReport, EvalReportRow, ExampleId, ExampleResultRow, GuardRow, JobKind, JobRow, JobStatus, JudgeCheckRow,
    LookQuery, LookRow, MetricRow, ReceiptId, ReportId, SignatureId, Split, Subject, TrialRef, VerdictRow,
};

use crate::views::reads;
use crate::{Error, ListPage, PageRequest};

pub(crate) use memory::MemoryImprovements;

/// Selects jobs. None matches any value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobFilter {
    pub kind: Option<JobKind>,
    pub subject: Option<Subject>,
    pub status: Option<JobStatus>,
    /// True to list the newest job first.
    pub latest_first: bool,
}

impl JobFilter {
    pub fn matches(&self, job: &JobRow) -> bool {
        self.kind.is_none_or(|kind| job.kind == kind)
            && self.subject.as_ref().is_none_or(|subject| job.subject == *subject)
            && self.status.is_none_or(|status| job.status == status)
    }
}

/// Selects evaluations. None matches any value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EvalFilter {
    pub subject: Option<Subject>,
    /// The candidate that was evaluated.
    pub candidate: Option<CandidateId>,
    pub baseline: Option<CandidateId>,
    pub split: Option<Split>,
    pub job: Option<JobId>,
    /// True to list the newest evaluation first.
    pub latest_first: bool,
}

impl EvalFilter {
    pub fn matches(&self, job: JobId, report: &EvalReport) -> bool {
        self.subject.as_ref().is_none_or(|subject| report.signature_id == *subject)
            && self.candidate.as_ref().is_none_or(|id| report.compiled_id == *id)
            && self.baseline.as_ref().is_none_or(|id| report.baseline_id.as_ref() == Some(id))
            && self.split.is_none_or(|split| report.split == split)
            && self.job.is_none_or(|wanted| job == wanted)
    }
}

reads! {
    /// The datasets, metrics, jobs and reports of a store, for reading.
    ///
    /// * **Order.** Lists are in the order in which their rows were first written, unless the caller asks for another
    ///   order. The examples of a dataset are in the order of their ids.
    /// * **Consistent.** Each answer shows the store between two steps, never in the middle of one.
    /// * **As written.** A row is returned as it is stored. [`EvalReportRow::report`], [`MetricRow::value`] and
    ///   [`JobRow::spec()`](fn@cantrip_contract::JobRow::spec) check whether text and hash still match. Inputs, expected
    ///   outputs and feedback are bodies: see [`Journal::body`](crate::Journal::body).
    /// * **No contracts.** A store that keeps no contracts leaves the default methods, which return
    ///   [`Error::NoContracts`]. In a store that does, an unknown id is [`Error::NotFound`].
    ///
    /// Reading changes nothing, and every future may be dropped at any time.
    #[expect(unused_variables, reason = "the default methods, of stores without contracts, need no argument")]
    pub trait Improvements or Error::NoContracts;

    fn datasets(page: PageRequest) -> ListPage<DatasetRow>;
    fn dataset(hash: Hash) -> DatasetRow;
    /// Lists the examples of a dataset, or those of one split, in the order of their ids.
    fn dataset_examples(hash: Hash, split: Option<Split>, page: PageRequest) -> ListPage<DatasetExampleRow>;
    fn dataset_example(hash: Hash, example: ExampleId) -> DatasetExampleRow;
    /// Lists the versions of a name, or of all names, oldest first.
    fn dataset_versions(name: Option<DatasetName>, page: PageRequest) -> ListPage<DatasetVersionRow>;
    /// Returns a version of a name, or its newest one; none if there is none.
    fn dataset_version(name: DatasetName, version: Option<u64>) -> Option<DatasetVersionRow>;
    fn verdicts(page: PageRequest) -> ListPage<VerdictRow>;
    /// Lists the verdicts about a receipt, oldest first. The last one counts.
    fn verdicts_of(receipt: ReceiptId) -> Vec<VerdictRow>;
    fn metrics(page: PageRequest) -> ListPage<MetricRow>;
    fn metric(hash: Hash) -> MetricRow;
    /// Returns the newest agreement of a judged metric with people; none if it was never checked.
    fn judge_check(metric: Hash) -> Option<JudgeCheckRow>;
    fn jobs(wanted: JobFilter, page: PageRequest) -> ListPage<JobRow>;
    fn job(id: JobId) -> JobRow;
    /// Returns the job with this hash; none if nobody started it.
    fn job_of_hash(hash: Hash) -> Option<JobRow>;
    /// Returns the job whose run this is; none if the run is no job's.
    fn job_of_run(run: RunId) -> Option<JobRow>;
    /// Lists the candidates of a job, in the order in which they were decided.
    fn candidates(job: JobId, page: PageRequest) -> ListPage<CandidateRow>;
    /// Lists the results of a job, or those of one candidate.
    fn results(job: JobId, candidate: Option<CandidateId>, page: PageRequest) -> ListPage<ExampleResultRow>;
    /// Returns the result of a trial; none if it has none yet.
    fn result(trial: TrialRef) -> Option<ExampleResultRow>;
    /// Lists evaluations. Of one that was reported several times, the newest report is listed.
    fn eval_reports(wanted: EvalFilter, page: PageRequest) -> ListPage<EvalReportRow>;
    /// Returns the newest report of an evaluation.
    fn eval_report(id: EvalId) -> EvalReportRow;
    fn compile_reports(subject: Option<Subject>, page: PageRequest) -> ListPage<CompileReportRow>;
    /// Returns the newest report with this id.
    fn compile_report(id: ReportId) -> CompileReportRow;
    /// Returns the newest report of a compile job; none if it has none yet.
    fn compile_report_of(job: JobId) -> Option<CompileReportRow>;
    /// Lists the looks of a subject, oldest first.
    fn looks(subject: Subject, page: PageRequest) -> ListPage<LookRow>;
    /// Returns the number that the look of an evaluation has, or would get now: one more than the earlier looks of the
    /// same subject whose test inputs make up half or more of the test inputs of this dataset.
    fn look_number(query: LookQuery) -> u64;
    /// Lists the guards, ordered by signature.
    fn guards() -> Vec<GuardRow>;
    fn guard(signature: SignatureId) -> Option<GuardRow>;
}
