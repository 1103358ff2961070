//! The form in which a gate is shown to a crystal.

use serde::Serialize;
use serde_json::Value;

/// A tool as it is offered to a crystal. The keys have this order, and the bytes are the same on every request.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolDefinition {
    pub name: String,
    pub description: String,
    /// The JSON Schema of the arguments.
    pub parameters: Value,
}

impl ToolDefinition {
    /// Returns the tool in the form that the root record stores.
    pub fn to_value(&self) -> Value {
        let Self { name, description, parameters } = self;
        serde_json::json!({"name": name, "description": description, "parameters": parameters})
    }
}
