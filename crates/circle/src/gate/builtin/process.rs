//! A program that is run once: something on its input, what it wrote and how it ended.
//!
//! It runs in a process group of its own and with an environment of its own. Whichever way it ends (by itself, by a flood,
//! because nobody waits for it any more), the whole group is killed, so what the program started does not outlive it. A
//! program that moves itself into another group gets away; a cage against that is the shell medium's.

use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command as Spawning;

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
pub enum Beyond {
    /// The program is ended.
    Refused,
    /// It is read and dropped: a program that cannot write stands still.
    Dropped,
}

/// What a program came to.
#[derive(Debug)]
pub struct Ran {
    pub status: ExitStatus,
    pub printed: Vec<u8>,
    pub complained: Vec<u8>,
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
        beyond: Beyond,
        complained_max: usize,
    ) -> Result<Ran, RunFault> {
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
        let mut child = spawning.spawn().map_err(|error| RunFault::Unstartable(error.kind()))?;
        let group = Group::of(child.id());
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let wrote = async {
            if let Some(mut stdin) = stdin {
                // A program that does not read its input closes it, and may answer all the same.
                let _ = stdin.write_all(input).await;
                let _ = stdin.shutdown().await;
            }
            Ok(())
        };
        let exited = async move {
            let status = child.wait().await;
            // What it left behind holds its output open.
            drop(group);
            status.map_err(|error| RunFault::Lost(error.kind()))
        };
        let printed = async {
            match beyond {
                Beyond::Refused => capped(stdout, printed_max).await.ok_or(RunFault::Flooded(printed_max)),
                Beyond::Dropped => Ok(drained(stdout, printed_max).await),
            }
        };
        let complained = async { Ok(drained(stderr, complained_max).await) };
        let (printed, status, complained, ()) = tokio::try_join!(printed, exited, complained, wrote)?;
        Ok(Ran { status, printed, complained })
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
