//! The medium `shell`: gates as tools, with the shell before all others.

use cantrip_loom::{GateCall, Mode};
use cantrip_reply::Refusal;

use super::SHELL;
use crate::medium::{Conversation, Isolation, Medium, Presentation, Sandbox, Taken};
use crate::{Circle, MediumKind};

/// Serves circles whose medium is a shell. The circle holds the gate `shell`; what an entity's bash keeps is in the
/// gate's belongings, so there is no sandbox beside it.
#[derive(Debug, Clone, Copy, Default)]
pub struct ShellMedium;

impl Medium for ShellMedium {
    fn kind(&self) -> MediumKind {
        MediumKind::Shell
    }

    fn present(&self, circle: &Circle, mode: Mode) -> Presentation {
        let mut shown = Conversation.present(circle, mode);
        // A stable sort: the others keep their order.
        shown.tools.sort_by_key(|tool| tool.name != SHELL);
        shown
    }

    fn take(&self, _: &Circle, call: &GateCall) -> Taken {
        Taken::Gate(call.args.clone())
    }

    fn isolate(&self, _: &Circle, _: Isolation) -> Result<Option<Box<dyn Sandbox>>, Refusal> {
        Ok(None)
    }
}
