//! A predict from inside a cast.
//!
//! The loop knows what a child is and how it is paid for, recorded and taken up again. What a signature is, it does not
//! know: whoever does makes a predict ready, and the loop casts it below the turn that asked. A predict as a gate that is
//! entered like any other was rejected: its money would be counted beside the tree's, and a crash would leave it behind.

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

/// Makes predicts ready for the casts of a house.
pub trait PredictPreparer: Send + Sync {
    /// Reads the signature, checks the input and makes the cantrip that answers. Nothing is written and nobody is asked.
    /// Of a predict that another process began, the same cantrip is made again, from its records.
    fn prepare(&self, asked: PredictRequest) -> BoxFuture<'_, Result<PreparedPredict, Refusal>>;
}

/// A predict that an entity asks for.
#[derive(Debug, Clone)]
pub struct PredictRequest {
    /// The signature as the spell lists it.
    pub signature: String,
    pub input: Value,
    /// On whose behalf the cast is made.
    pub owner: Actor,
    pub run: RunId,
    /// The entity that asks, the turn in which it does, and the call.
    pub caller: EntityId,
    pub turn: TurnId,
    pub call: CallId,
    /// The entity that will answer.
    pub entity: EntityId,
    /// The crystal of the caller, for a signature that names none.
    pub crystal: AnyCrystal,
    /// How many levels of children the caller may have: the sub-calls of a predict are among them.
    pub max_depth: u64,
    /// Another process began it.
    pub resumed: bool,
}

/// A predict that is ready to be cast.
pub struct PreparedPredict {
    pub cantrip: Cantrip,
    pub intent: Content,
    /// The variables of its programs.
    pub context: Option<Value>,
    /// Writes its row and its receipt.
    pub observer: Arc<dyn RunObserver>,
    /// How many outputs it may try before it has failed; none where its turns are something else.
    pub attempts: Option<u64>,
}

impl fmt::Debug for PreparedPredict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedPredict").field("attempts", &self.attempts).finish_non_exhaustive()
    }
}
