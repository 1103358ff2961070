//! Reads the records of a run into its feed.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Weak};

use cantrip_service::cantrip::Runtime;
use cantrip_service::cantrip::canon::{RunId, TurnId};
use cantrip_service::cantrip::events::RecordTranslator;
use cantrip_service::cantrip::loom::{Error, Journal, Seq};
use futures_util::StreamExt;

use super::run_feed::{RecordEffect, RunFeed};
use super::run_status::{Change, RunStatus};
use crate::limits::KEPT_TURNS;

/// Reads until the run has ended; after that there is nothing more to show.
pub(super) async fn run_reader(board: Weak<RunFeed>, runtime: Runtime, run: RunId) {
    if let Err(error) = read_records(&board, &runtime, run).await {
        tracing::warn!(%run, %error, "the records of a run cannot be read for its viewers");
        if let Some(board) = board.upgrade() {
            board.mark_failed();
        }
    }
}

async fn read_records(board: &Weak<RunFeed>, runtime: &Runtime, run: RunId) -> Result<(), Error> {
    let (old, kept_from) = expired_turns(runtime, run).await?;
    if let Some(board) = board.upgrade() {
        board.drop_before(kept_from);
    }
    let mut retold = RecordTranslator::new(runtime, run);
    let mut standing = RunStatus::new(run);
    let mut again = HashSet::new();
    let mut records = std::pin::pin!(runtime.loom().follow(run, Seq::START));
    while let Some(record) = records.next().await {
        let record = record?;
        let Some(board) = board.upgrade() else { return Ok(()) };
        let known = board.newest();
        let wants = |turn: TurnId| !old.contains(&turn) && !board.has_turn(turn);
        let told = retold.translate(&record, wants).await?;
        let event = record.event()?;
        let change = standing.take(&record, &event)?;
        let group = told.group.filter(|group| wants(*group));
        if let Some(group) =
            group.filter(|group| record.seq > known || board.needs_replay(*group) || again.contains(group))
        {
            // Replays the turn from its first record, although these records were read before.
            if record.seq <= known {
                again.insert(group);
            }
            board.apply_events(&told.events);
        }
        // A reader whose viewers disconnected has read this record before.
        if record.seq <= known {
            continue;
        }
        let closed = told.group.filter(|group| told.closes && !old.contains(group));
        let mut steps = Vec::new();
        if let Some(group) = closed {
            steps.push(RecordEffect::Closes { group, seq: record.seq, end: told.events.last().cloned().map(Arc::new) });
        }
        match change {
            Change::Over => steps.push(RecordEffect::Over { seq: record.seq }),
            Change::None | Change::State => {}
        }
        if change != Change::None || closed.is_some() {
            let answers = standing.answered_by();
            steps.push(RecordEffect::Stands { seq: record.seq, told: standing.to_json(None), answers });
        }
        board.apply_record(record.seq, steps, standing.is_over());
    }
    Ok(())
}

/// Returns the turns of a run that ended too long ago to be shown, and the sequence number at which the last of them
/// ended.
async fn expired_turns(runtime: &Runtime, run: RunId) -> Result<(HashSet<TurnId>, Seq), Error> {
    let (mut old, mut from) = (HashSet::new(), Seq::START);
    let mut kept: VecDeque<(TurnId, Seq)> = VecDeque::with_capacity(KEPT_TURNS + 1);
    let mut retold = RecordTranslator::new(runtime, run);
    let mut records = std::pin::pin!(runtime.loom().read(run, Seq::START));
    while let Some(record) = records.next().await {
        let record = record?;
        let told = retold.translate(&record, |_| false).await?;
        let Some(group) = told.group.filter(|_| told.closes) else { continue };
        kept.push_back((group, record.seq));
        if kept.len() > KEPT_TURNS
            && let Some((group, seq)) = kept.pop_front()
        {
            old.insert(group);
            from = seq;
        }
    }
    Ok((old, from))
}
