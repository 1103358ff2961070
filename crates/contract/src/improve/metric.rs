//! What is a good output? A metric says so, as a value with a hash.
//!
//! A metric is read once, strictly: every option has a value afterwards, the contents of files stand in place of
//! their paths, and its hash is taken over the result. So an evaluation that names the hash says exactly how it
//! scored. A metric as a function of the program that embeds this crate was turned down: a report could not name it,
//! and no second machine could score the same.
//!
//! This module has the value alone. The crate above it scores.

mod decimal;
mod read;
mod schema;

use cantrip_canon::Hash;
use serde_json::{Value, json};

pub use decimal::Decimal;
pub use read::MetricFault;
pub use schema::metric_schema;

use super::example::{Weight, micro_number};
use crate::{CompiledId, Medium, SignatureId};

/// The default signature of a judge.
pub const JUDGE_SIGNATURE: &str = "@cantrip/eval/Judge.v1";
/// The default signature of a judge of two outputs.
pub const PREFER_SIGNATURE: &str = "@cantrip/eval/Prefer.v1";

/// A metric with all of its options filled in.
///
/// ```
/// # use cantrip_contract::{Metric, NoFiles};
/// let metric = Metric::read("type = \"exact.v1\"\npointer = \"/label\"", true, &NoFiles).unwrap();
/// let hash = "sha256:d426d19d8f31860a748092c7fd699453b315d4277be3590da5e43bb62c9aba84";
/// assert_eq!(metric.hash().to_string(), hash);
/// assert_eq!(metric.summary(), "exact.v1 /label");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    kind: MetricKind,
    content: Value,
    hash: Hash,
}

/// The types of metrics with their options.
#[derive(Debug, Clone, PartialEq)]
pub enum MetricKind {
    /// `exact.v1`: the two values are equal.
    Exact { pointer: String, normalise: Normalise },
    /// `contains.v1`: the output contains the needles, which are the expected value if none are given.
    Contains { pointer: String, needles: Option<Vec<String>>, mode: NeedleMode, normalise: Normalise },
    /// `json_field.v1`: the weighted mean of several fields.
    JsonField { fields: Vec<MetricField> },
    /// `numeric.v1`: the two numbers differ by no more than a tolerance.
    Numeric { pointer: String, abs: Decimal, rel: Decimal },
    /// `f1.v1`: the overlap of words or of items.
    F1 { pointer: String, of: F1Parts },
    /// `regex.v1`: the output matches a pattern, or does not.
    Regex { pointer: String, pattern: String, want: PatternWant },
    /// `program.v1`: a function `score` in a sandbox.
    Program { language: Medium, source: String },
    /// `command.v1`: a program of this machine.
    Command { argv: Vec<String>, timeout_seconds: u64 },
    /// `judge.v1`: a model scores the output.
    Judge(JudgeSpec),
    /// `prefer.v1`: a model chooses between the outputs of two sides.
    Prefer(JudgeSpec),
    /// `reward.v1`: the latest reward on the trial's own thread.
    Reward { low: Decimal, high: Decimal },
    /// `composite.v1`: several metrics as one.
    Composite { parts: Vec<MetricPart>, rule: CompositeRule },
}

/// The form in which texts are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Normalise {
    #[default]
    None,
    /// The near form: lower case, words alone.
    Text,
}

/// The number of needles that an output must contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NeedleMode {
    #[default]
    All,
    Any,
}

/// The parts that `f1.v1` compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum F1Parts {
    #[default]
    Tokens,
    Items,
}

/// The result that `regex.v1` wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PatternWant {
    #[default]
    Match,
    NoMatch,
}

/// The way in which `composite.v1` combines scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CompositeRule {
    #[default]
    Mean,
    Min,
}

/// One field of `json_field.v1`. The metric sees the values at the pointer as its output and expected value.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricField {
    pub pointer: String,
    pub weight: Weight,
    pub metric: Metric,
}

/// One part of `composite.v1`.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricPart {
    pub metric: Metric,
    pub weight: Weight,
}

/// A judge: a predict of a signature. The artifact, the model and the task are null until a job pins them.
#[derive(Debug, Clone, PartialEq)]
pub struct JudgeSpec {
    pub signature: SignatureId,
    pub artifact: Option<CompiledId>,
    pub model: Option<String>,
    pub rubric: String,
    /// The task that the output was made for; the description of the evaluated signature unless given.
    pub task: Option<String>,
}

impl JudgeSpec {
    /// Returns true if nothing of the judge depends on a pointer or a configuration any more.
    pub fn is_pinned(&self) -> bool {
        self.artifact.is_some() && self.model.is_some() && self.task.is_some()
    }
}

impl Normalise {
    const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Text => "text",
        }
    }
}

impl NeedleMode {
    const fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Any => "any",
        }
    }
}

impl F1Parts {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Items => "items",
        }
    }
}

impl PatternWant {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Match => "match",
            Self::NoMatch => "no_match",
        }
    }
}

impl CompositeRule {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Min => "min",
        }
    }
}

impl MetricKind {
    /// The name of the type with its version.
    pub const fn type_name(&self) -> &'static str {
        match self {
            Self::Exact { .. } => "exact.v1",
            Self::Contains { .. } => "contains.v1",
            Self::JsonField { .. } => "json_field.v1",
            Self::Numeric { .. } => "numeric.v1",
            Self::F1 { .. } => "f1.v1",
            Self::Regex { .. } => "regex.v1",
            Self::Program { .. } => "program.v1",
            Self::Command { .. } => "command.v1",
            Self::Judge(_) => "judge.v1",
            Self::Prefer(_) => "prefer.v1",
            Self::Reward { .. } => "reward.v1",
            Self::Composite { .. } => "composite.v1",
        }
    }

    /// The whole metric as a value, with every option.
    fn content(&self) -> Value {
        let mut content = match self {
            Self::Exact { pointer, normalise } => json!({"pointer": pointer, "normalise": normalise.as_str()}),
            Self::Contains { pointer, needles, mode, normalise } => json!({
                "pointer": pointer, "needles": needles, "mode": mode.as_str(), "normalise": normalise.as_str(),
            }),
            Self::JsonField { fields } => {
                let field = |field: &MetricField| {
                    let weight = micro_number(field.weight.micro() as i64);
                    json!({"pointer": field.pointer, "weight": weight, "metric": field.metric.content})
                };
                json!({"fields": fields.iter().map(field).collect::<Vec<_>>()})
            }
            Self::Numeric { pointer, abs, rel } => {
                json!({"pointer": pointer, "abs": abs.written(), "rel": rel.written()})
            }
            Self::F1 { pointer, of } => json!({"pointer": pointer, "of": of.as_str()}),
            Self::Regex { pointer, pattern, want } => {
                json!({"pointer": pointer, "pattern": pattern, "want": want.as_str()})
            }
            Self::Program { language, source } => json!({"language": language, "source": source}),
            Self::Command { argv, timeout_seconds } => json!({"argv": argv, "timeout": timeout_seconds}),
            Self::Judge(judge) | Self::Prefer(judge) => json!({
                "signature": judge.signature, "artifact": judge.artifact, "model": judge.model,
                "rubric": judge.rubric, "task": judge.task,
            }),
            Self::Reward { low, high } => json!({"range": [low.written(), high.written()]}),
            Self::Composite { parts, rule } => {
                let part = |part: &MetricPart| {
                    let weight = micro_number(part.weight.micro() as i64);
                    json!({"metric": part.metric.content, "weight": weight})
                };
                json!({"parts": parts.iter().map(part).collect::<Vec<_>>(), "rule": rule.as_str()})
            }
        };
        content["v"] = json!(1);
        content["kind"] = json!("metric");
        content["type"] = json!(self.type_name());
        content
    }
}

impl Metric {
    pub fn kind(&self) -> &MetricKind {
        &self.kind
    }

    /// The whole metric as it is hashed and stored: every option has its value, and no file is named.
    pub fn content(&self) -> &Value {
        &self.content
    }

    /// The hash of the content.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// The name of the type with its version.
    pub fn type_name(&self) -> &'static str {
        self.kind.type_name()
    }

    /// The metric in a few words for a plan, as in `exact.v1 /label`.
    pub fn summary(&self) -> String {
        let name = self.type_name();
        match &self.kind {
            MetricKind::JsonField { fields } => {
                let pointers: Vec<&str> = fields.iter().map(|field| field.pointer.as_str()).collect();
                format!("{name} {}", pointers.join(", "))
            }
            MetricKind::Composite { parts, .. } => {
                let parts: Vec<String> = parts.iter().map(|part| part.metric.summary()).collect();
                format!("{name} of {}", parts.join(", "))
            }
            MetricKind::Judge(judge) | MetricKind::Prefer(judge) => match &judge.model {
                Some(model) => format!("{name} by {model}"),
                None => name.to_owned(),
            },
            MetricKind::Program { language, .. } => match language {
                Medium::Javascript => format!("{name} in javascript"),
                Medium::Python => format!("{name} in python"),
            },
            MetricKind::Command { argv, .. } => format!("{name} {}", argv.first().map_or("", String::as_str)),
            MetricKind::Exact { pointer, .. }
            | MetricKind::Contains { pointer, .. }
            | MetricKind::Numeric { pointer, .. }
            | MetricKind::F1 { pointer, .. }
            | MetricKind::Regex { pointer, .. } => format!("{name} {pointer}").trim_end().to_owned(),
            MetricKind::Reward { .. } => name.to_owned(),
        }
    }

    /// The place in the output that the metric reads, if it reads one.
    pub fn pointer(&self) -> Option<&str> {
        match &self.kind {
            MetricKind::Exact { pointer, .. }
            | MetricKind::Contains { pointer, .. }
            | MetricKind::Numeric { pointer, .. }
            | MetricKind::F1 { pointer, .. }
            | MetricKind::Regex { pointer, .. } => Some(pointer),
            MetricKind::JsonField { .. }
            | MetricKind::Program { .. }
            | MetricKind::Command { .. }
            | MetricKind::Judge(_)
            | MetricKind::Prefer(_)
            | MetricKind::Reward { .. }
            | MetricKind::Composite { .. } => None,
        }
    }

    /// The metrics directly inside this one.
    fn parts(&self) -> Vec<&Self> {
        match &self.kind {
            MetricKind::JsonField { fields } => fields.iter().map(|field| &field.metric).collect(),
            MetricKind::Composite { parts, .. } => parts.iter().map(|part| &part.metric).collect(),
            MetricKind::Exact { .. }
            | MetricKind::Contains { .. }
            | MetricKind::Numeric { .. }
            | MetricKind::F1 { .. }
            | MetricKind::Regex { .. }
            | MetricKind::Program { .. }
            | MetricKind::Command { .. }
            | MetricKind::Judge(_)
            | MetricKind::Prefer(_)
            | MetricKind::Reward { .. } => Vec::new(),
        }
    }

    /// This metric and all metrics inside it, each before its parts.
    pub fn all(&self) -> Vec<&Self> {
        let mut all = vec![self];
        for part in self.parts() {
            all.extend(part.all());
        }
        all
    }

    /// The judges, in the order of the metrics that have them.
    pub fn judges(&self) -> Vec<&JudgeSpec> {
        let found = self.all().into_iter().filter_map(|metric| {
            if let MetricKind::Judge(judge) | MetricKind::Prefer(judge) = &metric.kind { Some(judge) } else { None }
        });
        found.collect()
    }

    /// True if a model scores.
    pub fn is_judged(&self) -> bool {
        !self.judges().is_empty()
    }

    /// True if the metric scores a pair of outputs and not one.
    pub fn is_preference(&self) -> bool {
        matches!(self.kind, MetricKind::Prefer(_))
    }

    /// False if the score depends on a program of the machine.
    pub fn is_reproducible(&self) -> bool {
        !self.all().iter().any(|metric| matches!(metric.kind, MetricKind::Command { .. }))
    }

    /// Returns this metric with the parts of its judges that `change` fills in, in the order of [`Metric::judges`].
    pub fn with_judges(&self, change: &mut dyn FnMut(&JudgeSpec) -> JudgeSpec) -> Result<Self, MetricFault> {
        let kind = match &self.kind {
            MetricKind::Judge(judge) => MetricKind::Judge(change(judge)),
            MetricKind::Prefer(judge) => MetricKind::Prefer(change(judge)),
            MetricKind::JsonField { fields } => {
                let mut changed = Vec::with_capacity(fields.len());
                for field in fields {
                    changed.push(MetricField { metric: field.metric.with_judges(change)?, ..field.clone() });
                }
                MetricKind::JsonField { fields: changed }
            }
            MetricKind::Composite { parts, rule } => {
                let mut changed = Vec::with_capacity(parts.len());
                for part in parts {
                    changed.push(MetricPart { metric: part.metric.with_judges(change)?, ..part.clone() });
                }
                MetricKind::Composite { parts: changed, rule: *rule }
            }
            MetricKind::Exact { .. }
            | MetricKind::Contains { .. }
            | MetricKind::Numeric { .. }
            | MetricKind::F1 { .. }
            | MetricKind::Regex { .. }
            | MetricKind::Program { .. }
            | MetricKind::Command { .. }
            | MetricKind::Reward { .. } => return Ok(self.clone()),
        };
        Self::of(kind)
    }
}
