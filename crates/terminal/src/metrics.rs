//! Metrics on a terminal.

use std::fmt::Write as _;

use cantrip_service::wording::{micro, score};
use serde_json::{Map, Value};

use crate::present::{BOLD, DIM, strip_control};

/// Returns a metric that was checked, with its hash.
pub fn draw_checked(data: &Map<String, Value>) -> String {
    let told = |key: &str| strip_control(data.get(key).and_then(Value::as_str).unwrap_or_default());
    let mut text = format!("{BOLD}{}{BOLD:#}  {}\n", told("summary"), told("metric_hash"));
    if data.get("judged") == Some(&Value::Bool(true)) {
        let _ = writeln!(text, "  a judge asks a model; eval judge compares it with people");
    }
    if data.get("reproducible") == Some(&Value::Bool(false)) {
        let _ =
            writeln!(text, "  its command may give another score the next time, so it supports no promotion by itself");
    }
    text
}

/// Returns the scores of stored outputs, one a line.
pub fn draw_tried(value: &Value) -> String {
    let mut text = String::new();
    for item in value["items"].as_array().into_iter().flatten() {
        let told = |key: &str| strip_control(item[key].as_str().unwrap_or_default()).replace('\n', "; ");
        let scored = item["score"].as_u64().map_or_else(|| told("unscored"), |micros| score(micro(micros)));
        let of = match told("receipt_id") {
            id if id.is_empty() => "the expected output".to_owned(),
            id => id,
        };
        let _ = writeln!(text, "{:<36}  {scored:<7}  {}  {DIM}{of}{DIM:#}", told("example_id"), told("feedback"));
    }
    if text.is_empty() {
        text.push_str("no example has an output that is stored, or an expected one\n");
    }
    text
}
