//! How is a reservation named? Its id is cut from a hash, so that two requests for the same thing name the same row.

use std::fmt;
use std::str::FromStr;

use cantrip_canon::{AuthorizationId, IdFault, RunId, stable_hash_of};
use serde::{Deserialize, Serialize};

use crate::limits::CALL_KEY_BYTES_MAX;

/// The authorization that pays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum AuthorizationRef {
    /// `auth_local`: the authorization that every store of a single user has from the start.
    Local,
    Issued(AuthorizationId),
}

const LOCAL: &str = "auth_local";

impl fmt::Display for AuthorizationRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str(LOCAL),
            Self::Issued(id) => id.fmt(f),
        }
    }
}

impl FromStr for AuthorizationRef {
    type Err = IdFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == LOCAL { Ok(Self::Local) } else { text.parse().map(Self::Issued) }
    }
}

cantrip_canon::string_conversions!(AuthorizationRef);

/// The name of the call that is paid for, as its owner writes it. This crate does not know what a call is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CallKey(String);

/// The reason why a text cannot name a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallKeyFault {
    #[error("the name of a call has 1 to {CALL_KEY_BYTES_MAX} bytes of visible ASCII, not {0:?}")]
    Form(String),
}

impl CallKey {
    pub fn new(text: impl Into<String>) -> Result<Self, CallKeyFault> {
        let text = text.into();
        if (1..=CALL_KEY_BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(Self(text))
        } else {
            Err(CallKeyFault::Form(text.chars().take(CALL_KEY_BYTES_MAX).collect()))
        }
    }
}

impl fmt::Display for CallKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for CallKey {
    type Error = CallKeyFault;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::new(text)
    }
}

impl From<CallKey> for String {
    fn from(key: CallKey) -> Self {
        key.0
    }
}

const CUT: usize = 32;

/// The hashed fields of an id.
#[derive(Serialize)]
struct Identity<'a> {
    attempt: u32,
    authorization_id: &'a str,
    call_id: &'a str,
    kind: &'a str,
    run_id: &'a str,
    v: u8,
}

fn cut(kind: &str, authorization: &str, run: &str, call: &str, attempt: u32) -> String {
    let identity = Identity { attempt, authorization_id: authorization, call_id: call, kind, run_id: run, v: 1 };
    stable_hash_of(&identity).expect("texts and a small number have a canonical form").hex(CUT)
}

/// The id of a reservation: `rsv_` and 32 digits of the hash over the payer, the call and the attempt.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ReservationId(String);

/// The reason why a text is not the id of a reservation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the id of a reservation: rsv_ and 32 digits of 0-9 and a-f")]
pub struct ReservationIdFault(String);

impl ReservationId {
    pub fn of(authorization: AuthorizationRef, run: RunId, call: &CallKey, attempt: u32) -> Self {
        Self::cut(&authorization.to_string(), &run.to_string(), &call.0, attempt)
    }

    fn cut(authorization: &str, run: &str, call: &str, attempt: u32) -> Self {
        Self(format!("rsv_{}", cut("reservation", authorization, run, call, attempt)))
    }
}

cantrip_canon::hash_id!(ReservationId = "rsv_", ReservationIdFault(64));
cantrip_canon::debug_as_text!(ReservationId);

/// The idempotency key for a provider that accepts one: derived like the reservation's id, never supplied.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ProviderKey(String);

impl ProviderKey {
    pub fn of(authorization: AuthorizationRef, run: RunId, call: &CallKey, attempt: u32) -> Self {
        Self::cut(&authorization.to_string(), &run.to_string(), &call.0, attempt)
    }

    fn cut(authorization: &str, run: &str, call: &str, attempt: u32) -> Self {
        Self(format!("ik_{}", cut("provider_call", authorization, run, call, attempt)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The published values use short names that our ids cannot have, so this test works below the types.
    #[test]
    fn ids_are_cut_as_published() {
        let reservation = ReservationId::cut("auth_1", "run_1", "call_1", 1);
        assert_eq!(reservation.to_string(), "rsv_9fa6988de41da0732599e9fd06ca02e3");
        let key = ProviderKey::cut("auth_1", "run_1", "call_1", 1);
        assert_eq!(key.as_str(), "ik_a218aa992d1275a4988d73d975adcda5");
        let second = ProviderKey::cut("auth_1", "run_1", "call_1", 2);
        assert_eq!(second.as_str(), "ik_be842637c3b5308101b5372a32d2ce89");
    }
}
