//! A gate from a program: JSON on its standard input, JSON on its standard output.
//!
//! It runs as a [`Process`]: however the call ends (an answer, too much output, a timeout, a cancelled caller), no
//! process that the program started outlives it.

use std::path::PathBuf;
use std::time::Duration;

use cantrip_canon::json;
use cantrip_reply::{Refusal, ReplyDraft, Success, codes};
use serde_json::Value;
use tokio::time::timeout;

use super::process::{ExcessOutput, Process, ProcessOutput, RunFault};
use crate::Label;
use crate::gate::{AnyGate, Call, Effects, Gate, GateSpec, UnknownCharge};
use crate::limits::{COMMAND_ERROR_BYTES, COMMAND_MS, COMMAND_OUTPUT_BYTES_MAX};

/// The variable that holds the idempotency key of a call: the same whenever the call is repeated.
pub const KEY_VARIABLE: &str = "CANTRIP_IDEMPOTENCY_KEY";

/// The meaning of an error object of a program, or of an exit status other than 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnError {
    /// The request was wrong: the entity corrects it.
    #[default]
    Report,
    /// The gate failed.
    Fail,
}

/// The settings of a command gate.
#[derive(Debug, Clone)]
pub struct Command {
    promises: GateSpec,
    process: Process,
    time_max: Duration,
    output_bytes_max: usize,
    on_error: OnError,
}

impl Command {
    /// Makes a gate of this name that runs `program`. It carries all three labels until others are set.
    pub fn new(name: impl Into<String>, description: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        let parameters = serde_json::json!({"type": "object"});
        Self {
            promises: GateSpec::new(name, description, parameters).labels(Label::ALL),
            process: Process { program: program.into(), arguments: Vec::new(), folder: None, environment: Vec::new() },
            time_max: Duration::from_millis(COMMAND_MS),
            output_bytes_max: COMMAND_OUTPUT_BYTES_MAX,
            on_error: OnError::Report,
        }
    }

    /// Sets the command line arguments. Text from an entity never becomes part of them.
    #[must_use]
    pub fn arguments(mut self, arguments: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.process.arguments = arguments.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the working directory; that of this process unless given.
    #[must_use]
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.process.folder = Some(folder.into());
        self
    }

    /// Adds a variable to the environment. Otherwise the environment has only `PATH`: the program must not see the keys
    /// of this process.
    #[must_use]
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.process.environment.push((name.into(), value.into()));
        self
    }

    /// Sets the JSON Schema of the arguments.
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

    fn failure(&self, detail: impl Into<String>) -> Refusal {
        codes::gate_failed(&self.promises.name, detail.into()).into()
    }

    async fn run(&self, call: &Call) -> Result<ProcessOutput, Refusal> {
        let input = Value::Object(call.arguments.clone()).to_string();
        let mut process = self.process.clone();
        if let Some(key) = &call.idempotency_key {
            process.environment.push((KEY_VARIABLE.to_owned(), key.clone()));
        }
        if let Some(trace) = cantrip_trace::header_for_process() {
            process.environment.push(("TRACEPARENT".to_owned(), trace.traceparent()));
            let state = trace.state().map(|state| ("TRACESTATE".to_owned(), state.to_owned()));
            process.environment.extend(state);
        }
        let ran = process.run(input.as_bytes(), self.output_bytes_max, ExcessOutput::Refused, COMMAND_ERROR_BYTES);
        ran.await.map_err(|fault| {
            // A program that did not start has cost nothing.
            if let RunFault::Unstartable(_) = fault {
                call.effects.mark_not_started();
            }
            self.failure(fault.to_string())
        })
    }

    fn answer(&self, output: ProcessOutput, effects: &Effects) -> Result<ReplyDraft<Success>, Refusal> {
        if !output.status.success() {
            return Err(self.exit_refusal(&output, effects));
        }
        let answer = json::read_bytes(&output.stdout)
            .map_err(|fault| self.failure(format!("its answer is not JSON: {fault}")))?;
        match (error_text(&answer), self.on_error) {
            (None, _) => Ok(codes::gate_ok(&self.promises.name).value(answer)),
            (Some(detail), OnError::Report) => Err(codes::gate_reported(&self.promises.name, detail).into()),
            (Some(detail), OnError::Fail) => Err(self.failure(detail)),
        }
    }

    /// Returns the refusal for a program that ended with a status other than 0. By default the entity reads the status
    /// and the error text, and can act on them. A program that was killed has failed in any case.
    fn exit_refusal(&self, output: &ProcessOutput, effects: &Effects) -> Refusal {
        let reported = json::read_bytes(&output.stdout).ok().and_then(|answer| error_text(&answer));
        let said = reported.unwrap_or_else(|| String::from_utf8_lossy(&output.stderr).trim().to_owned());
        let detail = if said.is_empty() { output.status.to_string() } else { format!("{}: {said}", output.status) };
        match (output.status.code(), self.on_error) {
            (Some(status), OnError::Report) => {
                // Unlike an error object, a status does not say whether the program failed before or after it paid.
                effects.record_unknown_charge(UnknownCharge::Failed);
                let data = serde_json::json!({ "exit_status": status });
                codes::gate_reported(&self.promises.name, detail).data(data).into()
            }
            (Some(_), OnError::Fail) | (None, _) => self.failure(detail),
        }
    }
}

/// Returns the text of an error object; none if the answer is not one.
fn error_text(answer: &Value) -> Option<String> {
    let error = answer.get("error").filter(|error| !error.is_null())?;
    let said = error.as_str().or_else(|| error.get("message").and_then(Value::as_str));
    Some(said.map_or_else(|| error.to_string(), str::to_owned))
}

struct CommandGate {
    command: Command,
}

impl Gate for CommandGate {
    fn spec(&self) -> &GateSpec {
        &self.command.promises
    }

    async fn call(&self, call: Call) -> Result<ReplyDraft<Success>, Refusal> {
        let command = &self.command;
        match timeout(command.time_max, command.run(&call)).await {
            Ok(output) => command.answer(output?, &call.effects),
            Err(_) => {
                call.effects.record_unknown_charge(UnknownCharge::Cut);
                let limit_ms = u64::try_from(command.time_max.as_millis()).unwrap_or(u64::MAX);
                Err(codes::timed_out(&command.promises.name, limit_ms).into())
            }
        }
    }
}
