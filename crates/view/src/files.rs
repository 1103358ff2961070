//! The files that a run changed.

use std::collections::{BTreeMap, HashSet};

use cantrip_service::cantrip::canon::{CastId, Hash, RunId, TurnId};
use cantrip_service::cantrip::loom::{Closing, Error, Event, FileChange, Journal, Kind, Record, RunView, Seq};
use cantrip_service::cantrip::reply::Refusal;
use cantrip_service::{FileDiff, FileDiffs};
use futures_util::TryStreamExt;

use crate::limits::FILES_COUNTED_RECORDS_MAX;
use crate::{FilesView, Views, stored};

impl Views<'_> {
    /// Returns the files that a run and its children changed, as differences.
    pub async fn files(&self, run: RunId) -> Result<FilesView, Refusal> {
        let view = self.service.own_run(run).await?;
        let FileDiffs { files, unknown } = self.service.file_diffs(run, None).await?;
        let undo_to = if files.is_empty() { BTreeMap::new() } else { self.turns_before(&view).await? };
        let shown = files.into_iter().map(|mut file: FileDiff| {
            file.path = self.text(file.path);
            file.unified = file.unified.map(|difference| self.text(difference));
            file
        });
        let unknown = unknown.into_iter().map(|path| self.text(path)).collect();
        let undo_to = undo_to.into_iter().map(|(path, turn)| (self.text(path), turn)).collect();
        Ok(FilesView { files: shown.collect(), unknown, undo_to, fault: None })
    }

    /// Returns the number of files that a run left otherwise than it found them; none for a run with many records,
    /// since a head must not read all of them.
    pub(crate) async fn count_changed_files(&self, run: &RunView) -> Result<Option<u64>, Refusal> {
        if run.newest.get() > FILES_COUNTED_RECORDS_MAX {
            return Ok(None);
        }
        let mut ends: BTreeMap<String, (Option<Hash>, Option<Hash>)> = BTreeMap::new();
        let mut records = std::pin::pin!(self.loom().read(run.run_id, Seq::START));
        while let Some(record) = records.try_next().await.map_err(stored)? {
            for change in changes_of(&record).map_err(stored)? {
                let found = change.before.map(|body| body.hash);
                ends.entry(change.path).or_insert((found, found)).1 = change.after;
            }
        }
        Ok(Some(ends.values().filter(|(found, left)| found != left).count() as u64))
    }

    /// Returns, for each file that the run changed, the last turn of its root before the first change.
    async fn turns_before(&self, run: &RunView) -> Result<BTreeMap<String, TurnId>, Refusal> {
        let root = self.service.cast_of_run(run).await?.map(|cast| cast.cast.cast_id);
        let mut reading = RootTurns { cast: root, turns: HashSet::new(), last: None };
        let mut found = BTreeMap::new();
        let mut changed = HashSet::new();
        let mut records = std::pin::pin!(self.loom().read(run.run_id, Seq::START));
        while let Some(record) = records.try_next().await.map_err(stored)? {
            for change in changes_of(&record).map_err(stored)? {
                if changed.insert(change.path.clone())
                    && let Some(turn) = reading.last
                {
                    found.insert(change.path, turn);
                }
            }
            reading.take(&record).map_err(stored)?;
        }
        Ok(found)
    }
}

/// The turns of a run's root that are closed so far.
struct RootTurns {
    cast: Option<CastId>,
    turns: HashSet<TurnId>,
    last: Option<TurnId>,
}

impl RootTurns {
    fn take(&mut self, record: &Record) -> Result<(), Error> {
        if ![Kind::Opened, Kind::Turn].contains(&record.kind) {
            return Ok(());
        }
        let event = record.event()?;
        if let Event::Opened(opened) = &event
            && Some(opened.cast_id) == self.cast
        {
            self.turns.insert(opened.turn_id);
        } else if let Event::Turn(closed) = &event
            && self.turns.remove(&closed.turn_id)
        {
            self.last = Some(closed.turn_id);
            if let Closing::Sealed { next, .. } = &closed.closing {
                self.turns.insert(*next);
            }
        }
        Ok(())
    }
}

/// Returns the file changes that a record tells of. Few records tell of any, so the others are not parsed.
fn changes_of(record: &Record) -> Result<Vec<FileChange>, Error> {
    if record.kind != Kind::Settled || !record.payload.contains("\"changes\":[") {
        return Ok(Vec::new());
    }
    let settled = record.event()?.as_settled().map(|settled| settled.changes.clone());
    Ok(settled.unwrap_or_default())
}
