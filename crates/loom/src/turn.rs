//! What is a turn, and how does a cast end?

use cantrip_canon::{CastId, EntityId, LoomId, Money, Timestamp, TurnId};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::{BodyRef, CallId, CantripId, Content, GateRecord, OutputRecord, RecordedError, Usage, Utterance};

/// The reason why a cast was stopped before it was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TruncationReason {
    MaxTurns,
    Timeout,
    MaxTokens,
    MaxCost,
    ParentTerminated,
    Cancelled,
    CrystalError,
    LoopDetected,
    /// Policy denied the next request for a reason other than an amount of money. The error in the `end` record has
    /// the code.
    PolicyDenied,
}

impl TruncationReason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MaxTurns => "max_turns",
            Self::Timeout => "timeout",
            Self::MaxTokens => "max_tokens",
            Self::MaxCost => "max_cost",
            Self::ParentTerminated => "parent_terminated",
            Self::Cancelled => "cancelled",
            Self::CrystalError => "crystal_error",
            Self::LoopDetected => "loop_detected",
            Self::PolicyDenied => "policy_denied",
        }
    }
}

/// The way in which an entity ended its cast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndedBy {
    Done,
    Text,
}

/// The way in which a turn was closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "closed", rename_all = "snake_case")]
pub enum Closing {
    /// The cast continues, or it ended later in a separate record, when no turn was open.
    Open,
    /// A delegation began: the rest of the utterance continues in turn `next`. `call` is the call that spawned the
    /// children.
    Sealed {
        call: CallId,
        next: TurnId,
    },
    Terminated {
        ended_by: EndedBy,
    },
    Truncated {
        reason: TruncationReason,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<RecordedError>,
    },
}

/// The origin of the environment of a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Environment {
    /// The medium has no environment.
    None,
    /// Loaded from a stored snapshot.
    Snapshot,
    /// Rebuilt by running the programs again with the recorded results.
    Replay,
    /// Empty; earlier variables are gone.
    Fresh,
}

/// The turn at which an entity branched off, and the origin of its environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    pub turn: TurnId,
    pub environment: Environment,
}

/// The call that spawned an entity, and the index of the entity among the children of that call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spawn {
    pub call_id: CallId,
    pub index: u32,
}

/// The tokens, the time and the money that a turn used.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Metadata {
    pub tokens_prompt: u64,
    pub tokens_completion: u64,
    pub tokens_cached: u64,
    /// The time from the request, or from the seal, to the close of the turn; rounded up.
    pub duration_ms: u64,
    /// The time at which the turn was closed.
    pub timestamp: Timestamp,
    pub attempts: u32,
    pub cost_micros: i64,
    /// The cost of the answer and of the calls; none if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Money>,
    /// None on a continuation.
    pub model: Option<String>,
}

/// A closed turn with all its content.
///
/// It is assembled from its records on each read; nothing in it is stored twice.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    pub id: TurnId,
    /// None for a root.
    pub parent_id: Option<TurnId>,
    pub loom_id: LoomId,
    pub cantrip_id: CantripId,
    pub entity_id: EntityId,
    pub cast_id: CastId,
    /// Counted from 1. A fork continues the count of the turn at which it branched off.
    pub sequence: u64,
    /// Set on the first turn of a cast that has its own intent.
    pub intent: Option<Content>,
    /// None on a continuation: its utterance is the one of the first turn of its group.
    pub utterance: Option<Utterance>,
    /// Together with `gate_calls` the observation of the turn.
    pub outputs: Vec<OutputRecord>,
    /// In call order.
    pub gate_calls: Vec<GateRecord>,
    pub metadata: Metadata,
    /// The latest reward.
    pub reward: Option<f64>,
    pub closing: Closing,
    /// The sealed turn before this one in its group.
    pub continuation_of: Option<TurnId>,
    /// Set on the first turn of a fork.
    pub forked_from: Option<Fork>,
    /// Set on the first turn of a child.
    pub spawned_by: Option<Spawn>,
    /// The snapshot of the sandbox after this turn, if one was kept.
    pub snapshot: Option<BodyRef>,
}

impl Turn {
    pub fn is_terminated(&self) -> bool {
        match self.closing {
            Closing::Terminated { .. } => true,
            Closing::Open | Closing::Sealed { .. } | Closing::Truncated { .. } => false,
        }
    }

    pub fn is_truncated(&self) -> bool {
        match self.closing {
            Closing::Truncated { .. } => true,
            Closing::Open | Closing::Sealed { .. } | Closing::Terminated { .. } => false,
        }
    }

    pub fn is_sealed(&self) -> bool {
        match self.closing {
            Closing::Sealed { .. } => true,
            Closing::Open | Closing::Terminated { .. } | Closing::Truncated { .. } => false,
        }
    }

    pub fn ended_by(&self) -> Option<EndedBy> {
        match self.closing {
            Closing::Terminated { ended_by } => Some(ended_by),
            Closing::Open | Closing::Sealed { .. } | Closing::Truncated { .. } => None,
        }
    }

    pub fn truncation(&self) -> Option<(TruncationReason, Option<&RecordedError>)> {
        match &self.closing {
            Closing::Truncated { reason, error } => Some((*reason, error.as_ref())),
            Closing::Open | Closing::Sealed { .. } | Closing::Terminated { .. } => None,
        }
    }

    /// Returns the utterance as one text; empty on a continuation.
    pub fn utterance_text(&self) -> String {
        self.utterance.as_ref().map(Utterance::text).unwrap_or_default()
    }
}

/// The form that surfaces show: the closing is written as separate flags.
impl Serialize for Turn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let truncation = self.truncation();
        WrittenTurn {
            id: self.id,
            parent_id: self.parent_id,
            cantrip_id: self.cantrip_id,
            entity_id: self.entity_id,
            sequence: self.sequence,
            utterance: self.utterance.as_ref(),
            outputs: &self.outputs,
            gate_calls: &self.gate_calls,
            metadata: &self.metadata,
            reward: self.reward,
            terminated: self.is_terminated(),
            truncated: self.is_truncated(),
            loom_id: self.loom_id,
            cast_id: self.cast_id,
            intent: self.intent.as_ref(),
            sealed: self.is_sealed(),
            continuation_of: self.continuation_of,
            forked_from: self.forked_from,
            spawned_by: self.spawned_by,
            ended_by: self.ended_by(),
            truncation_reason: truncation.map(|(reason, _)| reason),
            error: truncation.and_then(|(_, error)| error),
        }
        .serialize(serializer)
    }
}

#[derive(Serialize)]
struct WrittenTurn<'a> {
    id: TurnId,
    parent_id: Option<TurnId>,
    cantrip_id: CantripId,
    entity_id: EntityId,
    sequence: u64,
    utterance: Option<&'a Utterance>,
    outputs: &'a [OutputRecord],
    gate_calls: &'a [GateRecord],
    metadata: &'a Metadata,
    reward: Option<f64>,
    terminated: bool,
    truncated: bool,
    loom_id: LoomId,
    cast_id: CastId,
    intent: Option<&'a Content>,
    sealed: bool,
    continuation_of: Option<TurnId>,
    forked_from: Option<Fork>,
    spawned_by: Option<Spawn>,
    ended_by: Option<EndedBy>,
    truncation_reason: Option<TruncationReason>,
    error: Option<&'a RecordedError>,
}

/// The way in which a cast ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Ending<V = Value> {
    Terminated {
        ended_by: EndedBy,
        result: V,
    },
    Truncated {
        reason: TruncationReason,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<RecordedError>,
        /// Made from the records, never by another request to the crystal.
        summary: String,
    },
}

impl<V> Ending<V> {
    /// Returns the answer, if the cast terminated with one.
    pub fn result(&self) -> Option<&V> {
        if let Self::Terminated { result, .. } = self { Some(result) } else { None }
    }
}

/// The end of a cast, with the turns, the tokens and the money that it used.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    #[serde(flatten)]
    pub ending: Ending,
    pub entity_id: EntityId,
    pub cast_id: CastId,
    pub loom_id: LoomId,
    /// None if no turn was closed.
    pub leaf: Option<TurnId>,
    pub turns: u64,
    /// The number of utterances; continuations do not count.
    pub utterances: u64,
    /// The usage of all attempts that reported it.
    pub usage: Usage,
    /// The cost of all requests and calls, as far as it is known.
    pub cost: Option<Money>,
    /// The number of requests whose cost is unknown and therefore not in `cost`.
    #[serde(skip_serializing_if = "is_zero")]
    pub uncosted: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}
