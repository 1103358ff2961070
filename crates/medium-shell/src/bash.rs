//! Communication with a bash in its cage: sends a command, reads its output and its exit status.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use cantrip_circle::limits::{COMMAND_ERROR_BYTES, PATH_BYTES_MAX};
use cantrip_circle::ward::ShellBounds;
use cantrip_reply::{Refusal, codes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::time::timeout;

use super::supervisor::{self, ExceededBound, RunningCage, StartedCage};
use super::sweep::Sweep;
use super::{SHELL, Shell};
use crate::limits::{SHELL_OUTPUT_SHOWN_BYTES, SHELL_START_MS};

/// An idle bash. Dropping it, or one of its futures, ends every process in its cage.
#[derive(Debug)]
pub(super) struct Bash {
    commands: Sender,
    output: Receiver,
    control: Receiver,
    inmate: Arc<RunningCage>,
}

impl Drop for Bash {
    fn drop(&mut self) {
        self.inmate.kill();
    }
}

/// The result of a command.
#[derive(Debug)]
pub(super) struct CommandResult {
    pub(super) status: i64,
    pub(super) folder: String,
    pub(super) output: OutputBuffer,
    /// True if the shell ended with the command.
    pub(super) over: bool,
}

/// The reason why a command has no result. Its cage is gone.
#[derive(Debug)]
pub(super) enum CommandError {
    Exceeded(ExceededBound),
    Wall,
    Output,
    /// The bash no longer answers.
    Lost,
}

impl Bash {
    /// Starts a cage, and waits until its bash is ready.
    pub(super) async fn start(shell: &Shell, bounds: ShellBounds) -> Result<Self, Refusal> {
        let unavailable = |cause: String| Refusal::from(codes::sandbox_unavailable(SHELL, cause));
        let (bubblewrap, root) = (shell.find_bubblewrap()?, shell.root()?);
        let command = shell.cage_command(&bubblewrap, &bounds)?;
        let started = supervisor::start(command, root, bounds.processes)
            .await
            .map_err(|error| unavailable(error.kind().to_string()))?;
        let mut bash = Self::from_started(started).map_err(|error| unavailable(error.kind().to_string()))?;
        let said = timeout(Duration::from_millis(SHELL_START_MS), bash.read_greeting()).await;
        match said {
            Ok(Some(word)) if word == b"ready" => Ok(bash),
            Ok(Some(said)) => Err(unavailable(error_line(&said))),
            Ok(None) => Err(unavailable("it ended at once".to_owned())),
            Err(_) => Err(unavailable(format!("it was not ready after {SHELL_START_MS} ms"))),
        }
    }

    fn from_started(started: StartedCage) -> io::Result<Self> {
        let StartedCage { inmate, stdin, stdout, stderr } = started;
        Ok(Self {
            commands: Sender::from_owned_fd(OwnedFd::from(stdin))?,
            output: Receiver::from_owned_fd(OwnedFd::from(stdout))?,
            control: Receiver::from_owned_fd(OwnedFd::from(stderr))?,
            inmate,
        })
    }

    /// Reads the greeting of bash, or the error of bubblewrap in its place: up to a NUL, or to the end.
    async fn read_greeting(&mut self) -> Option<Vec<u8>> {
        let mut said = Vec::new();
        loop {
            match self.control.read_buf(&mut said).await {
                Ok(1..) if said.ends_with(b"\0") => {
                    said.pop();
                    return Some(said);
                }
                Ok(1..) if said.len() <= PATH_BYTES_MAX + COMMAND_ERROR_BYTES => {}
                Ok(_) | Err(_) => return (!said.is_empty()).then_some(said),
            }
        }
    }

    /// Runs a command to its end. After an error the cage is gone.
    pub(super) async fn run(&mut self, command: &str, bounds: ShellBounds) -> Result<CommandResult, CommandError> {
        self.inmate.begin_command(bounds);
        let ran = timeout(bounds.wall, self.execute(command, bounds)).await;
        let unfinished = match ran {
            Ok(Ok(ran)) if !ran.over => return Ok(ran),
            // Processes that bash leaves behind end with it. Their end is awaited, so that none exists when this
            // returns.
            Ok(Ok(ran)) => {
                let status = self.exit_status().await;
                match self.inmate.exceeded_bound() {
                    None => return Ok(CommandResult { status, ..ran }),
                    Some(passed) => CommandError::Exceeded(passed),
                }
            }
            Ok(Err(unfinished)) => unfinished,
            Err(_) => CommandError::Wall,
        };
        self.inmate.kill();
        self.inmate.wait().await;
        Err(match self.inmate.exceeded_bound() {
            Some(passed) => CommandError::Exceeded(passed),
            None => unfinished,
        })
    }

    /// Removes the privileges that files of the project were given in this cage.
    pub(super) async fn sweep(&self) -> Sweep {
        let inmate = Arc::clone(&self.inmate);
        // A search that panicked is incomplete.
        tokio::task::spawn_blocking(move || inmate.sweep()).await.unwrap_or_else(|_| Sweep::unfinished())
    }

    async fn exit_status(&self) -> i64 {
        use std::os::unix::process::ExitStatusExt;
        match self.inmate.wait().await {
            Some(status) => {
                let signal = status.signal().map(|signal| 128 + i64::from(signal));
                status.code().map(i64::from).or(signal).unwrap_or(-1)
            }
            None => -1,
        }
    }

    async fn execute(&mut self, command: &str, bounds: ShellBounds) -> Result<CommandResult, CommandError> {
        let mut printed = OutputBuffer::new(bounds.output_bytes);
        let Self { commands, output, control, .. } = self;
        let asked = async {
            let sent = commands.write_all(command.as_bytes()).await;
            if sent.and(commands.write_all(b"\0").await).is_err() {
                return None;
            }
            let said = report(control).await?;
            let mark = mark();
            commands.write_all(format!("{mark}\0").as_bytes()).await.ok()?;
            Some((said, format!("\0{mark}\0").into_bytes()))
        };
        tokio::pin!(asked);
        // The output is read all the time, because a command that cannot print is blocked.
        let (said, mark) = loop {
            tokio::select! { biased;
                told = &mut asked => match told {
                    Some(told) => break told,
                    None => {
                        printed.rest(output).await?;
                        return Ok(CommandResult { status: -1, folder: String::new(), output: printed, over: true });
                    }
                },
                read = printed.read(output) => match read? {
                    true => {}
                    // All processes that could print are gone; the report shows whether bash is gone too.
                    false => match asked.as_mut().await {
                        Some(told) => break told,
                        None => return Ok(CommandResult { status: -1, folder: String::new(), output: printed, over: true }),
                    },
                },
            }
        };
        while !printed.ends_with(&mark) {
            if !printed.read(output).await? {
                return Err(CommandError::Lost);
            }
        }
        printed.cut_off(&mark);
        let (status, folder) = said;
        Ok(CommandResult { status, folder, output: printed, over: false })
    }
}

/// Reads the exit status of a command and its final folder; `None` if the shell is gone.
async fn report(control: &mut Receiver) -> Option<(i64, String)> {
    let mut said = Vec::new();
    while !said.ends_with(b"\0") {
        if said.len() > PATH_BYTES_MAX + 16 || !matches!(control.read_buf(&mut said).await, Ok(1..)) {
            return None;
        }
    }
    let said = String::from_utf8_lossy(&said);
    let (status, folder) = said.trim_end_matches('\0').split_once(' ')?;
    Some((status.parse().ok()?, folder.to_owned()))
}

/// Returns the first line of bubblewrap's error message.
fn error_line(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    said.lines().next().unwrap_or_default().trim_start_matches("bwrap: ").to_owned()
}

/// Returns a mark that no command can have printed, because it is created after the command has ended.
fn mark() -> String {
    let chance = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", chance(), chance())
}

/// The output of a command: the beginning and the end are kept, and all bytes are counted.
#[derive(Debug)]
pub(super) struct OutputBuffer {
    head: Vec<u8>,
    tail: Vec<u8>,
    /// The number of dropped bytes between the beginning and the end.
    dropped: u64,
    limit: u64,
    piece: Vec<u8>,
}

/// One half is kept from the beginning, which shows what was done, and one from the end, where errors usually are.
const HALF: usize = SHELL_OUTPUT_SHOWN_BYTES / 2;

impl OutputBuffer {
    fn new(limit: u64) -> Self {
        Self { head: Vec::new(), tail: Vec::new(), dropped: 0, limit, piece: Vec::with_capacity(16 << 10) }
    }

    fn total(&self) -> u64 {
        self.head.len() as u64 + self.dropped + self.tail.len() as u64
    }

    /// Reads the available output; returns false at the end.
    async fn read(&mut self, output: &mut Receiver) -> Result<bool, CommandError> {
        self.piece.clear();
        let count = output.read_buf(&mut self.piece).await.unwrap_or(0);
        let room = HALF.saturating_sub(self.head.len()).min(count);
        self.head.extend_from_slice(&self.piece[..room]);
        self.tail.extend_from_slice(&self.piece[room..]);
        // Twice the shown size is kept, so that not every read moves the whole buffer.
        if self.tail.len() > 4 * HALF {
            let drop = self.tail.len() - 2 * HALF;
            self.tail.drain(..drop);
            self.dropped += drop as u64;
        }
        if self.total() > self.limit.saturating_add(64) {
            return Err(CommandError::Output);
        }
        Ok(count > 0)
    }

    async fn rest(&mut self, output: &mut Receiver) -> Result<(), CommandError> {
        while self.read(output).await? {}
        Ok(())
    }

    fn last(&self, count: usize) -> Vec<u8> {
        let from_tail = count.min(self.tail.len());
        let mut last = Vec::with_capacity(count);
        if self.dropped == 0 {
            let from_head = (count - from_tail).min(self.head.len());
            last.extend_from_slice(&self.head[self.head.len() - from_head..]);
        }
        last.extend_from_slice(&self.tail[self.tail.len() - from_tail..]);
        last
    }

    fn ends_with(&self, mark: &[u8]) -> bool {
        self.last(mark.len()) == mark
    }

    fn cut_off(&mut self, mark: &[u8]) {
        let from_tail = mark.len().min(self.tail.len());
        self.tail.truncate(self.tail.len() - from_tail);
        self.head.truncate(self.head.len() - (mark.len() - from_tail));
    }

    /// Returns the output as it is shown, and the numbers of bytes shown and in total if some were dropped.
    pub(super) fn render(mut self) -> (String, Option<(u64, u64)>) {
        let total = self.total();
        if self.tail.len() > HALF {
            let drop = self.tail.len() - HALF;
            self.tail.drain(..drop);
            self.dropped += drop as u64;
        }
        if self.dropped == 0 {
            self.head.append(&mut self.tail);
            return (String::from_utf8_lossy(&self.head).into_owned(), None);
        }
        let (head, tail) = (String::from_utf8_lossy(&self.head), String::from_utf8_lossy(&self.tail));
        let shown = format!("{head}\n[{} bytes are not shown]\n{tail}", self.dropped);
        (shown, Some((total - self.dropped, total)))
    }
}
