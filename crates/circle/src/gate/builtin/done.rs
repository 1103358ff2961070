//! `done`: ends the cast of an entity, with any value as its answer.

use cantrip_reply::{Refusal, ReplyDraft, Success, codes};
use serde_json::json;

use crate::gate::{AnyGate, Call, Gate, GateSpec, Purity};

/// The one gate that every circle has. The circle itself reads the answer; the gate executes nothing.
pub fn done() -> AnyGate {
    let parameters = json!({
        "type": "object",
        "properties": {"answer": {"description": "The answer: any JSON value."}},
        "required": ["answer"],
        "additionalProperties": false,
    });
    let description = "Ends the task with its answer. Nothing after it is executed.";
    AnyGate::from(Done { promises: GateSpec::new("done", description, parameters).purity(Purity::Pure) })
}

struct Done {
    promises: GateSpec,
}

impl Gate for Done {
    fn spec(&self) -> &GateSpec {
        &self.promises
    }

    async fn call(&self, mut call: Call) -> Result<ReplyDraft<Success>, Refusal> {
        let answer = call.arguments.remove("answer").unwrap_or_default();
        Ok(codes::gate_ok(&self.promises.name).value(answer))
    }
}
