//! The reports of jobs as rows, and the looks at test splits.

use cantrip_canon::json::{self, canonical};
use cantrip_canon::{Hash, JobId, Timestamp, bytes_hash};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{AlteredRow, CandidateId, CompileReport, EvalId, EvalReport, EvalStatus, ReportId, Split, Subject};

/// An evaluation to be written by the step that closes its job.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalReportDraft {
    pub job_id: JobId,
    pub report: EvalReport,
    /// The number of the look, with which the report was computed: for an evaluation with a baseline on the test
    /// split, and for no other one. The store compares it with the stored looks; if another look came first, it writes
    /// nothing and answers with the number that is right now ([`ImproveFault::Look`](crate::ImproveFault)).
    pub look: Option<u64>,
}

impl EvalReportDraft {
    /// Returns true if the evaluation is a look: it compares with a baseline on the test split.
    pub fn is_look(&self) -> bool {
        self.report.baseline_id.is_some() && self.report.split == Split::Test
    }

    pub fn look_query(&self) -> LookQuery {
        let (eval_id, subject) = (self.report.eval_id.clone(), self.report.signature_id.clone());
        LookQuery { eval_id, subject, dataset_hash: self.report.dataset_hash }
    }

    /// Returns the canonical text that is stored and hashed.
    pub(super) fn body(&self) -> String {
        canonical(&self.report.content()).expect("integers and texts")
    }
}

/// A stored evaluation. A job that ran out and went on has written several; the newest one counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvalReportRow {
    pub eval_id: EvalId,
    pub job_id: JobId,
    /// 1 for the first report of this evaluation.
    pub attempt: u64,
    pub report_hash: Hash,
    /// The canonical text that has the hash.
    pub body: String,
}

impl EvalReportRow {
    /// Returns the report, if its bytes still have the hash.
    pub fn report(&self) -> Result<EvalReport, AlteredRow> {
        let altered = |field| AlteredRow { kind: "evaluation", id: self.eval_id.to_string(), field };
        let content = read_hashed("evaluation", self.eval_id.to_string(), &self.body, self.report_hash, "report_hash")?;
        let report = EvalReport::from_value(&content).map_err(|_| altered("body"))?;
        if report.eval_id == self.eval_id { Ok(report) } else { Err(altered("eval_id")) }
    }
}

/// A compile report to be written by the step that closes its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompileReportDraft {
    pub job_id: JobId,
    /// The canonical text of the report.
    pub body: String,
}

impl CompileReportDraft {
    pub fn new(job_id: JobId, content: &Value) -> Result<Self, json::WriteFault> {
        Ok(Self { job_id, body: canonical(content)? })
    }

    /// Returns the indexed fields; none if this is not the body of a compile report.
    pub(super) fn facts(&self) -> Option<CompileFacts> {
        serde_json::from_value(json::read(&self.body).ok()?).ok()
    }
}

/// A stored compile report. A job that ran out and went on has written several; the newest one counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompileReportRow {
    pub report_id: ReportId,
    pub job_id: JobId,
    /// 1 for the first report of this job.
    pub attempt: u64,
    pub report_hash: Hash,
    /// The canonical text that has the hash.
    pub body: String,
}

impl CompileReportRow {
    /// Returns the report as a value, if its bytes still have the hash.
    pub fn content(&self) -> Result<Value, AlteredRow> {
        read_hashed("compile report", self.report_id.to_string(), &self.body, self.report_hash, "report_hash")
    }

    /// Returns the report, if its bytes still have the hash.
    pub fn report(&self) -> Result<CompileReport, AlteredRow> {
        let altered = |field| AlteredRow { kind: "compile report", id: self.report_id.to_string(), field };
        let report = CompileReport::from_value(&self.content()?).map_err(|_| altered("body"))?;
        if report.report_id == self.report_id { Ok(report) } else { Err(altered("report_id")) }
    }

    /// Returns the indexed fields, if the bytes still have the hash.
    pub fn facts(&self) -> Result<CompileFacts, AlteredRow> {
        let altered = |field| AlteredRow { kind: "compile report", id: self.report_id.to_string(), field };
        let facts: CompileFacts = serde_json::from_value(self.content()?).map_err(|_| altered("body"))?;
        if facts.report_id == self.report_id { Ok(facts) } else { Err(altered("report_id")) }
    }
}

/// The fields of a compile report's body by which stores index it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct CompileFacts {
    pub report_id: ReportId,
    pub job_hash: Hash,
    pub status: EvalStatus,
    pub signature_id: Subject,
    pub dataset_hash: Hash,
    pub metric_hash: Hash,
    pub compiler_version: String,
    /// The candidate that was chosen.
    pub selected: Option<CandidateId>,
    pub suggestion: Value,
    pub created_at: Timestamp,
}

/// A stored look: one comparison on a test split, with its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookRow {
    pub eval_id: EvalId,
    /// The first report of this evaluation.
    pub report_hash: Hash,
    pub subject: Subject,
    pub dataset_hash: Hash,
    /// From 1.
    pub k: u64,
    pub at: Timestamp,
}

/// Names the look that an evaluation takes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LookQuery {
    pub eval_id: EvalId,
    pub subject: Subject,
    pub dataset_hash: Hash,
}

/// Returns true if an earlier look counts: the inputs that both test splits have are at least half of the later one's.
pub const fn is_look_at(shared_inputs: u64, inputs: u64) -> bool {
    inputs > 0 && shared_inputs.saturating_mul(2) >= inputs
}

/// Reads a text that is stored under its hash.
pub(super) fn read_hashed(
    kind: &'static str,
    id: String,
    body: &str,
    hash: Hash,
    field: &'static str,
) -> Result<Value, AlteredRow> {
    if bytes_hash(body.as_bytes()) != hash {
        return Err(AlteredRow { kind, id, field });
    }
    json::read(body).map_err(|_| AlteredRow { kind, id, field: "body" })
}
