//! Evaluations: is an artifact, or a spell, better than another on the same examples?
//!
//! An evaluation is a job: its trials are predicts or casts with receipts, under one cap. This module decides which
//! trials there are, scores them, and makes the report of the stored rows. The report is a pure function of the rows,
//! so that it can be made again and compared.

mod agreement;
mod closer;
mod costs;
mod metric_choice;
mod order;
mod plan;
mod prepare;
mod report;
mod request;
mod resolve;
mod rows;
mod runner;
mod scorer;
mod setup;
mod spells;
mod stored;
mod suggestion;
mod verify;

pub use agreement::judge_metric;
pub use metric_choice::{NamedMetric, find_metric};
pub use order::trial_order;
pub use plan::EvalPlan;
pub use prepare::PreparedEval;
pub use report::{CastFacts, IncompleteReason, MadeReport, ReportInputs, ReportTrial, TrialFacts, make_report};
pub use request::{BaselineChoice, EvalRequest, JudgeRequest, MetricChoice};
pub use spells::{NoSpellTrials, RemovedGate, SpellTrial, SpellTrials, TriedSpell};
pub use stored::{
    StoredEval, StoredRow, StoredSide, evidence_of, job_parts, newest_eval, promotion_evidence, resolve_eval,
    stored_eval,
};
pub use suggestion::{SuggestedAction, Suggestion};
pub use verify::{EvalDifference, VerifiedEval, verify_eval};
