//! Streaming: canonical events in, upserts that carry the full state of their item out.
//!
//! Streaming is an observation channel. Providers and the loop report what happens as [`StreamEvent`]s. Each viewer
//! owns a [`Processor`], which turns them into [`Emission`]s at the pace that the viewer asked for. This crate does no
//! I/O, reads no clock and knows no provider, and no input makes it panic or grow without bound. So it cannot slow,
//! change or stop the cast that is observed.
//!
//! ```
//! use cantrip_canon::{Clock, ManualClock, Timestamp};
//! use cantrip_stream::{Emission, Options, Processor, StreamEvent};
//! use serde_json::json;
//!
//! let event = |kind: &str, mut payload: serde_json::Value| {
//!     payload["type"] = kind.into();
//!     StreamEvent::read(&json!({
//!         "eventId": "e", "timestamp": "2026-02-15T10:00:00Z", "turnId": "t", "sessionId": "s",
//!         "type": kind, "payload": payload,
//!     }))
//!     .unwrap()
//! };
//! let clock = ManualClock::starting(Timestamp::EPOCH);
//! let mut processor = Processor::new(Options::default());
//! let mut out = Vec::new();
//! processor.process(&event("item_start", json!({"itemId": "t/1", "itemType": "message"})), clock.now(), &mut out)?;
//! processor.process(&event("item_delta", json!({"itemId": "t/1", "deltaContent": "Hi"})), clock.now(), &mut out)?;
//! assert!(out.is_empty(), "one word is below the first threshold");
//!
//! clock.advance(processor.next_deadline().unwrap().since(clock.now().monotonic)); // what a caller sleeps
//! processor.tick(clock.now(), &mut out);
//! let [Emission::Upsert(upsert)] = &out[..] else { panic!() };
//! assert_eq!(serde_json::to_value(upsert).unwrap()["content"], "Hi");
//! # Ok::<(), cantrip_stream::StreamFault>(())
//! ```

mod event;
mod id;
pub mod limits;
mod options;
mod processor;
mod read;
mod text;
mod timestamp;
mod upsert;

pub use event::{
    Arguments, CancelReason, ChildOf, EmptyName, ErrorInfo, FinalCall, FinalItem, FinalOutput, ItemCancelled,
    ItemDelta, ItemDone, ItemError, ItemStart, Name, Origin, Payload, ReplyKind, ReplyTag, ResponseDone, ResponseError,
    ResponseStart, ResponseStatus, StartedItem, StreamEvent, Usage,
};
pub use id::{CallId, EntityId, EventId, ItemId, ModelId, NotAnId, ProviderId, SessionId, TurnId};
pub use options::{Gradient, Options, Timers};
pub use processor::{DroppedCounts, Processor, StreamFault, codes};
pub use read::Issue;
pub use text::Text;
pub use timestamp::{NotATimestamp, SourceTimestamp};
pub use upsert::{Emission, Item, Status, ToolCall, ToolOutput, TurnEvent, TurnStatus, Upsert};
