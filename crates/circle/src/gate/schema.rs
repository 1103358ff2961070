//! Do these arguments match the schema of their gate?

use cantrip_reply::{Refusal, codes};
use cantrip_schema::{ValidationError, ValidationErrorKind};
use serde_json::Value;

use crate::arguments::Property;
use crate::limits::{SCHEMA_REFS_MAX, VIOLATIONS_MAX};

/// The compiled schema of a gate's arguments, or of an answer.
#[derive(Debug)]
pub struct Schema(cantrip_schema::Schema);

/// The reason why a schema cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaFault {
    #[error(transparent)]
    Uncompilable(#[from] cantrip_schema::SchemaFault),
    #[error("the arguments of a gate are an object, so its schema must say type: object")]
    NotAnObject,
}

/// One violation of a schema.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Violation {
    /// A JSON Pointer into the value that was checked.
    pub path: String,
    pub rule: String,
}

impl Schema {
    /// Compiles any schema. It may refer to itself, and to nothing else.
    pub fn compile(written: Value) -> Result<Self, SchemaFault> {
        Ok(Self(cantrip_schema::Schema::compile(written)?))
    }

    /// Compiles the schema of a gate's arguments.
    pub fn compile_arguments(written: Value) -> Result<Self, SchemaFault> {
        if !cantrip_schema::Schema::is_of_object(&written) {
            return Err(SchemaFault::NotAnObject);
        }
        Self::compile(written)
    }

    pub fn source(&self) -> &Value {
        self.0.source()
    }

    /// Returns the properties in declared order.
    pub fn properties(&self) -> Vec<Property> {
        let declared = self.source().get("properties").and_then(Value::as_object);
        let property = |(name, schema): (&String, &Value)| {
            Property::new(name, admits_object(schema, self.source(), SCHEMA_REFS_MAX))
        };
        declared.into_iter().flatten().map(property).collect()
    }

    /// Returns the violations, missing arguments first.
    pub fn violations(&self, value: &Value) -> Vec<Violation> {
        let found = match self.0.violations(value, VIOLATIONS_MAX, violation) {
            Ok(found) => found,
            Err(fault) => return vec![Violation { path: String::new(), rule: fault.to_string() }],
        };
        let (missing, other): (Vec<_>, Vec<_>) = found.into_iter().partition(|(missing, _)| *missing);
        missing.into_iter().chain(other).map(|(_, violation)| violation).collect()
    }

    /// Refuses arguments that break the schema, with the place of the first violation.
    pub fn check(&self, gate: &str, arguments: &Value) -> Result<(), Refusal> {
        match self.violations(arguments).into_iter().next() {
            None => Ok(()),
            Some(Violation { path, rule }) => Err(codes::schema(format!("arguments of {gate}"), path, rule).into()),
        }
    }
}

/// Returns the violation, and true if an argument is missing. The value is not repeated: it may be long, or secret.
fn violation(error: &ValidationError<'_>) -> (bool, Violation) {
    let path = error.instance_path().to_string();
    if let ValidationErrorKind::Required { property } = error.kind() {
        let name = property.as_str().unwrap_or_default().replace('~', "~0").replace('/', "~1");
        return (true, Violation { path: format!("{path}/{name}"), rule: "missing required argument".to_owned() });
    }
    (false, Violation { path, rule: error.masked().to_string() })
}

/// Returns true if a value of this schema may be an object, and also in doubt: then an object counts as named arguments
/// only if its keys match.
fn admits_object(schema: &Value, root: &Value, refs_left: usize) -> bool {
    let Value::Object(schema) = schema else { return schema != &Value::Bool(false) };
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        let target = reference.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        return match (target, refs_left) {
            (Some(target), 1..) => admits_object(target, root, refs_left - 1),
            (Some(_), 0) | (None, _) => true,
        };
    }
    for several in ["anyOf", "oneOf"] {
        if let Some(Value::Array(options)) = schema.get(several) {
            return options.iter().any(|option| admits_object(option, root, refs_left));
        }
    }
    if let Some(Value::Array(values)) = schema.get("enum") {
        return values.iter().any(Value::is_object);
    }
    if let Some(value) = schema.get("const") {
        return value.is_object();
    }
    match schema.get("type") {
        None => true,
        Some(Value::String(only)) => only == "object",
        Some(Value::Array(several)) => several.iter().any(|one| one == "object"),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) => true,
    }
}
