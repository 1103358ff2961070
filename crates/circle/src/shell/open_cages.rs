//! A record of the cages that are open, for the next process if this one is killed.
//!
//! After a command, and when a cage is gone, its project is searched for what the cage left ([`sweep`](super::sweep)). A
//! process that is killed does not come to that. So each cage has a file in a folder that no cage can write, from before it
//! is started until its last search is done. Its process holds a lock on the file. A file without a lock therefore belongs to a
//! process that is gone, and whoever starts next searches in its place, before it reads anything of the project.
//!
//! The time of the file is set anew while the cage runs. What was changed after it is not from the cage.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};

use super::quarantine::allow;
use super::sweep::{self, Before, FileTime};
use crate::limits::{SHELL_RECORD_BYTES_MAX, SHELL_RECORD_SLACK_S};

/// How the name of a record ends. One that is not written yet has another name.
const ENDING: &str = "json";

static FOLDER: OnceLock<PathBuf> = OnceLock::new();
static OPEN: Mutex<Vec<Arc<OpenCage>>> = Mutex::new(Vec::new());

/// The first line of a record.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    root: PathBuf,
    started_at: FileTime,
    covered: HashSet<String>,
}

/// What a search found that was made up for a process that was killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftovers {
    /// The project.
    pub root: PathBuf,
    /// The paths in it whose privileges were taken away.
    pub stripped: Vec<String>,
    /// The paths in it that decide about later casts and were given other names.
    pub unapproved: Vec<String>,
    /// Whether not all of the project could be looked at.
    pub incomplete: bool,
}

/// Keeps records of the cages of this process in this folder from now on. Without it none are kept.
pub fn record_cages_in(folder: PathBuf) {
    // The first one stays: cages that are open have their records in it.
    let _ = FOLDER.set(folder);
}

/// The folder of the records, if it lies in this project: a cage over somebody's home must not reach it. It is made, so
/// that it can be covered.
pub(super) fn folder_within(root: &Path) -> Option<PathBuf> {
    let folder = FOLDER.get().filter(|folder| folder.starts_with(root))?;
    fs::create_dir_all(folder).ok()?;
    folder.canonicalize().ok().filter(|folder| folder.starts_with(root))
}

/// The record of a cage.
#[derive(Debug)]
pub(super) struct OpenCage {
    /// It is locked for as long as it is open.
    file: File,
    path: PathBuf,
}

fn open_cages() -> MutexGuard<'static, Vec<Arc<OpenCage>>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OpenCage {
    /// Records a cage that is about to be started; none if no records are kept.
    pub(super) fn record(root: &Path, before: &Before) -> io::Result<Option<Arc<Self>>> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let Some(folder) = FOLDER.get() else { return Ok(None) };
        fs::create_dir_all(folder)?;
        let (started_at, covered) = (before.started_at(), before.covered().clone());
        let mut line = serde_json::to_vec(&Record { root: root.to_owned(), started_at, covered })?;
        line.push(b'\n');
        let name = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let (unfinished, path) = (folder.join(format!("{name}.new")), folder.join(format!("{name}.{ENDING}")));
        let file = OpenOptions::new().append(true).create(true).open(&unfinished)?;
        file.lock()?;
        (&file).write_all(&line)?;
        // Nobody sees it under this name without its lock.
        fs::rename(&unfinished, &path)?;
        let cage = Arc::new(Self { file, path });
        open_cages().push(Arc::clone(&cage));
        Ok(Some(cage))
    }

    /// Notes that the cage is still there.
    pub(super) fn touch(&self) {
        let now = || rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let times = rustix::fs::Timestamps { last_access: now(), last_modification: now() };
        // Whoever reads an older time finds less, and the next time is set soon.
        let _ = rustix::fs::futimens(&self.file, &times);
    }

    /// Removes the record: the cage is gone, and its project was searched.
    pub(super) fn close(&self) {
        let _ = fs::remove_file(&self.path);
        open_cages().retain(|open| open.path != self.path);
    }
}

/// Adds a file that a person allowed to be written to the records of all cages that are open.
pub(super) fn note_approved(numbers: (u64, u64)) {
    for cage in open_cages().iter() {
        if let Ok(mut line) = serde_json::to_vec(&numbers) {
            line.push(b'\n');
            // Without this line the file gets another name if this process is killed; that is said, and can be undone.
            let _ = (&cage.file).write_all(&line);
        }
    }
}

/// Searches the projects of cages whose processes were killed, as far as records of them lie in this folder, and removes
/// the records.
pub fn sweep_abandoned(folder: &Path) -> Vec<Leftovers> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    let records = paths.filter(|path| path.extension().is_some_and(|ending| ending == ENDING));
    records.filter_map(|path| sweep_record(&path)).collect()
}

fn sweep_record(path: &Path) -> Option<Leftovers> {
    let file = File::open(path).ok()?;
    match file.try_lock() {
        Ok(()) => {}
        // Its process lives, or cannot be asked about.
        Err(TryLockError::WouldBlock | TryLockError::Error(_)) => return None,
    }
    let found = file.metadata().ok()?;
    let last_seen_at =
        FileTime { seconds: found.mtime().saturating_add(SHELL_RECORD_SLACK_S), nanoseconds: found.mtime_nsec() };
    let mut text = String::new();
    let read = (&file).take(SHELL_RECORD_BYTES_MAX).read_to_string(&mut text);
    let mut lines = text.lines();
    let record = lines.next().filter(|_| read.is_ok()).and_then(|line| serde_json::from_str::<Record>(line).ok());
    let leftovers = record.map(|Record { root, started_at, covered }| {
        lines.filter_map(|line| serde_json::from_str(line).ok()).for_each(allow);
        let sweep = sweep::search(&root, &Before::on_record(&root, covered, started_at, last_seen_at));
        let (stripped, unapproved) = (sweep.stripped, sweep.unapproved);
        Leftovers { root, stripped, unapproved, incomplete: sweep.incomplete }
    });
    // What could not be looked at now will not be the next time either.
    let _ = fs::remove_file(path);
    leftovers
}
