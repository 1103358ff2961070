//! The life of a request to a crystal, for a turn or for the summary of a fold.
//!
//! Both take the same way: they are checked, authorized and reserved, the attempt is recorded and sent, a failed one
//! backs off, and each is settled with its cost. Only the check before and the use of the answer depend on the purpose:
//! [`turn`] opens a turn with it, [`summary`] makes a fold. A lifecycle for each was turned down: the two drifted apart
//! wherever one of them was mended.

mod charge;
mod summary;
mod turn;

use std::time::Duration;

use cantrip_canon::{Hash, Instant, Money, TurnId};
use cantrip_crystal::{Answer, Charge, Failure, Messages, RetryDecision};
use cantrip_loom::{Attempt, CallId, CallSettled, Error, RecordedError, ReplyMark, TruncationReason};
use cantrip_reply::{Refusal, codes};
use cantrip_spend::{ReservationId, UnknownOutcome};
use serde_json::Value;

use super::money::UnpaidReason;
use super::{
    AuthorizeKind, AuthorizeRequest, CrystalRequest, Effect, Machine, Phase, PolicyAnswer, RequestPurpose, StepContext,
    WorstCase,
};
use crate::definition::CrystalFacts;
pub(super) use charge::charged_amount;
use charge::{unknown_after_failure, unknown_after_halt};
use summary::SummaryInProgress;
use turn::TurnRequest;

/// The request for the next turn, and the fold that is written before it is sent.
#[derive(Debug)]
pub(super) struct RequestInProgress {
    turn: TurnRequest,
    summary: Option<Box<SummaryInProgress>>,
}

/// The state of a request, whatever it is for.
#[derive(Debug)]
struct AttemptState {
    stage: RequestStage,
    /// The last attempt that was recorded; 0 before the first.
    number: u32,
    /// The attempts at the current crystal since this machine, or a resume, took up the request: retries start again.
    tries: u32,
    /// The time from which the duration of the request counts.
    since: Instant,
    output_tokens: u32,
    /// The most tokens that the request can use, under a token limit.
    worst_tokens: Option<u64>,
    /// The last amount to be held and the hash of its subject: a person may be asked about it.
    price: Option<(Money, Hash)>,
    /// The hold for the attempt in flight. Holds of an earlier owner were marked when the run was taken over.
    reservation: Option<ReservationId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestStage {
    Check,
    Authorize,
    Reserve,
    Record,
    /// A person has to approve the cost.
    Approve,
    Flying,
    /// Waits for the back-off before the next attempt.
    Wait(Duration),
    /// The retries are used up.
    Park,
    Parked,
}

/// An attempt that is about to be recorded.
struct AttemptDraft {
    messages: Messages,
    digest: Hash,
    crystal: CrystalFacts,
    /// The name that the record keeps: only that of a fallback.
    recorded_crystal: Option<String>,
    amount: Option<Money>,
    output_tokens: u32,
}

impl AttemptState {
    fn new(since: Instant) -> Self {
        Self {
            stage: RequestStage::Check,
            number: 0,
            tries: 0,
            since,
            output_tokens: 0,
            worst_tokens: None,
            price: None,
            reservation: None,
        }
    }

    /// Discards the attempt that was about to be sent; nothing of it is on record.
    fn discard(&mut self) {
        self.number = self.number.saturating_sub(1);
        self.tries = self.tries.saturating_sub(1);
        self.reservation = None;
        self.stage = RequestStage::Check;
    }
}

impl RequestInProgress {
    pub(super) fn new(since: Instant) -> Self {
        Self { turn: TurnRequest::new(since), summary: None }
    }

    fn attempts(&mut self) -> &mut AttemptState {
        match &mut self.summary {
            Some(summary) => &mut summary.attempts,
            None => &mut self.turn.attempts,
        }
    }

    /// Returns true while a fold is written before the request of the turn.
    pub(super) fn is_folding(&self) -> bool {
        self.summary.is_some()
    }

    /// Returns the time from which the duration of the turn counts, if the turn was requested by this machine.
    pub(super) fn since(&self) -> Option<Instant> {
        Some(self.turn.attempts.since).filter(|since| *since != Instant::default())
    }

    /// Notes a recorded attempt. The next attempt continues from it.
    pub(super) fn note_attempt(&mut self, attempt: &Attempt, fresh: bool) {
        let attempts = self.attempts();
        attempts.number = attempt.number;
        attempts.reservation = attempt.reservation_id.clone().filter(|_| fresh);
    }

    /// Notes that the attempt has ended.
    pub(super) fn end_attempt(&mut self) {
        self.attempts().reservation = None;
    }

    /// Notes the id of the turn that is requested, or that a person was asked about.
    pub(super) fn note_turn(&mut self, turn: TurnId) {
        self.turn.id = Some(turn);
    }

    /// Notes a recorded attempt to write a fold; `written` is true if the fold was written.
    pub(super) fn note_fold(&mut self, written: bool) {
        self.summary = None;
        self.turn.note_fold(written);
    }
}

impl Machine {
    fn request(&mut self) -> Result<&mut RequestInProgress, Error> {
        let fault = self.incoherent("attempt", "nothing is being asked");
        match &mut self.phase {
            Phase::Asking(request) => Ok(request),
            Phase::Acting(_) | Phase::Ended => Err(fault),
        }
    }

    fn attempts(&mut self) -> Result<&mut AttemptState, Error> {
        Ok(self.request()?.attempts())
    }

    fn asking(&self) -> Option<&RequestInProgress> {
        if let Phase::Asking(request) = &self.phase { Some(request) } else { None }
    }

    fn is_folding(&self) -> bool {
        self.asking().is_some_and(RequestInProgress::is_folding)
    }

    /// Returns the id of the request as records name it.
    fn request_call(&mut self, world: &StepContext<'_>) -> Result<CallId, Error> {
        if let Some(summary) = &self.request()?.summary {
            return Ok(summary.call());
        }
        Ok(CallId::request(self.requested_turn(world)?))
    }

    pub(super) fn step_request(&mut self, world: &StepContext<'_>) -> Result<Option<Effect>, Error> {
        let folds = self.is_folding();
        if folds && self.halt.is_some() {
            // The cast continues with the request of the turn, as if nothing had been folded.
            self.request()?.summary = None;
            return Ok(None);
        }
        match self.attempts()?.stage {
            RequestStage::Check if folds => self.check_before_summary(world),
            RequestStage::Check => self.check_before_request(world),
            RequestStage::Authorize => {
                // The last payment must be booked before the remaining money is measured.
                if !folds && self.drafts.has_money() && world.payer().is_some_and(|payer| payer.limited) {
                    return Ok(Some(self.drafts.take()));
                }
                let call = self.request_call(world)?;
                Ok(Some(Effect::Authorize(vec![AuthorizeRequest { call, kind: AuthorizeKind::Request }])))
            }
            RequestStage::Reserve => {
                let call = self.request_call(world)?;
                let tokens = self.attempts()?.worst_tokens;
                // Money is held in the step of the attempt itself.
                Ok(Some(Effect::Reserve(vec![WorstCase { call, tokens }])))
            }
            RequestStage::Record => self.record_attempt(world),
            RequestStage::Approve => self.request_spend(world),
            RequestStage::Wait(delay) => Ok(Some(Effect::Sleep(delay))),
            RequestStage::Park => self.park(world).map(Some),
            RequestStage::Flying | RequestStage::Parked => {
                Err(self.incoherent("attempt", "it was asked for a second effect"))
            }
        }
    }

    pub(super) fn handle_authorized(&mut self, said: Vec<PolicyAnswer>, world: &StepContext<'_>) -> Result<(), Error> {
        let folds = self.is_folding();
        match &mut self.phase {
            Phase::Acting(_) => self.handle_entries_authorized(said, world),
            Phase::Asking(request) => {
                if let (Some(PolicyAnswer::Unfunded(decided)), false) = (said.into_iter().next(), folds) {
                    return self.handle_unfunded(*decided, world);
                }
                request.attempts().stage = RequestStage::Reserve;
                Ok(())
            }
            Phase::Ended => Err(self.incoherent("attempt", "nothing was asked for")),
        }
    }

    pub(super) fn handle_reserved(&mut self) -> Result<(), Error> {
        self.attempts()?.stage = RequestStage::Record;
        Ok(())
    }

    /// Restarts the request with its checks: after its back-off, or after other entities of the tree held the money or
    /// the tokens that it needs.
    pub(super) fn restart_request(&mut self) -> Result<(), Error> {
        self.attempts()?.stage = RequestStage::Check;
        Ok(())
    }

    /// Records the attempt together with its hold, and sends it.
    fn record_attempt(&mut self, world: &StepContext<'_>) -> Result<Option<Effect>, Error> {
        let call = self.request_call(world)?;
        let draft = if self.is_folding() { self.draft_summary(world)? } else { self.draft_request(call, world)? };
        let Some(draft) = draft else { return Ok(None) };
        let AttemptDraft { messages, digest, crystal, recorded_crystal, amount, output_tokens } = draft;
        let number = self.attempts()?.number + 1;
        let hold = match amount.filter(|amount| amount.micros() > 0) {
            Some(amount) => {
                let held = self.request_hold(&crystal.name, call, number, amount, world)?;
                held.map(|held| (held, amount))
            }
            None => None,
        };
        // If the store refuses this request, the records before it must still be appended.
        if hold.is_some() && !self.drafts.is_empty() {
            return Ok(Some(self.drafts.take()));
        }
        let attempts = self.attempts()?;
        attempts.price = hold.as_ref().map(|(held, amount)| (*amount, held.subject));
        attempts.output_tokens = output_tokens;
        attempts.tries += 1;
        let tries = attempts.tries;
        let (reservation_id, operation) = hold.map(|(held, _)| (held.reservation, held.operation)).unzip();
        let recorded = Attempt {
            call_id: call,
            cast_id: self.facts.cast,
            number,
            request_digest: digest,
            list_length: messages.list_length() as u64,
            crystal: recorded_crystal,
            reservation_id,
        };
        self.draft(recorded, world)?;
        self.drafts.add_money(operation);
        self.attempts()?.stage = RequestStage::Flying;
        let RequestInProgress { turn, summary } = self.request()?;
        let (purpose, messages) = match (summary, turn.id) {
            (None, Some(id)) => {
                let before = number.saturating_sub(tries);
                let messages = if turn.aside.is_empty() { messages } else { messages.with_extra(turn.aside.clone()) };
                (RequestPurpose::Turn { turn: id, place: turn.place, before }, messages)
            }
            (Some(_) | None, _) => (RequestPurpose::Summary, messages),
        };
        Ok(Some(Effect::Ask(CrystalRequest { purpose, call, tries, messages, output_tokens })))
    }

    /// Handles an attempt that was not paid for and therefore never sent.
    pub(super) fn handle_unpaid(&mut self, unpaid: UnpaidReason, world: &StepContext<'_>) -> Result<(), Error> {
        self.ready = None;
        self.attempts()?.discard();
        match unpaid {
            UnpaidReason::Waited => Ok(()),
            UnpaidReason::Refused(_) if self.is_folding() => self.degrade(world),
            UnpaidReason::Refused(refused) => self.handle_spend_refused(*refused, world),
        }
    }

    pub(super) fn handle_answer(&mut self, answer: Answer, world: &StepContext<'_>) -> Result<(), Error> {
        if self.is_folding() { self.handle_notes(answer, world) } else { self.handle_utterance(answer, world) }
    }

    /// Handles a failed attempt: it is settled, then the request backs off or is given up.
    pub(super) fn handle_failure(
        &mut self,
        failure: Failure,
        plan: RetryDecision,
        world: &StepContext<'_>,
    ) -> Result<(), Error> {
        let tries = self.attempts()?.tries;
        let refusal = failure.to_reply(tries).into();
        self.settle_attempt(Err(refusal), failure.charge, unknown_after_failure(&failure), world)?;
        if !self.is_folding() {
            return self.handle_request_failure(failure, tries, plan, world);
        }
        match plan {
            RetryDecision::Again(delay) => self.back_off(delay),
            RetryDecision::Unavailable | RetryDecision::Final | RetryDecision::Deadline => self.degrade(world),
        }
    }

    fn back_off(&mut self, delay: Duration) -> Result<(), Error> {
        self.attempts()?.stage = RequestStage::Wait(delay);
        Ok(())
    }

    /// Handles a request that was given up: it is unknown whether the provider charges for it.
    pub(super) fn handle_interrupted(&mut self, world: &StepContext<'_>) -> Result<(), Error> {
        let reason = self.halt.unwrap_or(TruncationReason::Cancelled);
        let refusal = self.halt_refusal(reason);
        self.settle_attempt(Err(refusal), Charge::Unknown, unknown_after_halt(reason), world)?;
        if self.is_folding() {
            self.request()?.summary = None;
            return Ok(());
        }
        self.end_alone(reason, None, world)
    }

    /// Records the result of an attempt that opens no turn, with its cost.
    fn settle_attempt(
        &mut self,
        outcome: Result<Value, Refusal>,
        charge: Charge,
        why: UnknownOutcome,
        world: &StepContext<'_>,
    ) -> Result<(), Error> {
        let (reply, result): (ReplyMark, Value) = match outcome {
            Ok(written) => (codes::GATE_OK.any().into(), written),
            Err(refusal) => {
                let RecordedError { mark, message, .. } = world.words.render_fault(refusal);
                (mark, Value::String(message))
            }
        };
        let call_id = self.request_call(world)?;
        let cost = self.settle_request_hold(&charge, why, world)?;
        let attempts = self.attempts()?;
        let (number, since) = (attempts.number, attempts.since);
        let settled = CallSettled {
            call_id,
            reply,
            result: self.drafts.hold(result)?,
            duration_ms: super::millis_up(world.now.monotonic.since(since)),
            asked: None,
            ephemeral: false,
            data: None,
            children: Vec::new(),
            changes: Vec::new(),
            clock_ms: None,
            cost,
            decision: None,
            judged: None,
            attempt: Some(number),
            usage: charge.usage().copied(),
        };
        self.draft(settled, world)
    }

    /// Settles the hold of the attempt, and returns its cost; none if the cost is unknown.
    fn settle_request_hold(
        &mut self,
        charge: &Charge,
        why: UnknownOutcome,
        world: &StepContext<'_>,
    ) -> Result<Option<Money>, Error> {
        let price = if self.is_folding() {
            self.facts.definition.summariser().price
        } else {
            self.facts.definition.crystal_at(self.crystal_index()).price
        };
        let held = self.attempts()?.reservation.take();
        self.settle_hold(held, &price, charge, why, world.now.wall);
        Ok(charged_amount(&price, charge))
    }
}
