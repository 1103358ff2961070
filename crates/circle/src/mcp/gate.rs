//! A tool as a gate.

use std::sync::Arc;

use cantrip_reply::{Filled, Refusal, Success, codes};

use super::hold::{Held, at_home};
use super::{Tool, result};
use crate::Label;
use crate::gate::{Call, Gate, Promises, Schema};

pub(super) struct ToolGate {
    promises: Promises,
    tool: Tool,
    /// What it promises about its results.
    result: Option<Schema>,
    held: Held,
}

impl ToolGate {
    pub(super) fn new(name: String, tool: &Tool, held: Held) -> Result<Self, String> {
        let unusable =
            |fault: crate::gate::SchemaFault| format!("the schema of its tool {} cannot be used {fault}", tool.name);
        Schema::of_arguments(tool.parameters.clone()).map_err(unusable)?;
        let result = tool.result.clone().map(Schema::compile).transpose().map_err(unusable)?;
        let promises = Promises::new(name, tool.description.clone(), tool.parameters.clone()).labels(Label::ALL);
        Ok(Self { promises, tool: tool.clone(), result, held })
    }
}

impl Gate for ToolGate {
    fn promises(&self) -> &Promises {
        &self.promises
    }

    async fn call(&self, call: Call) -> Result<Filled<Success>, Refusal> {
        let (link, tool) = (Arc::clone(self.held.link()), self.tool.clone());
        let (arguments, listener) = (call.arguments, call.listener);
        let asking = async move { link.call(&tool, arguments, listener).await };
        let answered = at_home(&self.promises.name, asking).await?;
        let name = &self.promises.name;
        if answered.is_error.unwrap_or(false) {
            return Err(codes::gate_reported(name, result::words(&answered)).into());
        }
        if let Some(schema) = &self.result {
            let Some(structured) = &answered.structured_content else {
                return Err(codes::gate_failed(name, "its result lacks what its schema promises").into());
            };
            if let Some(first) = schema.violations(structured).into_iter().next() {
                let detail = format!("its result breaks its own schema at {:?}: {}", first.path, first.rule);
                return Err(codes::gate_failed(name, detail).into());
            }
        }
        let shown = result::shown(answered, &call.effects);
        Ok(codes::gate_ok(name).value(shown))
    }
}
