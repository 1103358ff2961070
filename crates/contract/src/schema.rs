//! Does this value match its schema, and if not, where and why?

use cantrip_schema::ValidationError;
use serde_json::Value;

use crate::limits::{FOUND_CHARS_MAX, VIOLATIONS_MAX};

/// A compiled JSON Schema: of the input or the output of a signature, which are objects, or of a spell's answer.
#[derive(Debug)]
pub struct Schema(cantrip_schema::Schema);

/// The reason why a schema cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaFault {
    #[error(transparent)]
    Uncompilable(#[from] cantrip_schema::SchemaFault),
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
    /// Compiles a schema whose root is an object. It may refer only to itself: nothing is ever fetched.
    pub fn compile(written: Value) -> Result<Self, SchemaFault> {
        if !cantrip_schema::Schema::is_of_object(&written) {
            return Err(SchemaFault::NotAnObject);
        }
        Ok(Self(cantrip_schema::Schema::compile_2020_12(written)?))
    }

    /// Compiles a schema of any value, such as the answer of a spell. It may refer only to itself too.
    pub fn compile_any(written: Value) -> Result<Self, SchemaFault> {
        Ok(Self(cantrip_schema::Schema::compile(written)?))
    }

    pub fn source(&self) -> &Value {
        self.0.source()
    }

    /// Returns all mismatches; empty if the value is valid.
    pub fn violations(&self, value: &Value) -> Vec<Violation> {
        self.0.violations(value, VIOLATIONS_MAX, violation).expect("a schema that was read as a simple one compiles")
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
