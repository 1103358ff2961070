//! `echo`: returns its argument.

use cantrip_reply::codes;
use serde_json::json;

use crate::gate::function::immediate_gate;
use crate::gate::{AnyGate, GateSpec, Purity};

/// Makes a gate without effects, for experiments and tests.
pub fn echo() -> AnyGate {
    let parameters = json!({
        "type": "object",
        "properties": {"text": {"description": "Any JSON value."}},
        "required": ["text"],
        "additionalProperties": false,
    });
    let promises = GateSpec::new("echo", "Returns its argument.", parameters).purity(Purity::Pure);
    immediate_gate(promises, |name, mut call| {
        Ok(codes::gate_ok(name).value(call.arguments.remove("text").unwrap_or_default()))
    })
}
