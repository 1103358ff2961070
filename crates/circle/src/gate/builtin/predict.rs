//! `predict`: the definition of the gate that runs a predict with a signature.
//!
//! The circle parses its arguments and returns an effect; the loop runs the predict, as a child below the calling turn.
//! The executor here is never entered.

use cantrip_reply::codes;
use serde_json::json;

use crate::gate::function::immediate_gate;
use crate::gate::{AnyGate, GateSpec};

/// Makes a gate that runs a predict with one of these signatures, and returns an output that matches the signature.
pub fn predict(signatures: &[String]) -> AnyGate {
    let parameters = json!({
        "type": "object",
        "properties": {
            "signature": {"type": "string", "description": "The name of the signature."},
            "input": {"type": "object", "description": "The input, as the signature's schema has it."},
        },
        "required": ["signature", "input"],
        "additionalProperties": false,
    });
    let description = format!(
        "Asks a signature about an input and returns its output, which fits the signature's schema. Signatures: {}.",
        signatures.join(", ")
    );
    immediate_gate(GateSpec::new("predict", description, parameters), |name, _| {
        Err(codes::gate_failed(name, "a predict is made by the loop").into())
    })
}
