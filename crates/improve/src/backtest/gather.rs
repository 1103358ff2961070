//! The recorded runs that a backtest casts anew.
//!
//! Only casts that people or services asked for count: a backtest never feeds on the trials of a job. A run is taken if
//! its intent alone says what was asked (the first cast of an entity that a user cast), and if it ended by itself.

use std::collections::BTreeMap;

use cantrip::canon::Timestamp;
use cantrip::canon::json::canonical;
use cantrip::loom::{
    AnyLoom, Content, Contracts, Ending, Error, Improvements, Loom, Origin, PageRequest, Part, ReceiptFilter,
    RecordValue, RunKind, TruncationReason,
};
use cantrip::loom_id_for;
use cantrip::reply::{Refusal, codes};
use cantrip_contract::limits::EXAMPLE_BYTES_MAX;
use cantrip_contract::{
    Example, ExampleId, ExampleSource, Kind, Labels, Purpose, Receipt, ReceiptRow, SourceKind, Split, Subject,
    VerdictWord, Weight,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::eval::read_body;
use crate::limits::{BACKTEST_RUNS_MAX, EVAL_PAGE};
use cantrip_ds::refuse_store_error;

/// Selects the recorded runs of a spell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordFilter {
    /// Only runs that ended at or after this time.
    pub since: Option<Timestamp>,
    /// Only runs that ended before this time.
    pub until: Option<Timestamp>,
    pub owner: Option<String>,
    /// The maximum number of runs; the newest are taken.
    pub max: Option<usize>,
}

/// The reason why a recorded run is not cast anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkippedRun {
    /// It did not end by itself: it was cancelled, it ran out of time, tokens or money, or its crystal failed.
    Interrupted,
    /// It has not ended, or it took no turn.
    Unfinished,
    /// It answers a conversation, or what was said above it, and not its intent alone.
    Conversation,
    /// Its intent shows an image.
    Image,
    /// Its intent, its context or its answer is too large for an example.
    TooLarge,
    /// Its records were removed.
    NoRecord,
}

impl SkippedRun {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Interrupted => "interrupted",
            Self::Unfinished => "unfinished",
            Self::Conversation => "conversation",
            Self::Image => "image",
            Self::TooLarge => "too_large",
            Self::NoRecord => "no_record",
        }
    }
}

/// The runs that were found.
#[derive(Debug, Clone, Default)]
pub(super) struct Gathered {
    /// One example for each run. Its id is that of the run.
    pub examples: Vec<Example>,
    /// The ids of the cantrips that the runs were cast from, as text.
    pub cantrips: BTreeMap<ExampleId, String>,
    pub skipped: BTreeMap<SkippedRun, u64>,
}

/// Finds the runs of a spell that can be cast anew.
pub(super) async fn gather_runs(loom: &AnyLoom, subject: &Subject, filter: &RecordFilter) -> Result<Gathered, Refusal> {
    let spell = subject.spell().unwrap_or_default();
    let most = filter.max.unwrap_or(BACKTEST_RUNS_MAX);
    if most > BACKTEST_RUNS_MAX {
        return Err(codes::limit("the number of recorded runs", most, BACKTEST_RUNS_MAX).into());
    }
    let wanted = ReceiptFilter { latest_first: true, ..ReceiptFilter::default() };
    let mut gathered = Gathered::default();
    let mut next = Some(PageRequest { after: None, most: EVAL_PAGE });
    while let Some(page) = next {
        let found = loom.receipts(wanted.clone(), page).await.map_err(refuse_store_error)?;
        for row in found.items {
            let altered = |field: &str| codes::record_altered("receipt", row.receipt_id.to_string(), field);
            let receipt = row.receipt().map_err(|fault| Refusal::from(altered(fault.field)))?;
            if !is_wanted(&row, &receipt, spell, filter) {
                continue;
            }
            match recorded_run(loom, &row, &receipt).await? {
                Found::Run { example, cantrip } if gathered.examples.len() < most => {
                    gathered.cantrips.insert(example.id.clone(), cantrip);
                    gathered.examples.push(*example);
                }
                Found::Run { .. } if filter.max.is_none() => {
                    let hint = "take the newest with --max, or a shorter time with --since";
                    let many = codes::limit("the number of recorded runs", most + 1, BACKTEST_RUNS_MAX);
                    return Err(many.data(json!({ "hint": hint })).into());
                }
                Found::Run { .. } => return Ok(gathered),
                Found::Skipped(reason) => *gathered.skipped.entry(reason).or_default() += 1,
                Found::OfJob => {}
            }
        }
        next = page.following(found.next);
    }
    Ok(gathered)
}

fn is_wanted(row: &ReceiptRow, receipt: &Receipt, spell: &str, filter: &RecordFilter) -> bool {
    let at = receipt.timing.completed_at;
    receipt.receipt_kind == Kind::Cast
        && receipt.loom_id == Some(loom_id_for(spell))
        && receipt.purpose.unwrap_or(Purpose::Serve) == Purpose::Serve
        && filter.since.is_none_or(|since| at >= since)
        && filter.until.is_none_or(|until| at < until)
        && filter.owner.as_ref().is_none_or(|owner| *owner == row.owner)
}

/// The thing behind the receipt of a cast.
enum Found {
    Run {
        example: Box<Example>,
        cantrip: String,
    },
    Skipped(SkippedRun),
    /// A trial of a job.
    OfJob,
}

async fn recorded_run(loom: &AnyLoom, row: &ReceiptRow, receipt: &Receipt) -> Result<Found, Refusal> {
    let gone = Ok(Found::Skipped(SkippedRun::NoRecord));
    let Some(thread) = receipt.thread_id else { return Ok(Found::Skipped(SkippedRun::Unfinished)) };
    let Some(run) = if_found(loom.run(receipt.run_id).await)? else { return gone };
    if let Some(root) = run.root_run_id
        && if_found(loom.run(root).await)?.is_none_or(|root| root.kind == RunKind::Job)
    {
        return Ok(Found::OfJob);
    }
    let Some(entity) = if_found(loom.entity(thread).await)? else { return gone };
    let Some(casts) = if_found(loom.casts(thread).await)? else { return gone };
    let Some(first) = casts.into_iter().next() else { return gone };
    if entity.entity.origin != Origin::Root || first.run_id != receipt.run_id {
        return Ok(Found::Skipped(SkippedRun::Conversation));
    }
    let Some(outcome) = first.outcome.filter(|outcome| outcome.leaf.is_some()) else {
        return Ok(Found::Skipped(SkippedRun::Unfinished));
    };
    let answer = match &outcome.ending {
        Ending::Terminated { result, .. } => Some(result.clone()),
        Ending::Truncated { reason, .. } if ended_by_itself(*reason) => None,
        Ending::Truncated { .. } => return Ok(Found::Skipped(SkippedRun::Interrupted)),
    };
    let Some(intent) = text_of(&first.intent) else { return Ok(Found::Skipped(SkippedRun::Image)) };
    let mut input = json!({ "intent": intent });
    match entity.entity.context {
        None => {}
        Some(RecordValue::Inline { inline }) => input["context"] = inline,
        Some(RecordValue::Body(reference)) => input["context"] = read_body(loom, reference.hash).await?,
    }
    let expected = expected_answer(loom, row, answer).await?;
    let size = |value: &Value| canonical(value).map_or(usize::MAX, |text| text.len());
    let bytes = size(&input).saturating_add(expected.as_ref().map_or(0, size));
    if bytes > EXAMPLE_BYTES_MAX {
        return Ok(Found::Skipped(SkippedRun::TooLarge));
    }
    let id: ExampleId = receipt.run_id.to_string().parse().map_err(|_| Refusal::from(codes::crash()))?;
    let example = Example {
        id,
        input,
        expected,
        labels: Labels::default(),
        weight: Weight::ONE,
        group: None,
        reward: None,
        // A record that is cast anew is a look at no test split.
        split: Split::Train,
        source: ExampleSource { kind: SourceKind::Thread, id: thread.to_string(), line: None },
    };
    Ok(Found::Run { example: Box::new(example), cantrip: entity.entity.cantrip_id.to_string() })
}

/// Returns true if the reason says something about the run and nothing about its surroundings.
const fn ended_by_itself(reason: TruncationReason) -> bool {
    match reason {
        TruncationReason::MaxTurns | TruncationReason::LoopDetected => true,
        // Answers that are repeated from the record use no tokens, so such a run would not end where it did.
        TruncationReason::MaxTokens
        | TruncationReason::MaxCost
        | TruncationReason::Timeout
        | TruncationReason::ParentTerminated
        | TruncationReason::Cancelled
        | TruncationReason::CrystalError
        | TruncationReason::PolicyDenied => false,
    }
}

/// Returns the answer that a metric compares with: the correction of the latest verdict, or else the recorded answer,
/// unless a person called it bad.
async fn expected_answer(loom: &AnyLoom, row: &ReceiptRow, answer: Option<Value>) -> Result<Option<Value>, Refusal> {
    let verdicts = loom.verdicts_of(row.receipt_id.clone()).await.map_err(refuse_store_error)?;
    let Some(verdict) = verdicts.last() else { return Ok(answer) };
    match (verdict.expected_hash, verdict.verdict) {
        (Some(hash), _) => Ok(Some(read_body(loom, hash).await?)),
        (None, VerdictWord::Good) => Ok(answer),
        (None, VerdictWord::Bad) => Ok(None),
    }
}

/// Returns the text of an intent; none if it shows an image, which an example cannot hold.
fn text_of(intent: &Content) -> Option<String> {
    match intent {
        Content::Text(text) => Some(text.clone()),
        Content::Parts(parts) => {
            let has_image = parts.iter().any(|part| matches!(part, Part::Image { .. }));
            (!has_image).then(|| intent.text())
        }
    }
}

/// Returns the item, or none if the records were removed.
fn if_found<T>(found: Result<T, Error>) -> Result<Option<T>, Refusal> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(refuse_store_error(error)),
    }
}
