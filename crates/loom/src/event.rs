//! What may happen in a run? One type per kind of record.
//!
//! A later record never repeats an earlier one: `opened` says what the crystal said, `settled` what came of a call,
//! `turn` only that the turn is closed and how. What a kind leaves out is taken from the records before it.
//!
//! A kind that this version does not know is [`Event::Other`] and passes through unchanged; those of policy,
//! approvals, money, predictions and jobs stand there until their rooms give them types.

use std::sync::Arc;

use cantrip_canon::{CastId, EntityId, FoldId, Hash, LoomId, Money, RunId, Timestamp, TurnId, json, stable_hash};
use cantrip_spend::{ApprovalSnapshot, Payer, PolicyOutcome, ReservationId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    Actor, BodyRef, CallId, CantripId, ChildRecord, Closing, Content, Ending, Error, FileChange, FoldSum, Fork,
    OutputRecord, RecordValue, RecordedError, ReplyMark, Spawn, Usage, Utterance,
};

/// What a run is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunKind {
    Cast,
    /// An entity is made and waits; the run ends with its first step.
    Summon,
    Predict,
    Job,
}

/// What a run is, said once: in the payload of its first record, whatever the kind of that is, under `run`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunOpening {
    pub kind: RunKind,
    pub loom_id: LoomId,
    pub owner: Actor,
    /// The entity the run is about. It has at most one live run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entity_id: Option<EntityId>,
    /// The run above it, of a prediction below a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_run_id: Option<RunId>,
}

/// The conditioning of a crystal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    pub system_prompt: Option<String>,
    /// Temperature, `require_done_tool` and the rest.
    #[serde(flatten)]
    pub settings: Map<String, Value>,
}

/// A cantrip, as it was built. Equal ones have one id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cantrip {
    pub call: Call,
    /// The gates as the crystal is shown them, in order.
    pub definitions: Vec<Value>,
    pub circle: Value,
    pub wards: Value,
    pub crystal: String,
}

impl Cantrip {
    /// The hash its id is cut from.
    pub fn hash(&self) -> Result<Hash, Error> {
        let mut value = json::to_value(self)?;
        if let Value::Object(fields) = &mut value {
            fields.insert("v".to_owned(), 1.into());
            fields.insert("kind".to_owned(), "root".into());
        }
        Ok(stable_hash(&value)?)
    }
}

/// `root`: a cantrip enters a loom. Once per cantrip and loom; every path leads to it, and it is no turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Root {
    pub cantrip_id: CantripId,
    pub hash: Hash,
    pub cantrip: RecordValue<Cantrip>,
}

/// Whether the crystal is offered tools, or reads and writes fenced text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolMode {
    Tool,
    Fenced,
}

/// Where an entity comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Someone cast or summoned it.
    Root,
    /// A call spawned it below `parent`, the sealed turn.
    Child { parent: TurnId, spawned_by: Spawn },
    /// It branched off another entity's turn.
    Fork(Fork),
}

/// `entity`: one is made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entity {
    pub entity_id: EntityId,
    pub cantrip_id: CantripId,
    pub origin: Origin,
    pub medium: String,
    pub mode: ToolMode,
    /// Of its random numbers, 16 hexadecimal digits.
    pub seed: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<RecordValue<Value>>,
    /// Tokens that its crystal takes, where that was known. What it is shown depends on it, so it is kept: knowing better
    /// later does not change what was shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// What it has touched before its first turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
}

/// What a cast is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Intent {
    New(RecordValue<Content>),
    /// It goes on under the intent of an earlier cast, which is not said again.
    Of(CastId),
}

/// An intent that was said to an entity and cancelled before its first turn was closed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CancelledIntent {
    /// The cast that brought it.
    pub cast_id: CastId,
    pub intent: RecordValue<Content>,
}

/// `cast`: an episode of an entity begins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cast {
    pub cast_id: CastId,
    pub entity_id: EntityId,
    pub intent: Intent,
    /// The effective ones.
    pub wards: Value,
    /// The time it may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// Whose caps its money counts against.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_scope: Option<String>,
    /// The cap that it sets itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Money>,
    /// What was said to its entity since its last turn and cancelled before an answer, oldest first. The list of this cast
    /// has it before the intent. Records of earlier versions have none, and their lists stay as they were sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cancelled: Vec<CancelledIntent>,
}

/// `attempt`: a request is about to leave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Number 0 of its turn, or one of a fold.
    pub call_id: CallId,
    pub cast_id: CastId,
    /// From 1 within its call.
    pub number: u32,
    /// The running hash over the list.
    pub request_digest: Hash,
    /// How many messages of the shared list it was.
    pub list_length: u64,
    /// Who is asked, if not the cantrip's own crystal: one that it falls back on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crystal: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation_id: Option<ReservationId>,
}

/// `opened`: the crystal has answered, and a turn begins with what it said.
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
    /// None if nobody knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Money>,
}

/// What a call asks for, where its utterance does not say it: in a code medium, or under another name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GateCallRequest {
    pub gate: String,
    pub args: RecordValue<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

/// What is being executed.
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
    /// None: call n of the utterance, as it was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<GateCallRequest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation_id: Option<ReservationId>,
}

/// `settled`: a call has its reply. It belongs to the open turn of its group. For number 0 it is a failed attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallSettled {
    pub call_id: CallId,
    pub reply: ReplyMark,
    pub result: RecordValue<Value>,
    pub duration_ms: u64,
    /// Of a call that was refused before it started, and that its utterance does not spell out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<GateCallRequest>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub ephemeral: bool,
    /// Of a reply that is no success: what its error says to code, beside its text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Box<RecordValue<Map<String, Value>>>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<ChildRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<FileChange>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_ms: Option<u64>,
    /// None if it was free; of an attempt, if nobody knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Money>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<PolicyOutcome>,
    /// What that was made from, where no ledger has it: of a call that costs nothing and was allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judged: Option<Box<PolicyFacts>>,
    /// Of an attempt: its number, and what it used if that was reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// What policy was told about a call that costs nothing, beside what its records say: enough to ask again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyFacts {
    pub at: Timestamp,
    /// Of the authorization's terms.
    pub revision: u64,
    pub owner: Payer,
    /// The name of the spell, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// What the gate brings in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// What the entity had touched, under the ward `trifecta`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub touched: Option<Vec<String>>,
    /// A ward asks for an approval.
    #[serde(default, skip_serializing_if = "is_false")]
    pub approval_ward: bool,
    /// What came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalSnapshot>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// `turn`: a turn is closed. It repeats nothing that `opened` or `settled` said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnClosed {
    pub turn_id: TurnId,
    #[serde(flatten)]
    pub closing: Closing,
    pub duration_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<RecordValue<Vec<OutputRecord>>>,
    /// The sandbox as it stood, of mediums that have such a thing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<BodyRef>,
}

/// How a fold was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    Window,
    Summary,
    Selective,
}

/// `fold`: a shorter view of turns `from` to `to`, valid on every path that holds `after`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fold {
    pub fold_id: FoldId,
    pub entity_id: EntityId,
    /// The last closed turn when it was made.
    pub after: TurnId,
    /// Sequences of the first and the last turn that it stands for.
    pub from: u64,
    pub to: u64,
    pub strategy: Strategy,
    pub text: RecordValue<String>,
    pub estimate_before: u64,
    pub estimate_after: u64,
    /// The attempt that wrote it, where a crystal did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<CallId>,
    /// The strategy asked for failed, and a window stands in for it.
    #[serde(default)]
    pub degraded: bool,
    /// What the thread had come to. Without it the turns before have to be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sum: Option<FoldSum>,
}

/// Why a run rests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParkReason {
    CrystalUnavailable,
    Interrupted,
    /// The process that worked on it ended in order. Nobody is waited for: whoever takes it up goes on.
    HandedBack,
    /// Process after process took it up and ended before it got any further. Nobody takes it up again by themselves.
    NoProgress,
}

impl ParkReason {
    /// Whether it goes on only when someone says so. One that does not is like a run whose process is gone.
    pub const fn needs_resume(self) -> bool {
        match self {
            Self::CrystalUnavailable | Self::Interrupted | Self::NoProgress => true,
            Self::HandedBack => false,
        }
    }
}

/// `parked`: a root run rests, with its lease free and its deadline standing still.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CastParked {
    pub cast_id: CastId,
    pub reason: ParkReason,
    /// The turn that was being asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RecordedError>,
    /// The provider's own words, where the message of the error does not have them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// How much of the deadline was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elapsed_ms: Option<u64>,
}

/// `end`: a cast is over. Exactly one each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct End {
    pub cast_id: CastId,
    #[serde(flatten)]
    pub ending: Ending<RecordValue<Value>>,
    pub leaf: Option<TurnId>,
    pub turns: u64,
    pub utterances: u64,
    pub usage: Usage,
    /// Of all requests and calls, as far as it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Money>,
    /// Requests whose cost is not in it, because nobody knows it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub uncosted: u64,
}

/// `failed`: a run was given up by its machine, not by its entity. Who resumes it goes on from the record before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunFailed {
    pub error: RecordedError,
}

/// `reward`: how good a turn was, in someone's eyes. The latest counts, all are kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reward {
    pub turn_id: TurnId,
    pub reward: f64,
    pub by: Actor,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident($payload:ty) = $name:literal),+ $(,)?) => {
        /// The kind of a record.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum Kind {
            $($kind,)+
            /// One that this version has no type for.
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

        /// What a record says.
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
                    Self::Other { kind, .. } => Kind::Other(kind.clone()),
                }
            }

            /// The canonical text that is stored and hashed; `opening` goes into the first record of a run.
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
                    $(Kind::$kind => Self::$kind(read(payload)?),)+
                    Kind::Other(name) => Self::Other { kind: name.clone(), payload },
                })
            }
        }

        $(impl From<$payload> for Event {
            fn from(payload: $payload) -> Self {
                Self::$kind(payload)
            }
        })+
    };
}

/// What a record says, as it is written.
#[derive(Serialize)]
struct Payload<'a, T: Serialize> {
    #[serde(flatten)]
    told: &'a T,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<&'a RunOpening>,
    v: u64,
}

/// The text of a payload without a type. What another version wrote is passed on as it is.
fn untyped_payload(mut fields: Map<String, Value>, opening: Option<&RunOpening>) -> Result<Arc<str>, Error> {
    fields.entry("v").or_insert_with(|| VERSION.into());
    if let Some(opening) = opening {
        fields.insert("run".to_owned(), json::to_value(opening)?);
    }
    Ok(json::canonical(&Value::Object(fields))?.into())
}

fn read<T: DeserializeOwned>(payload: Map<String, Value>) -> Result<T, serde_json::Error> {
    serde_json::from_value(Value::Object(payload))
}

kinds! {
    Root(Root) = "root",
    Entity(Entity) = "entity",
    Cast(Cast) = "cast",
    Attempt(Attempt) = "attempt",
    Opened(TurnOpened) = "opened",
    Started(CallStarted) = "started",
    Settled(CallSettled) = "settled",
    Turn(TurnClosed) = "turn",
    Fold(Fold) = "fold",
    Parked(CastParked) = "parked",
    End(End) = "end",
    Failed(RunFailed) = "failed",
    Reward(Reward) = "reward",
}

/// The version of every payload that this crate writes.
const VERSION: u64 = 1;

impl Kind {
    /// Whether it may be written beside a run, without its lease and after its end.
    pub fn annotates(&self) -> bool {
        match self {
            Self::Reward => true,
            Self::Other(name) => matches!(
                name.as_str(),
                "approval.decided"
                    | "cancel.requested"
                    | "policy.decision"
                    | "spend.settled"
                    | "spend.reconcile_required"
                    | "spend.overage"
                    | "trace.stored"
                    | "trace.expired"
            ),
            Self::Root
            | Self::Entity
            | Self::Cast
            | Self::Attempt
            | Self::Opened
            | Self::Started
            | Self::Settled
            | Self::Turn
            | Self::Fold
            | Self::Parked
            | Self::End
            | Self::Failed => false,
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Event {
    /// Reads a stored payload, and what it says about its run if it is the first of it.
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
        if version != VERSION {
            return Err(Error::UnsupportedVersion { kind: kind.to_string(), version });
        }
        Self::typed(kind, payload).map(|event| (event, opening)).map_err(misread)
    }
}
