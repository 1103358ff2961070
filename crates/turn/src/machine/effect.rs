//! The effects that the machine requests, and the inputs that it receives.

use std::fmt;
use std::time::Duration;

use cantrip_canon::{ApprovalId, EntityId, Hash, IdSource, Money, Now, RunId, Timestamp, TurnId};
use cantrip_circle::gate::{Identity, UnknownCharge};
use cantrip_circle::medium::{Answer as ProgramAnswer, ProgramCall, SandboxError};
use cantrip_circle::{Labels, Permit, PredictCall, ProgramEnd};
use cantrip_crystal::{Answer, Failure, Messages, RetryDecision};
use cantrip_loom::{
    Body, CallId, Event, FileChange, OutputRecord, PolicyFacts, RecordedError, ReplyMark, TruncationReason,
};
use cantrip_reply::{Refusal, ReplyDraft, Success};
use cantrip_spend::{ApprovalSnapshot, DecisionRecord, Operation, Subject};
use serde_json::{Map, Value};

use super::child::ChildSpec;
use super::money::{RunPayer, UnpaidReason};
use super::predict::ReadyPredict;
use crate::funds::Funds;

/// The context that the machine receives each time it is asked for its next effect. The machine itself has no clock, no
/// randomness and no message texts.
pub struct StepContext<'a> {
    pub now: Now,
    pub ids: &'a IdSource,
    pub words: &'a dyn RefusalWording,
    /// The tokens that the tightest limit of the entity and its ancestors leaves, open holds not counted.
    pub tokens_left: Option<u64>,
    /// The money that is left, by the wards and by the payer.
    pub money_left: Option<Money>,
    pub funds: Funds<&'a RunPayer>,
    /// The time of the cast that is used up.
    pub elapsed: Duration,
}

impl<'a> StepContext<'a> {
    /// Returns the payer, if there is one.
    pub fn payer(&self) -> Option<&'a RunPayer> {
        self.funds.payer()
    }
}

impl fmt::Debug for StepContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepContext").field("now", &self.now).finish_non_exhaustive()
    }
}

/// Renders refusals as records keep them. Only a reply has a message text, and only the safety wrapper makes replies.
pub trait RefusalWording {
    fn render_fault(&self, refusal: Refusal) -> RecordedError;

    /// Returns the text without the secrets in it.
    fn redact(&self, text: &str) -> String;

    /// Renders the reply of a program as a record keeps it.
    fn program_reply(&self, program: &EndedProgram<'_>, answer: Result<ReplyDraft<Success>, Refusal>) -> RecordedError;
}

/// A program that has ended, for the log line of its reply.
#[derive(Debug)]
pub struct EndedProgram<'a> {
    pub medium: &'static str,
    pub run: RunId,
    pub entity: EntityId,
    pub turn: TurnId,
    pub tool_call_id: Option<&'a str>,
}

/// The next effect to execute. Everything that must be durable before it was requested earlier with [`Effect::Append`].
#[derive(Debug)]
pub enum Effect {
    /// Ask policy about these calls. Nothing has to be durable before.
    Authorize(Vec<AuthorizeRequest>),
    /// Reserve the worst case of each call.
    Reserve(Vec<WorstCase>),
    /// Append these records, all or none, in this order.
    Append {
        events: Vec<(Timestamp, Event)>,
        bodies: Vec<Body>,
        /// The ledger operations of the same step.
        money: Vec<Operation>,
    },
    Ask(CrystalRequest),
    Sleep(Duration),
    /// Execute these calls in parallel, at most eight at once; the outcomes are returned in this order.
    Execute(Vec<CallTask>),
    Spawn(SpawnRequest),
    /// Prepare a predict. Nothing has to be durable before.
    Prepare(Box<PrepareRequest>),
    RunProgram(ProgramStart),
    /// Resume the waiting program with this answer, at this clock reading.
    ResumeProgram {
        answer: ProgramAnswer,
        clock: Timestamp,
    },
    /// End the waiting program.
    CancelProgram,
    /// A person has to decide; the run waits.
    WaitApproval {
        approval: ApprovalId,
        call: CallId,
    },
    /// The crystal stays unavailable; the run waits.
    Park {
        fault: RecordedError,
        /// The provider's message text that is not part of the fault.
        detail: Option<String>,
    },
    /// The cast is over.
    Finish,
}

/// A question to policy about a call before it starts.
#[derive(Debug)]
pub struct AuthorizeRequest {
    pub call: CallId,
    pub kind: AuthorizeKind,
}

/// The kind of the call.
#[derive(Debug)]
pub enum AuthorizeKind {
    /// A request to a crystal. It is judged when its money is reserved, or here if nobody pays.
    Request,
    /// A call without cost, which is judged here.
    Free(Box<FreeCall>),
    /// A call with a cost, which is judged when its money is reserved; an earlier equal call may block it.
    Paid(Box<Subject>),
}

/// The input of policy for a call without cost, except for the principal and the terms.
#[derive(Debug)]
pub struct FreeCall {
    pub gate: String,
    pub args: Hash,
    pub labels: Vec<String>,
    pub approval_ward: bool,
    /// The touched labels, if the ward `trifecta` is set.
    pub touched: Option<Vec<String>>,
    pub approval: Option<ApprovalSnapshot>,
}

/// The answer to an [`AuthorizeRequest`].
#[derive(Debug)]
pub enum PolicyAnswer {
    /// No answer: there is no policy here, or policy is asked later.
    Nothing,
    Judged(Box<(DecisionRecord, PolicyFacts)>),
    /// The caller has no payer, so policy denies the call.
    Unfunded(Box<DecisionRecord>),
    /// The outcome of an equal call is unknown, and the call must not be made again before a person has checked it.
    Barred,
    /// In replay: refused as recorded.
    Refused(Refusal),
}

/// The worst case of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorstCase {
    pub call: CallId,
    /// The tokens of a request under a token limit.
    pub tokens: Option<u64>,
}

/// One attempt, recorded and ready to be sent.
#[derive(Debug, Clone)]
pub struct CrystalRequest {
    pub purpose: RequestPurpose,
    pub call: CallId,
    /// The attempts at this crystal since the request was taken up, including this one.
    pub tries: u32,
    pub messages: Messages,
    pub output_tokens: u32,
}

/// The purpose of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestPurpose {
    Turn {
        turn: TurnId,
        /// The index of the crystal: 0, or that of a fallback.
        place: usize,
        /// The number of attempts that another owner made before.
        before: u32,
    },
    /// The crystal that writes folds reads a piece of the folded turns. Its answer is no part of a turn.
    Summary,
}

/// A call to be answered: by its gate, or by a decision about it.
#[derive(Debug)]
pub struct CallTask {
    pub number: u32,
    pub gate: String,
    pub identity: Identity,
    pub idempotency_key: Option<String>,
    pub kind: CallTaskKind,
}

impl CallTask {
    /// Returns the arguments for the gate, if the call enters it.
    pub fn arguments(&self) -> Option<&Map<String, Value>> {
        match &self.kind {
            CallTaskKind::Enter(permit) => Some(permit.arguments()),
            CallTaskKind::Refuse(_) | CallTaskKind::Answer(_) | CallTaskKind::Verify(_) => None,
        }
    }
}

#[derive(Debug)]
pub enum CallTaskKind {
    Enter(Permit),
    Refuse(Refusal),
    Answer(ReplyDraft<Success>),
    /// The verifier checks the answer.
    Verify(Value),
}

/// The outcome of a [`CallTask`].
#[derive(Debug)]
pub struct CallOutcome {
    pub number: u32,
    pub reply: ReplyMark,
    pub result: Value,
    /// The data of an error for code, beside its text; empty for a success.
    pub data: Map<String, Value>,
    pub duration_ms: u64,
    pub changes: Vec<FileChange>,
    pub bodies: Vec<Body>,
    pub cost: Option<Money>,
    /// The provider's own id of the call.
    pub correlation: Option<String>,
    /// The reason why it is unknown whether the call was charged for.
    pub doubt: Option<UnknownCharge>,
    /// True if nothing of the call left this process.
    pub unbegun: bool,
    pub clock: Timestamp,
    /// The score from a verifier that gave one.
    pub score: Option<f64>,
}

/// Children to be cast, or to be resumed.
#[derive(Debug)]
pub struct SpawnRequest {
    /// The sealed turn that is the parent of the children.
    pub parent: TurnId,
    /// The gate whose call spawns the children.
    pub gate: String,
    pub identity: Identity,
    pub children: Vec<ChildSpec>,
}

/// A predict to be prepared.
#[derive(Debug, Clone)]
pub struct PrepareRequest {
    pub turn: TurnId,
    pub call: CallId,
    /// The entity that will answer.
    pub entity: EntityId,
    pub predict: PredictCall,
    /// True if the predict was begun before this machine.
    pub resumed: bool,
}

/// The outcome of a child as its parent needs it.
#[derive(Debug, Clone)]
pub struct ChildOutcome {
    pub entity: EntityId,
    /// The reply of the child's cast.
    pub reply: ReplyMark,
    /// The answer of the child, or the reason why there is none.
    pub answer: Result<Value, (TruncationReason, Option<RecordedError>)>,
    /// The reply message of the child's cast, if it has no answer.
    pub told: Option<RecordedError>,
    pub touched: Labels,
}

/// A program about to run.
#[derive(Debug, Clone)]
pub struct ProgramStart {
    pub name: String,
    pub source: String,
    pub clock: Timestamp,
}

/// The result of an effect.
#[derive(Debug)]
pub enum Input {
    /// The answers of policy, in the order of the requests.
    Authorized(Vec<PolicyAnswer>),
    Reserved,
    /// Only others of the same tree held the money, and some of it was settled: the request is measured again.
    Waited,
    Answered(Answer),
    /// The append was refused, because nobody pays for the call or request that the records begin.
    Unpaid(UnpaidReason),
    /// A failed request, with the retry decision, which was made with the deadline known.
    Failed(Failure, RetryDecision),
    /// The request was given up, because the cast was halted.
    Interrupted,
    Slept,
    CallsDone(Vec<CallOutcome>),
    ChildrenDone(Vec<ChildOutcome>),
    /// The predict is ready, or cannot be prepared. None in replay, where its child is not cast again.
    Prepared(Result<Option<Box<ReadyPredict>>, Refusal>),
    /// The program waits for the answer to this call.
    ProgramCalled(ProgramCall),
    /// The program has ended. The end is none in replay if the record has it.
    ProgramEnded(OutputRecord, Option<ProgramEnd>),
    /// The program's sandbox is gone.
    SandboxLost(SandboxError),
}
