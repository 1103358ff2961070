//! What may happen in a run? One type per kind of record.
//!
//! A later record never repeats an earlier one: `opened` holds the answer of the crystal, `settled` the result of a
//! call, and `turn` only the fact that the turn is closed, and how. Everything else is taken from the earlier records.
//!
//! A kind that this version does not know is [`Event::Other`] and passes through unchanged.

mod policy;
mod predict;

use std::sync::Arc;

use cantrip_canon::{CastId, EntityId, FoldId, Hash, LoomId, Money, RunId, Timestamp, TurnId, json, stable_hash};
use cantrip_spend::{ApprovalSnapshot, Payer, PolicyOutcome, ReservationId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    Actor, BodyRef, CallId, CantripId, ChildRecord, Closing, Content, Ending, Error, FileChange, FoldSum, Fork,
    OutputRecord, RecordValue, RecordedError, ReplyMark, Spawn, Usage, Utterance,
};

pub use policy::{
    ApprovalChoice, ApprovalDecided, ApprovalRequested, PolicyApproval, PolicyDecision, ReconcileRequired,
    SettledState, SpendOverage, SpendReserved, SpendSettled,
};
pub use predict::{PredictCaller, PredictClosed, PredictOpened};

/// The purpose of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunKind {
    Cast,
    /// An entity is made and waits; the run ends with its first step.
    Summon,
    Predict,
    Job,
}

/// The description of a run. It is written once, under `run`, in the payload of the first record, whatever the kind of
/// that record is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunOpening {
    pub kind: RunKind,
    pub loom_id: LoomId,
    pub owner: Actor,
    /// The entity of the run. An entity has at most one live run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entity_id: Option<EntityId>,
    /// The run above this one, for a prediction below a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_run_id: Option<RunId>,
}

/// The conditioning of a crystal: its system prompt and its settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    pub system_prompt: Option<String>,
    /// Temperature, `require_done_tool` and other settings.
    #[serde(flatten)]
    pub settings: Map<String, Value>,
}

/// A cantrip as it was built. Equal cantrips have the same id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cantrip {
    pub call: Call,
    /// The gate definitions that are shown to the crystal, in order.
    pub definitions: Vec<Value>,
    pub circle: Value,
    pub wards: Value,
    pub crystal: String,
}

impl Cantrip {
    /// Returns the hash from which the id is derived.
    pub fn hash(&self) -> Result<Hash, Error> {
        let mut value = json::to_value(self)?;
        if let Value::Object(fields) = &mut value {
            fields.insert("v".to_owned(), 1.into());
            fields.insert("kind".to_owned(), "root".into());
        }
        Ok(stable_hash(&value)?)
    }
}

/// `root`: a cantrip enters a loom. Written once per cantrip and loom. Every path starts at a root, and a root is not
/// a turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Root {
    pub cantrip_id: CantripId,
    pub hash: Hash,
    pub cantrip: RecordValue<Cantrip>,
}

/// The way in which the crystal calls tools: by the provider's tool calls, or as fenced text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolMode {
    Tool,
    Fenced,
}

/// The origin of an entity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A user cast or summoned it.
    Root,
    /// A call spawned it below `parent`, the sealed turn.
    Child { parent: TurnId, spawned_by: Spawn },
    /// It branched off a turn of another entity.
    Fork(Fork),
}

/// `entity`: an entity is made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entity {
    pub entity_id: EntityId,
    pub cantrip_id: CantripId,
    pub origin: Origin,
    pub medium: String,
    pub mode: ToolMode,
    /// The seed of its random numbers, 16 hexadecimal digits.
    pub seed: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<RecordValue<Value>>,
    /// The context window of its crystal in tokens, if it was known. The messages that the entity is shown depend on
    /// the window, so it is kept: a better value that is found later does not change what was shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// The labels that the entity has before its first turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
}

/// The intent of a cast, as its record has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IntentRecord {
    New(RecordValue<Content>),
    /// The cast continues under the intent of an earlier cast, which is not repeated.
    Of(CastId),
}

/// An intent that was given to an entity and cancelled before its first turn was closed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CancelledIntent {
    /// The cast that recorded the intent.
    pub cast_id: CastId,
    pub intent: RecordValue<Content>,
}

/// `cast`: a cast of an entity begins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cast {
    pub cast_id: CastId,
    pub entity_id: EntityId,
    pub intent: IntentRecord,
    /// The effective wards.
    pub wards: Value,
    /// The time that the cast may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// The scope whose caps the money of this cast counts against.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_scope: Option<String>,
    /// The cap that the cast sets for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Money>,
    /// Intents that were given to the entity since its last turn and cancelled before an answer, oldest first. The
    /// message list of this cast shows them before its own intent. Records of earlier versions have none, so their
    /// message lists stay as they were sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cancelled: Vec<CancelledIntent>,
}

/// `attempt`: a request is about to be sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Number 0 of its turn, or a request of a fold.
    pub call_id: CallId,
    pub cast_id: CastId,
    /// Counted from 1 within the call.
    pub number: u32,
    /// The running hash over the message list.
    pub request_digest: Hash,
    /// The number of messages of the shared list that the request sent.
    pub list_length: u64,
    /// The crystal that is asked if it is not the crystal of the cantrip: a fallback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crystal: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation_id: Option<ReservationId>,
}

/// `opened`: the crystal has answered, and a turn begins with its utterance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnOpened {
    pub turn_id: TurnId,
    pub cast_id: CastId,
    pub parent_id: Option<TurnId>,
    pub sequence: u64,
    pub utterance: RecordValue<Utterance>,
    pub usage: Usage,
    /// The attempt that was accepted.
    pub attempt: u32,
    /// None if the cost is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Money>,
}

/// The gate and the arguments of a call, if the utterance does not have them: in a code medium, or under another name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GateCallRequest {
    pub gate: String,
    pub args: RecordValue<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

/// The kind of work that a call does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallWork {
    Gate,
    /// The check of a `done`.
    Verifier,
    Delegation {
        children: Vec<EntityId>,
    },
}

/// `started`: a call is about to be executed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallStarted {
    pub call_id: CallId,
    pub work: CallWork,
    /// None means call n of the utterance, exactly as the crystal wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<GateCallRequest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation_id: Option<ReservationId>,
}

/// `settled`: a call has its reply. The record belongs to the open turn of its group. For number 0 it is a failed
/// attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallSettled {
    pub call_id: CallId,
    pub reply: ReplyMark,
    pub result: RecordValue<Value>,
    pub duration_ms: u64,
    /// Set for a call that was refused before it started and that the utterance does not spell out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<GateCallRequest>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub ephemeral: bool,
    /// The structured data of an error, beside its text; only for a reply that is not a success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Box<RecordValue<Map<String, Value>>>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<ChildRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<FileChange>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_ms: Option<u64>,
    /// None if the call was free; for an attempt also if the cost is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Money>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<PolicyOutcome>,
    /// The facts on which the decision was based, if no ledger has them: for an allowed call that costs nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judged: Option<Box<PolicyFacts>>,
    /// For an attempt: its number, and its usage if that was reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// The input of policy for a call that costs nothing, apart from what its records hold: enough to evaluate the call
/// again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyFacts {
    pub at: Timestamp,
    /// The revision of the authorization's terms.
    pub revision: u64,
    pub owner: Payer,
    /// The name of the spell, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The labels that the gate adds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// The labels that the entity had, under the ward `trifecta`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub touched: Option<Vec<String>>,
    /// True if a ward requires an approval.
    #[serde(default, skip_serializing_if = "is_false")]
    pub approval_ward: bool,
    /// The result of that approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalSnapshot>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// `turn`: a turn is closed. It repeats nothing from `opened` or `settled`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnClosed {
    pub turn_id: TurnId,
    #[serde(flatten)]
    pub closing: Closing,
    pub duration_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<RecordValue<Vec<OutputRecord>>>,
    /// The snapshot of the sandbox, for mediums that can make one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<BodyRef>,
}

/// The method by which a fold was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    Window,
    Summary,
    Selective,
}

/// `fold`: a shorter view of turns `from` to `to`, valid on every path that contains `after`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fold {
    pub fold_id: FoldId,
    pub entity_id: EntityId,
    /// The last closed turn when the fold was made.
    pub after: TurnId,
    /// The sequences of the first and the last turn that the fold replaces.
    pub from: u64,
    pub to: u64,
    pub strategy: Strategy,
    pub text: RecordValue<String>,
    pub estimate_before: u64,
    pub estimate_after: u64,
    /// The attempt that wrote the fold, if a crystal did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<CallId>,
    /// True if the requested strategy failed and a window was used instead.
    #[serde(default)]
    pub degraded: bool,
    /// The totals of the thread at the fold. Without them the earlier turns have to be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sum: Option<FoldSum>,
}

/// The reason why a run is parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParkReason {
    CrystalUnavailable,
    Interrupted,
    /// The worker process ended in order. The run does not wait for anyone: the next worker that takes it up
    /// continues.
    HandedBack,
    /// Several processes took up the run one after the other and ended before it made progress. It is not taken up
    /// again automatically.
    NoProgress,
}

impl ParkReason {
    /// Returns true if the run continues only when someone resumes it. Otherwise it is treated like a run whose
    /// process is gone.
    pub const fn needs_resume(self) -> bool {
        match self {
            Self::CrystalUnavailable | Self::Interrupted | Self::NoProgress => true,
            Self::HandedBack => false,
        }
    }
}

/// `parked`: a root run is parked. Its lease is free and its deadline does not advance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CastParked {
    pub cast_id: CastId,
    pub reason: ParkReason,
    /// The turn that was being requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RecordedError>,
    /// The provider's own error text, if the message of the error does not contain it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The used part of the deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elapsed_ms: Option<u64>,
}

/// `end`: a cast is over. Each cast has exactly one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct End {
    pub cast_id: CastId,
    #[serde(flatten)]
    pub ending: Ending<RecordValue<Value>>,
    pub leaf: Option<TurnId>,
    pub turns: u64,
    pub utterances: u64,
    pub usage: Usage,
    /// The cost of all requests and calls, as far as it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Money>,
    /// The number of requests whose cost is unknown and therefore not in `cost`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub uncosted: u64,
}

/// `failed`: the runtime gave up a run, not the entity. Resuming it continues from the record before this one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunFailed {
    pub error: RecordedError,
}

/// `reward`: a rating of a turn by someone. The latest one is in effect; all are kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reward {
    pub turn_id: TurnId,
    pub reward: f64,
    pub by: Actor,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

macro_rules! kinds {
    ($($kind:ident($payload:ty), $accessor:ident = $name:literal;)+) => {
        /// The kind of a record.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum Kind {
            $($kind,)+
            /// A kind for which this version has no type.
            Other(String),
        }

        impl Kind {
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$kind => $name,)+
                    Self::Other(name) => name,
                }
            }

            pub fn named(name: &str) -> Self {
                match name {
                    $($name => Self::$kind,)+
                    other => Self::Other(other.to_owned()),
                }
            }
        }

        /// The content of a record.
        #[derive(Debug, Clone, PartialEq)]
        #[allow(clippy::large_enum_variant, reason = "the largest is also the one there are most of")]
        pub enum Event {
            $($kind($payload),)+
            Other { kind: String, payload: Map<String, Value> },
        }

        impl Event {
            pub fn kind(&self) -> Kind {
                match self {
                    $(Self::$kind(_) => Kind::$kind,)+
                    Self::Other { kind, .. } => Kind::named(kind),
                }
            }

            $(
                #[doc = concat!("Returns the payload of a `", $name, "` record.")]
                pub fn $accessor(&self) -> Option<&$payload> {
                    if let Self::$kind(payload) = self { Some(payload) } else { None }
                }
            )+

            /// Returns the canonical text that is stored and hashed. `opening` is written into the first record of a
            /// run.
            pub(crate) fn payload(&self, opening: Option<&RunOpening>) -> Result<Arc<str>, Error> {
                match self {
                    $(Self::$kind(told) => {
                        Ok(json::with_canonical(&Payload { told, run: opening, v: VERSION }, |text| text.into())?)
                    })+
                    Self::Other { payload, .. } => untyped_payload(payload.clone(), opening),
                }
            }

            fn typed(kind: &Kind, payload: Map<String, Value>) -> Result<Self, serde_json::Error> {
                Ok(match kind {
                    $(Kind::$kind => Self::$kind(serde_json::from_value(Value::Object(payload))?),)+
                    Kind::Other(name) => Self::Other { kind: name.clone(), payload },
                })
            }
        }

        $(impl From<$payload> for Event {
            fn from(payload: $payload) -> Self {
                Self::$kind(payload)
            }
        }

        impl TryFrom<Event> for $payload {
            type Error = Event;

            fn try_from(event: Event) -> Result<Self, Event> {
                if let Event::$kind(payload) = event { Ok(payload) } else { Err(event) }
            }
        })+
    };
}

/// The content of a record in the form that is written.
#[derive(Serialize)]
struct Payload<'a, T: Serialize> {
    #[serde(flatten)]
    told: &'a T,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<&'a RunOpening>,
    v: u64,
}

/// Returns the text of a payload without a type. The fields of another version are passed on unchanged.
fn untyped_payload(mut fields: Map<String, Value>, opening: Option<&RunOpening>) -> Result<Arc<str>, Error> {
    fields.entry("v").or_insert_with(|| VERSION.into());
    if let Some(opening) = opening {
        fields.insert("run".to_owned(), json::to_value(opening)?);
    }
    Ok(json::canonical(&Value::Object(fields))?.into())
}

kinds! {
    Root(Root), as_root = "root";
    Entity(Entity), as_entity = "entity";
    Cast(Cast), as_cast = "cast";
    Attempt(Attempt), as_attempt = "attempt";
    Opened(TurnOpened), as_opened = "opened";
    Started(CallStarted), as_started = "started";
    Settled(CallSettled), as_settled = "settled";
    Turn(TurnClosed), as_turn = "turn";
    Fold(Fold), as_fold = "fold";
    Parked(CastParked), as_parked = "parked";
    End(End), as_end = "end";
    Failed(RunFailed), as_failed = "failed";
    Reward(Reward), as_reward = "reward";
    ApprovalRequested(ApprovalRequested), as_approval_requested = "approval.requested";
    ApprovalDecided(ApprovalDecided), as_approval_decided = "approval.decided";
    PolicyDecision(PolicyDecision), as_policy_decision = "policy.decision";
    SpendReserved(SpendReserved), as_spend_reserved = "spend.reserved";
    SpendSettled(SpendSettled), as_spend_settled = "spend.settled";
    ReconcileRequired(ReconcileRequired), as_reconcile_required = "spend.reconcile_required";
    SpendOverage(SpendOverage), as_spend_overage = "spend.overage";
    PredictOpened(PredictOpened), as_predict_opened = "predict.opened";
    PredictClosed(PredictClosed), as_predict_closed = "predict.closed";
}

/// The version of every payload that this crate writes.
const VERSION: u64 = 1;

impl Kind {
    /// Returns true if a record of this kind may be written without the lease of its run and after the end of the run.
    pub fn annotates(&self) -> bool {
        if let Self::Other(name) = self {
            return matches!(name.as_str(), "cancel.requested" | "trace.stored" | "trace.expired");
        }
        matches!(
            self,
            Self::Reward
                | Self::ApprovalDecided
                | Self::PolicyDecision
                | Self::SpendSettled
                | Self::ReconcileRequired
                | Self::SpendOverage
        )
    }

    /// Returns true if stores write records of this kind about the money operations of a step.
    pub(crate) fn is_of_store(&self) -> bool {
        matches!(
            self,
            Self::SpendReserved
                | Self::SpendSettled
                | Self::ReconcileRequired
                | Self::SpendOverage
                | Self::PolicyDecision
        )
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Event {
    /// Returns the reservation that a record of a store is about.
    pub(crate) fn reservation_id(&self) -> Option<&ReservationId> {
        let settled = || self.as_spend_settled().map(|settled| &settled.reservation_id);
        let unknown = || self.as_reconcile_required().map(|unknown| &unknown.reservation_id);
        let overage = || self.as_spend_overage().map(|overage| &overage.reservation_id);
        let reserved = self.as_spend_reserved().map(|reserved| &reserved.reservation_id);
        reserved.or_else(settled).or_else(unknown).or_else(overage)
    }

    /// Reads a stored payload. For the first record of a run it also returns the opening of the run.
    pub(crate) fn read(kind: &Kind, text: &str, first: bool) -> Result<(Self, Option<RunOpening>), Error> {
        let misread = |source| Error::Misread { what: format!("the payload of a {kind} record"), source };
        let Value::Object(mut payload) = json::read(text)? else {
            return Err(misread(serde::de::Error::custom("a payload is an object")));
        };
        let opening = match payload.get("run").filter(|_| first) {
            Some(opening) => Some(serde_json::from_value(opening.clone()).map_err(misread)?),
            None => None,
        };
        if let Kind::Other(name) = kind {
            return Ok((Self::Other { kind: name.clone(), payload }, opening));
        }
        payload.remove("run");
        let version = payload.remove("v").and_then(|version| version.as_u64()).unwrap_or(VERSION);
        let typed = match version {
            VERSION => Self::typed(kind, payload).map_err(misread),
            version => Err(Error::UnsupportedVersion { kind: kind.to_string(), version }),
        };
        // The kinds of policy, approvals, money and predicts had no type at first, so a payload that does not fit is
        // kept as it is.
        let event = match (typed, kind.as_str().contains('.')) {
            (Ok(event), _) => event,
            (Err(_), true) => Self::Other {
                kind: kind.to_string(),
                payload: serde_json::from_value(json::read(text)?).map_err(misread)?,
            },
            (Err(fault), false) => return Err(fault),
        };
        Ok((event, opening))
    }
}
