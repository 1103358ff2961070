//! The kernel's own limit on the processes of a cage.
//!
//! If this process is root, the kernel's per-user limit on processes does not apply, and counting from outside comes
//! too late: thousands of processes can start between two checks. So each cage gets its own control group if this
//! process may create one. If it may not, it is most likely not root, and the per-user limit applies.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::limits::{SHELL_GONE_MS, SHELL_PROCESSES_BEYOND, SHELL_TICK_MS};

/// A control group. It is removed when it is empty.
#[derive(Debug)]
pub(super) struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Creates a group that allows a few more processes than the bound, so that the excess is seen before the kernel
    /// refuses a process. Returns `None` if the kernel does not allow a group.
    pub(super) fn of(processes: u64) -> Option<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("cantrip-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let above = above()?;
        static SWEPT: Once = Once::new();
        SWEPT.call_once(|| sweep(&above));
        let path = above.join(name);
        fs::create_dir(&path).ok()?;
        let roster = Self(path);
        fs::write(roster.0.join("pids.max"), (processes + SHELL_PROCESSES_BEYOND).to_string()).ok()?;
        Some(roster)
    }

    /// Returns a command that runs the same program inside of the group.
    pub(super) fn wrap_command(&self, command: &Command) -> Command {
        const ENTER: &str = r#"echo 0 > "$1" && shift && exec "$@""#;
        let mut entering = Command::new("/bin/sh");
        entering.args(["-c", ENTER, "sh"]).arg(self.0.join("cgroup.procs")).arg(command.get_program());
        entering.args(command.get_args()).env_clear();
        entering.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        if let Some(folder) = command.get_current_dir() {
            entering.current_dir(folder);
        }
        entering.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        entering
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // Killed processes leave the group a moment later.
        let path = std::mem::take(&mut self.0);
        if fs::remove_dir(&path).is_err() {
            thread::spawn(move || {
                for _ in 0..SHELL_GONE_MS / SHELL_TICK_MS {
                    thread::sleep(Duration::from_millis(SHELL_TICK_MS));
                    if fs::remove_dir(&path).is_ok() {
                        return;
                    }
                }
            });
        }
    }
}

/// Returns the group of this process, if a group below it can count processes.
fn above() -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let mount = match controllers {
            "" => Path::new("/sys/fs/cgroup").to_owned(),
            several if several.split(',').any(|one| one == "pids") => Path::new("/sys/fs/cgroup").join("pids"),
            _ => return None,
        };
        let group = mount.join(path.trim_start_matches('/'));
        let counts = !controllers.is_empty()
            || fs::read_to_string(group.join("cgroup.subtree_control")).is_ok_and(|given| given.contains("pids"));
        (group.is_dir() && counts).then_some(group)
    })
}

/// Removes the groups of processes that are gone. A group that is not empty stays.
fn sweep(above: &Path) {
    let entries = fs::read_dir(above).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let of = name.to_str().and_then(|name| name.strip_prefix("cantrip-")?.split('-').next());
        if of.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Returns true if a program exists; a bare name is searched in `PATH`.
pub(super) fn is_there(program: &Path) -> bool {
    if program.components().count() > 1 {
        return program.exists();
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).exists())
}
