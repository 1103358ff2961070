//! `[verify]`: a program that looks at answers.
//!
//! It gets the answer as JSON on its input. Status 0 accepts it, and a number, or an object with `score`, on its output
//! is the score. Any other status refuses it, and what the program wrote is what the entity reads. A program that cannot
//! be run at all, or that a signal ends, has not looked: that is an error and no verdict.

use std::path::PathBuf;
use std::process::Stdio;

use cantrip_canon::json;
use cantrip_reply::{Refusal, codes};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use crate::limits::VERIFIER_OUTPUT_BYTES_MAX;
use crate::recipe::{Verdict, Verifier};

/// A verifier that runs a program in the spell's folder.
#[derive(Debug, Clone)]
pub struct CommandVerifier {
    program: PathBuf,
    arguments: Vec<String>,
    folder: PathBuf,
}

impl CommandVerifier {
    pub fn new(program: PathBuf, arguments: Vec<String>, folder: PathBuf) -> Self {
        Self { program, arguments, folder }
    }
}

fn failed(detail: impl Into<String>) -> Refusal {
    codes::gate_failed("verify", detail.into()).into()
}

impl Verifier for CommandVerifier {
    async fn verify(&self, answer: &Value) -> Result<Verdict, Refusal> {
        let answer = json::canonical(answer).unwrap_or_else(|_| answer.to_string());
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).current_dir(&self.folder).kill_on_drop(true).env_clear();
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| failed(format!("it cannot be started: {}", error.kind())))?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let write = async {
            if let Some(mut stdin) = stdin {
                // A program that does not care for the answer may end before it has read it.
                let _ = stdin.write_all(answer.as_bytes()).await;
            }
        };
        let ((), stdout, stderr) = tokio::join!(write, bounded(stdout), bounded(stderr));
        let status = child.wait().await.map_err(|error| failed(format!("it was lost: {}", error.kind())))?;
        match status.code() {
            Some(0) => Ok(Verdict::Passed { score: score(&stdout) }),
            Some(status) => {
                let said: Vec<&str> =
                    [stdout.trim(), stderr.trim()].into_iter().filter(|text| !text.is_empty()).collect();
                let output = if said.is_empty() { format!("it ended with status {status}") } else { said.join("\n") };
                Ok(Verdict::Failed { output })
            }
            None => Err(failed("it was ended by a signal")),
        }
    }
}

/// What a program writes, as far as it is kept; the rest is read and dropped, so that the program is not held up.
async fn bounded(stream: Option<impl AsyncRead + Unpin>) -> String {
    let Some(stream) = stream else { return String::new() };
    let mut kept = Vec::new();
    let mut stream = stream.take(VERIFIER_OUTPUT_BYTES_MAX);
    let _ = stream.read_to_end(&mut kept).await;
    let _ = tokio::io::copy(&mut stream.into_inner(), &mut tokio::io::sink()).await;
    String::from_utf8_lossy(&kept).into_owned()
}

/// A number, or the `score` of an object.
fn score(stdout: &str) -> Option<f64> {
    let value = json::read(stdout.trim()).ok()?;
    value.as_f64().or_else(|| value.get("score")?.as_f64())
}
