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
mod drafts;
mod effect;
mod end;
mod facts;
mod group;
mod money;
mod position;
mod predict;
mod program;
mod recorded_refusal;
mod request;
mod settle;
mod tally;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::{EntityId, Hash, Instant, TurnId};
use cantrip_circle::Labels;
use cantrip_crystal::{Failure, contract};
use cantrip_loom::{
    Bodies, Body, BodyRef, CallId, Content, End, Ending, Error, Event, FoldView, RecordedError, TruncationReason,
};
use cantrip_reply::{Refusal, codes};
use cantrip_spend::ReservationId;
use serde_json::Value;

pub use child::ChildSpec;
pub use effect::{
    AuthorizeKind, AuthorizeRequest, CallOutcome, CallTask, CallTaskKind, ChildOutcome, CrystalRequest, Effect,
    EndedProgram, FreeCall, Input, PolicyAnswer, PrepareRequest, ProgramStart, RefusalWording, RequestPurpose,
    SpawnRequest, StepContext, WorstCase,
};
pub use end::{halt_of, truncation_refusal};
pub use facts::{CastFacts, CastMedium, EntityHistory, UnansweredIntent, images_of};
pub use money::{RunPayer, UnpaidReason, crystal_subject};
pub use predict::ReadyPredict;
pub use program::{is_same_json, program_answer, program_name, timestamp_from_millis};
pub use recorded_refusal::refusal as refusal_of;

use crate::list::{CastStart, MessageList};
use admission::Admission;
use drafts::Drafts;
use group::OpenGroup;
use position::ThreadPosition;
use request::RequestInProgress;
use tally::CastTally;

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
    /// An answer is needed, or a request is in flight: for the turn, or for a fold before it.
    Asking(RequestInProgress),
    Acting(Box<OpenGroup>),
    Ended,
}

/// One cast of one entity.
#[derive(Debug)]
pub struct Machine {
    facts: Arc<CastFacts>,
    view: MessageList,
    phase: Phase,
    position: ThreadPosition,
    tally: CastTally,
    touched: Labels,
    images: Vec<BodyRef>,
    approvals: BTreeMap<CallId, approval::Approval>,
    admission: Admission,
    /// The holds of an earlier owner that were kept: their calls are made again.
    adopted: Arc<HashSet<ReservationId>>,
    /// The labels that children had touched when they ended.
    kin: HashMap<EntityId, Labels>,
    halt: Option<TruncationReason>,
    failing: Option<CastFailure>,
    drafts: Drafts,
    ready: Option<Effect>,
    end: Option<End>,
    answer: Option<Value>,
    /// The predict that is being prepared or is ready.
    predict: Option<predict::PredictInProgress>,
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
            intent_record: &facts.intent_record,
            intent: &facts.intent,
            environment: facts.environment,
            cancelled: &cancelled,
        });
        Self {
            facts,
            view,
            phase: Phase::Asking(RequestInProgress::new(Instant::default())),
            position: ThreadPosition::new(past.parent, past.sequence, past.own),
            tally: CastTally::default(),
            touched: past.touched,
            images,
            approvals: BTreeMap::new(),
            admission: Admission::default(),
            adopted: Arc::default(),
            kin: HashMap::new(),
            halt: None,
            failing: None,
            drafts: Drafts::default(),
            ready: None,
            end: None,
            answer: None,
            predict: None,
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
        self.tally.continue_text(cut_text);
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
    pub fn answer(&self) -> Option<&Value> {
        self.answer.as_ref()
    }

    pub fn facts(&self) -> &Arc<CastFacts> {
        &self.facts
    }

    /// Returns the turn that the entity's variables come from. Programs of an open group are run again by the group
    /// itself.
    pub fn sandbox_base(&self) -> Option<TurnId> {
        self.position.sandbox_base()
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
        self.acting().map(|group| group.holder)
    }

    fn acting(&self) -> Option<&OpenGroup> {
        if let Phase::Acting(group) = &self.phase { Some(group) } else { None }
    }

    /// Returns the call that brought the running program; none for a program in the text.
    pub fn program_call(&self) -> Option<String> {
        self.acting()?.program.as_ref()?.tool_call_id.clone()
    }

    /// Returns the running hash over the list.
    pub fn digest(&self) -> Hash {
        self.view.digest()
    }

    /// Returns the digest as it was computed before signed parts were sent back to providers, if it differs.
    pub fn former_digest(&self) -> Option<Hash> {
        self.view.former_digest()
    }

    /// Returns the number of utterances of this cast so far.
    pub fn utterances(&self) -> u64 {
        self.tally.utterances()
    }

    /// Returns the state of the entity now, for its next cast.
    pub fn into_history(self) -> EntityHistory {
        let cancelled = self.remaining_cancelled();
        EntityHistory {
            cancelled,
            view: self.view,
            parent: self.position.parent(),
            own: self.position.sandbox_base(),
            sequence: self.position.sequence(),
            touched: self.touched,
            images: self.images,
        }
    }

    /// Returns the intents without an answer that the next cast has to add to its list.
    fn remaining_cancelled(&self) -> Vec<UnansweredIntent> {
        if self.tally.turns() > 0 {
            return Vec::new();
        }
        let mut left = self.facts.cancelled.clone();
        let ending = self.end.as_ref().map(|end| &end.ending);
        if let Some(Ending::Truncated { reason: TruncationReason::Cancelled, .. }) = ending {
            left.push(UnansweredIntent::from_cast(self.facts.cast, &self.facts.intent_record, &self.facts.intent));
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
        match what {
            Input::Authorized(said) => self.handle_authorized(said, world),
            Input::Reserved => self.handle_reserved(),
            Input::Waited | Input::Slept => self.restart_request(),
            Input::Unpaid(unpaid) if self.is_paying() => self.handle_call_unpaid(unpaid),
            Input::Unpaid(unpaid) => self.handle_unpaid(unpaid, world),
            Input::Answered(answer) => self.handle_answer(answer, world),
            Input::Failed(failure, plan) => self.handle_failure(failure, plan, world),
            Input::Interrupted => self.handle_interrupted(world),
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
            | Effect::Sleep(_)
            | Effect::Spawn(_)
            | Effect::WaitApproval { .. }
            | Effect::Park { .. }
            | Effect::Finish => true,
        };
        if !waits || self.drafts.is_empty() {
            return effect;
        }
        self.ready = Some(effect);
        self.drafts.take()
    }

    /// Drafts a record. It is applied at once, and it is durable before any effect that depends on it is executed.
    fn draft(&mut self, event: impl Into<Event>, world: &StepContext<'_>) -> Result<(), Error> {
        let event = event.into();
        let bodies = std::mem::take(self.drafts.bodies());
        let applied = self.apply_drafted(&event, &DraftBodies(&bodies), world);
        *self.drafts.bodies() = bodies;
        applied?;
        self.drafts.push(world.now.wall, event);
        Ok(())
    }

    fn incoherent(&self, kind: &str, fault: &'static str) -> Error {
        Error::Incoherent { run: self.facts.run, kind: kind.to_owned(), fault }
    }
}

/// The bodies of records that are not yet durable.
struct DraftBodies<'a>(&'a [Body]);

impl Bodies for DraftBodies<'_> {
    fn body(&self, hash: &Hash) -> Result<Arc<[u8]>, Error> {
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
