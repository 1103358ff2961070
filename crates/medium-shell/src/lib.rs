//! The shell: a bash in a cage that lives as long as its entity.
//!
//! Each entity has one bash. Its working directory, variables and functions persist from command to command, as they do
//! for a person at a terminal. A background job of a command runs until the entity ends, and no longer. The cage
//! (`cage`) is bubblewrap: it has its own root, in which the system is read-only, the project is present, and the home,
//! the keys and the network are not. The limits that a cage cannot enforce by itself (memory, processes and processor
//! time of all its processes together, disk space) are checked by a supervisor from outside. If bubblewrap is missing,
//! nothing runs: a bare shell would be a hole that looks like a sandbox.
//!
//! The shell is a gate, also in the medium of the same name. So every command is journalled before it begins, can need
//! the approval of a person, and after a crash is reported as `outcome unknown` like any other call with effects.

mod bash;
mod cage;
mod cgroup;
mod filter;
mod gate;
pub mod limits;
mod masks;
mod medium;
mod open_cages;
mod quarantine;
mod supervisor;
mod sweep;

use std::path::{Path, PathBuf};

use cantrip_reply::{Refusal, codes};

use cantrip_circle::ward::ShellBounds;
use cantrip_circle::{AnyGate, Label};

pub use medium::ShellMedium;
pub use open_cages::{Leftovers, record_cages_in, sweep_abandoned};
pub use supervisor::close_all;

/// The name of the gate, and of the tool.
pub const SHELL: &str = "shell";

/// The configuration of a circle's shell.
///
/// ```
/// use cantrip_medium_shell::Shell;
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
    bounds: ShellBounds,
    bubblewrap: Option<PathBuf>,
}

impl Shell {
    /// Creates a shell that starts in this folder and can read and change it.
    pub fn over(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            read_only: false,
            network: false,
            readable: Vec::new(),
            spells: Vec::new(),
            environment: Vec::new(),
            bounds: ShellBounds::default(),
            bubblewrap: None,
        }
    }

    /// Makes the folder read-only.
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Allows the whole network of this machine, including the machine's own services.
    pub fn network(mut self) -> Self {
        self.network = true;
        self
    }

    /// Adds paths of this machine that can be read at their own location, such as a toolchain in a home folder.
    pub fn readable(mut self, paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        self.readable.extend(paths.into_iter().map(Into::into));
        self
    }

    /// Adds files in the folder that make up spells. Like `cantrip.toml`, `AGENTS.md` and the files in a folder
    /// `spells` they can be read and not changed.
    pub fn spells(mut self, paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        self.spells.extend(paths.into_iter().map(Into::into));
        self
    }

    /// Adds an environment variable. Otherwise the environment has no variables of this process.
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    pub fn bounds(mut self, bounds: ShellBounds) -> Self {
        self.bounds = bounds;
        self
    }

    /// Sets the path of bubblewrap; by default it is searched in `PATH`.
    pub fn bubblewrap(mut self, program: impl Into<PathBuf>) -> Self {
        self.bubblewrap = Some(program.into());
        self
    }

    /// Checks whether a cage can be made on this machine, and returns what is missing if not. No cage is started for
    /// the check.
    pub fn check_available(&self) -> Result<(), Refusal> {
        self.find_bubblewrap().map(drop)
    }

    /// Builds the gate. It has the labels of what it can reach: the project is private data; the network is both
    /// untrusted content and external communication.
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

/// Returns the path of a program as this process would find it.
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
