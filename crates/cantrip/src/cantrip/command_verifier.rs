//! `[verify]`: a program that verifies answers.
//!
//! The program gets the answer as JSON on its standard input. Status 0 accepts the answer, and a number, or an object
//! with a number as `score`, on its output is the score. Any other status rejects it, and the entity reads the
//! program's output. If the program cannot be run, takes too long or is ended by a signal, there is no verdict: that is
//! an error.

use std::path::PathBuf;
use std::time::Duration;

use cantrip_canon::json;
use cantrip_circle::gate::builtin::{ExcessOutput, Process, ProcessOutput};
use cantrip_reply::{Refusal, codes};
use serde_json::Value;

use super::verify::{Verdict, Verifier};
use crate::limits::{VERIFIER_MS, VERIFIER_OUTPUT_BYTES_MAX};

/// A verifier that runs a program in the spell's folder.
#[derive(Debug, Clone)]
pub struct CommandVerifier {
    process: Process,
    time_max: Duration,
}

impl CommandVerifier {
    pub fn new(program: PathBuf, arguments: Vec<String>, folder: PathBuf) -> Self {
        let process = Process { program, arguments, folder: Some(folder), environment: Vec::new() };
        Self { process, time_max: Duration::from_millis(VERIFIER_MS) }
    }

    /// Sets the timeout for verifying one answer.
    #[must_use]
    pub fn time_max(mut self, limit: Duration) -> Self {
        self.time_max = limit;
        self
    }
}

fn failed(detail: impl Into<String>) -> Refusal {
    codes::gate_failed("verify", detail.into()).into()
}

impl Verifier for CommandVerifier {
    async fn verify(&self, answer: &Value) -> Result<Verdict, Refusal> {
        let answer = json::canonical(answer).unwrap_or_else(|_| answer.to_string());
        let most = VERIFIER_OUTPUT_BYTES_MAX;
        let running = self.process.run(answer.as_bytes(), most, ExcessOutput::Dropped, most);
        let Ok(ran) = tokio::time::timeout(self.time_max, running).await else {
            let limit_ms = u64::try_from(self.time_max.as_millis()).unwrap_or(u64::MAX);
            return Err(codes::timed_out("verify", limit_ms).into());
        };
        let ProcessOutput { status, stdout: printed, stderr: complained } =
            ran.map_err(|fault| failed(fault.to_string()))?;
        let (printed, complained) = (String::from_utf8_lossy(&printed), String::from_utf8_lossy(&complained));
        match status.code() {
            Some(0) => Ok(Verdict::Passed { score: score(&printed) }),
            Some(status) => {
                let said = [printed.trim(), complained.trim()].into_iter().filter(|text| !text.is_empty());
                let said: Vec<&str> = said.collect();
                let output = if said.is_empty() { format!("it ended with status {status}") } else { said.join("\n") };
                Ok(Verdict::Failed { output })
            }
            None => Err(failed("it was ended by a signal")),
        }
    }
}

/// Returns a number, or the `score` of an object.
fn score(printed: &str) -> Option<f64> {
    let value = json::read(printed.trim()).ok()?;
    value.as_f64().or_else(|| value.get("score")?.as_f64())
}
