//! JSON Schemas: compiled once, with the place of each violation.
//!
//! A schema is compiled once, when its gate or its signature is read. A schema that cannot be compiled, or that refers
//! outside of itself, is a fault of its author and never of a value. Patterns run on an engine with linear time: the
//! author of a value must not be able to make its validation run forever.

pub mod limits;
mod simple_schema;

use std::fmt;
use std::sync::OnceLock;

use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::Value;

pub use jsonschema::ValidationError;
pub use jsonschema::error::ValidationErrorKind;

use simple_schema::SimpleSchema;

/// A compiled JSON Schema.
pub struct Schema {
    source: Value,
    draft: Option<Draft>,
    simple: Option<SimpleSchema>,
    /// The validator. It is compiled with the schema, or, for a simple schema, for the first value that does not match.
    engine: OnceLock<Result<Validator, SchemaFault>>,
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Schema").field(&self.source).finish()
    }
}

/// The place in a schema that cannot be compiled, and the fault there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at {path:?}: {detail}")]
pub struct SchemaFault {
    pub path: String,
    pub detail: String,
}

impl Schema {
    /// Compiles a schema of the draft that it names, or of the newest one. It may refer to itself, and to nothing else.
    pub fn compile(written: Value) -> Result<Self, SchemaFault> {
        Self::compile_as(written, None)
    }

    /// Compiles a schema of the draft 2020-12, whatever draft it names.
    pub fn compile_2020_12(written: Value) -> Result<Self, SchemaFault> {
        Self::compile_as(written, Some(Draft::Draft202012))
    }

    fn compile_as(written: Value, draft: Option<Draft>) -> Result<Self, SchemaFault> {
        let simple = SimpleSchema::read(&written);
        let schema = Self { simple, draft, engine: OnceLock::new(), source: written };
        match &schema.simple {
            Some(_) => Ok(schema),
            None => match schema.engine() {
                Ok(_) => Ok(schema),
                Err(fault) => Err(fault.clone()),
            },
        }
    }

    fn engine(&self) -> &Result<Validator, SchemaFault> {
        self.engine.get_or_init(|| {
            let options = jsonschema::options().offline().with_pattern_options(PatternOptions::regex());
            let options = if let Some(draft) = self.draft { options.with_draft(draft) } else { options };
            options.build(&self.source).map_err(|fault| SchemaFault {
                path: fault.instance_path().to_string(),
                detail: fault.masked().to_string(),
            })
        })
    }

    /// Returns true if the root of the schema says that a value is an object.
    pub fn is_of_object(written: &Value) -> bool {
        written.get("type").and_then(Value::as_str) == Some("object")
    }

    pub fn source(&self) -> &Value {
        &self.source
    }

    /// Returns the first `most` violations of a value, each as `describe` puts it; empty if the value is valid.
    pub fn violations<T>(
        &self,
        value: &Value,
        most: usize,
        describe: impl Fn(&ValidationError<'_>) -> T,
    ) -> Result<Vec<T>, SchemaFault> {
        // Most values are valid, and that is found without building a list.
        if self.simple.as_ref().is_some_and(|simple| simple.admits(value)) {
            return Ok(Vec::new());
        }
        let validator = self.engine().as_ref().map_err(SchemaFault::clone)?;
        if validator.is_valid(value) {
            return Ok(Vec::new());
        }
        Ok(validator.iter_errors(value).take(most).map(|error| describe(&error)).collect())
    }
}
