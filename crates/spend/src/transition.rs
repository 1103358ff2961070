//! What does an operation do to a row? One total function over every state, the same for every ledger.

use cantrip_canon::{MoneyFault, Timestamp};
use serde::{Deserialize, Serialize};

use crate::limits::ATTEMPTS_MAX;
use crate::reservation::ReconcileOutcome;
use crate::{
    Committed, Hold, ReconcileRequired, Reconciliation, Released, Reservation, Reserved, State, TermsFault, Transition,
    Verdict,
};

/// A reservation in any state, as a ledger stores it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state_name", rename_all = "snake_case")]
pub enum AnyReservation {
    Reserved(Reservation<Reserved>),
    ReconcileRequired(Reservation<ReconcileRequired>),
    Committed(Reservation<Committed>),
    Released(Reservation<Released>),
}

impl AnyReservation {
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

    /// The epoch under which it was reserved or adopted.
    pub fn epoch(&self) -> u64 {
        match self {
            Self::Reserved(row) => row.state().epoch,
            Self::ReconcileRequired(row) => row.state().epoch,
            Self::Committed(row) => row.state().epoch,
            Self::Released(row) => row.state().epoch,
        }
    }

    /// The amount that it holds now, in micros.
    pub fn held_micros(&self) -> i64 {
        match self {
            Self::Reserved(_) | Self::ReconcileRequired(_) => self.terms().amount.micros(),
            Self::Committed(_) | Self::Released(_) => 0,
        }
    }

    /// The amount that it has cost, in micros.
    pub fn spent_micros(&self) -> i64 {
        match self {
            Self::Committed(row) => row.state().actual.micros(),
            Self::Reserved(_) | Self::ReconcileRequired(_) | Self::Released(_) => 0,
        }
    }

    /// The cost above the held amount, in micros.
    pub fn overage_micros(&self) -> i64 {
        match self {
            Self::Committed(row) => row.state().overage.micros(),
            Self::Reserved(_) | Self::ReconcileRequired(_) | Self::Released(_) => 0,
        }
    }
}

/// The effect of an operation on the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delta {
    pub spent: i64,
    pub reserved: i64,
}

/// The outcome of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransitionOutcome {
    /// A new hold: the only outcome that permits execution.
    Fresh(AnyReservation, Delta),
    Moved(AnyReservation, Delta),
    /// The same operation was applied before; nothing changes.
    Replay,
    /// Reserved before and still open: another worker may be executing the call.
    InFlight,
    /// Reserved before, and its outcome is unknown.
    Unresolved,
    /// Reserved before and settled.
    Settled,
}

/// The reason why an operation cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerFault {
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
    #[error("a live process works on its run: only that process can settle it")]
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

/// Reserves an attempt if it has no row yet. The row must be read in the same transaction. The caller must know that
/// policy allows it.
pub fn reserve(row: Option<AnyReservation>, asked: &Hold, epoch: u64) -> Result<TransitionOutcome, LedgerFault> {
    if !(1..=ATTEMPTS_MAX).contains(&asked.attempt) {
        return Err(LedgerFault::Attempt { attempt: asked.attempt });
    }
    if asked.amount.micros() == 0 {
        return Err(LedgerFault::Zero);
    }
    match row {
        None => {
            let row = AnyReservation::Reserved(Reservation::new(asked.clone(), epoch));
            let delta = Delta { spent: 0, reserved: row.held_micros() };
            Ok(TransitionOutcome::Fresh(row, delta))
        }
        Some(AnyReservation::Reserved(held)) => {
            let same = held.terms().amount == asked.amount && held.terms().retry_class == asked.retry_class;
            if same { Ok(TransitionOutcome::InFlight) } else { Err(LedgerFault::IdempotencyConflict) }
        }
        Some(AnyReservation::ReconcileRequired(_)) => Ok(TransitionOutcome::Unresolved),
        Some(AnyReservation::Committed(_) | AnyReservation::Released(_)) => Ok(TransitionOutcome::Settled),
    }
}

/// Applies a transition to a row. The row must be read in the same transaction.
pub fn advance(
    row: Option<AnyReservation>,
    to: &Transition,
    at: Timestamp,
    epoch: u64,
) -> Result<TransitionOutcome, LedgerFault> {
    let row = row.ok_or(LedgerFault::NotFound { what: RESERVATION })?;
    match to {
        Transition::Commit { actual, provider_correlation_id } => match row {
            AnyReservation::Reserved(held) => move_outcome(
                AnyReservation::Reserved(held.clone()),
                AnyReservation::Committed(held.commit(*actual, provider_correlation_id.clone(), at)?),
            ),
            AnyReservation::Committed(paid) => {
                let same = paid.state().actual == *actual
                    && paid.state().provider_correlation_id == *provider_correlation_id
                    && paid.state().reconciled.is_none();
                replay(same)
            }
            other @ (AnyReservation::ReconcileRequired(_) | AnyReservation::Released(_)) => {
                Err(invalid_transition(&other, "committed"))
            }
        },
        Transition::Release => match row {
            AnyReservation::Reserved(held) => {
                move_outcome(AnyReservation::Reserved(held.clone()), AnyReservation::Released(held.release(at)))
            }
            AnyReservation::Released(_) => Ok(TransitionOutcome::Replay),
            other @ (AnyReservation::ReconcileRequired(_) | AnyReservation::Committed(_)) => {
                Err(invalid_transition(&other, "released"))
            }
        },
        Transition::MarkReconcileRequired { why } => match row {
            AnyReservation::Reserved(held) => move_outcome(
                AnyReservation::Reserved(held.clone()),
                AnyReservation::ReconcileRequired(held.mark_unknown(why.clone(), at)),
            ),
            AnyReservation::ReconcileRequired(_) => Ok(TransitionOutcome::Replay),
            other @ (AnyReservation::Committed(_) | AnyReservation::Released(_)) => {
                Err(invalid_transition(&other, "marked as unknown"))
            }
        },
        Transition::Reconcile(found) => reconcile(row, found),
        Transition::Adopt => match row {
            AnyReservation::Reserved(held) => {
                move_outcome(AnyReservation::Reserved(held.clone()), AnyReservation::Reserved(held.adopt(epoch)))
            }
            other @ (AnyReservation::ReconcileRequired(_)
            | AnyReservation::Committed(_)
            | AnyReservation::Released(_)) => Err(invalid_transition(&other, "adopted")),
        },
    }
}

fn reconcile(row: AnyReservation, found: &Reconciliation) -> Result<TransitionOutcome, LedgerFault> {
    match row {
        AnyReservation::ReconcileRequired(held) => {
            let before = AnyReservation::ReconcileRequired(held.clone());
            let after = match held.reconcile(found.clone())? {
                ReconcileOutcome::Committed(row) => AnyReservation::Committed(row),
                ReconcileOutcome::Released(row) => AnyReservation::Released(row),
            };
            move_outcome(before, after)
        }
        AnyReservation::Committed(paid) => replay(is_same_verdict(paid.state().reconciled.as_ref(), &found.verdict)),
        AnyReservation::Released(gone) => replay(is_same_verdict(gone.state().reconciled.as_ref(), &found.verdict)),
        other @ AnyReservation::Reserved(_) => Err(invalid_transition(&other, "reconciled")),
    }
}

fn is_same_verdict(before: Option<&Reconciliation>, now: &Verdict) -> bool {
    before.is_some_and(|before| before.verdict == *now)
}

fn invalid_transition(row: &AnyReservation, wanted: &'static str) -> LedgerFault {
    LedgerFault::InvalidTransition { state: row.state_name(), wanted }
}

fn replay(same: bool) -> Result<TransitionOutcome, LedgerFault> {
    if same { Ok(TransitionOutcome::Replay) } else { Err(LedgerFault::IdempotencyConflict) }
}

fn move_outcome(before: AnyReservation, after: AnyReservation) -> Result<TransitionOutcome, LedgerFault> {
    let delta = Delta {
        spent: after.spent_micros() - before.spent_micros(),
        reserved: after.held_micros() - before.held_micros(),
    };
    Ok(TransitionOutcome::Moved(after, delta))
}
