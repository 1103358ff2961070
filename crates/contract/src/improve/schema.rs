//! Which shape has a line of a dataset file, and which the report of an evaluation? As JSON Schemas.

use serde_json::{Value, json};

/// The JSON Schema of a line of a dataset file (JSONL).
pub fn dataset_schema() -> Value {
    todo!()
}

/// The JSON Schema of the body of an evaluation.
pub fn eval_report_schema() -> Value {
    todo!()
}
