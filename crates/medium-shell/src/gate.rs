//! The gate `shell`: runs a command in the bash of the calling entity.

use std::sync::Arc;
use std::time::Duration;

use cantrip_circle::Medium;
use cantrip_circle::gate::{Call, Gate, GateSpec, parameters, parse_arguments};
use cantrip_circle::limits::PROGRAM_BYTES_MAX;
use cantrip_circle::ward::{ResourceAccess, ShellBounds};
use cantrip_reply::{Refusal, ReplyDraft, Success, codes};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::bash::{Bash, CommandError, CommandResult};
use super::supervisor::ExceededBound;
use super::sweep::Sweep;
use super::{SHELL, Shell, ShellMedium};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Asked {
    /// What bash is to run: one line or many.
    command: String,
}

pub(super) struct ShellGate {
    promises: GateSpec,
    shell: Shell,
}

/// The state that an entity's calls leave for the next call.
enum ShellState {
    Bash(Bash),
    /// The previous bash is gone, for this reason.
    Lost(&'static str),
}

impl ShellGate {
    pub(super) fn new(shell: Shell) -> Self {
        let project = if shell.read_only { "read-only" } else { "writable" };
        let network = if shell.network { "there is a network" } else { "there is no network" };
        let description = format!(
            "Runs a command in your bash and returns its exit status and what it printed. Working directory, variables \
             and background jobs last from call to call. The project folder is {project}, the rest of the system \
             read-only, {network}; a command has {} s. There is no terminal and no standard input.",
            shell.bounds.wall.as_secs().max(1),
        );
        let promises = GateSpec::new(SHELL, description, parameters::<Asked>()).labels(shell.labels()).keeping_state();
        Self { promises, shell }
    }
}

impl Gate for ShellGate {
    fn spec(&self) -> &GateSpec {
        &self.promises
    }

    /// The files and hosts that a command uses are not known in advance, so it needs permission for all of them.
    fn resource_accesses(&self, _: &Map<String, Value>) -> Vec<ResourceAccess> {
        let all = || (".".to_owned(), String::new());
        let (written, path) = all();
        let mut reaches = vec![match self.shell.read_only {
            true => ResourceAccess::Read { written, path },
            false => ResourceAccess::Write { written, path },
        }];
        if self.shell.network {
            reaches.push(ResourceAccess::Host { host: "*".to_owned(), port: None });
        }
        reaches
    }

    fn medium(&self) -> Option<Arc<dyn Medium>> {
        Some(Arc::new(ShellMedium))
    }

    async fn call(&self, call: Call) -> Result<ReplyDraft<Success>, Refusal> {
        let Asked { command } = parse_arguments(SHELL, call.arguments)?;
        if command.len() > PROGRAM_BYTES_MAX {
            return Err(codes::limit("the length of the command", command.len(), PROGRAM_BYTES_MAX).into());
        }
        if command.contains('\0') {
            return Err(codes::target_unusable("the command", "it holds a NUL, which bash cannot read").into());
        }
        let bounds = self.shell.bounds.within(&call.limits);
        let kept = call.sessions.take::<ShellState>(SHELL);
        let earlier = call.sessions.was_used_before(SHELL);
        // The next call finds this state, unless the bash is put back below.
        call.sessions.put(SHELL, ShellState::Lost("the command before was cut off"));
        let (mut bash, lost) = match kept {
            Some(ShellState::Bash(bash)) => (bash, None),
            Some(ShellState::Lost(why)) => (Bash::start(&self.shell, bounds).await?, Some(why)),
            None => {
                let lost = earlier.then_some("a shell cannot be restored");
                (Bash::start(&self.shell, bounds).await?, lost)
            }
        };
        let ran = bash.run(&command, bounds).await;
        let sweep = match self.shell.read_only {
            true => Sweep::default(),
            false => bash.sweep().await,
        };
        match ran {
            Ok(ran) => {
                let over = ran.over;
                let shown = render_output(ran, lost, sweep);
                let kept =
                    if over { ShellState::Lost("the command before ended the shell") } else { ShellState::Bash(bash) };
                call.sessions.put(SHELL, kept);
                Ok(codes::gate_ok(SHELL).value(shown))
            }
            Err(unfinished) => {
                call.sessions.put(SHELL, ShellState::Lost("the command before passed a limit"));
                Err(refusal(&unfinished, bounds))
            }
        }
    }
}

fn render_output(ran: CommandResult, lost: Option<&str>, sweep: Sweep) -> Value {
    let CommandResult { status, folder, output: printed, over } = ran;
    let (mut output, cut) = printed.render();
    if let Some(why) = lost {
        output = format!("[environment lost: {why}]\n{output}");
    }
    let mut shown = json!({"exit_status": status, "output": output});
    if over {
        shown["shell"] = json!("ended; the next command begins a new one");
    } else {
        shown["folder"] = json!(folder);
    }
    if let Some((kept, total)) = cut {
        shown["truncated"] = json!({"shown": kept, "total": total});
    }
    if !sweep.stripped.is_empty() {
        shown["privileges_removed"] = json!(sweep.stripped);
    }
    if !sweep.unapproved.is_empty() {
        let why = "they decide about later casts or run programs for the next person, and nobody approved them; \
                   .unapproved was put behind their names";
        shown["unapproved"] = json!({"files": sweep.unapproved, "why": why});
    }
    shown
}

fn refusal(unfinished: &CommandError, bounds: ShellBounds) -> Refusal {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    match unfinished {
        CommandError::Wall => codes::time_limit(ms(bounds.wall), "wall").into(),
        CommandError::Output => codes::output_limit(bounds.output_bytes).into(),
        CommandError::Lost => codes::sandbox_lost(SHELL).into(),
        CommandError::Exceeded(ExceededBound::Cpu) => codes::time_limit(ms(bounds.cpu), "cpu").into(),
        CommandError::Exceeded(ExceededBound::Memory) => codes::memory_limit(bounds.memory_bytes, "memory").into(),
        CommandError::Exceeded(ExceededBound::Disk) => codes::memory_limit(bounds.disk_bytes, "disk").into(),
        CommandError::Exceeded(ExceededBound::Processes(count)) => {
            codes::limit("the number of processes", *count, bounds.processes).into()
        }
    }
}
