//! Which rows are stored for datasets, metrics, jobs and their reports, and which writes may a step ask for?
//!
//! An [`ImproveRow`] is a [`ContractRow`](crate::ContractRow) like the others: it is part of a step, and is written or
//! refused together with the records of the step. Inputs, expected outputs and feedback are bodies: the canonical text
//! of the JSON value, stored under its hash. A row names them by that hash, and the step brings those that the store
//! does not have yet.

use cantrip_canon::{AuditId, Hash, JobId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::job_row::{JobRow, JobUpdate};
use super::report_row::{CompileReportDraft, EvalReportDraft, LookQuery, read_hashed};
use crate::limits::DATASET_EXAMPLES_MAX;
use crate::{
    AlteredRow, CandidateId, CompiledId, ContractDependency, DatasetCounts, DatasetEntry, DatasetName, EvalId,
    ExampleId, ExampleSource, Labels, ReceiptId, SignatureId, Split, SplitSeed, SplitShares, Subject, Unscored,
    VerdictId, Weight, dataset_hash,
};

/// A stored dataset. Its examples are rows of their own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DatasetRow {
    pub dataset_hash: Hash,
    pub subject: Subject,
    pub split: SplitShares,
    pub split_seed: SplitSeed,
    /// The filters of an export, or the file of an import.
    pub filters: Value,
    pub counts: DatasetCounts,
    pub created_at: Timestamp,
    pub created_by: String,
}

/// A stored example of a dataset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DatasetExampleRow {
    pub dataset_hash: Hash,
    pub example_id: ExampleId,
    pub split: Split,
    /// The hash of the input, under which its body is stored.
    pub input_hash: Hash,
    /// The hash of the near form of the input.
    pub near_hash: Hash,
    /// The hash of the expected output, under which its body is stored.
    pub expected_hash: Option<Hash>,
    pub content_hash: Hash,
    pub weight: Weight,
    pub reward_micro: Option<i64>,
    pub group_key: Option<String>,
    pub labels: Labels,
    pub source: ExampleSource,
}

/// A dataset with all its examples, which are written together.
#[derive(Debug, Clone, PartialEq)]
pub struct DatasetDraft {
    pub row: DatasetRow,
    /// In any order; stored and read in the order of their ids.
    pub examples: Vec<DatasetExampleRow>,
}

impl DatasetRow {
    /// Computes the hash of a dataset with these examples, from their rows.
    pub fn hash_with<'a>(&self, examples: impl IntoIterator<Item = &'a DatasetExampleRow>) -> Hash {
        let entry = |row: &DatasetExampleRow| DatasetEntry {
            id: row.example_id.clone(),
            content_hash: row.content_hash,
            split: row.split,
        };
        let entries: Vec<DatasetEntry> = examples.into_iter().map(entry).collect();
        dataset_hash(&self.subject, self.split, &self.split_seed, &entries)
    }
}

/// A version of a named dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetVersionRow {
    pub name: DatasetName,
    /// From 1, without a gap.
    pub version: u64,
    pub dataset_hash: Hash,
    /// The dataset of the version before it.
    pub parent_hash: Option<Hash>,
    pub note: Option<String>,
    pub at: Timestamp,
    pub by: String,
}

/// The judgement of a person about an answer, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictWord {
    Good,
    Bad,
}

impl VerdictWord {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Bad => "bad",
        }
    }
}

/// A stored verdict about the answer of a receipt. The latest one counts; all are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerdictRow {
    pub verdict_id: VerdictId,
    pub receipt_id: ReceiptId,
    pub verdict: VerdictWord,
    /// The hash of the correction, under which its body is stored.
    pub expected_hash: Option<Hash>,
    pub labels: Labels,
    pub note: Option<String>,
    pub by: String,
    pub at: Timestamp,
}

/// A stored metric.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricRow {
    pub metric_hash: Hash,
    pub name: Option<String>,
    /// The canonical text of the metric with its options filled in.
    pub body: String,
    pub at: Timestamp,
}

impl MetricRow {
    /// Returns the metric as a value, if it still has its hash.
    pub fn value(&self) -> Result<Value, AlteredRow> {
        read_hashed("metric", self.metric_hash.to_string(), &self.body, self.metric_hash, "metric_hash")
    }
}

/// The agreement of a judge with people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JudgeCheckRow {
    pub metric_hash: Hash,
    pub dataset_hash: Hash,
    pub at: Timestamp,
    /// The number of verdicts, and of those on which both agree.
    pub n: u64,
    pub agree: u64,
    /// The lower bound of the agreement.
    pub low_micro: u64,
    pub kappa_micro: i64,
    pub job_id: JobId,
}

/// A candidate of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CandidateRow {
    pub job_id: JobId,
    pub candidate_id: CandidateId,
    /// None for a spell.
    pub compiled_id: Option<CompiledId>,
    /// The variant of a spell.
    pub variant: Option<Value>,
    pub ordinal: u64,
    pub parents: Vec<CandidateId>,
    pub op: String,
    pub component: Option<String>,
    pub accepted: bool,
    pub note: Option<String>,
    pub holdout_micro: Option<u64>,
    pub at: Timestamp,
}

/// The result of one trial: one candidate on one example, once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExampleResultRow {
    pub job_id: JobId,
    pub candidate_id: CandidateId,
    pub example_id: ExampleId,
    /// From 1.
    pub epoch: u64,
    pub split: Split,
    /// None if the trial has no score.
    pub score_micro: Option<u64>,
    /// The reason why it has none.
    pub unscored: Option<Unscored>,
    pub own_failure: bool,
    /// The hash of the feedback, a JSON string, under which its body is stored.
    pub feedback_hash: Hash,
    pub receipt_id: Option<ReceiptId>,
    pub judge_receipts: Vec<ReceiptId>,
    /// The try that gave this result, from 1.
    pub try_number: u64,
    pub at: Timestamp,
}

/// The names of a trial within its job: candidate, example and epoch.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TrialRef {
    pub job_id: JobId,
    pub candidate_id: CandidateId,
    pub example_id: ExampleId,
    pub epoch: u64,
}

impl ExampleResultRow {
    pub fn key(&self) -> TrialRef {
        TrialRef {
            job_id: self.job_id,
            candidate_id: self.candidate_id.clone(),
            example_id: self.example_id.clone(),
            epoch: self.epoch,
        }
    }
}

/// The reaction of a guard to a canary that is worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardAction {
    Alert,
    Clear,
}

/// The guard of a signature's canary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardRow {
    pub signature_id: SignatureId,
    pub action: GuardAction,
    pub margin_micro: u64,
    /// The audit that set the canary that was looked at.
    pub canary_audit: Option<AuditId>,
    /// How often this canary was looked at.
    pub looks: u64,
    pub updated_at: Timestamp,
    pub by: String,
}

/// A write about datasets, metrics, jobs and reports that a step asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum ImproveRow {
    /// Adds a dataset with its examples. Adding the same again changes nothing.
    Dataset(Box<DatasetDraft>),
    /// Adds the next version of a name. The content of the newest version again adds none.
    DatasetVersion(Box<DatasetVersionRow>),
    Verdict(Box<VerdictRow>),
    /// Adds a metric. Adding the same again changes nothing.
    Metric(Box<MetricRow>),
    JudgeCheck(Box<JudgeCheckRow>),
    /// Adds a job, in the step that opens its run. If a job has the same hash already, nothing is written, and the
    /// answer names that job ([`ImproveFault::JobExists`](crate::ImproveFault)).
    Job(Box<JobRow>),
    JobMoved(Box<JobUpdate>),
    Candidate(Box<CandidateRow>),
    /// The result of a trial. The same result again changes nothing, another one is a conflict.
    Result(Box<ExampleResultRow>),
    EvalReport(Box<EvalReportDraft>),
    CompileReport(Box<CompileReportDraft>),
    /// Sets a guard and leaves its looks as they are, or with `expected_looks` counts a look of it that was made from
    /// this number of looks and leaves its setting as it is.
    Guard {
        row: Box<GuardRow>,
        expected_looks: Option<u64>,
    },
}

/// A stored row that an [`ImproveRow`] is checked against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImproveDependency {
    Dataset(Hash),
    Version(DatasetName, u64),
    /// The newest version of a name.
    NewestVersion(DatasetName),
    Receipt(ReceiptId),
    Verdict(VerdictId),
    Metric(Hash),
    JudgeCheck(Hash, Hash, Timestamp),
    Job(JobId),
    JobOfHash(Hash),
    Candidate(JobId, CandidateId),
    Result(TrialRef),
    /// The newest report of an evaluation.
    EvalReport(EvalId),
    /// The newest report of a compile job.
    CompileReport(JobId),
    Look(LookQuery),
    Guard(SignatureId),
}

impl ImproveRow {
    /// Returns true if the row belongs to no run. The others belong to the run of their job.
    pub fn is_outside_runs(&self) -> bool {
        use ImproveRow::{Dataset, DatasetVersion, Guard, Metric, Verdict};
        matches!(self, Dataset(_) | DatasetVersion(_) | Verdict(_) | Metric(_) | Guard { .. })
    }

    /// Returns the bodies that the row names. The step brings them, or they are stored already.
    pub fn bodies(&self) -> Vec<Hash> {
        match self {
            Self::Dataset(draft) => {
                let named = draft.examples.iter().flat_map(|row| [Some(row.input_hash), row.expected_hash]);
                named.flatten().collect()
            }
            Self::Verdict(row) => row.expected_hash.into_iter().collect(),
            Self::Result(row) => vec![row.feedback_hash],
            Self::DatasetVersion(_)
            | Self::Metric(_)
            | Self::JudgeCheck(_)
            | Self::Job(_)
            | Self::JobMoved(_)
            | Self::Candidate(_)
            | Self::EvalReport(_)
            | Self::CompileReport(_)
            | Self::Guard { .. } => Vec::new(),
        }
    }

    /// Returns true if the row alone is larger than a step may be.
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::Dataset(draft) if draft.examples.len() > DATASET_EXAMPLES_MAX)
    }

    /// Returns the artifact that must be stored.
    pub(crate) fn artifact(&self) -> Option<&CompiledId> {
        if let Self::Candidate(row) = self { row.compiled_id.as_ref() } else { None }
    }

    /// Returns the signature that must be stored.
    pub(crate) fn signature(&self) -> Option<&SignatureId> {
        if let Self::Dataset(draft) = self {
            draft.row.subject.signature()
        } else if let Self::Job(row) = self {
            row.subject.signature()
        } else if let Self::Guard { row, .. } = self {
            Some(&row.signature_id)
        } else {
            None
        }
    }

    /// The rows that must be loaded before this row can be checked.
    pub(crate) fn dependencies(&self) -> Vec<ContractDependency> {
        use ImproveDependency as Need;
        let mut needs = match self {
            Self::Dataset(draft) => vec![Need::Dataset(draft.row.dataset_hash)],
            Self::DatasetVersion(row) => vec![
                Need::Dataset(row.dataset_hash),
                Need::Version(row.name.clone(), row.version),
                Need::NewestVersion(row.name.clone()),
            ],
            Self::Verdict(row) => vec![Need::Receipt(row.receipt_id.clone()), Need::Verdict(row.verdict_id.clone())],
            Self::Metric(row) => vec![Need::Metric(row.metric_hash)],
            Self::JudgeCheck(row) => vec![
                Need::Metric(row.metric_hash),
                Need::Dataset(row.dataset_hash),
                Need::Job(row.job_id),
                Need::JudgeCheck(row.metric_hash, row.dataset_hash, row.at),
            ],
            Self::Job(row) => {
                vec![Need::JobOfHash(row.job_hash), Need::Dataset(row.dataset_hash), Need::Metric(row.metric_hash)]
            }
            Self::JobMoved(change) => vec![Need::Job(change.job_id)],
            Self::Candidate(row) => {
                vec![Need::Job(row.job_id), Need::Candidate(row.job_id, row.candidate_id.clone())]
            }
            Self::Result(row) => {
                let receipt = row.receipt_id.clone().map(Need::Receipt);
                [Need::Job(row.job_id), Need::Result(row.key())].into_iter().chain(receipt).collect()
            }
            Self::EvalReport(draft) => {
                let eval_id = draft.report.eval_id.clone();
                vec![Need::Job(draft.job_id), Need::Look(draft.look_query()), Need::EvalReport(eval_id)]
            }
            Self::CompileReport(draft) => vec![Need::Job(draft.job_id), Need::CompileReport(draft.job_id)],
            Self::Guard { row, .. } => vec![Need::Guard(row.signature_id.clone())],
        }
        .into_iter()
        .map(ContractDependency::Improve)
        .collect::<Vec<_>>();
        needs.extend(self.artifact().cloned().map(ContractDependency::Artifact));
        needs.extend(self.signature().cloned().map(ContractDependency::Signature));
        if let Self::Guard { row, .. } = self {
            needs.extend(row.canary_audit.map(ContractDependency::Audit));
        }
        needs
    }
}
