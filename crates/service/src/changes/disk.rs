//! Reads a file below the root of a gate, to show it to a person.
//!
//! Nothing is decided by these bytes: the gates and the undo open their files beneath a directory handle. A path that
//! leads out of its root is not followed here either, because a person must not be shown a file that no gate can reach.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use cantrip::canon::Timestamp;

use super::GateRoots;

/// The content of a path as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskFile {
    Nothing,
    File {
        bytes: Vec<u8>,
        /// The time of its last change, if the system tells it.
        modified: Option<Timestamp>,
    },
    /// A folder, a path that leads out of the root, or a file that is too large or cannot be read.
    Hidden,
}

impl GateRoots {
    /// Reads the file that a gate means by this path. Returns none if the gate has no root.
    pub fn file(&self, gate: &str, path: &str, bytes_max: u64) -> Option<DiskFile> {
        Some(read_below(self.by_gate.get(gate)?, path, bytes_max))
    }
}

fn read_below(root: &Path, path: &str, bytes_max: u64) -> DiskFile {
    let Ok(root) = root.canonicalize() else { return DiskFile::Nothing };
    let real = match root.join(path).canonicalize() {
        Ok(real) => real,
        Err(error) if error.kind() == ErrorKind::NotFound => return DiskFile::Nothing,
        Err(_) => return DiskFile::Hidden,
    };
    if !real.starts_with(&root) {
        return DiskFile::Hidden;
    }
    read_whole(&real, bytes_max).ok().flatten().unwrap_or(DiskFile::Hidden)
}

/// Returns none for a folder, a device or a file that is too large. Only a regular file is opened: opening a pipe would
/// wait for its writer.
fn read_whole(file: &Path, bytes_max: u64) -> io::Result<Option<DiskFile>> {
    let found = fs::metadata(file)?;
    if !found.is_file() || found.len() > bytes_max {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    File::open(file)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Ok(None);
    }
    let modified = found.modified().ok().and_then(timestamp);
    Ok(Some(DiskFile::File { bytes, modified }))
}

fn timestamp(time: SystemTime) -> Option<Timestamp> {
    let millis = time.duration_since(UNIX_EPOCH).ok()?.as_millis();
    Timestamp::from_unix_millis(i64::try_from(millis).ok()?).ok()
}
