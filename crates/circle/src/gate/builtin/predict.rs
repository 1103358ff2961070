//! `predict`: the definition of the gate that runs a predict with a signature.
//!
//! The circle parses its arguments and returns an effect; the loop runs the predict, as a child below the calling turn.
//! The executor here is never entered.

use cantrip_reply::{Refusal, ReplyDraft, Success, codes};
use serde_json::json;

use crate::gate::{AnyGate, Call, Gate, GateSpec};

/// The name of the gate.
const PREDICT: &str = "predict";

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
    AnyGate::from(Predict { promises: GateSpec::new(PREDICT, description, parameters) })
}

struct Predict {
    promises: GateSpec,
}

impl Gate for Predict {
    fn spec(&self) -> &GateSpec {
        &self.promises
    }

    async fn call(&self, _: Call) -> Result<ReplyDraft<Success>, Refusal> {
        Err(codes::gate_failed(PREDICT, "a predict is made by the loop").into())
    }
}
