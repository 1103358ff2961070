//! Walks the entries below a folder, in a fixed order and within bounds.

use std::io::Read;
use std::ops::ControlFlow;

use cap_fs_ext::DirExt;
use cap_std::fs::Dir;
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::operation::CancelFlag;
use super::path::is_hidden;
use super::root::{PathResolver, ResolvedPath, open_file};
use crate::limits::{FILE_BYTES_MAX, WALK_DEPTH_MAX, WALK_ENTRIES_MAX};
use crate::ward::Restriction;

/// The kind of an entry. A link is shown and not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryKind {
    File,
    Folder,
    Link,
    Other,
}

/// One entry, while its folder is open.
pub(super) struct Entry<'a> {
    pub(super) folder: &'a Dir,
    pub(super) name: &'a str,
    /// The path from the root.
    pub(super) path: &'a str,
    pub(super) sort: EntryKind,
    pub(super) bytes: u64,
}

/// The settings and the state of a walk.
pub(super) struct Walk<'a> {
    restrict: &'a Restriction,
    recursive: bool,
    /// True if entries that `.gitignore` names are left out.
    gitignore: bool,
    abandoned: &'a CancelFlag,
    seen: usize,
    /// The `.gitignore` rules of the folders above, each with the length of the path prefix that its rules do not apply
    /// to.
    ignores: Vec<(usize, Gitignore)>,
}

/// The extent of a walk: complete or cut short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    Whole,
    CutShort,
}

impl<'a> Walk<'a> {
    /// Prepares a walk of the located folder, with the rules of the `.gitignore` files above it.
    pub(super) fn of(
        seeking: &PathResolver<'a>,
        located: &ResolvedPath,
        recursive: bool,
        abandoned: &'a CancelFlag,
    ) -> Self {
        let PathResolver { root, restrict, .. } = *seeking;
        let gitignore = root.gitignore;
        let mut walk = Self { restrict, recursive, gitignore, abandoned, seen: 0, ignores: Vec::new() };
        walk.above(&root.dir(), &located.real);
        walk
    }

    /// Reads the `.gitignore` files from the root down to the folder that is walked.
    fn above(&mut self, root: &Dir, folder: &str) {
        if !self.gitignore {
            return;
        }
        let Ok(mut here) = root.try_clone() else { return };
        let mut path = String::new();
        for part in folder.split('/').filter(|part| !part.is_empty()) {
            self.read_ignores(&here, &path);
            let Ok(next) = here.open_dir_nofollow(part) else { return };
            here = next;
            path = join(&path, part);
        }
    }

    fn read_ignores(&mut self, folder: &Dir, path: &str) {
        let Ok(file) = open_file(folder, ".gitignore") else { return };
        let mut text = String::new();
        if file.take(FILE_BYTES_MAX as u64).read_to_string(&mut text).is_err() {
            return;
        }
        let mut builder = GitignoreBuilder::new("");
        for line in text.lines() {
            // An invalid line ignores nothing, as in git.
            let _ = builder.add_line(None, line);
        }
        if let Ok(ignore) = builder.build() {
            let unseen = if path.is_empty() { 0 } else { path.len() + 1 };
            self.ignores.push((unseen, ignore));
        }
    }

    fn is_ignored(&self, path: &str, folder: bool) -> bool {
        let deepest_first = self.ignores.iter().rev();
        for (unseen, ignore) in deepest_first {
            match path.get(*unseen..).map(|below| ignore.matched(below, folder)) {
                Some(Match::Ignore(_)) => return true,
                Some(Match::Whitelist(_)) => return false,
                Some(Match::None) | None => {}
            }
        }
        false
    }

    /// Visits the entries of `folder`, which is at `path`, by name. A folder comes before its entries.
    pub(super) fn visit(
        &mut self,
        folder: &Dir,
        path: &str,
        depth: usize,
        each: &mut dyn FnMut(&Entry<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<(), Extent> {
        let ignores = self.ignores.len();
        if self.gitignore {
            self.read_ignores(folder, path);
        }
        let extent = self.visit_entries(folder, path, depth, each);
        self.ignores.truncate(ignores);
        extent
    }

    fn visit_entries(
        &mut self,
        folder: &Dir,
        path: &str,
        depth: usize,
        each: &mut dyn FnMut(&Entry<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<(), Extent> {
        let mut extent = Extent::Whole;
        let Ok(entries) = folder.entries() else { return ControlFlow::Continue(extent) };
        // A name that is not UTF-8 cannot be requested, so it is not shown.
        let mut names: Vec<String> = entries
            .take(WALK_ENTRIES_MAX)
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| !is_hidden(name))
            .collect();
        names.sort_unstable();
        for name in names {
            if self.abandoned.is_set() {
                return ControlFlow::Break(());
            }
            self.seen += 1;
            if self.seen > WALK_ENTRIES_MAX {
                return ControlFlow::Continue(Extent::CutShort);
            }
            let path = join(path, &name);
            let Ok(found) = folder.symlink_metadata(&name) else { continue };
            let kind = found.file_type();
            let sort = match (kind.is_dir(), kind.is_file(), kind.is_symlink()) {
                (true, _, _) => EntryKind::Folder,
                (_, true, _) => EntryKind::File,
                (_, _, true) => EntryKind::Link,
                (false, false, false) => EntryKind::Other,
            };
            if !self.restrict.allows_path(&path) || self.is_ignored(&path, sort == EntryKind::Folder) {
                continue;
            }
            each(&Entry { folder, name: &name, path: &path, sort, bytes: found.len() })?;
            if self.recursive && sort == EntryKind::Folder {
                if depth >= WALK_DEPTH_MAX {
                    extent = Extent::CutShort;
                    continue;
                }
                let Ok(below) = folder.open_dir_nofollow(&name) else { continue };
                if self.visit(&below, &path, depth + 1, each)? == Extent::CutShort {
                    extent = Extent::CutShort;
                }
            }
        }
        ControlFlow::Continue(extent)
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
}
