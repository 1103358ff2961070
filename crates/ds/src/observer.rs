//! The rows that a predict writes besides its records: its row when it opens; its end, its trace and its receipt when
//! it closes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cantrip::canon::json::{canonical, to_value};
use cantrip::canon::{ApprovalId, Clock, Hash, Now, PredictId, RunId, Timestamp};
use cantrip::loom::{
    Body, Ending, Event, PredictCaller, PredictClosed, PredictOpened, RecordValue, RunKind, Tally, TruncationReason,
    Usage, receipt_status, record_value_hash,
};
use cantrip::reply::codes;
use cantrip::{CastEnd, CastEndKind, ExtraWrites, RunObserver, RunStart};
use cantrip_contract::{
    BudgetPart, CompiledId, ContractRow, Hashes, Kind, PolicyPart, PredictEnd, PredictRow, Purpose, Receipt,
    ReceiptDraft, SignatureId, Status, Strategy, TimingPart,
};
use serde_json::{Value, json};

use crate::settings::{PredictSettings, PredictStart};
use crate::trace::{TraceArchive, TraceMode};

/// Everything that is known about a predict before it opens.
pub(crate) struct PredictContext {
    pub predict: PredictId,
    pub signature: SignatureId,
    pub strategy: Strategy,
    pub artifact: CompiledId,
    pub hashes: Hashes,
    /// The canonical text of the input.
    pub input: Body,
    pub request_hash: Hash,
    pub key: Option<String>,
    pub purpose: Purpose,
    pub owner: String,
    pub asked: PredictSettings,
    pub began: PredictStart,
    /// The time at which this process began with it.
    pub started: Now,
    pub clock: Arc<dyn Clock>,
    pub traces: TraceArchive,
    /// The prompt, for a full trace.
    pub prompt: Value,
    /// The call of a cast that asked for it; none for a separate predict.
    pub caller: Option<PredictCaller>,
    /// The run that a new predict is below.
    pub under: Option<RunId>,
    pub observations: Mutex<Observations>,
}

/// Observations while the predict runs.
#[derive(Debug, Default)]
pub(crate) struct Observations {
    /// The steps of its turns, for its trace.
    steps: Vec<Value>,
    /// The usage and the utterances so far: all that a receipt can report about a predict without an end.
    usage: Usage,
    utterances: u64,
    /// The pending approvals with the time of their request, and below them the total wait for the decided ones.
    asked: HashMap<ApprovalId, Timestamp>,
    waited: Duration,
}

impl Observations {
    /// Counts the time that people take to decide.
    fn count_wait(&mut self, at: Timestamp, event: &Event) {
        if let Event::ApprovalRequested(asked) = event {
            self.asked.insert(asked.approval_id, at);
        } else if let Event::ApprovalDecided(decided) = event {
            let since = self.asked.remove(&decided.approval_id);
            let millis = since.map_or(0, |since| at.unix_millis() - since.unix_millis());
            self.waited += Duration::from_millis(u64::try_from(millis).unwrap_or(0));
        }
    }
}

/// Writes the rows of one predict.
#[derive(Clone)]
pub(crate) struct PredictObserver(pub Arc<PredictContext>);

impl PredictContext {
    pub(crate) fn row(&self, opens: &RunStart, key: Option<String>, end: Option<PredictEnd>) -> PredictRow {
        PredictRow {
            predict_id: self.predict,
            run_id: opens.run,
            owner: self.owner.clone(),
            signature_id: self.signature.clone(),
            compiled_id: self.artifact.clone(),
            params_hash: self.input.hash(),
            request_hash: self.request_hash,
            idempotency_key: key,
            purpose: self.purpose,
            thread_id: opens.entity,
            lease_epoch: opens.epoch,
            opened_at: opens.at,
            end,
        }
    }

    fn latency(&self) -> u64 {
        let passed = self.clock.now().monotonic.since(self.started.monotonic);
        u64::try_from(passed.as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns a receipt with only the facts that were known in advance.
    pub(crate) fn receipt(&self, opens: &RunStart, status: Status, error_code: Option<String>) -> Receipt {
        let timing = TimingPart {
            started_at: self.began.started_at,
            completed_at: opens.at,
            latency_ms: self.latency(),
            waited_ms: 0,
        };
        Receipt {
            predict_id: Some(self.predict),
            purpose: Some(self.purpose),
            loom_id: Some(opens.loom),
            thread_id: opens.entity,
            error_code,
            signature_id: Some(self.signature.clone()),
            strategy_id: Some(self.strategy),
            compiled_id: Some(self.artifact.clone()),
            catalog_version: Some(self.began.catalog_version),
            schema_hash: Some(self.hashes.schema_hash),
            prompt_hash: Some(self.hashes.prompt_hash),
            program_hash: Some(self.hashes.program_hash),
            params_hash: Some(self.input.hash()),
            policy: self.began.policy.clone(),
            ..Receipt::new(Kind::Predict, opens.run, status, timing)
        }
    }
}

/// Returns the code of a predict whose cast was truncated. The turns of `direct.v1` are one question and its repairs:
/// when they are used up, no output matched.
fn truncation_code(strategy: Strategy, reason: TruncationReason, told: Option<String>) -> Option<String> {
    match (strategy, reason) {
        (Strategy::Direct, TruncationReason::MaxTurns) => Some(codes::OUTPUT_SCHEMA.any().as_str().to_owned()),
        (Strategy::Direct | Strategy::RlmLite, _) => told,
    }
}

impl RunObserver for PredictObserver {
    fn kind(&self) -> RunKind {
        RunKind::Predict
    }

    fn on_start(&self, opens: &RunStart) -> ExtraWrites {
        let filing = &self.0;
        let row = filing.row(opens, filing.key.clone(), None);
        let opened = PredictOpened {
            predict_id: filing.predict,
            signature_id: filing.signature.clone(),
            compiled_id: filing.artifact.clone(),
            params_hash: filing.input.hash(),
            request_hash: filing.request_hash,
            purpose: filing.purpose,
            structured_mode: filing.asked.structured_mode.as_str().to_owned(),
            asked: Some(to_value(&filing.asked).unwrap_or_default()),
            began: Some(to_value(&filing.began).unwrap_or_default()),
            entity_id: opens.entity.filter(|_| filing.caller.is_some()),
            caller: filing.caller.clone(),
            cast_id: None,
        };
        ExtraWrites {
            records: vec![opened.into()],
            rows: vec![ContractRow::Predict(Box::new(row))],
            bodies: vec![filing.input.clone()],
        }
    }

    fn on_record(&self, at: Timestamp, event: &Event, bodies: &[Body]) {
        let filing = &self.0;
        let mut noted = filing.observations();
        if let Event::Opened(opened) = event {
            noted.usage = noted.usage.plus(&opened.usage);
            noted.utterances += 1;
        } else if let Event::Settled(settled) = event
            && let Some(usage) = &settled.usage
        {
            noted.usage = noted.usage.plus(usage);
        } else {
            noted.count_wait(at, event);
        }
        if filing.asked.trace == TraceMode::Off {
            return;
        }
        let full = filing.asked.trace == TraceMode::Full;
        let said = |held: &RecordValue<cantrip::loom::Utterance>| match held {
            RecordValue::Inline { inline } => to_value(inline).unwrap_or_default(),
            RecordValue::Body(body) => {
                let found = bodies.iter().find(|new| new.hash() == body.hash);
                found.and_then(|body| serde_json::from_slice(body.bytes()).ok()).unwrap_or_default()
            }
        };
        let note = if let Event::Opened(opened) = event {
            let mut note = json!({
                "kind": "answer", "turn_id": opened.turn_id, "at": at, "attempt": opened.attempt,
                "usage": opened.usage, "utterance_hash": record_value_hash(&opened.utterance),
            });
            if full {
                note["utterance"] = said(&opened.utterance);
            }
            note
        } else if let Event::Settled(settled) = event {
            json!({
                "kind": "call", "call_id": settled.call_id, "at": at, "code": settled.reply.code,
                "result_hash": record_value_hash(&settled.result),
            })
        } else if let Event::End(end) = event {
            json!({"kind": "end", "at": at, "turns": end.turns, "usage": end.usage})
        } else {
            return;
        };
        noted.steps.push(note);
    }

    fn on_end(&self, closes: &CastEnd<'_>) -> ExtraWrites {
        let filing = &self.0;
        let all: Vec<&Tally> = closes.tallies.all().map(|(_, tally)| tally).collect();
        let model_calls: u64 = all.iter().map(|tally| tally.model_calls).sum();
        let ReceiptOutcome { status, error_code, output_hash, bodies } = filing.outcome(closes.closing, model_calls);
        let opens =
            RunStart { run: closes.run, loom: closes.loom, entity: Some(closes.tally.entity), epoch: 0, at: closes.at };
        let mut receipt = filing.receipt(&opens, status, error_code.clone());
        receipt.timing.waited_ms = u64::try_from(filing.observations().waited.as_millis()).unwrap_or(u64::MAX);
        receipt.timing.latency_ms = receipt.timing.latency_ms.max(closes.latency_ms);
        receipt.last_turn_id = match closes.closing {
            CastEndKind::Ended(end) => end.leaf,
            CastEndKind::Failed(_) => None,
        };
        receipt.output_hash = output_hash;
        receipt.model = closes.model.clone();
        receipt.model.structured_mode = Some(filing.asked.structured_mode.as_str().to_owned());
        receipt.decisions_hash = closes.tally.decisions_hash();
        if let Some(refused) = &closes.refused {
            let chosen = filing.began.policy.clone();
            receipt.policy = PolicyPart {
                artifact_variant: chosen.artifact_variant,
                canary_percent: chosen.canary_percent,
                rollout_bucket: chosen.rollout_bucket,
                rollout_seed: chosen.rollout_seed,
                pointer_version: chosen.pointer_version,
                ..refused.clone()
            };
        }
        let ends = || all.iter().filter_map(|tally| tally.end.as_ref());
        let (usage, utterances) = match closes.closing {
            CastEndKind::Ended(end) => {
                let usage = ends().fold(Usage::default(), |sum, end| sum.plus(&end.usage));
                (usage, end.utterances)
            }
            CastEndKind::Failed(_) => {
                let noted = filing.observations();
                (noted.usage, noted.utterances)
            }
        };
        receipt.budget = BudgetPart {
            unpriced: ends().any(|end| end.uncosted > 0),
            input_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
            output_tokens: usage.completion_tokens,
            model_calls,
            iterations: utterances,
            sub_calls: closes.tally.sub_calls,
            repairs: match filing.strategy {
                Strategy::Direct => utterances.saturating_sub(1),
                Strategy::RlmLite => 0,
            },
            ..BudgetPart::default()
        };
        let mut rows = vec![ContractRow::PredictEnded {
            predict_id: filing.predict,
            end: PredictEnd { status, output_hash, at: closes.at },
        }];
        if let Some(row) = filing.trace_row(closes, status) {
            receipt.trace_ref = Some(row.trace_ref.clone());
            receipt.trace_hash = Some(row.trace_hash);
            receipt.trace_storage = to_value(&row.storage).ok().and_then(|word| word.as_str().map(str::to_owned));
            receipt.trace_artifact_uri.clone_from(&row.uri);
            rows.push(ContractRow::Trace(Box::new(row)));
        }
        let reservations = all.iter().flat_map(|tally| tally.reservations.iter().map(ToString::to_string)).collect();
        rows.push(ContractRow::Receipt(Box::new(ReceiptDraft::new(receipt, filing.owner.clone(), reservations))));
        let closed = PredictClosed { predict_id: filing.predict, status, error_code, output_hash };
        // Inside a cast the run continues, and this record would end it: the end of the child's cast takes its place.
        let records = match filing.caller {
            None => vec![closed.into()],
            Some(_) => Vec::new(),
        };
        ExtraWrites { records, rows, bodies }
    }
}

/// The outcome of a predict.
struct ReceiptOutcome {
    status: Status,
    error_code: Option<String>,
    output_hash: Option<Hash>,
    /// The output, if no record holds it.
    bodies: Vec<Body>,
}

impl PredictContext {
    fn observations(&self) -> MutexGuard<'_, Observations> {
        self.observations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outcome(&self, closing: CastEndKind<'_>, model_calls: u64) -> ReceiptOutcome {
        let end = match closing {
            CastEndKind::Ended(end) => end,
            CastEndKind::Failed(fault) => {
                let error_code = Some(fault.mark.code.clone());
                return ReceiptOutcome { status: Status::Failed, error_code, output_hash: None, bodies: Vec::new() };
            }
        };
        let (mut status, mut error_code) = receipt_status(end);
        let mut bodies = Vec::new();
        let output_hash = match &end.ending {
            Ending::Terminated { result, .. } => {
                if let RecordValue::Inline { inline } = result
                    && let Some(body) = canonical(inline).ok().and_then(|text| Body::new(text.into_bytes()).ok())
                {
                    bodies.push(body);
                }
                record_value_hash(result)
            }
            Ending::Truncated { reason, .. } => {
                // No model was asked: the predict was refused.
                let refused = matches!(reason, TruncationReason::MaxCost | TruncationReason::PolicyDenied);
                if refused && model_calls == 0 {
                    status = Status::Denied;
                }
                error_code = truncation_code(self.strategy, *reason, error_code);
                None
            }
        };
        ReceiptOutcome { status, error_code, output_hash, bodies }
    }

    fn trace_row(&self, closes: &CastEnd<'_>, status: Status) -> Option<cantrip_contract::TraceRow> {
        if self.asked.trace == TraceMode::Off {
            return None;
        }
        let steps = std::mem::take(&mut self.observations().steps);
        let mut payload = json!({
            "v": 1, "kind": "trace", "predict_id": self.predict, "signature_id": self.signature,
            "compiled_id": self.artifact, "strategy": self.strategy, "thread_id": closes.tally.entity, "status": status,
            "steps": steps,
        });
        if self.asked.trace == TraceMode::Full {
            payload["prompt"] = self.prompt.clone();
        }
        self.traces.row(payload, closes.run, self.predict, closes.at)
    }
}
