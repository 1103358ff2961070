//! The rows of traces.

use cantrip_canon::{Hash, PredictId, RunId, Timestamp};
use serde::{Deserialize, Serialize};

/// The intended storage of a trace's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceStorage {
    /// In the row.
    Inline,
    /// In an object store.
    External,
}

/// The progress of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceState {
    Inline,
    /// Intended for an object store, but still in its row.
    Pending,
    Stored,
    /// Only the name and the hash are left.
    Expired,
}

/// A stored trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceRow {
    pub trace_ref: String,
    pub run_id: RunId,
    pub predict_id: PredictId,
    pub trace_hash: Hash,
    pub storage: TraceStorage,
    pub state: TraceState,
    pub uri: Option<String>,
    pub bytes: u64,
    /// The whole payload if it is not stored elsewhere; otherwise its summary.
    pub payload: Option<String>,
    pub created_at: Timestamp,
    pub stored_at: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
    pub deleted_at: Option<Timestamp>,
    pub deleted_by: Option<String>,
}

/// A change of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TraceMove {
    /// Its object was read back with the right hash; this summary stays in the row.
    Stored { summary: String, at: Timestamp },
    /// The object and the payload were deleted.
    Expired { by: String, at: Timestamp },
}
