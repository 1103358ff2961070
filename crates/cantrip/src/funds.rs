//! Who pays for whoever asks?
//!
//! One answer for casts, budgets and predicts: the owner whose money it is follows from who acts, and what pays is the most
//! specific authorization of that owner. That a store keeps no ledger and that nobody in its ledger pays are two things: in
//! the first the wards alone count, in the second policy denies whatever it is asked. An `Option` would say neither.

use cantrip_loom::{Actor, Error, Ledger};
use cantrip_reply::{Refusal, codes};
use cantrip_spend::{Authorization, AuthorizationRef, Payer, Principal};

use crate::Runtime;

/// What pays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Funds<T> {
    /// The store keeps no ledger.
    NoLedger,
    /// A ledger is kept, and no authorization in it is for whoever asks.
    NoAuthorization,
    Paid(T),
}

impl<T> Funds<T> {
    pub fn as_ref(&self) -> Funds<&T> {
        match self {
            Self::NoLedger => Funds::NoLedger,
            Self::NoAuthorization => Funds::NoAuthorization,
            Self::Paid(by) => Funds::Paid(by),
        }
    }

    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Funds<U> {
        match self {
            Self::NoLedger => Funds::NoLedger,
            Self::NoAuthorization => Funds::NoAuthorization,
            Self::Paid(by) => Funds::Paid(change(by)),
        }
    }

    /// What pays, for whoever need not know why nothing does.
    pub fn payer(self) -> Option<T> {
        match self {
            Self::NoLedger | Self::NoAuthorization => None,
            Self::Paid(by) => Some(by),
        }
    }

    /// Whether a ledger is kept, so that policy is asked.
    pub const fn is_counted(&self) -> bool {
        match self {
            Self::NoLedger => false,
            Self::NoAuthorization | Self::Paid(_) => true,
        }
    }
}

/// Whose money is spent when this one acts: `local` is the person at this machine, and a bare name is a user's.
///
/// ```
/// # use cantrip::{loom::Actor, owner_of};
/// assert_eq!(owner_of(&Actor::new("local").unwrap()).unwrap().as_str(), "local");
/// assert_eq!(owner_of(&Actor::new("service:night").unwrap()).unwrap().as_str(), "service:night");
/// assert_eq!(owner_of(&Actor::new("ann").unwrap()).unwrap().as_str(), "user:ann");
/// ```
pub fn owner_of(actor: &Actor) -> Result<Payer, OwnerError> {
    let name = actor.as_str();
    let bare = || format!("user:{name}").parse();
    let named = if name.contains(':') { name.parse() } else { name.parse().or_else(|_| bare()) };
    named.map_err(|_| OwnerError)
}

/// Whoever acts has no name that money could be kept under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerError;

impl From<OwnerError> for Refusal {
    fn from(OwnerError: OwnerError) -> Self {
        codes::schema("owner", "/owner", "it is local, system, user:NAME, guest:NAME or service:NAME").into()
    }
}

impl Runtime {
    /// What pays for this principal: the authorization that is named, or the most specific one of its owner. One that does
    /// not fit is the answer all the same: policy says so. What every store gives the person at its machine pays for nobody
    /// in a house that is open beyond it.
    pub async fn funds(
        &self,
        principal: Principal,
        named: Option<AuthorizationRef>,
    ) -> Result<Funds<Authorization>, Error> {
        let found = match named {
            Some(named) => self.loom().authorization(named).await.map(Some),
            None => self.loom().payer(principal).await,
        };
        match found {
            Ok(Some(found)) if found.id == AuthorizationRef::Local && self.has_remote_callers() => {
                Ok(Funds::NoAuthorization)
            }
            Ok(Some(found)) => Ok(Funds::Paid(found)),
            Ok(None) | Err(Error::NotFound { .. }) => Ok(Funds::NoAuthorization),
            Err(Error::NoLedger) => Ok(Funds::NoLedger),
            Err(error) => Err(error),
        }
    }
}
