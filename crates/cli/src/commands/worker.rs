//! `cantrip worker`: a process that does dangerous work for another process, and may crash without harm to it.

use std::process::ExitCode;
use std::sync::OnceLock;

use cantrip_medium_python::{Options, Python, serve};
use cantrip_reply::{Refusal, codes};

/// Run Python programs for the process that started this one (internal).
///
/// The requests come on standard input and the answers go to standard output. It is started by `cantrip` itself, or by
/// a program that uses the library. You never need to run it by hand.
#[derive(Debug, clap::Args)]
pub(crate) struct Worker {
    /// Run Python interpreters.
    #[arg(long, required = true)]
    python: bool,
}

impl Worker {
    pub(crate) fn run(&self) -> ExitCode {
        match self.python.then(serve) {
            Some(Ok(())) => ExitCode::SUCCESS,
            Some(Err(_)) | None => ExitCode::FAILURE,
        }
    }
}

/// Returns the Python medium with workers of this program. Later calls return the same medium.
pub(crate) fn python() -> Result<Python, Refusal> {
    static STARTED: OnceLock<Python> = OnceLock::new();
    if let Some(python) = STARTED.get() {
        return Ok(python.clone());
    }
    let own = std::env::current_exe().map_err(|error| codes::sandbox_unavailable("python", error.to_string()))?;
    let python = Python::start(Options::worker(own))?;
    Ok(STARTED.get_or_init(|| python).clone())
}
