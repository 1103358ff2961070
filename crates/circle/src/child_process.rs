//! Starting programs so that none of them outlives this process.
//!
//! A process that is killed cannot clean up after itself. So a program is started in the process group of a keeper, a
//! shell that waits for the end of a pipe which only this process holds. When this process ends, however it ends, the
//! pipe ends too, and the keeper kills the group and with it itself. The Linux signal at the death of the parent was
//! rejected: it reaches only the program and not the processes that the program started (`npx` starts `node`); it is
//! also sent when the thread that started the program ends, and setting it takes unsafe code. A program that moves
//! itself into another group escapes; only the cage of the shell prevents that.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, ChildStdin, Command};

/// Kills its own group when its input ends.
const KEEPER_SCRIPT: &str = "read -r _; kill -KILL 0";

/// A process group that ends with this process. Dropping it kills every process of the group.
#[derive(Debug)]
pub struct ProcessGroup {
    id: Pid,
    /// The leader of the group. It is not waited for, so its process id cannot be reused while this value exists.
    _keeper: Child,
    /// The keeper waits for the end of this pipe.
    _lifeline: ChildStdin,
}

impl ProcessGroup {
    /// Starts the keeper of a new group.
    pub fn new() -> io::Result<Self> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", KEEPER_SCRIPT]).env_clear().current_dir("/").process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut keeper = {
            let _guard = spawn_lock();
            command.spawn()?
        };
        let id = keeper.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let (Some(id), Some(lifeline)) = (id, keeper.stdin.take()) else {
            return Err(io::Error::other("the keeper of the process group is gone"));
        };
        Ok(Self { id, _keeper: keeper, _lifeline: lifeline })
    }

    /// Starts a program in this group.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let _guard = spawn_lock();
        command.process_group(self.id.as_raw_nonzero().get()).kill_on_drop(true).spawn()
    }

    /// Kills every process of the group.
    pub fn kill(&self) {
        // The error of an empty group is ignored: there is nothing left to kill.
        let _ = kill_process_group(self.id, Signal::KILL);
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Locks out other spawns of this crate, so that their programs do not inherit a file that is open for one program
/// only.
pub fn spawn_lock() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a file in memory with these bytes, positioned at the start and sealed against changes.
pub fn sealed_file(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("cantrip", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file.into())
}
