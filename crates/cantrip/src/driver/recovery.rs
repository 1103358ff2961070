//! What happens to the reservations of an owner that is gone?
//!
//! The outcome of the call that the money was reserved for is unknown, so the reservation is marked before the run
//! requests anything else. Unmarked, it would count as in progress, and requests of the same tree would wait for it,
//! and for each other, for ever. A call that is made again under its own key keeps its reservation, which then belongs
//! to the lease of the new owner.

use std::collections::HashSet;

use cantrip_canon::RunId;
use cantrip_loom::{
    AppendOutcome, CallId, Caller, Conflict, Error, Journal, Ledger, PageRequest, ReservationFilter, Step, StepId,
};
use cantrip_reply::Refusal;
use cantrip_spend::{AnyReservation, Operation, ReservationId, ReservationRow, UnknownOutcome};

use super::run::WriteOutcome;
use super::{Run, Runtime};
use crate::limits::ESTATE_TRIES_MAX;
use crate::runtime_error::{RunError, store_refusal};

impl Run {
    /// Returns the open reservations of this run; none without a ledger.
    async fn open_holds(&self) -> Result<Vec<ReservationRow>, RunError> {
        let wanted = ReservationFilter { run: Some(self.id), state: Some("reserved"), authorization: None };
        let (mut found, mut page) = (Vec::new(), PageRequest::FIRST);
        loop {
            match self.runtime.loom().reservations(wanted.clone(), page).await {
                Ok(listed) => {
                    found.extend(listed.items);
                    match listed.next {
                        Some(after) => page.after = Some(after),
                        None => return Ok(found),
                    }
                }
                Err(Error::NoLedger) => return Ok(Vec::new()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Marks the reservations of earlier owners as having an unknown outcome. A call for which `is_made_again` is true
    /// is made again with the same key and keeps its reservation. Returns the reservations that were kept.
    pub(crate) async fn recover_holds(
        &self,
        is_made_again: impl Fn(&CallId) -> bool,
    ) -> Result<HashSet<ReservationId>, RunError> {
        for _ in 0..ESTATE_TRIES_MAX {
            let at = self.runtime.now().wall;
            let (mut moves, mut kept, mut lost) = (Vec::new(), HashSet::new(), Vec::new());
            for ReservationRow { row, .. } in self.open_holds().await? {
                let (hold, id) = (row.terms(), row.terms().id());
                let call: Option<CallId> = hold.call.to_string().parse().ok();
                let again = call.filter(|call| !is_request(call)).is_some_and(|call| is_made_again(&call));
                if again {
                    moves.push(Operation::adopt(id.clone(), at));
                    kept.insert(id);
                } else {
                    moves.push(Operation::unknown(id, UnknownOutcome::Crashed, at));
                    lost.push((hold.scope.clone(), hold.amount));
                }
            }
            match self.append_paid(&[], &[], moves).await {
                Ok(WriteOutcome::Whole { .. }) => {
                    for (scope, amount) in lost {
                        self.funds.charge_lost(self.entity_of_scope(&scope), amount);
                    }
                    return Ok(kept);
                }
                // A sweep of another process marked one of them first.
                Err(RunError::Conflict(Conflict::Money { .. })) => {}
                Ok(WriteOutcome::Refused(_) | WriteOutcome::Wait) => return Err(RunError::Unpaid),
                Err(stopped) => return Err(stopped),
            }
        }
        Err(RunError::Unpaid)
    }

    /// Returns marks for all reservations whose answer is no longer awaited: requests that were dropped because the run
    /// paused.
    pub(crate) async fn dropped_hold_marks(&self) -> Result<Vec<Operation>, RunError> {
        let at = self.runtime.now().wall;
        let holds = self.open_holds().await?;
        Ok(holds.iter().map(|held| Operation::unknown(held.row.terms().id(), UnknownOutcome::StreamCut, at)).collect())
    }
}

/// Returns true if the call is a request to a crystal, for a turn or for a fold.
fn is_request(call: &CallId) -> bool {
    match call.caller() {
        Caller::Turn(_) => call.number() == 0,
        Caller::Fold(_) => true,
    }
}

impl Runtime {
    /// Marks every reservation that no living owner can settle any more: of a run that was taken over since, or expired
    /// and without a live lease. Returns the number of marked reservations. Work in progress is never touched, however
    /// long it takes: the ledger checks again where the mark is written.
    ///
    /// Call it when a process starts that resumes the runs of others. While anything is cast here, it is repeated every
    /// half minute.
    pub async fn recover(&self) -> Result<u64, Refusal> {
        self.mark_swept();
        self.try_recover().await.map_err(|error| store_refusal(&error))
    }

    pub(super) async fn try_recover(&self) -> Result<u64, Error> {
        let (mut marked, mut page) = (0, PageRequest::FIRST);
        loop {
            let now = self.loom().lease_now(self.now().wall).await?;
            let listed = match self.loom().recoverable(now, page).await {
                Ok(listed) => listed,
                Err(Error::NoLedger) => return Ok(0),
                Err(error) => return Err(error),
            };
            for ReservationRow { row, .. } in &listed.items {
                marked += u64::from(self.mark_unknown(row.terms().run, row).await?);
            }
            match listed.next {
                Some(after) => page.after = Some(after),
                None => return Ok(marked),
            }
        }
    }

    async fn mark_unknown(&self, run: RunId, row: &AnyReservation) -> Result<bool, Error> {
        let id = row.terms().id();
        // A concurrent sweep writes the same step.
        let step = StepId::new(format!("recover-{id}")).expect("a short name");
        let mark = Operation::unknown(id, UnknownOutcome::Crashed, self.now().wall);
        let outcome = self.loom().append(Step::annotation(step, run).money(mark)).await?;
        // Otherwise the owner is alive after all, or has settled the reservation meanwhile.
        Ok(matches!(outcome, AppendOutcome::Committed(_)))
    }
}
