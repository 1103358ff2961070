//! Signatures at work: what is published, predicted and receipted.
//!
//! A signature goes into the catalog once and never changes under its id; what is asked of a model is an artifact of it.
//! Every predict is a cast of its own with its turns in the loom, and leaves a receipt whatever became of it.

mod asked;
mod catalog;
mod evidence;
mod export;
mod history;
mod inside;
pub mod limits;
mod objects;
mod papers;
mod permission;
mod predict;
mod programs;
mod resume;
mod structured;
mod trace;
mod verify;

pub use cantrip_contract as contract;
pub use catalog::{Added, Catalog, is_called};
pub use export::{Exported, papers};
pub use objects::BaseFault;
pub use predict::{Crystals, PredictReply, Predicted, Predicting, Predictor};
pub use structured::Mode;
pub use trace::{TraceMode, Traces, trace, trace_payload, trace_row};
pub use verify::{Finding, Verified, verify, verify_export};
