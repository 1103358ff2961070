//! What can be done with a reservation in its present state? Only the methods of its state type.
//!
//! A hold that was neither committed nor released, nor marked as unknown, would be money that is never accounted for.
//! So each transition takes the reservation by value. A stored row becomes an
//! [`AnyReservation`](crate::AnyReservation) over these states.

use cantrip_canon::{Money, MoneyFault, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{Hold, Reconciliation, ReservationId, UnknownOutcome, Verdict};

/// A state of a reservation.
pub trait State: sealed::Sealed {
    /// The name of the state in the ledger.
    const NAME: &'static str;
}

mod sealed {
    pub trait Sealed {}
}

/// Held; the call may be running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserved {
    /// The epoch of the lease under which it was reserved or adopted.
    pub epoch: u64,
}

/// The call is over and its cost is unknown; the hold stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReconcileRequired {
    /// The epoch of the lease under which it was last held.
    pub epoch: u64,
    pub why: UnknownOutcome,
    pub marked_at: Timestamp,
}

/// Paid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// The epoch of the lease under which it was last held.
    pub epoch: u64,
    pub actual: Money,
    /// The part of the actual cost above the reserved amount.
    pub overage: Money,
    pub provider_correlation_id: Option<String>,
    pub at: Timestamp,
    /// Set if the outcome was unknown for a time.
    pub reconciled: Option<Reconciliation>,
}

/// Nothing was charged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Released {
    /// The epoch of the lease under which it was last held.
    pub epoch: u64,
    pub at: Timestamp,
    pub reconciled: Option<Reconciliation>,
}

macro_rules! states {
    ($($state:ident = $name:literal),+) => {$(
        impl sealed::Sealed for $state {}
        impl State for $state {
            const NAME: &'static str = $name;
        }
    )+};
}

states!(
    Reserved = "reserved",
    ReconcileRequired = "reconcile_required",
    Committed = "committed",
    Released = "released"
);

/// One attempt of one call, and the money held for it.
///
/// Each state has its transitions:
///
/// ```
/// # use cantrip_spend::{Released, Reservation, Reserved};
/// # use cantrip_canon::{Money, Timestamp};
/// fn pay(held: Reservation<Reserved>, actual: Money, at: Timestamp) {
///     let _ = held.commit(actual, None, at);
/// }
/// ```
///
/// A transition that the state does not allow does not compile:
///
/// ```compile_fail,E0599
/// # use cantrip_spend::{Released, Reservation, Reserved};
/// # use cantrip_canon::{Money, Timestamp};
/// fn pay(held: Reservation<Released>, actual: Money, at: Timestamp) {
///     let _ = held.commit(actual, None, at);
/// }
/// ```
#[must_use = "commit it, release it, or say that the outcome is unknown"]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation<S> {
    terms: Hold,
    state: S,
}

impl<S: State> Reservation<S> {
    pub fn id(&self) -> ReservationId {
        self.terms.id()
    }

    /// The requested terms. Amount, currency and retry class are those of this row: a repeated request cannot change
    /// them.
    pub fn terms(&self) -> &Hold {
        &self.terms
    }

    pub fn state(&self) -> &S {
        &self.state
    }

    /// Makes a reservation from a stored row.
    pub fn from_stored(terms: Hold, state: S) -> Self {
        Self { terms, state }
    }

    fn into_state<T>(self, state: T) -> Reservation<T> {
        Reservation { terms: self.terms, state }
    }

    fn into_committed(
        self,
        epoch: u64,
        actual: Money,
        provider_correlation_id: Option<String>,
        at: Timestamp,
        reconciled: Option<Reconciliation>,
    ) -> Result<Reservation<Committed>, MoneyFault> {
        let overage = Money::new(actual.excess_over(self.terms.amount)?.max(0), actual.currency())?;
        Ok(self.into_state(Committed { epoch, actual, overage, provider_correlation_id, at, reconciled }))
    }
}

impl Reservation<Reserved> {
    /// Makes the hold of an allowed reserve.
    pub fn new(terms: Hold, epoch: u64) -> Self {
        Self { terms, state: Reserved { epoch } }
    }

    /// Commits the actual cost. A cost above the reserved amount is neither clamped nor lost: it is booked in full, and
    /// the overage is reported. Fails only if the currency differs.
    pub fn commit(
        self,
        actual: Money,
        provider_correlation_id: Option<String>,
        at: Timestamp,
    ) -> Result<Reservation<Committed>, MoneyFault> {
        let epoch = self.state.epoch;
        self.into_committed(epoch, actual, provider_correlation_id, at, None)
    }

    /// Releases the hold. Only if it is known that nothing was charged.
    pub fn release(self, at: Timestamp) -> Reservation<Released> {
        let epoch = self.state.epoch;
        self.into_state(Released { epoch, at, reconciled: None })
    }

    pub fn mark_unknown(self, why: UnknownOutcome, marked_at: Timestamp) -> Reservation<ReconcileRequired> {
        let epoch = self.state.epoch;
        self.into_state(ReconcileRequired { epoch, why, marked_at })
    }

    /// Moves the hold to the lease of a new owner.
    pub fn adopt(self, epoch: u64) -> Self {
        self.into_state(Reserved { epoch })
    }
}

/// The resolution of an unknown outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReconcileOutcome {
    Committed(Reservation<Committed>),
    Released(Reservation<Released>),
}

impl Reservation<ReconcileRequired> {
    pub(crate) fn reconcile(self, found: Reconciliation) -> Result<ReconcileOutcome, MoneyFault> {
        let (epoch, at) = (self.state.epoch, found.at);
        match found.verdict {
            Verdict::Commit(actual) => {
                self.into_committed(epoch, actual, None, at, Some(found)).map(ReconcileOutcome::Committed)
            }
            Verdict::Release => {
                Ok(ReconcileOutcome::Released(self.into_state(Released { epoch, at, reconciled: Some(found) })))
            }
        }
    }
}
