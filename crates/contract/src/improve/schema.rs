//! Which shape has a line of a dataset file, and which the report of an evaluation? As JSON Schemas.

use serde_json::{Map, Value, json};

use super::report::EvalReport;
use crate::limits::{
    EPOCHS_MAX, EXAMPLE_ID_BYTES_MAX, GROUP_BYTES_MAX, LABEL_BYTES_MAX, LABELS_MAX, SCORE_MICRO_MAX, WEIGHT_MICRO_MAX,
};
use crate::{EvalStatus, Split, Unscored};

pub(super) fn described(mut schema: Value, text: &str) -> Value {
    schema["description"] = json!(text);
    schema
}

/// An object with exactly these fields.
pub(super) fn object(fields: Vec<(&str, Value)>) -> Value {
    let required: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    let properties: Map<String, Value> =
        fields.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    json!({"type": "object", "additionalProperties": false, "required": required, "properties": properties})
}

/// The same schema, with null allowed.
pub(super) fn nullable(mut schema: Value) -> Value {
    schema["type"] = json!([schema["type"], "null"]);
    schema
}

fn splits() -> Vec<&'static str> {
    Split::ALL.iter().map(|split| split.as_str()).collect()
}

/// The JSON Schema of a line of a dataset file (JSONL).
pub fn dataset_schema() -> Value {
    let weight_max = WEIGHT_MICRO_MAX / SCORE_MICRO_MAX;
    json!({
        "type": "object",
        "title": "Example",
        "description": "One line of a dataset file: an example of a signature or of a spell.",
        "additionalProperties": false,
        "required": ["input"],
        "properties": {
            "id": {
                "type": ["string", "null"],
                "minLength": 1,
                "maxLength": EXAMPLE_ID_BYTES_MAX,
                "description": "the id of the example; without one it is cut from a hash of input and expected output",
            },
            "input": {
                "type": "object",
                "description": "fits the input schema of the signature; for a spell {intent, context}",
            },
            "expected": {"description": "the expected output, which fits the output schema; null if it is not known"},
            "labels": {
                "type": ["array", "null"],
                "maxItems": LABELS_MAX,
                "items": {"type": "string", "pattern": r"^[^\s;]+$", "maxLength": LABEL_BYTES_MAX},
                "description": "words for breakdowns",
            },
            "weight": {
                "type": ["number", "null"],
                "exclusiveMinimum": 0,
                "maximum": weight_max,
                "description": "the weight of the example in the mean; 1 if absent",
            },
            "group": {
                "type": ["string", "null"],
                "minLength": 1,
                "maxLength": GROUP_BYTES_MAX,
                "description": "examples of one group share a split and are one unit of the statistics",
            },
            "reward": {"type": ["number", "null"], "description": "the reward of the answer"},
            "split": {
                "enum": ["train", "holdout", "test", null],
                "description": "the split, which is used with --splits given",
            },
            "source": {
                "type": ["object", "null"],
                "additionalProperties": false,
                "required": ["kind", "id"],
                "properties": {
                    "kind": {"enum": ["file", "receipt", "thread"]},
                    "id": {"type": "string"},
                    "line": {"type": ["integer", "null"], "minimum": 1},
                },
                "description": "where the example comes from; not hashed",
            },
        },
    })
}

/// The JSON Schema of the body of an evaluation.
pub fn eval_report_schema() -> Value {
    let text = || json!({"type": "string"});
    let hash = || json!({"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"});
    let candidate = || json!({"type": "string", "pattern": "^(art|can|var)_[0-9a-f]{32}$"});
    let count = || json!({"type": "integer", "minimum": 0});
    let share = || json!({"type": "integer", "minimum": 0, "maximum": SCORE_MICRO_MAX});
    let bound = SCORE_MICRO_MAX as i64;
    let difference = || json!({"type": "integer", "minimum": -bound, "maximum": bound});
    let counts = |names: Value| json!({"type": "object", "propertyNames": names, "additionalProperties": count()});
    let statuses: Vec<&str> = EvalStatus::ALL.iter().map(|status| status.as_str()).collect();
    let reasons: Vec<&str> = Unscored::ALL.iter().map(|reason| reason.as_str()).collect();
    let score = || {
        object(vec![
            ("mean", share()),
            ("low", share()),
            ("high", share()),
            ("method", json!({"enum": ["wilson", "bootstrap"]})),
        ])
    };
    let delta = object(vec![
        ("mean", difference()),
        ("low", difference()),
        ("high", difference()),
        ("wins", count()),
        ("losses", count()),
        ("ties", count()),
        ("sign_p_ppm", described(share(), "the two-sided sign test, in parts per million")),
        ("flip_p_ppm", described(share(), "the one-sided flip test, in parts per million")),
    ]);
    let look = object(vec![
        ("k", json!({"type": "integer", "minimum": 1})),
        ("level_ppm", share()),
        ("low", difference()),
        ("high", difference()),
    ]);
    let cost = object(vec![
        ("currency", json!({"type": ["string", "null"], "pattern": "^[A-Z]{3,8}$"})),
        ("total", count()),
        ("judge", count()),
        ("unreconciled", described(count(), "held for calls whose outcome is unknown")),
        ("per_call", count()),
        ("baseline_per_call", count()),
    ]);
    let agreement = object(vec![("n", count()), ("agree", count()), ("low", share()), ("kappa", difference())]);
    let label =
        object(vec![("label", text()), ("examples", count()), ("mean", share()), ("delta", nullable(difference()))]);
    let casts = object(vec![
        ("terminated", count()),
        ("truncated", counts(text())),
        ("turns_per_cast", count()),
        ("seconds_per_cast", count()),
    ]);
    let mut schema = object(vec![
        ("v", json!({"const": EvalReport::VERSION})),
        ("kind", json!({"const": EvalReport::KIND})),
        ("eval_id", json!({"type": "string", "pattern": "^eval_[0-9a-f]{24}$"})),
        ("report_id", json!({"type": "string", "pattern": "^(evr|cmp)_[0-9a-f]{24}$"})),
        ("job_hash", hash()),
        ("status", json!({ "enum": statuses })),
        ("signature_id", described(text(), "the signature, or spell: and the name of a spell")),
        ("compiled_id", described(candidate(), "the candidate that was evaluated")),
        ("baseline_id", described(nullable(candidate()), "the candidate that it was compared with")),
        ("dataset_hash", hash()),
        ("split", json!({ "enum": splits() })),
        ("metric_hash", hash()),
        ("results_hash", described(hash(), "the hash over the results of all trials")),
        ("models", object(vec![("task", nullable(text())), ("judge", nullable(text()))])),
        ("epochs", json!({"type": "integer", "minimum": 1, "maximum": EPOCHS_MAX})),
        ("examples", count()),
        ("units", described(count(), "groups, and examples without a group")),
        ("scored", described(count(), "examples with a score, on both sides if there is a baseline")),
        ("unscored", described(counts(json!({ "enum": reasons })), "trials without a score, by reason")),
        ("own_failures", object(vec![("subject", count()), ("baseline", count())])),
        ("score", described(nullable(score()), "in millionths, with its 95 % interval")),
        ("baseline", nullable(score())),
        ("delta", described(nullable(delta), "the paired difference, with its 95 % interval")),
        ("look", described(nullable(look), "the number of the look, and the bounds at its level")),
        ("verdict", json!({"enum": ["better", "worse", "undecided", null]})),
        ("detectable", described(nullable(count()), "the smallest difference that would probably show")),
        ("cost", described(cost, "in millionths of the currency")),
        ("latency_ms", nullable(object(vec![("p50", count()), ("p95", count()), ("p99", count())]))),
        ("judge", nullable(object(vec![("agreement", nullable(agreement)), ("position_flips", nullable(share()))]))),
        ("labels", json!({"type": "array", "items": label})),
        ("created_at", json!({"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"})),
    ]);
    schema["title"] = json!("Evaluation report");
    schema["description"] = json!("The body of an evaluation. Scores are in millionths.");
    schema["properties"]["casts"] = described(casts, "the casts of the subject; only in reports about spells");
    schema["properties"]["reproducible"] =
        described(json!({"const": false}), "present if the metric may give other scores another time");
    schema
}
