//! Pointers on a terminal: the artifacts that are served, previews and audits.

use std::fmt::Write as _;

use cantrip_service::contracts::contract::{Pointer, PointerAudit};
use serde_json::{Map, Value};

use crate::present::{BOLD, DIM, strip_control};

fn read_pointer(value: &Value) -> Option<Pointer> {
    serde_json::from_value(value.clone()).ok()
}

/// Returns a pointer from its value.
pub fn draw_pointer_value(value: &Value) -> Option<String> {
    read_pointer(value).as_ref().map(draw_pointer)
}

/// Returns all pointers from their values.
pub fn draw_pointers(value: &Value) -> Option<String> {
    value.as_array()?.iter().map(draw_pointer_value).collect()
}

/// Returns the data of a change: the pointer after it, and the evaluation that a promotion rests on.
pub fn draw_change(data: &Map<String, Value>) -> String {
    let Some(pointer) = data.get("pointer").and_then(read_pointer) else { return String::new() };
    let kept = if data.get("audit_id").is_some_and(Value::is_null) { "nothing changed\n" } else { "" };
    let mut text = format!("{kept}{}", draw_pointer(&pointer));
    if let Some(eval) = data.get("eval_id").and_then(Value::as_str) {
        let from = match data.get("external").and_then(Value::as_bool) {
            Some(true) => ", made elsewhere and not verified here",
            Some(false) => ", verified from its rows",
            None => "",
        };
        let _ = writeln!(text, "  because  {}{from}", strip_control(eval));
    }
    text
}

/// Returns a pointer as text.
pub fn draw_pointer(pointer: &Pointer) -> String {
    let mut text = format!("{BOLD}{}{BOLD:#} at version {}\n", pointer.signature_id, pointer.version);
    let _ = writeln!(text, "  primary  {}", pointer.primary_artifact);
    if let Some(canary) = &pointer.canary_artifact {
        let _ = writeln!(text, "  canary   {canary} for {} %", pointer.canary_percent);
    }
    if pointer.rollout_seed != "default" {
        let _ = writeln!(text, "  seed     {}", strip_control(&pointer.rollout_seed));
    }
    let _ = writeln!(text, "  {DIM}changed  {} by {}{DIM:#}", pointer.updated_at, strip_control(&pointer.updated_by));
    text
}

/// Returns the artifacts that a preview assigns to callers.
pub fn draw_split(value: &Value) -> Option<String> {
    let mut text = String::new();
    for row in value.get("rows")?.as_array()? {
        let told = |key: &str| strip_control(row.get(key).and_then(Value::as_str).unwrap_or_default());
        let (key, bucket, variant) = (told("key"), row.get("bucket")?.as_u64()?, told("variant"));
        let _ = writeln!(text, "{key:<16} {bucket:>3}  {variant:<8} {}", told("compiled_id"));
    }
    let count = |key: &str| value.get(key).and_then(Value::as_u64).unwrap_or(0);
    let (primary, canary) = (count("primary"), count("canary"));
    let _ = writeln!(text, "{DIM}{primary} get the primary, {canary} the canary at {} %{DIM:#}", count("percent"));
    Some(text)
}

/// Returns the changes of a pointer.
pub fn draw_audits(value: &Value) -> Option<String> {
    let audits: Vec<PointerAudit> = serde_json::from_value(value.get("items")?.clone()).ok()?;
    let mut text = String::new();
    for audit in &audits {
        let what = serde_json::to_value(audit.action).ok()?;
        let forced = if audit.forced { ", forced" } else { "" };
        let spoken_for = audit.eval_id.as_deref().map_or_else(String::new, |id| format!(", by {}", strip_control(id)));
        let undone = audit.target_audit_id.map_or_else(String::new, |target| format!(" of {target}"));
        let because = audit.reason.as_deref().map_or_else(String::new, |reason| format!(": {}", strip_control(reason)));
        let canary = audit.after.canary_artifact.as_ref();
        let canary =
            canary.map_or_else(String::new, |canary| format!(", {canary} for {} %", audit.after.canary_percent));
        let _ = writeln!(
            text,
            "{BOLD}{}{BOLD:#}  version {}  {}{undone}{spoken_for}{forced}  {}{canary}",
            audit.audit_id,
            audit.version_after,
            what.as_str()?,
            audit.after.primary_artifact,
        );
        let _ = writeln!(text, "  {DIM}{} by {}{because}{DIM:#}", audit.at, strip_control(&audit.actor));
    }
    if let Some(next) = value.get("next").and_then(Value::as_u64) {
        let _ = writeln!(text, "{DIM}there are more: --after {next}{DIM:#}");
    }
    Some(text)
}
