//! `done`: ends the cast of an entity, with any value as its answer.

use cantrip_reply::codes;
use serde_json::json;

use crate::gate::function::immediate_gate;
use crate::gate::{AnyGate, GateSpec, Purity};

/// The one gate that every circle has. The circle itself reads the answer; the gate executes nothing.
pub fn done() -> AnyGate {
    let parameters = json!({
        "type": "object",
        "properties": {"answer": {"description": "The answer: any JSON value."}},
        "required": ["answer"],
        "additionalProperties": false,
    });
    let description = "Ends the task with its answer. Nothing after it is executed.";
    let promises = GateSpec::new("done", description, parameters).purity(Purity::Pure);
    immediate_gate(promises, |name, mut call| {
        Ok(codes::gate_ok(name).value(call.arguments.remove("answer").unwrap_or_default()))
    })
}
