//! Datasets, jobs and evaluations as values: what is hashed, and which rules are pure.

mod counts;
mod dataset;
mod example;
mod ids;
mod job;
mod look;
mod report;
mod results;
mod schema;
mod split;
mod verdict;

pub use counts::{DatasetCounts, SkipReason, SplitCounts};
pub use dataset::{
    BuiltDataset, Dataset, DatasetDiff, DatasetEntry, DatasetFault, DatasetName, DatasetNameFault, DatasetRef,
    DatasetVersion, dataset_hash,
};
pub use example::{
    Example, ExampleDraft, ExampleSource, GroupFault, LabelFault, Labels, SourceKind, Weight, WeightFault, check_group,
    micro_number, micro_of,
};
pub use ids::{
    CandidateId, CandidateIdFault, EvalId, EvalIdFault, ExampleId, ExampleIdFault, ReportId, ReportIdFault, Subject,
    SubjectFault, VerdictId, VerdictIdFault,
};
pub use job::{COMPILER_VERSION, JobKind, JobModels, JobSpec, JobSpecFault, OptimiserSpec, TrialKey};
pub use look::{Look, is_spent, look_number};
pub use report::{
    AgreementPart, CastsPart, CostPart, DeltaPart, EvalReport, EvalReportFault, EvalStatus, EvalVerdict,
    IntervalMethod, JudgePart, LabelPart, LatencyPart, LookPart, ModelsPart, ScorePart, SideCounts,
};
pub use results::{Side, TrialResult, Unscored, UnscoredFault, results_hash};
pub use schema::{dataset_schema, eval_report_schema};
pub use split::{
    PlacedKey, PlacementFault, Split, SplitFault, SplitKey, SplitPolicy, SplitPolicyFault, SplitSeed, SplitShares,
    UnplacedKey, near_form, near_hash, place,
};
pub use verdict::{Judgement, Verdict};
