//! Which receipt should a person look at next?

use cantrip::canon::Hash;
use cantrip::loom::AnyLoom;
use cantrip::reply::Refusal;
use cantrip_contract::{ReceiptId, SignatureId};
use serde_json::Value;

/// The reason why a receipt stands where it stands in the order of review, the least certain first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReviewOrder {
    /// The output did not fit its schema, or there was none.
    OwnFailure,
    Repaired,
    Rest,
}

/// A receipt without a verdict, with its input and its output.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenReceipt {
    pub order: ReviewOrder,
    pub receipt_hash: Hash,
    pub receipt_id: ReceiptId,
    pub input: Value,
    pub output: Option<Value>,
}

/// Lists the receipts of a signature that have no verdict, the least certain first.
pub async fn open_receipts(loom: &AnyLoom, signature: &SignatureId) -> Result<Vec<OpenReceipt>, Refusal> {
    todo!()
}
