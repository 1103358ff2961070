//! The Python medium of this process.

use std::sync::OnceLock;

use cantrip_medium_python::{Options, Python};
use cantrip_reply::{Refusal, codes};

/// Returns the Python medium with workers of this program. Later calls return the same medium.
pub fn start() -> Result<Python, Refusal> {
    static STARTED: OnceLock<Python> = OnceLock::new();
    if let Some(python) = STARTED.get() {
        return Ok(python.clone());
    }
    let own = std::env::current_exe().map_err(|error| codes::sandbox_unavailable("python", error.to_string()))?;
    let python = Python::start(Options::worker(own))?;
    Ok(STARTED.get_or_init(|| python).clone())
}
