//! What an owner that is gone left reserved.
//!
//! Nobody knows what became of the call that it was held for, so it is marked before anything else of the run is asked for.
//! Left as it is it would count as on its way, and requests of the same tree would wait for it, and for each other, for
//! ever. A call that is made again under its own key keeps its hold, which then belongs to the lease of its heir.

use std::collections::HashSet;

use cantrip_canon::RunId;
use cantrip_loom::{
    AppendOutcome, CallId, Caller, Conflict, Error, Journal, Ledger, PageRequest, ReservationFilter, Step, StepId,
};
use cantrip_reply::Refusal;
use cantrip_spend::{AnyReservation, Operation, ReservationId, ReservationRow, UnknownOutcome};

use super::run::WriteOutcome;
use super::{Run, RunError, Runtime, store_refusal};
use crate::limits::ESTATE_TRIES_MAX;

impl Run {
    /// The holds of this run that are open; none where no ledger is kept.
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

    /// Says of what earlier owners held that nobody knows what became of it. `is_made_again`: a call that is, with the same
    /// key, and keeps its hold. Gives the holds that were kept.
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
                // A sweep of another process came first with one of them.
                Err(RunError::Conflict(Conflict::Money { .. })) => {}
                Ok(WriteOutcome::Refused(_) | WriteOutcome::Wait) => return Err(RunError::Unpaid),
                Err(stopped) => return Err(stopped),
            }
        }
        Err(RunError::Unpaid)
    }

    /// Marks for all that is held while nobody waits for an answer: requests that were dropped because the run rests.
    pub(crate) async fn dropped_hold_marks(&self) -> Result<Vec<Operation>, RunError> {
        let at = self.runtime.now().wall;
        let holds = self.open_holds().await?;
        Ok(holds.iter().map(|held| Operation::unknown(held.row.terms().id(), UnknownOutcome::StreamCut, at)).collect())
    }
}

/// Whether it is a request to a crystal: of a turn, or of a fold.
fn is_request(call: &CallId) -> bool {
    match call.caller() {
        Caller::Turn(_) => call.number() == 0,
        Caller::Fold(_) => true,
    }
}

impl Runtime {
    /// Marks every hold that no living owner can settle any more: of a run that was taken over since, or past its time and
    /// without a live lease. Gives how many there were. What is under way is never touched, however long it takes: the
    /// ledger looks again where the mark is written.
    ///
    /// Call it where a process starts that goes on with what others left; while anything is cast here it is done every half
    /// minute.
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
        // Whoever sweeps at the same time writes the same step.
        let step = StepId::new(format!("recover-{id}")).expect("a short name");
        let mark = Operation::unknown(id, UnknownOutcome::Crashed, self.now().wall);
        match self.loom().append(Step::annotation(step, run).money(mark)).await? {
            AppendOutcome::Committed(_) => Ok(true),
            // Its owner lives after all, or has settled it meanwhile.
            AppendOutcome::Conflict(_)
            | AppendOutcome::Refused(_)
            | AppendOutcome::Wait
            | AppendOutcome::Fenced { .. } => Ok(false),
        }
    }
}
