//! Who pays for a caller?
//!
//! There is one answer for casts, budgets and predicts: the actor determines the owner of the money, and the most
//! specific authorization of that owner pays.

use cantrip_loom::{Actor, Error, Ledger};
use cantrip_reply::{Refusal, codes};
use cantrip_spend::{Authorization, AuthorizationRef, Payer, Principal};
pub use cantrip_turn::Funds;

use crate::Runtime;

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
