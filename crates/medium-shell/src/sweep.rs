//! The search for privileges that a cage left behind.
//!
//! The filter of system calls ([`filter`](super::filter)) prevents that a file of a cage gets a setuid, setgid or
//! sticky bit, a file capability, or the type of a device. This search is the last defence behind it, against ways that
//! are not known yet: after each command, and once more when the cage is gone, the project is searched for such files,
//! and privileges that they did not have before the cage was started are removed.
//!
//! The same search finds new files that decide about later casts ([`quarantine`](super::quarantine)).
//!
//! The cage may still be running and may move folders, so every step goes through the handle of a folder and none
//! follows a link.

use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::fs::{self, DirEntry, Metadata, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, open, openat, statat, unlinkat};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::quarantine::quarantine;
use crate::limits::{SHELL_SWEEP_DEPTH_MAX, SHELL_SWEEP_ENTRIES_MAX, SHELL_SWEEP_NAMED_MAX};

/// The setuid, setgid and sticky bits.
const SPECIAL_BITS: u32 = 0o7000;
const SETGID: u32 = 0o2000;
const EXECUTE_BITS: u32 = 0o111;
const CAPABILITY: &str = "security.capability";

/// A time on the clock that the kernel uses for the change times of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct FileTime {
    pub(super) seconds: i64,
    pub(super) nanoseconds: i64,
}

impl FileTime {
    pub(super) fn now() -> Self {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        Self { seconds: now.tv_sec, nanoseconds: now.tv_nsec }
    }

    fn of_change(stat: &Stat) -> Self {
        Self { seconds: stat.st_ctime, nanoseconds: stat.st_ctime_nsec as i64 }
    }
}

/// The result of a search.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// The paths, relative to the project, whose privileges were removed.
    pub(super) stripped: Vec<String>,
    /// The paths of new files that decide about later casts and were renamed.
    pub(super) unapproved: Vec<String>,
    /// True if there was more than a search may visit, or an entry that could not be corrected.
    pub(super) incomplete: bool,
    entries: usize,
}

/// The privileges that an entry of the project had before the cage was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OlderPrivileges {
    special_bits: u32,
    has_capability: bool,
    /// The creation time. A new file can reuse the inode of a removed one, but has another creation time. Not every
    /// file system records it.
    born_at: Option<SystemTime>,
}

/// The device and the inode of an entry.
type EntryNumbers = (u64, u64);

/// The state of a project before its cage was started.
///
/// It decides which privileges are new. The change time of an entry does not decide that: a wall clock can be set back
/// while a cage runs, and before one starts.
#[derive(Debug)]
pub(super) struct Before {
    /// The time that decides for folders whose entries were not seen.
    started_at: FileTime,
    /// The time at which the cage was gone, if this is the cage of a process that was killed.
    ended_at: Option<FileTime>,
    /// The paths that are covered in the cage, relative to the root of the project.
    covered: HashSet<String>,
    /// The same paths by device and inode, because a moved folder takes its covered entries with it.
    covered_entries: HashSet<EntryNumbers>,
    /// The entries that had privileges, including devices.
    privileged: HashMap<EntryNumbers, OlderPrivileges>,
    /// The folders whose entries were not seen: they could not be read, or there were more than the limit.
    unseen: HashSet<EntryNumbers>,
}

impl Before {
    /// Records the state of a project before its cage is started.
    pub(super) fn look(root: &Path, covered: HashSet<String>) -> Self {
        Self::look_at(root, covered, FileTime::now())
    }

    fn look_at(root: &Path, covered: HashSet<String>, started_at: FileTime) -> Self {
        let (mut privileged, mut unseen) = (HashMap::new(), HashSet::new());
        let mut entries = 0;
        let root_numbers = fs::metadata(root).map(|stat| (stat.dev(), stat.ino())).unwrap_or_default();
        let mut folders = vec![(root.to_owned(), root_numbers, 0)];
        while let Some((folder, numbers, depth)) = folders.pop() {
            let found = fs::read_dir(&folder).ok().filter(|_| entries < SHELL_SWEEP_ENTRIES_MAX);
            let Some(found) = found.filter(|_| depth <= SHELL_SWEEP_DEPTH_MAX) else {
                unseen.insert(numbers);
                continue;
            };
            for entry in found {
                entries += 1;
                let Ok((entry, stat)) = entry.and_then(|entry| entry.metadata().map(|stat| (entry, stat))) else {
                    unseen.insert(numbers);
                    continue;
                };
                let numbers = (stat.dev(), stat.ino());
                privileged.extend(privileges_of(&entry, &stat).map(|privileges| (numbers, privileges)));
                if stat.is_dir() {
                    folders.push((entry.path(), numbers, depth + 1));
                }
            }
        }
        let numbers = |path: &String| fs::symlink_metadata(root.join(path)).map(|stat| (stat.dev(), stat.ino()));
        let covered_entries = covered.iter().filter_map(|path| numbers(path).ok()).collect();
        Self { started_at, ended_at: None, covered, covered_entries, privileged, unseen }
    }

    /// Builds the state from another process's record of its cage. Only times decide then: device numbers change when
    /// the machine restarts, and a person may have created files after the cage was gone.
    pub(super) fn on_record(root: &Path, covered: HashSet<String>, started_at: FileTime, ended_at: FileTime) -> Self {
        let unseen = fs::metadata(root).map(|stat| (stat.dev(), stat.ino())).into_iter().collect();
        let (privileged, covered_entries) = (HashMap::new(), HashSet::new());
        Self { started_at, ended_at: Some(ended_at), covered, covered_entries, privileged, unseen }
    }

    pub(super) fn started_at(&self) -> FileTime {
        self.started_at
    }

    pub(super) fn covered(&self) -> &HashSet<String> {
        &self.covered
    }

    /// Returns true if the cage can have made or changed an entry.
    fn may_be_new(&self, stat: &Stat) -> bool {
        let changed_at = FileTime::of_change(stat);
        self.ended_at.is_none_or(|ended_at| (self.started_at..=ended_at).contains(&changed_at))
    }

    /// Returns the privileges that an entry had before, if it is the same entry.
    fn older_privileges(&self, numbers: EntryNumbers, born_at: Option<SystemTime>) -> Option<OlderPrivileges> {
        self.privileged.get(&numbers).copied().filter(|older| older.born_at == born_at)
    }
}

/// Returns the privileges of an entry, if it has any.
fn privileges_of(entry: &DirEntry, stat: &Metadata) -> Option<OlderPrivileges> {
    let kind = stat.file_type();
    let special_bits = if kind.is_symlink() { 0 } else { stat.mode() & SPECIAL_BITS };
    let has_capability = kind.is_file() && stat.mode() & EXECUTE_BITS != 0 && has_capability(&entry.path());
    let is_device = kind.is_char_device() || kind.is_block_device();
    let privileges = OlderPrivileges { special_bits, has_capability, born_at: stat.created().ok() };
    (special_bits != 0 || has_capability || is_device).then_some(privileges)
}

/// Returns true if a file has a file capability. Only the size of the attribute is read.
fn has_capability(path: &Path) -> bool {
    let mut nothing: [u8; 0] = [];
    rustix::fs::getxattr(path, CAPABILITY, &mut nothing).is_ok()
}

/// Removes the privileges that files below `root` got since the cage was started, and renames new files that decide
/// about later casts.
pub(super) fn search(root: &Path, before: &Before) -> Sweep {
    let mut sweep = Sweep::default();
    match open(root, FOLDER, Mode::empty()) {
        Ok(folder) => {
            sweep.search(folder, "", 0, false, before);
        }
        Err(_) => sweep.incomplete = true,
    }
    sweep
}

const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);
const ENTRY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Sweep {
    /// The result of a search that did not complete.
    pub(super) fn unfinished() -> Self {
        Self { incomplete: true, ..Self::default() }
    }

    /// Searches a folder. `is_unseen` is true if the first look did not see into a folder around it.
    fn search(&mut self, folder: OwnedFd, path: &str, depth: usize, is_unseen: bool, before: &Before) {
        let Ok(stat) = fstat(&folder) else {
            self.incomplete = true;
            return;
        };
        let around = Around {
            has_setgid: stat.st_mode & SETGID != 0,
            is_unseen: is_unseen || before.unseen.contains(&(stat.st_dev, stat.st_ino)),
        };
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
            // An entry that is gone in the meantime needs no correction.
            let Ok(stat) = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let kind = FileType::from_raw_mode(stat.st_mode);
            let inner = match path {
                "" => name.to_string_lossy().into_owned(),
                path => format!("{path}/{}", name.to_string_lossy()),
            };
            // The cage cannot have changed entries that are covered in it.
            if before.covered.contains(&inner) || before.covered_entries.contains(&(stat.st_dev, stat.st_ino)) {
                continue;
            }
            let may_be_new = before.may_be_new(&stat);
            let mut renamed = None;
            if may_be_new {
                match quarantine(folder.as_fd(), name, &inner, &stat) {
                    Ok(None) => {}
                    Ok(other) => {
                        renamed = other;
                        match self.unapproved.len() < SHELL_SWEEP_NAMED_MAX {
                            true => self.unapproved.push(inner.clone()),
                            false => self.incomplete = true,
                        }
                    }
                    Err(_) => self.incomplete = true,
                }
            }
            let name = renamed.as_deref().unwrap_or(name);
            if kind == FileType::Symlink {
                continue;
            }
            if may_be_new && may_be_privileged(&stat, before) {
                match strip(folder.as_fd(), name, around, before) {
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
                    Ok(below) => self.search(below, &inner, depth + 1, around.is_unseen, before),
                    // The folder was moved away or made unreadable to its owner; the next search may find it.
                    Err(_) => self.incomplete = true,
                }
            }
        }
    }
}

/// The properties of the folder around an entry that matter for the entry.
#[derive(Clone, Copy)]
struct Around {
    /// True if the folder has the setgid bit.
    has_setgid: bool,
    /// True if the first look did not see into the folder.
    is_unseen: bool,
}

/// Returns true if an entry needs a closer check. The file capability of a file that is not executable is checked only
/// if the file was changed, which saves two system calls for most files of a project.
fn may_be_privileged(stat: &Stat, before: &Before) -> bool {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice | FileType::BlockDevice => true,
        FileType::RegularFile => {
            stat.st_mode & (SPECIAL_BITS | EXECUTE_BITS) != 0 || FileTime::of_change(stat) > before.started_at
        }
        FileType::Symlink => false,
        FileType::Directory | FileType::Fifo | FileType::Socket | FileType::Unknown => stat.st_mode & SPECIAL_BITS != 0,
    }
}

/// Removes the privileges of one entry that it did not have before, and returns true if there were any.
fn strip(folder: BorrowedFd<'_>, name: &CStr, around: Around, before: &Before) -> io::Result<bool> {
    let entry = openat(folder, name, ENTRY, Mode::empty())?;
    let stat = fstat(&entry)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind == FileType::Symlink {
        return Ok(false);
    }
    // The entry was not seen before, so only its change time can decide. That time is wrong if the clock was set back
    // in the meantime.
    if around.is_unseen && FileTime::of_change(&stat) < before.started_at {
        return Ok(false);
    }
    // A handle without read permission can be used only through its path.
    let handle = PathBuf::from(format!("/proc/self/fd/{}", entry.as_raw_fd()));
    let born_at = fs::metadata(&handle)?.created().ok();
    let older = before.older_privileges((stat.st_dev, stat.st_ino), born_at);
    if matches!(kind, FileType::CharacterDevice | FileType::BlockDevice) && older.is_none() {
        unlinkat(folder, name, AtFlags::empty())?;
        return Ok(true);
    }
    let mut unwanted = stat.st_mode & SPECIAL_BITS & !older.map_or(0, |older| older.special_bits);
    if kind == FileType::Directory && around.has_setgid {
        // The kernel itself sets this bit on every new folder inside of a folder that has it.
        unwanted &= !SETGID;
    }
    if unwanted != 0 {
        fs::set_permissions(&handle, Permissions::from_mode(stat.st_mode & 0o7777 & !unwanted))?;
    }
    let had_capability = older.is_some_and(|older| older.has_capability);
    let capable = kind == FileType::RegularFile && !had_capability && has_capability(&handle);
    if capable {
        rustix::fs::removexattr(&handle, CAPABILITY)?;
    }
    Ok(unwanted != 0 || capable)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::Path;

    use super::{Before, CAPABILITY, FileTime, has_capability, search};

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it is there").permissions().mode() & 0o7777
    }

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("permissions");
    }

    /// The time, in seconds, that the clock showed when the cage was started.
    fn at_second(seconds: i64) -> FileTime {
        FileTime { seconds, nanoseconds: 0 }
    }

    /// The earlier state of the project decides whether a privilege is new, not the clock. The clock may have been set
    /// back just before the cage was started (then every older change seems new), or while it ran (then every new
    /// change seems old).
    #[test]
    fn privileges_given_since_the_start_are_taken_away_and_older_ones_stay() {
        for started_at in [FileTime::now(), at_second(0), at_second(i64::MAX)] {
            new_privileges_are_taken_away(started_at);
        }
    }

    fn make_whiteout(path: &Path) {
        let kind = rustix::fs::FileType::CharacterDevice;
        rustix::fs::mknodat(rustix::fs::CWD, path, kind, rustix::fs::Mode::RUSR, 0)
            .expect("a whiteout can be made by anybody");
    }

    /// Gives a file a capability. Returns `false` for a user without the permission.
    fn give_capability(path: &Path) -> bool {
        let low_ports: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        rustix::fs::setxattr(path, CAPABILITY, &low_ports, rustix::fs::XattrFlags::empty()).is_ok()
    }

    fn new_privileges_are_taken_away(started_at: FileTime) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = |path: &str| folder.path().join(path);
        fs::write(at("older"), "x").expect("a file");
        set(&at("older"), 0o4755);
        fs::write(at("became-setuid"), "x").expect("a file");
        make_whiteout(&at("older-device"));
        for program in ["older-capable", "became-capable"] {
            fs::write(at(program), "x").expect("a file");
            set(&at(program), 0o755);
        }
        let may_give = give_capability(&at("older-capable"));
        fs::create_dir(at("shared")).expect("a folder");
        set(&at("shared"), 0o2775);
        let before = Before::look_at(folder.path(), Default::default(), started_at);
        set(&at("became-setuid"), 0o4755);
        assert_eq!(give_capability(&at("became-capable")), may_give);
        fs::create_dir_all(at("deep/er")).expect("folders");
        fs::write(at("deep/er/program"), "x").expect("a file");
        fs::write(at("plain"), "x").expect("a file");
        set(&at("deep/er/program"), 0o6711);
        set(&at("deep/er"), 0o1777);
        set(&at("plain"), 0o755);
        fs::create_dir(at("shared/inherits")).expect("a folder");
        std::os::unix::fs::symlink("/usr/bin/su", at("link")).expect("a link");
        fs::rename(at("older"), at("deep/moved")).expect("a file can be moved");
        make_whiteout(&at("device"));

        let mut sweep = search(folder.path(), &before);
        sweep.stripped.sort();
        let capable = may_give.then_some("became-capable");
        let wanted = capable.into_iter().chain(["became-setuid", "deep/er", "deep/er/program", "device"]);
        assert_eq!(sweep.stripped, wanted.collect::<Vec<_>>());
        assert_eq!((has_capability(&at("older-capable")), has_capability(&at("became-capable"))), (may_give, false));
        assert!(!sweep.incomplete);
        assert_eq!((mode(&at("deep/er/program")), mode(&at("deep/er")), mode(&at("plain"))), (0o711, 0o777, 0o755));
        assert_eq!((mode(&at("deep/moved")), mode(&at("shared"))), (0o4755, 0o2775));
        assert_eq!(mode(&at("shared/inherits")) & 0o2000, 0o2000);
        assert!(!at("device").exists() && at("older-device").exists());
        assert!(search(folder.path(), &before).stripped.is_empty());
    }

    /// If a folder could not be read, the earlier privileges of its files are not known, and only the change time can
    /// decide.
    #[test]
    fn where_the_look_before_saw_nothing_the_time_of_change_decides() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let program = folder.path().join("unread/program");
        fs::create_dir(folder.path().join("unread")).expect("a folder");
        for (started_at, is_stripped) in [(at_second(i64::MAX), false), (at_second(0), true)] {
            let mut before = Before::look_at(folder.path(), Default::default(), started_at);
            let unread = fs::metadata(folder.path().join("unread")).expect("it is there");
            before.unseen.insert((unread.dev(), unread.ino()));
            fs::write(&program, "x").expect("a file");
            set(&program, 0o4755);
            assert_eq!(!search(folder.path(), &before).stripped.is_empty(), is_stripped);
            assert_eq!(mode(&program), if is_stripped { 0o755 } else { 0o4755 });
            fs::remove_file(&program).expect("it is there");
        }
    }
}
