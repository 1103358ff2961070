//! Crystals: anything that answers a list of messages, behind one contract that the runtime relies on.
//!
//! A [`Crystal`] takes a [`Request`], streams its output as events and returns an [`Answer`] or a [`Failure`]. The rest
//! of this crate is data and plain functions for the loop to call: which requests are retried and when
//! ([`RetryPolicy`]), which rules every answer must keep ([`contract`]), how a provider's chunks become canonical
//! events ([`Assembler`]). Nothing here knows a gate, a store or the life of a turn.

#[cfg(feature = "http")]
mod anthropic;
mod assembler;
#[cfg(feature = "http")]
mod block_order;
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
#[cfg(feature = "http")]
mod local_models;
mod message_log;
mod name;
#[cfg(feature = "http")]
mod ollama;
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
#[cfg(feature = "http")]
mod table_download;
pub mod tree;
#[cfg(feature = "http")]
mod window;

pub use assembler::{AnswerEnd, Assembler};
pub use crystal::{Answer, AnyCrystal, Crystal, EventSink, ItemEvent, NullSink};
#[cfg(feature = "http")]
pub use endpoint::{NamedEndpoint, Wire};
pub use failure::{Cause, Charge, Detail, Failure};
#[cfg(feature = "http")]
pub use hosted::{Access, Hosted};
#[cfg(feature = "http")]
pub use http::{BodyChunks, EndpointFault};
#[cfg(feature = "http")]
pub use local_models::{LOCAL_ADDRESSES, ModelListError, find_local_model, models_of_endpoint, models_of_provider};
pub use message_log::{MessageLog, Messages};
pub use name::{ModelName, NameFault, Provider, endpoint_name_fault};
pub use price::{Day, DayFault, Price, Rates};
pub use profile::{Profile, ProfileRow, ThinkingBy};
pub use profiles::{ModelEntry, Profiles, ProfilesFault};
pub use program::ProgramCrystal;
pub use replay::ReplayCrystal;
pub use request::{
    Caller, Effort, ItemIds, NoBodies, OutputFormat, ProgramFormat, Request, Sampling, Thinking, ToolChoice,
    ToolDefinition,
};
pub use retry::{RetryDecision, RetryPolicy};
pub use scripted::{RecordedRequest, Response, Script, ScriptFault, ScriptedCall, ScriptedCrystal, ScriptedError};
#[cfg(feature = "http")]
pub use table_download::{TableDownloadError, download_table};
#[cfg(feature = "http")]
pub use window::WindowAssumed;
