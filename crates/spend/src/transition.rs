//! What does an operation do to a row? One total function over every state, the same for every ledger.

use cantrip_canon::MoneyFault;
use serde::{Deserialize, Serialize};

use crate::limits::ATTEMPTS_MAX;
use crate::reservation::Reconciled;
use crate::{
    Committed, Operation, ReconcileRequired, Reconciliation, Released, Reservation, Reserve, Reserved, State, Verdict,
};

/// A reservation as a ledger keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state_name", rename_all = "snake_case")]
pub enum Row {
    Reserved(Reservation<Reserved>),
    ReconcileRequired(Reservation<ReconcileRequired>),
    Committed(Reservation<Committed>),
    Released(Reservation<Released>),
}

impl Row {
    pub fn terms(&self) -> &Reserve {
        match self {
            Self::Reserved(row) => row.terms(),
            Self::ReconcileRequired(row) => row.terms(),
            Self::Committed(row) => row.terms(),
            Self::Released(row) => row.terms(),
        }
    }

    pub fn state_name(&self) -> &'static str {
        match self {
            Self::Reserved(_) => Reserved::NAME,
            Self::ReconcileRequired(_) => ReconcileRequired::NAME,
            Self::Committed(_) => Committed::NAME,
            Self::Released(_) => Released::NAME,
        }
    }

    /// What it holds now, in micros.
    fn held(&self) -> i64 {
        match self {
            Self::Reserved(_) | Self::ReconcileRequired(_) => self.terms().amount.micros(),
            Self::Committed(_) | Self::Released(_) => 0,
        }
    }

    /// What it has cost, in micros.
    fn spent(&self) -> i64 {
        match self {
            Self::Committed(row) => row.state().actual.micros(),
            Self::Reserved(_) | Self::ReconcileRequired(_) | Self::Released(_) => 0,
        }
    }
}

/// What an operation did to the counters: one row of the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub spent_micros: i64,
    pub reserved_micros: i64,
}

/// What came of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A hold that was not there before: the only answer that permits execution.
    Fresh(Row, Entry),
    Moved(Row, Entry),
    /// Done before, with the same words; nothing changes.
    Replay,
    /// Reserved before and still open: someone else may be executing.
    InFlight,
    /// Reserved before, and its outcome is unknown.
    Unresolved,
    /// Reserved before and over.
    Settled,
}

/// Why an operation cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("there is no such reservation")]
    NotFound,
    #[error("a {state} reservation cannot be {wanted}")]
    InvalidTransition { state: &'static str, wanted: &'static str },
    #[error("it was asked for before with other terms")]
    IdempotencyConflict,
    #[error("attempt {attempt} is not between 1 and {ATTEMPTS_MAX}")]
    Attempt { attempt: u32 },
    #[error("an amount of zero needs no reservation")]
    Zero,
    #[error(transparent)]
    Money(#[from] MoneyFault),
}

/// Applies an operation to the row it names, as read in the same transaction. That policy allowed a reserve is the
/// caller's to know.
pub fn apply(row: Option<Row>, operation: &Operation, epoch: u64) -> Result<Change, Fault> {
    match operation {
        Operation::Reserve(asked) => reserve(row, asked, epoch),
        Operation::Commit { actual, provider_correlation_id, at, .. } => match existing(row)? {
            Row::Reserved(held) => moved(
                Row::Reserved(held.clone()),
                Row::Committed(held.commit(*actual, provider_correlation_id.clone(), *at)?),
            ),
            Row::Committed(paid) => {
                let same = paid.state().actual == *actual
                    && paid.state().provider_correlation_id == *provider_correlation_id
                    && paid.state().reconciled.is_none();
                replay(same)
            }
            other @ (Row::ReconcileRequired(_) | Row::Released(_)) => Err(refused(&other, "committed")),
        },
        Operation::Release { at, .. } => match existing(row)? {
            Row::Reserved(held) => moved(Row::Reserved(held.clone()), Row::Released(held.release(*at))),
            Row::Released(_) => Ok(Change::Replay),
            other @ (Row::ReconcileRequired(_) | Row::Committed(_)) => Err(refused(&other, "released")),
        },
        Operation::MarkReconcileRequired { why, at, .. } => match existing(row)? {
            Row::Reserved(held) => {
                moved(Row::Reserved(held.clone()), Row::ReconcileRequired(held.unknown(why.clone(), *at)))
            }
            Row::ReconcileRequired(_) => Ok(Change::Replay),
            other @ (Row::Committed(_) | Row::Released(_)) => Err(refused(&other, "marked as unknown")),
        },
        Operation::Reconcile { reconciliation, .. } => reconcile(existing(row)?, reconciliation),
        Operation::Adopt { .. } => match existing(row)? {
            Row::Reserved(held) => moved(Row::Reserved(held.clone()), Row::Reserved(held.adopt(epoch))),
            other @ (Row::ReconcileRequired(_) | Row::Committed(_) | Row::Released(_)) => {
                Err(refused(&other, "adopted"))
            }
        },
    }
}

fn reserve(row: Option<Row>, asked: &Reserve, epoch: u64) -> Result<Change, Fault> {
    if !(1..=ATTEMPTS_MAX).contains(&asked.attempt) {
        return Err(Fault::Attempt { attempt: asked.attempt });
    }
    if asked.amount.micros() == 0 {
        return Err(Fault::Zero);
    }
    match row {
        None => {
            let row = Row::Reserved(Reservation::fresh(asked.clone(), epoch));
            let entry = Entry { spent_micros: 0, reserved_micros: row.held() };
            Ok(Change::Fresh(row, entry))
        }
        Some(Row::Reserved(held)) => {
            let same = held.terms().amount == asked.amount && held.terms().retry_class == asked.retry_class;
            if same { Ok(Change::InFlight) } else { Err(Fault::IdempotencyConflict) }
        }
        Some(Row::ReconcileRequired(_)) => Ok(Change::Unresolved),
        Some(Row::Committed(_) | Row::Released(_)) => Ok(Change::Settled),
    }
}

fn reconcile(row: Row, found: &Reconciliation) -> Result<Change, Fault> {
    match row {
        Row::ReconcileRequired(held) => {
            let before = Row::ReconcileRequired(held.clone());
            let after = match held.reconcile(found.clone())? {
                Reconciled::Committed(row) => Row::Committed(row),
                Reconciled::Released(row) => Row::Released(row),
            };
            moved(before, after)
        }
        Row::Committed(paid) => replay(verdict_was(paid.state().reconciled.as_ref(), &found.verdict)),
        Row::Released(gone) => replay(verdict_was(gone.state().reconciled.as_ref(), &found.verdict)),
        other @ Row::Reserved(_) => Err(refused(&other, "reconciled")),
    }
}

fn verdict_was(before: Option<&Reconciliation>, now: &Verdict) -> bool {
    before.is_some_and(|before| before.verdict == *now)
}

fn existing(row: Option<Row>) -> Result<Row, Fault> {
    row.ok_or(Fault::NotFound)
}

fn refused(row: &Row, wanted: &'static str) -> Fault {
    Fault::InvalidTransition { state: row.state_name(), wanted }
}

fn replay(same: bool) -> Result<Change, Fault> {
    if same { Ok(Change::Replay) } else { Err(Fault::IdempotencyConflict) }
}

fn moved(before: Row, after: Row) -> Result<Change, Fault> {
    let entry = Entry { spent_micros: after.spent() - before.spent(), reserved_micros: after.held() - before.held() };
    Ok(Change::Moved(after, entry))
}
