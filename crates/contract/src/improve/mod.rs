//! Datasets, jobs and evaluations as values: what is hashed, which rules are pure, and which rows are stored.

mod compile_report;
mod compile_report_schema;
mod counts;
mod dataset;
mod dataset_name;
mod example;
mod ids;
mod job;
mod job_row;
mod metric;
mod report;
mod report_row;
mod results;
mod row;
mod row_cache;
mod schema;
mod split;
mod variant;
mod verdict;

pub use compile_report::{
    BudgetAsked, BudgetUsed, CompileBudgetPart, CompileCandidatePart, CompileReport, CompileReportFault,
    CompileTrialsPart, ProposalsPart, SuggestionPart,
};
pub use compile_report_schema::compile_report_schema;
pub use counts::{DatasetCounts, SkipReason, SplitCounts};
pub use dataset::{BuiltDataset, Dataset, DatasetDiff, DatasetEntry, DatasetFault, dataset_hash};
pub use dataset_name::{DatasetName, DatasetNameFault, DatasetRef};
pub use example::{
    Example, ExampleDraft, ExampleSource, GroupFault, LabelFault, Labels, SourceKind, Weight, WeightFault, check_group,
    micro_number, micro_of,
};
pub use ids::{
    CandidateId, CandidateIdFault, EvalId, EvalIdFault, ExampleId, ExampleIdFault, ReportId, ReportIdFault, Subject,
    SubjectFault, VerdictId, VerdictIdFault,
};
pub use job::{COMPILER_VERSION, JobModels, JobSpec, JobSpecFault, OptimiserSpec, TrialKey};
pub use job_row::{JobBounds, JobKind, JobRow, JobStatus, JobUpdate};
pub use metric::{
    CompositeRule, Decimal, F1Parts, JUDGE_SIGNATURE, JudgeSpec, Metric, MetricFault, MetricField, MetricKind,
    MetricPart, NeedleMode, Normalise, PREFER_SIGNATURE, PatternWant, metric_schema,
};
pub use report::{
    AgreementPart, CastsPart, CostPart, DeltaPart, EvalReport, EvalReportFault, EvalStatus, EvalVerdict,
    IntervalMethod, JudgePart, LabelPart, LatencyPart, LookPart, ModelsPart, ScorePart, SideCounts,
};
pub use report_row::{
    CompileFacts, CompileReportDraft, CompileReportRow, EvalReportDraft, EvalReportRow, LookQuery, LookRow, is_look_at,
};
pub use results::{Side, TrialResult, Unscored, UnscoredFault, results_hash};
pub use row::{
    CandidateRow, DatasetDraft, DatasetExampleRow, DatasetRow, DatasetVersionRow, ExampleResultRow, GuardAction,
    GuardRow, ImproveDependency, ImproveRow, JudgeCheckRow, MetricRow, TrialRef, VerdictRow, VerdictWord,
};
pub use row_cache::{ImproveCache, ImproveFault, ImproveUpsert, LookStanding};
pub use schema::{dataset_schema, eval_report_schema};
pub use split::{
    PlacedKey, PlacementFault, Split, SplitFault, SplitKey, SplitPolicy, SplitPolicyFault, SplitSeed, SplitShares,
    UnplacedKey, near_form, near_hash, place,
};
pub use variant::{SpellVariant, VariantFault, VariantPatch};
pub use verdict::Verdict;
