//! Examples out of what was recorded: receipts with their bodies and verdicts, or the casts of a spell.
//!
//! Only what was served counts: a job never feeds on the trials of another job. The expected output is the correction
//! of the latest verdict; without one, the output itself if that verdict is good, or if there is no verdict and the
//! latest reward is high enough. Otherwise it is unknown: the example still has its input.

use std::collections::HashSet;

use cantrip::canon::limits::JSON_INTEGER_MAX;
use cantrip::canon::{Hash, Redactor, Timestamp, bytes_hash, json};
use cantrip::loom::{AnyLoom, Contracts, Error, Improvements, Journal, Loom, PageRequest, ReceiptFilter};
use cantrip::reply::{Refusal, codes};
use cantrip::store_refusal;
use cantrip_contract::limits::LABELS_MAX;
use cantrip_contract::{
    CompiledId, ExampleDraft, ExampleId, ExampleSource, Kind, Labels, Purpose, Receipt, ReceiptRow, SkipReason,
    SplitSeed, Status, Subject, VerdictRow, VerdictWord,
};
use serde::Serialize;
use serde_json::Value;

use super::read::value_faults;
use super::redaction::redact_counted;
use super::{ExampleSchemas, ReadExamples, from_casts, from_receipts};
use crate::catalog::altered_refusal;
use crate::limits::{DATASET_PAGE, LABEL_MIN_REWARD_MICRO};

/// The label of an output that a person called bad.
const BAD: &str = "bad";

/// The decision of a policy that let a call pass.
const ALLOWED: &str = "allowed";

/// Selects receipts for a dataset. It is stored with the dataset.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct GatherFilter {
    /// Only receipts completed at or after this time.
    pub since: Option<Timestamp>,
    /// Only receipts completed before this time.
    pub until: Option<Timestamp>,
    pub artifact: Option<CompiledId>,
    pub owner: Option<String>,
    /// Only receipts whose latest reward is at least this, in millionths.
    pub min_reward: Option<i64>,
    /// Only receipts that give an expected output.
    pub only_labelled: bool,
    /// The maximum number of examples; those with the lowest split hashes are taken.
    pub max: Option<usize>,
}

/// The input and the output of a receipt, and the source of its example.
#[derive(Debug)]
pub(super) struct RecordedCall {
    pub(super) input: Value,
    pub(super) output: Option<Value>,
    pub(super) source: ExampleSource,
}

/// The reason why a receipt gives no example. None if it is of another subject and is not counted.
pub(super) type LeftOut = Option<SkipReason>;

/// Gathers the examples of a subject from the receipts of a store.
pub async fn gather_examples(
    loom: &AnyLoom,
    schemas: &ExampleSchemas,
    filter: &GatherFilter,
    seed: &SplitSeed,
    redactor: Option<&Redactor>,
) -> Result<ReadExamples, Refusal> {
    let mut gathering = Gathering { loom, schemas, filter, redactor, read: ReadExamples::default() };
    let signature = schemas.subject().signature().cloned();
    let wanted = ReceiptFilter { signature, artifact: filter.artifact.clone(), ..ReceiptFilter::default() };
    let mut next = Some(PageRequest { after: None, most: DATASET_PAGE });
    while let Some(page) = next {
        let found = loom.receipts(wanted.clone(), page).await.map_err(|error| store_refusal(&error))?;
        for row in found.items {
            match gathering.draft(&row).await? {
                Ok(draft) => gathering.read.drafts.push(draft),
                Err(Some(reason)) => gathering.read.skip(reason),
                Err(None) => {}
            }
        }
        next = page.following(found.next);
    }
    let mut read = latest_of_equal(gathering.read, schemas.subject());
    if let Some(most) = filter.max.filter(|most| read.drafts.len() > *most) {
        read.drafts.sort_by_cached_key(|draft| split_hash(draft, seed));
        for _ in read.drafts.drain(most..).collect::<Vec<_>>() {
            read.skip(SkipReason::Filter);
        }
    }
    Ok(read)
}

/// Keeps the latest of several receipts that give the same input and the same expected output. Their labels and rewards
/// may differ, and the same receipts must give the same examples every time.
fn latest_of_equal(read: ReadExamples, subject: &Subject) -> ReadExamples {
    let ReadExamples { drafts, skipped, redacted } = read;
    let mut kept = ReadExamples { drafts: Vec::with_capacity(drafts.len()), skipped, redacted };
    let mut seen = HashSet::new();
    for draft in drafts.into_iter().rev() {
        if seen.insert(ExampleId::of(subject, &draft.input, draft.expected.as_ref())) {
            kept.drafts.push(draft);
        } else {
            kept.skip(SkipReason::Duplicate);
        }
    }
    kept.drafts.reverse();
    kept
}

/// Returns the hash that the split of an example is drawn from.
fn split_hash(draft: &ExampleDraft, seed: &SplitSeed) -> Hash {
    let input = json::canonical(&draft.input).unwrap_or_default();
    bytes_hash(format!("{seed}|{}", bytes_hash(input.as_bytes())).as_bytes())
}

struct Gathering<'a> {
    loom: &'a AnyLoom,
    schemas: &'a ExampleSchemas,
    filter: &'a GatherFilter,
    redactor: Option<&'a Redactor>,
    read: ReadExamples,
}

impl Gathering<'_> {
    async fn draft(&mut self, row: &ReceiptRow) -> Result<Result<ExampleDraft, LeftOut>, Refusal> {
        let receipt = row.receipt().map_err(|fault| altered_refusal(&fault))?;
        let recorded = match self.schemas.subject().spell() {
            None if receipt.receipt_kind != Kind::Predict => return Ok(Err(None)),
            Some(spell) if !from_casts::is_of_spell(&receipt, spell) => return Ok(Err(None)),
            None | Some(_) => self.recorded(row, &receipt).await?,
        };
        let (call, verdict, reward) = match recorded {
            Ok(recorded) => recorded,
            Err(left_out) => return Ok(Err(left_out)),
        };
        let correction = match verdict.as_ref().and_then(|verdict| verdict.expected_hash) {
            Some(hash) => match stored_value(self.loom, hash).await? {
                Some(correction) => Some(correction),
                None => return Ok(Err(Some(SkipReason::NoBody))),
            },
            None => None,
        };
        let said = verdict.as_ref().map(|verdict| verdict.verdict);
        let rewarded = reward.is_some_and(|reward| reward >= LABEL_MIN_REWARD_MICRO);
        let mut labels: Vec<String> = verdict.map(|verdict| verdict.labels.into()).unwrap_or_default();
        let expected = match (correction, said) {
            (Some(correction), _) => Some(correction),
            (None, Some(VerdictWord::Good)) => call.output,
            (None, Some(VerdictWord::Bad)) => {
                labels.push(BAD.to_owned());
                None
            }
            (None, None) => call.output.filter(|_| rewarded),
        };
        // A call that failed is an example only if a person said what its output should have been.
        if receipt.status != Status::Succeeded && expected.is_none() {
            return Ok(Err(Some(SkipReason::Denied)));
        }
        if self.filter.only_labelled && expected.is_none() {
            return Ok(Err(Some(SkipReason::Filter)));
        }
        let (mut input, mut expected) = (call.input, expected);
        if let Some(fault) = value_faults(0, self.schemas, &input, expected.as_ref()).first() {
            return Ok(Err(Some(fault.reason)));
        }
        if let Some(redactor) = self.redactor {
            redact_counted(&mut input, redactor, &mut self.read.redacted);
            if let Some(expected) = &mut expected {
                redact_counted(expected, redactor, &mut self.read.redacted);
            }
            // A replaced text may break the schema, for example an enumeration.
            if let Some(fault) = value_faults(0, self.schemas, &input, expected.as_ref()).first() {
                return Ok(Err(Some(fault.reason)));
            }
        }
        // The labels of a verdict were checked when it was given. `bad` may be one too many.
        let labels = Labels::new(labels.iter().rev().take(LABELS_MAX).cloned()).unwrap_or_default();
        Ok(Ok(ExampleDraft { expected, labels, reward, ..ExampleDraft::new(input, call.source) }))
    }

    /// Returns the call of a receipt that passes the filters, with its latest verdict and reward.
    async fn recorded(
        &self,
        row: &ReceiptRow,
        receipt: &Receipt,
    ) -> Result<Result<(RecordedCall, Option<VerdictRow>, Option<i64>), LeftOut>, Refusal> {
        let filtered = Ok(Err(Some(SkipReason::Filter)));
        let at = receipt.timing.completed_at;
        let purpose = receipt.purpose.unwrap_or(Purpose::Serve);
        if purpose != Purpose::Serve
            || self.filter.since.is_some_and(|since| at < since)
            || self.filter.until.is_some_and(|until| at >= until)
            || self.filter.owner.as_ref().is_some_and(|owner| *owner != row.owner)
            || self.filter.artifact.as_ref().is_some_and(|id| receipt.compiled_id.as_ref() != Some(id))
        {
            return filtered;
        }
        // A cast that ended before any policy was asked has no decision.
        let allowed = match receipt.policy.decision.as_deref() {
            Some(decision) => decision == ALLOWED,
            None => receipt.receipt_kind == Kind::Cast,
        };
        if !allowed || !matches!(receipt.status, Status::Succeeded | Status::Failed) {
            return Ok(Err(Some(SkipReason::Denied)));
        }
        let reward = latest_reward(self.loom, receipt).await?;
        if self.filter.min_reward.is_some_and(|least| reward.is_none_or(|reward| reward < least)) {
            return filtered;
        }
        let call = match receipt.receipt_kind {
            Kind::Predict => from_receipts::recorded_call(self.loom, row, receipt).await?,
            Kind::Cast => from_casts::recorded_call(self.loom, receipt).await?,
        };
        let call = match call {
            Ok(call) => call,
            Err(left_out) => return Ok(Err(left_out)),
        };
        let verdicts = self.loom.verdicts_of(row.receipt_id.clone()).await.map_err(|error| store_refusal(&error))?;
        Ok(Ok((call, verdicts.into_iter().next_back(), reward)))
    }
}

/// Returns the latest reward of a receipt's last turn, in millionths.
async fn latest_reward(loom: &AnyLoom, receipt: &Receipt) -> Result<Option<i64>, Refusal> {
    let Some(turn) = receipt.last_turn_id else { return Ok(None) };
    match loom.rewards(turn).await {
        Ok(rewards) => Ok(rewards.last().and_then(|view| rounded_micro(view.reward))),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(store_refusal(&error)),
    }
}

/// Returns a reward in millionths, rounded; none if it is too large to stay exact.
fn rounded_micro(reward: f64) -> Option<i64> {
    let micro = (reward * 1e6).round();
    (micro.abs() <= JSON_INTEGER_MAX as f64).then_some(micro as i64)
}

/// Returns a stored value by its hash; none if it is no longer there, or not what was written.
pub(super) async fn stored_value(loom: &AnyLoom, hash: Hash) -> Result<Option<Value>, Refusal> {
    let body = match loom.body(hash).await {
        Ok(body) => body,
        Err(Error::NotFound { .. } | Error::BodyAltered(_)) => return Ok(None),
        Err(error) => return Err(store_refusal(&error)),
    };
    match json::read_bytes(body.bytes()) {
        Ok(value) => Ok(Some(value)),
        Err(fault) => Err(codes::record_altered("body", hash.to_string(), fault.to_string()).into()),
    }
}
