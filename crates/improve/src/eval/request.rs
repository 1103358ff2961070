//! The request for an evaluation, as its caller gives it.

use cantrip::Cancel;
use cantrip::canon::Money;
use cantrip::spend::AuthorizationRef;
use cantrip_contract::Split;
use serde_json::Value;

use crate::limits::EVAL_EPOCHS_DEFAULT;
use cantrip_ds::limits::TRIALS_TOGETHER;

/// A metric as a caller names it.
#[derive(Debug, Clone, PartialEq)]
pub enum MetricChoice {
    /// The name or the hash (or a prefix of it) of a stored metric.
    Named(String),
    /// The metric itself, with the contents of its files in place of their paths. It is stored when the job begins.
    Given { name: Option<String>, metric: Value },
}

/// The artifact or spell that the subject is compared with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum BaselineChoice {
    /// The artifact that the pointer serves, else the base artifact. A spell has none.
    #[default]
    Served,
    /// No comparison.
    None,
    /// Named as a subject is.
    Named(String),
}

impl BaselineChoice {
    /// Reads the value of `--baseline`.
    pub fn parse(text: &str) -> Self {
        match text {
            "none" => Self::None,
            named => Self::Named(named.to_owned()),
        }
    }
}

/// A request for an evaluation.
#[derive(Debug, Clone)]
#[must_use = "prepare it"]
pub struct EvalRequest {
    /// An artifact (`art_` and at least 8 digits), `primary`, `canary` or `base` of the dataset's signature, a
    /// signature id (which means its primary), `spell:NAME`, or the name of a spell if the dataset is one of spells.
    pub subject: String,
    /// `NAME`, `NAME@3`, or a prefix of a dataset's hash.
    pub dataset: String,
    pub metric: MetricChoice,
    pub split: Split,
    pub baseline: BaselineChoice,
    pub epochs: u64,
    /// The model of the trials; else that of the artifact, the signature or the configuration.
    pub model: Option<String>,
    /// The model of the judges that name none.
    pub judge_model: Option<String>,
    pub seed: String,
    /// True to evaluate again although an equal job has ended.
    pub rerun: bool,
    /// Gates of a spell that its trials may use although they reach the outside.
    pub gates: Vec<String>,
    /// The cap on the job's money.
    pub budget: Option<Money>,
    /// The maximum number of trials.
    pub max_calls: Option<u64>,
    /// The number of trials at the same time.
    pub concurrency: usize,
    pub owner: String,
    /// The authorization that pays. None uses the most specific one that fits.
    pub authorization: Option<AuthorizationRef>,
    pub cancel: Cancel,
}

impl EvalRequest {
    /// Returns a request with the defaults: the test split, what is served now as the baseline, one epoch.
    pub fn new(subject: impl Into<String>, dataset: impl Into<String>, metric: MetricChoice) -> Self {
        Self {
            subject: subject.into(),
            dataset: dataset.into(),
            metric,
            split: Split::Test,
            baseline: BaselineChoice::Served,
            epochs: EVAL_EPOCHS_DEFAULT,
            model: None,
            judge_model: None,
            seed: "default".to_owned(),
            rerun: false,
            gates: Vec::new(),
            budget: None,
            max_calls: None,
            concurrency: TRIALS_TOGETHER,
            owner: "local".to_owned(),
            authorization: None,
            cancel: Cancel::new(),
        }
    }
}

/// A request to compare a judge with people.
#[derive(Debug, Clone)]
#[must_use = "judge with it"]
pub struct JudgeRequest {
    pub metric: MetricChoice,
    /// The dataset whose examples come from receipts with verdicts.
    pub dataset: String,
    pub judge_model: Option<String>,
    pub budget: Option<Money>,
    pub concurrency: usize,
    /// True to judge again although an equal job has ended: people may have given other verdicts since.
    pub rerun: bool,
    pub owner: String,
    pub authorization: Option<AuthorizationRef>,
    pub cancel: Cancel,
}

impl JudgeRequest {
    /// Returns a request with the defaults.
    pub fn new(metric: MetricChoice, dataset: impl Into<String>) -> Self {
        Self {
            metric,
            dataset: dataset.into(),
            judge_model: None,
            budget: None,
            concurrency: TRIALS_TOGETHER,
            rerun: false,
            owner: "local".to_owned(),
            authorization: None,
            cancel: Cancel::new(),
        }
    }
}
