//! Verdicts: what people say about the outcome of a receipt.

use std::fmt;
use std::sync::Arc;

use cantrip::canon::{Clock, IdSource, json};
use cantrip::loom::{
    AnyLoom, AppendOutcome, Body, Conflict, Contracts, Error, Improvements, Journal, Loom, Step, StepId,
};
use cantrip::reply::{Refusal, codes};
use cantrip::store_refusal;
use cantrip_contract::{
    ContractRow, ImproveRow, Labels, Receipt, ReceiptId, ReceiptRow, Verdict, VerdictRow, VerdictWord,
};
use serde_json::Value;

use super::ExampleSchemas;
use super::gather::stored_value;
use crate::Catalog;
use crate::catalog::altered_refusal;
use crate::limits::DATASET_NOTE_BYTES_MAX;

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

impl fmt::Debug for Verdicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verdicts").finish_non_exhaustive()
    }
}

fn refused(error: Error) -> Refusal {
    store_refusal(&error)
}

impl Verdicts {
    pub fn new(loom: AnyLoom, clock: Arc<dyn Clock>, ids: Arc<IdSource>) -> Self {
        Self { loom, clock, ids }
    }

    /// Returns the verdicts about a receipt, oldest first. The last one counts.
    pub async fn of(&self, receipt: ReceiptId) -> Result<Vec<VerdictRow>, Refusal> {
        self.loom.verdicts_of(receipt).await.map_err(refused)
    }

    /// Records a verdict. Earlier verdicts stay; the latest one counts. A correction must fit the output schema of the
    /// signature, or the answer schema of the spell.
    pub async fn give(&self, given: GivenVerdict) -> Result<Verdict, Refusal> {
        if let Some(note) = given.note.as_ref().filter(|note| note.len() > DATASET_NOTE_BYTES_MAX) {
            return Err(codes::limit("the note", note.len(), DATASET_NOTE_BYTES_MAX).into());
        }
        let labels = Labels::new(given.labels)
            .map_err(|fault| Refusal::from(codes::schema("the verdict", "/labels", fault.to_string())))?;
        let row = self.loom.receipt(given.receipt.clone()).await.map_err(refused)?;
        if let Some(expected) = &given.expected {
            self.check_expected(&row, expected).await?;
        }
        let now = self.clock.now().wall;
        let verdict = Verdict {
            receipt_id: given.receipt,
            verdict: given.verdict,
            expected: given.expected,
            labels,
            note: given.note,
            by: given.by,
            at: now,
        };
        let mut bodies = Vec::new();
        if let Some(expected) = &verdict.expected {
            let unfit = |fault: json::WriteFault| codes::schema("the verdict", "/expected", fault.to_string());
            let text = json::canonical(expected).map_err(unfit)?;
            bodies.push(Body::new(text.into_bytes()).map_err(refused)?);
        }
        let row = VerdictRow {
            verdict_id: verdict.id(),
            receipt_id: verdict.receipt_id.clone(),
            verdict: verdict.verdict,
            expected_hash: verdict.expected_hash(),
            labels: verdict.labels.clone(),
            note: verdict.note.clone(),
            by: verdict.by.clone(),
            at: verdict.at,
        };
        let id = StepId::new(format!("verdict-{:032x}", self.ids.next_bits(now))).expect("a short name");
        let step = Step::outside_runs(id)
            .contract(ContractRow::Improve(Box::new(ImproveRow::Verdict(Box::new(row)))))
            .bodies(bodies);
        match self.loom.append(step).await.map_err(refused)? {
            AppendOutcome::Committed(_) => Ok(verdict),
            AppendOutcome::Conflict(Conflict::Contract(fault)) => Err(fault.refusal()),
            // The step has no money, no lease and a unique id.
            AppendOutcome::Refused(_)
            | AppendOutcome::Wait
            | AppendOutcome::Conflict(_)
            | AppendOutcome::Fenced { .. } => Err(codes::crash().into()),
        }
    }

    async fn check_expected(&self, row: &ReceiptRow, expected: &Value) -> Result<(), Refusal> {
        let receipt = row.receipt().map_err(|fault| altered_refusal(&fault))?;
        let Some(signature) = &receipt.signature_id else {
            let schema = answer_schema(&self.loom, &receipt).await?;
            return ExampleSchemas::of_answer(schema.as_ref())?.check_expected(&Value::Null, expected);
        };
        let catalog = Catalog::new(self.loom.clone(), Arc::clone(&self.clock), Arc::clone(&self.ids));
        let schemas = ExampleSchemas::of_signature(&catalog.signature(signature).await?);
        let input = match receipt.params_hash {
            Some(hash) => stored_value(&self.loom, hash).await?,
            None => None,
        };
        schemas.check_expected(&input.unwrap_or_default(), expected)
    }
}

/// Returns the answer schema of the cantrip that a cast was made with, as the loom has it.
async fn answer_schema(loom: &AnyLoom, receipt: &Receipt) -> Result<Option<Value>, Refusal> {
    let (Some(thread), Some(of)) = (receipt.thread_id, receipt.loom_id) else { return Ok(None) };
    let entity = match loom.entity(thread).await {
        Ok(entity) => entity,
        // The records of the cast were removed.
        Err(Error::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(refused(error)),
    };
    let roots = loom.roots(of).await.map_err(refused)?;
    let root = roots.into_iter().find(|root| root.cantrip_id == entity.entity.cantrip_id);
    Ok(root.and_then(|root| root.cantrip.circle.get("answer_schema").filter(|schema| !schema.is_null()).cloned()))
}
