//! Evaluations: is an artifact, or a spell, better than another on the same examples?
//!
//! An evaluation is a job: its trials are predicts or casts with receipts, under one cap. This module decides which
//! trials there are, scores them, and makes the report of the stored rows. The report is a pure function of the rows,
//! so that it can be made again and compared.

mod agreement;
mod closer;
pub(crate) mod costs;
mod metric_choice;
mod names;
mod order;
mod plan;
pub(crate) mod prepare;
mod report;
mod request;
pub(crate) mod resolve;
pub(crate) mod rows;
mod runner;
pub(crate) mod scorer;
pub(crate) mod setup;
mod spell_runner;
mod spells;
pub(crate) mod stored;
mod suggestion;
pub(crate) mod verify;

pub use agreement::judge_metric;
pub use metric_choice::{NamedMetric, find_metric};
pub use names::JobEval;
pub use order::trial_order;
pub use plan::EvalPlan;
pub use prepare::PreparedEval;
pub(crate) use prepare::store_metric;
pub(crate) use report::percentiles;
pub use report::{
    CastFacts, IncompleteReason, MadeReport, ReportInputs, ReportTrial, TrialFacts, make_report, make_report_of,
};
pub use request::{BaselineChoice, EvalRequest, JudgeRequest, MetricChoice};
pub(crate) use rows::{stored_output, stored_receipt, stored_results};
pub(crate) use scorer::TrialJudge;
pub(crate) use setup::{read_body, stored_plan, stored_spec};
pub(crate) use spell_runner::SpellCasts;
pub use spells::{NoSpellTrials, RemovedGate, SpellTexts, SpellTrial, SpellTrials, TriedSpell};
pub use stored::{
    StoredEval, StoredRow, StoredSide, evidence_of, job_parts, newest_eval, promotion_evidence, resolve_eval,
    stored_eval,
};
pub use suggestion::{SuggestedAction, Suggestion};
pub use verify::{EvalDifference, VerifiedEval, verify_eval};
