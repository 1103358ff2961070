//! The files that a person approved for writing by a gate.
//!
//! A shell renames new files that decide about later casts, because nobody approved them. The gate `write` may have
//! created such a file in the same project, with an approval. So the gate notes each approved file here, by device and
//! inode, and the search of a shell leaves it unchanged.

use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fs::{AtFlags, statat};

/// The device and the inode of a file.
pub type FileNumber = (u64, u64);

static APPROVED: Mutex<Option<HashSet<FileNumber>>> = Mutex::new(None);
static OBSERVER: OnceLock<fn(FileNumber)> = OnceLock::new();

/// Records that a person approved the writing of this file.
pub(crate) fn note(folder: BorrowedFd<'_>, name: &str) {
    if let Ok(stat) = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        let number = (stat.st_dev, stat.st_ino);
        insert(number);
        if let Some(observer) = OBSERVER.get() {
            observer(number);
        }
    }
}

/// Adds a file whose approval was noted by another process.
pub fn insert(number: FileNumber) {
    APPROVED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().insert(number);
}

/// Returns true if a person approved the writing of this file.
pub fn contains(number: FileNumber) -> bool {
    let approved = APPROVED.lock().unwrap_or_else(PoisonError::into_inner);
    approved.as_ref().is_some_and(|approved| approved.contains(&number))
}

/// Sets the function that is called with each file that is approved from now on. The first function is kept.
pub fn observe(observer: fn(FileNumber)) {
    let _ = OBSERVER.set(observer);
}
