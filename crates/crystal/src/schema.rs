//! How is a JSON Schema written for a provider that supports only a part of the language?
//!
//! A provider rejects a request whose schema has a keyword that it does not know. The caller checks the answer against
//! the full schema in either case, so keywords that are left out here still hold.

use serde_json::{Map, Value, json};

/// Combinations that the parameters of a tool must not have at the top level, because they are one object.
const COMBINATIONS: [&str; 5] = ["oneOf", "anyOf", "allOf", "not", "enum"];

/// Returns the parameters of a tool for a provider that accepts only an object at the top level.
pub(crate) fn plain_object(parameters: &Value) -> Value {
    let mut object = parameters.clone();
    if let Value::Object(object) = &mut object {
        COMBINATIONS.iter().for_each(|keyword| {
            object.shift_remove(*keyword);
        });
        object.entry("type").or_insert_with(|| "object".into());
    }
    object
}

/// The keywords that Gemini documents for `parametersJsonSchema` and `responseJsonSchema`.
const GEMINI: [&str; 21] = [
    "$id",
    "$defs",
    "$ref",
    "$anchor",
    "type",
    "format",
    "title",
    "description",
    "enum",
    "items",
    "prefixItems",
    "minItems",
    "maxItems",
    "minimum",
    "maximum",
    "anyOf",
    "oneOf",
    "properties",
    "additionalProperties",
    "required",
    "propertyOrdering",
];

/// The formats of strings and numbers that Gemini accepts. It rejects a request with another one.
const GEMINI_FORMATS: [&str; 7] = ["date-time", "date", "time", "int32", "int64", "float", "double"];

/// Returns the schema in the keywords that Gemini supports. Other keywords move into the description.
pub(crate) fn for_gemini(schema: &Value) -> Value {
    let Value::Object(object) = schema else { return schema.clone() };
    let (mut kept, mut left) = (Map::new(), Map::new());
    // Gemini allows no other keyword beside a reference.
    let refers = object.contains_key("$ref");
    for (keyword, value) in object {
        let is_known_format = || value.as_str().is_some_and(|format| GEMINI_FORMATS.contains(&format));
        match keyword.as_str() {
            "format" if !refers && !is_known_format() => {
                left.insert(keyword.clone(), value.clone());
            }
            known if GEMINI.contains(&known) && (!refers || known.starts_with('$')) => {
                kept.insert(keyword.clone(), with_schemas(keyword, value));
            }
            "const" if !refers => {
                kept.insert("enum".to_owned(), json!([value]));
            }
            "$schema" | "$comment" | "examples" => {}
            _ if refers => {}
            _ => {
                left.insert(keyword.clone(), value.clone());
            }
        }
    }
    describe_dropped(&mut kept, left);
    kept.into()
}

/// Returns the value of a keyword, with each schema in it converted for Gemini.
fn with_schemas(keyword: &str, value: &Value) -> Value {
    match (keyword, value) {
        ("properties" | "$defs", Value::Object(named)) => {
            named.iter().map(|(name, schema)| (name.clone(), for_gemini(schema))).collect::<Map<_, _>>().into()
        }
        ("anyOf" | "oneOf" | "prefixItems", Value::Array(schemas)) => {
            schemas.iter().map(for_gemini).collect::<Vec<_>>().into()
        }
        ("items" | "additionalProperties", schema @ Value::Object(_)) => for_gemini(schema),
        (_, value) => value.clone(),
    }
}

/// The string formats that Anthropic can enforce.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"];

/// Returns the schema in the form that Anthropic can enforce, or none if it cannot: an object with unknown property
/// names, a recursive schema, or a place without any constraint.
pub(crate) fn for_anthropic(schema: &Value) -> Option<Value> {
    if is_recursive(schema) { None } else { close_schema(schema) }
}

fn close_schema(schema: &Value) -> Option<Value> {
    let object = schema.as_object()?;
    let mut kept = Map::new();
    if let Some(Value::Object(named)) = object.get("$defs") {
        let named: Option<Map<String, Value>> =
            named.iter().map(|(name, schema)| Some((name.clone(), close_schema(schema)?))).collect();
        kept.insert("$defs".to_owned(), named?.into());
    }
    if let Some(reference) = object.get("$ref") {
        kept.insert("$ref".to_owned(), reference.clone());
        return Some(kept.into());
    }
    let mut left = Map::new();
    for (keyword, value) in object {
        match (keyword.as_str(), value) {
            ("$defs" | "$schema" | "$comment" | "examples" | "additionalProperties", _) => {}
            ("type" | "title" | "description" | "required" | "const", _) => {
                kept.insert(keyword.clone(), value.clone());
            }
            ("enum", Value::Array(values)) if values.iter().all(|value| !value.is_object() && !value.is_array()) => {
                kept.insert(keyword.clone(), value.clone());
            }
            ("anyOf" | "oneOf" | "allOf", Value::Array(variants)) => {
                let variants: Option<Vec<Value>> = variants.iter().map(close_schema).collect();
                let keyword = if keyword == "allOf" { "allOf" } else { "anyOf" };
                kept.insert(keyword.to_owned(), variants?.into());
            }
            ("properties", Value::Object(properties)) => {
                let properties: Option<Map<String, Value>> =
                    properties.iter().map(|(name, schema)| Some((name.clone(), close_schema(schema)?))).collect();
                kept.insert(keyword.clone(), properties?.into());
            }
            ("items", items) => {
                kept.insert(keyword.clone(), close_schema(items)?);
            }
            ("minItems", number) if matches!(number.as_u64(), Some(0 | 1)) => {
                kept.insert(keyword.clone(), value.clone());
            }
            ("format", Value::String(format)) if FORMATS.contains(&format.as_str()) => {
                kept.insert(keyword.clone(), value.clone());
            }
            _ => {
                left.insert(keyword.clone(), value.clone());
            }
        }
    }
    let says = ["type", "anyOf", "allOf", "enum", "const"].iter().any(|keyword| kept.contains_key(*keyword));
    let is_object = kept.get("type").is_some_and(|kind| kind == "object");
    let open = object.get("additionalProperties").is_some_and(|more| more != &Value::Bool(false));
    if !says || (is_object && (open || !kept.contains_key("properties"))) {
        return None;
    }
    if is_object {
        kept.insert("additionalProperties".to_owned(), false.into());
    }
    describe_dropped(&mut kept, left);
    Some(kept.into())
}

/// Returns true if a definition refers to itself, directly or through others.
fn is_recursive(schema: &Value) -> bool {
    fn references(schema: &Value, found: &mut Vec<String>) {
        match schema {
            Value::Object(object) => {
                found.extend(object.get("$ref").and_then(Value::as_str).map(str::to_owned));
                object
                    .iter()
                    .filter(|(keyword, _)| *keyword != "$defs")
                    .for_each(|(_, value)| references(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| references(value, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let mut due = Vec::new();
    references(schema, &mut due);
    if due.iter().any(|reference| !reference.starts_with("#/$defs/")) {
        return true;
    }
    // Follows the references from each definition: a definition that is reached again is recursive.
    let named = schema["$defs"].as_object().cloned().unwrap_or_default();
    named.keys().any(|start| {
        let mut seen = Vec::new();
        let mut due = vec![format!("#/$defs/{start}")];
        while let Some(reference) = due.pop() {
            let name = reference.trim_start_matches("#/$defs/").to_owned();
            let mut next = Vec::new();
            references(named.get(&name).unwrap_or(&Value::Null), &mut next);
            if next.iter().any(|next| next.trim_start_matches("#/$defs/") == start) {
                return true;
            }
            if !seen.contains(&name) {
                seen.push(name);
                due.append(&mut next);
            }
        }
        false
    })
}

/// Adds dropped keywords to the description.
fn describe_dropped(kept: &mut Map<String, Value>, left: Map<String, Value>) {
    if left.is_empty() {
        return;
    }
    let rest = Value::Object(left).to_string();
    let told = match kept.get("description").and_then(Value::as_str) {
        Some(description) => format!("{description}\n{rest}"),
        None => rest,
    };
    kept.insert("description".to_owned(), told.into());
}
