//! Contracts: what a model was asked to do, as values with hashes.
//!
//! A [`Signature`] says what goes in, what comes out and how it is asked for; an [`Artifact`] is a compiled form of one;
//! a [`Receipt`] tells what one call of it did; a [`Pointer`] says which artifact is served, and to whom another. Nothing
//! here asks a model or keeps a row: a store keeps what these values are, and whoever reads one back can prove that not a
//! byte of it was changed.

mod artifact;
mod contract_cache;
mod eval_report;
pub mod limits;
mod pointer;
mod promotion;
mod receipt;
mod row;
mod schema;
mod signature;

pub use artifact::{Artifact, ArtifactFault, CompiledId, CompiledIdFault, Strategy, StrategyFault};
pub use contract_cache::{ContractCache, ContractFault, ContractUpsert};
pub use eval_report::{EvalReport, EvalReportFault, EvalStatus, Split, eval_report_schema};
pub use pointer::{
    Action, Bucket, Canary, CanaryScope, ChangeAuthor, Pointer, PointerAudit, PointerFault, PointerOperation,
    PointerUpdate, RolloutSide, Variant, bucket,
};
pub use promotion::{PromotionCriteria, PromotionGrounds, PromotionRule, UnmetCriterion};
pub use receipt::{
    BudgetPart, ChainFault, Kind, ModelPart, PolicyPart, Purpose, Receipt, ReceiptId, ReceiptIdFault, Status,
    TimingPart, receipt_hash, receipt_schema, verify_chain,
};
pub use row::{
    AlteredRow, ArtifactRow, ContractDependency, ContractRow, OriginRow, PointerChange, PolicyRuling, PredictEnd,
    PredictKey, PredictRow, Provenance, ReceiptDraft, ReceiptRow, ReservationSums, SignatureOrigin, SignatureRow,
    TraceMove, TraceRow, TraceState, TraceStorage,
};
pub use schema::{Schema, SchemaFault, Violation};
pub use signature::{
    BUILT_IN, Demo, Files, Hashes, Medium, NoFiles, Params, Program, Prompt, Rendered, Signature, SignatureBuilder,
    SignatureFault, SignatureId, SignatureIdFault, built_in, catalog_version, catalog_version_of,
};
