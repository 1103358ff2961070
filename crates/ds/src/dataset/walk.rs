//! Which receipt should a person look at next?
//!
//! The least certain outcomes come first: calls that failed by themselves, then those that needed repairs, then the
//! rest in the order of their hashes, which is a fair draw that stays the same.

use std::collections::HashSet;

use cantrip::canon::Hash;
use cantrip::loom::{AnyLoom, Contracts, Improvements, PageRequest, ReceiptFilter};
use cantrip::reply::{Refusal, codes};
use cantrip::store_refusal;
use cantrip_contract::{Kind, Purpose, Receipt, ReceiptId, SignatureId, Status};
use serde_json::Value;

use super::gather::stored_value;
use crate::catalog::altered_refusal;
use crate::limits::DATASET_PAGE;

/// The place of a receipt in the order of review, the least certain first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReviewOrder {
    /// The output did not fit its schema, or there was none.
    OwnFailure,
    Repaired,
    Rest,
}

/// A receipt without a verdict.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpenReceipt {
    pub order: ReviewOrder,
    pub receipt_hash: Hash,
    pub receipt_id: ReceiptId,
    pub owner: String,
    input_hash: Option<Hash>,
    output_hash: Option<Hash>,
}

impl OpenReceipt {
    /// Loads the input and the output; each is none if there is none, or if it is no longer stored.
    pub async fn load(&self, loom: &AnyLoom) -> Result<(Option<Value>, Option<Value>), Refusal> {
        let input = match self.input_hash {
            Some(hash) => stored_value(loom, hash).await?,
            None => None,
        };
        let output = match self.output_hash {
            Some(hash) => stored_value(loom, hash).await?,
            None => None,
        };
        Ok((input, output))
    }
}

/// Lists the receipts of a signature that were served and have no verdict, the least certain first.
pub async fn open_receipts(loom: &AnyLoom, signature: &SignatureId) -> Result<Vec<OpenReceipt>, Refusal> {
    let judged = judged_receipts(loom).await?;
    let mut open = Vec::new();
    let wanted = ReceiptFilter { signature: Some(signature.clone()), ..ReceiptFilter::default() };
    let mut next = Some(PageRequest { after: None, most: DATASET_PAGE });
    while let Some(page) = next {
        let found = loom.receipts(wanted.clone(), page).await.map_err(|error| store_refusal(&error))?;
        for row in found.items {
            if judged.contains(&row.receipt_id) {
                continue;
            }
            let receipt = row.receipt().map_err(|fault| altered_refusal(&fault))?;
            let Some(order) = review_order(&receipt) else { continue };
            open.push(OpenReceipt {
                order,
                receipt_hash: row.receipt_hash,
                receipt_id: row.receipt_id,
                owner: row.owner,
                input_hash: receipt.params_hash,
                output_hash: receipt.output_hash,
            });
        }
        next = page.following(found.next);
    }
    open.sort();
    Ok(open)
}

/// Returns the place of a receipt in the order of review; none if no person can say anything about it, because it was
/// refused, cancelled, failed for an outside reason, or was made by a job.
fn review_order(receipt: &Receipt) -> Option<ReviewOrder> {
    if receipt.receipt_kind != Kind::Predict || receipt.purpose != Some(Purpose::Serve) {
        return None;
    }
    match receipt.status {
        Status::Succeeded if receipt.budget.repairs > 0 => Some(ReviewOrder::Repaired),
        Status::Succeeded => Some(ReviewOrder::Rest),
        Status::Failed => {
            let own = [codes::OUTPUT_SCHEMA.any(), codes::WARD_REACHED.any()];
            let code = receipt.error_code.as_deref()?;
            own.iter().any(|own| own.as_str() == code).then_some(ReviewOrder::OwnFailure)
        }
        Status::Denied | Status::Cancelled => None,
    }
}

async fn judged_receipts(loom: &AnyLoom) -> Result<HashSet<ReceiptId>, Refusal> {
    let mut judged = HashSet::new();
    let mut next = Some(PageRequest { after: None, most: DATASET_PAGE });
    while let Some(page) = next {
        let found = loom.verdicts(page).await.map_err(|error| store_refusal(&error))?;
        judged.extend(found.items.into_iter().map(|row| row.receipt_id));
        next = page.following(found.next);
    }
    Ok(judged)
}
