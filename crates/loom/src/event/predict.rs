//! The records of predicts.

use cantrip_canon::{CastId, EntityId, Hash, PredictId, RunId, TurnId};
use cantrip_contract::{CompiledId, Purpose, SignatureId, Status};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::CallId;

/// `predict.opened`: a predict begins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PredictOpened {
    pub predict_id: PredictId,
    pub signature_id: SignatureId,
    pub compiled_id: CompiledId,
    pub params_hash: Hash,
    pub request_hash: Hash,
    pub purpose: Purpose,
    pub structured_mode: String,
    /// The settings of the predict, in the form of the crate that makes predicts. Records of early versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Value>,
    /// The beginning of its receipt, in the form of the same crate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began: Option<Value>,
    /// The entity of a predict inside a cast, its caller and its own cast.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entity_id: Option<EntityId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<PredictCaller>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cast_id: Option<CastId>,
}

/// The call of a cast that asked for a predict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PredictCaller {
    pub run_id: RunId,
    pub thread_id: EntityId,
    pub turn_id: TurnId,
    pub call_id: CallId,
}

/// `predict.closed`: a predict is over, and its run with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PredictClosed {
    pub predict_id: PredictId,
    pub status: Status,
    pub error_code: Option<String>,
    pub output_hash: Option<Hash>,
}

impl PredictClosed {
    pub fn succeeded(&self) -> bool {
        self.status == Status::Succeeded
    }
}
