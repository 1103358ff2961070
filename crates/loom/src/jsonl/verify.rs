//! Is everything as it was written?

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

use serde::Serialize;

use super::bodies::Folder;
use super::open::{Tail, take_in};
use super::{BODIES, FolderState, RECORDS};
use crate::{Bodies, Damage, Error, body_refs};

/// The counts of a successful verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    pub records: u64,
    pub runs: u64,
    pub bodies: u64,
    /// The number of bytes of an unfinished step at the end, for which nobody got an answer.
    pub torn_bytes: u64,
    /// The data that retention removed; none if nothing was ever removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removed: Option<RemovedCounts>,
}

/// The counts of the data that retention removed from a store, from the records of the removals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RemovedCounts {
    pub runs: u64,
    pub records: u64,
    /// The number of runs whose beginning was removed by an earlier version, which kept no record of it.
    pub unrecorded: u64,
}

pub(super) fn folder(folder: &Path) -> Result<VerifyReport, Error> {
    let path = folder.join(RECORDS);
    let mut held = FolderState::default();
    let mut file = File::open(&path).map_err(|source| Error::Io { doing: "open", path: path.clone(), source })?;
    let size = take_in(&mut file, &path, &mut held, Tail::Take)?;
    if let Some(damage) = held.damage {
        return Err(Error::Damaged(damage));
    }
    let bodies = Folder::new(folder.join(BODIES));
    let mut runs = BTreeSet::new();
    let mut sound = BTreeSet::new();
    for (at, stored) in held.state.stored(0).iter().enumerate() {
        let record = &stored.record;
        runs.insert(record.run);
        for hash in body_refs::body_hashes(&record.payload, false)? {
            if !sound.contains(&hash) {
                bodies.body(&hash).map_err(|_| {
                    Error::Damaged(Damage {
                        run: Some(record.run),
                        seq: Some(record.seq),
                        line: Some(at as u64 + 1),
                        what: "a body it names is missing or altered",
                    })
                })?;
                sound.insert(hash);
            }
        }
    }
    Ok(VerifyReport {
        records: held.state.len() as u64,
        runs: runs.len() as u64,
        bodies: sound.len() as u64,
        torn_bytes: size.saturating_sub(held.length),
        removed: None,
    })
}
