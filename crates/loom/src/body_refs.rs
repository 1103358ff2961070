//! Which bodies does a record name?

use cantrip_canon::{Hash, json};
use serde_json::Value;

use crate::Error;

/// Returns the hashes of the bodies that a payload or a body names, each once, in order. An inline value is user data
/// and may look like a reference; it is searched only with `all`.
pub(crate) fn body_hashes(text: &str, all: bool) -> Result<Vec<Hash>, Error> {
    let mut found = Vec::new();
    if text.contains("\"body\":\"sha256:") {
        collect(&json::read(text)?, all, &mut found);
    }
    Ok(found)
}

fn collect(value: &Value, all: bool, found: &mut Vec<Hash>) {
    match value {
        Value::Object(fields) => {
            let hash = fields.get("body").and_then(Value::as_str).and_then(|hash| hash.parse().ok());
            match (hash, fields.get("bytes").is_some_and(Value::is_u64), fields.len()) {
                (Some(hash), true, 2) => {
                    if !found.contains(&hash) {
                        found.push(hash);
                    }
                }
                (_, _, _) => {
                    for (key, value) in fields {
                        if all || key != "inline" {
                            collect(value, all, found);
                        }
                    }
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, all, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
