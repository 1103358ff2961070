//! `echo`: returns its argument.

use cantrip_reply::{Refusal, ReplyDraft, Success, codes};
use serde_json::json;

use crate::gate::{AnyGate, Call, Gate, GateSpec, Purity};

/// Makes a gate without effects, for experiments and tests.
pub fn echo() -> AnyGate {
    let parameters = json!({
        "type": "object",
        "properties": {"text": {"description": "Any JSON value."}},
        "required": ["text"],
        "additionalProperties": false,
    });
    AnyGate::from(Echo { promises: GateSpec::new("echo", "Returns its argument.", parameters).purity(Purity::Pure) })
}

struct Echo {
    promises: GateSpec,
}

impl Gate for Echo {
    fn spec(&self) -> &GateSpec {
        &self.promises
    }

    async fn call(&self, mut call: Call) -> Result<ReplyDraft<Success>, Refusal> {
        let text = call.arguments.remove("text").unwrap_or_default();
        Ok(codes::gate_ok(&self.promises.name).value(text))
    }
}
