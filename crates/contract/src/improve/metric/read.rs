//! Reads a metric strictly: an unknown option is refused and not ignored, because it would change no score.

use std::fmt;

use cantrip_canon::json::{self, to_value};
use cantrip_canon::{Hash, stable_hash};
use cantrip_reply::{Refusal, codes};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::{
    CompositeRule, Decimal, F1Parts, JUDGE_SIGNATURE, JudgeSpec, Metric, MetricField, MetricKind, MetricPart,
    NeedleMode, Normalise, PREFER_SIGNATURE, PatternWant,
};
use crate::limits::{
    METRIC_BYTES_MAX, METRIC_COMMAND_SECONDS, METRIC_COMMAND_SECONDS_MAX, METRIC_DEPTH_MAX, METRIC_PARTS_MAX,
    METRIC_PATTERN_BYTES_MAX,
};
use crate::{Files, Medium, NoFiles, Weight, WeightFault};

/// The reason why a text or a value is not a metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricFault {
    /// A JSON Pointer into the metric; empty for the whole of it.
    pub path: String,
    pub rule: String,
}

impl fmt::Display for MetricFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() { f.write_str(&self.rule) } else { write!(f, "{}: {}", self.path, self.rule) }
    }
}

impl std::error::Error for MetricFault {}

impl MetricFault {
    /// The reply about the metric of this name or file.
    pub fn refusal(&self, metric: &str) -> Refusal {
        let hint = "cantrip schema metric prints the shape of a metric";
        codes::metric_invalid(metric, self.to_string()).data(json!({"path": self.path, "hint": hint})).into()
    }
}

fn fault(path: impl Into<String>, rule: impl Into<String>) -> MetricFault {
    MetricFault { path: path.into(), rule: rule.into() }
}

const TYPES: [&str; 12] = [
    "exact.v1",
    "contains.v1",
    "json_field.v1",
    "numeric.v1",
    "f1.v1",
    "regex.v1",
    "program.v1",
    "command.v1",
    "judge.v1",
    "prefer.v1",
    "reward.v1",
    "composite.v1",
];

impl Metric {
    /// Reads a metric from a text: TOML, or unambiguous JSON. `files` opens the files that it names.
    pub fn read(text: &str, is_toml: bool, files: &dyn Files) -> Result<Self, MetricFault> {
        if text.len() > METRIC_BYTES_MAX {
            return Err(fault("", format!("it has {} bytes, and a metric has at most {METRIC_BYTES_MAX}", text.len())));
        }
        let written = if is_toml { from_toml(text)? } else { from_json(text)? };
        Self::from_value(&written, files)
    }

    /// Reads a metric from a value. `files` opens the files that it names.
    pub fn from_value(written: &Value, files: &dyn Files) -> Result<Self, MetricFault> {
        read_metric(written, files, "", 1)
    }

    /// Reads a stored metric, which names no files.
    pub fn from_stored(content: &Value) -> Result<Self, MetricFault> {
        Self::from_value(content, &NoFiles)
    }

    /// Returns the metric of this kind, with its content and hash.
    pub(super) fn of(kind: MetricKind) -> Result<Self, MetricFault> {
        let content = kind.content();
        let size = json::canonical(&content).map_err(|wrong| fault("", wrong.to_string()))?.len();
        if size > METRIC_BYTES_MAX {
            return Err(fault(
                "",
                format!(
                    "it has {size} bytes with its files, and a metric has at most \
                                          {METRIC_BYTES_MAX}"
                ),
            ));
        }
        let hash: Hash = stable_hash(&content).map_err(|wrong| fault("", wrong.to_string()))?;
        Ok(Self { kind, content, hash })
    }
}

fn from_json(text: &str) -> Result<Value, MetricFault> {
    json::read(text)
        .map_err(|wrong| fault("", format!("line {}, column {}: {}", wrong.at.line, wrong.at.column, wrong.rule)))
}

fn from_toml(text: &str) -> Result<Value, MetricFault> {
    let table: toml::Table = text.parse().map_err(|wrong: toml::de::Error| {
        let before = wrong.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        fault("", format!("line {}: {}", before.matches('\n').count() + 1, wrong.message()))
    })?;
    plain("", &toml::Value::Table(table))
}

/// Converts TOML to JSON. JSON has no form for a date, so a date is refused.
fn plain(path: &str, value: &toml::Value) -> Result<Value, MetricFault> {
    Ok(match value {
        toml::Value::Datetime(date) => {
            return Err(fault(path, format!("{date} is a date; write it as a text, in quotes")));
        }
        toml::Value::Table(table) => {
            let mut object = Map::new();
            for (key, value) in table {
                object.insert(key.clone(), plain(&step(path, key), value)?);
            }
            Value::Object(object)
        }
        toml::Value::Array(items) => {
            let mut array = Vec::with_capacity(items.len());
            for (index, item) in items.iter().enumerate() {
                array.push(plain(&format!("{path}/{index}"), item)?);
            }
            Value::Array(array)
        }
        toml::Value::String(_) | toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) => {
            to_value(value).map_err(|wrong| fault(path, wrong.to_string()))?
        }
    })
}

/// The JSON Pointer of a key below a path.
fn step(path: &str, key: &str) -> String {
    let key: String = key.chars().take(80).collect();
    format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// The options of one metric, with the place of the metric.
struct Options<'a> {
    path: &'a str,
    written: &'a Map<String, Value>,
}

impl Options<'_> {
    /// Refuses every option that the type does not have.
    fn only(&self, name: &str, known: &[&str]) -> Result<(), MetricFault> {
        let strange = self
            .written
            .keys()
            .find(|key| !["v", "kind", "type"].contains(&key.as_str()) && !known.contains(&key.as_str()));
        match strange {
            None => Ok(()),
            Some(key) if known.is_empty() => Err(fault(step(self.path, key), format!("{name} has no options"))),
            Some(key) => {
                Err(fault(step(self.path, key), format!("{name} has no such option; it has {}", known.join(", "))))
            }
        }
    }

    fn at(&self, key: &str) -> String {
        step(self.path, key)
    }

    /// The option, unless it is absent or null.
    fn given(&self, key: &str) -> Option<&Value> {
        self.written.get(key).filter(|value| !value.is_null())
    }

    fn text(&self, key: &str) -> Result<Option<String>, MetricFault> {
        match self.given(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(fault(self.at(key), "a text is expected")),
        }
    }

    fn required_text(&self, key: &str, example: &str) -> Result<String, MetricFault> {
        match self.text(key)? {
            Some(text) if !text.trim().is_empty() => Ok(text),
            Some(_) => Err(fault(self.at(key), "it is empty")),
            None => Err(fault(self.at(key), format!("it is missing, as in {example}"))),
        }
    }

    fn parsed<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, MetricFault> {
        let given = self.given(key).map(|value| serde_json::from_value(value.clone()));
        given.transpose().map_err(|wrong| fault(self.at(key), wrong.to_string()))
    }

    /// A JSON Pointer; the whole value unless given.
    fn pointer(&self) -> Result<String, MetricFault> {
        let pointer = self.text("pointer")?.unwrap_or_default();
        check_pointer(&pointer).map_err(|rule| fault(self.at("pointer"), rule))?;
        Ok(pointer)
    }

    /// One of several words; the first unless given.
    fn word<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Result<T, MetricFault> {
        let Some(text) = self.text(key)? else { return Ok(words[0].1) };
        words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value).ok_or_else(|| {
            let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let shown: String = text.chars().take(80).collect();
            fault(self.at(key), format!("{shown:?} is unknown; use {}", known.join(" or ")))
        })
    }

    fn normalise(&self) -> Result<Normalise, MetricFault> {
        self.word("normalise", &[("none", Normalise::None), ("text", Normalise::Text)])
    }

    /// A number that is not negative; 0 unless given.
    fn tolerance(&self, key: &str) -> Result<Decimal, MetricFault> {
        let Some(value) = self.given(key) else { return Ok(Decimal::zero()) };
        Decimal::of(value)
            .filter(|number| !number.is_negative())
            .ok_or_else(|| fault(self.at(key), "a number from 0 on is expected"))
    }

    /// The items of a list that must not be empty.
    fn items(&self, key: &str, most: usize) -> Result<&[Value], MetricFault> {
        match self.given(key) {
            Some(Value::Array(items)) if (1..=most).contains(&items.len()) => Ok(items),
            Some(Value::Array(items)) => {
                Err(fault(self.at(key), format!("it has {} items; 1 to {most} are expected", items.len())))
            }
            Some(_) => Err(fault(self.at(key), "a list is expected")),
            None => Err(fault(self.at(key), "it is missing")),
        }
    }
}

fn check_pointer(pointer: &str) -> Result<(), String> {
    let rule = "a JSON Pointer is expected: empty for the whole output, else / and a key, as in /label";
    if !pointer.is_empty() && !pointer.starts_with('/') {
        return Err(rule.to_owned());
    }
    let mut rest = pointer;
    while let Some(at) = rest.find('~') {
        rest = &rest[at + 1..];
        if !rest.starts_with(['0', '1']) {
            return Err(format!("{rule}; ~ is written ~0 in a key, and / is written ~1"));
        }
    }
    Ok(())
}

fn object<'a>(written: &'a Value, path: &str) -> Result<&'a Map<String, Value>, MetricFault> {
    written.as_object().ok_or_else(|| fault(path, "a table is expected, as in {\"type\": \"exact.v1\"}"))
}

fn read_metric(written: &Value, files: &dyn Files, path: &str, depth: usize) -> Result<Metric, MetricFault> {
    if depth > METRIC_DEPTH_MAX {
        return Err(fault(path, format!("metrics are nested deeper than {METRIC_DEPTH_MAX} levels")));
    }
    let options = Options { path, written: object(written, path)? };
    if options.given("v").is_some_and(|version| *version != json!(1)) {
        return Err(fault(options.at("v"), "this version reads 1"));
    }
    if options.given("kind").is_some_and(|kind| *kind != json!("metric")) {
        return Err(fault(options.at("kind"), "it is \"metric\""));
    }
    let name = options.required_text("type", "type = \"exact.v1\"")?;
    let kind = match name.as_str() {
        "exact.v1" => {
            options.only(&name, &["pointer", "normalise"])?;
            MetricKind::Exact { pointer: options.pointer()?, normalise: options.normalise()? }
        }
        "contains.v1" => contains(&options, &name)?,
        "json_field.v1" => json_field(&options, &name, files, depth)?,
        "numeric.v1" => {
            options.only(&name, &["pointer", "abs", "rel"])?;
            let (abs, rel) = (options.tolerance("abs")?, options.tolerance("rel")?);
            MetricKind::Numeric { pointer: options.pointer()?, abs, rel }
        }
        "f1.v1" => {
            options.only(&name, &["pointer", "of"])?;
            let of = options.word("of", &[("tokens", F1Parts::Tokens), ("items", F1Parts::Items)])?;
            MetricKind::F1 { pointer: options.pointer()?, of }
        }
        "regex.v1" => regex(&options, &name)?,
        "program.v1" => program(&options, &name, files)?,
        "command.v1" => command(&options, &name)?,
        "judge.v1" => MetricKind::Judge(judge(&options, &name, JUDGE_SIGNATURE)?),
        "prefer.v1" if depth > 1 => {
            return Err(fault(path, "prefer.v1 scores a pair of outputs, so it cannot be a part of another metric"));
        }
        "prefer.v1" => MetricKind::Prefer(judge(&options, &name, PREFER_SIGNATURE)?),
        "reward.v1" => reward(&options, &name)?,
        "composite.v1" => composite(&options, &name, files, depth)?,
        _ => {
            let shown: String = name.chars().take(80).collect();
            let near = TYPES.iter().min_by_key(|known| strsim::damerau_levenshtein(&shown, known));
            let rule = match near {
                Some(known) if strsim::damerau_levenshtein(&shown, known) <= 3 => {
                    format!("unknown type {shown:?}; did you mean {known}?")
                }
                Some(_) | None => format!("unknown type {shown:?}; known are {}", TYPES.join(", ")),
            };
            return Err(fault(options.at("type"), rule));
        }
    };
    Metric::of(kind).map_err(|wrong| fault(path, wrong.rule))
}

fn contains(options: &Options<'_>, name: &str) -> Result<MetricKind, MetricFault> {
    options.only(name, &["pointer", "needles", "mode", "normalise"])?;
    let rule = || fault(options.at("needles"), "a list of texts that are not empty is expected");
    let needles: Option<Vec<String>> = options.parsed("needles").map_err(|_| rule())?;
    if needles.as_ref().is_some_and(|needles| needles.is_empty() || needles.iter().any(String::is_empty)) {
        return Err(rule());
    }
    let mode = options.word("mode", &[("all", NeedleMode::All), ("any", NeedleMode::Any)])?;
    Ok(MetricKind::Contains { pointer: options.pointer()?, needles, mode, normalise: options.normalise()? })
}

fn json_field(options: &Options<'_>, name: &str, files: &dyn Files, depth: usize) -> Result<MetricKind, MetricFault> {
    options.only(name, &["fields"])?;
    let mut fields = Vec::new();
    for (index, item) in options.items("fields", METRIC_PARTS_MAX)?.iter().enumerate() {
        let path = format!("{}/{index}", options.at("fields"));
        let field = Options { path: &path, written: object(item, &path)? };
        field.only("a field", &["pointer", "weight", "metric"])?;
        let metric = match field.given("metric") {
            Some(metric) => read_metric(metric, files, &field.at("metric"), depth + 1)?,
            None => Metric::of(MetricKind::Exact { pointer: String::new(), normalise: Normalise::None })?,
        };
        fields.push(MetricField { pointer: field.pointer()?, weight: weight(&field)?, metric });
    }
    Ok(MetricKind::JsonField { fields })
}

fn composite(options: &Options<'_>, name: &str, files: &dyn Files, depth: usize) -> Result<MetricKind, MetricFault> {
    options.only(name, &["parts", "rule"])?;
    let mut parts = Vec::new();
    for (index, item) in options.items("parts", METRIC_PARTS_MAX)?.iter().enumerate() {
        let path = format!("{}/{index}", options.at("parts"));
        let part = Options { path: &path, written: object(item, &path)? };
        part.only("a part", &["metric", "weight"])?;
        let written = part.given("metric").ok_or_else(|| fault(part.at("metric"), "it is missing"))?;
        let metric = read_metric(written, files, &part.at("metric"), depth + 1)?;
        parts.push(MetricPart { metric, weight: weight(&part)? });
    }
    let rule = options.word("rule", &[("mean", CompositeRule::Mean), ("min", CompositeRule::Min)])?;
    Ok(MetricKind::Composite { parts, rule })
}

/// The weight of a part; 1 unless given.
fn weight(part: &Options<'_>) -> Result<Weight, MetricFault> {
    let Some(value) = part.given("weight") else { return Ok(Weight::ONE) };
    let fitting = Decimal::of(value).and_then(|number| {
        let micro = number.scaled(6)?;
        // A weight with more places would be rounded, and the mean would not be that of the metric as written.
        let whole = Decimal::of(&json!(i64::try_from(micro).ok()?))?;
        let weight = Weight::from_micro(u64::try_from(micro).ok()?).ok()?;
        (whole == number.times(&million())).then_some(weight)
    });
    fitting.ok_or_else(|| fault(part.at("weight"), WeightFault.to_string()))
}

fn million() -> Decimal {
    Decimal::of(&json!(1_000_000)).unwrap_or_else(Decimal::zero)
}

fn regex(options: &Options<'_>, name: &str) -> Result<MetricKind, MetricFault> {
    options.only(name, &["pointer", "pattern", "want"])?;
    let pattern = options.required_text("pattern", "pattern = \"^[A-Z]\"")?;
    let compiled = regex::RegexBuilder::new(&pattern).size_limit(METRIC_PATTERN_BYTES_MAX).build();
    compiled.map_err(|wrong| fault(options.at("pattern"), wrong.to_string()))?;
    let want = options.word("want", &[("match", PatternWant::Match), ("no_match", PatternWant::NoMatch)])?;
    Ok(MetricKind::Regex { pointer: options.pointer()?, pattern, want })
}

fn program(options: &Options<'_>, name: &str, files: &dyn Files) -> Result<MetricKind, MetricFault> {
    options.only(name, &["language", "source", "file"])?;
    let language = options.required_text("language", "language = \"javascript\"")?;
    let language = match language.as_str() {
        "javascript" => Medium::Javascript,
        "python" => Medium::Python,
        _ => return Err(fault(options.at("language"), "it is javascript or python")),
    };
    let source = match (options.text("source")?, options.text("file")?) {
        (Some(source), None) => source,
        (None, Some(file)) => files.text(&file).map_err(|rule| fault(options.at("file"), rule))?,
        (Some(_), Some(_)) => return Err(fault(options.at("file"), "give the source or a file, not both")),
        (None, None) => return Err(fault(options.at("source"), "it is missing; give the source or a file")),
    };
    if source.trim().is_empty() {
        return Err(fault(options.at("source"), "it is empty"));
    }
    Ok(MetricKind::Program { language, source })
}

fn command(options: &Options<'_>, name: &str) -> Result<MetricKind, MetricFault> {
    options.only(name, &["argv", "timeout"])?;
    let argv: Vec<String> = options.parsed("argv")?.unwrap_or_default();
    if argv.first().is_none_or(|program| program.is_empty()) {
        return Err(fault(options.at("argv"), "a list is expected, the program first, as in [\"./score.sh\"]"));
    }
    let timeout_seconds = options.parsed::<u64>("timeout")?.unwrap_or(METRIC_COMMAND_SECONDS);
    if !(1..=METRIC_COMMAND_SECONDS_MAX).contains(&timeout_seconds) {
        let rule = format!("1 to {METRIC_COMMAND_SECONDS_MAX} seconds are expected");
        return Err(fault(options.at("timeout"), rule));
    }
    Ok(MetricKind::Command { argv, timeout_seconds })
}

fn judge(options: &Options<'_>, name: &str, signature: &str) -> Result<JudgeSpec, MetricFault> {
    options.only(name, &["signature", "artifact", "model", "rubric", "task"])?;
    let signature = options.text("signature")?.unwrap_or_else(|| signature.to_owned());
    let signature = signature
        .parse()
        .map_err(|wrong: crate::SignatureIdFault| fault(options.at("signature"), wrong.to_string()))?;
    Ok(JudgeSpec {
        signature,
        artifact: options.parsed("artifact")?,
        model: options.text("model")?.filter(|model| !model.is_empty()),
        rubric: options.required_text("rubric", "rubric = \"The reply is polite and answers the question.\"")?,
        task: options.text("task")?.filter(|task| !task.is_empty()),
    })
}

fn reward(options: &Options<'_>, name: &str) -> Result<MetricKind, MetricFault> {
    options.only(name, &["range"])?;
    let rule = || fault(options.at("range"), "two numbers are expected, the lower first, as in [0, 1]");
    let (low, high) = match options.given("range") {
        None => (Decimal::of(&json!(0)), Decimal::of(&json!(1))),
        Some(Value::Array(bounds)) if bounds.len() == 2 => (Decimal::of(&bounds[0]), Decimal::of(&bounds[1])),
        Some(_) => return Err(rule()),
    };
    match (low, high) {
        (Some(low), Some(high)) if low < high => Ok(MetricKind::Reward { low, high }),
        (Some(_) | None, _) => Err(rule()),
    }
}
