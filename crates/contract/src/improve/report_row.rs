//! The reports of jobs as rows, and the looks at test splits.

use std::collections::BTreeMap;

use cantrip_canon::json::{self, canonical};
use cantrip_canon::{Hash, JobId, Timestamp, bytes_hash};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{AlteredRow, CandidateId, EvalId, EvalStatus, ReportId, Split, Subject};

/// A report to be written by the step that closes its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportDraft {
    pub job_id: JobId,
    /// The canonical text of the report.
    pub body: String,
    /// The number of the look, with which the report was computed: for an evaluation with a baseline on the test
    /// split, and for no other report. The store compares it with the stored looks; if another look came first, it
    /// writes nothing and answers with the number that is right now ([`ImproveFault::Look`](crate::ImproveFault)).
    pub look: Option<u64>,
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
    /// Returns the report as a value, if it still has its hash.
    pub fn content(&self) -> Result<Value, AlteredRow> {
        read_hashed("evaluation", self.eval_id.to_string(), &self.body, self.report_hash, "report_hash")
    }

    /// Returns the indexed fields, if the body still has its hash.
    pub fn facts(&self) -> Result<EvalFacts, AlteredRow> {
        let altered = || AlteredRow { kind: "evaluation", id: self.eval_id.to_string(), field: "body" };
        serde_json::from_value(self.content()?).map_err(|_| altered())
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
    /// Returns the report as a value, if it still has its hash.
    pub fn content(&self) -> Result<Value, AlteredRow> {
        read_hashed("compile report", self.report_id.to_string(), &self.body, self.report_hash, "report_hash")
    }

    /// Returns the indexed fields, if the body still has its hash.
    pub fn facts(&self) -> Result<CompileFacts, AlteredRow> {
        let altered = || AlteredRow { kind: "compile report", id: self.report_id.to_string(), field: "body" };
        serde_json::from_value(self.content()?).map_err(|_| altered())
    }
}

/// The bounds of a mean in the body of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct ReportedMean {
    pub mean: i64,
    pub low: Option<i64>,
    pub high: Option<i64>,
}

/// The number of a look in the body of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct ReportedLook {
    pub k: u64,
}

/// The cost in the body of a report.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ReportedCost {
    pub currency: Option<String>,
    pub total: i64,
}

/// The fields of an evaluation's body by which stores index it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct EvalFacts {
    pub eval_id: EvalId,
    pub report_id: ReportId,
    pub job_hash: Hash,
    pub status: EvalStatus,
    pub signature_id: Subject,
    /// The candidate that was evaluated.
    pub compiled_id: CandidateId,
    pub baseline_id: Option<CandidateId>,
    pub dataset_hash: Hash,
    pub split: Split,
    pub metric_hash: Hash,
    pub examples: u64,
    /// The number of unscored trials by reason.
    #[serde(default)]
    pub unscored: BTreeMap<String, u64>,
    pub score: Option<ReportedMean>,
    pub delta: Option<ReportedMean>,
    pub look: Option<ReportedLook>,
    /// `better`, `worse` or `undecided`; none without a baseline.
    pub verdict: Option<String>,
    pub cost: ReportedCost,
    pub created_at: Timestamp,
}

impl EvalFacts {
    /// Returns true if the evaluation is a look: it compares with a baseline on the test split.
    pub fn is_look(&self) -> bool {
        self.baseline_id.is_some() && self.split == Split::Test
    }

    pub fn look_query(&self) -> LookQuery {
        let (eval_id, subject) = (self.eval_id.clone(), self.signature_id.clone());
        LookQuery { eval_id, subject, dataset_hash: self.dataset_hash }
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

/// A comparison on a test split.
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

/// Returns true if an earlier look counts: the inputs that both test splits have are at least half of the later one.
pub const fn is_look_at(shared_inputs: u64, inputs: u64) -> bool {
    inputs > 0 && shared_inputs.saturating_mul(2) >= inputs
}

impl ReportDraft {
    /// Makes a draft of this report.
    pub fn new(job_id: JobId, content: &Value, look: Option<u64>) -> Result<Self, json::WriteFault> {
        Ok(Self { job_id, body: canonical(content)?, look })
    }

    /// Returns the hash of the report.
    pub fn hash(&self) -> Hash {
        bytes_hash(self.body.as_bytes())
    }

    /// Returns the indexed fields; none if this is not the body of an evaluation.
    pub fn eval_facts(&self) -> Option<EvalFacts> {
        serde_json::from_value(json::read(&self.body).ok()?).ok()
    }

    /// Returns the indexed fields; none if this is not the body of a compile report.
    pub fn compile_facts(&self) -> Option<CompileFacts> {
        serde_json::from_value(json::read(&self.body).ok()?).ok()
    }
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
