//! The files that a cage made and that decide about later casts, or about what the next person runs.
//!
//! What of them was there before is read-only in the cage ([`masks`](super::masks)). A new one cannot be kept from being
//! made, since no mount covers a name that is not there. It gets another name afterwards, under which nothing reads it, and
//! the reply of the command says so. A repository that was made in the cage stays one; its hooks, and a configuration with
//! more in it than names and addresses, get other names, because the next `git` that a person runs would execute them.

use std::collections::HashSet;
use std::ffi::CStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, openat, renameat, statat};

use crate::gate::builtin::{danger, folded};
use crate::limits::GIT_CONFIG_BYTES_MAX;

/// What is put behind the name of a file that nobody approved.
const SUFFIX: &str = ".unapproved";

/// Files that a person allowed a gate to write, by their numbers: a search of a cage leaves them alone.
static APPROVED: Mutex<Option<HashSet<(u64, u64)>>> = Mutex::new(None);

/// Notes that a person allowed this file to be written.
pub(crate) fn note_approved(folder: BorrowedFd<'_>, name: &str) {
    if let Ok(stat) = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        let mut approved = APPROVED.lock().unwrap_or_else(PoisonError::into_inner);
        approved.get_or_insert_default().insert(number(&stat));
    }
}

fn is_approved(stat: &Stat) -> bool {
    let approved = APPROVED.lock().unwrap_or_else(PoisonError::into_inner);
    approved.as_ref().is_some_and(|approved| approved.contains(&number(stat)))
}

fn number(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Gives a file another name if it decides about later casts. `path` is where it lies from the root of the project.
pub(super) fn quarantine(folder: BorrowedFd<'_>, name: &CStr, path: &str, stat: &Stat) -> io::Result<bool> {
    if is_approved(stat) || !is_unwanted(folder, name, path, stat) {
        return Ok(false);
    }
    let mut other = name.to_bytes().to_vec();
    other.extend_from_slice(SUFFIX.as_bytes());
    renameat(folder, name, folder, other.as_slice())?;
    Ok(true)
}

fn is_unwanted(folder: BorrowedFd<'_>, name: &CStr, path: &str, stat: &Stat) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    if !is_folder && danger(&parts).is_some() {
        return true;
    }
    let names: Vec<String> = parts.iter().rev().map(|part| folded(part)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    match names.as_slice() {
        // A link or a file in the place of a repository leads to one elsewhere.
        [".git", ..] => !is_folder,
        ["hooks" | "config.worktree" | "commondir", ".git", ..] => !is_folder,
        [hook, "hooks", ".git", ..] => !hook.ends_with(".sample") && !hook.ends_with(SUFFIX),
        ["config", ".git", ..] => !read_config(folder, name).is_some_and(|text| is_harmless_config(&text)),
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

/// Whether a configuration of git holds nothing but names and addresses. Most other keys name a program.
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
