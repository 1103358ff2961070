//! The JSON Schema of a metric, for people and editors. The reader is stricter: it knows which options belong together.

use serde_json::{Value, json};

use super::{JUDGE_SIGNATURE, PREFER_SIGNATURE};
use crate::limits::{METRIC_COMMAND_SECONDS, METRIC_COMMAND_SECONDS_MAX, METRIC_PARTS_MAX};

/// The shape of one type: its name, its description, its options and the options that it needs.
fn shape(name: &str, description: &str, options: Value, required: &[&str]) -> Value {
    let mut properties = json!({"v": {"const": 1}, "kind": {"const": "metric"}, "type": {"const": name}});
    for (option, schema) in options.as_object().into_iter().flatten() {
        properties[option.as_str()] = schema.clone();
    }
    let needed: Vec<&str> = ["type"].into_iter().chain(required.iter().copied()).collect();
    json!({
        "title": name, "description": description, "type": "object", "additionalProperties": false,
        "required": needed, "properties": properties,
    })
}

/// The JSON Schema of a metric.
pub fn metric_schema() -> Value {
    let pointer = json!({
        "type": "string", "default": "", "description": "the place in the output, a JSON Pointer, as in /label",
    });
    let normalise = json!({
        "enum": ["none", "text"], "default": "none",
        "description": "text compares lower-case words alone",
    });
    let tolerance = json!({"type": "number", "minimum": 0, "default": 0});
    let weight = json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1000, "default": 1});
    let metric = json!({"$ref": "#/$defs/metric"});
    let judge = |signature: &str| {
        json!({
            "signature": {"type": "string", "default": signature},
            "artifact": {"type": ["string", "null"], "description": "pinned when a job is made, unless given"},
            "model": {"type": ["string", "null"], "description": "pinned when a job is made, unless given"},
            "rubric": {"type": "string", "minLength": 1, "description": "the rules by which the judge decides"},
            "task": {"type": ["string", "null"], "description": "the description of the signature, unless given"},
        })
    };
    let field = json!({
        "type": "object", "additionalProperties": false,
        "properties": {"pointer": pointer.clone(), "weight": weight.clone(), "metric": metric.clone()},
    });
    let part = json!({
        "type": "object", "additionalProperties": false, "required": ["metric"],
        "properties": {"metric": metric, "weight": weight},
    });
    let timeout = json!({
        "type": "integer", "minimum": 1, "maximum": METRIC_COMMAND_SECONDS_MAX, "default": METRIC_COMMAND_SECONDS,
    });
    let shapes = json!([
        shape(
            "exact.v1",
            "1 if the output equals the expected value",
            json!({"pointer": pointer.clone(), "normalise": normalise.clone()}),
            &[],
        ),
        shape(
            "contains.v1",
            "the share of the needles that the output contains",
            json!({
                "pointer": pointer.clone(),
                "needles": {"type": ["array", "null"], "items": {"type": "string", "minLength": 1}},
                "mode": {"enum": ["all", "any"], "default": "all"},
                "normalise": normalise,
            }),
            &[],
        ),
        shape(
            "json_field.v1",
            "the weighted mean of several fields",
            json!({"fields": {"type": "array", "minItems": 1, "maxItems": METRIC_PARTS_MAX, "items": field}}),
            &["fields"],
        ),
        shape(
            "numeric.v1",
            "1 if the numbers differ by no more than abs, or rel times the expected one",
            json!({"pointer": pointer.clone(), "abs": tolerance.clone(), "rel": tolerance}),
            &[],
        ),
        shape(
            "f1.v1",
            "the overlap of words, or of the items of two lists",
            json!({"pointer": pointer.clone(), "of": {"enum": ["tokens", "items"], "default": "tokens"}}),
            &[],
        ),
        shape(
            "regex.v1",
            "1 if the output matches the pattern",
            json!({
                "pointer": pointer, "pattern": {"type": "string", "minLength": 1},
                "want": {"enum": ["match", "no_match"], "default": "match"},
            }),
            &["pattern"],
        ),
        shape(
            "program.v1",
            "a function score({input, output, expected, outcome}) that returns {score, feedback}",
            json!({
                "language": {"enum": ["javascript", "python"]}, "source": {"type": "string"},
                "file": {"type": "string", "description": "in place of the source"},
            }),
            &["language"],
        ),
        shape(
            "command.v1",
            "a program of this machine: JSON on its input, {score, feedback} on its output",
            json!({
                "argv": {"type": "array", "minItems": 1, "items": {"type": "string"}}, "timeout": timeout,
            }),
            &["argv"],
        ),
        shape("judge.v1", "a model scores the output", judge(JUDGE_SIGNATURE), &["rubric"]),
        shape("prefer.v1", "a model chooses between two outputs", judge(PREFER_SIGNATURE), &["rubric"]),
        shape(
            "reward.v1",
            "the latest reward on the trial's own thread",
            json!({
                "range": {
                    "type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "number"}, "default": [0, 1],
                },
            }),
            &[],
        ),
        shape(
            "composite.v1",
            "several metrics as one: their weighted mean, or the least",
            json!({
                "parts": {"type": "array", "minItems": 1, "maxItems": METRIC_PARTS_MAX, "items": part},
                "rule": {"enum": ["mean", "min"], "default": "mean"},
            }),
            &["parts"],
        ),
    ]);
    json!({
        "title": "Metric",
        "description": "How an output is scored.",
        "$ref": "#/$defs/metric",
        "$defs": {"metric": {"oneOf": shapes}},
    })
}
