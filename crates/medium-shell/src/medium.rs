//! The medium `shell`: gates as tools, with the shell first.

use cantrip_circle::medium::{CallTarget, Conversation, Medium, Presentation, Sandbox, SandboxOptions};
use cantrip_circle::{Circle, MediumKind};
use cantrip_loom::{GateCall, ToolMode};
use cantrip_reply::Refusal;

use super::SHELL;

/// Serves circles whose medium is a shell. The circle contains the gate `shell`, and the state of an entity's bash is
/// kept in the session state of that gate, so there is no separate sandbox.
#[derive(Debug, Clone, Copy, Default)]
pub struct ShellMedium;

impl Medium for ShellMedium {
    fn kind(&self) -> MediumKind {
        MediumKind::Shell
    }

    fn present(&self, circle: &Circle, mode: ToolMode) -> Presentation {
        let mut shown = Conversation.present(circle, mode);
        // The sort is stable: the other tools keep their order.
        shown.tools.sort_by_key(|tool| tool.name != SHELL);
        shown
    }

    fn interpret(&self, _: &Circle, call: &GateCall) -> CallTarget {
        CallTarget::Gate(call.args.clone())
    }

    fn isolate(&self, _: &Circle, _: SandboxOptions) -> Result<Option<Box<dyn Sandbox>>, Refusal> {
        Ok(None)
    }
}
