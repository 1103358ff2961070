//! The agent loop: a cantrip is cast on an intent, and its entity takes turns until it is done or a ward stops it.

mod approvals;
mod cancel;
mod cantrip;
mod driver;
mod entity;
mod episode;
pub mod events;
mod fork;
mod funds;
mod journal;
pub mod limits;
mod lineage;
mod live;
mod options;
mod own_thread;
pub mod parked;
pub mod policy;
mod predict;
mod replay;
mod resume;
mod runtime_error;
mod script_position;
pub mod telemetry;
mod touched_labels;
mod waiting;

pub use approvals::{HumanDecision, PendingApproval};
pub use cancel::{Cancel, StopLevel, requests_cancel};
pub use cantrip::{AnyVerifier, Cantrip, CantripBuilder, CommandVerifier, Verdict, Verifier, loom_id_for};
pub use cantrip_turn::{Call, CantripFault, CantripFaults, fold, list, policy_denial};
pub use driver::{CastEnd, CastEndKind, ExtraWrites, MachineClock, MachineEntropy, RunObserver, RunStart, Runtime};
pub use entity::Entity;
pub use episode::{AnswerFault, CastReply};
pub use funds::{Funds, OwnerError, owner_of};
pub use live::{LiveCast, UpsertStream};
pub use options::{CastOptions, ContinueOptions, ForkOptions};
pub use own_thread::OwnThreadReader;
pub use predict::{PredictPreparer, PredictRequest, PreparedPredict};
pub use runtime_error::store_refusal;

/// Creates a gate from a function: the schema comes from its arguments, the description from its doc comment.
///
/// The function becomes the constructor of the gate, for [`CantripBuilder::gate`].
///
/// ```
/// use std::sync::Arc;
/// use cantrip::gate;
///
/// /// Looks a word up.
/// #[gate(read_only, labels(private_data))]
/// async fn look_up(
///     #[given] book: Arc<Vec<(String, String)>>,
///     /// The word, in lower case.
///     word: String,
///     /// How many meanings at most.
///     at_most: Option<usize>,
/// ) -> Vec<String> {
///     let meanings = book.iter().filter(|(entry, _)| *entry == word).map(|(_, meaning)| meaning.clone());
///     meanings.take(at_most.unwrap_or(3)).collect()
/// }
///
/// let book = Arc::new(vec![("loom".to_owned(), "where turns are woven".to_owned())]);
/// # use cantrip::{Cantrip, circle::gate::builtin, crystal::{Response, Script, ScriptedCrystal}};
/// # let script = Script::new([Response::text("")]);
/// let builder = Cantrip::builder().gate(look_up(book)).gate(builtin::done());
/// # let built = builder.crystal(ScriptedCrystal::new("scripted/none", script)).ward("max_turns", 1).build().unwrap();
/// # let definition = &built.circle().definitions()[0];
/// # assert_eq!(definition.name, "look_up");
/// # assert_eq!(definition.parameters["required"], serde_json::json!(["word"]));
/// ```
///
/// * A parameter is an argument that the entity passes: any type that serde can deserialize and schemars can describe,
///   an `Option` if it may be omitted. Its doc comment describes it; attributes of `serde` and `schemars` are passed
///   on. An unknown argument is refused.
/// * `#[given]` parameters belong to the constructor: clients, folders, keys. They are cloned for each call.
/// * `#[call]` passes the [`circle::gate::Call`] itself: the caller, and the idempotency key.
/// * The function may return a value, or a `Result`: a [`reply::Refusal`] in it is the reply, any other error is a
///   failure of the gate.
/// * The attribute lists the promises of the gate: `idempotent`, `read_only` or `pure`; `ephemeral`; `polling`;
///   `labels(..)`; and `name = ".."` if the gate's name differs from the function's.
///
/// The smallest gate has a description:
///
/// ```
/// /// Reads.
/// #[cantrip::gate]
/// fn reads(word: String) -> String { word }
/// ```
///
/// A gate without a description does not compile:
///
/// ```compile_fail
/// #[cantrip::gate]
/// fn reads(word: String) -> String { word }
/// ```
///
/// Nor does a gate with an unknown promise, or one that borrows from its caller:
///
/// ```compile_fail
/// /// Reads.
/// #[cantrip::gate(readonly)]
/// fn reads(word: String) -> String { word }
/// ```
///
/// ```compile_fail
/// /// Reads.
/// #[cantrip::gate]
/// fn reads(word: &str) -> String { word.to_owned() }
/// ```
pub use cantrip_macros::gate;

/// The code that `#[gate]` generates derives with these, so that its users need neither crate.
#[doc(hidden)]
pub mod derived {
    pub use schemars::{self, JsonSchema};
    pub use serde::{self, Deserialize};
}

// The crates below, for users who depend only on this one.
pub use cantrip_canon as canon;
pub use cantrip_circle as circle;
pub use cantrip_circle::gate::builtin as gates;
pub use cantrip_crystal as crystal;
pub use cantrip_loom as loom;
pub use cantrip_reply as reply;
pub use cantrip_spend as spend;
pub use cantrip_stream as stream;
pub use replay::{Divergence, DivergenceKind, ReplayOutcome, ReplayReply};
pub use waiting::Waiting;

// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
