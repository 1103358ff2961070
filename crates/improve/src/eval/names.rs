//! The evaluation that a job is, or has: with its names, and the two sides that it compares.

use cantrip::canon::Hash;
use cantrip_contract::{CandidateId, EvalId, EvalReport, JobKind, JobSpec, ReportId, Split};

/// An evaluation of a job: the whole job, or the final test of a compile.
#[derive(Debug, Clone, PartialEq)]
pub struct JobEval {
    /// The specification of the job. Subject, baseline and split are those of the evaluation.
    pub spec: JobSpec,
    pub job_hash: Hash,
    pub report_id: ReportId,
    pub eval_id: EvalId,
}

impl JobEval {
    /// Returns the evaluation that a job is; none if it evaluates no candidate.
    pub fn of_job(spec: &JobSpec) -> Option<Self> {
        let (report_id, eval_id) = (spec.eval_report_id()?, spec.eval_id()?);
        Some(Self { spec: spec.clone(), job_hash: spec.job_hash(), report_id, eval_id })
    }

    /// Returns the final test of a compile that chose this candidate: beside the base, on the test split. None if the
    /// job has no base.
    pub fn of_compile(spec: &JobSpec, selected: &CandidateId) -> Option<Self> {
        let base = spec.base.clone()?;
        let job_hash = spec.job_hash();
        let report_id = ReportId::of_compile(&spec.of, job_hash, Some(selected));
        let eval_id = EvalId::of(&report_id, selected, Split::Test);
        let spec =
            JobSpec { subject: Some(selected.clone()), baseline: Some(base), split: Split::Test, ..spec.clone() };
        Some(Self { spec, job_hash, report_id, eval_id })
    }

    /// Returns the evaluation of a job that a stored report is about; none if the job does not have it.
    pub fn of_report(spec: &JobSpec, report: &EvalReport) -> Option<Self> {
        let found = match spec.kind {
            JobKind::Eval => Self::of_job(spec),
            JobKind::Compile => Self::of_compile(spec, &report.compiled_id),
        };
        found.filter(|found| found.eval_id == report.eval_id)
    }
}
