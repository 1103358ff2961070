//! `loom`: an entity reads its own thread, including turns that were folded away.

use cantrip_reply::{Refusal, ReplyDraft, Success, codes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::gate::function::{parameters, parse_arguments};
use crate::gate::{AnyGate, Call, Gate, GateSpec, Identity, Purity};

/// What is to be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ThreadQuery {
    /// A turn, by its number or its id, in full. Without it the turns are listed in short.
    pub turn: Option<TurnName>,
    /// The first turn to be listed, from 1.
    #[schemars(range(min = 1))]
    pub from: Option<u64>,
    /// How many are listed at most.
    #[schemars(range(min = 1))]
    pub limit: Option<usize>,
}

/// A turn as an entity names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum TurnName {
    Number(u64),
    Id(String),
}

impl std::fmt::Display for TurnName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Id(id) => id.fmt(f),
        }
    }
}

/// The reason why a turn cannot be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ThreadReadError {
    /// There is no such turn.
    NotFound,
    /// The turn is not on the entity's own path.
    NotOwn,
    /// The loom cannot be read now.
    Failed { cause: String },
}

/// The thread of the calling entity.
///
/// * It never shows a turn that is not on the calling entity's path.
/// * A result of an ephemeral gate is shown in the first answer that reads it, and its placeholder in later ones.
pub trait OwnThread: Send + Sync + 'static {
    fn read(&self, of: &Identity, passage: ThreadQuery) -> impl Future<Output = Result<Value, ThreadReadError>> + Send;
}

/// Makes a gate that reads this thread.
pub fn loom(thread: impl OwnThread) -> AnyGate {
    let description = "Reads your own earlier turns: a list in short, or one turn in full.";
    let promises = GateSpec::new("loom", description, parameters::<ThreadQuery>()).purity(Purity::ReadOnly);
    AnyGate::from(LoomGate { promises, thread })
}

struct LoomGate<T> {
    promises: GateSpec,
    thread: T,
}

impl<T: OwnThread> Gate for LoomGate<T> {
    fn spec(&self) -> &GateSpec {
        &self.promises
    }

    async fn call(&self, call: Call) -> Result<ReplyDraft<Success>, Refusal> {
        let name = &self.promises.name;
        let passage: ThreadQuery = parse_arguments(name, call.arguments)?;
        let what = passage.turn.as_ref().map_or_else(|| "the own thread".to_owned(), |turn| format!("turn {turn}"));
        let asked = passage.turn.as_ref().map(ToString::to_string).unwrap_or_default();
        let Some(identity) = &call.identity else {
            return Err(codes::target_unusable(name, "there is no thread to read").into());
        };
        match self.thread.read(identity, passage).await {
            Ok(shown) => Ok(codes::read(what).value(shown)),
            Err(ThreadReadError::NotFound) => Err(codes::not_found("turn", asked).into()),
            Err(ThreadReadError::NotOwn) => Err(codes::read_refused(what, name, "not_own").into()),
            Err(ThreadReadError::Failed { cause }) => Err(codes::gate_failed(name, cause).into()),
        }
    }
}
