//! The facts beside the turns of a window: approvals and reservations of their calls, and attempts that failed.

use std::collections::{BTreeMap, HashMap};

use cantrip_service::cantrip::canon::{ApprovalId, RunId, TurnId};
use cantrip_service::cantrip::loom::{
    CallId, Caller, Error, Event, Journal, Kind, Record, Seq, Settlement, Turn, TurnWindow,
};
use cantrip_service::cantrip::reply::{AnyCode, Refusal};
use futures_util::TryStreamExt;

use crate::limits::WINDOW_RECORDS_MAX;
use crate::{CallNote, Views, stored};

/// The notes of a window.
#[derive(Debug, Default)]
pub(crate) struct WindowNotes {
    pub(crate) calls: BTreeMap<(TurnId, usize), CallNote>,
    pub(crate) attempts: BTreeMap<TurnId, Vec<String>>,
}

/// The facts about calls in the records around the turns.
#[derive(Debug, Default)]
struct RecordedNotes {
    approvals: HashMap<CallId, ApprovalId>,
    reservations: HashMap<CallId, String>,
    attempts: BTreeMap<TurnId, Vec<String>>,
}

impl Views<'_> {
    /// Reads the notes of a window from the records of its turns. Records of other entities lie between them, so the
    /// reading is bounded.
    pub(crate) async fn notes(&self, window: &TurnWindow) -> Result<WindowNotes, Refusal> {
        let mut recorded = RecordedNotes::default();
        let mut room = WINDOW_RECORDS_MAX;
        for (run, first, last) in stretches(window) {
            self.read_notes(run, first, last, &mut room, &mut recorded).await?;
        }
        let mut calls = BTreeMap::new();
        for turn in &window.turns {
            for (index, record) in turn.gate_calls.iter().enumerate() {
                let advice = match &record.settlement {
                    Settlement::Delegated => None,
                    Settlement::Settled(settled) => settled.reply.known().and_then(AnyCode::advice),
                };
                let approval = recorded.approvals.get(&record.call_id).copied();
                let reservation = recorded.reservations.get(&record.call_id).cloned();
                if advice.is_some() || approval.is_some() || reservation.is_some() {
                    calls.insert((turn.id, index), CallNote { advice, approval, reservation });
                }
            }
        }
        Ok(WindowNotes { calls, attempts: attempts_of(&window.turns, recorded.attempts) })
    }

    async fn read_notes(
        &self,
        run: RunId,
        first: Seq,
        last: Seq,
        room: &mut usize,
        recorded: &mut RecordedNotes,
    ) -> Result<(), Refusal> {
        let after = Seq::new(first.get().saturating_sub(1));
        let mut records = std::pin::pin!(self.loom().read(run, after));
        while *room > 0
            && let Some(record) = records.try_next().await.map_err(stored)?
        {
            if record.seq > last {
                break;
            }
            *room -= 1;
            recorded.take(&record).map_err(stored)?;
        }
        Ok(())
    }
}

impl RecordedNotes {
    fn take(&mut self, record: &Record) -> Result<(), Error> {
        // Only these kinds tell something, and most records are of others.
        let tells = [Kind::ApprovalRequested, Kind::Started, Kind::Attempt, Kind::Settled].contains(&record.kind);
        if !tells {
            return Ok(());
        }
        let event = record.event()?;
        if let Event::ApprovalRequested(asked) = &event {
            self.approvals.insert(asked.call_id, asked.approval_id);
        } else if let Event::Started(started) = &event
            && let Some(reservation) = &started.reservation_id
        {
            self.reservations.insert(started.call_id, reservation.to_string());
        } else if let Event::Attempt(attempt) = &event
            && let Some(reservation) = &attempt.reservation_id
        {
            self.reservations.insert(attempt.call_id, reservation.to_string());
        } else if let Event::Settled(settled) = &event
            && settled.attempt.is_some()
            && let Caller::Turn(turn) = settled.call_id.caller()
        {
            self.attempts.entry(turn).or_default().push(settled.reply.code.clone());
        }
        Ok(())
    }
}

/// Returns the stretches of records that tell of the turns, by run, in the order of the path.
fn stretches(window: &TurnWindow) -> Vec<(RunId, Seq, Seq)> {
    let mut stretches: Vec<(RunId, Seq, Seq)> = Vec::new();
    for (turn, span) in window.turns.iter().zip(&window.spans) {
        let Some(cast) = window.casts.iter().find(|cast| cast.cast.cast_id == turn.cast_id) else { continue };
        match stretches.last_mut() {
            Some((run, first, last)) if *run == cast.run_id => {
                *first = (*first).min(span.first);
                *last = (*last).max(span.last);
            }
            Some(_) | None => stretches.push((cast.run_id, span.first, span.last)),
        }
    }
    stretches
}

/// Keeps the failed attempts of turns that took several.
fn attempts_of(turns: &[Turn], mut failed: BTreeMap<TurnId, Vec<String>>) -> BTreeMap<TurnId, Vec<String>> {
    failed.retain(|id, _| turns.iter().any(|turn| turn.id == *id && turn.metadata.attempts > 1));
    failed
}
