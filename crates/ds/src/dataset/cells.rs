//! Which value does a cell of a table have? That depends on the type of its property.

use std::collections::BTreeSet;

use cantrip::canon::json;
use cantrip_contract::limits::FOUND_CHARS_MAX;
use serde_json::Value;

use crate::limits::SCHEMA_REFERENCES_MAX;

/// The way in which a cell is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CellKind {
    /// A string, as it stands.
    Text,
    Integer,
    Number,
    Boolean,
    /// An array or an object, as JSON.
    Json,
    /// The schema does not say: JSON if it can be read as JSON, else a string.
    Any,
}

impl CellKind {
    /// Returns the kind of a property of the schema `root`.
    pub(super) fn of_property(root: &Value, property: &Value) -> Self {
        let mut types = BTreeSet::new();
        collect_types(root, property, SCHEMA_REFERENCES_MAX, &mut types);
        types.remove("null");
        let types: Vec<&str> = types.into_iter().collect();
        match types.as_slice() {
            ["string"] => Self::Text,
            ["integer"] => Self::Integer,
            ["number"] | ["integer", "number"] => Self::Number,
            ["boolean"] => Self::Boolean,
            ["array"] | ["object"] | ["array", "object"] => Self::Json,
            _ => Self::Any,
        }
    }

    /// Reads a cell that is not empty.
    pub(super) fn read(self, cell: &str) -> Result<Value, String> {
        let fault = |what: &str| format!("{} is not {what}", shown(cell));
        match self {
            Self::Text => Ok(Value::String(cell.to_owned())),
            Self::Integer | Self::Number => {
                let what = if self == Self::Integer { "an integer" } else { "a number" };
                let number = json::read(cell.trim()).ok().filter(Value::is_number).ok_or_else(|| fault(what))?;
                if self == Self::Integer && !(number.is_i64() || number.is_u64()) {
                    return Err(fault(what));
                }
                Ok(number)
            }
            Self::Boolean => match cell.trim().to_ascii_lowercase().as_str() {
                "true" => Ok(Value::Bool(true)),
                "false" => Ok(Value::Bool(false)),
                _ => Err(fault("true or false")),
            },
            Self::Json => json::read(cell).map_err(|error| format!("{} is not JSON: {error}", shown(cell))),
            Self::Any => Ok(json::read(cell).unwrap_or_else(|_| Value::String(cell.to_owned()))),
        }
    }
}

/// Returns the beginning of a cell, for a message.
fn shown(cell: &str) -> String {
    let mut text: String = cell.chars().take(FOUND_CHARS_MAX).collect();
    if cell.chars().nth(FOUND_CHARS_MAX).is_some() {
        text.push_str("...");
    }
    format!("{text:?}")
}

/// Collects the names of the JSON types that a schema allows, as far as it says so.
fn collect_types<'a>(root: &'a Value, schema: &'a Value, references: usize, types: &mut BTreeSet<&'a str>) {
    if references == 0 {
        return;
    }
    if let Some(named) = schema.get("$ref").and_then(Value::as_str).and_then(|named| named.strip_prefix('#')) {
        if let Some(target) = root.pointer(named) {
            collect_types(root, target, references - 1, types);
        }
        return;
    }
    match schema.get("type") {
        Some(Value::String(name)) => {
            types.insert(name);
            return;
        }
        Some(Value::Array(names)) => {
            types.extend(names.iter().filter_map(Value::as_str));
            return;
        }
        Some(_) | None => {}
    }
    let values = schema.get("enum").and_then(Value::as_array).into_iter().flatten().chain(schema.get("const"));
    for value in values {
        types.insert(type_name(value));
    }
    for choices in ["anyOf", "oneOf", "allOf"] {
        for choice in schema.get(choices).and_then(Value::as_array).into_iter().flatten() {
            collect_types(root, choice, references - 1, types);
        }
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cell_is_read_by_the_type_of_its_property() {
        let root = json!({"$defs": {"level": {"enum": [1, 2, 3]}, "loop": {"$ref": "#/$defs/loop"}}});
        for (property, cell, value) in [
            (json!({"type": "string"}), " 007 ", Some(json!(" 007 "))),
            (json!({"type": "string"}), "true", Some(json!("true"))),
            (json!({"type": "integer"}), " 12 ", Some(json!(12))),
            (json!({"type": "integer"}), "1.5", None),
            (json!({"type": "integer"}), "9007199254740993", None),
            (json!({"type": "number"}), "1.5", Some(json!(1.5))),
            (json!({"type": "number"}), "one", None),
            (json!({"type": ["number", "null"]}), "2", Some(json!(2))),
            (json!({"type": "boolean"}), "TRUE", Some(json!(true))),
            (json!({"type": "boolean"}), "yes", None),
            (json!({"type": "array"}), "[\"a\"]", Some(json!(["a"]))),
            (json!({"type": "array"}), "a;b", None),
            (json!({"type": "object"}), "{\"a\":1}", Some(json!({"a": 1}))),
            (json!({"enum": ["1", "2"]}), "1", Some(json!("1"))),
            (json!({"$ref": "#/$defs/level"}), "1", Some(json!(1))),
            (json!({"$ref": "#/$defs/loop"}), "1", Some(json!(1))),
            (json!({"anyOf": [{"type": "string"}, {"type": "null"}]}), "1", Some(json!("1"))),
            (json!({}), "{\"a\":1}", Some(json!({"a": 1}))),
            (json!({}), "plain words", Some(json!("plain words"))),
        ] {
            let read = CellKind::of_property(&root, &property).read(cell);
            assert_eq!(read.ok(), value, "{property} {cell:?}");
        }
    }
}
