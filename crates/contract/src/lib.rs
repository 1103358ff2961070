//! Contracts: what a model was asked to do, as values with hashes.
//!
//! A [`Signature`] says what goes in, what comes out and how it is asked for; an [`Artifact`] is a compiled form of one;
//! a [`Receipt`] tells what one call of it did; a [`Pointer`] says which artifact is served, and to whom another. Nothing
//! here asks a model or keeps a row: a store keeps what these values are, and whoever reads one back can prove that not a
//! byte of it was changed.

mod artifact;
mod evaluation;
pub mod limits;
mod pointer;
mod promotion;
mod receipt;
mod row;
mod schema;
mod shelf;
mod signature;

pub use artifact::{Artifact, ArtifactFault, CompiledId, CompiledIdFault, Strategy, StrategyFault};
pub use evaluation::{EvalStatus, Evaluation, EvaluationFault, Split, evaluation_schema};
pub use pointer::{
    Action, Audit, Bucket, By, Canary, CanaryScope, Change, Changed, Pointer, PointerFault, Side, Variant, bucket,
};
pub use promotion::{Bar, Grounds, Rule, Unmet};
pub use receipt::{
    BudgetPart, ChainFault, Kind, ModelPart, PolicyPart, Purpose, Receipt, ReceiptId, ReceiptIdFault, Status,
    TimingPart, receipt_hash, receipt_schema, verify_chain,
};
pub use row::{
    Altered, ArtifactRow, Need, OriginRow, PointerChange, PredictEnd, PredictKey, PredictRow, Provenance, ReceiptDraft,
    ReceiptRow, Row, Ruled, SignatureOrigin, SignatureRow, Sums, TraceMove, TraceRow, TraceState, TraceStorage,
};
pub use schema::{Schema, SchemaFault, Violation};
pub use shelf::{ContractFault, Shelf, Written};
pub use signature::{
    BUILT_IN, Demo, Files, Hashes, Medium, NoFiles, Params, Program, Prompt, Rendered, Signature, SignatureBuilder,
    SignatureFault, SignatureId, SignatureIdFault, built_in, catalog_version, catalog_version_of,
};
