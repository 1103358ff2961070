//! What is a turn, and how does a cast end?

use cantrip_canon::{CastId, EntityId, LoomId, Money, Timestamp, TurnId};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::{BodyRef, CallId, CantripId, Content, GateRecord, OutputRecord, RecordedError, Usage, Utterance};

/// Why a cast was cut off.
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
    /// Policy denied the next request for a reason other than an amount of money. The error of the end has the code.
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

/// How an entity chose to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndedBy {
    Done,
    Text,
}

/// How a turn was closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "closed", rename_all = "snake_case")]
pub enum Closing {
    /// The cast goes on, or its end stands alone.
    Open,
    /// A delegation began: the rest of the utterance is turn `next`. `call` is the one that spawned.
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

/// How the environment of a fork came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Environment {
    /// The medium has none.
    None,
    /// Loaded as it was stored.
    Snapshot,
    /// Run again against recorded results.
    Replay,
    /// Empty; earlier variables are gone.
    Fresh,
}

/// Where an entity branched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    pub turn: TurnId,
    pub environment: Environment,
}

/// Which call an entity was spawned by, and at which place of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spawn {
    pub call_id: CallId,
    pub index: u32,
}

/// What a turn took.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Metadata {
    pub tokens_prompt: u64,
    pub tokens_completion: u64,
    pub tokens_cached: u64,
    /// From the request, or the seal, to the close; rounded up.
    pub duration_ms: u64,
    /// When it closed.
    pub timestamp: Timestamp,
    pub attempts: u32,
    pub cost_micros: i64,
    /// Of the answer and the calls; none if nobody knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Money>,
    /// None on a continuation.
    pub model: Option<String>,
}

/// A closed turn, read back whole.
///
/// It is put together from its records each time; none of this is stored twice.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    pub id: TurnId,
    /// None for a root.
    pub parent_id: Option<TurnId>,
    pub loom_id: LoomId,
    pub cantrip_id: CantripId,
    pub entity_id: EntityId,
    pub cast_id: CastId,
    /// From 1; a fork goes on counting where it branched off.
    pub sequence: u64,
    /// On the first turn of a cast that has an intent of its own.
    pub intent: Option<Content>,
    /// None on a continuation, whose utterance is that of the first turn of its group.
    pub utterance: Option<Utterance>,
    /// With `gate_calls`, the observation.
    pub outputs: Vec<OutputRecord>,
    /// In call order.
    pub gate_calls: Vec<GateRecord>,
    pub metadata: Metadata,
    /// The latest one.
    pub reward: Option<f64>,
    pub closing: Closing,
    /// The sealed turn before it in its group.
    pub continuation_of: Option<TurnId>,
    /// On the first turn of a fork.
    pub forked_from: Option<Fork>,
    /// On the first turn of a child.
    pub spawned_by: Option<Spawn>,
    /// The sandbox as it stood behind it, where that was kept.
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

    /// What was said, as one text; empty on a continuation.
    pub fn utterance_text(&self) -> String {
        self.utterance.as_ref().map(Utterance::text).unwrap_or_default()
    }
}

/// As surfaces show it: how it was closed stands in flags of its own.
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

/// Which way a cast ended.
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
        /// Made from the record, never by another request.
        summary: String,
    },
}

/// How a cast ended and what it took.
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
    /// Continuations do not count.
    pub utterances: u64,
    /// Of all attempts that reported it.
    pub usage: Usage,
    /// Of all requests and calls, as far as it is known.
    pub cost: Option<Money>,
    /// Requests whose cost is not in it, because nobody knows it.
    #[serde(skip_serializing_if = "is_zero")]
    pub uncosted: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}
