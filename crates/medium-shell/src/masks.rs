//! Which parts of the project are hidden or read-only in a shell?
//!
//! Keys and the store are covered. The records of the repository can be read and not changed, because a hook written
//! there is a program that the next person runs. These are the same names that the file gates refuse. Files that decide
//! about later casts (`cantrip.toml`, `AGENTS.md`, spells) can be read and not changed either, under any of their
//! names, because no approval can be requested from inside a command.
//!
//! Without a network the sockets in the project are covered too: the namespace of the network does not separate sockets
//! that have a path, and the process behind one may do anything on its behalf.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use cantrip_circle::gate::builtin::{is_hidden, protection_reason};
use cantrip_circle::limits::WALK_DEPTH_MAX;

use crate::limits::{SHELL_MASKS_MAX, SHELL_SWEEP_ENTRIES_MAX};

/// A mount that covers a path of the project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mask {
    /// An empty file.
    File(PathBuf),
    /// An empty folder.
    Folder(PathBuf),
    /// The path itself, read-only.
    ReadOnly(PathBuf),
}

/// Whether programs in a shell may reach the sockets in the project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SocketAccess {
    Reachable,
    Covered,
}

/// There is more to cover, or to search, than the limits of a cage allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooMany;

/// Returns everything in this folder that has to be covered. `spells` are further files in it that decide about later
/// casts.
pub(super) fn masks(root: &Path, spells: &[PathBuf], sockets: SocketAccess) -> Result<Vec<Mask>, TooMany> {
    let mut masks = Vec::new();
    // Files with several names, and the inodes of those that decide about later casts or are hidden.
    let (mut linked, mut protected, mut hidden) = (Vec::new(), HashSet::new(), HashSet::new());
    let mut folders = vec![(root.to_owned(), 0)];
    let mut looked = 0;
    while let Some((folder, depth)) = folders.pop() {
        // A folder that this process cannot read is unreadable to the shell too, which runs as the same user.
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            looked += 1;
            if looked > SHELL_SWEEP_ENTRIES_MAX {
                return Err(TooMany);
            }
            let Ok(kind) = entry.file_type() else { continue };
            // The target of a link is covered under its own name, or is not in the cage.
            if kind.is_symlink() {
                continue;
            }
            let name = entry.file_name().to_string_lossy().to_ascii_lowercase();
            if is_hidden(&name) {
                if kind.is_file() {
                    hidden.extend(several_names(&entry));
                }
                masks.push(match (name == ".git", kind.is_dir()) {
                    (true, _) => Mask::ReadOnly(entry.path()),
                    (false, true) => Mask::Folder(entry.path()),
                    (false, false) => Mask::File(entry.path()),
                });
            } else if kind.is_dir() && depth < WALK_DEPTH_MAX {
                folders.push((entry.path(), depth + 1));
            } else if kind.is_file() {
                let (path, inode) = (entry.path(), several_names(&entry));
                if is_protected(root, &path, spells) {
                    protected.extend(inode);
                    masks.push(Mask::ReadOnly(path));
                } else if let Some(inode) = inode {
                    linked.push((inode, path));
                }
            } else if kind.is_socket() && sockets == SocketAccess::Covered {
                masks.push(Mask::File(entry.path()));
            }
        }
        if masks.len() > SHELL_MASKS_MAX {
            return Err(TooMany);
        }
    }
    for (inode, path) in linked {
        if hidden.contains(&inode) {
            masks.push(Mask::File(path));
        } else if protected.contains(&inode) {
            masks.push(Mask::ReadOnly(path));
        }
    }
    if masks.len() > SHELL_MASKS_MAX {
        return Err(TooMany);
    }
    masks.sort_by(|one, other| one.path().cmp(other.path()));
    Ok(masks)
}

/// Returns true if the content of this file decides about later casts.
fn is_protected(root: &Path, path: &Path, spells: &[PathBuf]) -> bool {
    let below = path.strip_prefix(root).unwrap_or(path).to_string_lossy();
    protection_reason(&below.split('/').collect::<Vec<_>>()).is_some() || spells.iter().any(|spell| spell == path)
}

/// Returns the device and inode of a file that has more than one name.
fn several_names(entry: &fs::DirEntry) -> Option<(u64, u64)> {
    let found = entry.metadata().ok().filter(|found| found.nlink() > 1)?;
    Some((found.dev(), found.ino()))
}

impl Mask {
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::File(path) | Self::Folder(path) | Self::ReadOnly(path) => path,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Mask, SocketAccess, masks};

    #[test]
    fn keys_and_the_store_are_covered_at_any_depth_and_the_repository_is_read_only() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = |path: &str| folder.path().join(path);
        for made in [".git", ".cantrip", "app/config"] {
            fs::create_dir_all(at(made)).expect("a folder");
        }
        for made in [".env", ".env.example", "app/config/.env.local", ".git/config"] {
            fs::write(at(made), "x").expect("a file");
        }
        std::os::unix::fs::symlink(at("app"), at(".env.link")).expect("a link");
        let wanted = vec![
            Mask::Folder(at(".cantrip")),
            Mask::File(at(".env")),
            Mask::ReadOnly(at(".git")),
            Mask::File(at("app/config/.env.local")),
        ];
        assert_eq!(masks(folder.path(), &[], SocketAccess::Covered), Ok(wanted));
    }

    #[test]
    fn what_decides_about_later_casts_is_read_only_under_each_of_its_names() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = |path: &str| folder.path().join(path);
        fs::create_dir_all(at("app/spells")).expect("a folder");
        for made in ["AGENTS.md", "cantrip.toml", "app/spells/other.toml", "own.toml", "free.toml"] {
            fs::write(at(made), "x").expect("a file");
        }
        fs::hard_link(at("AGENTS.md"), at("app/same.txt")).expect("a link");
        fs::hard_link(at("free.toml"), at("free-too.toml")).expect("a link");
        let wanted = ["AGENTS.md", "app/same.txt", "app/spells/other.toml", "cantrip.toml", "own.toml"];
        let wanted = wanted.map(|path| Mask::ReadOnly(at(path))).to_vec();
        assert_eq!(masks(folder.path(), &[at("own.toml")], SocketAccess::Covered), Ok(wanted));
    }

    #[test]
    fn a_socket_and_a_second_name_of_a_key_are_covered() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = |path: &str| folder.path().join(path);
        fs::create_dir(at("run")).expect("a folder");
        let _listener = std::os::unix::net::UnixListener::bind(at("run/server.sock")).expect("a socket");
        fs::write(at(".env"), "KEY=x").expect("a file");
        fs::hard_link(at(".env"), at("notes.txt")).expect("a link");
        let keys = vec![Mask::File(at(".env")), Mask::File(at("notes.txt"))];
        let socket = Mask::File(at("run/server.sock"));
        let all: Vec<Mask> = keys.iter().cloned().chain([socket]).collect();
        assert_eq!(masks(folder.path(), &[], SocketAccess::Covered), Ok(all));
        assert_eq!(masks(folder.path(), &[], SocketAccess::Reachable), Ok(keys));
    }
}
