//! Files that a cage created and that decide about later casts, or about the programs that the next person runs.
//!
//! Such files that existed before are read-only in the cage ([`masks`](super::masks)). The creation of a new one cannot
//! be prevented, since no mount covers a name that does not exist. It is renamed afterwards, so that nothing reads it,
//! and the reply of the command reports that. These are:
//!
//! - `cantrip.toml`, `AGENTS.md` and spells, as for the gates that write files.
//! - `.env`: the next cast in its folder takes the keys of its providers from it, so the prompts of that cast would be
//!   sent under the account of the author of the file. Other names, such as `.env.local`, mean nothing to Cantrip and
//!   stay.
//! - `.cantrip`: the nearest one in the parent folders holds the store, with the history and the prompts of later
//!   casts.
//! - Files of a repository that make git execute programs. A repository that was made in the cage stays; its hooks are
//!   renamed, and so is a configuration that holds more than names and addresses. The same holds for a folder that only
//!   looks like a repository: `git` treats a folder with `objects` and `refs` in it as a bare one, whatever its name
//!   is.

use std::ffi::{CStr, CString};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::BorrowedFd;

use cantrip_circle::approved_files;
use cantrip_circle::gate::builtin::{fold_case, protection_reason};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat, fstat, openat, renameat_with, statat};
use rustix::io::Errno;

use crate::limits::{GIT_CONFIG_BYTES_MAX, SHELL_UNAPPROVED_NAMES_MAX};

/// The suffix for the name of a file that was not approved.
const SUFFIX: &str = ".unapproved";

/// Renames an entry if it decides about later casts, and returns its new name. `path` is relative to the root of the
/// project.
pub(super) fn quarantine(folder: BorrowedFd<'_>, name: &CStr, path: &str, stat: &Stat) -> io::Result<Option<CString>> {
    if approved_files::contains((stat.st_dev, stat.st_ino)) || !is_unwanted(folder, name, path, stat) {
        return Ok(None);
    }
    // The plain name may exist already, perhaps as a folder that the cage made. Then a random suffix is added, which
    // the cage cannot predict.
    let mut result = Err(Errno::EXIST);
    for attempt in 0..SHELL_UNAPPROVED_NAMES_MAX {
        let mut other = name.to_bytes().to_vec();
        other.extend_from_slice(SUFFIX.as_bytes());
        if attempt > 0 {
            other.extend_from_slice(format!("-{:016x}", RandomState::new().hash_one(attempt)).as_bytes());
        }
        let other = CString::new(other)?;
        match renameat_with(folder, name, folder, &other, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(Some(other)),
            Err(error) => result = Err(error),
        }
    }
    result.map_err(io::Error::from)
}

fn is_unwanted(folder: BorrowedFd<'_>, name: &CStr, path: &str, stat: &Stat) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    if !is_folder && protection_reason(&parts).is_some() {
        return true;
    }
    let names: Vec<String> = parts.iter().rev().map(|part| fold_case(part)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let is_there = |path: &str| statat(folder, path, AtFlags::empty()).is_ok();
    let is_harmless = || read_config(folder, name).is_some_and(|text| is_harmless_config(&text));
    let is_run = |hook: &str| !hook.ends_with(".sample") && !hook.contains(SUFFIX);
    match names.as_slice() {
        [".cantrip", ..] => true,
        [".env", ..] => !is_folder,
        // A link or a file in the place of a repository refers to a repository elsewhere.
        [".git", ..] => !is_folder,
        ["hooks" | "config.worktree" | "commondir", ".git", ..] => !is_folder,
        [hook, "hooks", ".git", ..] => is_run(hook),
        ["config", ".git", ..] => !is_harmless(),
        // The same for a bare repository. A second working tree that git made itself names its repository in
        // `commondir`.
        ["commondir", _, "worktrees", ".git", ..] => false,
        ["commondir", ..] => !is_folder && is_there("HEAD"),
        ["hooks" | "config.worktree", ..] => !is_folder && is_there("objects") && is_there("refs"),
        ["config", ..] => is_there("objects") && is_there("refs") && !is_folder && !is_harmless(),
        [hook, "hooks", ..] => is_run(hook) && is_there("../objects") && is_there("../refs"),
        _ => false,
    }
}

fn read_config(folder: BorrowedFd<'_>, name: &CStr) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(folder, name, flags, Mode::empty()).ok()?;
    let stat = fstat(&file).ok()?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !is_file || u64::try_from(stat.st_size).ok()? > GIT_CONFIG_BYTES_MAX {
        return None;
    }
    io::read_to_string(std::fs::File::from(file)).ok()
}

/// Returns true if a git configuration holds only names and addresses. Most other keys name a program.
fn is_harmless_config(text: &str) -> bool {
    const KEYS: [(&str, &[&str]); 6] = [
        (
            "core",
            &[
                "repositoryformatversion",
                "filemode",
                "bare",
                "logallrefupdates",
                "ignorecase",
                "precomposeunicode",
                "symlinks",
                "autocrlf",
            ],
        ),
        ("user", &["name", "email"]),
        ("remote", &["url", "fetch"]),
        ("branch", &["remote", "merge", "rebase"]),
        ("init", &["defaultbranch"]),
        ("pull", &["rebase"]),
    ];
    let mut allowed: &[&str] = &[];
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', ';'])) {
        if let Some(section) = line.strip_prefix('[') {
            let Some(section) = section.strip_suffix(']') else { return false };
            let name = section.split([' ', '"', '.']).next().unwrap_or_default().to_ascii_lowercase();
            let Some((_, keys)) = KEYS.iter().find(|(known, _)| *known == name) else { return false };
            allowed = keys;
            continue;
        }
        let key = line.split('=').next().unwrap_or_default().trim().to_ascii_lowercase();
        if !allowed.contains(&key.as_str()) || line.ends_with('\\') {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::is_harmless_config;

    #[test]
    fn a_configuration_of_names_and_addresses_is_harmless_and_every_other_is_not() {
        let made = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n[user]\n\tname = a b\n\
                    [remote \"origin\"]\n\turl = https://a.example/b\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n";
        assert!(is_harmless_config(made));
        for planted in [
            "[core]\n\tfsmonitor = ./run-me\n",
            "[core]\n\thooksPath = ../hooks\n",
            "[core]\n\tbare = false\\\n\tsshCommand = x\n",
            "[include]\n\tpath = ../planted\n",
            "[alias]\n\tst = !run\n",
            "[core] fsmonitor = run\n",
            "[filter \"x\"]\n\tsmudge = run\n",
            "[remote \"x\"]\n\tuploadpack = run\n",
            "fsmonitor = run\n",
        ] {
            assert!(!is_harmless_config(planted), "{planted}");
        }
    }
}
