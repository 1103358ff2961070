//! Canon: the values every other room agrees on, byte for byte.
//!
//! Canonical JSON and its hash, typed ids, money, time as a value that is passed in, redaction.
//! Nothing here knows what a turn or a gate is, reads a clock, or touches a disk: whoever needs the time or
//! an id is handed a [`Clock`] and an [`IdSource`], so every rule above this room can be tested without sleeping.

#![forbid(unsafe_code)]

mod clock;
mod from_str_visitor;
mod hash;
mod id;
pub mod json;
pub mod limits;
mod money;
mod redact;

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
