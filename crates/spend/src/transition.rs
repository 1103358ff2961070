//! What does an operation do to a row? One total function over every state, the same for every ledger.

use cantrip_canon::{MoneyFault, Timestamp};
use serde::{Deserialize, Serialize};

use crate::limits::ATTEMPTS_MAX;
use crate::reservation::Reconciled;
use crate::{
    Committed, Hold, Move, ReconcileRequired, Reconciliation, Released, Reservation, Reserved, State, TermsFault,
    Verdict,
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
    pub fn terms(&self) -> &Hold {
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

    /// The epoch it was reserved or adopted under.
    pub fn epoch(&self) -> u64 {
        match self {
            Self::Reserved(row) => row.state().epoch,
            Self::ReconcileRequired(row) => row.state().epoch,
            Self::Committed(row) => row.state().epoch,
            Self::Released(row) => row.state().epoch,
        }
    }

    /// What it holds now, in micros.
    pub fn held(&self) -> i64 {
        match self {
            Self::Reserved(_) | Self::ReconcileRequired(_) => self.terms().amount.micros(),
            Self::Committed(_) | Self::Released(_) => 0,
        }
    }

    /// What it has cost, in micros.
    pub fn spent(&self) -> i64 {
        match self {
            Self::Committed(row) => row.state().actual.micros(),
            Self::Reserved(_) | Self::ReconcileRequired(_) | Self::Released(_) => 0,
        }
    }

    /// By how much it cost more than was held, in micros.
    pub fn overage(&self) -> i64 {
        match self {
            Self::Committed(row) => row.state().overage.micros(),
            Self::Reserved(_) | Self::ReconcileRequired(_) | Self::Released(_) => 0,
        }
    }
}

/// What an operation does to the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delta {
    pub spent: i64,
    pub reserved: i64,
}

/// What came of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A hold that was not there before: the only answer that permits execution.
    Fresh(Row, Delta),
    Moved(Row, Delta),
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
    #[error("there is no such {what}")]
    NotFound { what: &'static str },
    #[error("a {state} reservation cannot be {wanted}")]
    InvalidTransition { state: &'static str, wanted: &'static str },
    #[error("it was asked for before with other terms")]
    IdempotencyConflict,
    #[error("it was reserved before and is {state}: only a fresh hold permits execution")]
    NotFresh { state: &'static str },
    #[error("attempt {attempt} of the same call is still reserved")]
    AttemptOpen { attempt: u32 },
    #[error("the call has its reply: it cannot be paid for again")]
    Replied,
    #[error("attempt {attempt} is not between 1 and {ATTEMPTS_MAX}")]
    Attempt { attempt: u32 },
    #[error("an amount of zero needs no reservation")]
    Zero,
    #[error("its revision is {found}, not {expected}")]
    Revision { expected: u64, found: u64 },
    #[error("it was decided before: {state}")]
    Decided { state: &'static str },
    #[error("its run is in live hands: only its owner may say what became of it")]
    Live,
    #[error("it cannot be asked for here")]
    Misplaced,
    #[error("a cap has more than {0} above it")]
    CapsTooDeep(usize),
    #[error(transparent)]
    Terms(#[from] TermsFault),
    #[error(transparent)]
    Money(#[from] MoneyFault),
}

pub(crate) const RESERVATION: &str = "reservation";

/// Reserves an attempt, if its row, as read in the same transaction, is not there. That policy allows it is the caller's
/// to know.
pub fn reserve(row: Option<Row>, asked: &Hold, epoch: u64) -> Result<Change, Fault> {
    if !(1..=ATTEMPTS_MAX).contains(&asked.attempt) {
        return Err(Fault::Attempt { attempt: asked.attempt });
    }
    if asked.amount.micros() == 0 {
        return Err(Fault::Zero);
    }
    match row {
        None => {
            let row = Row::Reserved(Reservation::fresh(asked.clone(), epoch));
            let delta = Delta { spent: 0, reserved: row.held() };
            Ok(Change::Fresh(row, delta))
        }
        Some(Row::Reserved(held)) => {
            let same = held.terms().amount == asked.amount && held.terms().retry_class == asked.retry_class;
            if same { Ok(Change::InFlight) } else { Err(Fault::IdempotencyConflict) }
        }
        Some(Row::ReconcileRequired(_)) => Ok(Change::Unresolved),
        Some(Row::Committed(_) | Row::Released(_)) => Ok(Change::Settled),
    }
}

/// Moves a row, as read in the same transaction, on.
pub fn advance(row: Option<Row>, to: &Move, at: Timestamp, epoch: u64) -> Result<Change, Fault> {
    let row = row.ok_or(Fault::NotFound { what: RESERVATION })?;
    match to {
        Move::Commit { actual, provider_correlation_id } => match row {
            Row::Reserved(held) => moved(
                Row::Reserved(held.clone()),
                Row::Committed(held.commit(*actual, provider_correlation_id.clone(), at)?),
            ),
            Row::Committed(paid) => {
                let same = paid.state().actual == *actual
                    && paid.state().provider_correlation_id == *provider_correlation_id
                    && paid.state().reconciled.is_none();
                replay(same)
            }
            other @ (Row::ReconcileRequired(_) | Row::Released(_)) => Err(refused(&other, "committed")),
        },
        Move::Release => match row {
            Row::Reserved(held) => moved(Row::Reserved(held.clone()), Row::Released(held.release(at))),
            Row::Released(_) => Ok(Change::Replay),
            other @ (Row::ReconcileRequired(_) | Row::Committed(_)) => Err(refused(&other, "released")),
        },
        Move::MarkReconcileRequired { why } => match row {
            Row::Reserved(held) => {
                moved(Row::Reserved(held.clone()), Row::ReconcileRequired(held.unknown(why.clone(), at)))
            }
            Row::ReconcileRequired(_) => Ok(Change::Replay),
            other @ (Row::Committed(_) | Row::Released(_)) => Err(refused(&other, "marked as unknown")),
        },
        Move::Reconcile(found) => reconcile(row, found),
        Move::Adopt => match row {
            Row::Reserved(held) => moved(Row::Reserved(held.clone()), Row::Reserved(held.adopt(epoch))),
            other @ (Row::ReconcileRequired(_) | Row::Committed(_) | Row::Released(_)) => {
                Err(refused(&other, "adopted"))
            }
        },
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

fn refused(row: &Row, wanted: &'static str) -> Fault {
    Fault::InvalidTransition { state: row.state_name(), wanted }
}

fn replay(same: bool) -> Result<Change, Fault> {
    if same { Ok(Change::Replay) } else { Err(Fault::IdempotencyConflict) }
}

fn moved(before: Row, after: Row) -> Result<Change, Fault> {
    let delta = Delta { spent: after.spent() - before.spent(), reserved: after.held() - before.held() };
    Ok(Change::Moved(after, delta))
}
