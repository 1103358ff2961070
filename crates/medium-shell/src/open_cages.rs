//! A record of the open cages, for the next process if this one is killed.
//!
//! After each command, and when a cage is gone, its project is searched for files that the cage left
//! ([`sweep`](super::sweep)). A process that is killed cannot do that. So each cage has a file in a folder that no cage
//! can write, from before its start until its last search is done. The process of the cage holds a lock on the file. A
//! file without a lock therefore belongs to a process that is gone, and the next process that starts does the search
//! instead, before it reads anything of the project.
//!
//! The modification time of the file is updated while the cage runs. Changes after that time are not from the cage.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};

use cantrip_circle::approved_files::{self, FileNumber};

use super::sweep::{self, Before, FileTime};
use crate::limits::{SHELL_RECORD_BYTES_MAX, SHELL_RECORD_SLACK_S};

/// The extension of a record. A record that is not fully written yet has another name.
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

/// The findings of a search on behalf of a process that was killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftovers {
    /// The root of the project.
    pub root: PathBuf,
    /// The paths in the project whose privileges were removed.
    pub stripped: Vec<String>,
    /// The paths in the project that decide about later casts and were renamed.
    pub unapproved: Vec<String>,
    /// True if a part of the project could not be searched.
    pub incomplete: bool,
}

/// Sets the folder in which this process records its cages. Without it no records are kept.
pub fn record_cages_in(folder: PathBuf) {
    // The first folder is kept, because open cages have their records in it.
    let _ = FOLDER.set(folder);
}

/// Returns the folder of the records if it is inside of this project, because a cage over a home folder must not reach
/// it. The folder is created, so that it can be covered.
pub(super) fn folder_within(root: &Path) -> Option<PathBuf> {
    let folder = FOLDER.get().filter(|folder| folder.starts_with(root))?;
    fs::create_dir_all(folder).ok()?;
    folder.canonicalize().ok().filter(|folder| folder.starts_with(root))
}

/// The record of a cage.
#[derive(Debug)]
pub(super) struct OpenCage {
    /// The file stays locked while it is open.
    file: File,
    path: PathBuf,
}

fn open_cages() -> MutexGuard<'static, Vec<Arc<OpenCage>>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OpenCage {
    /// Records a cage before its start; returns `None` if no records are kept.
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
        // Under its final name the file is never visible without its lock.
        fs::rename(&unfinished, &path)?;
        let cage = Arc::new(Self { file, path });
        approved_files::observe(note_approved);
        open_cages().push(Arc::clone(&cage));
        Ok(Some(cage))
    }

    /// Records that the cage still exists.
    pub(super) fn touch(&self) {
        let now = || rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let times = rustix::fs::Timestamps { last_access: now(), last_modification: now() };
        // With an older time a search finds less, and the next update comes soon.
        let _ = rustix::fs::futimens(&self.file, &times);
    }

    /// Removes the record when the cage is gone and its project was searched.
    pub(super) fn close(&self) {
        let _ = fs::remove_file(&self.path);
        open_cages().retain(|open| open.path != self.path);
    }
}

/// Adds a file that a person approved to the records of all open cages.
fn note_approved(number: FileNumber) {
    for cage in open_cages().iter() {
        if let Ok(mut line) = serde_json::to_vec(&number) {
            line.push(b'\n');
            // Without this line the file is renamed if this process is killed; the rename is reported, and can be
            // undone.
            let _ = (&cage.file).write_all(&line);
        }
    }
}

/// Searches the projects of cages whose processes were killed, by the records in this folder, and removes the records.
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
        // The process of the cage is alive, or its state is not known.
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
        lines.filter_map(|line| serde_json::from_str(line).ok()).for_each(approved_files::insert);
        let sweep = sweep::search(&root, &Before::on_record(&root, covered, started_at, last_seen_at));
        let (stripped, unapproved) = (sweep.stripped, sweep.unapproved);
        Leftovers { root, stripped, unapproved, incomplete: sweep.incomplete }
    });
    // If a part could not be searched now, the next attempt would not succeed either.
    let _ = fs::remove_file(path);
    leftovers
}
