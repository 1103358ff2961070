//! How does a cast call a signature?
//!
//! The loop knows what a child is, and how a child is paid for, recorded and resumed. It does not know signatures: the
//! preparer, which does, prepares a predict, and the loop casts it below the calling turn. A predict as an ordinary
//! gate was rejected: its money would be counted outside the tree, and a crash would leave it behind.

use std::fmt;
use std::sync::Arc;

use cantrip_canon::{EntityId, RunId, TurnId};
use cantrip_crystal::AnyCrystal;
use cantrip_loom::{Actor, CallId, Content};
use cantrip_reply::Refusal;
use futures_util::future::BoxFuture;
use serde_json::Value;

use crate::cantrip::Cantrip;
use crate::driver::RunObserver;

/// Prepares predicts for the casts of a runtime.
pub trait PredictPreparer: Send + Sync {
    /// Reads the signature, checks the input and builds the cantrip that answers. Nothing is written and no model is
    /// asked. For a predict that another process began, the same cantrip is built again from its records.
    fn prepare(&self, asked: PredictRequest) -> BoxFuture<'_, Result<PreparedPredict, Refusal>>;
}

/// A predict that an entity requests.
#[derive(Debug, Clone)]
pub struct PredictRequest {
    /// The signature as the spell lists it.
    pub signature: String,
    pub input: Value,
    /// The actor on whose behalf the cast is made.
    pub owner: Actor,
    pub run: RunId,
    /// The calling entity, its turn, and the call.
    pub caller: EntityId,
    pub turn: TurnId,
    pub call: CallId,
    /// The entity that will answer.
    pub entity: EntityId,
    /// The crystal of the caller, for a signature that names none.
    pub crystal: AnyCrystal,
    /// The maximum depth of the caller's children, which includes the sub-calls of a predict.
    pub max_depth: u64,
    /// True if another process began the predict.
    pub resumed: bool,
}

/// A predict that is ready to be cast.
pub struct PreparedPredict {
    pub cantrip: Cantrip,
    pub intent: Content,
    /// The variables of its programs.
    pub context: Option<Value>,
    /// The observer that writes its row and its receipt.
    pub observer: Arc<dyn RunObserver>,
    /// The maximum number of outputs that it may try; `None` if its turns mean something else.
    pub attempts: Option<u64>,
}

impl fmt::Debug for PreparedPredict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedPredict").field("attempts", &self.attempts).finish_non_exhaustive()
    }
}
