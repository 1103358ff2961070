//! The programs that a spell names: where are they, and can they be started?
//!
//! A program that is missing is reported when the spell is built, with its line. At the first call it would be too
//! late: the entity that reads the error can do nothing about it, and by then a person may have approved the call.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::Spell;

impl Spell {
    /// Returns the path of a program. A name with a folder in it is relative to the spell; a bare name is searched in
    /// `PATH`. The path is absolute, because a program starts in the spell's folder.
    pub(super) fn program(&self, program: &str) -> PathBuf {
        if !has_folder(program) {
            return PathBuf::from(program);
        }
        let path = self.folder.join(program);
        std::path::absolute(&path).unwrap_or(path)
    }

    /// Returns the path of a program that can be started. The program may have a `PATH` of its own in `environment`.
    /// The error is the rule for the key that names the program.
    pub(super) fn startable_program(&self, program: &str, environment: &[(String, String)]) -> Result<PathBuf, String> {
        let path = self.program(program);
        if has_folder(program) {
            return match start_fault(&path) {
                Some(fault) => Err(format!("{program}: {fault}")),
                None => Ok(path),
            };
        }
        let own = environment.iter().rev().find(|(name, _)| name == "PATH").map(|(_, value)| OsString::from(value));
        let Some(searched) = own.or_else(|| std::env::var_os("PATH")) else { return Ok(path) };
        if is_in_path(program, &searched) {
            return Ok(path);
        }
        let beside = self.folder.join(program).is_file();
        Err(if beside {
            format!("{program}: no such program in PATH; the file beside the spell is written ./{program}")
        } else {
            format!("{program}: no such program in PATH")
        })
    }
}

fn has_folder(program: &str) -> bool {
    Path::new(program).components().count() > 1
}

fn is_in_path(program: &str, searched: &OsStr) -> bool {
    std::env::split_paths(searched).any(|folder| start_fault(&folder.join(program)).is_none())
}

/// Returns the reason why a file cannot be started, as far as its entry in the folder shows.
fn start_fault(path: &Path) -> Option<String> {
    match fs::metadata(path) {
        // The operating system calls a missing file an "entity", which has another meaning here.
        Err(error) if error.kind() == ErrorKind::NotFound => Some("no such file".to_owned()),
        Err(error) => Some(format!("the file cannot be read: {}", error.kind())),
        Ok(found) if !found.is_file() => Some("not a program, but a folder or a device".to_owned()),
        Ok(found) if found.permissions().mode() & 0o111 == 0 => {
            Some("the file is not executable; chmod +x makes it so".to_owned())
        }
        Ok(_) => None,
    }
}
