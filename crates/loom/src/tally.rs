//! What does the receipt of a cast report?
//!
//! Every number of a receipt comes from the records of the run. So the receipt is the same whether the run was
//! finished by one worker or was taken over in the middle, and anyone with the records can check it.

use std::collections::HashMap;

use cantrip_canon::{CastId, EntityId, Hash, LoomId, RunId, Timestamp, stable_hash_of};
use cantrip_contract::{
    BudgetPart, ContractRow, Kind as ReceiptKind, ModelPart, PolicyPart, Receipt, ReceiptDraft, Status, TimingPart,
};
use cantrip_reply::codes;
use cantrip_spend::{PolicyOutcome, ReservationId};

use crate::{CallWork, Caller, End, Ending, Event, IntentRecord, RecordValue, TruncationReason};

/// The counts of one cast so far.
#[derive(Debug, Clone)]
pub struct Tally {
    pub entity: EntityId,
    /// None if the cast continues under the intent of a cast of another run.
    pub intent_hash: Option<Hash>,
    pub began_at: Timestamp,
    /// The number of requests that were sent, including failed ones.
    pub model_calls: u64,
    /// The number of children that the cast spawned.
    pub sub_calls: u64,
    /// The reservations for its requests and calls, in order.
    pub reservations: Vec<ReservationId>,
    /// The policy outcome of each of its settled gate calls, in order.
    decisions: Vec<Option<PolicyOutcome>>,
    pub end: Option<End>,
}

impl Tally {
    /// Returns the hash over the policy outcomes of its gate calls.
    pub fn decisions_hash(&self) -> Hash {
        stable_hash_of(&self.decisions).expect("codes and hashes")
    }
}

/// The counts of the casts of a run so far.
#[derive(Debug, Clone, Default)]
pub struct Tallies {
    casts: HashMap<CastId, Tally>,
    /// The cast to which each turn or fold belongs.
    callers: HashMap<Caller, CastId>,
    order: Vec<CastId>,
}

/// Returns the hash of a value that a record holds.
pub fn record_value_hash<T: serde::Serialize>(held: &RecordValue<T>) -> Option<Hash> {
    match held {
        RecordValue::Inline { inline } => stable_hash_of(inline).ok(),
        RecordValue::Body(body) => Some(body.hash),
    }
}

impl Tallies {
    pub fn for_cast(&self, cast: CastId) -> Option<&Tally> {
        self.casts.get(&cast)
    }

    /// Lists the casts in the order in which they began.
    pub fn all(&self) -> impl Iterator<Item = (CastId, &Tally)> {
        self.order.iter().filter_map(|cast| Some((*cast, self.casts.get(cast)?)))
    }

    /// Returns the counts of these entities only.
    #[must_use]
    pub fn for_entities(&self, keeps: impl Fn(EntityId) -> bool) -> Self {
        let casts: HashMap<CastId, Tally> = self
            .casts
            .iter()
            .filter(|(_, tally)| keeps(tally.entity))
            .map(|(cast, tally)| (*cast, tally.clone()))
            .collect();
        let order = self.order.iter().copied().filter(|cast| casts.contains_key(cast)).collect();
        Self { casts, callers: self.callers.clone(), order }
    }

    /// Returns the entity that a request or call belongs to.
    pub fn calling_entity(&self, caller: Caller) -> Option<EntityId> {
        self.casts.get(self.callers.get(&caller)?).map(|tally| tally.entity)
    }

    /// Returns the entity that a record is about, if its cast is known.
    pub fn entity_of_event(&self, event: &Event) -> Option<EntityId> {
        let of_cast = |cast: &CastId| self.casts.get(cast).map(|tally| tally.entity);
        match event {
            Event::Entity(made) => Some(made.entity_id),
            Event::Cast(cast) => Some(cast.entity_id),
            Event::Attempt(attempt) => of_cast(&attempt.cast_id),
            Event::Opened(opened) => of_cast(&opened.cast_id),
            Event::Started(started) => self.calling_entity(started.call_id.caller()),
            Event::Settled(settled) => self.calling_entity(settled.call_id.caller()),
            Event::End(end) => of_cast(&end.cast_id),
            Event::Other { payload, .. } => {
                let cast = payload.get("cast_id").and_then(serde_json::Value::as_str)?;
                of_cast(&cast.parse().ok()?)
            }
            Event::ApprovalRequested(asked) => of_cast(&asked.cast_id),
            Event::PolicyDecision(decided) => of_cast(&decided.cast_id?),
            Event::PredictOpened(opened) => of_cast(&opened.cast_id?),
            Event::Root(_)
            | Event::Turn(_)
            | Event::Fold(_)
            | Event::Parked(_)
            | Event::Failed(_)
            | Event::Reward(_)
            | Event::ApprovalDecided(_)
            | Event::SpendReserved(_)
            | Event::SpendSettled(_)
            | Event::ReconcileRequired(_)
            | Event::SpendOverage(_)
            | Event::PredictClosed(_)
            | Event::JobOpened(_)
            | Event::JobContinued(_)
            | Event::JobAsked(_)
            | Event::JobProposed(_)
            | Event::JobScored(_)
            | Event::JobAccepted(_)
            | Event::JobProgress(_)
            | Event::JobParked(_)
            | Event::JobClosed(_) => None,
        }
    }

    fn caller(&mut self, caller: Caller) -> Option<&mut Tally> {
        self.casts.get_mut(self.callers.get(&caller)?)
    }

    /// Counts one more record of the run.
    pub fn record_event(&mut self, at: Timestamp, event: &Event) {
        if let Event::Cast(cast) = event {
            let intent_hash = match &cast.intent {
                IntentRecord::New(intent) => record_value_hash(intent),
                IntentRecord::Of(earlier) => self.casts.get(earlier).and_then(|tally| tally.intent_hash),
            };
            let tally = Tally {
                entity: cast.entity_id,
                intent_hash,
                began_at: at,
                model_calls: 0,
                sub_calls: 0,
                reservations: Vec::new(),
                decisions: Vec::new(),
                end: None,
            };
            if self.casts.insert(cast.cast_id, tally).is_none() {
                self.order.push(cast.cast_id);
            }
        } else if let Event::Attempt(attempt) = event {
            self.callers.insert(attempt.call_id.caller(), attempt.cast_id);
            if let Some(tally) = self.casts.get_mut(&attempt.cast_id) {
                tally.model_calls += 1;
                tally.reservations.extend(attempt.reservation_id.clone());
            }
        } else if let Event::Opened(opened) = event {
            self.callers.insert(Caller::Turn(opened.turn_id), opened.cast_id);
        } else if let Event::Started(started) = event {
            let children = match &started.work {
                CallWork::Delegation { children } => children.len() as u64,
                CallWork::Gate | CallWork::Verifier => 0,
            };
            if let Some(tally) = self.caller(started.call_id.caller()) {
                tally.sub_calls += children;
                tally.reservations.extend(started.reservation_id.clone());
            }
        } else if let Event::Settled(settled) = event {
            // Number 0 is the request itself.
            if settled.call_id.number() > 0
                && let Some(tally) = self.caller(settled.call_id.caller())
            {
                tally.decisions.push(settled.decision.clone());
            }
        } else if let Event::End(end) = event
            && let Some(tally) = self.casts.get_mut(&end.cast_id)
        {
            tally.end = Some(end.clone());
        }
    }
}

/// The place of a receipt, and the facts that only its writer knows.
#[derive(Debug, Clone)]
pub struct ReceiptContext {
    pub run: RunId,
    pub loom: LoomId,
    pub owner: String,
    pub model: ModelPart,
    /// The policy outcome, if it is not known from a reservation.
    pub policy: PolicyPart,
    pub at: Timestamp,
    pub latency_ms: u64,
    pub waited_ms: u64,
}

/// Returns the status of a cast for its receipt, and the code of its reply.
pub fn receipt_status(end: &End) -> (Status, Option<String>) {
    match &end.ending {
        Ending::Terminated { .. } => (Status::Succeeded, None),
        Ending::Truncated { reason, error, .. } => {
            let (status, code) = match reason {
                TruncationReason::Cancelled | TruncationReason::ParentTerminated => {
                    (Status::Cancelled, codes::ENDED_FROM_OUTSIDE.any())
                }
                TruncationReason::PolicyDenied => (Status::Failed, codes::NOT_AUTHORIZED.any()),
                TruncationReason::MaxTurns
                | TruncationReason::Timeout
                | TruncationReason::MaxTokens
                | TruncationReason::MaxCost
                | TruncationReason::LoopDetected
                | TruncationReason::CrystalError => (Status::Failed, codes::WARD_REACHED.any()),
            };
            let code = error.as_ref().map_or_else(|| code.as_str().to_owned(), |error| error.mark.code.clone());
            (status, Some(code))
        }
    }
}

/// Returns the receipt of a cast that is over, as a row of the step that ends it; none while the cast is running.
pub fn cast_receipt(tally: &Tally, place: ReceiptContext) -> Option<ContractRow> {
    let end = tally.end.as_ref()?;
    let (status, error_code) = receipt_status(end);
    let output_hash = match &end.ending {
        Ending::Terminated { result, .. } => record_value_hash(result),
        Ending::Truncated { .. } => None,
    };
    let timing = TimingPart {
        started_at: tally.began_at,
        completed_at: place.at,
        latency_ms: place.latency_ms,
        waited_ms: place.waited_ms,
    };
    let receipt = Receipt {
        loom_id: Some(place.loom),
        thread_id: Some(tally.entity),
        last_turn_id: end.leaf,
        error_code,
        params_hash: tally.intent_hash,
        output_hash,
        model: place.model,
        policy: place.policy,
        decisions_hash: tally.decisions_hash(),
        budget: BudgetPart {
            unpriced: end.uncosted > 0,
            input_tokens: end.usage.prompt_tokens,
            cached_tokens: end.usage.cached_tokens,
            output_tokens: end.usage.completion_tokens,
            model_calls: tally.model_calls,
            iterations: end.utterances,
            sub_calls: tally.sub_calls,
            ..BudgetPart::default()
        },
        ..Receipt::new(ReceiptKind::Cast, place.run, status, timing)
    };
    let reservations = tally.reservations.iter().map(ToString::to_string).collect();
    Some(ContractRow::Receipt(Box::new(ReceiptDraft::new(receipt, place.owner, reservations))))
}
