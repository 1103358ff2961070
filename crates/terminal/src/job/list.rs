//! Lists of evaluations, and the agreement of a judge with people, on a terminal.

use std::fmt::Write as _;

use cantrip_service::wording::{decimal, score, short_id, signed};
use serde_json::{Map, Value};

use crate::present::{BOLD, DIM, strip_control};

/// Returns one line for each evaluation.
pub fn draw_evaluations(value: &Value) -> String {
    let mut text = String::new();
    for item in value["items"].as_array().into_iter().flatten() {
        let told = |key: &str| strip_control(item[key].as_str().unwrap_or_default());
        let verdict = match (told("verdict"), told("status")) {
            (verdict, status) if verdict.is_empty() => status,
            (verdict, _) => verdict,
        };
        let mean = item["score"].as_i64().or_else(|| item["score"]["mean"].as_i64());
        let delta = item["delta"].as_i64().or_else(|| item["delta"]["mean"].as_i64());
        let delta = delta.map_or_else(String::new, |delta| format!(" ({})", signed(delta, 3)));
        let _ = writeln!(
            text,
            "{BOLD}{}{BOLD:#}  {verdict:<10}  {}{delta}  {} of {}  {DIM}{}{DIM:#}",
            told("eval_id"),
            mean.map_or_else(|| "no score".to_owned(), score),
            short_id(&told("compiled_id")),
            told("subject"),
            told("created_at"),
        );
    }
    if !value["next"].is_null() {
        let _ = writeln!(text, "{DIM}there are more: raise --most{DIM:#}");
    }
    text
}

/// Returns the agreement of a judge with people in words.
pub fn draw_agreement(data: &Map<String, Value>) -> String {
    if !data.contains_key("n") {
        return String::new();
    }
    let number = |key: &str| data.get(key).and_then(Value::as_i64).unwrap_or(0);
    format!(
        "the judge agrees with {} of {} verdicts of people: at least {} of all, kappa {}\n",
        number("agree"),
        number("n"),
        decimal(number("low"), 2),
        decimal(number("kappa"), 2)
    )
}
