//! Canon: the values that every other crate agrees on, byte for byte.
//!
//! Canonical JSON and its hash, typed ids, money, time as a value that is passed in, redaction. This crate does not
//! know turns or gates, reads no clock and touches no disk. Code that needs the time or an id gets a [`Clock`] and an
//! [`IdSource`], so every rule in the crates above can be tested without sleeping.

#![forbid(unsafe_code)]

mod clock;
mod from_str_visitor;
mod hash;
mod id;
pub mod json;
pub mod limits;
mod money;
mod redact;
mod text_form;

pub use clock::{Clock, Instant, ManualClock, Now, Timestamp, TimestampFault};
pub use hash::{Hash, HashFault, bytes_hash, linked_hash, stable_hash, stable_hash_of};
pub use id::{
    ApprovalId, AuditId, AuthorizationId, CastId, DecisionId, EntityId, Entropy, FoldId, Id, IdFault, IdSource, JobId,
    Kind, LoomId, PredictId, RetentionId, RunId, SeededEntropy, TurnId, kinds,
};
pub use limits::Limit;
pub use money::{Currency, Money, MoneyFault};
pub use redact::{
    KnownSecrets, Redactor, Secret, SecretStream, known_secrets, remember_header, remember_if_secret, remember_secret,
    replace_known_secrets,
};
