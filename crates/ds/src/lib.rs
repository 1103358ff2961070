//! Signatures in use: publishing, predicts and receipts.
//!
//! A signature is published in the catalog once and never changes under its id; a model is asked with an artifact of
//! it. Every predict is a separate cast with its turns in the loom, and leaves a receipt whatever its outcome.

mod catalog;
pub mod dataset;
mod evidence;
mod export;
mod history;
pub mod job;
pub mod limits;
pub mod metric;
mod nested;
mod objects;
mod observer;
mod options;
mod outcome;
mod permission;
mod predict;
mod programs;
mod resume;
mod settings;
pub mod stats;
mod structured;
mod trace;
mod verify;

pub use cantrip_contract as contract;
pub use catalog::{AddedSignature, Catalog};
pub use export::{ParsedExport, evidence_lines};
pub use objects::BaseFault;
pub use options::PredictOptions;
pub use outcome::{PredictOutcome, PredictReply};
pub use predict::{CrystalSource, Predictor, refuse_store_error};
pub use structured::StructuredMode;
pub use trace::{TraceArchive, TraceMode, trace, trace_payload, trace_row};
pub use verify::{Finding, ReceiptVerification, verify, verify_export};
