//! A program that is run once: something on its input, what it wrote and how it ended.
//!
//! It runs in a process group of its own and with an environment of its own. Whichever way it ends (by itself, by a flood,
//! because nobody waits for it any more, because this process was killed), the whole group is killed, so what the program
//! started does not outlive it ([`ProcessGroup`]).
//!
//! Its input is a sealed file in memory, complete before the program starts. Through a pipe, a program would read half of
//! its input and then an end if this process were killed while it writes, and would act on that half.

use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command as Spawning;

use crate::child_process::{ProcessGroup, sealed_file};

/// A program, before it is run. Dropping a run of it ends the program.
#[derive(Debug, Clone)]
pub struct Process {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    /// That of this process unless given.
    pub folder: Option<PathBuf>,
    /// Beside `PATH`, all there is: keys of this process are not the program's.
    pub environment: Vec<(String, String)>,
}

/// What becomes of output beyond what is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExcessOutput {
    /// The program is ended.
    Refused,
    /// It is read and dropped: a program that cannot write stands still.
    Dropped,
}

/// What a program came to.
#[derive(Debug)]
pub struct ProcessOutput {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// Why a program came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum RunFault {
    #[error("it cannot be started: {0}")]
    Unstartable(io::ErrorKind),
    #[error("it was lost: {0}")]
    Lost(io::ErrorKind),
    #[error("it printed more than {0} bytes")]
    Flooded(usize),
}

impl Process {
    /// Runs it to its end. Of what it prints `printed_max` bytes are kept, of its complaints `complained_max`.
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
            // What it left behind holds its output open.
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

/// Everything up to the limit, or nothing if there is more.
async fn read_capped(pipe: Option<impl AsyncRead + Unpin>, limit: usize) -> Option<Vec<u8>> {
    let mut read = Vec::new();
    let Some(pipe) = pipe else { return Some(read) };
    let mut pipe = pipe.take(limit as u64 + 1);
    // A pipe that breaks has said what it said.
    let _ = pipe.read_to_end(&mut read).await;
    (read.len() <= limit).then_some(read)
}

/// The beginning of everything; the rest is read too, because a program that cannot write stands still.
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
