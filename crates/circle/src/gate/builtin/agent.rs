//! `call_agent` and `call_agent_batch`: the definitions of the delegation gates.
//!
//! The circle parses their arguments and returns an effect; the loop casts the children. The executors here are entered
//! only for an empty batch, whose answer is known.

use cantrip_reply::codes;
use serde_json::{Value, json};

use crate::gate::function::immediate_gate;
use crate::gate::{AnyGate, GateSpec};

/// Casts a child on a derived intent and waits for its answer.
pub fn call_agent() -> AnyGate {
    let mut parameters = request_parameters();
    parameters["required"] = json!(["intent"]);
    parameters["additionalProperties"] = json!(false);
    let description = "Casts a child entity on an intent of its own and returns its answer. The child has its own \
                       context and sees nothing of this one but the intent and `context`.";
    delegation_gate(GateSpec::new("call_agent", description, parameters))
}

/// Casts several children at once and returns their answers in request order.
pub fn call_agent_batch() -> AnyGate {
    let mut request = request_parameters();
    request["type"] = json!(["string", "object"]);
    let parameters = json!({
        "type": "object",
        "properties": {"requests": {
            "type": "array",
            "description": "Intents, or objects with the arguments of call_agent.",
            "items": request,
        }},
        "required": ["requests"],
        "additionalProperties": false,
    });
    let description = "Casts several child entities at once and returns their answers in request order; a child that \
                       failed is an object with `error` in its place.";
    delegation_gate(GateSpec::new("call_agent_batch", description, parameters))
}

/// Returns the schema of the request for one child, with properties in declared order.
fn request_parameters() -> Value {
    json!({
        "type": "object",
        "properties": {
            "intent": {"type": "string", "description": "What the child is to do."},
            "context": {"description": "Data for the child, any JSON value."},
            "system_prompt": {"type": ["string", "null"], "description": "Yours unless given; null for none."},
            "gates": {"type": "array", "items": {"type": "string"}, "description": "Those of your gates it may use."},
            "wards": {"type": ["object", "array"], "description": "Further limits."},
            "max_turns": {"type": "integer", "minimum": 1},
            "max_depth": {"type": "integer", "minimum": 0},
            "crystal": {"type": "string", "description": "Another model, where one is offered."},
            "medium": {"type": "string", "description": "Another medium, where one is offered."},
        },
    })
}

fn delegation_gate(promises: GateSpec) -> AnyGate {
    immediate_gate(promises, |name, _| Ok(codes::gate_ok(name).value(Value::Array(Vec::new()))))
}
