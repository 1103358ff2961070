//! What does an entity do next?
//!
//! A `Machine` is one cast of one entity as a pure state machine: it takes an input and returns the next effect. It
//! does no I/O, waits for nothing and reads no clock, so the same code runs live, on resume, in replay and in
//! simulation. Every decision becomes a record first, and only [`Machine::apply`] changes the state: the records that
//! the machine drafts pass through it exactly as the records that are read back after a crash. A loop that keeps its
//! state in local variables was rejected: that state is lost with its process, and resuming becomes a second loop.

mod admission;
mod apply;
mod approval;
mod calls;
mod child;
mod effect;
mod end;
mod folding;
mod group;
mod money;
mod predict;
mod program;
mod recorded_refusal;
mod request;
mod settle;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::{CastId, EntityId, Instant, RunId, Timestamp, TurnId};
use cantrip_circle::{Circle, Labels};
use cantrip_crystal::{Failure, contract};
use cantrip_loom::{
    Bodies, Body, BodyRef, CallId, Content, CostTotal, End, Environment, Error, Event, Finish, FoldView, Intent, Part,
    RecordValue, RecordedError, ToolMode, TruncationReason, Usage, Utterance,
};
use cantrip_reply::{Refusal, codes};
use cantrip_spend::{Operation, ReservationId};
use serde_json::Value;

pub use child::ChildSpec;
pub use effect::{
    AuthorizeKind, AuthorizeRequest, CallOutcome, CallTask, CallTaskKind, ChildOutcome, CrystalRequest, Effect,
    EndedProgram, FreeCall, Input, PolicyAnswer, PrepareRequest, ProgramStart, RefusalWording, SpawnRequest,
    StepContext, WorstCase,
};
pub use end::{halt_of, truncation_refusal};
pub use folding::SummaryRequest;
pub use money::{RunPayer, UnpaidReason, crystal_subject};
pub use predict::ReadyPredict;
pub use program::{is_same_json, program_answer, program_name, timestamp_from_millis};
pub use recorded_refusal::refusal as refusal_of;

use crate::definition::Definition;
use crate::limits::CANCELLED_INTENTS_MAX;
use crate::list::{CastStart, MessageList};
use folding::SummaryInProgress;
use group::OpenGroup;
use request::TurnRequest;

/// The facts that do not change during a cast.
#[derive(Debug, Clone)]
pub struct CastFacts {
    pub run: RunId,
    pub entity: EntityId,
    pub cast: CastId,
    pub definition: Arc<Definition>,
    /// The circle, with the gate that reads the entity's context if the entity has one.
    pub circle: Circle,
    pub medium: CastMedium,
    /// True for a root run, which waits while its crystal is unavailable. A child, and a root run that is configured
    /// so, ends.
    pub parks: bool,
    pub askable: bool,
    /// The content of the intent, also if an earlier cast brought it.
    pub intent: Content,
    /// The intent as recorded: new, or the intent of an earlier cast.
    pub about: Intent,
    /// The environment of the first cast of a fork.
    pub environment: Option<Environment>,
    /// The intents before this cast that were cancelled before an answer.
    pub cancelled: Vec<UnansweredIntent>,
    /// The scope that the cast's money is counted in: its own cast, or the nearest cast above with a limit.
    pub scope: String,
}

/// The medium that serves the entity's circle.
#[derive(Clone)]
pub struct CastMedium(pub Arc<dyn cantrip_circle::Medium>);

impl std::fmt::Debug for CastMedium {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CastMedium").field(&self.0.kind()).finish()
    }
}

impl CastFacts {
    pub fn crystal(&self) -> &str {
        &self.definition.record().crystal
    }

    /// Returns the program in the utterance's text, if programs are written there. If a tool is offered for programs, a
    /// fenced block is plain text.
    fn fenced_program(&self, said: &Utterance) -> Option<String> {
        match self.definition.mode() {
            // A program that was cut off is not run: it is incomplete.
            ToolMode::Fenced if said.calls.is_empty() && said.finish != Finish::Length => {
                cantrip_circle::fence::extract_program(self.circle.medium(), said.content.as_deref()?)
            }
            ToolMode::Fenced | ToolMode::Tool => None,
        }
    }
}

/// An intent that was cancelled before its first turn was closed.
#[derive(Debug, Clone, PartialEq)]
pub struct UnansweredIntent {
    /// The cast that brought the intent.
    pub cast: CastId,
    pub intent: Content,
}

impl UnansweredIntent {
    /// Builds the entry for a cast that was cancelled without a turn: the intent, under the cast that brought it.
    pub fn from_cast(cast: CastId, about: &Intent, intent: &Content) -> Self {
        let cast = match about {
            Intent::New(_) => cast,
            Intent::Of(earlier) => *earlier,
        };
        Self { cast, intent: intent.clone() }
    }

    /// Returns the intents that the next cast adds to its list: the newest ones, without the intent that it continues.
    pub fn for_next_cast(all: Vec<Self>, next: &Intent) -> Vec<Self> {
        let goes_on = |told: &Self| match next {
            Intent::New(_) => false,
            Intent::Of(earlier) => told.cast == *earlier,
        };
        let mut told: Vec<Self> = all.into_iter().filter(|told| !goes_on(told)).collect();
        let more = told.len().saturating_sub(CANCELLED_INTENTS_MAX);
        told.drain(..more);
        told
    }
}

/// The state of the entity when the cast begins.
#[derive(Debug)]
pub struct EntityHistory {
    pub view: MessageList,
    /// The parent of the next turn.
    pub parent: Option<TurnId>,
    /// The entity's last turn, or the turn that the entity branched off from; none before the first turn.
    pub own: Option<TurnId>,
    /// The sequence number of the last turn.
    pub sequence: u64,
    pub touched: Labels,
    /// The images in the intents on the entity's path.
    pub images: Vec<BodyRef>,
    /// The intents since the entity's last turn that were cancelled before an answer, oldest first.
    pub cancelled: Vec<UnansweredIntent>,
}

impl EntityHistory {
    /// Returns the history of an entity before its first turn, with the beginning of its message list.
    pub fn empty(view: MessageList) -> Self {
        Self {
            view,
            parent: None,
            own: None,
            sequence: 0,
            touched: Labels::none(),
            images: Vec::new(),
            cancelled: Vec::new(),
        }
    }
}

/// The reason why a cast ends without a decision of its entity, in a form that can still be rendered as a refusal.
#[derive(Debug, Clone)]
pub enum CastFailure {
    Crystal(Failure, u32),
    Breach(contract::ContractViolation),
    /// The answer was cut off at its output limit before it had any text or call. The number is the limit in tokens.
    CutBeforeSaying(u32),
    /// No call came after this number of prompts.
    CallMissing(u32),
    /// The message list itself is invalid.
    Unpaired(String),
    /// The error as a record keeps it.
    Recorded(RecordedError),
}

impl CastFailure {
    /// Returns the refusal with additional data for its reader.
    pub fn refusal(&self, crystal: &str, data: &Value) -> Refusal {
        match self {
            Self::Crystal(failure, attempts) => failure.to_reply(*attempts).data(data).into(),
            Self::Breach(breach) => breach.to_reply().data(data).into(),
            Self::CutBeforeSaying(limit) => codes::answer_cut(crystal, *limit).data(data).into(),
            Self::CallMissing(prompts) => contract::missing_call_failure(*prompts).data(data).into(),
            Self::Unpaired(rule) => codes::crystal_rejected(crystal, rule.as_str()).data(data).into(),
            Self::Recorded(fault) => recorded_refusal::refusal_with(fault, data),
        }
    }

    /// Returns the reason for truncating the cast.
    fn reason(&self) -> TruncationReason {
        match self {
            Self::CutBeforeSaying(_) => TruncationReason::MaxTokens,
            Self::Crystal(..) | Self::Breach(_) | Self::CallMissing(_) | Self::Unpaired(_) | Self::Recorded(_) => {
                TruncationReason::CrystalError
            }
        }
    }
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a machine has one of them, and asks most of the time")]
enum Phase {
    /// An answer is needed, or a request is in flight.
    Asking(TurnRequest),
    /// The list is folded before an answer is requested.
    Folding(Box<SummaryInProgress>),
    Acting(Box<OpenGroup>),
    Ended,
}

/// One cast of one entity.
#[derive(Debug)]
pub struct Machine {
    facts: Arc<CastFacts>,
    view: MessageList,
    phase: Phase,
    /// The parent of the next turn. `sequence` is the number of the last turn.
    parent: Option<TurnId>,
    sequence: u64,
    /// The last closed turn of this cast.
    leaf: Option<TurnId>,
    /// The turn that the sandbox variables come from: the last turn of the last closed group, or the turn that the
    /// entity branched off from.
    sandbox_base: Option<TurnId>,
    turns: u64,
    utterances: u64,
    /// The number of children that this cast spawned.
    children: u64,
    /// The usage of all attempts that reported it.
    usage: Usage,
    /// The cost of all requests and calls of the cast.
    spent: CostTotal,
    touched: Labels,
    images: Vec<BodyRef>,
    /// The marks of this cast's groups, for loop detection. A mark of `None` resets it.
    marks: Vec<Option<cantrip_canon::Hash>>,
    deeds: Vec<crate::list::GateCallCount>,
    last_said: Option<String>,
    /// The joined texts of the consecutive cut-off answers up to the last turn, and their number.
    cut_text: String,
    cut_texts: u32,
    approvals: BTreeMap<CallId, approval::Approval>,
    /// The calls that are being checked by policy and paid for.
    entering: Option<admission::CallAdmission>,
    /// The call whose start is being paid for.
    paying: Option<admission::CallPayment>,
    /// The approval that a person has to be asked for next.
    waits: Option<approval::ApprovalNeeded>,
    /// The holds of an earlier owner that were kept: their calls are made again.
    adopted: Arc<HashSet<ReservationId>>,
    /// The labels that children had touched when they ended.
    kin: HashMap<EntityId, Labels>,
    halt: Option<TruncationReason>,
    failing: Option<CastFailure>,
    /// Records that are drafted and applied, but not yet requested to be appended.
    pending: Vec<(Timestamp, Event)>,
    bodies: Vec<Body>,
    /// The ledger operations that are appended with the next records.
    money: Vec<Operation>,
    ready: Option<Effect>,
    end: Option<End>,
    answer: Option<serde_json::Value>,
    /// The call that the waiting program makes.
    called: Option<cantrip_circle::medium::ProgramCall>,
    /// Children of the delegation that is about to settle.
    grown: Vec<ChildOutcome>,
    /// The predict that is being prepared or is ready.
    predict: Option<predict::PredictInProgress>,
    /// The verifier's score of the answer.
    score: Option<f64>,
    /// In replay: the recorded folds, by the sequence number of the turn that they follow.
    recorded_folds: Option<HashMap<u64, Vec<FoldView>>>,
}

impl Machine {
    /// Creates the machine of a cast that begins. On resume, the recorded events of the cast are applied next.
    pub fn new(facts: Arc<CastFacts>, past: EntityHistory) -> Self {
        let mut view = past.view;
        let mut images = past.images;
        let cancelled: Vec<Content> = facts.cancelled.iter().map(|told| told.intent.clone()).collect();
        for image in cancelled.iter().chain([&facts.intent]).flat_map(images_of) {
            if !images.contains(&image) {
                images.push(image);
            }
        }
        view.begin(CastStart {
            cast: facts.cast,
            intent: &facts.about,
            content: &facts.intent,
            environment: facts.environment,
            cancelled: &cancelled,
        });
        Self {
            facts,
            view,
            phase: Phase::Asking(TurnRequest::new(Instant::default())),
            parent: past.parent,
            sequence: past.sequence,
            leaf: None,
            sandbox_base: past.own,
            turns: 0,
            utterances: 0,
            children: 0,
            usage: Usage::default(),
            spent: CostTotal::default(),
            touched: past.touched,
            images,
            marks: Vec::new(),
            deeds: Vec::new(),
            last_said: None,
            cut_text: String::new(),
            cut_texts: 0,
            approvals: BTreeMap::new(),
            entering: None,
            paying: None,
            waits: None,
            adopted: Arc::default(),
            kin: HashMap::new(),
            halt: None,
            failing: None,
            pending: Vec::new(),
            bodies: Vec::new(),
            money: Vec::new(),
            ready: None,
            end: None,
            answer: None,
            called: None,
            grown: Vec::new(),
            predict: None,
            score: None,
            recorded_folds: None,
        }
    }

    /// Sets replay mode: the machine folds only where these records say, by the sequence number of the turn that they
    /// follow.
    pub fn with_recorded_folds(mut self, recorded: HashMap<u64, Vec<FoldView>>) -> Self {
        self.recorded_folds = Some(recorded);
        self
    }

    /// Sets the text that an earlier cast under the same intent could not finish; this cast continues it.
    pub fn going_on_with(mut self, cut_text: String) -> Self {
        self.cut_text = cut_text;
        self
    }

    /// Cuts the cast off from outside. The first reason counts.
    pub fn halt(&mut self, reason: TruncationReason) {
        self.halt.get_or_insert(reason);
    }

    pub fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// Returns the answer, once the cast terminated with one.
    pub fn answer(&self) -> Option<&serde_json::Value> {
        self.answer.as_ref()
    }

    pub fn facts(&self) -> &Arc<CastFacts> {
        &self.facts
    }

    /// Returns the turn that the entity's variables come from. Programs of an open group are run again by the group
    /// itself.
    pub fn sandbox_base(&self) -> Option<TurnId> {
        self.sandbox_base
    }

    /// Returns the images that the list may show.
    pub fn images(&self) -> &[BodyRef] {
        &self.images
    }

    pub fn failing(&self) -> Option<&CastFailure> {
        self.failing.as_ref()
    }

    /// Sets the labels that the children in the records still to be applied had touched when they ended.
    pub fn set_child_labels(&mut self, kin: HashMap<EntityId, Labels>) {
        self.kin = kin;
    }

    /// Sets the holds that an earlier owner made and that were kept, for calls that are made again.
    pub fn set_adopted_holds(&mut self, adopted: Arc<HashSet<ReservationId>>) {
        self.adopted = adopted;
    }

    pub fn touched(&self) -> &Labels {
        &self.touched
    }

    /// Returns the turn that holds the utterance that is being executed.
    pub fn utterance_turn(&self) -> Option<TurnId> {
        match &self.phase {
            Phase::Acting(group) => Some(group.holder),
            Phase::Asking(_) | Phase::Folding(_) | Phase::Ended => None,
        }
    }

    /// Returns the call that brought the running program; none for a program in the text.
    pub fn program_call(&self) -> Option<String> {
        match &self.phase {
            Phase::Acting(group) => group.program.as_ref().and_then(|program| program.tool_call_id.clone()),
            Phase::Asking(_) | Phase::Folding(_) | Phase::Ended => None,
        }
    }

    /// Returns the running hash over the list.
    pub fn digest(&self) -> cantrip_canon::Hash {
        self.view.digest()
    }

    /// Returns the digest as it was computed before signed parts were sent back to providers, if it differs.
    pub fn former_digest(&self) -> Option<cantrip_canon::Hash> {
        self.view.former_digest()
    }

    /// Returns the number of utterances of this cast so far.
    pub fn utterances(&self) -> u64 {
        self.utterances
    }

    /// Returns the state of the entity now, for its next cast.
    pub fn into_history(self) -> EntityHistory {
        let cancelled = self.remaining_cancelled();
        EntityHistory {
            cancelled,
            view: self.view,
            parent: self.parent,
            own: self.sandbox_base,
            sequence: self.sequence,
            touched: self.touched,
            images: self.images,
        }
    }

    /// Returns the intents without an answer that the next cast has to add to its list.
    fn remaining_cancelled(&self) -> Vec<UnansweredIntent> {
        if self.turns > 0 {
            return Vec::new();
        }
        let mut left = self.facts.cancelled.clone();
        let is_cancelled = self.end.as_ref().is_some_and(|end| match &end.ending {
            cantrip_loom::Ending::Truncated { reason, .. } => *reason == TruncationReason::Cancelled,
            cantrip_loom::Ending::Terminated { .. } => false,
        });
        if is_cancelled {
            left.push(UnansweredIntent::from_cast(self.facts.cast, &self.facts.about, &self.facts.intent));
        }
        left
    }

    /// Returns the next effect. Call it again after the effect was executed and its result was passed to
    /// `handle_input`.
    pub fn next(&mut self, world: &StepContext<'_>) -> Result<Effect, Error> {
        loop {
            if let Some(effect) = self.ready.take() {
                return Ok(effect);
            }
            let effect = match &self.phase {
                Phase::Asking(_) => self.step_request(world)?,
                Phase::Folding(_) => self.step_summary(world)?,
                Phase::Acting(_) => self.act(world)?,
                Phase::Ended => Some(Effect::Finish),
            };
            if let Some(effect) = effect {
                return Ok(self.append_before(effect));
            }
        }
    }

    /// Handles the result of an effect.
    pub fn handle_input(&mut self, what: Input, world: &StepContext<'_>) -> Result<(), Error> {
        let folds = matches!(self.phase, Phase::Folding(_));
        match what {
            Input::Authorized(_) if folds => self.fold_authorized(),
            Input::Authorized(said) => self.handle_authorized(said, world),
            Input::Reserved if folds => self.fold_reserved(),
            Input::Reserved => self.handle_reserved(),
            Input::Waited if folds => self.fold_slept(),
            Input::Waited => self.restart_request(),
            Input::Unpaid(unpaid) if folds => self.fold_unpaid(unpaid, world),
            Input::Unpaid(unpaid) if self.paying.is_some() => self.handle_call_unpaid(unpaid),
            Input::Unpaid(unpaid) => self.handle_unpaid(unpaid, world),
            Input::Answered(answer) if folds => self.fold_answered(answer, world),
            Input::Answered(answer) => self.handle_answer(answer, world),
            Input::Failed(failure, plan) if folds => self.fold_failed(failure, plan, world),
            Input::Failed(failure, plan) => self.handle_failure(failure, plan, world),
            Input::Interrupted if folds => self.fold_interrupted(world),
            Input::Interrupted => self.handle_interrupted(world),
            Input::Slept if folds => self.fold_slept(),
            Input::Slept => self.handle_slept(),
            Input::CallsDone(worked) => self.settle_calls(worked, world),
            Input::ChildrenDone(grown) => self.settle_children(grown),
            Input::Prepared(prepared) => self.handle_prepared(prepared),
            Input::ProgramCalled(call) => self.handle_program_call(call),
            Input::ProgramEnded(output, end) => self.handle_program_end(output, end, world),
            Input::SandboxLost(lost) => self.handle_sandbox_lost(lost, world),
        }
    }

    /// Returns the effect, or first the append of the records that must be durable before it. Records with nothing
    /// executed between them share one append.
    fn append_before(&mut self, effect: Effect) -> Effect {
        let waits = match &effect {
            Effect::Authorize(_)
            | Effect::Reserve(_)
            | Effect::Append { .. }
            | Effect::Prepare(_)
            | Effect::RunProgram(_)
            | Effect::ResumeProgram { .. }
            | Effect::CancelProgram => false,
            Effect::Execute(works) => works.iter().any(|work| match &work.kind {
                CallTaskKind::Enter(permit) => !admission::needs_no_record(permit),
                CallTaskKind::Verify(_) => true,
                CallTaskKind::Refuse(_) | CallTaskKind::Answer(_) => false,
            }),
            Effect::Ask(_)
            | Effect::Summarise(_)
            | Effect::Sleep(_)
            | Effect::Spawn(_)
            | Effect::WaitApproval { .. }
            | Effect::Park { .. }
            | Effect::Finish => true,
        };
        if !waits || self.pending.is_empty() {
            return effect;
        }
        self.ready = Some(effect);
        self.take_append()
    }

    /// Returns an effect that appends everything that was drafted.
    fn take_append(&mut self) -> Effect {
        Effect::Append {
            events: std::mem::take(&mut self.pending),
            bodies: std::mem::take(&mut self.bodies),
            money: std::mem::take(&mut self.money),
        }
    }

    /// Drafts a record. It is applied at once, and it is durable before any effect that depends on it is executed.
    fn draft(&mut self, event: impl Into<Event>, world: &StepContext<'_>) -> Result<(), Error> {
        let event = event.into();
        let bodies = std::mem::take(&mut self.bodies);
        let applied = self.apply_drafted(&event, &DraftBodies(&bodies), world);
        self.bodies = bodies;
        applied?;
        self.pending.push((world.now.wall, event));
        Ok(())
    }

    fn held<T: serde::Serialize + serde::de::DeserializeOwned + Clone>(
        &mut self,
        value: T,
    ) -> Result<RecordValue<T>, Error> {
        RecordValue::new(value, &mut self.bodies)
    }

    fn incoherent(&self, kind: &str, fault: &'static str) -> Error {
        Error::Incoherent { run: self.facts.run, kind: kind.to_owned(), fault }
    }
}

/// Returns the images in a content.
pub fn images_of(content: &Content) -> impl Iterator<Item = BodyRef> + '_ {
    let parts = match content {
        Content::Text(_) => &[][..],
        Content::Parts(parts) => parts.as_slice(),
    };
    parts.iter().filter_map(|part| match part {
        Part::Image { image, .. } => Some(*image),
        Part::Text { .. } => None,
    })
}

/// The bodies of records that are not yet durable.
struct DraftBodies<'a>(&'a [Body]);

impl Bodies for DraftBodies<'_> {
    fn body(&self, hash: &cantrip_canon::Hash) -> Result<Arc<[u8]>, Error> {
        let found = self.0.iter().find(|body| body.hash() == *hash);
        found.map(|body| Arc::clone(body.bytes())).ok_or(Error::BodyAltered(*hash))
    }
}

/// Converts a duration to whole milliseconds, as records keep it.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).min(cantrip_canon::limits::JSON_INTEGER_MAX)
}

/// Like [`millis`], but rounds up, so that a duration above zero is never shown as zero.
fn millis_up(duration: Duration) -> u64 {
    millis(duration.saturating_add(Duration::from_nanos(999_999)))
}
