//! The trace of a predict: a copy of its steps that is sanitised, hashed, and stored in its row or as a separate
//! object.
//!
//! The row is written with the receipt, with its payload. A payload that is too long for a row is then written to a
//! folder or a bucket, read back, and removed from the row only if its hash is right. A missing folder stops nothing:
//! the payload waits in its row.

use std::path::Path;
use std::time::Duration;

use cantrip::canon::json::{self, canonical};
use cantrip::canon::{PredictId, Redactor, RunId, Timestamp, bytes_hash};
use cantrip::loom::{AnyLoom, AppendOutcome, Contracts, Error, Event, Journal, PageRequest, RecordDraft, Step, StepId};
use cantrip::reply::{Refusal, codes};
use cantrip::store_refusal;
use cantrip_contract::{ContractRow, TraceMove, TraceRow, TraceState, TraceStorage};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::limits::{TRACE_INLINE_BYTES_MAX, TRACE_RETAIN_DAYS, TRACES_RETRIED_MAX};
use crate::objects::{self, Base, BaseFault};

/// The amount of detail in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceMode {
    /// No trace.
    Off,
    /// The turns, their usage and their faults, without content.
    #[default]
    Summary,
    /// With the messages to and from the model.
    Full,
}

/// The storage for traces that are too long for their row.
#[derive(Debug, Clone, Default)]
pub struct TraceArchive {
    base: Option<Base>,
    redactor: Redactor,
    retained: RetentionPeriod,
}

/// The time for which traces are kept.
#[derive(Debug, Clone, Copy)]
struct RetentionPeriod(Duration);

impl Default for RetentionPeriod {
    fn default() -> Self {
        Self(Duration::from_secs(TRACE_RETAIN_DAYS * 24 * 60 * 60))
    }
}

/// The rule by which a trace is deleted: the configuration setting that limits its retention.
const RETENTION: &str = "trace.retain_days";

impl TraceArchive {
    /// Creates an archive that keeps all traces in their rows.
    pub fn inline() -> Self {
        Self::default()
    }

    /// Creates an archive that writes long traces to this folder, which need not exist yet.
    pub fn in_folder(folder: impl AsRef<Path>) -> Self {
        Self { base: Some(Base::folder(folder.as_ref())), ..Self::default() }
    }

    /// Creates an archive that writes long traces to this folder, or to the bucket of this URL: `s3://` and `gs://`, if
    /// this build supports them.
    pub fn at(base: &str) -> Result<Self, BaseFault> {
        Ok(Self { base: Some(Base::parse(base)?), ..Self::default() })
    }

    /// Sets the time for which new traces are kept.
    #[must_use]
    pub fn with_retention(self, retained: Duration) -> Self {
        Self { retained: RetentionPeriod(retained), ..self }
    }

    /// Returns the row of a trace with this payload.
    pub(crate) fn row(&self, payload: Value, run: RunId, predict: PredictId, at: Timestamp) -> Option<TraceRow> {
        // Our own ids and hashes are typed, and redaction leaves them unchanged.
        let text = canonical(&self.redactor.redact_value(&payload)).ok()?;
        let trace_hash = bytes_hash(text.as_bytes());
        let base = self.base.as_ref().filter(|_| text.len() > TRACE_INLINE_BYTES_MAX);
        let (storage, state) = match base {
            Some(_) => (TraceStorage::External, TraceState::Pending),
            None => (TraceStorage::Inline, TraceState::Inline),
        };
        let uri = base.map(|base| base.address(&trace_hash.hex(64)));
        Some(TraceRow {
            trace_ref: format!("trace:{run}:{}", trace_hash.hex(20)),
            run_id: run,
            predict_id: predict,
            trace_hash,
            storage,
            state,
            uri,
            bytes: text.len() as u64,
            payload: Some(text),
            created_at: at,
            stored_at: None,
            expires_at: Some(at.after(self.retained.0)),
            deleted_at: None,
            deleted_by: None,
        })
    }

    /// Stores some pending traces, and deletes some expired ones, so that predicts maintain the archive without waiting
    /// for all of it.
    pub(crate) async fn maintain(&self, loom: &AnyLoom, now: Timestamp) -> Result<(), Refusal> {
        self.store_pending(loom, now).await?;
        self.expire(loom, now).await?;
        Ok(())
    }

    /// Deletes the object and the payload of the oldest expired traces, and returns their number. The name, the hash
    /// and the time of deletion remain: receipts still verify.
    pub async fn expire(&self, loom: &AnyLoom, now: Timestamp) -> Result<usize, Refusal> {
        let page = PageRequest { after: None, most: TRACES_RETRIED_MAX };
        let mut expired = 0;
        for state in [TraceState::Inline, TraceState::Pending, TraceState::Stored] {
            let found = loom.traces(state, page).await.map_err(|error| store_refusal(&error))?;
            let past = found.items.into_iter().filter(|row| row.expires_at.is_some_and(|at| at <= now));
            for row in past {
                // The object is deleted first: if the process ends here, the row still has its address, and the next
                // pass completes the deletion.
                if let Some(uri) = row.uri.as_ref().filter(|_| state == TraceState::Stored)
                    && let Err(error) = objects::delete(uri).await
                {
                    tracing::warn!(trace = %row.trace_ref, %error, "a trace past its time cannot be deleted");
                    continue;
                }
                let to = TraceMove::Expired { by: RETENTION.to_owned(), at: now };
                let told = json!({
                    "v": 1, "trace_ref": row.trace_ref, "trace_hash": row.trace_hash, "by": RETENTION,
                    "created_at": row.created_at, "expires_at": row.expires_at, "uri": row.uri, "bytes": row.bytes,
                });
                let step = move_step(&row, "expire", to).record(annotation(now, "trace.expired", told)?);
                expired += usize::from(record_move(loom, step).await?);
            }
        }
        Ok(expired)
    }

    /// Stores every pending trace that can be stored now, and returns their number.
    pub async fn store_pending(&self, loom: &AnyLoom, now: Timestamp) -> Result<usize, Refusal> {
        let page = PageRequest { after: None, most: TRACES_RETRIED_MAX };
        let waiting = loom.traces(TraceState::Pending, page).await.map_err(|error| store_refusal(&error))?;
        let mut stored = 0;
        for row in waiting.items {
            let (Some(uri), Some(payload)) = (&row.uri, &row.payload) else { continue };
            if let Err(error) = objects::create(uri, payload.clone().into_bytes()).await {
                tracing::warn!(trace = %row.trace_ref, %error, "the trace waits in its row");
                continue;
            }
            let found = objects::read(uri).await.map(|bytes| bytes_hash(&bytes));
            if found.ok() != Some(row.trace_hash) {
                tracing::error!(trace = %row.trace_ref, "what was written of the trace reads back otherwise");
                continue;
            }
            let summary = summary(payload);
            let told = json!({"v": 1, "trace_ref": row.trace_ref, "trace_hash": row.trace_hash});
            let draft = annotation(now, "trace.stored", told)?;
            let step = move_step(&row, "trace", TraceMove::Stored { summary, at: now }).record(draft);
            stored += usize::from(record_move(loom, step).await?);
        }
        Ok(stored)
    }
}

/// Returns a record about a trace, which is appended to the records of its run.
fn annotation(at: Timestamp, kind: &str, told: Value) -> Result<RecordDraft, Refusal> {
    let payload = told.as_object().cloned().unwrap_or_default();
    let draft = RecordDraft::new(at, Event::Other { kind: kind.to_owned(), payload });
    draft.map_err(|error| store_refusal(&error))
}

/// Records a change of a trace. Returns false if another process was first.
async fn record_move(loom: &AnyLoom, step: Step) -> Result<bool, Refusal> {
    match loom.append(step).await.map_err(|error| store_refusal(&error))? {
        AppendOutcome::Committed(_) => Ok(true),
        AppendOutcome::Conflict(_) => Ok(false),
        AppendOutcome::Refused(_) | AppendOutcome::Wait | AppendOutcome::Fenced { .. } => Err(codes::crash().into()),
    }
}

/// Returns a step about a trace of a run that has ended.
fn move_step(row: &TraceRow, what: &str, to: TraceMove) -> Step {
    let id = StepId::new(format!("{what}-{}", row.trace_hash.hex(32))).expect("a short name");
    Step::annotation(id, row.run_id).contract(ContractRow::TraceMoved { trace_ref: row.trace_ref.clone(), to })
}

/// The kind of a summary.
const SUMMARY: &str = "trace.summary";

/// Returns true if the payload is only the summary of a trace.
pub(crate) fn is_summary(payload: &str) -> bool {
    json::read(payload).is_ok_and(|payload| payload["kind"] == SUMMARY)
}

/// Returns the summary that stays in the row of a trace that is stored as an object.
fn summary(payload: &str) -> String {
    let all = json::read(payload).unwrap_or_default();
    let kept = json!({
        "v": 1, "kind": SUMMARY, "predict_id": all["predict_id"], "signature_id": all["signature_id"],
        "status": all["status"], "steps": all["steps"].as_array().map_or(0, Vec::len),
    });
    canonical(&kept).unwrap_or_else(|_| "{}".to_owned())
}

/// Returns the row of a trace.
pub async fn trace_row(loom: &AnyLoom, trace_ref: &str) -> Result<TraceRow, Refusal> {
    match loom.trace(trace_ref.to_owned()).await {
        Ok(row) => Ok(row),
        Err(Error::NotFound { .. }) => Err(codes::not_found("trace", trace_ref).into()),
        Err(error) => Err(store_refusal(&error)),
    }
}

/// Reads the payload of a trace from its row or from the object store, and checks its hash. An expired trace, a missing
/// object and an altered payload are three different refusals.
pub async fn trace_payload(row: &TraceRow) -> Result<Value, Refusal> {
    let name = row.trace_ref.as_str();
    let altered = |field: &str| Refusal::from(codes::record_altered("trace", name, field));
    let bytes = match row.state {
        TraceState::Expired => return Err(expired_refusal(row)),
        TraceState::Inline | TraceState::Pending => row.payload.clone().unwrap_or_default().into_bytes(),
        TraceState::Stored => {
            let uri = row.uri.as_deref().unwrap_or_default();
            match objects::read(uri).await {
                Ok(bytes) => bytes,
                Err(error) if objects::is_missing(&error) => {
                    let data = json!({"reason": "object_missing", "uri": uri, "trace_hash": row.trace_hash});
                    return Err(codes::record_altered("trace", name, format!("the object at {uri}")).data(data).into());
                }
                Err(error) => return Err(codes::unreachable(uri, error.to_string()).into()),
            }
        }
    };
    if bytes_hash(&bytes) != row.trace_hash {
        let data = json!({"reason": "altered", "uri": row.uri, "trace_hash": row.trace_hash});
        return Err(codes::record_altered("trace", name, "trace_hash").data(data).into());
    }
    let text = String::from_utf8(bytes).map_err(|_| altered("payload"))?;
    json::read(&text).map_err(|_| altered("payload"))
}

/// Returns the refusal to read a trace whose retention has passed.
fn expired_refusal(row: &TraceRow) -> Refusal {
    let kept_millis = row.expires_at.map(|until| until.unix_millis() - row.created_at.unix_millis());
    let data = json!({
        "reason": "trace_expired", "trace_hash": row.trace_hash, "run_id": row.run_id, "predict_id": row.predict_id,
        "created_at": row.created_at, "expired_at": row.expires_at, "deleted_at": row.deleted_at,
        "deleted_by": row.deleted_by, "retain_days": kept_millis.map(|millis| millis / (24 * 60 * 60 * 1_000)),
    });
    let by = row.deleted_by.as_deref().unwrap_or(RETENTION);
    let at = row.deleted_at.map_or_else(|| "an unknown time".to_owned(), |at| at.to_string());
    let state = format!("expired: it was deleted at {at} by {by}");
    codes::wrong_state("trace", row.trace_ref.as_str(), state, "reading", "one that is kept").data(data).into()
}

/// Returns the payload of a trace, wherever it is stored, if it still matches its hash.
pub async fn trace(loom: &AnyLoom, trace_ref: &str) -> Result<Value, Refusal> {
    trace_payload(&trace_row(loom, trace_ref).await?).await
}
