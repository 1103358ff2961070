//! Receipts on a terminal.

use std::fmt::Write as _;

use cantrip_canon::Money;
use serde_json::{Value, json};

use crate::present::{BOLD, DIM, strip_control};

fn field_text(value: &Value, key: &str) -> String {
    match value.get(key) {
        Some(Value::String(text)) => strip_control(text),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    }
}

/// Renders the cost of a receipt.
fn cost(receipt: &Value) -> String {
    let budget = &receipt["budget"];
    let micros = budget["captured"].as_i64().unwrap_or(0);
    match (field_text(budget, "currency").parse(), micros) {
        (_, 0) => "nothing".to_owned(),
        (Ok(currency), micros) => {
            Money::new(micros, currency).map_or_else(|_| micros.to_string(), |money| money.to_string())
        }
        (Err(_), micros) => micros.to_string(),
    }
}

/// Renders a list of receipts.
pub fn list(value: &Value) -> String {
    let mut text = String::new();
    for receipt in value.get("items").and_then(Value::as_array).into_iter().flatten() {
        let of = match field_text(receipt, "signature_id") {
            id if id.is_empty() => "cast".to_owned(),
            id => id,
        };
        let _ = writeln!(
            text,
            "{BOLD}{}{BOLD:#}  {:<9}  {of}  {} ms, {}  {DIM}{}{DIM:#}",
            field_text(receipt, "receipt_id"),
            if receipt["altered"] == json!(true) { "ALTERED".to_owned() } else { field_text(receipt, "status") },
            field_text(&receipt["timing"], "latency_ms"),
            cost(receipt),
            field_text(&receipt["timing"], "completed_at"),
        );
    }
    if !value.get("next").is_none_or(Value::is_null) {
        let _ = writeln!(text, "{DIM}there are more: raise --most{DIM:#}");
    }
    text
}

/// Renders one receipt in full.
pub fn show(receipt: &Value) -> String {
    let mut text = format!("{BOLD}{}{BOLD:#}  {}\n", field_text(receipt, "receipt_id"), field_text(receipt, "status"));
    let mut line = |name: &str, value: String| {
        if !value.is_empty() {
            let _ = writeln!(text, "  {name:<10} {value}");
        }
    };
    line("of", field_text(receipt, "receipt_kind"));
    line("error", field_text(receipt, "error_code"));
    line("signature", field_text(receipt, "signature_id"));
    line("artifact", field_text(receipt, "compiled_id"));
    line("strategy", field_text(receipt, "strategy_id"));
    line("run", format!("{}, receipt {}", field_text(receipt, "run_id"), field_text(receipt, "seq")));
    line("thread", field_text(receipt, "thread_id"));
    line("last turn", field_text(receipt, "last_turn_id"));
    let model = &receipt["model"];
    line("model", format!("{} {}", field_text(model, "name"), field_text(model, "structured_mode")).trim().to_owned());
    let policy = &receipt["policy"];
    line(
        "policy",
        format!("{} {}", field_text(policy, "decision"), field_text(policy, "reason_code")).trim().to_owned(),
    );
    line("paid by", field_text(policy, "authorization_id"));
    line("variant", field_text(policy, "artifact_variant"));
    line("cost", cost(receipt));
    let budget = &receipt["budget"];
    line(
        "used",
        format!(
            "{} in, {} out, {} calls, {} repairs",
            field_text(budget, "input_tokens"),
            field_text(budget, "output_tokens"),
            field_text(budget, "model_calls"),
            field_text(budget, "repairs")
        ),
    );
    line("took", format!("{} ms", field_text(&receipt["timing"], "latency_ms")));
    line("input", field_text(receipt, "params_hash"));
    line("output", field_text(receipt, "output_hash"));
    line("trace", field_text(receipt, "trace_ref"));
    line("before", field_text(receipt, "prev_hash"));
    line("hash", field_text(receipt, "receipt_hash"));
    text
}
