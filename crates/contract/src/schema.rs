//! Does this value match its schema, and if not, where and why?

use std::fmt;

use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::Value;

use crate::limits::{FOUND_CHARS_MAX, VIOLATIONS_MAX};

/// A compiled JSON Schema of an object: the input or the output of a signature.
pub struct Schema {
    source: Value,
    validator: Validator,
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Schema").field(&self.source).finish()
    }
}

/// The reason why a schema cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaFault {
    #[error("at {path:?}: {detail}")]
    Uncompilable { path: String, detail: String },
    #[error("a signature takes and gives objects: write type = \"object\"")]
    NotAnObject,
}

/// One mismatch, described so that a model can repair it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Violation {
    /// A JSON Pointer into the checked value.
    pub pointer: String,
    /// The keyword of the schema that the value breaks.
    pub keyword: String,
    pub expected: String,
    /// The value at this place, truncated.
    pub found: String,
}

impl Schema {
    /// Compiles a schema whose root is an object. It may refer only to itself: nothing is ever fetched. Patterns run on
    /// an engine that needs linear time.
    pub fn compile(written: Value) -> Result<Self, SchemaFault> {
        if written.get("type").and_then(Value::as_str) != Some("object") {
            return Err(SchemaFault::NotAnObject);
        }
        let options = jsonschema::options()
            .with_draft(jsonschema::Draft::Draft202012)
            .offline()
            .with_pattern_options(PatternOptions::regex());
        match options.build(&written) {
            Ok(validator) => Ok(Self { source: written, validator }),
            Err(fault) => Err(SchemaFault::Uncompilable {
                path: fault.instance_path().to_string(),
                detail: fault.masked().to_string(),
            }),
        }
    }

    pub fn source(&self) -> &Value {
        &self.source
    }

    /// Returns all mismatches; empty if the value is valid.
    pub fn violations(&self, value: &Value) -> Vec<Violation> {
        if self.validator.is_valid(value) {
            return Vec::new();
        }
        self.validator.iter_errors(value).take(VIOLATIONS_MAX).map(|error| violation(&error)).collect()
    }
}

fn violation(error: &ValidationError<'_>) -> Violation {
    let path = error.schema_path().to_string();
    let found = error.instance().to_string();
    Violation {
        pointer: error.instance_path().to_string(),
        keyword: path.rsplit('/').next().unwrap_or_default().to_owned(),
        expected: error.masked().to_string(),
        found: found.chars().take(FOUND_CHARS_MAX).collect(),
    }
}
