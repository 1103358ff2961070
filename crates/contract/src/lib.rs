//! Contracts: the tasks that a model is given, as values with hashes.
//!
//! A [`Signature`] defines the input, the output and the prompt; an [`Artifact`] is a compiled form of a signature; a
//! [`Receipt`] records one call; a [`Pointer`] says which artifact is served, and which callers get another one; a
//! [`Dataset`] has the examples on which artifacts are compared, and an [`EvalReport`] the result. This crate calls no
//! model and stores no row. A store keeps these values, and a reader can prove that no byte of them was
//! changed.

mod artifact;
mod contract_cache;
mod improve;
pub mod limits;
mod pointer;
mod promotion;
mod promotion_evidence;
mod receipt;
mod row;
mod schema;
mod signature;
mod trace_row;

pub use artifact::{Artifact, ArtifactFault, CompiledId, CompiledIdFault, Strategy, StrategyFault};
pub use contract_cache::{ContractCache, ContractFault, ContractUpsert};
pub use improve::{
    AgreementPart, BuiltDataset, COMPILER_VERSION, CandidateId, CandidateIdFault, CandidateRow, CastsPart,
    CompileFacts, CompileReportDraft, CompileReportRow, CostPart, Dataset, DatasetCounts, DatasetDiff, DatasetDraft,
    DatasetEntry, DatasetExampleRow, DatasetFault, DatasetName, DatasetNameFault, DatasetRef, DatasetRow,
    DatasetVersionRow, DeltaPart, EvalId, EvalIdFault, EvalReport, EvalReportDraft, EvalReportFault, EvalReportRow,
    EvalStatus, EvalVerdict, Example, ExampleDraft, ExampleId, ExampleIdFault, ExampleResultRow, ExampleSource,
    GroupFault, GuardAction, GuardRow, ImproveCache, ImproveDependency, ImproveFault, ImproveRow, ImproveUpsert,
    IntervalMethod, JobBounds, JobKind, JobModels, JobRow, JobSpec, JobSpecFault, JobStatus, JobUpdate, JudgeCheckRow,
    JudgePart, LabelFault, LabelPart, Labels, LatencyPart, LookPart, LookQuery, LookRow, LookStanding, MetricRow,
    ModelsPart, OptimiserSpec, PlacedKey, PlacementFault, ReportId, ReportIdFault, ScorePart, Side, SideCounts,
    SkipReason, SourceKind, Split, SplitCounts, SplitFault, SplitKey, SplitPolicy, SplitPolicyFault, SplitSeed,
    SplitShares, Subject, SubjectFault, TrialKey, TrialRef, TrialResult, UnplacedKey, Unscored, UnscoredFault, Verdict,
    VerdictId, VerdictIdFault, VerdictRow, VerdictWord, Weight, WeightFault, check_group, dataset_hash, dataset_schema,
    eval_report_schema, is_look_at, micro_number, micro_of, near_form, near_hash, place, results_hash,
};
pub use improve::{
    BudgetAsked, BudgetUsed, CompileBudgetPart, CompileCandidatePart, CompileReport, CompileReportFault,
    CompileTrialsPart, ProposalsPart, SpellVariant, SuggestionPart, VariantFault, VariantPatch, compile_report_schema,
};
pub use improve::{
    CompositeRule, Decimal, F1Parts, JUDGE_SIGNATURE, JudgeSpec, Metric, MetricFault, MetricField, MetricKind,
    MetricPart, NeedleMode, Normalise, PREFER_SIGNATURE, PatternWant, metric_schema,
};
pub use pointer::{
    Action, Bucket, Canary, CanaryScope, ChangeAuthor, Pointer, PointerAudit, PointerFault, PointerOperation,
    PointerUpdate, RolloutSide, Variant, bucket,
};
pub use promotion::{
    EvidenceSource, PromotionCriteria, PromotionGrounds, PromotionRule, SourcedEvidence, StoredEvidence, UnmetCriterion,
};
pub use promotion_evidence::{PromotionEvidence, PromotionEvidenceFault, promotion_evidence_schema};
pub use receipt::{
    BudgetPart, ChainFault, Kind, ModelPart, PolicyPart, Purpose, Receipt, ReceiptId, ReceiptIdFault, Status,
    TimingPart, receipt_hash, receipt_schema, verify_chain,
};
pub use row::{
    AlteredRow, ArtifactRow, ContractDependency, ContractRow, OriginRow, PointerChange, PolicyRuling, PredictEnd,
    PredictKey, PredictRow, Provenance, ReceiptDraft, ReceiptRow, ReservationSums, SignatureOrigin, SignatureRow,
};
pub use schema::{Schema, SchemaFault, Violation};
pub use signature::{
    BUILT_IN, Demo, Files, Hashes, Medium, NoFiles, Params, Program, Prompt, Rendered, Signature, SignatureBuilder,
    SignatureFault, SignatureId, SignatureIdFault, built_in, catalog_version, catalog_version_of,
};
pub use trace_row::{TraceMove, TraceRow, TraceState, TraceStorage};
