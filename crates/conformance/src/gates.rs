//! The gates of a case: built-in gates by name, and gates that the case defines itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cantrip::OwnThreadReader;
use cantrip_circle::gate::builtin::{self, Fetch, Root};
use cantrip_circle::gate::{Call, GateSpec};
use cantrip_circle::{AnyGate, Gate};
use cantrip_loom::AnyLoom;
use cantrip_reply::{Refusal, ReplyDraft, Success, codes};
use serde_json::json;

use crate::setup::{FixtureSetup, GateSetup};

/// The number of times that a gate of the case was entered.
pub(crate) type Executions = Arc<AtomicU64>;

/// Returns the built-in gate of this name, if there is one.
pub(crate) fn built_in(name: &str, root: Option<Root>, store: &AnyLoom) -> Option<AnyGate> {
    Some(match name {
        "done" => builtin::done(),
        "echo" => builtin::echo(),
        "call_agent" | "call_entity" => builtin::call_agent(),
        "call_agent_batch" | "call_entity_batch" => builtin::call_agent_batch(),
        "read" => builtin::read(root),
        "write" => builtin::write(root),
        "list" => builtin::list(root),
        "search" => builtin::search(root),
        "edit" => builtin::edit(root),
        "fetch" => Fetch::default().gate(),
        "loom" => builtin::loom(OwnThreadReader::new(store.clone())),
        _ => return None,
    })
}

/// Applies the settings of the case to a gate, built-in or not.
pub(crate) fn configure_gate(gate: AnyGate, setup: &GateSetup) -> AnyGate {
    let gate = match &setup.parameters {
        Some(parameters) => gate.parameters(parameters.clone()),
        None => gate,
    };
    match setup.ephemeral {
        Some(ephemeral) => gate.ephemeral(ephemeral),
        None => gate,
    }
}

/// A gate that the case defines.
pub(crate) struct Fixture {
    promises: GateSpec,
    behaves: FixtureSetup,
    executions: Executions,
}

impl Fixture {
    pub(crate) fn new(name: &str, behaves: FixtureSetup, executions: Executions) -> Self {
        let promises = GateSpec::new(name, "A gate of this case.", json!({"type": "object"}));
        Self { promises, behaves, executions }
    }
}

impl Gate for Fixture {
    fn spec(&self) -> &GateSpec {
        &self.promises
    }

    async fn call(&self, _: Call) -> Result<ReplyDraft<Success>, Refusal> {
        let count = self.executions.fetch_add(1, Ordering::SeqCst) + 1;
        let FixtureSetup { delay, result, throws, stateful } = &self.behaves;
        if !delay.is_zero() {
            tokio::time::sleep(*delay).await;
        }
        if let Some(error) = throws {
            return Err(codes::gate_failed(&self.promises.name, error).into());
        }
        let value = if *stateful { json!(count) } else { result.clone() };
        Ok(codes::gate_ok(&self.promises.name).value(value))
    }
}
