//! What of the project does a shell not see?
//!
//! Keys and the store are covered; the records of the repository can be read and not changed, because a hook written
//! there is a program that the next person runs. These are the same names that the file gates refuse.

use std::fs;
use std::path::{Path, PathBuf};

use crate::gate::builtin::hidden;
use crate::limits::{SHELL_MASKS_MAX, WALK_DEPTH_MAX, WALK_ENTRIES_MAX};

/// What lies over a path of the project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mask {
    /// An empty file.
    File(PathBuf),
    /// An empty folder.
    Folder(PathBuf),
    /// Itself, but not to be changed.
    ReadOnly(PathBuf),
}

/// There is more to be covered, or to be looked through, than a cage takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooMany;

/// Everything in this folder that has to be covered.
pub(super) fn masks(root: &Path) -> Result<Vec<Mask>, TooMany> {
    let mut masks = Vec::new();
    let mut folders = vec![(root.to_owned(), 0)];
    let mut looked = 0;
    while let Some((folder, depth)) = folders.pop() {
        // What this process cannot read, the shell, which is the same user, cannot either.
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            looked += 1;
            if looked > WALK_ENTRIES_MAX {
                return Err(TooMany);
            }
            let Ok(kind) = entry.file_type() else { continue };
            // A link leads to something that is covered under its own name, or that is not in the cage.
            if kind.is_symlink() {
                continue;
            }
            let name = entry.file_name().to_string_lossy().to_ascii_lowercase();
            if hidden(&name) {
                masks.push(match (name == ".git", kind.is_dir()) {
                    (true, _) => Mask::ReadOnly(entry.path()),
                    (false, true) => Mask::Folder(entry.path()),
                    (false, false) => Mask::File(entry.path()),
                });
            } else if kind.is_dir() && depth < WALK_DEPTH_MAX {
                folders.push((entry.path(), depth + 1));
            }
        }
        if masks.len() > SHELL_MASKS_MAX {
            return Err(TooMany);
        }
    }
    masks.sort_by(|one, other| path(one).cmp(path(other)));
    Ok(masks)
}

fn path(mask: &Mask) -> &Path {
    match mask {
        Mask::File(path) | Mask::Folder(path) | Mask::ReadOnly(path) => path,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Mask, masks};

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
        assert_eq!(masks(folder.path()), Ok(wanted));
    }
}
