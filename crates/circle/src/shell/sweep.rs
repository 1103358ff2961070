//! The search for privileges that a cage left behind.
//!
//! The filter of system calls ([`filter`](super::filter)) keeps every file of a cage from getting a setuid, setgid or sticky
//! bit, a file capability, or the type of a device. This search is the last line behind it, for a way that nobody knows
//! yet: after each command, and once more when the cage is gone, the project is searched for such files, and what was
//! given since the cage was started is taken away.
//!
//! The same search finds new files that decide about later casts ([`quarantine`](super::quarantine)).
//!
//! The cage may still be running and may move folders about, so every step goes through the handle of a folder and none
//! follows a link.

use std::collections::{HashMap, HashSet};
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, open, openat, statat, unlinkat};
use rustix::time::{ClockId, clock_gettime};

use super::quarantine::quarantine;
use crate::limits::{SHELL_SWEEP_DEPTH_MAX, SHELL_SWEEP_ENTRIES_MAX, SHELL_SWEEP_NAMED_MAX};

/// The setuid, setgid and sticky bits.
const SPECIAL_BITS: u32 = 0o7000;
const SETGID: u32 = 0o2000;
const CAPABILITY: &str = "security.capability";

/// A time on the clock by which the kernel dates changes of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FileTime {
    seconds: i64,
    nanoseconds: i64,
}

impl FileTime {
    fn now() -> Self {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        Self { seconds: now.tv_sec, nanoseconds: now.tv_nsec }
    }

    fn of_change(stat: &Stat) -> Self {
        Self { seconds: stat.st_ctime, nanoseconds: stat.st_ctime_nsec as i64 }
    }
}

/// The outcome of a search.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// The paths, relative to the project, whose privileges were taken away.
    pub(super) stripped: Vec<String>,
    /// The paths of new files that decide about later casts and were given other names.
    pub(super) unapproved: Vec<String>,
    /// There was more than a search looks at, or something that could not be mended.
    pub(super) incomplete: bool,
    entries: usize,
}

/// What is known of a project from before its cage was started.
#[derive(Debug)]
pub(super) struct Before {
    started_at: FileTime,
    /// The paths that are covered in the cage, from the root of the project.
    covered: HashSet<String>,
    /// The special bits of the folders that had some, by device and inode. A folder's time of change is also that of its
    /// entries, so it does not tell whether its bits are new.
    folder_bits: HashMap<(u64, u64), u32>,
}

impl Before {
    /// Looks at a project whose cage is about to be started.
    pub(super) fn look(root: &Path, covered: HashSet<String>) -> Self {
        let mut folder_bits = HashMap::new();
        let mut folders = vec![(root.to_owned(), 0)];
        let mut entries = 0;
        while let Some((folder, depth)) = folders.pop() {
            // What cannot be read is left to the search, which says so.
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                entries += 1;
                let Ok(stat) = entry.metadata() else { continue };
                if !stat.is_dir() {
                    continue;
                }
                if stat.mode() & SPECIAL_BITS != 0 {
                    folder_bits.insert((stat.dev(), stat.ino()), stat.mode() & SPECIAL_BITS);
                }
                if depth < SHELL_SWEEP_DEPTH_MAX && entries < SHELL_SWEEP_ENTRIES_MAX {
                    folders.push((entry.path(), depth + 1));
                }
            }
        }
        Self { started_at: FileTime::now(), covered, folder_bits }
    }

    /// The bits of a folder that it had before.
    fn older_bits(&self, stat: &Stat) -> u32 {
        self.folder_bits.get(&(stat.st_dev, stat.st_ino)).copied().unwrap_or_default()
    }
}

/// Takes away the privileges that files below `root` were given since the cage was started, and gives other names to the
/// new files in it that decide about later casts.
pub(super) fn search(root: &Path, before: &Before) -> Sweep {
    let mut sweep = Sweep::default();
    match open(root, FOLDER, Mode::empty()) {
        Ok(folder) => {
            let setgid = fstat(&folder).is_ok_and(|stat| stat.st_mode & SETGID != 0);
            sweep.search(folder, setgid, "", 0, before);
        }
        Err(_) => sweep.incomplete = true,
    }
    sweep
}

const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);
const ENTRY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Sweep {
    /// The outcome of a search that did not come to its end.
    pub(super) fn unfinished() -> Self {
        Self { incomplete: true, ..Self::default() }
    }

    fn search(&mut self, folder: OwnedFd, folder_has_setgid: bool, path: &str, depth: usize, before: &Before) {
        let Ok(mut entries) = Dir::read_from(&folder) else {
            self.incomplete = true;
            return;
        };
        while let Some(Ok(entry)) = entries.read() {
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            self.entries += 1;
            if self.entries > SHELL_SWEEP_ENTRIES_MAX {
                self.incomplete = true;
                return;
            }
            // An entry that is gone meanwhile needs no mending.
            let Ok(stat) = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let kind = FileType::from_raw_mode(stat.st_mode);
            let inner = match path {
                "" => name.to_string_lossy().into_owned(),
                path => format!("{path}/{}", name.to_string_lossy()),
            };
            // The cage cannot have changed what is covered in it.
            if before.covered.contains(&inner) {
                continue;
            }
            match quarantine(folder.as_fd(), name, &inner, &stat) {
                Ok(false) => {}
                Ok(true) if self.unapproved.len() < SHELL_SWEEP_NAMED_MAX => self.unapproved.push(inner.clone()),
                Ok(true) | Err(_) => self.incomplete = true,
            }
            if kind == FileType::Symlink {
                continue;
            }
            if FileTime::of_change(&stat) > before.started_at {
                match strip(folder.as_fd(), name, folder_has_setgid, before) {
                    Ok(false) => {}
                    Ok(true) if self.stripped.len() < SHELL_SWEEP_NAMED_MAX => self.stripped.push(inner.clone()),
                    Ok(true) => self.incomplete = true,
                    Err(_) => self.incomplete = true,
                }
            }
            if kind == FileType::Directory {
                if depth >= SHELL_SWEEP_DEPTH_MAX {
                    self.incomplete = true;
                    continue;
                }
                match openat(&folder, name, FOLDER, Mode::empty()) {
                    Ok(below) => self.search(below, stat.st_mode & SETGID != 0, &inner, depth + 1, before),
                    // One that was moved away or made unreadable to its owner; the next search may find it.
                    Err(_) => self.incomplete = true,
                }
            }
        }
    }
}

/// Takes away the privileges of one entry, and says whether it had any.
fn strip(folder: BorrowedFd<'_>, name: &std::ffi::CStr, folder_has_setgid: bool, before: &Before) -> io::Result<bool> {
    let entry = openat(folder, name, ENTRY, Mode::empty())?;
    let stat = fstat(&entry)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    // A handle without rights to read can be used by its path only.
    let handle = format!("/proc/self/fd/{}", entry.as_raw_fd());
    match kind {
        FileType::Symlink => return Ok(false),
        FileType::CharacterDevice | FileType::BlockDevice => {
            unlinkat(folder, name, AtFlags::empty())?;
            return Ok(true);
        }
        FileType::RegularFile | FileType::Directory | FileType::Fifo | FileType::Socket | FileType::Unknown => {}
    }
    let mut unwanted = stat.st_mode & SPECIAL_BITS;
    if kind == FileType::Directory {
        unwanted &= !before.older_bits(&stat);
        if folder_has_setgid {
            // The kernel itself gives this bit to every folder in a folder that has it.
            unwanted &= !SETGID;
        }
    }
    if unwanted != 0 {
        fs::set_permissions(&handle, Permissions::from_mode(stat.st_mode & 0o7777 & !unwanted))?;
    }
    // The size of the attribute is all that is asked for.
    let mut nothing: [u8; 0] = [];
    let capable = kind == FileType::RegularFile && rustix::fs::getxattr(&handle, CAPABILITY, &mut nothing).is_ok();
    if capable {
        rustix::fs::removexattr(&handle, CAPABILITY)?;
    }
    Ok(unwanted != 0 || capable)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::{Before, FileTime, search};

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it is there").permissions().mode() & 0o7777
    }

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("permissions");
    }

    /// Returns when the clock of the file system shows another time.
    fn wait_for_the_next_tick() {
        let now = FileTime::now();
        while FileTime::now() == now {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn privileges_given_since_the_start_are_taken_away_and_older_ones_stay() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = |path: &str| folder.path().join(path);
        fs::write(at("older"), "x").expect("a file");
        set(&at("older"), 0o4755);
        fs::create_dir(at("shared")).expect("a folder");
        set(&at("shared"), 0o2775);
        wait_for_the_next_tick();
        let before = Before::look(folder.path(), Default::default());
        wait_for_the_next_tick();
        fs::create_dir_all(at("deep/er")).expect("folders");
        fs::write(at("deep/er/program"), "x").expect("a file");
        fs::write(at("plain"), "x").expect("a file");
        set(&at("deep/er/program"), 0o6711);
        set(&at("deep/er"), 0o1777);
        set(&at("plain"), 0o755);
        fs::create_dir(at("shared/inherits")).expect("a folder");
        std::os::unix::fs::symlink("/usr/bin/su", at("link")).expect("a link");
        let made = rustix::fs::mknodat(
            rustix::fs::CWD,
            at("device"),
            rustix::fs::FileType::CharacterDevice,
            rustix::fs::Mode::RUSR,
            0,
        );
        made.expect("a whiteout can be made by anybody");

        let mut sweep = search(folder.path(), &before);
        sweep.stripped.sort();
        assert_eq!(sweep.stripped, ["deep/er", "deep/er/program", "device"]);
        assert!(!sweep.incomplete);
        assert_eq!((mode(&at("deep/er/program")), mode(&at("deep/er")), mode(&at("plain"))), (0o711, 0o777, 0o755));
        assert_eq!((mode(&at("older")), mode(&at("shared"))), (0o4755, 0o2775));
        assert_eq!(mode(&at("shared/inherits")) & 0o2000, 0o2000);
        assert!(!at("device").exists());
        assert!(search(folder.path(), &before).stripped.is_empty());
    }
}
