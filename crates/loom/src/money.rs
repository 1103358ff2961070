//! What does the money of a step come to, and what does the journal say about it?
//!
//! One function for every store: it is given the rows of the ledger that the step needs, and says what changes and which
//! records tell of it. Those records are the store's, not the writer's: only where the counters are read can it be known
//! what policy says. They stand behind the step's own.

use cantrip_canon::Timestamp;
use cantrip_spend::{
    Applied, Asker, Book, CallKey, Changes, Decided, Decision, Evaluation, Move, Operation, Right, Row,
};
use serde_json::{Map, Value, json};

use crate::{Answer, CallId, Caller, Conflict, Draft, Error, Event, Place, Projection, Record, Standing, Step};

const RESERVED: &str = "spend.reserved";
const SETTLED: &str = "spend.settled";
const UNKNOWN: &str = "spend.reconcile_required";
const OVERAGE: &str = "spend.overage";
const DECISION: &str = "policy.decision";

/// What the money of a step comes to.
#[derive(Debug)]
pub enum Paid {
    /// All of it moves. The records stand behind the step's own.
    Moved { changes: Box<Changes>, told: Vec<Draft> },
    /// Policy refused a reserve: the step's other records are written, with this one behind them, and only the decision
    /// is kept in the ledger.
    Refused { changes: Box<Changes>, decision: Decision, told: Box<Draft> },
    /// Nothing is written.
    Answered(Answer),
}

impl Step {
    /// Applies its money to what a ledger holds. `book` has every row that it touches: the authorizations, their caps,
    /// the day, the approvals and every attempt of each call it reserves. `replied`: whether a call has its reply.
    pub fn pay(
        &self,
        book: &Book,
        standing: Option<&Standing<'_>>,
        replied: &dyn Fn(&CallKey) -> bool,
    ) -> Result<Paid, Error> {
        let right = self.right(standing);
        let mut page = book.page();
        let mut told = Vec::new();
        for operation in &self.money {
            let actor = self.actor(operation);
            let asker = Asker { actor: &actor, right, replied };
            match page.apply(operation, &asker) {
                Ok(Applied::Done) => told.extend(tell(operation, page.changes())?),
                Ok(Applied::Replay) => {}
                Ok(Applied::Wait) => return Ok(Paid::Answered(Answer::Wait)),
                Ok(Applied::Refused(decided)) => {
                    let (decision, told) = (decided.decision.clone(), Box::new(refusal(&decided)?));
                    let changes = Changes { decisions: vec![*decided], ..Changes::default() };
                    return Ok(Paid::Refused { changes: Box::new(changes), decision, told });
                }
                Err(fault) => {
                    let conflict = Conflict::Money { what: operation.about(), fault };
                    return Ok(Paid::Answered(Answer::Conflict(conflict)));
                }
            }
        }
        Ok(Paid::Moved { changes: Box::new(page.into_changes()), told })
    }

    fn right(&self, standing: Option<&Standing<'_>>) -> Right {
        match &self.place {
            Place::Opens { .. } | Place::Holds(_) => Right::Lease { epoch: self.epoch().get() },
            Place::Beside(_) | Place::Copies { .. } => Right::Beside {
                run_epoch: standing.map_or(0, |standing| standing.epoch.get()),
                live_until: standing.and_then(|standing| standing.holder).map(|lease| lease.expires_at),
            },
            Place::Apart => Right::Apart,
        }
    }

    /// Who an entry of the ledger is from.
    fn actor(&self, operation: &Operation) -> String {
        match (&self.place, operation) {
            (Place::Opens { lease: Some(lease), .. } | Place::Holds(lease), _) => lease.owner.as_str().to_owned(),
            (_, Operation::Move { to: Move::Reconcile(found), .. }) => found.by.clone(),
            (_, Operation::Move { .. }) => "recovery".to_owned(),
            (_, _) => String::new(),
        }
    }

    /// Whether these records are what it became, the store's own behind them left aside; and the answer it then got.
    pub fn was_answered(&self, stored: &[Record]) -> Result<Option<Answer>, Error> {
        let Some(last) = stored.last() else { return Ok(None) };
        let became = |drafts: &[Draft]| {
            drafts.len() <= stored.len()
                && drafts.iter().zip(stored).all(|(draft, record)| draft.became(record))
                && stored[drafts.len()..].iter().all(|record| is_told(record.kind.as_str()))
        };
        if self.money.is_empty() {
            let same = self.records.len() == stored.len() && became(&self.records);
            return Ok(same.then_some(Answer::Committed(last.seq)));
        }
        if last.kind.as_str() == DECISION {
            if became(&self.if_refused) && stored.len() == self.if_refused.len() + 1 {
                let decided = |source| Error::Misread { what: "a decision".to_owned(), source };
                let decision: Decision = serde_json::from_str(&last.payload).map_err(decided)?;
                return Ok(Some(Answer::Refused(decision)));
            }
            return Ok(None);
        }
        let names: Vec<String> = self.money.iter().map(Operation::about).collect();
        let ours = |record: &Record| {
            let payload: Option<Value> = serde_json::from_str(&record.payload).ok();
            let about = payload.as_ref().and_then(|payload| payload.get("reservation_id")).and_then(Value::as_str);
            about.is_some_and(|about| names.iter().any(|name| name == about))
        };
        let same = became(&self.records) && stored[self.records.len()..].iter().all(ours);
        Ok(same.then_some(Answer::Committed(last.seq)))
    }
}

/// Whether a kind of record is written by stores about money.
fn is_told(kind: &str) -> bool {
    [RESERVED, SETTLED, UNKNOWN, OVERAGE, DECISION].contains(&kind)
}

fn draft(at: Timestamp, kind: &str, payload: Value) -> Result<Draft, Error> {
    let payload: Map<String, Value> = match payload {
        Value::Object(payload) => payload,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    };
    Draft::new(at, Event::Other { kind: kind.to_owned(), payload })
}

/// A decision that was no yes is an event of its own.
fn refusal(decided: &Decided) -> Result<Draft, Error> {
    let mut payload = json!(evaluation(decided));
    payload["decision_id"] = json!(decided.id);
    payload["call_id"] = json!(decided.call);
    draft(decided.at, DECISION, payload)
}

/// What a gate record and the journal keep of a decision.
fn evaluation(decided: &Decided) -> Evaluation {
    let id = decided.input.authorization.as_ref().and_then(|named| named.authorization_id.parse().ok());
    Evaluation { decision: decided.decision.clone(), authorization_id: id }
}

/// The records that tell of an operation that was just applied.
fn tell(operation: &Operation, changes: &Changes) -> Result<Vec<Draft>, Error> {
    match operation {
        Operation::Reserve(asked) => {
            let hold = &asked.hold;
            let decided = changes.decisions.iter().find(|decided| decided.id == hold.decision);
            let payload = json!({
                "reservation_id": hold.id(), "authorization_id": hold.authorization, "call_id": hold.call,
                "attempt": hold.attempt, "amount": hold.amount, "retry_class": hold.retry_class,
                "scope_id": hold.scope, "approval_id": hold.approval, "decision_id": hold.decision,
                "decision": decided.map(evaluation),
            });
            Ok(vec![draft(hold.at, RESERVED, payload)?])
        }
        Operation::Move { reservation, to, at } => {
            let Some(booked) = changes.rows.get(reservation) else { return Ok(Vec::new()) };
            let id = json!(reservation);
            let settled = |by: Option<&str>, reason: Option<&str>| match &booked.row {
                Row::Committed(paid) => {
                    let (state, amount) = (paid.state(), paid.terms().amount.micros());
                    let released = (amount - state.actual.micros()).max(0);
                    json!({
                        "reservation_id": id, "state": "committed", "captured": state.actual,
                        "released_micros": released, "by": by, "reason": reason,
                        "provider_correlation_id": state.provider_correlation_id,
                    })
                }
                Row::Released(_) | Row::Reserved(_) | Row::ReconcileRequired(_) => json!({
                    "reservation_id": id, "state": booked.row.state_name(), "by": by, "reason": reason,
                }),
            };
            let mut told = match to {
                Move::Commit { .. } | Move::Release => vec![draft(*at, SETTLED, settled(None, None))?],
                Move::Reconcile(found) => {
                    vec![draft(*at, SETTLED, settled(Some(&found.by), Some(&found.reason)))?]
                }
                Move::MarkReconcileRequired { why } => {
                    vec![draft(*at, UNKNOWN, json!({"reservation_id": id, "reason": why.as_str()}))?]
                }
                // Who holds it now stands in its row and entry.
                Move::Adopt => Vec::new(),
            };
            if booked.row.overage() > 0 {
                let payload = json!({"reservation_id": id, "overage_micros": booked.row.overage()});
                told.push(draft(*at, OVERAGE, payload)?);
            }
            Ok(told)
        }
        // A cap stands in the record of its cast; what was judged, asked and decided is told by whoever did; an
        // authorization belongs to no run.
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
    /// Whether a call has its reply, as far as this tree holds its turn.
    pub fn replied(&self, call: &CallKey) -> bool {
        let Ok(call) = call.to_string().parse::<CallId>() else { return false };
        match call.caller() {
            Caller::Turn(turn) if call.number() == 0 => self.is_opened(turn),
            Caller::Turn(turn) => self.is_settled(turn, call.number()),
            Caller::Fold(_) => false,
        }
    }
}
