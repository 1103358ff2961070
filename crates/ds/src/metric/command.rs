//! `command.v1`: a program of this machine, in a cage.
//!
//! The cage is bubblewrap's: the system and the folder of the metric can be read, nothing can be written but a folder
//! that vanishes with it, there is no network, and the environment is empty. Without bubblewrap the command does not
//! run bare: the output has no score.

use std::path::PathBuf;
use std::time::Duration;

use cantrip::canon::json;
use cantrip::circle::gate::builtin::{ExcessOutput, Process, ProcessOutput, RunFault};
use cantrip_contract::Unscored;
use serde_json::Value;

use super::program::read_score;
use super::score::{Scoring, cut_text};
use crate::limits::METRIC_OUTPUT_BYTES_MAX;

/// The parts of the system that a command may read.
const SYSTEM: [&str; 12] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/nix/store",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/localtime",
];

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The length of a command's complaint in a message.
const COMPLAINT_CHARS: usize = 500;

/// The cage in which the commands of metrics run.
#[derive(Debug, Clone)]
pub struct CommandCage {
    bubblewrap: PathBuf,
    folder: Option<PathBuf>,
}

impl Default for CommandCage {
    /// The `bwrap` on the path, and the current folder.
    fn default() -> Self {
        Self { bubblewrap: PathBuf::from("bwrap"), folder: None }
    }
}

impl CommandCage {
    /// Runs commands in this folder, which they can read.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()), ..Self::default() }
    }

    /// Uses this program as bubblewrap.
    #[must_use]
    pub fn bubblewrap(mut self, program: impl Into<PathBuf>) -> Self {
        self.bubblewrap = program.into();
        self
    }

    /// Runs a command with this value as JSON on its input, and reads `{score, feedback}` from its output.
    pub(super) async fn score(&self, argv: &[String], timeout_seconds: u64, argument: &Value) -> Scoring {
        match self.run(argv, timeout_seconds, argument).await.and_then(|printed| read_score(&printed)) {
            Ok(scoring) => scoring,
            Err(rule) => Scoring::unscored(Unscored::MetricFailed, format!("the metric's command: {rule}")),
        }
    }

    async fn run(&self, argv: &[String], timeout_seconds: u64, argument: &Value) -> Result<String, String> {
        let folder = match &self.folder {
            Some(folder) => folder.clone(),
            None => std::env::current_dir().map_err(|error| format!("there is no current folder: {error}"))?,
        };
        let folder = folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()))?;
        let Some(folder_text) = folder.to_str() else {
            return Err("the path of the folder is not UTF-8".to_owned());
        };
        let input = json::canonical(argument).map_err(|fault| fault.to_string())?;
        let process = Process {
            program: self.bubblewrap.clone(),
            arguments: caged(folder_text, argv),
            folder: Some(folder.clone()),
            environment: Vec::new(),
        };
        let most = METRIC_OUTPUT_BYTES_MAX;
        let running = process.run(input.as_bytes(), most, ExcessOutput::Refused, most);
        let ran = tokio::time::timeout(Duration::from_secs(timeout_seconds), running).await;
        let Ok(ran) = ran else { return Err(format!("it took more than {timeout_seconds} s")) };
        let ProcessOutput { status, stdout, stderr } = ran.map_err(|fault| match fault {
            RunFault::Unstartable(_) => {
                format!("{}: {fault}; commands of metrics need bubblewrap", self.bubblewrap.display())
            }
            RunFault::Lost(_) | RunFault::Flooded(_) => fault.to_string(),
        })?;
        if !status.success() {
            let complaint = String::from_utf8_lossy(&stderr);
            return Err(format!("{status}: {}", cut_text(complaint.trim(), COMPLAINT_CHARS)));
        }
        String::from_utf8(stdout).map_err(|_| "its output is not UTF-8".to_owned())
    }
}

/// Returns the arguments of bubblewrap for this command.
fn caged(folder: &str, argv: &[String]) -> Vec<String> {
    let mut arguments: Vec<&str> = vec![
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--die-with-parent",
        "--new-session",
        "--uid",
        "1000",
        "--gid",
        "1000",
        "--cap-drop",
        "ALL",
        "--hostname",
        "cage",
        "--clearenv",
        "--setenv",
        "PATH",
        PATH,
    ];
    for path in SYSTEM {
        arguments.extend(["--ro-bind-try", path, path]);
    }
    arguments.extend(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]);
    arguments.extend(["--ro-bind", folder, folder, "--remount-ro", "/", "--chdir", folder, "--"]);
    arguments.into_iter().map(str::to_owned).chain(argv.iter().cloned()).collect()
}
