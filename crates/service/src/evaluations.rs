//! Evaluations for every surface: plan, start, list, show, rows, verify, and the agreement of a judge with people.
//!
//! A surface prepares an evaluation, shows its plan, asks where somebody can be asked, and starts it. Preparing writes
//! nothing and asks no model.

use std::sync::Arc;

use cantrip::canon::{Hash, RunId};
use cantrip::loom::PageRequest;
use cantrip::reply::{GuardedReply, Refusal, codes};
use cantrip::{Cancel, CastReply};
use cantrip_ds::Predictor;
use cantrip_ds::contract::{EvalReport, JobSpec};
use cantrip_ds::eval::{EvalRequest, JudgeRequest, PreparedEval, Suggestion};
use serde::Serialize;
use serde_json::Value;

use crate::Service;
use crate::active::StartedCast;

/// The evaluations that a list covers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EvalFilter {
    /// A signature id or `spell:NAME`.
    pub subject: Option<String>,
    /// The id of the artifact, cantrip or variant that was evaluated.
    pub compiled_id: Option<String>,
}

/// A stored evaluation with everything that a page or a terminal shows of it.
#[derive(Debug, Clone)]
pub struct EvaluationView {
    pub report: EvalReport,
    pub report_hash: Hash,
    pub spec: JobSpec,
    /// The dataset by name and version, as in `tickets@3`, or the start of its hash if it has no name.
    pub dataset: String,
    /// The metric in words, as in `exact.v1 /label`.
    pub metric: String,
    pub run: RunId,
    pub suggestion: Suggestion,
    /// One row per example, the ones that failed first. Inputs, outputs and feedback are redacted.
    pub rows: Vec<ExampleRow>,
}

/// One example of an evaluation, with both sides.
#[derive(Debug, Clone, Serialize)]
pub struct ExampleRow {
    pub example_id: String,
    pub labels: Vec<String>,
    pub input: Value,
    pub expected: Option<Value>,
    pub subject: SideRow,
    pub baseline: Option<SideRow>,
}

/// One side of an example: the mean of its epochs, and what was said about the worst of them.
#[derive(Debug, Clone, Serialize)]
pub struct SideRow {
    /// The mean of the scored epochs, in micro-units.
    pub score: Option<u32>,
    /// The reason why no epoch has a score.
    pub unscored: Option<String>,
    pub own_failure: bool,
    pub feedback: String,
    pub output: Option<Value>,
    /// The receipt of the first epoch.
    pub receipt_id: Option<String>,
    /// The thread of the first epoch.
    pub thread_id: Option<String>,
}

impl Service {
    /// Prepares an evaluation: everything is resolved and checked, the plan is computed. Nothing is written and no model
    /// is asked. `PreparedEval::plan` is the plan to show.
    pub async fn prepare_evaluation(&self, predictor: Predictor, request: EvalRequest) -> Result<PreparedEval, Refusal> {
        let _ = (predictor, request);
        todo!()
    }

    /// Returns the plan of a prepared evaluation: the answer to `--dry-run` and to `dry_run` over HTTP. The data is
    /// `{"plan": {...}, "job_hash": ...}`.
    pub async fn evaluation_plan(&self, prepared: &PreparedEval) -> GuardedReply {
        let _ = prepared;
        todo!()
    }

    /// Runs a prepared evaluation to its end, or joins the equal job that runs, or returns the report of the equal job
    /// that has ended (`replayed: true`). The data has `eval_id`, `job_id`, `run_id`, `status`, `verdict`, `report`.
    pub async fn evaluate(&self, prepared: PreparedEval, cancel: &Cancel) -> CastReply {
        let _ = (prepared, cancel);
        todo!()
    }

    /// Starts a prepared evaluation as a task, for a caller that does not wait. `StartedCast::run` is the job's run.
    pub async fn begin_evaluation(&self, prepared: PreparedEval, cancel: Cancel) -> StartedCast {
        let _ = (prepared, cancel);
        todo!()
    }

    /// Returns stored evaluations, newest first. Each item has `eval_id`, `job_id`, `subject`, `compiled_id`,
    /// `baseline_id`, `dataset_hash`, `split`, `status`, `verdict`, `score`, `delta`, `look`, `created_at`.
    pub async fn evaluations(&self, filter: EvalFilter, page: PageRequest) -> GuardedReply {
        let _ = (filter, page);
        todo!()
    }

    /// Returns a stored evaluation by its id or a prefix of it. The data has `report`, `report_hash`, `spec`, `job_id`,
    /// `run_id`, `dataset` (`name`, `version`), `metric`, and `failures`, the rows that scored lowest, redacted.
    pub async fn evaluation(&self, eval: &str) -> GuardedReply {
        let _ = eval;
        todo!()
    }

    /// Returns a stored evaluation with its rows, typed, for pages and terminals.
    pub async fn evaluation_view(&self, eval: &str) -> Result<EvaluationView, Refusal> {
        let _ = eval;
        todo!()
    }

    /// Returns the rows of an evaluation, failures first: per example and epoch the scores, feedback, receipts and
    /// threads of both sides, with input, expected and outputs, redacted unless `redact` is false.
    pub async fn evaluation_rows(&self, eval: &str, redact: bool, page: PageRequest) -> GuardedReply {
        let _ = (eval, redact, page);
        todo!()
    }

    /// Makes the report again from its rows and their receipts, and compares it with the stored one.
    pub async fn verify_evaluation(&self, eval: &str) -> GuardedReply {
        let _ = eval;
        todo!()
    }

    /// Runs a judge over outputs that people judged, and stores how often they agree.
    pub async fn judge_metric(&self, predictor: Predictor, request: JudgeRequest) -> GuardedReply {
        let _ = (predictor, request);
        todo!()
    }
}
