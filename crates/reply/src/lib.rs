//! Replies: every call ends in exactly one typed outcome, with a code from one registry, made by one builder.
//!
//! A tool is handed a [`ReplyBuilder`] by the safety wrapper ([`Guard`]) and gives back a [`Reply`]; a surface writes
//! it as an [`Envelope`], an entity reads it as an [`Observation`]. Nothing here knows which tools exist or which
//! transport carries the answer, and nothing reads a clock, a file or the network by itself.

mod builder;
mod caught;
mod check;
mod code;
mod context;
mod envelope;
mod exit_status;
mod guard;
pub mod limits;
mod log;
mod meaning;
mod message;
mod observation;
mod page;
mod place;
pub mod registry;
#[cfg(feature = "testing")]
pub mod testing;
mod trace;

pub use builder::{FORBIDDEN_KEYS, Filled, Refusal, Reply, ReplyBuilder};
pub use code::{
    Advice, AnyCode, Area, Code, CodeFault, Denied, Failure, Fault, Invalid, Layer, Outcome, ReplyType, Success,
};
pub use context::TraceContext;
pub use envelope::Envelope;
pub use exit_status::ExitStatus;
pub use guard::{Call, Guard, Guarded, Meta};
pub use observation::{Asked, Mark, Observation, Thrown, refusal_text};
pub use place::{TracedHosts, above, below, kept, telling, told_here, told_to};
pub use registry::codes;
pub use trace::{Trace, TraceId, TraceIdFault};
