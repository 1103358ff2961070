//! How does a step change the ledger, and what does the journal record about it?
//!
//! All stores use one function: it gets the ledger rows that the step needs, and returns the changes and the records
//! about them. The store writes these records, not the writer of the step, because the decision of policy is known
//! only in the transaction that reads the counters. They follow the records of the step.

use cantrip_canon::Timestamp;
use cantrip_spend::{
    AnyReservation, CallKey, Changes, Decision, DecisionRecord, LedgerCaller, LedgerState, Operation, OperationOutcome,
    PolicyOutcome, Transition, WriteAccess,
};
use serde_json::{Map, Value, json};

use crate::{
    AppendOutcome, CallId, Caller, Conflict, Error, Event, Projection, Record, RecordDraft, RunWriteState, Step,
    StepTarget,
};

const RESERVED: &str = "spend.reserved";
const SETTLED: &str = "spend.settled";
const UNKNOWN: &str = "spend.reconcile_required";
const OVERAGE: &str = "spend.overage";
const DECISION: &str = "policy.decision";

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
                    let (decision, told) = (decided.decision.clone(), Box::new(refusal(&decided)?));
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
                && stored[drafts.len()..].iter().all(|record| is_store_record(record.kind.as_str()))
        };
        if self.money.is_empty() {
            let same = self.records.len() == stored.len() && became(&self.records);
            return Ok(same.then_some(AppendOutcome::Committed(last.seq)));
        }
        if last.kind.as_str() == DECISION {
            if became(&self.if_refused) && stored.len() == self.if_refused.len() + 1 {
                let decided = |source| Error::Misread { what: "a decision".to_owned(), source };
                let decision: Decision = serde_json::from_str(&last.payload).map_err(decided)?;
                return Ok(Some(AppendOutcome::Refused(decision)));
            }
            return Ok(None);
        }
        let names: Vec<String> = self.money.iter().map(Operation::subject_id).collect();
        let ours = |record: &Record| {
            let payload: Option<Value> = serde_json::from_str(&record.payload).ok();
            let about = payload.as_ref().and_then(|payload| payload.get("reservation_id")).and_then(Value::as_str);
            about.is_some_and(|about| names.iter().any(|name| name == about))
        };
        let same = became(&self.records) && stored[self.records.len()..].iter().all(ours);
        Ok(same.then_some(AppendOutcome::Committed(last.seq)))
    }
}

/// Returns true if stores write this kind of record about money.
fn is_store_record(kind: &str) -> bool {
    [RESERVED, SETTLED, UNKNOWN, OVERAGE, DECISION].contains(&kind)
}

fn draft(at: Timestamp, kind: &str, payload: Value) -> Result<RecordDraft, Error> {
    let payload: Map<String, Value> = match payload {
        Value::Object(payload) => payload,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    };
    RecordDraft::new(at, Event::Other { kind: kind.to_owned(), payload })
}

/// Makes the record of a decision that did not allow the reserve.
fn refusal(decided: &DecisionRecord) -> Result<RecordDraft, Error> {
    let mut payload = json!(policy_outcome(decided));
    payload["decision_id"] = json!(decided.id);
    payload["call_id"] = json!(decided.call);
    draft(decided.at, DECISION, payload)
}

/// Returns the part of a decision that a gate record and the journal keep.
fn policy_outcome(decided: &DecisionRecord) -> PolicyOutcome {
    let id = decided.input.authorization.as_ref().and_then(|named| named.authorization_id.parse().ok());
    PolicyOutcome { decision: decided.decision.clone(), authorization_id: id }
}

/// Returns the records about an operation that was just applied.
fn operation_records(operation: &Operation, changes: &Changes) -> Result<Vec<RecordDraft>, Error> {
    match operation {
        Operation::Reserve(asked) => {
            let hold = &asked.hold;
            let decided = changes.decisions.iter().find(|decided| decided.id == hold.decision);
            let payload = json!({
                "reservation_id": hold.id(), "authorization_id": hold.authorization, "call_id": hold.call,
                "attempt": hold.attempt, "amount": hold.amount, "retry_class": hold.retry_class,
                "scope_id": hold.scope, "approval_id": hold.approval, "decision_id": hold.decision,
                "decision": decided.map(policy_outcome),
            });
            Ok(vec![draft(hold.at, RESERVED, payload)?])
        }
        Operation::Move { reservation, to, at } => {
            let Some(booked) = changes.rows.get(reservation) else { return Ok(Vec::new()) };
            let id = json!(reservation);
            let settled = |by: Option<&str>, reason: Option<&str>| match &booked.row {
                AnyReservation::Committed(paid) => {
                    let (state, amount) = (paid.state(), paid.terms().amount.micros());
                    let released = (amount - state.actual.micros()).max(0);
                    json!({
                        "reservation_id": id, "state": "committed", "captured": state.actual,
                        "released_micros": released, "by": by, "reason": reason,
                        "provider_correlation_id": state.provider_correlation_id,
                    })
                }
                AnyReservation::Released(_) | AnyReservation::Reserved(_) | AnyReservation::ReconcileRequired(_) => {
                    json!({
                        "reservation_id": id, "state": booked.row.state_name(), "by": by, "reason": reason,
                    })
                }
            };
            let mut told = match to {
                Transition::Commit { .. } | Transition::Release => vec![draft(*at, SETTLED, settled(None, None))?],
                Transition::Reconcile(found) => {
                    vec![draft(*at, SETTLED, settled(Some(&found.by), Some(&found.reason)))?]
                }
                Transition::MarkReconcileRequired { why } => {
                    vec![draft(*at, UNKNOWN, json!({"reservation_id": id, "reason": why.as_str()}))?]
                }
                // The new holder is in the row and the entry of the reservation.
                Transition::Adopt => Vec::new(),
            };
            if booked.row.overage_micros() > 0 {
                let payload = json!({"reservation_id": id, "overage_micros": booked.row.overage_micros()});
                told.push(draft(*at, OVERAGE, payload)?);
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
