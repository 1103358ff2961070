//! Which file does a path name, and may it be accessed?
//!
//! A path is walked from an open folder, one part at a time, and no step follows a link by itself: the target of a link
//! is read and walked like the rest. So every part on the way is known by its real name, the wards are checked against
//! that name, and a link that is swapped in the meantime leads to an error and never outside. Making a path absolute
//! and comparing its prefix was rejected: between the comparison and the opening anything can be swapped. A hard link
//! cannot be distinguished from the file it shares; writing replaces this name and leaves the other one unchanged.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;

use cantrip_reply::{Refusal, codes};
use cap_fs_ext::{DirExt, FollowSymlinks, OpenOptionsExt, OpenOptionsFollowExt};
use cap_std::ambient_authority;
use cap_std::fs::{Dir, File, OpenOptions};

use super::path::{fold_case, is_hidden, normalize, protection_reason};
use crate::limits::{PATH_BYTES_MAX, PATH_LINKS_MAX};
use crate::ward::Restriction;

/// A folder that file gates work beneath. It is opened once; later changes to its name have no effect.
#[derive(Debug, Clone)]
pub struct Root {
    dir: Arc<Dir>,
    pub(super) gitignore: bool,
    pub(super) read_only: bool,
    /// Additional files that influence later casts, as case-folded paths.
    spells: Arc<BTreeSet<String>>,
}

/// A folder that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("the root {path} cannot be opened")]
pub struct RootFault {
    path: String,
    source: io::Error,
}

impl Root {
    pub fn at(path: impl AsRef<Path>) -> Result<Self, RootFault> {
        let path = path.as_ref();
        match Dir::open_ambient_dir(path, ambient_authority()) {
            Ok(dir) => Ok(Self { dir: Arc::new(dir), gitignore: false, read_only: false, spells: Arc::default() }),
            Err(source) => Err(RootFault { path: path.display().to_string(), source }),
        }
    }

    /// Returns a handle of the folder itself.
    pub(super) fn dir(&self) -> Arc<Dir> {
        Arc::clone(&self.dir)
    }

    /// `list` and `search` leave out the files that `.gitignore` names.
    #[must_use]
    pub fn with_gitignore(mut self) -> Self {
        self.gitignore = true;
        self
    }

    /// Marks files, named from the root, as parts of spells: a person has to approve writing them, as for
    /// `cantrip.toml`, `AGENTS.md` and the files in a folder `spells`.
    #[must_use]
    pub fn with_spells(mut self, paths: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let folded =
            paths.into_iter().map(|path| path.as_ref().split('/').map(fold_case).collect::<Vec<_>>().join("/"));
        self.spells = Arc::new(folded.collect());
        self
    }

    /// Returns the reason why writing this path influences later casts; none if it does not.
    pub(super) fn protection_reason(&self, parts: &[&str]) -> Option<&'static str> {
        let folded = || parts.iter().map(|part| fold_case(part)).collect::<Vec<_>>().join("/");
        let spell = || self.spells.contains(&folded()).then_some("this spell, or another one, is made from it");
        protection_reason(parts).or_else(spell)
    }

    /// Makes the root read-only for every gate.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }
}

/// The kind of access that a gate needs; it selects the wording of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileAccess {
    Read,
    Write,
}

/// The resolution of a path to a file.
#[derive(Debug)]
pub(super) struct PathResolver<'a> {
    pub(super) root: &'a Root,
    pub(super) gate: &'a str,
    pub(super) restrict: &'a Restriction,
    pub(super) access: FileAccess,
    /// The path as the entity wrote it.
    pub(super) written: &'a str,
}

/// The place that a path leads to.
#[derive(Debug)]
pub(super) struct ResolvedPath {
    /// The folder that contains the file.
    pub(super) parent: Dir,
    /// The name in that folder; none for the root itself.
    pub(super) name: Option<String>,
    /// The real path from the root.
    pub(super) real: String,
    /// None if nothing exists there; otherwise true for a folder.
    pub(super) folder: Option<bool>,
}

impl PathResolver<'_> {
    pub(super) fn denied(&self, rule: &str) -> Refusal {
        match self.access {
            FileAccess::Read => codes::read_refused(self.written, self.gate, rule).into(),
            FileAccess::Write => codes::write_refused(self.written, self.gate, rule).into(),
        }
    }

    pub(super) fn unusable(&self, rule: &str) -> Refusal {
        codes::target_unusable(self.written, rule).into()
    }

    pub(super) fn missing(&self) -> Refusal {
        codes::file_missing(self.written).into()
    }

    pub(super) fn failed(&self, operation: &str, error: &io::Error) -> Refusal {
        codes::io_failed(operation, self.written, cause(error)).into()
    }

    /// Refuses a real path that is hidden or that a ward does not allow.
    fn check_allowed(&self, parts: &[&str]) -> Result<(), Refusal> {
        if parts.iter().any(|part| is_hidden(part)) || !self.restrict.allows_path(&parts.join("/")) {
            return Err(self.denied("restrict"));
        }
        Ok(())
    }

    /// Resolves the path. Permission is checked first, on the path as written, so a refusal is the same whether or not
    /// the file exists; then again on the place that links lead to.
    pub(super) fn locate(&self) -> Result<ResolvedPath, Refusal> {
        if self.written.len() > PATH_BYTES_MAX || self.written.chars().any(char::is_control) {
            return Err(self.unusable("it is too long or holds control characters"));
        }
        let parts = normalize(self.written).ok_or_else(|| self.denied("root"))?;
        self.check_allowed(&parts)?;
        if self.access == FileAccess::Write && self.root.read_only {
            return Err(self.denied("read_only"));
        }
        // Repeats the walk if a part was swapped during it.
        for _ in 0..PATH_LINKS_MAX {
            if let Some(located) = self.walk()? {
                let real: Vec<&str> = located.real.split('/').filter(|part| !part.is_empty()).collect();
                self.check_allowed(&real)?;
                // A person approved the path as written. The place that a link leads to was not approved.
                if self.access == FileAccess::Write
                    && self.root.protection_reason(&parts).is_none()
                    && let Some(danger) = self.root.protection_reason(&real)
                {
                    return Err(codes::write_protected(located.real, self.gate, danger).into());
                }
                return Ok(located);
            }
        }
        Err(self.unusable("it leads through too many links, or changes while it is followed"))
    }

    /// Walks the path once. Returns none if a part was swapped between the check and the opening.
    fn walk(&self) -> Result<Option<ResolvedPath>, Refusal> {
        let failed = |error: io::Error| self.failed("opening", &error);
        let mut above: Vec<(Dir, String)> = Vec::new();
        let mut here = self.root.dir.try_clone().map_err(failed)?;
        let mut ahead: VecDeque<String> = self.written.split('/').map(str::to_owned).collect();
        let mut links = 0;
        while let Some(part) = ahead.pop_front() {
            match part.as_str() {
                "" | "." => continue,
                ".." => {
                    let (parent, _) = above.pop().ok_or_else(|| self.denied("root"))?;
                    here = parent;
                    continue;
                }
                name if is_hidden(name) => return Err(self.denied("restrict")),
                _ => {}
            }
            let last = ahead.iter().all(|part| part.is_empty() || part == ".");
            let found = match here.symlink_metadata(&part) {
                Ok(found) => found,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let real = real(&above, Some(&part));
                    return match (last, self.access) {
                        (true, _) => Ok(Some(ResolvedPath { parent: here, name: Some(part), real, folder: None })),
                        (false, FileAccess::Read) => Err(self.missing()),
                        (false, FileAccess::Write) => Err(self.unusable("the folder it lies in does not exist")),
                    };
                }
                Err(error) => return Err(failed(error)),
            };
            if found.is_symlink() {
                links += 1;
                if links > PATH_LINKS_MAX {
                    return Err(self.unusable("it leads through too many links"));
                }
                let Ok(target) = here.read_link_contents(&part) else { return Ok(None) };
                let Some(target) = target.to_str() else { return Err(self.unusable("a link on the path is not text")) };
                if target.starts_with('/') {
                    return Err(self.denied("root"));
                }
                for part in target.split('/').rev() {
                    ahead.push_front(part.to_owned());
                }
                continue;
            }
            if last {
                let real = real(&above, Some(&part));
                return Ok(Some(ResolvedPath { parent: here, name: Some(part), real, folder: Some(found.is_dir()) }));
            }
            if !found.is_dir() {
                return Err(self.unusable("a part of the path is not a folder"));
            }
            let Ok(next) = here.open_dir_nofollow(&part) else { return Ok(None) };
            above.push((std::mem::replace(&mut here, next), part));
        }
        // The path ended in `.` or `..`: the folder is open already.
        match above.pop() {
            Some((parent, name)) => {
                let real = real(&above, Some(&name));
                Ok(Some(ResolvedPath { parent, name: Some(name), real, folder: Some(true) }))
            }
            None => Ok(Some(ResolvedPath { parent: here, name: None, real: String::new(), folder: Some(true) })),
        }
    }

    /// Opens the located file. Anything but a regular file is refused.
    pub(super) fn file(&self, located: &ResolvedPath) -> Result<File, Refusal> {
        let (name, folder) = match (&located.name, located.folder) {
            (_, None) => return Err(self.missing()),
            (None, Some(_)) => return Err(self.unusable("it is a folder")),
            (Some(name), Some(folder)) => (name, folder),
        };
        if folder {
            return Err(self.unusable("it is a folder"));
        }
        let file = open_file(&located.parent, name).map_err(|error| {
            if error.kind() == io::ErrorKind::NotFound { self.missing() } else { self.failed("opening", &error) }
        })?;
        let metadata = file.metadata().map_err(|error| self.failed("opening", &error))?;
        if metadata.is_file() { Ok(file) } else { Err(self.unusable("it is not a regular file")) }
    }

    /// Opens the located folder. Anything but a folder is refused.
    pub(super) fn folder(&self, located: &ResolvedPath) -> Result<Dir, Refusal> {
        match (&located.name, located.folder) {
            (_, None) => Err(self.missing()),
            (None, Some(_)) => located.parent.try_clone().map_err(|error| self.failed("opening", &error)),
            (Some(_), Some(false)) => Err(self.unusable("it is not a folder")),
            (Some(name), Some(true)) => {
                located.parent.open_dir_nofollow(name).map_err(|error| self.failed("opening", &error))
            }
        }
    }
}

/// Opens a file without following a link, and without waiting for the other end of a named pipe.
pub(super) fn open_file(folder: &Dir, name: &str) -> io::Result<File> {
    let nonblock = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let mut options = OpenOptions::new();
    options.read(true).follow(FollowSymlinks::No).custom_flags(nonblock);
    folder.open_with(name, &options)
}

fn real(above: &[(Dir, String)], name: Option<&str>) -> String {
    let names = above.iter().map(|(_, name)| name.as_str());
    names.chain(name).collect::<Vec<_>>().join("/")
}

/// Returns the text of a system error without its number. It names no path.
pub(super) fn cause(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
