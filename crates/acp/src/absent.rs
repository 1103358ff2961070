//! The agent for editors in a build without the feature `protocol`: every part is there for the binary to name, and none
//! can be used.
//!
//! A stand-in keeps the binary free of conditions. The feature is chosen in one place, and a test build, which has it,
//! compiles the same binary.

use cantrip_serve::SpellHost;
use cantrip_service::cantrip::circle::gate::Identity;
use cantrip_service::cantrip::circle::gate::builtin::{AskError, Human, Question};
use cantrip_service::cantrip::loom::Actor;
use cantrip_service::cantrip::reply::{Refusal, codes};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::session_store::SessionStore;

const NOT_BUILT: &str = "this program was built without the feature acp; build it with --features full";

/// Refuses: this build cannot talk to an editor.
pub fn check_built() -> Result<(), Refusal> {
    Err(codes::target_unusable("cantrip acp", NOT_BUILT).into())
}

/// The user at an editor, whom no question reaches.
#[derive(Debug, Clone, Default)]
pub struct EditorUser;

impl Human for EditorUser {
    async fn ask(&self, _: Option<&Identity>, _: Question) -> Result<String, AskError> {
        Err(AskError::Failed { cause: NOT_BUILT.to_owned() })
    }
}

/// The agent, which serves nobody.
#[derive(Debug, Clone)]
pub struct Agent;

/// The reason why no editor is served.
#[derive(Debug)]
pub struct NotBuilt {
    pub message: String,
}

impl Agent {
    /// Creates an agent that serves nobody.
    pub fn new(_: SpellHost, _: impl SessionStore + 'static, _: EditorUser, _: Actor) -> Self {
        Self
    }

    /// Fails at once.
    pub async fn serve(self, _: impl AsyncRead, _: impl AsyncWrite) -> Result<(), NotBuilt> {
        Err(NotBuilt { message: NOT_BUILT.to_owned() })
    }
}
