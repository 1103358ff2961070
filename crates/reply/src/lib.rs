//! Replies: every call ends in exactly one typed outcome, with a code from one registry, made by one builder.
//!
//! The safety wrapper ([`Guard`]) passes a [`ReplyBuilder`] to a tool, and the tool returns a [`Reply`]. A surface
//! serializes the reply as an [`Envelope`]; an entity reads it as an [`Observation`]. This crate does not know which
//! tools exist or which transport carries the reply, and it reads no clock, file or network by itself.

mod builder;
mod check;
mod code;
mod draft;
mod envelope;
mod exit_status;
mod guard;
pub mod limits;
mod log;
mod meaning;
mod message;
mod observation;
mod page;
mod panics;
pub mod registry;
#[cfg(feature = "testing")]
pub mod testing;

pub use builder::{Reply, ReplyBuilder};
pub use code::{
    Advice, AnyCode, Area, Code, CodeFault, CodeFaultKind, Denied, Failure, Invalid, Layer, Outcome, ReplyType, Success,
};
pub use draft::{FORBIDDEN_KEYS, Refusal, ReplyDraft};
pub use envelope::Envelope;
pub use exit_status::ExitStatus;
pub use guard::{Call, Guard, GuardedReply, Meta};
pub use observation::{GateRequest, Observation, ReplyException, ReplySummary, refusal_text};
pub use registry::codes;
// A reply and a guarded call name their trace.
pub use cantrip_trace::{Trace, TraceId, TraceIdFault};
