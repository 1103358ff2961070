//! The request for a compile, as its caller gives it.

use cantrip::Cancel;
use cantrip::canon::Money;
use cantrip::spend::AuthorizationRef;
use serde_json::{Map, Value};

use crate::eval::MetricChoice;
use cantrip_ds::limits::TRIALS_TOGETHER;

/// A request for a compile.
#[derive(Debug, Clone)]
#[must_use = "prepare it"]
pub struct CompileRequest {
    /// A signature by its id or name, `spell:NAME`, or the name of a spell if the dataset is one of spells.
    pub subject: String,
    /// `NAME`, `NAME@3`, or a prefix of a dataset's hash.
    pub dataset: String,
    pub metric: MetricChoice,
    /// The optimiser by its id, as in `gepa.v1`.
    pub optimiser: String,
    /// The artifact to start from: its id or the beginning of it, `primary`, `canary` or `base`. None is the primary,
    /// else the base artifact.
    pub from: Option<String>,
    /// Options of the optimiser; the others have their defaults.
    pub options: Map<String, Value>,
    /// Given texts of the instructions, for the optimisers that take them.
    pub texts: Vec<String>,
    /// The params among which the decoding is chosen, beside those of the base.
    pub decodings: Vec<Value>,
    /// The slots that may change. None is all of them.
    pub slots: Option<Vec<String>>,
    /// The model of the trials; else that of the artifact, the signature or the configuration.
    pub model: Option<String>,
    /// The model of the teacher, if it is another one.
    pub teacher_model: Option<String>,
    /// The model that proposes texts. Without one no texts are proposed.
    pub reflect_model: Option<String>,
    /// The model of the judges that name none.
    pub judge_model: Option<String>,
    pub seed: String,
    /// True to compile again although an equal job has ended.
    pub rerun: bool,
    /// Gates of a spell that its trials may use although they reach the outside.
    pub gates: Vec<String>,
    /// The cap on the job's money.
    pub budget: Option<Money>,
    /// The maximum number of trials.
    pub max_calls: Option<u64>,
    /// The maximum number of proposals.
    pub max_proposals: Option<u64>,
    /// The number of trials at the same time.
    pub concurrency: usize,
    pub owner: String,
    /// The authorization that pays. None uses the most specific one that fits.
    pub authorization: Option<AuthorizationRef>,
    pub cancel: Cancel,
}

impl CompileRequest {
    /// Returns a request with the defaults: from what is served now, with all slots and no bounds.
    pub fn new(
        subject: impl Into<String>,
        dataset: impl Into<String>,
        metric: MetricChoice,
        optimiser: impl Into<String>,
    ) -> Self {
        Self {
            subject: subject.into(),
            dataset: dataset.into(),
            metric,
            optimiser: optimiser.into(),
            from: None,
            options: Map::new(),
            texts: Vec::new(),
            decodings: Vec::new(),
            slots: None,
            model: None,
            teacher_model: None,
            reflect_model: None,
            judge_model: None,
            seed: "default".to_owned(),
            rerun: false,
            gates: Vec::new(),
            budget: None,
            max_calls: None,
            max_proposals: None,
            concurrency: TRIALS_TOGETHER,
            owner: "local".to_owned(),
            authorization: None,
            cancel: Cancel::new(),
        }
    }
}
