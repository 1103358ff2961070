//! A recorded run: its steps, the calls that its gates answered, the answers of its crystal, and what it used.

use cantrip::canon::json::{canonical, read_foreign};
use cantrip::canon::{EntityId, Money, RunId};
use cantrip::circle::gate::canonical_name;
use cantrip::loom::{
    AnyLoom, CantripId, Ending, Error, GateRecord, Loom, Outcome, ReplyMark, SettledCall, Settlement, Thread, Turn,
};
use cantrip::reply::{AnyCode, Refusal, codes};
use cantrip::spend::{PolicyOutcome, Ruling};
use serde_json::{Map, Value};

use super::steps::Step;
use cantrip_ds::refuse_store_error;

/// The gate that ends a cast.
const DONE: &str = "done";

/// The codes of calls that no gate has answered. Such a call is decided again in a backtest.
const NEVER_BY_A_GATE: [AnyCode; 16] = [
    codes::GATE_UNKNOWN.any(),
    codes::GATE_REMOVED.any(),
    codes::DONE_MALFORMED.any(),
    codes::TRIFECTA.any(),
    codes::CALLS_SPENT.any(),
    codes::CANNOT_GRANT.any(),
    codes::BUDGET_SPENT.any(),
    codes::PER_CALL.any(),
    codes::PER_DAY.any(),
    codes::EXPIRED.any(),
    codes::REVOKED.any(),
    codes::RECONCILE_FIRST.any(),
    codes::PRICE_UNKNOWN.any(),
    codes::POLICY_FAILED.any(),
    codes::WARD_REACHED.any(),
    codes::ENDED_FROM_OUTSIDE.any(),
];

/// The codes that a gate may answer with, and the checks before it too. They are the gate's if policy allowed the call.
const BY_EITHER: [AnyCode; 6] = [
    codes::UNPARSABLE.any(),
    codes::SCHEMA.any(),
    codes::WRITE_PROTECTED.any(),
    codes::APPROVAL_REFUSED.any(),
    codes::NO_DECISION.any(),
    codes::NOT_AUTHORIZED.any(),
];

/// One gate call of a run, with its reply.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedCall {
    /// The turn, counted from 1 by utterances.
    pub turn: u64,
    /// The canonical name of the gate.
    pub gate: String,
    pub args: Value,
    /// The canonical text of the arguments, by which calls are compared.
    pub key: String,
    /// The result; for a refusal the text that the entity read.
    pub result: Value,
    pub reply: ReplyMark,
    /// The structured data of a refusal.
    pub data: Map<String, Value>,
    /// True if policy allowed the call.
    pub was_allowed: bool,
}

impl RecordedCall {
    /// Returns the call of a turn; none if it has no reply.
    fn of(turn: u64, record: &GateRecord) -> Option<Self> {
        let settled: &SettledCall = match &record.settlement {
            Settlement::Settled(settled) => settled,
            Settlement::Delegated => return None,
        };
        Some(Self {
            turn,
            gate: canonical_name(&record.gate).to_owned(),
            args: record.args.clone(),
            key: arguments_key(&record.args),
            result: settled.result.clone(),
            reply: settled.reply.clone(),
            data: settled.data.clone(),
            was_allowed: is_allowed(settled.decision.as_ref()),
        })
    }

    /// Returns true if the gate itself answered the call.
    pub fn was_answered(&self) -> bool {
        let has_one_of = |known: &[AnyCode]| known.iter().any(|code| code.as_str() == self.reply.code);
        !has_one_of(&NEVER_BY_A_GATE) && (self.was_allowed || !has_one_of(&BY_EITHER))
    }

    /// Returns true if this is the `done` that ended the run.
    fn ends(&self) -> bool {
        self.gate == DONE && self.reply.is_success()
    }
}

/// Returns true if policy allowed a call.
pub(super) fn is_allowed(decision: Option<&PolicyOutcome>) -> bool {
    decision.is_some_and(|outcome| outcome.decision.decision == Ruling::Allowed)
}

/// Returns the text by which the arguments of calls are compared: as the circle reads them, in canonical form.
pub(super) fn arguments_key(args: &Value) -> String {
    let read = match args {
        Value::String(text) if text.trim().is_empty() => Value::Object(Map::new()),
        Value::String(text) => read_foreign(text).unwrap_or_else(|_| args.clone()),
        Value::Null => Value::Object(Map::new()),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => args.clone(),
    };
    canonical(&read).unwrap_or_else(|_| read.to_string())
}

/// A run that has ended, as its loom tells it.
#[derive(Debug, Clone)]
pub struct RecordedRun {
    pub run: RunId,
    pub entity: EntityId,
    /// The cantrip that was cast.
    pub cantrip_id: CantripId,
    pub outcome: Outcome,
    /// The thread of the cast, with its turns.
    pub thread: Thread,
    /// The settled calls in the order of the thread, but for the `done` that ended it.
    pub calls: Vec<RecordedCall>,
    /// The steps, the last of which is the end.
    pub steps: Vec<Step>,
}

impl RecordedRun {
    /// Loads the cast of a run. Returns none if its records are gone, or if it has not ended or took no turn.
    pub async fn load(loom: &AnyLoom, run: RunId) -> Result<Option<Self>, Refusal> {
        match Self::read(loom, run).await {
            Ok(found) => Ok(found),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(refuse_store_error(error)),
        }
    }

    async fn read(loom: &AnyLoom, run: RunId) -> Result<Option<Self>, Error> {
        let Some(entity) = loom.run(run).await?.entity_id else { return Ok(None) };
        let casts = loom.casts(entity).await?;
        let outcome = casts.into_iter().find(|cast| cast.run_id == run).and_then(|cast| cast.outcome);
        let Some((outcome, leaf)) = outcome.and_then(|outcome| outcome.leaf.map(|leaf| (outcome, leaf))) else {
            return Ok(None);
        };
        let mut thread = loom.thread(leaf).await?;
        thread.turns.retain(|turn| turn.cast_id == outcome.cast_id && turn.entity_id == entity);
        let cantrip_id = thread.entity.entity.cantrip_id;
        let (mut calls, mut number) = (Vec::new(), 0_u64);
        for turn in &thread.turns {
            number += u64::from(turn.utterance.is_some());
            calls.extend(turn.gate_calls.iter().filter_map(|call| RecordedCall::of(number, call)));
        }
        calls.retain(|call| !call.ends());
        let mut steps: Vec<Step> = calls
            .iter()
            .map(|call| Step::Call { turn: call.turn, gate: call.gate.clone(), args: call.args.clone() })
            .collect();
        steps.push(match &outcome.ending {
            Ending::Terminated { result, .. } => Step::Answered { turn: number, answer: result.clone() },
            Ending::Truncated { reason, .. } => Step::Truncated { turn: number, reason: reason.as_str().to_owned() },
        });
        Ok(Some(Self { run, entity, cantrip_id, outcome, thread, calls, steps }))
    }

    /// Returns the answer, if the run ended with one.
    pub fn answer(&self) -> Option<&Value> {
        self.outcome.ending.result()
    }

    /// Returns the turns that begin with an answer of the crystal, in order.
    pub fn utterances(&self) -> impl Iterator<Item = &Turn> {
        self.thread.turns.iter().filter(|turn| turn.utterance.is_some())
    }

    /// Returns the tokens of all answers.
    pub fn tokens(&self) -> u64 {
        self.outcome.usage.total_tokens()
    }

    pub fn cost(&self) -> Option<Money> {
        self.outcome.cost
    }

    /// Returns the names of the called gates, in order.
    pub fn gates(&self) -> Vec<String> {
        self.thread.turns.iter().flat_map(|turn| turn.gate_calls.iter().map(|call| call.gate.clone())).collect()
    }
}
