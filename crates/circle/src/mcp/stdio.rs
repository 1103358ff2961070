//! A server as a program: its process, and what it may say.

use std::io;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use cantrip_canon::Redactor;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader, ReadBuf};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use super::{Server, Way};
use crate::limits::{COMMAND_ERROR_BYTES, MCP_MESSAGE_BYTES_MAX, MCP_MESSAGES_MAX};

/// A program that is running. Dropping it ends the program and all that it started.
#[derive(Debug)]
pub(super) struct Process {
    group: Option<Pid>,
    /// Nobody waits for it, so its number is nobody else's while this is there.
    _child: Child,
}

impl Process {
    pub(super) fn end(&self) {
        if let Some(group) = self.group {
            // One that is empty already has nobody left to kill.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

pub(super) struct Pipes {
    pub(super) process: Arc<Process>,
    pub(super) stdin: ChildStdin,
    pub(super) stdout: Bounded,
}

pub(super) fn start(server: &Server, flood: &Arc<Flood>) -> io::Result<Pipes> {
    let Way::Program { program, arguments, folder, environment } = &server.way else {
        return Err(io::Error::other("it is no program"));
    };
    let mut command = Command::new(program);
    command.args(arguments).env_clear().process_group(0).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for name in ["PATH", "HOME"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    if let Some(folder) = folder {
        command.current_dir(folder);
    }
    let mut child = command.spawn()?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let process = Arc::new(Process { group, _child: child });
    let (Some(stdin), Some(stdout), Some(stderr)) = pipes else { return Err(io::Error::other("it has no pipes")) };
    let secrets: Vec<String> = environment.iter().map(|(_, value)| value.clone()).collect();
    tokio::spawn(logged(server.name.clone(), stderr, Redactor::with_secrets(secrets)));
    let stdout = Bounded { inner: stdout, since: 0, flood: Arc::clone(flood), process: Arc::clone(&process) };
    Ok(Pipes { process, stdin, stdout })
}

/// What a server complains of goes to the log, a line at a time and cut.
async fn logged(server: String, stderr: ChildStderr, redactor: Redactor) {
    let mut lines = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut lines).take(COMMAND_ERROR_BYTES as u64).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let said = String::from_utf8_lossy(&line);
                tracing::info!(server, "{}", redactor.text(said.trim_end()));
            }
        }
    }
}

/// Whether a server said too much: one message that was too long, or too many since it was last asked something.
#[derive(Debug, Default)]
pub(super) struct Flood {
    bytes: AtomicU64,
    messages: AtomicU64,
}

/// What was too much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TooMuch {
    Bytes(u64),
    Messages,
}

impl Flood {
    pub(super) fn too_much(&self) -> Option<TooMuch> {
        match self.bytes.load(Ordering::Acquire) {
            0 if self.messages.load(Ordering::Acquire) > MCP_MESSAGES_MAX => Some(TooMuch::Messages),
            0 => None,
            bytes => Some(TooMuch::Bytes(bytes)),
        }
    }

    /// One message became this long.
    pub(super) fn passed(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Release);
    }

    /// Someone asks: what is said from now on may be an answer.
    pub(super) fn asked(&self) {
        if self.too_much().is_none() {
            self.messages.store(0, Ordering::Release);
        }
    }
}

/// What the program prints, until it is too much: then it is over, for the program too. Waiting for the rest of a line
/// that nobody will keep would be waiting for the server to tire.
#[derive(Debug)]
pub(super) struct Bounded {
    inner: ChildStdout,
    /// Bytes since the last end of a line.
    since: u64,
    flood: Arc<Flood>,
    process: Arc<Process>,
}

impl Bounded {
    fn count(&mut self, read: &[u8]) {
        for line in read.split_inclusive(|byte| *byte == b'\n') {
            self.since += line.len() as u64;
            if self.since > MCP_MESSAGE_BYTES_MAX as u64 {
                self.flood.passed(self.since);
                return;
            }
            if line.ends_with(b"\n") {
                self.since = 0;
                self.flood.messages.fetch_add(1, Ordering::AcqRel);
            }
        }
    }
}

impl AsyncRead for Bounded {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        self.count(&buffer.filled()[before..]);
        if self.flood.too_much().is_some() {
            self.process.end();
            return Poll::Ready(Err(io::Error::other("the server says too much")));
        }
        Poll::Ready(Ok(()))
    }
}
