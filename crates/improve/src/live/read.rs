//! The calls of both sides, as their receipts, verdicts and rewards tell them.

use std::collections::HashMap;
use std::time::Duration;

use cantrip::canon::{Currency, RunId, Timestamp};
use cantrip::loom::{AnyLoom, Contracts, Error, Improvements, Loom, PageRequest, ReceiptFilter};
use cantrip::reply::{Refusal, codes};
use cantrip_contract::{Kind, Purpose, Receipt, ReceiptId, RolloutSide, Status, VerdictWord};
use cantrip_ds::refuse_store_error;

use super::LiveWindow;
use crate::limits::{EVAL_PAGE, LIVE_CALLS_MAX, LIVE_CLOCK_SLACK_MS};

/// The best score.
const ONE: i64 = 1_000_000;

/// One call that was served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveCall {
    pub side: RolloutSide,
    pub owner: String,
    pub root_run: RunId,
    pub receipt_id: ReceiptId,
    pub completed_at: Timestamp,
    /// True if the call gave no answer, for whatever reason but a refusal of its policy or a cancellation.
    pub has_failed: bool,
    /// The latest verdict, or else the latest reward, in millionths of its range.
    pub score_micro: Option<i64>,
    pub currency: Option<Currency>,
    /// The cost, in micro-units of the currency.
    pub captured: u64,
    pub latency_ms: u64,
}

/// The calls of both sides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveCalls {
    pub calls: Vec<LiveCall>,
    /// True if there are more calls than are read at once. The newest ones were read.
    pub is_cut: bool,
}

/// Reads the calls that both sides have served since the canary was set. Calls of jobs do not count, and neither do
/// calls whose callers named the artifact.
pub async fn live_calls(loom: &AnyLoom, window: &LiveWindow) -> Result<LiveCalls, Refusal> {
    let wanted =
        ReceiptFilter { run: None, signature: Some(window.signature_id.clone()), artifact: None, latest_first: true };
    let slack = Duration::from_millis(LIVE_CLOCK_SLACK_MS);
    let (mut found, mut roots) = (LiveCalls::default(), HashMap::new());
    let mut next = Some(PageRequest { after: None, most: EVAL_PAGE });
    while let Some(page) = next {
        let listed = loom.receipts(wanted.clone(), page).await.map_err(refuse_store_error)?;
        next = page.following(listed.next);
        let mut is_before = true;
        for row in listed.items {
            let receipt = row
                .receipt()
                .map_err(|fault| Refusal::from(codes::record_altered(fault.kind, fault.id.as_str(), fault.field)))?;
            let completed_at = receipt.timing.completed_at;
            if completed_at.after(slack) < window.since {
                continue;
            }
            is_before = false;
            let Some(side) = side_of(window, &receipt) else { continue };
            if found.calls.len() >= LIVE_CALLS_MAX {
                return Ok(LiveCalls { is_cut: true, ..found });
            }
            found.calls.push(LiveCall {
                side,
                owner: row.owner.clone(),
                root_run: root_run(loom, &mut roots, receipt.run_id).await?,
                receipt_id: row.receipt_id.clone(),
                completed_at,
                has_failed: receipt.status == Status::Failed,
                score_micro: score(loom, &row.receipt_id, &receipt).await?,
                currency: receipt.budget.currency,
                captured: receipt.budget.captured,
                latency_ms: receipt.timing.latency_ms,
            });
        }
        // Receipts are listed from the newest on. A single old one may have been imported; a page of them was written
        // before the canary was set.
        if is_before {
            break;
        }
    }
    Ok(found)
}

/// Returns the side that served a call; none if it says nothing about either.
fn side_of(window: &LiveWindow, receipt: &Receipt) -> Option<RolloutSide> {
    let is_served = receipt.receipt_kind == Kind::Predict && receipt.purpose == Some(Purpose::Serve);
    let is_since = receipt.policy.pointer_version.is_some_and(|version| version >= window.first_version);
    let is_tried = match receipt.status {
        Status::Succeeded | Status::Failed => true,
        Status::Denied | Status::Cancelled => false,
    };
    if !is_served || !is_since || !is_tried {
        return None;
    }
    let compiled_id = receipt.compiled_id.as_ref()?;
    match receipt.policy.artifact_variant.as_deref() {
        Some("canary") if *compiled_id == window.canary => Some(RolloutSide::Canary),
        Some("primary") if *compiled_id == window.primary => Some(RolloutSide::Primary),
        Some(_) | None => None,
    }
}

/// Returns the root of a run's tree. A run whose records were deleted stands for itself.
async fn root_run(loom: &AnyLoom, known: &mut HashMap<RunId, RunId>, run: RunId) -> Result<RunId, Refusal> {
    if let Some(root) = known.get(&run) {
        return Ok(*root);
    }
    let root = match loom.run(run).await {
        Ok(view) => view.root_run_id.unwrap_or(run),
        Err(Error::NotFound { .. }) => run,
        Err(error) => return Err(refuse_store_error(error)),
    };
    known.insert(run, root);
    Ok(root)
}

/// Returns the score of a call: its latest verdict, or else the latest reward of its last turn.
async fn score(loom: &AnyLoom, id: &ReceiptId, receipt: &Receipt) -> Result<Option<i64>, Refusal> {
    let verdicts = loom.verdicts_of(id.clone()).await.map_err(refuse_store_error)?;
    if let Some(verdict) = verdicts.last() {
        return Ok(Some(match verdict.verdict {
            VerdictWord::Good => ONE,
            VerdictWord::Bad => 0,
        }));
    }
    let Some(turn) = receipt.last_turn_id else { return Ok(None) };
    match loom.rewards(turn).await {
        Ok(rewards) => Ok(rewards.last().map(|view| reward_micro(view.reward))),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(refuse_store_error(error)),
    }
}

/// Returns a reward in millionths of the range of rewards, which is 0 to 1.
fn reward_micro(reward: f64) -> i64 {
    (reward.clamp(0.0, 1.0) * ONE as f64).round() as i64
}
