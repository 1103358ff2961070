//! `cantrip worker`: a process that does dangerous work for another process, and may crash without harm to it.

use std::process::ExitCode;

use cantrip_medium_python::serve;

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
