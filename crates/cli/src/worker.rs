//! `cantrip worker`: a process that does dangerous work for another one, and may die of it.

use std::process::ExitCode;
use std::sync::OnceLock;

use cantrip::circle::python::{self, Options, Python};
use cantrip_reply::{Refusal, codes};

/// Serve Python programs on standard input and output, for the process that started this one.
///
/// Started by `cantrip` itself, or by a program that uses the library; there is nothing here for a person to type.
#[derive(Debug, clap::Args)]
pub(crate) struct Worker {
    /// Keep Python interpreters.
    #[arg(long, required = true)]
    python: bool,
}

impl Worker {
    pub(crate) fn run(&self) -> ExitCode {
        match self.python.then(python::serve) {
            Some(Ok(())) => ExitCode::SUCCESS,
            Some(Err(_)) | None => ExitCode::FAILURE,
        }
    }
}

/// The Python medium, with workers of this very program. Whoever asks again has the same.
pub(crate) fn python() -> Result<Python, Refusal> {
    static STARTED: OnceLock<Python> = OnceLock::new();
    if let Some(python) = STARTED.get() {
        return Ok(python.clone());
    }
    let own = std::env::current_exe().map_err(|error| codes::sandbox_unavailable("python", error.to_string()))?;
    let python = Python::start(Options::worker(own))?;
    Ok(STARTED.get_or_init(|| python).clone())
}
