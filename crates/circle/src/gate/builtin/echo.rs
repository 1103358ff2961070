//! `echo`: gives back what it was given.

use cantrip_reply::{Filled, Refusal, Success, codes};
use serde_json::json;

use crate::gate::{AnyGate, Call, Gate, Promises, Purity};

/// A gate that does nothing, for trying things out.
pub fn echo() -> AnyGate {
    let parameters = json!({
        "type": "object",
        "properties": {"text": {"description": "Any JSON value."}},
        "required": ["text"],
        "additionalProperties": false,
    });
    AnyGate::from(Echo { promises: Promises::new("echo", "Returns its argument.", parameters).purity(Purity::Pure) })
}

struct Echo {
    promises: Promises,
}

impl Gate for Echo {
    fn promises(&self) -> &Promises {
        &self.promises
    }

    async fn call(&self, mut call: Call) -> Result<Filled<Success>, Refusal> {
        let text = call.arguments.remove("text").unwrap_or_default();
        Ok(codes::gate_ok(&self.promises.name).value(text))
    }
}
