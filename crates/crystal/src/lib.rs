//! Crystals: whatever answers a list of messages, behind one contract that the runtime relies on.
//!
//! A [`Crystal`] takes a [`Request`] and gives an [`Answer`] or a [`Failure`], and says what it says while it says it.
//! Everything around that is here as data and plain functions, for the loop to call: what is asked again and when
//! ([`Retry`]), what every answer must keep ([`contract`]), how a provider's chunks become canonical events
//! ([`Assembler`]). Nothing here knows a gate, a store or a turn's life.

#[cfg(feature = "http")]
mod anthropic;
mod assembler;
#[cfg(feature = "http")]
mod compatible;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod contract;
mod crystal;
#[cfg(feature = "http")]
mod endpoint;
mod failure;
#[cfg(feature = "http")]
mod gemini;
#[cfg(feature = "http")]
mod hosted;
#[cfg(feature = "http")]
mod http;
pub mod limits;
mod list;
mod name;
#[cfg(feature = "http")]
mod nearby;
#[cfg(feature = "http")]
mod ollama;
#[cfg(feature = "http")]
mod order;
mod price;
mod profile;
mod profiles;
mod program;
mod replay;
mod request;
#[cfg(feature = "http")]
mod responses;
mod retry;
#[cfg(feature = "http")]
mod schema;
mod scripted;
pub mod tree;
#[cfg(feature = "http")]
mod window;

#[cfg(feature = "http")]
pub use anthropic::Anthropic;
pub use assembler::{Assembler, Ending};
#[cfg(feature = "http")]
pub use compatible::Compatible;
pub use crystal::{Answer, AnyCrystal, Crystal, ItemEvent, Silence, Sink, finish_reason};
#[cfg(feature = "http")]
pub use endpoint::{NamedEndpoint, Wire};
pub use failure::{Cause, Charge, Detail, Failure};
#[cfg(feature = "http")]
pub use gemini::Gemini;
#[cfg(feature = "http")]
pub use hosted::Access;
#[cfg(feature = "http")]
pub use http::{EndpointFault, Pieces};
pub use list::{List, Messages};
pub use name::{ModelName, NameFault, Provider, endpoint_name_fault};
#[cfg(feature = "http")]
pub use nearby::{LOCAL_ADDRESSES, Unlisted, models_of_endpoint, models_of_provider, nearby};
#[cfg(feature = "http")]
pub use ollama::Ollama;
pub use price::{Price, Rates};
pub use profile::{Profile, ProfileRow, ThinkingBy};
pub use profiles::{Known, Profiles, ProfilesFault};
pub use program::Programmed;
pub use replay::Replaying;
pub use request::{
    Caller, Choice, Definition, Effort, Format, ItemIds, NoBodies, Program, Request, Sampling, Thinking,
};
#[cfg(feature = "http")]
pub use responses::Responses;
pub use retry::{Plan, Retry};
pub use scripted::{Input, Response, Script, ScriptFault, Scripted, ScriptedCall, ScriptedError};
#[cfg(feature = "http")]
pub use window::WindowAssumed;
