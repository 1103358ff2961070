//! The medium `shell`: gates as tools, with the shell before all others.

use cantrip_loom::{GateCall, ToolMode};
use cantrip_reply::Refusal;

use super::SHELL;
use crate::medium::{CallTarget, Conversation, Medium, Presentation, Sandbox, SandboxOptions};
use crate::{Circle, MediumKind};

/// Serves circles whose medium is a shell. The circle holds the gate `shell`; what an entity's bash keeps is in the
/// gate's belongings, so there is no sandbox beside it.
#[derive(Debug, Clone, Copy, Default)]
pub struct ShellMedium;

impl Medium for ShellMedium {
    fn kind(&self) -> MediumKind {
        MediumKind::Shell
    }

    fn present(&self, circle: &Circle, mode: ToolMode) -> Presentation {
        let mut shown = Conversation.present(circle, mode);
        // A stable sort: the others keep their order.
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
