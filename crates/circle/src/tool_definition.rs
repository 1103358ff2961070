//! How is a gate shown to a crystal?

use serde::Serialize;
use serde_json::Value;

/// A tool as a crystal is offered it. The keys stand in this order, and the bytes are the same on every request.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolDefinition {
    pub name: String,
    pub description: String,
    /// The JSON Schema of its arguments.
    pub parameters: Value,
}

impl ToolDefinition {
    /// As the root record keeps it.
    pub fn to_value(&self) -> Value {
        let Self { name, description, parameters } = self;
        serde_json::json!({"name": name, "description": description, "parameters": parameters})
    }
}
