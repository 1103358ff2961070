//! What the machine asks of the world, and what the world tells it.

use std::fmt;
use std::time::Duration;

use cantrip_canon::{EntityId, Hash, IdSource, Money, Now, RunId, Timestamp, TurnId};
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
use super::folding::SummaryRequest;
use super::money::{RunPayer, UnpaidReason};
use crate::funds::Funds;
use crate::predict::PreparedPredict;

/// What the machine is told each time it is asked for its next effect. It has no clock, no chance and no words of its
/// own.
pub(crate) struct StepContext<'a> {
    pub now: Now,
    pub ids: &'a IdSource,
    pub words: &'a dyn RefusalWording,
    /// What the tightest token limit of the entity and of everyone above it leaves, open holds not counted.
    pub tokens_left: Option<u64>,
    /// The same of its money, by its wards and by who pays.
    pub money_left: Option<Money>,
    pub funds: Funds<&'a RunPayer>,
    /// How much of the time of the cast is used.
    pub elapsed: Duration,
}

impl<'a> StepContext<'a> {
    /// Who pays, if anybody does.
    pub(crate) fn payer(&self) -> Option<&'a RunPayer> {
        self.funds.payer()
    }
}

impl fmt::Debug for StepContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepContext").field("now", &self.now).finish_non_exhaustive()
    }
}

/// Turns a refusal into what a record keeps of it. Only a reply has words, and only the wrapper makes one.
pub(crate) trait RefusalWording {
    fn render_fault(&self, refusal: Refusal) -> RecordedError;

    /// Returns the text without the secrets in it.
    fn redact(&self, text: &str) -> String;

    /// The reply of a program: what a record keeps of it.
    fn program_reply(&self, program: &EndedProgram<'_>, answer: Result<ReplyDraft<Success>, Refusal>) -> RecordedError;
}

/// A program that has ended, for the line that its reply leaves in the log.
#[derive(Debug)]
pub(crate) struct EndedProgram<'a> {
    pub medium: &'static str,
    pub run: RunId,
    pub entity: EntityId,
    pub turn: TurnId,
    pub tool_call_id: Option<&'a str>,
}

/// What has to be done next. Whatever is to be durable before it has been asked for as [`Effect::Append`] before.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Policy is asked about these calls. Nothing has to be durable for it.
    Authorize(Vec<AuthorizeRequest>),
    /// The worst case of each is put aside.
    Reserve(Vec<WorstCase>),
    /// These records, whole and in this order.
    Append {
        events: Vec<(Timestamp, Event)>,
        bodies: Vec<Body>,
        /// What becomes of money with them.
        money: Vec<Operation>,
    },
    Ask(CrystalRequest),
    /// A piece of what is folded is read by the crystal that writes folds.
    Summarise(SummaryRequest),
    Sleep(Duration),
    /// Together, at most eight at once; the answers are told in this order.
    Execute(Vec<CallTask>),
    Spawn(SpawnRequest),
    /// A predict is made ready. Nothing has to be durable for it.
    Prepare(Box<PrepareRequest>),
    RunProgram(ProgramStart),
    /// The program that waits goes on with this answer, at this reading of the clock.
    ResumeProgram {
        answer: ProgramAnswer,
        clock: Timestamp,
    },
    /// The program that waits ends here.
    CancelProgram,
    /// A person has to decide; the run waits.
    WaitApproval {
        approval: String,
        call: CallId,
    },
    /// The crystal stays away; the run waits.
    Park {
        fault: RecordedError,
        /// The provider's words that the fault does not have.
        detail: Option<String>,
    },
    /// The cast is over.
    Finish,
}

/// What is asked about a call before it begins.
#[derive(Debug)]
pub(crate) struct AuthorizeRequest {
    pub call: CallId,
    pub about: AuthorizeKind,
}

/// What kind of call it is.
#[derive(Debug)]
pub(crate) enum AuthorizeKind {
    /// A request to a crystal: it is judged where its money is reserved, and here where nobody pays.
    Request,
    /// A call that costs nothing is judged here.
    Free(Box<FreeCall>),
    /// One that costs something is judged where that is reserved; an earlier one like it may stand in its way.
    Paid(Box<Subject>),
}

/// What policy is told about a call that costs nothing, but for who asks and under which terms.
#[derive(Debug)]
pub(crate) struct FreeCall {
    pub gate: String,
    pub args: Hash,
    pub labels: Vec<String>,
    pub approval_ward: bool,
    /// Under the ward `trifecta`.
    pub touched: Option<Vec<String>>,
    pub approval: Option<ApprovalSnapshot>,
}

/// What was said to an inquiry.
#[derive(Debug)]
pub(crate) enum PolicyAnswer {
    /// Nothing: policy is kept by nobody here, or is asked later.
    Nothing,
    Judged(Box<(DecisionRecord, PolicyFacts)>),
    /// Nobody pays for whoever asks, and policy says so.
    Unfunded(Box<DecisionRecord>),
    /// The outcome of a call like it is unknown, and it must not be made again before someone has looked.
    Barred,
    /// In a second run: as it was the first time.
    Refused(Refusal),
}

/// The most that a call can come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WorstCase {
    pub call: CallId,
    /// Of a request under a token limit.
    pub tokens: Option<u64>,
}

/// One attempt, recorded and ready to leave.
#[derive(Debug, Clone)]
pub(crate) struct CrystalRequest {
    pub turn: TurnId,
    pub call: CallId,
    /// Who is asked: the crystal, or one that it falls back on.
    pub place: usize,
    /// Attempts of this crystal since the turn was taken up, this one included.
    pub tries: u32,
    /// Attempts that another owner made before.
    pub before: u32,
    pub messages: Messages,
    pub output_tokens: u32,
}

/// A call to be answered: by its gate, or by what was decided about it.
#[derive(Debug)]
pub(crate) struct CallTask {
    pub number: u32,
    pub gate: String,
    pub identity: Identity,
    pub idempotency_key: Option<String>,
    pub kind: CallTaskKind,
}

impl CallTask {
    /// What its gate is given, as far as it gets there.
    pub(crate) fn arguments(&self) -> Option<&Map<String, Value>> {
        match &self.kind {
            CallTaskKind::Enter(permit) => Some(permit.arguments()),
            CallTaskKind::Refuse(_) | CallTaskKind::Answer(_) | CallTaskKind::Verify(_) => None,
        }
    }
}

#[derive(Debug)]
pub(crate) enum CallTaskKind {
    Enter(Permit),
    Refuse(Refusal),
    Answer(ReplyDraft<Success>),
    /// The answer is shown to the verifier.
    Verify(Value),
}

/// What came of a [`CallTask`].
#[derive(Debug)]
pub(crate) struct CallOutcome {
    pub number: u32,
    pub reply: ReplyMark,
    pub result: Value,
    /// What an error says to code, beside its text; empty for a success.
    pub data: Map<String, Value>,
    pub duration_ms: u64,
    pub changes: Vec<FileChange>,
    pub bodies: Vec<Body>,
    pub cost: Option<Money>,
    /// Its provider's own id for it.
    pub correlation: Option<String>,
    /// Why nobody knows whether it was charged for.
    pub doubt: Option<UnknownCharge>,
    /// Nothing of it left the house.
    pub unbegun: bool,
    pub clock: Timestamp,
    /// Of a verifier that gave one.
    pub score: Option<f64>,
}

/// Children to be cast, or to be gone on with.
#[derive(Debug)]
pub(crate) struct SpawnRequest {
    /// The sealed turn above them.
    pub parent: TurnId,
    /// The call that asks for them.
    pub gate: String,
    pub identity: Identity,
    pub children: Vec<ChildSpec>,
}

/// A predict that is to be made ready.
#[derive(Debug, Clone)]
pub(crate) struct PrepareRequest {
    pub turn: TurnId,
    pub call: CallId,
    /// Who will answer.
    pub entity: EntityId,
    pub predict: PredictCall,
    /// It was begun before this machine.
    pub resumed: bool,
}

/// How a child ended, as its parent needs to know it.
#[derive(Debug, Clone)]
pub(crate) struct ChildOutcome {
    pub entity: EntityId,
    /// Of its cast's own reply.
    pub reply: ReplyMark,
    /// Its answer, or why there is none.
    pub answer: Result<Value, (TruncationReason, Option<RecordedError>)>,
    /// The words of its cast's own reply, where it has no answer.
    pub told: Option<RecordedError>,
    pub touched: Labels,
}

/// A program about to run.
#[derive(Debug, Clone)]
pub(crate) struct ProgramStart {
    pub name: String,
    pub source: String,
    pub clock: Timestamp,
}

/// What happened.
#[derive(Debug)]
pub(crate) enum Input {
    /// In the order of the inquiries.
    Authorized(Vec<PolicyAnswer>),
    Reserved,
    /// Only others of the same tree stood in the way, and something moved: what is wanted is measured anew.
    Waited,
    Answered(Answer),
    /// The records that were to be appended were not, because nobody pays for what they begin.
    Unpaid(UnpaidReason),
    /// What follows was planned with the deadline at hand.
    Failed(Failure, RetryDecision),
    /// The request was given up because the cast was halted.
    Interrupted,
    Slept,
    CallsDone(Vec<CallOutcome>),
    ChildrenDone(Vec<ChildOutcome>),
    /// A predict is ready, or why it cannot be made. None in a second run, where its child is not cast again.
    Prepared(Result<Option<Box<PreparedPredict>>, Refusal>),
    /// The program waits for the answer to this call.
    ProgramCalled(ProgramCall),
    /// The program has ended. None in a second run whose record says how it did.
    ProgramEnded(OutputRecord, Option<ProgramEnd>),
    /// The program's sandbox is gone.
    SandboxLost(SandboxError),
}
