//! The Python medium in a build without its interpreter: it can be named, and cannot be started.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;

use cantrip_circle::code::{CodeMedium, SandboxSpec};
use cantrip_circle::medium::Sandbox;
use cantrip_circle::{Circle, MediumKind};
use cantrip_reply::{Refusal, codes};
use serde_json::{Map, Value};

/// The allocator of the program. Nothing is counted, because no session runs.
pub use mimalloc::MiMalloc as CountingAllocator;

/// Returns false: no allocation is counted.
pub fn is_counting() -> bool {
    false
}

/// The options of the Python medium, which have no effect.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options;

impl Options {
    /// Would use worker processes of this program.
    pub fn worker(_: impl Into<PathBuf>) -> Self {
        Self
    }
}

/// The reason why the Python medium cannot start.
#[derive(Debug, thiserror::Error)]
#[error("this program was built without the feature python; build it with --features full")]
pub struct StartError;

impl From<StartError> for Refusal {
    fn from(unavailable: StartError) -> Self {
        codes::sandbox_unavailable(MediumKind::Python.as_str(), unavailable.to_string()).into()
    }
}

/// The Python medium, of which there is no value in this build.
#[derive(Debug, Clone)]
pub struct Python(Infallible);

impl Python {
    /// Refuses to start.
    pub fn start(_: Options) -> Result<Self, StartError> {
        Err(StartError)
    }
}

impl CodeMedium for Python {
    fn language(&self) -> MediumKind {
        match self.0 {}
    }

    fn introduction(&self, _: &Circle) -> String {
        match self.0 {}
    }

    fn is_variable_name(&self, _: &str) -> bool {
        match self.0 {}
    }

    fn sandbox(&self, _: SandboxSpec, _: Option<Map<String, Value>>) -> Box<dyn Sandbox> {
        match self.0 {}
    }
}

/// Refuses to run as a worker.
pub fn serve() -> io::Result<()> {
    Err(io::Error::other(StartError))
}
