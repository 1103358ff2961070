//! What can be done with a reservation in its present state? Only what its type offers.
//!
//! A hold that was neither committed nor released, nor marked as unknown, would be money that nobody accounts for; so
//! each way on takes the reservation by value. A row read back becomes a [`Row`](crate::Row) over these states.

use cantrip_canon::{Money, MoneyFault, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{Reconciliation, ReservationId, Reserve, Unknown, Verdict};

/// A state a reservation can be in.
pub trait State: sealed::Sealed {
    /// As the ledger writes it.
    const NAME: &'static str;
}

mod sealed {
    pub trait Sealed {}
}

/// Held; the call may be under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserved {
    /// The lease under which it was reserved or adopted.
    pub epoch: u64,
}

/// The call is over and nobody knows what it cost; the hold stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReconcileRequired {
    pub why: Unknown,
    pub marked_at: Timestamp,
}

/// Paid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    pub actual: Money,
    /// By how much the actual passed the amount.
    pub overage: Money,
    pub provider_correlation_id: Option<String>,
    pub at: Timestamp,
    /// Set if the outcome was unknown for a time.
    pub reconciled: Option<Reconciliation>,
}

/// Nothing was charged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Released {
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
/// What its state does not offer does not compile:
///
/// ```compile_fail,E0599
/// # use cantrip_spend::{Reservation, Released};
/// # use cantrip_canon::{Money, Timestamp};
/// fn pay(gone: Reservation<Released>, actual: Money, at: Timestamp) {
///     let _ = gone.commit(actual, None, at);
/// }
/// ```
#[must_use = "commit it, release it, or say that the outcome is unknown"]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation<S> {
    terms: Reserve,
    state: S,
}

impl<S: State> Reservation<S> {
    pub fn id(&self) -> ReservationId {
        self.terms.id()
    }

    /// What was asked for. Amount, currency and retry class are those of this row: a repeat cannot change them.
    pub fn terms(&self) -> &Reserve {
        &self.terms
    }

    pub fn state(&self) -> &S {
        &self.state
    }

    fn into_state<T>(self, state: T) -> Reservation<T> {
        Reservation { terms: self.terms, state }
    }

    fn committed(
        self,
        actual: Money,
        provider_correlation_id: Option<String>,
        at: Timestamp,
        reconciled: Option<Reconciliation>,
    ) -> Result<Reservation<Committed>, MoneyFault> {
        let overage = Money::new(actual.beyond(self.terms.amount)?.max(0), actual.currency())?;
        Ok(self.into_state(Committed { actual, overage, provider_correlation_id, at, reconciled }))
    }
}

impl Reservation<Reserved> {
    /// The hold that an allowed reserve makes.
    pub fn fresh(terms: Reserve, epoch: u64) -> Self {
        Self { terms, state: Reserved { epoch } }
    }

    /// More than was reserved is neither clamped nor lost: the actual is booked in full, and the overage is told.
    /// Fails only on another currency.
    pub fn commit(
        self,
        actual: Money,
        provider_correlation_id: Option<String>,
        at: Timestamp,
    ) -> Result<Reservation<Committed>, MoneyFault> {
        self.committed(actual, provider_correlation_id, at, None)
    }

    /// Only with the knowledge that nothing was charged.
    pub fn release(self, at: Timestamp) -> Reservation<Released> {
        self.into_state(Released { at, reconciled: None })
    }

    pub fn unknown(self, why: Unknown, marked_at: Timestamp) -> Reservation<ReconcileRequired> {
        self.into_state(ReconcileRequired { why, marked_at })
    }

    /// The same hold under the lease of a new owner.
    pub fn adopt(self, epoch: u64) -> Self {
        self.into_state(Reserved { epoch })
    }
}

/// How an unknown outcome ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reconciled {
    Committed(Reservation<Committed>),
    Released(Reservation<Released>),
}

impl Reservation<ReconcileRequired> {
    pub(crate) fn reconcile(self, found: Reconciliation) -> Result<Reconciled, MoneyFault> {
        let at = found.at;
        match found.verdict {
            Verdict::Commit(actual) => self.committed(actual, None, at, Some(found)).map(Reconciled::Committed),
            Verdict::Release => Ok(Reconciled::Released(self.into_state(Released { at, reconciled: Some(found) }))),
        }
    }
}
