//! Signatures at work: what is published, predicted and receipted.
//!
//! A signature goes into the catalog once and never changes under its id; what is asked of a model is an artifact of it.
//! Every predict is a cast of its own with its turns in the loom, and leaves a receipt whatever became of it.

mod catalog;
mod evidence;
mod export;
mod history;
pub mod limits;
mod nested;
mod objects;
mod observer;
mod permission;
mod predict;
mod programs;
mod resume;
mod settings;
mod structured;
mod trace;
mod verify;

pub use cantrip_contract as contract;
pub use catalog::{AddedSignature, Catalog, matches_name};
pub use export::{ParsedExport, evidence_lines};
pub use objects::BaseFault;
pub use predict::{CrystalSource, PredictOptions, PredictOutcome, PredictReply, Predictor};
pub use structured::StructuredMode;
pub use trace::{TraceArchive, TraceMode, trace, trace_payload, trace_row};
pub use verify::{Finding, ReceiptVerification, verify, verify_export};
