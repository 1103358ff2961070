//! Datasets on a terminal.

use std::fmt::Write as _;

use serde_json::Value;

use crate::limits::EXAMPLE_SHOWN_CHARS;
use crate::present::{BOLD, DIM, strip_control};

fn text_of(value: &Value, key: &str) -> String {
    match value.get(key) {
        Some(Value::String(text)) => strip_control(text),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    }
}

/// Renders the sizes of the splits: `96 train, 41 holdout, 63 test`.
fn sizes(counts: &Value) -> String {
    let splits = &counts["splits"];
    let size = |split: &str| format!("{} {split}", splits[split].as_u64().unwrap_or(0));
    [size("train"), size("holdout"), size("test")].join(", ")
}

/// Renders numbers by name, the largest first: `5 input_schema, 2 duplicate`.
fn by_name(counts: &Value) -> String {
    let counts = counts.as_object().into_iter().flatten();
    let mut named: Vec<(u64, String)> =
        counts.map(|(name, count)| (count.as_u64().unwrap_or(0), strip_control(name))).collect();
    named.sort_by(|one, other| other.0.cmp(&one.0).then_with(|| one.1.cmp(&other.1)));
    named.iter().map(|(count, name)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
}

/// Renders a list of datasets.
pub fn list(value: &Value) -> String {
    let mut text = String::new();
    for row in value["items"].as_array().into_iter().flatten() {
        let _ = writeln!(
            text,
            "{BOLD}{}{BOLD:#}  {}  {}  {DIM}{}{DIM:#}",
            text_of(row, "dataset"),
            text_of(row, "subject"),
            sizes(&row["counts"]),
            text_of(row, "created_at"),
        );
    }
    text
}

/// Renders the counts of a dataset, one line each.
fn counts(counts: &Value, text: &mut String) {
    let mut line = |name: &str, value: String| {
        if !value.is_empty() {
            let _ = writeln!(text, "  {name:<12} {value}");
        }
    };
    line("examples", format!("{}: {}", text_of(counts, "taken"), sizes(counts)));
    line("labels", by_name(&counts["labels"]));
    let positive = |key: &str| counts[key].as_u64().filter(|count| *count > 0).map(|count| count.to_string());
    line("unlabelled", positive("unlabelled").unwrap_or_default());
    let contradictions = positive("contradiction");
    line(
        "contradicted",
        contradictions.map(|count| format!("{count} inputs with several outputs")).unwrap_or_default(),
    );
    line("redacted", positive("redacted").map(|count| format!("{count} texts")).unwrap_or_default());
    line("skipped", by_name(&counts["skipped"]));
}

/// Renders the result of adding a version. The first line is its name.
pub fn added(data: &serde_json::Map<String, Value>) -> String {
    let data = Value::Object(data.clone());
    let mut text = format!("{}@{}\n", text_of(&data, "name"), text_of(&data, "version"));
    if data["new"] == Value::Bool(false) {
        let _ = writeln!(text, "{DIM}  nothing new: this is the newest version{DIM:#}");
    }
    counts(&data["counts"], &mut text);
    text
}

/// Renders a dataset with its versions, and some of its examples.
pub fn show(dataset: &Value, examples: &Value) -> String {
    let mut text = format!("{BOLD}{}{BOLD:#}  {}\n", text_of(dataset, "dataset"), text_of(dataset, "subject"));
    counts(&dataset["counts"], &mut text);
    let split = &dataset["split"];
    let seed = text_of(dataset, "split_seed");
    let _ = writeln!(text, "  shares       {}/{}/{}, seed {seed}", split["train"], split["holdout"], split["test"]);
    let _ = writeln!(text, "{DIM}  hash         {}{DIM:#}", text_of(dataset, "dataset_hash"));
    for version in dataset["versions"].as_array().into_iter().flatten() {
        let (number, by, at) = (text_of(version, "version"), text_of(version, "by"), text_of(version, "at"));
        let note = Some(text_of(version, "note")).filter(|note| !note.is_empty());
        let note = note.map(|note| format!("  {note}")).unwrap_or_default();
        let _ = writeln!(text, "{DIM}  version {number:<4} by {by}, {at}{note}{DIM:#}");
    }
    for example in examples["items"].as_array().into_iter().flatten() {
        let _ = writeln!(text, "{BOLD}{}{BOLD:#}  {}", text_of(example, "id"), text_of(example, "split"));
        let _ = writeln!(text, "  input        {}", shortened(&example["input"]));
        if !example["expected"].is_null() {
            let _ = writeln!(text, "  expected     {}", shortened(&example["expected"]));
        }
    }
    if !examples["next"].is_null() {
        let _ = writeln!(text, "{DIM}there are more: raise --most, or write all with --out FILE{DIM:#}");
    }
    text
}

fn shortened(value: &Value) -> String {
    let whole = strip_control(&value.to_string());
    let mut text: String = whole.chars().take(EXAMPLE_SHOWN_CHARS).collect();
    if text.len() < whole.len() {
        text.push_str("...");
    }
    text
}

/// Renders the difference between two datasets: `+` added, `-` removed, `~` changed.
pub fn diff(value: &Value) -> String {
    let mut text = String::new();
    for (sign, key) in [("+", "added"), ("-", "removed"), ("~", "changed")] {
        for id in value[key].as_array().into_iter().flatten() {
            let _ = writeln!(text, "{sign} {}", strip_control(id.as_str().unwrap_or_default()));
        }
    }
    if text.is_empty() {
        let _ = writeln!(text, "{} and {} have the same examples", text_of(value, "before"), text_of(value, "after"));
    }
    text
}
