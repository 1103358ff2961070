//! How does a step change the ledger, and what does the journal record about it?
//!
//! All stores use one function: it gets the ledger rows that the step needs, and returns the changes and the records
//! about them. The store writes these records, not the writer of the step, because the decision of policy is known
//! only in the transaction that reads the counters. They follow the records of the step.

use cantrip_spend::{
    AnyReservation, CallKey, Changes, Decision, DecisionRecord, LedgerCaller, LedgerState, Operation, OperationOutcome,
    Transition, WriteAccess,
};

use crate::{
    AppendOutcome, CallId, Caller, Conflict, Error, Event, PolicyDecision, Projection, ReconcileRequired, Record,
    RecordDraft, RunWriteState, SettledState, SpendOverage, SpendReserved, SpendSettled, Step, StepTarget,
};

/// The result of the money operations of a step.
#[derive(Debug)]
pub enum MoneyOutcome {
    /// All operations are applied. The records in `told` follow those of the step.
    Moved { changes: Box<Changes>, told: Vec<RecordDraft> },
    /// Policy refused a reserve: the step's records for that case are written, followed by the record in `told`, and
    /// the ledger keeps only the decision.
    Refused { changes: Box<Changes>, decision: Decision, told: Box<RecordDraft> },
    /// Nothing is written.
    Answered(AppendOutcome),
}

impl Step {
    /// Applies the money operations to the rows of a ledger. `book` has every row that they touch: the authorizations,
    /// their caps, the day, the approvals and every attempt of each call that is reserved. `replied` returns true if a
    /// call has its reply.
    pub fn apply_money(
        &self,
        book: &LedgerState,
        standing: Option<&RunWriteState<'_>>,
        replied: &dyn Fn(&CallKey) -> bool,
    ) -> Result<MoneyOutcome, Error> {
        let right = self.right(standing);
        let mut page = book.transaction();
        let mut told = Vec::new();
        for operation in &self.money {
            let actor = self.actor(operation);
            let asker = LedgerCaller { actor: &actor, right, replied };
            match page.apply(operation, &asker) {
                Ok(OperationOutcome::Done) => told.extend(operation_records(operation, page.changes())?),
                Ok(OperationOutcome::Replay) => {}
                Ok(OperationOutcome::Wait) => return Ok(MoneyOutcome::Answered(AppendOutcome::Wait)),
                Ok(OperationOutcome::Refused(decided)) => {
                    let (decision, told) = (
                        decided.decision.clone(),
                        Box::new(RecordDraft::new(decided.at, PolicyDecision::new(&decided, None))?),
                    );
                    let changes = Changes { decisions: vec![*decided], ..Changes::default() };
                    return Ok(MoneyOutcome::Refused { changes: Box::new(changes), decision, told });
                }
                Err(fault) => {
                    let conflict = Conflict::Money { what: operation.subject_id(), fault };
                    return Ok(MoneyOutcome::Answered(AppendOutcome::Conflict(conflict)));
                }
            }
        }
        Ok(MoneyOutcome::Moved { changes: Box::new(page.into_changes()), told })
    }

    fn right(&self, standing: Option<&RunWriteState<'_>>) -> WriteAccess {
        match &self.target {
            StepTarget::OpenRun { .. } | StepTarget::OwnedRun(_) => WriteAccess::Lease { epoch: self.epoch().get() },
            StepTarget::Annotation(_) | StepTarget::Import { .. } => WriteAccess::Annotation {
                run_epoch: standing.map_or(0, |standing| standing.epoch.get()),
                live_until: standing.and_then(|standing| standing.holder).map(|lease| lease.expires_at),
            },
            StepTarget::OutsideRuns => WriteAccess::OutsideRuns,
        }
    }

    /// Returns the actor of a ledger entry.
    fn actor(&self, operation: &Operation) -> String {
        match (&self.target, operation) {
            (StepTarget::OpenRun { lease: Some(lease), .. } | StepTarget::OwnedRun(lease), _) => {
                lease.owner.as_str().to_owned()
            }
            (_, Operation::Move { to: Transition::Reconcile(found), .. }) => found.by.clone(),
            (_, Operation::Move { .. }) => "recovery".to_owned(),
            (_, _) => String::new(),
        }
    }

    /// Returns the earlier answer if the stored records were written by this step; none if they have other content.
    /// Records that the store added after those of the step are skipped.
    pub fn earlier_outcome(&self, stored: &[Record]) -> Result<Option<AppendOutcome>, Error> {
        let Some(last) = stored.last() else { return Ok(None) };
        let became = |drafts: &[RecordDraft]| {
            drafts.len() <= stored.len()
                && drafts.iter().zip(stored).all(|(draft, record)| draft.matches_record(record))
                && stored[drafts.len()..].iter().all(|record| record.kind.is_of_store())
        };
        if self.money.is_empty() {
            let same = self.records.len() == stored.len() && became(&self.records);
            return Ok(same.then_some(AppendOutcome::Committed(last.seq)));
        }
        if let Event::PolicyDecision(decided) = last.event()? {
            let same = became(&self.if_refused) && stored.len() == self.if_refused.len() + 1;
            return Ok(same.then_some(AppendOutcome::Refused(decided.outcome.decision)));
        }
        let names: Vec<String> = self.money.iter().map(Operation::subject_id).collect();
        let ours = |record: &Record| {
            let event = record.event().ok();
            let about = event.as_ref().and_then(Event::reservation_id);
            about.is_some_and(|about| names.contains(&about.to_string()))
        };
        let same = became(&self.records) && stored[self.records.len()..].iter().all(ours);
        Ok(same.then_some(AppendOutcome::Committed(last.seq)))
    }
}

/// Returns the records about an operation that was just applied.
fn operation_records(operation: &Operation, changes: &Changes) -> Result<Vec<RecordDraft>, Error> {
    match operation {
        Operation::Reserve(asked) => {
            let hold = &asked.hold;
            let decided = changes.decisions.iter().find(|decided| decided.id == hold.decision);
            let reserved = SpendReserved {
                reservation_id: hold.id(),
                authorization_id: hold.authorization,
                call_id: hold.call.clone(),
                attempt: hold.attempt,
                amount: hold.amount,
                retry_class: hold.retry_class,
                scope_id: hold.scope.clone(),
                approval_id: hold.approval,
                decision_id: hold.decision,
                decision: decided.map(DecisionRecord::outcome),
            };
            Ok(vec![RecordDraft::new(hold.at, reserved)?])
        }
        Operation::Move { reservation, to, at } => {
            let Some(booked) = changes.rows.get(reservation) else { return Ok(Vec::new()) };
            let settled = |by: Option<&str>, reason: Option<&str>| {
                let state = match &booked.row {
                    AnyReservation::Committed(paid) => SettledState::Committed {
                        captured: paid.state().actual,
                        released_micros: (paid.terms().amount.micros() - paid.state().actual.micros()).max(0),
                        provider_correlation_id: paid.state().provider_correlation_id.clone(),
                    },
                    // A settled reservation is committed or released.
                    AnyReservation::Released(_)
                    | AnyReservation::Reserved(_)
                    | AnyReservation::ReconcileRequired(_) => SettledState::Released,
                };
                let (by, reason) = (by.map(str::to_owned), reason.map(str::to_owned));
                RecordDraft::new(*at, SpendSettled { reservation_id: reservation.clone(), state, by, reason })
            };
            let mut told = match to {
                Transition::Commit { .. } | Transition::Release => vec![settled(None, None)?],
                Transition::Reconcile(found) => vec![settled(Some(&found.by), Some(&found.reason))?],
                Transition::MarkReconcileRequired { why } => {
                    let unknown = ReconcileRequired { reservation_id: reservation.clone(), reason: why.clone() };
                    vec![RecordDraft::new(*at, unknown)?]
                }
                // The new holder is in the row and the entry of the reservation.
                Transition::Adopt => Vec::new(),
            };
            let overage_micros = booked.row.overage_micros();
            if overage_micros > 0 {
                let overage = SpendOverage { reservation_id: reservation.clone(), overage_micros };
                told.push(RecordDraft::new(*at, overage)?);
            }
            Ok(told)
        }
        // A cap is in the record of its cast. Evaluations, requests for approval and decisions are recorded by their
        // writers. An authorization belongs to no run.
        Operation::SetCap(_)
        | Operation::Note(_)
        | Operation::AskApproval(_)
        | Operation::DecideApproval(_)
        | Operation::Authorize(_)
        | Operation::Revise(_)
        | Operation::Revoke(_) => Ok(Vec::new()),
    }
}

impl Projection {
    /// Returns true if a call has its reply, as far as this tree holds its turn.
    pub fn has_reply(&self, call: &CallKey) -> bool {
        let Ok(call) = call.to_string().parse::<CallId>() else { return false };
        match call.caller() {
            Caller::Turn(turn) if call.number() == 0 => self.is_opened(turn),
            Caller::Turn(turn) => self.is_settled(turn, call.number()),
            Caller::Fold(_) => false,
        }
    }
}
