//! A tool as a gate.

use std::sync::Arc;

use cantrip_circle::Label;
use cantrip_circle::gate::{Call, Gate, GateSpec, Schema};
use cantrip_reply::{Refusal, ReplyDraft, Success, codes};

use super::connections::{ConnectionHandle, run_on_runtime};
use super::{Tool, result};

pub(super) struct ToolGate {
    promises: GateSpec,
    tool: Tool,
    /// The schema that the tool declares for its results.
    result: Option<Schema>,
    held: ConnectionHandle,
}

impl ToolGate {
    pub(super) fn new(name: String, tool: &Tool, held: ConnectionHandle) -> Result<Self, String> {
        let unusable = |fault: cantrip_circle::gate::SchemaFault| {
            format!("the schema of its tool {} cannot be used {fault}", tool.name)
        };
        Schema::compile_arguments(tool.parameters.clone()).map_err(unusable)?;
        let result = tool.result.clone().map(Schema::compile).transpose().map_err(unusable)?;
        let promises = GateSpec::new(name, tool.description.clone(), tool.parameters.clone()).labels(Label::ALL);
        Ok(Self { promises, tool: tool.clone(), result, held })
    }
}

impl Gate for ToolGate {
    fn spec(&self) -> &GateSpec {
        &self.promises
    }

    async fn call(&self, call: Call) -> Result<ReplyDraft<Success>, Refusal> {
        let (link, tool) = (Arc::clone(self.held.link()), self.tool.clone());
        let (arguments, listener) = (call.arguments, call.listener);
        let asking = async move { link.call(&tool, arguments, listener).await };
        let answered = run_on_runtime(&self.promises.name, asking).await?;
        let name = &self.promises.name;
        if answered.is_error.unwrap_or(false) {
            return Err(codes::gate_reported(name, result::result_text(&answered)).into());
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
        let shown = result::render_result(answered, &call.effects);
        Ok(codes::gate_ok(name).value(shown))
    }
}
