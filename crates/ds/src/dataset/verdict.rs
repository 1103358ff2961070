//! Verdicts: what people say about the outcome of a receipt.

use std::sync::Arc;

use cantrip::canon::{Clock, IdSource};
use cantrip::loom::AnyLoom;
use cantrip::reply::Refusal;
use cantrip_contract::{ReceiptId, Verdict, VerdictWord};
use serde_json::Value;

/// A verdict as a person gives it.
#[derive(Debug, Clone)]
pub struct GivenVerdict {
    pub receipt: ReceiptId,
    pub verdict: VerdictWord,
    /// The right output.
    pub expected: Option<Value>,
    pub labels: Vec<String>,
    pub note: Option<String>,
    pub by: String,
}

/// The verdicts of a store. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct Verdicts {
    loom: AnyLoom,
    clock: Arc<dyn Clock>,
    ids: Arc<IdSource>,
}

impl Verdicts {
    pub fn new(loom: AnyLoom, clock: Arc<dyn Clock>, ids: Arc<IdSource>) -> Self {
        Self { loom, clock, ids }
    }

    /// Records a verdict. Earlier verdicts stay; the latest one counts.
    pub async fn give(&self, given: GivenVerdict) -> Result<Verdict, Refusal> {
        todo!()
    }
}
