//! A server as a program: its process, and what it may say.
//!
//! A process that is killed cannot clean up after itself. So a server is born into the group of a keeper, a shell that
//! waits for the end of a pipe which only this process holds: when it comes, however it comes, the keeper kills the group
//! and with it itself. A signal at the parent's death, which Linux has too, would reach the program alone and not what
//! the program started (`npx` starts `node`), and would need unsafe code to ask for.

use std::io;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use cantrip_canon::Redactor;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader, ReadBuf};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::flood::Flood;
use super::{Server, Way};
use crate::limits::{COMMAND_ERROR_BYTES, MCP_COMPLAINT_BYTES, MCP_LAST_WORDS_MS, MCP_MESSAGE_BYTES_MAX};

/// Ends its own group when its input does.
const KEEPER: &str = "read -r _; kill -KILL 0";

/// A program that is running. Dropping it ends the program and all that it started.
#[derive(Debug)]
pub(super) struct Process {
    group: Option<Pid>,
    _child: Child,
    /// The first of the group. Nobody waits for it, so its number is nobody else's while this is there.
    _keeper: Child,
    /// Its end is what the keeper waits for.
    _lifeline: ChildStdin,
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
    pub(super) complaints: Complaints,
}

pub(super) fn start(server: &Server, flood: &Arc<Flood>) -> io::Result<Pipes> {
    let Way::Program { program, arguments, folder, environment } = &server.way else {
        return Err(io::Error::other("it is no program"));
    };
    let mut keeper = Command::new("/bin/sh");
    keeper.args(["-c", KEEPER]).env_clear().process_group(0).kill_on_drop(true);
    keeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut command = Command::new(program);
    command.args(arguments).env_clear().kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for name in ["PATH", "HOME"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    if let Some(folder) = folder {
        keeper.current_dir(folder);
        command.current_dir(folder);
    }
    let mut keeper = keeper.spawn()?;
    let number = keeper.id().and_then(|id| i32::try_from(id).ok());
    let (Some(number), Some(lifeline)) = (number, keeper.stdin.take()) else {
        return Err(io::Error::other("its keeper is gone"));
    };
    let mut child = command.process_group(number).spawn()?;
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let process = Process { group: Pid::from_raw(number), _child: child, _keeper: keeper, _lifeline: lifeline };
    let process = Arc::new(process);
    let (Some(stdin), Some(stdout), Some(stderr)) = pipes else { return Err(io::Error::other("it has no pipes")) };
    let secrets: Vec<String> = environment.iter().map(|(_, value)| value.clone()).collect();
    let complaints = Complaints::heard(server.name.clone(), stderr, Redactor::with_secrets(secrets));
    let stdout = Bounded { inner: stdout, since: 0, flood: Arc::clone(flood), process: Arc::clone(&process) };
    Ok(Pipes { process, stdin, stdout, complaints })
}

/// What a server complains of: it goes to the log, a line at a time and cut, and the one that says most is kept for
/// whoever wants to know why it did not start.
pub(super) struct Complaints {
    kept: Arc<Mutex<Option<String>>>,
    listening: JoinHandle<()>,
}

impl Complaints {
    fn heard(server: String, stderr: ChildStderr, redactor: Redactor) -> Self {
        let kept = Arc::default();
        let listening = tokio::spawn(logged(server, stderr, redactor, Arc::clone(&kept)));
        Self { kept, listening }
    }

    /// Its last words. A program that is over has said them all, a moment after its end at the latest.
    pub(super) async fn last_words(self) -> Option<String> {
        // One that lives on goes on complaining; what it said so far will do.
        let _ = timeout(Duration::from_millis(MCP_LAST_WORDS_MS), self.listening).await;
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

async fn logged(server: String, stderr: ChildStderr, redactor: Redactor, kept: Arc<Mutex<Option<String>>>) {
    let mut lines = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut lines).take(COMMAND_ERROR_BYTES as u64).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let said = redactor.text(String::from_utf8_lossy(&line).trim_end()).into_owned();
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

/// The first line that speaks of an error says most: traces follow it, and versions of interpreters. Else it is the last.
fn says_more(line: &str, kept: Option<&str>) -> bool {
    let is_error = |line: &str| line.to_ascii_lowercase().contains("error");
    !line.trim().is_empty() && kept.is_none_or(|kept| !is_error(kept))
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
                self.flood.said();
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
