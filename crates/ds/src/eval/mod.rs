//! Evaluations: is an artifact, or a spell, better than another on the same examples?
//!
//! An evaluation is a job: its trials are predicts or casts with receipts, under one cap. This module decides which
//! trials there are, scores them, and makes the report of the stored rows. The report is a pure function of the rows, so
//! that it can be made again and compared.

mod request;
mod spells;

pub use request::{BaselineChoice, EvalRequest, JudgeRequest, MetricChoice};
pub use spells::{NoSpellTrials, RemovedGate, SpellTrial, SpellTrials, TriedSpell};
