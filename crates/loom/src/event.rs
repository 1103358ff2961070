//! What may happen in a run? One type per kind of record.
//!
//! A later record never repeats an earlier one: `opened` holds the answer of the crystal, `settled` the result of a
//! call, and `turn` only the fact that the turn is closed, and how. Everything else is taken from the earlier records.
//!
//! A kind that this version does not know is [`Event::Other`] and passes through unchanged.

mod job;
mod policy;
mod predict;
mod turn;

use std::sync::Arc;

use cantrip_canon::{CastId, EntityId, Hash, LoomId, Money, RunId, TurnId, json, stable_hash};
use cantrip_spend::ReservationId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Actor, CantripId, Content, Ending, Error, Fork, RecordValue, RecordedError, Spawn, Usage};

pub use job::{
    JobAccepted, JobAsked, JobClosed, JobContinued, JobOpened, JobParked, JobProgress, JobProposed, JobScored,
};
pub use policy::{
    ApprovalChoice, ApprovalDecided, ApprovalRequested, PolicyApproval, PolicyDecision, ReconcileRequired,
    SettledState, SpendOverage, SpendReserved, SpendSettled,
};
pub use predict::{PredictCaller, PredictClosed, PredictOpened};
pub use turn::{
    Attempt, CallSettled, CallStarted, CallWork, Fold, GateCallRequest, PolicyFacts, Strategy, TurnClosed, TurnOpened,
};

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

fn is_zero(count: &u64) -> bool {
    *count == 0
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
    JobOpened(JobOpened), as_job_opened = "job.opened";
    JobContinued(JobContinued), as_job_continued = "job.continued";
    JobAsked(JobAsked), as_job_asked = "job.asked";
    JobProposed(JobProposed), as_job_proposed = "job.proposed";
    JobScored(JobScored), as_job_scored = "job.scored";
    JobAccepted(JobAccepted), as_job_accepted = "job.accepted";
    JobProgress(JobProgress), as_job_progress = "job.progress";
    JobParked(JobParked), as_job_parked = "job.parked";
    JobClosed(JobClosed), as_job_closed = "job.closed";
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
