//! A server as a program: its process, and the bounds on its output.
//!
//! The process belongs to a [`ProcessGroup`], so it ends with this process, together with all processes that it
//! started.

use std::io;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use cantrip_canon::Redactor;
use cantrip_circle::child_process::ProcessGroup;
use cantrip_circle::limits::COMMAND_ERROR_BYTES;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader, ReadBuf};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::flood::FloodGuard;
use super::{Server, ServerTransport};
use crate::limits::{MCP_COMPLAINT_BYTES, MCP_LAST_WORDS_MS, MCP_MESSAGE_BYTES_MAX};

/// A running program. Dropping it ends the program and all processes that it started.
#[derive(Debug)]
pub(super) struct Process {
    group: ProcessGroup,
    _child: Child,
}

impl Process {
    pub(super) fn end(&self) {
        self.group.kill();
    }
}

pub(super) struct Pipes {
    pub(super) process: Arc<Process>,
    pub(super) stdin: ChildStdin,
    pub(super) stdout: BoundedStdout,
    pub(super) complaints: StderrLog,
}

pub(super) fn start(server: &Server, flood: &Arc<FloodGuard>) -> io::Result<Pipes> {
    let ServerTransport::Program { program, arguments, folder, environment } = &server.transport else {
        return Err(io::Error::other("the server is not a program"));
    };
    let mut command = Command::new(program);
    command.args(arguments).env_clear();
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
    let group = ProcessGroup::new()?;
    let mut child = group.spawn(&mut command)?;
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let process = Arc::new(Process { group, _child: child });
    let (Some(stdin), Some(stdout), Some(stderr)) = pipes else { return Err(io::Error::other("it has no pipes")) };
    let secrets: Vec<String> = environment.iter().map(|(_, value)| value.clone()).collect();
    let complaints = StderrLog::collect(server.name.clone(), stderr, Redactor::with_secrets(secrets));
    let stdout = BoundedStdout { inner: stdout, since: 0, flood: Arc::clone(flood), process: Arc::clone(&process) };
    Ok(Pipes { process, stdin, stdout, complaints })
}

/// Collects the standard error of a server. Each line is cut and logged; the most informative line is kept for the
/// error message of a server that does not start.
pub(super) struct StderrLog {
    kept: Arc<Mutex<Option<String>>>,
    listening: JoinHandle<()>,
}

impl StderrLog {
    fn collect(server: String, stderr: ChildStderr, redactor: Redactor) -> Self {
        let kept = Arc::default();
        let listening = tokio::spawn(log_lines(server, stderr, redactor, Arc::clone(&kept)));
        Self { kept, listening }
    }

    /// Returns the most informative line. After the end of the program all lines arrive within a moment.
    pub(super) async fn last_error(self) -> Option<String> {
        // A program that still runs keeps printing; the lines so far are enough.
        let _ = timeout(Duration::from_millis(MCP_LAST_WORDS_MS), self.listening).await;
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

async fn log_lines(server: String, stderr: ChildStderr, redactor: Redactor, kept: Arc<Mutex<Option<String>>>) {
    let mut lines = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut lines).take(COMMAND_ERROR_BYTES as u64).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let said = redactor.redact_text(String::from_utf8_lossy(&line).trim_end()).into_owned();
                tracing::info!(server, "{said}");
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                if says_more(&said, kept.as_deref()) {
                    let end = said.floor_char_boundary(MCP_COMPLAINT_BYTES);
                    *kept = Some(said[..end].to_owned());
                }
            }
        }
    }
}

/// Returns true if `line` is more informative than `kept`. The first line with an error is best: traces and interpreter
/// versions follow it. Without such a line it is the last line.
fn says_more(line: &str, kept: Option<&str>) -> bool {
    let is_error = |line: &str| line.to_ascii_lowercase().contains("error");
    !line.trim().is_empty() && kept.is_none_or(|kept| !is_error(kept))
}

/// The standard output of the program. Once a limit is exceeded, reading fails and the program is ended: waiting for
/// the end of a line that is discarded anyway would let the server decide how long.
#[derive(Debug)]
pub(super) struct BoundedStdout {
    inner: ChildStdout,
    /// The number of bytes since the last end of a line.
    since: u64,
    flood: Arc<FloodGuard>,
    process: Arc<Process>,
}

impl BoundedStdout {
    fn count(&mut self, read: &[u8]) {
        for line in read.split_inclusive(|byte| *byte == b'\n') {
            self.since += line.len() as u64;
            if self.since > MCP_MESSAGE_BYTES_MAX as u64 {
                self.flood.record_length(self.since);
                return;
            }
            if line.ends_with(b"\n") {
                self.since = 0;
                self.flood.record_message();
            }
        }
    }
}

impl AsyncRead for BoundedStdout {
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
