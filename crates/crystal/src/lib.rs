//! Crystals: whatever answers a list of messages, behind one contract that the runtime relies on.
//!
//! A [`Crystal`] takes a [`Request`] and gives an [`Answer`] or a [`Failure`], and says what it says while it says it.
//! Everything around that is here as data and plain functions, for the loop to call: what is asked again and when
//! ([`Retry`]), what every answer must keep ([`contract`]), how a provider's chunks become canonical events
//! ([`Assembler`]). Nothing here knows a gate, a store or a turn's life.

mod assembler;
#[cfg(feature = "http")]
mod compatible;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod contract;
mod crystal;
mod failure;
pub mod limits;
mod list;
mod name;
mod profile;
mod program;
mod replay;
mod request;
mod retry;
mod scripted;
pub mod tree;

pub use assembler::{Assembler, Ending};
#[cfg(feature = "http")]
pub use compatible::{Compatible, CompatibleFault};
pub use crystal::{Answer, AnyCrystal, Crystal, ItemEvent, Silence, Sink, finish_reason};
pub use failure::{Cause, Charge, Detail, Failure};
pub use list::{List, Messages};
pub use name::{ModelName, NameFault, Provider};
pub use profile::{Profile, ProfileRow};
pub use program::Programmed;
pub use replay::Replaying;
pub use request::{Caller, Choice, Definition, ItemIds, NoBodies, Program, Request, Sampling};
pub use retry::{Plan, Retry};
pub use scripted::{Input, Response, Script, ScriptFault, Scripted, ScriptedCall, ScriptedError};
