//! A real server with a real model: llama.cpp and a model of 135 million parameters.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use cantrip_tests::peer::Peer;

/// The script that serves the model. It compares the hash of the model's file first.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/llama_server.py");

/// A llama.cpp server with a small model. `test.sh` installs both and names their folder in `CANTRIP_TEST_MODEL`.
pub struct Llama {
    process: Child,
    pub origin: String,
}

impl Llama {
    /// Starts the server; None if the tests are to run without it.
    pub fn start(window: u64, key: Option<&str>) -> Option<Self> {
        let installed = Peer::Model.find_path()?;
        let python = Peer::Python.find()?;
        let mut command = Command::new(python);
        command.arg(SCRIPT).arg(installed).arg(window.to_string()).args(key);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = piped.spawn().expect("python runs");
        let mut lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let origin = lines.next().expect("its address").expect("a line");
        assert!(origin.starts_with("http://127.0.0.1:"), "{origin}");
        Some(Self { process, origin })
    }

    /// Runs the script on the model in another folder of packages, to its end; None if the tests are to run without a
    /// model.
    pub fn run_to_its_end(packages: &Path) -> Option<Output> {
        Peer::Model.find_path()?;
        let mut command = Command::new(Peer::Python.find()?);
        command.arg(SCRIPT).arg(packages).arg("512").stdin(Stdio::null());
        Some(command.output().expect("python runs"))
    }
}

impl Drop for Llama {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
