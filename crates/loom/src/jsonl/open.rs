//! Opening a folder: complete steps are read, an unfinished step at the end is cut off, and damage is reported.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

use cantrip_canon::{Hash, RunId};

use super::line::{self, LineFault};
use super::{BODIES, FolderState, LEASES, LOCK, RECORDS, bodies};
use crate::state::Stored;
use crate::{Damage, Error, Lease};

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { doing, path, source }
}

/// Takes the lock, cuts off an unfinished end and reads the rest. Returns the file that holds the lock, the state, and
/// the number of bytes cut off.
pub(super) fn for_writing(folder: &Path) -> Result<(File, FolderState, u64), Error> {
    fs::create_dir_all(folder.join(BODIES)).map_err(failed("make", folder))?;
    let lock_path = folder.join(LOCK);
    let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&lock_path);
    let lock = lock.map_err(failed("open", &lock_path))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(Error::Locked { path: folder.to_owned() }),
        Err(TryLockError::Error(source)) => return Err(Error::Io { doing: "lock", path: lock_path, source }),
    }
    let records = folder.join(RECORDS);
    let file = OpenOptions::new().create(true).append(true).read(true).open(&records);
    let mut file = file.map_err(failed("open", &records))?;
    bodies::flush_folder(folder).map_err(failed("flush", folder))?;
    let mut held = FolderState::default();
    let tail = take_in(&mut file, &records, &mut held, Tail::Take)?;
    let mut torn = 0;
    if held.damage.is_none() && tail > held.length {
        torn = tail - held.length;
        file.set_len(held.length)
            .and_then(|()| file.sync_all())
            .map_err(failed("cut off the torn end of", &records))?;
    } else if held.damage.is_none() && tail < held.length {
        // The last record was complete except for its line feed.
        file.write_all(b"\n").and_then(|()| file.sync_all()).map_err(failed("finish", &records))?;
    }
    remember_epochs(&folder.join(LEASES), &mut held)?;
    Ok((lock, held, torn))
}

/// Reads the steps that were finished since the last read.
pub(super) fn catch_up(records: &Path, held: &mut FolderState) -> Result<(), Error> {
    let mut file = match File::open(records) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(Error::Io { doing: "open", path: records.to_owned(), source }),
    };
    take_in(&mut file, records, held, Tail::Leave)?;
    Ok(())
}

/// The treatment of a last line that is complete except for its line feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tail {
    Take,
    /// The writer of the line may be about to finish it.
    Leave,
}

/// Reads complete steps after `held.length`. Returns the length of the file; the bytes between `held.length` and that
/// are an unfinished step. A complete last line without its line feed counts as if it had one.
pub(super) fn take_in(file: &mut File, path: &Path, held: &mut FolderState, tail: Tail) -> Result<u64, Error> {
    let size = file.metadata().map_err(failed("look at", path))?.len();
    file.seek(SeekFrom::Start(held.length)).map_err(failed("read", path))?;
    let mut reader = BufReader::new(file.take(size.saturating_sub(held.length)));
    let mut heads: HashMap<RunId, Hash> = HashMap::new();
    let mut step: Vec<Stored> = Vec::new();
    let (mut at, mut lines) = (held.length, held.lines);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        let read = reader.read_until(b'\n', &mut bytes).map_err(failed("read", path))?;
        let whole = bytes.last() == Some(&b'\n');
        if read == 0 || (!whole && tail == Tail::Leave) {
            break;
        }
        lines += 1;
        let text = if whole { &bytes[..bytes.len() - 1] } else { &bytes[..] };
        let damage = |run, seq, what| Some(Damage { run, seq, line: Some(lines), what });
        let stored = match line::read(text) {
            Ok(stored) => stored,
            // Without its line feed the line is an unfinished write.
            Err(_) if !whole => break,
            Err(LineFault::NotJson) => {
                held.damage = damage(None, None, "a line is not a record");
                break;
            }
            Err(LineFault::Newer(version)) => {
                return Err(Error::UnsupportedVersion { kind: "journal".to_owned(), version });
            }
        };
        let record = &stored.record;
        let before = heads.get(&record.run).copied().or_else(|| held.state.head(record.run));
        if record.expected_hash(before.as_ref()) != record.hash {
            if whole {
                held.damage = damage(Some(record.run), Some(record.seq), "the chain is broken");
            }
            break;
        }
        heads.insert(record.run, record.hash);
        let last = stored.step.is_some();
        at += bytes.len() as u64 + u64::from(!whole);
        step.push(stored);
        if last {
            for stored in step.drain(..) {
                let (run, seq) = (stored.record.run, stored.record.seq);
                match held.state.restore(stored) {
                    Ok(()) => {}
                    Err(error @ Error::UnsupportedVersion { .. }) => return Err(error),
                    Err(_) => {
                        held.damage = damage(Some(run), Some(seq), "a record does not follow from those before it");
                        return Ok(size);
                    }
                }
            }
            (held.length, held.lines) = (at, lines);
        }
    }
    Ok(size)
}

/// Reads the epochs of former processes. Their owners are gone, since this process holds the lock, but their epochs
/// must not be given out again.
fn remember_epochs(path: &Path, held: &mut FolderState) -> Result<(), Error> {
    let mut text = Vec::new();
    match File::open(path) {
        Ok(mut file) => file.read_to_end(&mut text).map_err(failed("read", path))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(Error::Io { doing: "open", path: path.to_owned(), source }),
    };
    for line in text.split(|byte| *byte == b'\n') {
        // A torn line is an epoch for which nobody got an answer.
        if let Ok(lease) = serde_json::from_slice::<Lease>(line) {
            held.state.remember_epoch(lease.run, lease.epoch);
        }
    }
    Ok(())
}
