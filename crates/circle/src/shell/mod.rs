//! The shell: a bash that lives as long as its entity, in a cage.
//!
//! Each entity has one bash. Its working directory, variables and functions persist from command to command, as they do
//! for a person at a terminal; what a command leaves running goes on until the entity ends, and not a moment longer. The
//! cage ([`cage`](self)) is bubblewrap: a root of its own in which the system is read-only, the project is there, and the
//! home, the keys and the network are not. What a cage cannot bound by itself (memory, processes and processor time of
//! all its processes together, the disk) a warden counts from outside. Where bubblewrap is missing nothing runs: a bare
//! shell would be a hole with a promise painted over it.
//!
//! The shell is a gate, also in the medium of its name: so every command is journalled before it begins, can be put
//! before a person, and after a crash reads `outcome unknown` like any other call with effects.

mod bash;
mod cage;
mod cgroup;
mod filter;
mod gate;
mod masks;
mod medium;
mod open_cages;
pub(crate) mod quarantine;
mod supervisor;
mod sweep;

use std::path::{Path, PathBuf};
use std::time::Duration;

use cantrip_reply::{Refusal, codes};

use crate::limits::{
    OUTPUT_BYTES_MAX, SHELL_CPU_MS, SHELL_DISK_BYTES, SHELL_FILE_BYTES, SHELL_MEMORY_BYTES, SHELL_PROCESSES,
    SHELL_WALL_MS,
};
use crate::ward::MediumLimits;
use crate::{AnyGate, Label};

pub use medium::ShellMedium;
pub use open_cages::{Leftovers, record_cages_in, sweep_abandoned};
pub use supervisor::close_all;

/// The name of the gate, and of the tool.
pub const SHELL: &str = "shell";

/// What one command, with all that it starts, may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Resident memory of all processes of the cage together.
    pub memory_bytes: u64,
    /// Processor time of one command, whoever uses it.
    pub cpu: Duration,
    /// Wall time of one command.
    pub wall: Duration,
    /// What one command may print.
    pub output_bytes: u64,
    /// Processes and threads of the cage at once.
    pub processes: u64,
    /// One file that it writes.
    pub file_bytes: u64,
    /// How much less room the project's disk may have than when the command began.
    pub disk_bytes: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            memory_bytes: SHELL_MEMORY_BYTES,
            cpu: Duration::from_millis(SHELL_CPU_MS),
            wall: Duration::from_millis(SHELL_WALL_MS),
            output_bytes: OUTPUT_BYTES_MAX as u64,
            processes: SHELL_PROCESSES,
            file_bytes: SHELL_FILE_BYTES,
            disk_bytes: SHELL_DISK_BYTES,
        }
    }
}

impl Bounds {
    /// The same under these wards: each at its narrowest.
    #[must_use]
    pub fn within(self, wards: &MediumLimits) -> Self {
        let least = |own: u64, ward: Option<u64>| ward.map_or(own, |ward| own.min(ward));
        let sooner = |own: Duration, ward: Option<Duration>| ward.map_or(own, |ward| own.min(ward));
        Self {
            memory_bytes: least(self.memory_bytes, wards.memory_bytes),
            cpu: sooner(self.cpu, wards.cpu),
            wall: sooner(self.wall, wards.wall),
            output_bytes: least(self.output_bytes, wards.output_bytes),
            ..self
        }
    }
}

/// How the shell of a circle is set up.
///
/// ```
/// use cantrip_circle::shell::Shell;
///
/// let gate = Shell::over("/srv/project").read_only().gate();
/// assert_eq!(gate.name(), "shell");
/// ```
#[derive(Debug, Clone)]
#[must_use = "a shell becomes a gate by gate()"]
pub struct Shell {
    root: PathBuf,
    read_only: bool,
    network: bool,
    readable: Vec<PathBuf>,
    spells: Vec<PathBuf>,
    environment: Vec<(String, String)>,
    bounds: Bounds,
    bubblewrap: Option<PathBuf>,
}

impl Shell {
    /// A shell that begins in this folder, sees it and may change it.
    pub fn over(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            read_only: false,
            network: false,
            readable: Vec::new(),
            spells: Vec::new(),
            environment: Vec::new(),
            bounds: Bounds::default(),
            bubblewrap: None,
        }
    }

    /// The folder cannot be changed.
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// The network of this machine is there, all of it: this machine's own services too.
    pub fn network(mut self) -> Self {
        self.network = true;
        self
    }

    /// Further paths of this machine that can be read, where they lie: a toolchain in somebody's home.
    pub fn readable(mut self, paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        self.readable.extend(paths.into_iter().map(Into::into));
        self
    }

    /// Files in the folder that make up spells. Like `cantrip.toml`, `AGENTS.md` and the files in a folder `spells` they
    /// can be read and not changed.
    pub fn spells(mut self, paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        self.spells.extend(paths.into_iter().map(Into::into));
        self
    }

    /// A variable of its environment, which otherwise has nothing of this process's own.
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    pub fn bounds(mut self, bounds: Bounds) -> Self {
        self.bounds = bounds;
        self
    }

    /// The program that makes the cage; it is looked for in `PATH` unless given.
    pub fn bubblewrap(mut self, program: impl Into<PathBuf>) -> Self {
        self.bubblewrap = Some(program.into());
        self
    }

    /// Whether a cage can be made on this machine, and what is missing if not. No cage is made to find out.
    pub fn check_available(&self) -> Result<(), Refusal> {
        self.find_bubblewrap().map(drop)
    }

    /// The gate. It carries the labels of what it can reach: the project is private, the network is both other dangers.
    pub fn gate(self) -> AnyGate {
        AnyGate::from(gate::ShellGate::new(self))
    }

    fn labels(&self) -> Vec<Label> {
        let mut labels = vec![Label::PrivateData];
        if self.network {
            labels.extend([Label::UntrustedContent, Label::ExternalComm]);
        }
        labels
    }

    fn find_bubblewrap(&self) -> Result<PathBuf, Refusal> {
        let found = match &self.bubblewrap {
            Some(program) => program.is_file().then(|| program.clone()),
            None => in_path("bwrap"),
        };
        let missing = "bubblewrap is not installed; install it with apt install bubblewrap, dnf install bubblewrap or \
                       pacman -S bubblewrap";
        if !filter::is_supported() {
            let unknown = "the system calls of this processor are not known; it runs on x86_64, aarch64 and riscv64";
            return Err(codes::sandbox_unavailable(SHELL, unknown).into());
        }
        found.ok_or_else(|| codes::sandbox_unavailable(SHELL, missing).into())
    }
}

/// A program as this process would find it.
fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(name))
        .find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}
