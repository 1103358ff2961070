//! Who pays for a caller?
//!
//! There is one answer for casts, budgets and predicts: the actor determines the owner of the money, and the most
//! specific authorization of that owner pays. A store without a ledger and a ledger without a matching authorization
//! are two different cases: in the first only the wards count, in the second policy denies every request. An `Option`
//! could not tell them apart.

use cantrip_loom::{Actor, Error, Ledger};
use cantrip_reply::{Refusal, codes};
use cantrip_spend::{Authorization, AuthorizationRef, Payer, Principal};

use crate::Runtime;

/// The source of the money.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Funds<T> {
    /// The store keeps no ledger.
    NoLedger,
    /// A ledger is kept, and it has no authorization for the caller.
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

    /// Returns the payer, for callers that need not know why there is none.
    pub fn payer(self) -> Option<T> {
        match self {
            Self::NoLedger | Self::NoAuthorization => None,
            Self::Paid(by) => Some(by),
        }
    }

    /// Returns true if a ledger is kept, so that policy is asked.
    pub const fn is_counted(&self) -> bool {
        match self {
            Self::NoLedger => false,
            Self::NoAuthorization | Self::Paid(_) => true,
        }
    }
}

/// Returns the owner whose money this actor spends: `local` is the person at this machine, and a bare name is a user.
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

/// The actor has no name that money can be kept under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerError;

impl From<OwnerError> for Refusal {
    fn from(OwnerError: OwnerError) -> Self {
        codes::schema("owner", "/owner", "it is local, system, user:NAME, guest:NAME or service:NAME").into()
    }
}

impl Runtime {
    /// Returns the payer for this principal: the named authorization, or the most specific authorization of its owner.
    /// An authorization that does not fit is returned too, and policy denies it. The authorization that every store has
    /// for the person at its machine pays for nobody if the runtime has remote callers.
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
