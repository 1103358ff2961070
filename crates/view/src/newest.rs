//! The newest records of a run, read from the end.
//!
//! The last records of a run tell its activity. To read its journal from the beginning for that would make
//! the page of a long run slower than that of a short one.

use std::collections::VecDeque;

use cantrip_service::cantrip::loom::{Journal, Record, RunView, Seq};
use cantrip_service::cantrip::reply::Refusal;
use futures_util::TryStreamExt;

use crate::limits::{NEWEST_RECORDS_MAX, NEWEST_RECORDS_READ};
use crate::{Views, stored};

impl Views<'_> {
    /// Reads the newest records of a run, in order: as many as are needed until `enough` says so about the oldest
    /// piece that was read, and at most [`NEWEST_RECORDS_MAX`].
    pub(crate) async fn newest_records(
        &self,
        run: &RunView,
        mut enough: impl FnMut(&[Record]) -> bool,
    ) -> Result<Vec<Record>, Refusal> {
        let mut found = VecDeque::new();
        let mut end = run.newest.get();
        while end > 0 && found.len() < NEWEST_RECORDS_MAX {
            let start = end.saturating_sub(NEWEST_RECORDS_READ as u64);
            let piece = self.records_between(run, start, end).await?;
            // Retention may have removed the oldest records.
            let over = piece.is_empty() || enough(&piece);
            piece.into_iter().rev().for_each(|record| found.push_front(record));
            if over {
                break;
            }
            end = start;
        }
        Ok(found.into())
    }

    /// Reads the records of a run after `start` up to `end`.
    pub(crate) async fn records_between(&self, run: &RunView, start: u64, end: u64) -> Result<Vec<Record>, Refusal> {
        let mut piece = Vec::new();
        let mut records = std::pin::pin!(self.loom().read(run.run_id, Seq::new(start)));
        while let Some(record) = records.try_next().await.map_err(stored)? {
            if record.seq.get() > end {
                break;
            }
            let last = record.seq.get() == end;
            piece.push(record);
            if last {
                break;
            }
        }
        Ok(piece)
    }
}
