//! The supervisor: starts cages, and checks the resources that they use.
//!
//! Limits of single processes do not bound a cage: a thousand small processes use as much as one large one, and if this
//! process is root, the kernel's own limit on processes does not apply. So one thread checks all cages a few times a
//! second, adds up the usage of their processes, and ends a cage that exceeds its bounds. All processes of a cage are
//! descendants of the one that was started for it, whatever they do: a process that loses its parent becomes a child of
//! the cage's first process.
//!
//! Cages are started by a thread that never ends, because a cage dies with the thread that started it.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use cantrip_circle::child_process::spawn_lock;
use cantrip_circle::ward::ShellBounds;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::oneshot;

use super::cage::CageCommand;
use super::cgroup::{self, ControlGroup};
use super::open_cages::OpenCage;
use super::sweep::{self, Before, Sweep};
use crate::limits::{SHELL_GONE_MS, SHELL_TICK_MS};

/// The bound that a cage exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExceededBound {
    Memory,
    Cpu,
    Processes(u64),
    Disk,
}

/// A running cage.
#[derive(Debug)]
pub(super) struct RunningCage {
    child: Mutex<Child>,
    /// The bubblewrap process outside of the cage.
    outer: Option<Pid>,
    root: PathBuf,
    before: Before,
    /// The record for the next process, in case this one is killed.
    record: Option<Arc<OpenCage>>,
    state: Mutex<State>,
    _roster: Option<ControlGroup>,
}

#[derive(Debug, Default)]
struct State {
    bounds: Option<ShellBounds>,
    /// The first process inside of the cage, once it was seen.
    first: Option<Pid>,
    /// The processor time used when the command began, and below it at the last check.
    cpu_before: Duration,
    cpu: Duration,
    /// The free disk space when the command began.
    room: Option<u64>,
    passed: Option<ExceededBound>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RunningCage {
    /// Starts counting for a command under these bounds.
    pub(super) fn begin_command(&self, bounds: ShellBounds) {
        let mut state = locked(&self.state);
        state.cpu_before = state.cpu;
        state.room = room(&self.root);
        state.bounds = Some(bounds);
    }

    /// Returns the bound that the cage exceeded, if the supervisor ended it.
    pub(super) fn exceeded_bound(&self) -> Option<ExceededBound> {
        locked(&self.state).passed
    }

    /// Kills every process of the cage. They are gone when [`RunningCage::wait`] returns.
    pub(super) fn kill(&self) {
        // The processes of a cage end with its first process, and the outer process ends after it. Until the first
        // process was seen, the outer process is killed, and the first process ends with it.
        let first = locked(&self.state).first;
        if let Some(process) = first.or(self.outer) {
            let _ = kill_process(process, Signal::KILL);
        }
    }

    /// Waits until the cage has ended, and returns its exit status.
    pub(super) async fn wait(&self) -> Option<ExitStatus> {
        let until = Instant::now() + Duration::from_millis(SHELL_GONE_MS);
        loop {
            if let Ok(Some(status)) = locked(&self.child).try_wait() {
                return Some(status);
            }
            if Instant::now() >= until {
                let _ = locked(&self.child).kill();
                return None;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Searches the project for privileges and for files that decide about later casts, if they came from this cage.
    pub(super) fn sweep(&self) -> Sweep {
        let sweep = sweep::search(&self.root, &self.before);
        for path in &sweep.stripped {
            tracing::warn!(root = %self.root.display(), path, "a file was given privileges in a cage; they were taken away");
        }
        for path in &sweep.unapproved {
            tracing::warn!(root = %self.root.display(), path, "a file made in a cage decides about later casts; it was renamed");
        }
        if sweep.incomplete {
            tracing::warn!(root = %self.root.display(), "not every file that a cage may have changed could be looked at");
        }
        sweep
    }

    /// Searches the project for the last time, after the cage is gone.
    fn sweep_finally(&self) {
        self.sweep();
        if let Some(record) = &self.record {
            record.close();
        }
    }

    fn has_ended(&self) -> bool {
        !matches!(locked(&self.child).try_wait(), Ok(None))
    }
}

/// Records a cage. A cage that cannot be recorded is started all the same: its project is searched as long as this
/// process lives, and a read-only home is common where each process has its own container.
fn recorded(root: &Path, before: &Before) -> Option<Arc<OpenCage>> {
    OpenCage::record(root, before).unwrap_or_else(|error| {
        tracing::warn!(root = %root.display(), %error, "a cage is not recorded; its files are not checked after a kill");
        None
    })
}

fn room(root: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(root).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

/// A cage that has been started, with its pipes.
pub(super) struct StartedCage {
    pub(super) inmate: Arc<RunningCage>,
    pub(super) stdin: std::process::ChildStdin,
    pub(super) stdout: std::process::ChildStdout,
    pub(super) stderr: std::process::ChildStderr,
}

struct StartRequest {
    cage: CageCommand,
    root: PathBuf,
    /// The process limit for the control group.
    processes: u64,
    answer: oneshot::Sender<io::Result<StartedCage>>,
}

/// All cages of this process.
#[derive(Default)]
struct CageSupervisor {
    inmates: Mutex<Vec<Arc<RunningCage>>>,
    arrived: Condvar,
    /// The last searches after cages that have ended. A search is added while the list of cages is locked from which
    /// its cage is removed.
    last_sweeps: Mutex<Vec<thread::JoinHandle<()>>>,
}

static WARD: OnceLock<Arc<CageSupervisor>> = OnceLock::new();

/// Starts a cage.
pub(super) async fn start(cage: CageCommand, root: PathBuf, processes: u64) -> io::Result<StartedCage> {
    static DOOR: OnceLock<mpsc::Sender<StartRequest>> = OnceLock::new();
    let door = match DOOR.get() {
        Some(door) => door,
        None => {
            let opened = open()?;
            DOOR.get_or_init(|| opened)
        }
    };
    let (answer, answered) = oneshot::channel();
    let closed = || io::Error::other("nobody starts cages any more");
    door.send(StartRequest { cage, root, processes, answer }).map_err(|_| closed())?;
    answered.await.map_err(|_| closed())?
}

/// Ends all cages of this process and searches their projects for the last time. A process calls this before it exits.
pub fn close_all() {
    let Some(ward) = WARD.get() else { return };
    let inmates = std::mem::take(&mut *locked(&ward.inmates));
    inmates.iter().for_each(|inmate| inmate.kill());
    let until = Instant::now() + Duration::from_millis(SHELL_GONE_MS);
    for inmate in inmates {
        while !inmate.has_ended() && Instant::now() < until {
            thread::sleep(Duration::from_millis(2));
        }
        // A cage that cannot be ended keeps its record for the next process.
        if inmate.has_ended() {
            inmate.sweep_finally();
        }
    }
    for sweep in std::mem::take(&mut *locked(&ward.last_sweeps)) {
        // A search that panicked leaves its record for the next process.
        let _ = sweep.join();
    }
}

fn open() -> io::Result<mpsc::Sender<StartRequest>> {
    let (door, orders) = mpsc::channel::<StartRequest>();
    let ward = Arc::clone(WARD.get_or_init(Arc::default));
    let watched = Arc::clone(&ward);
    thread::Builder::new().name("cantrip-warden".to_owned()).spawn(move || watched.watch())?;
    thread::Builder::new().name("cantrip-cages".to_owned()).spawn(move || {
        for StartRequest { cage, root, processes, answer } in orders {
            // The caller may be gone. Then the pipes are closed and the returned cage is killed.
            if let Err(Ok(unwanted)) = answer.send(ward.start_cage(cage, root, processes)) {
                unwanted.inmate.kill();
            }
        }
    })?;
    Ok(door)
}

impl CageSupervisor {
    fn start_cage(&self, cage: CageCommand, root: PathBuf, processes: u64) -> io::Result<StartedCage> {
        let CageCommand { mut command, filter, covered, writes } = cage;
        // A missing program is reported by the attempt to start it.
        let roster = cgroup::is_there(Path::new(command.get_program())).then(|| ControlGroup::of(processes)).flatten();
        if let Some(roster) = &roster {
            command = roster.wrap_command(&command);
        }
        let before = Before::look(&root, covered);
        let record = if writes { recorded(&root, &before) } else { None };
        let mut child = {
            let _guard = spawn_lock();
            fcntl_setfd(&filter, FdFlags::empty())?;
            let spawned = command.spawn();
            drop(filter);
            spawned.inspect_err(|_| record.iter().for_each(|record| record.close()))?
        };
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let outer = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let inmate = Arc::new(RunningCage {
            child: Mutex::new(child),
            outer,
            root,
            before,
            record,
            state: Mutex::default(),
            _roster: roster,
        });
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            inmate.kill();
            return Err(io::Error::other("it has no pipes"));
        };
        locked(&self.inmates).push(Arc::clone(&inmate));
        self.arrived.notify_one();
        Ok(StartedCage { inmate, stdin, stdout, stderr })
    }

    fn watch(&self) {
        loop {
            let mut inmates = locked(&self.inmates);
            while inmates.is_empty() {
                inmates = self.arrived.wait(inmates).unwrap_or_else(PoisonError::into_inner);
            }
            // This also reaps cages that have ended, because no other code may do it.
            let ended: Vec<Arc<RunningCage>> = inmates.extract_if(.., |inmate| inmate.has_ended()).collect();
            // The search of a large project takes long, and the other cages must still be checked in the meantime.
            let sweeps = ended.into_iter().map(|inmate| thread::spawn(move || inmate.sweep_finally()));
            let mut last_sweeps = locked(&self.last_sweeps);
            last_sweeps.retain(|sweep| !sweep.is_finished());
            last_sweeps.extend(sweeps);
            drop(last_sweeps);
            let present = inmates.clone();
            drop(inmates);
            let census = ProcessTable::read();
            for inmate in &present {
                inmate.check_bounds(&census);
                if let Some(record) = &inmate.record {
                    record.touch();
                }
            }
            thread::sleep(Duration::from_millis(SHELL_TICK_MS));
        }
    }
}

impl RunningCage {
    fn check_bounds(&self, census: &ProcessTable) {
        let Some(outer) = self.outer else { return };
        let Count { first, processes, memory, cpu } = census.usage_below(outer.as_raw_nonzero().get());
        let mut state = locked(&self.state);
        state.first = first.and_then(Pid::from_raw).or(state.first);
        state.cpu = state.cpu.max(cpu);
        let Some(bounds) = state.bounds else { return };
        let lost_room = state.room.zip(room(&self.root)).map_or(0, |(before, now)| before.saturating_sub(now));
        let passed = if processes > bounds.processes {
            Some(ExceededBound::Processes(processes))
        } else if memory > bounds.memory_bytes {
            Some(ExceededBound::Memory)
        } else if state.cpu.saturating_sub(state.cpu_before) > bounds.cpu {
            Some(ExceededBound::Cpu)
        } else if lost_room > bounds.disk_bytes {
            Some(ExceededBound::Disk)
        } else {
            None
        };
        if let Some(passed) = passed {
            state.passed.get_or_insert(passed);
            drop(state);
            self.kill();
        }
    }
}

/// All visible processes of this machine, by their parent.
struct ProcessTable {
    children: HashMap<i32, Vec<Process>>,
}

#[derive(Debug, Clone, Copy)]
struct Process {
    id: i32,
    threads: u64,
    memory: u64,
    cpu: Duration,
}

#[derive(Debug, Default)]
struct Count {
    first: Option<i32>,
    processes: u64,
    memory: u64,
    cpu: Duration,
}

impl ProcessTable {
    fn read() -> Self {
        let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        for id in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
            // A process that has ended in the meantime is skipped.
            let read = fs::read_to_string(format!("/proc/{id}/stat")).ok();
            if let Some((parent, process)) = read.and_then(|stat| process(id, &stat)) {
                children.entry(parent).or_default().push(process);
            }
        }
        Self { children }
    }

    fn usage_below(&self, outer: i32) -> Count {
        let of = |id: i32| self.children.get(&id).map_or(&[][..], Vec::as_slice);
        let mut count = Count { first: of(outer).first().map(|first| first.id), ..Count::default() };
        let mut left: Vec<i32> = vec![outer];
        while let Some(parent) = left.pop() {
            for process in of(parent) {
                count.processes += process.threads;
                count.memory += process.memory;
                count.cpu += process.cpu;
                left.push(process.id);
            }
        }
        count
    }
}

/// Parses a line of `/proc/<id>/stat`. The process name in it may contain anything, so parsing starts after the name.
fn process(id: i32, stat: &str) -> Option<(i32, Process)> {
    let (_, behind) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = behind.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    // The time of the process and of its children that it has waited for.
    let ticks = number(11)? + number(12)? + number(13)? + number(14)?;
    let second = rustix::param::clock_ticks_per_second().max(1);
    let process = Process {
        id,
        threads: number(17)?,
        memory: number(21)?.saturating_mul(rustix::param::page_size() as u64),
        cpu: Duration::from_millis(ticks.saturating_mul(1_000) / second),
    };
    Some((fields.get(1)?.parse().ok()?, process))
}

#[cfg(test)]
mod tests {
    use super::process;

    #[test]
    fn a_process_is_read_whatever_it_calls_itself() {
        let stat = "42 (a) R 1 (b) S 7 42 42 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 3 0 9 100 5 0 0";
        let (parent, read) = process(42, stat).expect("it can be read");
        assert_eq!((parent, read.threads), (7, 3));
        assert_eq!(read.memory, 5 * rustix::param::page_size() as u64);
        let ticks = u128::from(rustix::param::clock_ticks_per_second());
        assert_eq!(read.cpu.as_millis(), 100 * 1_000 / ticks);
        assert!(process(1, "1 (short) S 7").is_none());
    }
}
