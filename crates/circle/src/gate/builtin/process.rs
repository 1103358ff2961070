//! Runs a program once: with its input, its output and its exit status.
//!
//! The program has a process group and an environment of its own. However it ends (by itself, by too much output,
//! because its caller stopped waiting, because this process was killed), the whole group is killed, so the processes
//! that the program started do not outlive it ([`ProcessGroup`]).
//!
//! Its input is a sealed file in memory, complete before the program starts. With a pipe, a program would read half of
//! its input and then the end of the file if this process were killed while it writes, and would act on that half.

use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command as Spawning;

use crate::child_process::{ProcessGroup, sealed_file};

/// The settings of a program to run. Dropping the future of a run ends the program.
#[derive(Debug, Clone)]
pub struct Process {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    /// The working directory; that of this process unless given.
    pub folder: Option<PathBuf>,
    /// The whole environment except `PATH`: the program must not see the keys of this process.
    pub environment: Vec<(String, String)>,
}

/// The handling of output beyond the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExcessOutput {
    /// The program is ended.
    Refused,
    /// The rest is read and dropped, because a program that cannot write blocks.
    Dropped,
}

/// The result of a program.
#[derive(Debug)]
pub struct ProcessOutput {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// The reason why a run has no result.
#[derive(Debug, thiserror::Error)]
pub enum RunFault {
    #[error("it cannot be started: {}", start_problem(*.0))]
    Unstartable(io::ErrorKind),
    #[error("it was lost: {0}")]
    Lost(io::ErrorKind),
    #[error("it printed more than {0} bytes")]
    Flooded(usize),
}

/// Returns the reason why a program did not start. The operating system calls a missing file an "entity", which has
/// another meaning here.
fn start_problem(kind: io::ErrorKind) -> String {
    if kind == io::ErrorKind::NotFound {
        return "there is no such file, or the interpreter in its first line is missing".to_owned();
    }
    kind.to_string()
}

impl Process {
    /// Runs the program to its end. Keeps `printed_max` bytes of its standard output and `complained_max` of its
    /// standard error.
    pub async fn run(
        &self,
        input: &[u8],
        printed_max: usize,
        beyond: ExcessOutput,
        complained_max: usize,
    ) -> Result<ProcessOutput, RunFault> {
        let unstartable = |error: io::Error| RunFault::Unstartable(error.kind());
        let mut spawning = Spawning::new(&self.program);
        spawning.args(&self.arguments).env_clear();
        spawning.stdin(Stdio::from(sealed_file(input).map_err(unstartable)?));
        spawning.stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(path) = std::env::var_os("PATH") {
            spawning.env("PATH", path);
        }
        spawning.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(folder) = &self.folder {
            spawning.current_dir(folder);
        }
        let group = ProcessGroup::new().map_err(unstartable)?;
        let mut child = group.spawn(&mut spawning).map_err(unstartable)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let exited = async move {
            let status = child.wait().await;
            // Processes that the program left behind hold its output open, so they are killed now.
            drop(group);
            status.map_err(|error| RunFault::Lost(error.kind()))
        };
        let printed = async {
            match beyond {
                ExcessOutput::Refused => read_capped(stdout, printed_max).await.ok_or(RunFault::Flooded(printed_max)),
                ExcessOutput::Dropped => Ok(read_and_discard(stdout, printed_max).await),
            }
        };
        let complained = async { Ok(read_and_discard(stderr, complained_max).await) };
        let (printed, status, complained) = tokio::try_join!(printed, exited, complained)?;
        Ok(ProcessOutput { status, stdout: printed, stderr: complained })
    }
}

/// Reads everything up to the limit; none if there is more.
async fn read_capped(pipe: Option<impl AsyncRead + Unpin>, limit: usize) -> Option<Vec<u8>> {
    let mut read = Vec::new();
    let Some(pipe) = pipe else { return Some(read) };
    let mut pipe = pipe.take(limit as u64 + 1);
    // If the pipe breaks, the bytes so far count.
    let _ = pipe.read_to_end(&mut read).await;
    (read.len() <= limit).then_some(read)
}

/// Keeps the beginning of the output. The rest is read and dropped, because a program that cannot write blocks.
async fn read_and_discard(pipe: Option<impl AsyncRead + Unpin>, keep: usize) -> Vec<u8> {
    let mut kept = Vec::new();
    let Some(mut pipe) = pipe else { return kept };
    let mut piece = [0; 4096];
    while let Ok(count @ 1..) = pipe.read(&mut piece).await {
        let room = keep.saturating_sub(kept.len()).min(count);
        kept.extend_from_slice(&piece[..room]);
    }
    kept
}
