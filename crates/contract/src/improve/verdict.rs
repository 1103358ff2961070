//! What does a person say about an answer?
//!
//! A verdict is about one receipt. Verdicts are never changed: a second one is another row, and the latest counts.

use cantrip_canon::{Hash, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ids::hash;
use crate::{Labels, ReceiptId, VerdictId, VerdictWord};

/// A verdict about the answer of a receipt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    pub receipt_id: ReceiptId,
    pub verdict: VerdictWord,
    /// The correction: the output that was expected. It fits the output schema.
    pub expected: Option<Value>,
    pub labels: Labels,
    pub note: Option<String>,
    pub by: String,
    pub at: Timestamp,
}

impl Verdict {
    /// The whole content, as it is hashed.
    pub fn content(&self) -> Value {
        json!({
            "v": 1,
            "kind": "verdict",
            "receipt_id": self.receipt_id,
            "verdict": self.verdict,
            "expected": self.expected,
            "labels": self.labels,
            "note": self.note,
            "by": self.by,
            "at": self.at,
        })
    }

    /// The id: the same verdict by the same person at the same time is the same row.
    pub fn id(&self) -> VerdictId {
        VerdictId::of(hash(&self.content()))
    }

    /// The hash of the correction, if there is one.
    pub fn expected_hash(&self) -> Option<Hash> {
        self.expected.as_ref().map(hash)
    }
}
