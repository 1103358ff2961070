//! A gate from a program: JSON on its standard input, JSON on its standard output.
//!
//! The program runs in a process group of its own and with an environment of its own. Whichever way the call ends (an
//! answer, a flood, a hang, a cancelled caller), the whole group is killed, so what the program started does not
//! outlive it. A program that moves itself into another group gets away; a cage against that is the shell medium's.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use cantrip_canon::json;
use cantrip_reply::{Filled, Refusal, Success, codes};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command as Spawning;
use tokio::time::timeout;

use crate::Label;
use crate::gate::{AnyGate, Call, Gate, Promises};
use crate::limits::{COMMAND_ERROR_BYTES, COMMAND_MS, COMMAND_OUTPUT_BYTES_MAX};

/// What an error object of a program means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnError {
    /// The request was wrong: the entity corrects it.
    #[default]
    Report,
    /// The gate failed.
    Fail,
}

/// How a command becomes a gate.
#[derive(Debug, Clone)]
pub struct Command {
    promises: Promises,
    program: PathBuf,
    arguments: Vec<String>,
    folder: Option<PathBuf>,
    environment: Vec<(String, String)>,
    time_max: Duration,
    output_bytes_max: usize,
    on_error: OnError,
}

impl Command {
    /// A gate of this name that runs `program`. It carries all three labels until it is told otherwise.
    pub fn new(name: impl Into<String>, description: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        let parameters = serde_json::json!({"type": "object"});
        Self {
            promises: Promises::new(name, description, parameters).labels(Label::ALL),
            program: program.into(),
            arguments: Vec::new(),
            folder: None,
            environment: Vec::new(),
            time_max: Duration::from_millis(COMMAND_MS),
            output_bytes_max: COMMAND_OUTPUT_BYTES_MAX,
            on_error: OnError::Report,
        }
    }

    /// Arguments on its command line. What an entity writes never comes to stand there.
    #[must_use]
    pub fn arguments(mut self, arguments: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.arguments = arguments.into_iter().map(Into::into).collect();
        self
    }

    /// The folder it runs in; that of this process unless given.
    #[must_use]
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// A variable of its environment, which otherwise has only `PATH`: keys of this process are not the program's.
    #[must_use]
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// The JSON Schema of its arguments.
    #[must_use]
    pub fn parameters(mut self, parameters: Value) -> Self {
        self.promises.parameters = parameters;
        self
    }

    #[must_use]
    pub fn time_max(mut self, limit: Duration) -> Self {
        self.time_max = limit;
        self
    }

    #[must_use]
    pub fn output_bytes_max(mut self, bytes: usize) -> Self {
        self.output_bytes_max = bytes;
        self
    }

    #[must_use]
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }

    pub fn gate(self) -> AnyGate {
        AnyGate::from(CommandGate { command: self })
    }

    fn failed(&self, detail: impl Into<String>) -> Refusal {
        codes::gate_failed(&self.promises.name, detail.into()).into()
    }

    async fn run(&self, arguments: &Map<String, Value>) -> Result<Output, Refusal> {
        let mut spawning = Spawning::new(&self.program);
        spawning.args(&self.arguments).env_clear().process_group(0).kill_on_drop(true);
        spawning.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(path) = std::env::var_os("PATH") {
            spawning.env("PATH", path);
        }
        spawning.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(folder) = &self.folder {
            spawning.current_dir(folder);
        }
        let mut child =
            spawning.spawn().map_err(|error| self.failed(format!("it cannot be started: {}", error.kind())))?;
        let group = Group::of(child.id());
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let input = Value::Object(arguments.clone()).to_string();
        let writing = async {
            if let Some(mut stdin) = stdin {
                // A program that does not read its input closes it, and may answer all the same.
                let _ = stdin.write_all(input.as_bytes()).await;
                let _ = stdin.shutdown().await;
            }
        };
        let exiting = async move {
            let status = child.wait().await;
            // What it left behind holds its output open.
            drop(group);
            status
        };
        let reading = capped(stdout, self.output_bytes_max);
        let complaints = drained(stderr, COMMAND_ERROR_BYTES);
        let flooded = || self.failed(format!("it printed more than {} bytes", self.output_bytes_max));
        let printed = async { reading.await.ok_or_else(flooded) };
        let exited = async { exiting.await.map_err(|error| self.failed(format!("it was lost: {}", error.kind()))) };
        let complained = async { Ok(complaints.await) };
        let wrote = async {
            writing.await;
            Ok(())
        };
        let (printed, status, complained, ()) = tokio::try_join!(printed, exited, complained, wrote)?;
        Ok(Output { status, printed, complained })
    }

    fn answer(&self, output: Output) -> Result<Filled<Success>, Refusal> {
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.complained);
            return Err(self.failed(format!("{}: {}", output.status, said.trim())));
        }
        let answer = json::read_bytes(&output.printed)
            .map_err(|fault| self.failed(format!("its answer is no JSON: {fault}")))?;
        match (answer.get("error"), self.on_error) {
            (Some(Value::Null) | None, _) => Ok(codes::gate_ok(&self.promises.name).value(answer)),
            (Some(error), on_error) => {
                let said = error.as_str().or_else(|| error.get("message").and_then(Value::as_str));
                let detail = said.map_or_else(|| error.to_string(), str::to_owned);
                match on_error {
                    OnError::Report => Err(codes::gate_reported(&self.promises.name, detail).into()),
                    OnError::Fail => Err(self.failed(detail)),
                }
            }
        }
    }
}

struct Output {
    status: ExitStatus,
    printed: Vec<u8>,
    complained: Vec<u8>,
}

struct CommandGate {
    command: Command,
}

impl Gate for CommandGate {
    fn promises(&self) -> &Promises {
        &self.command.promises
    }

    async fn call(&self, call: Call) -> Result<Filled<Success>, Refusal> {
        let command = &self.command;
        match timeout(command.time_max, command.run(&call.arguments)).await {
            Ok(output) => command.answer(output?),
            Err(_) => {
                let limit_ms = u64::try_from(command.time_max.as_millis()).unwrap_or(u64::MAX);
                Err(codes::timed_out(&command.promises.name, limit_ms).into())
            }
        }
    }
}

/// A process group, killed when this goes away.
struct Group(Option<Pid>);

impl Group {
    fn of(leader: Option<u32>) -> Self {
        Self(leader.and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // One that is empty already has nobody left to kill.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Everything up to the limit, or nothing if there is more.
async fn capped(pipe: Option<impl AsyncRead + Unpin>, limit: usize) -> Option<Vec<u8>> {
    let mut read = Vec::new();
    let Some(pipe) = pipe else { return Some(read) };
    let mut pipe = pipe.take(limit as u64 + 1);
    // A pipe that breaks has said what it said.
    let _ = pipe.read_to_end(&mut read).await;
    (read.len() <= limit).then_some(read)
}

/// The beginning of everything; the rest is read too, because a program that cannot write stands still.
async fn drained(pipe: Option<impl AsyncRead + Unpin>, keep: usize) -> Vec<u8> {
    let mut kept = Vec::new();
    let Some(mut pipe) = pipe else { return kept };
    let mut piece = [0; 4096];
    while let Ok(count @ 1..) = pipe.read(&mut piece).await {
        let room = keep.saturating_sub(kept.len()).min(count);
        kept.extend_from_slice(&piece[..room]);
    }
    kept
}
