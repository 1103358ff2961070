//! The places of an output whose values are those of an enum.

use serde_json::Value;

use cantrip_ds::limits::SCHEMA_REFERENCES_MAX;

/// Returns true if the values at this place of an output are those of an enum.
pub fn is_enum_at(schema: &Value, pointer: &str) -> bool {
    let mut found = resolved(schema, schema);
    for step in pointer.split('/').skip(1) {
        let step = step.replace("~1", "/").replace("~0", "~");
        let property = found.and_then(|schema| schema.get("properties")?.get(&step));
        found = property.and_then(|property| resolved(schema, property));
    }
    found.is_some_and(|schema| schema.get("enum").is_some_and(Value::is_array))
}

/// Follows the references of a schema within its document.
fn resolved<'a>(document: &'a Value, schema: &'a Value) -> Option<&'a Value> {
    let mut schema = schema;
    for _ in 0..=SCHEMA_REFERENCES_MAX {
        let Some(reference) = schema.get("$ref").and_then(Value::as_str) else { return Some(schema) };
        schema = document.pointer(reference.strip_prefix('#')?)?;
    }
    None
}
