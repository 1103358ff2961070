//! Which shape has the report of a compile? As a JSON Schema.

use serde_json::{Value, json};

use super::compile_report::CompileReport;
use super::schema::{described, nullable, object};
use crate::EvalStatus;
use crate::limits::SCORE_MICRO_MAX;

fn text() -> Value {
    json!({"type": "string"})
}

fn hash() -> Value {
    json!({"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"})
}

fn candidate() -> Value {
    json!({"type": "string", "pattern": "^(art|can|var)_[0-9a-f]{32}$"})
}

fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

fn share() -> Value {
    json!({"type": "integer", "minimum": 0, "maximum": SCORE_MICRO_MAX})
}

fn currency() -> Value {
    json!({"type": ["string", "null"], "pattern": "^[A-Z]{3,8}$"})
}

fn candidate_part() -> Value {
    object(vec![
        ("compiled_id", candidate()),
        ("ordinal", described(count(), "0 is the base")),
        ("parents", json!({"type": "array", "items": candidate()})),
        ("op", described(text(), "the step that made the candidate")),
        ("component", described(nullable(text()), "the slot that the step changed")),
        ("accepted", json!({"type": "boolean"})),
        ("reason", described(nullable(text()), "the reason why it was not accepted")),
        ("holdout", described(nullable(share()), "the mean on holdout, if all of it was tried")),
        ("trials", count()),
        ("per_call", described(count(), "the cost of a trial, rounded up")),
    ])
}

fn budget() -> Value {
    let asked = object(vec![
        ("currency", currency()),
        ("amount", nullable(count())),
        ("calls", nullable(count())),
        ("proposals", nullable(count())),
    ]);
    let used = object(vec![
        ("currency", currency()),
        ("amount", count()),
        ("unreconciled", described(count(), "held for calls whose outcome is unknown")),
        ("calls", count()),
        ("proposals", count()),
    ]);
    object(vec![("asked", asked), ("used", used)])
}

/// The JSON Schema of the body of a compile report.
pub fn compile_report_schema() -> Value {
    let bound = i64::try_from(SCORE_MICRO_MAX).unwrap_or(i64::MAX);
    let statuses: Vec<&str> = EvalStatus::ALL.iter().map(|status| status.as_str()).collect();
    let models = ["task", "teacher", "reflect", "judge"].map(|name| (name, nullable(text())));
    let counts = json!({"type": "object", "additionalProperties": count()});
    let pair = json!({"type": "array", "items": count(), "minItems": 2, "maxItems": 2});
    let mut schema = object(vec![
        ("v", json!({"const": CompileReport::VERSION})),
        ("kind", json!({"const": CompileReport::KIND})),
        ("report_id", json!({"type": "string", "pattern": "^cmp_[0-9a-f]{24}$"})),
        ("job_hash", hash()),
        ("status", json!({ "enum": statuses })),
        ("signature_id", described(text(), "the signature, or spell: and the name of a spell")),
        ("dataset_hash", hash()),
        ("metric_hash", hash()),
        ("optimiser", object(vec![("id", text()), ("options", json!({"type": "object"}))])),
        ("models", object(models.to_vec())),
        ("seed", text()),
        ("compiler_version", text()),
        ("base", candidate()),
        ("selected", described(nullable(candidate()), "the winner; the base if nothing was better")),
        ("candidates", json!({"type": "array", "items": candidate_part()})),
        ("curve", described(json!({"type": "array", "items": pair}), "[trials, best mean on holdout]")),
        ("proposals", object(vec![("made", count()), ("rejected", counts), ("accepted", count())])),
        ("trials", object(vec![("train", count()), ("holdout", count()), ("test", count()), ("unscored", count())])),
        ("budget", described(budget(), "in millionths of the currency")),
        (
            "optimism",
            described(
                json!({"type": ["integer", "null"], "minimum": -bound, "maximum": bound}),
                "the winner's mean on holdout less its mean on test",
            ),
        ),
        ("eval_id", json!({"type": ["string", "null"], "pattern": "^eval_[0-9a-f]{24}$"})),
        ("suggestion", object(vec![("action", json!({"enum": ["promote", "canary", "keep"]})), ("reason", text())])),
        ("created_at", json!({"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"})),
    ]);
    schema["title"] = json!("Compile report");
    schema["description"] = json!("The body of a compile report. Scores are in millionths.");
    schema
}
