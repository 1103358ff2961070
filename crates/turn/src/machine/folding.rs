//! Folding before a request: a list that has grown too long is folded, by a crystal if the strategy is a summary.
//!
//! A summary is requested like an answer, attempt by attempt, each recorded before it is sent. But it opens no turn,
//! its text is not streamed to any viewer, and its tokens count for the cast alone. If it fails for any reason, a
//! window fold takes its place: a cast must not end because its notes could not be written.

use std::time::Duration;

use cantrip_canon::{FoldId, Instant};
use cantrip_crystal::{Answer, Charge, Failure, Messages, RetryDecision as Again, contract};
use cantrip_loom::{Attempt, CallId, CallSettled, Error, ReplyMark, Strategy};
use cantrip_reply::{Refusal, codes};
use cantrip_spend::{ReservationId, UnknownOutcome};
use serde_json::Value;

use super::money::{RequestCost, UnpaidReason};
use super::request::{TurnRequest, charge_from_usage, charged_amount, unknown_after_failure, unknown_after_halt};
use super::{AuthorizeKind, AuthorizeRequest, Effect, Machine, Phase, StepContext, WorstCase};
use crate::fold::{FoldDraft, FoldPlan, RecallOptions, SummaryReader, Trigger};
use crate::list::digest_of;

/// A fold that a crystal is writing.
#[derive(Debug)]
pub(super) struct SummaryInProgress {
    fold: FoldId,
    plan: FoldPlan,
    reading: SummaryReader,
    /// The number of the piece that is read, from 1.
    piece: u32,
    /// The last attempt at that piece that was recorded; 0 before the first.
    attempt: u32,
    stage: SummaryStage,
    since: Instant,
    reservation: Option<ReservationId>,
    /// The turn request to continue with after the fold.
    pub(super) asking: TurnRequest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SummaryStage {
    Authorize,
    Reserve,
    Record,
    Flying,
    Wait(Duration),
}

/// A piece of the folded turns, recorded and ready to be sent.
#[derive(Debug, Clone)]
pub struct SummaryRequest {
    pub call: CallId,
    /// The number of attempts at this piece, including this one.
    pub tries: u32,
    pub messages: Messages,
    pub output_tokens: u32,
}

impl SummaryInProgress {
    fn call(&self) -> CallId {
        CallId::of_fold(self.fold, self.piece)
    }

    /// Returns the last request that was recorded.
    fn last(&self) -> Option<CallId> {
        match (self.attempt, self.piece) {
            (0, 1) => None,
            (0, piece) => Some(CallId::of_fold(self.fold, piece - 1)),
            (_, piece) => Some(CallId::of_fold(self.fold, piece)),
        }
    }

    /// Notes a recorded attempt.
    pub(super) fn note_attempt(&mut self, number: u32) {
        self.attempt = number;
    }
}

impl Machine {
    /// Folds if a trigger holds. Replay folds where the recorded cast did, whatever is known about windows by now.
    pub(super) fn fold_if_due(&mut self, world: &StepContext<'_>) -> Result<(), Error> {
        if self.apply_recorded_folds() {
            return Ok(());
        }
        let folding = *self.facts.definition.folding();
        match folding.trigger(&self.view, self.output_cap()) {
            Some(trigger) => self.fold(trigger, world).map(|_| ()),
            None => Ok(()),
        }
    }

    fn output_cap(&self) -> u64 {
        self.facts.definition.output_tokens_at(0).into()
    }

    /// In replay, applies the recorded folds at this turn. Returns false outside of replay.
    fn apply_recorded_folds(&mut self) -> bool {
        let Some(recorded) = &mut self.recorded_folds else { return false };
        for fold in recorded.remove(&self.sequence).unwrap_or_default() {
            self.view.fold(fold.fold.strategy, fold.fold.to, &fold.text);
        }
        true
    }

    fn recall_options(&self) -> RecallOptions {
        let circle = &self.facts.circle;
        RecallOptions { loom: circle.gate("loom").is_some(), variables: circle.medium().is_code() }
    }

    /// Folds, or begins to. Returns false if there was nothing to fold.
    pub(super) fn fold(&mut self, trigger: Trigger, world: &StepContext<'_>) -> Result<bool, Error> {
        let folding = *self.facts.definition.folding();
        let Some(plan) = folding.plan(&self.view, trigger) else { return Ok(false) };
        match folding.strategy {
            Strategy::Window | Strategy::Selective => {
                let made = folding.make(&self.view, plan, self.recall_options(), self.output_cap());
                self.record_fold(&made, world.ids.next(world.now.wall), world)?;
            }
            Strategy::Summary => self.begin_summary(plan, world)?,
        }
        Ok(true)
    }

    fn record_fold(&mut self, made: &FoldDraft, fold: FoldId, world: &StepContext<'_>) -> Result<(), Error> {
        let mut record = made.record(fold, self.facts.entity, &mut self.bodies)?;
        if let Some(sum) = &mut record.sum {
            sum.labels = self.touched.iter().map(|label| label.as_str().to_owned()).collect();
        }
        self.draft(record, world)
    }

    fn begin_summary(&mut self, plan: FoldPlan, world: &StepContext<'_>) -> Result<(), Error> {
        let profile = self.facts.definition.summariser().profile;
        let reading = SummaryReader::of(&self.view, &plan, &profile);
        let fault = self.incoherent("fold", "nothing is being asked");
        let asking = match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Asking(asking) => asking,
            other @ (Phase::Acting(_) | Phase::Folding(_) | Phase::Ended) => {
                self.phase = other;
                return Err(fault);
            }
        };
        self.phase = Phase::Folding(Box::new(SummaryInProgress {
            fold: world.ids.next(world.now.wall),
            plan,
            reading,
            piece: 1,
            attempt: 0,
            stage: SummaryStage::Authorize,
            since: world.now.monotonic,
            reservation: None,
            asking,
        }));
        Ok(())
    }

    fn summarising(&mut self) -> Result<&mut SummaryInProgress, Error> {
        let fault = self.incoherent("fold", "nothing is being folded");
        match &mut self.phase {
            Phase::Folding(summarising) => Ok(summarising),
            Phase::Asking(_) | Phase::Acting(_) | Phase::Ended => Err(fault),
        }
    }

    pub(super) fn step_summary(&mut self, world: &StepContext<'_>) -> Result<Option<Effect>, Error> {
        if self.halt.is_some() {
            self.leave_folding();
            return Ok(None);
        }
        let (call, stage) = {
            let summarising = self.summarising()?;
            (summarising.call(), summarising.stage)
        };
        match stage {
            SummaryStage::Authorize if world.tokens_left.is_some_and(|left| self.summary_tokens() > left) => {
                self.degrade(world).map(|()| None)
            }
            SummaryStage::Authorize => {
                Ok(Some(Effect::Authorize(vec![AuthorizeRequest { call, about: AuthorizeKind::Request }])))
            }
            SummaryStage::Reserve => {
                let tokens = world.tokens_left.map(|_| self.summary_tokens());
                Ok(Some(Effect::Reserve(vec![WorstCase { call, tokens }])))
            }
            SummaryStage::Record => self.record_summary_attempt(world),
            SummaryStage::Wait(delay) => Ok(Some(Effect::Sleep(delay))),
            SummaryStage::Flying => Err(self.incoherent("fold", "it was asked for a second effect")),
        }
    }

    /// Continues with the turn request as if nothing had been folded.
    pub(super) fn leave_folding(&mut self) {
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Folding(summarising) => self.phase = Phase::Asking(summarising.asking),
            other @ (Phase::Asking(_) | Phase::Acting(_) | Phase::Ended) => self.phase = other,
        }
    }

    /// Returns the most tokens that reading the next piece can use.
    fn summary_tokens(&self) -> u64 {
        let measure = self.view.frame().measure;
        match &self.phase {
            Phase::Folding(summarising) => {
                let reading = &summarising.reading;
                reading.estimate(&measure).saturating_add(u64::from(reading.tokens_max()))
            }
            Phase::Asking(_) | Phase::Acting(_) | Phase::Ended => 0,
        }
    }

    fn record_summary_attempt(&mut self, world: &StepContext<'_>) -> Result<Option<Effect>, Error> {
        let cast_id = self.facts.cast;
        let summarising = self.summarising()?;
        let Some(messages) = summarising.reading.request() else {
            return self.degrade(world).map(|()| None);
        };
        let call = summarising.call();
        let number = summarising.attempt + 1;
        let wanted = summarising.reading.tokens_max();
        let summariser = self.facts.definition.summariser();
        let bound = messages
            .iter()
            .map(|message| cantrip_canon::json::to_value(message).map_or(0, |text| text.to_string().len() as u64))
            .sum();
        let (amount, output_tokens) = match self.prompt_cost(&summariser.price, bound, wanted, world) {
            RequestCost::Nothing => (None, wanted),
            RequestCost::Held { amount, output_tokens } => (Some(amount), output_tokens),
            RequestCost::TooDear { .. } | RequestCost::Unpriced => return self.degrade(world).map(|()| None),
        };
        let hold = match amount.filter(|amount| amount.micros() > 0) {
            Some(amount) => self.request_hold(&summariser.name, call, number, amount, world)?,
            None => None,
        };
        if hold.is_some() && !self.pending.is_empty() {
            return Ok(Some(self.take_append()));
        }
        let (reservation_id, operation) = hold.map(|held| (held.reservation, held.operation)).unzip();
        self.summarising()?.reservation.clone_from(&reservation_id);
        let recorded = Attempt {
            call_id: call,
            cast_id,
            number,
            request_digest: digest_of(messages.iter()),
            list_length: messages.list_length() as u64,
            crystal: None,
            reservation_id,
        };
        self.draft(recorded, world)?;
        self.money.extend(operation);
        let summarising = self.summarising()?;
        summarising.stage = SummaryStage::Flying;
        summarising.since = world.now.monotonic;
        Ok(Some(Effect::Summarise(SummaryRequest { call, tries: number, messages, output_tokens })))
    }

    pub(super) fn fold_authorized(&mut self) -> Result<(), Error> {
        self.summarising()?.stage = SummaryStage::Reserve;
        Ok(())
    }

    pub(super) fn fold_reserved(&mut self) -> Result<(), Error> {
        self.summarising()?.stage = SummaryStage::Record;
        Ok(())
    }

    pub(super) fn fold_slept(&mut self) -> Result<(), Error> {
        self.summarising()?.stage = SummaryStage::Authorize;
        Ok(())
    }

    /// Handles a piece that was read: continues with the next piece, or makes the fold.
    pub(super) fn fold_answered(&mut self, answer: Answer, world: &StepContext<'_>) -> Result<(), Error> {
        let Answer { utterance, usage, .. } = answer;
        let said = utterance.content.as_deref().map(str::trim).filter(|said| !said.is_empty());
        let Some(said) = said else {
            self.settle_summary(
                Err(contract::ContractViolation::Empty.to_reply().into()),
                Value::Null,
                charge_from_usage(usage),
                UnknownOutcome::UsageNotReported,
                world,
            )?;
            return self.degrade(world);
        };
        let summarising = self.summarising()?;
        let call = summarising.call();
        let Some(written) = summarising.reading.accept_notes(said) else {
            // The record keeps the notes that the next piece is read with.
            self.settle_summary(
                Ok(()),
                Value::from(said),
                charge_from_usage(usage),
                UnknownOutcome::UsageNotReported,
                world,
            )?;
            let summarising = self.summarising()?;
            summarising.piece += 1;
            summarising.attempt = 0;
            summarising.stage = SummaryStage::Authorize;
            return Ok(());
        };
        let (fold, plan) = (summarising.fold, summarising.plan);
        // The record of the fold has the text.
        self.settle_summary(Ok(()), Value::Null, charge_from_usage(usage), UnknownOutcome::UsageNotReported, world)?;
        let made =
            FoldDraft { attempt: Some(call), ..FoldDraft::summary(&self.view, plan, self.recall_options(), &written) };
        self.record_fold(&made, fold, world)
    }

    pub(super) fn fold_failed(&mut self, failure: Failure, plan: Again, world: &StepContext<'_>) -> Result<(), Error> {
        let tries = self.summarising()?.attempt;
        let refusal = failure.to_reply(tries).into();
        self.settle_summary(Err(refusal), Value::Null, failure.charge, unknown_after_failure(&failure), world)?;
        match plan {
            Again::Again(delay) => {
                self.summarising()?.stage = SummaryStage::Wait(delay);
                Ok(())
            }
            Again::Unavailable | Again::Final | Again::Deadline => self.degrade(world),
        }
    }

    /// Handles a summary that was not paid for: the fold is made without it.
    pub(super) fn fold_unpaid(&mut self, unpaid: UnpaidReason, world: &StepContext<'_>) -> Result<(), Error> {
        self.ready = None;
        let summarising = self.summarising()?;
        summarising.attempt = summarising.attempt.saturating_sub(1);
        summarising.reservation = None;
        summarising.stage = SummaryStage::Authorize;
        match unpaid {
            UnpaidReason::Waited => Ok(()),
            UnpaidReason::Refused(_) => self.degrade(world),
        }
    }

    /// Handles a request that was given up: it is unknown whether the provider charges for it.
    pub(super) fn fold_interrupted(&mut self, world: &StepContext<'_>) -> Result<(), Error> {
        let reason = self.halt.unwrap_or(cantrip_loom::TruncationReason::Cancelled);
        let refusal = self.halt_refusal(reason);
        self.settle_summary(Err(refusal), Value::Null, Charge::Unknown, unknown_after_halt(reason), world)?;
        self.leave_folding();
        Ok(())
    }

    /// Makes a window fold in place of the summary that was not written.
    fn degrade(&mut self, world: &StepContext<'_>) -> Result<(), Error> {
        let means = self.recall_options();
        let summarising = self.summarising()?;
        let (fold, plan, attempt) = (summarising.fold, summarising.plan, summarising.last());
        let made = FoldDraft::degraded(&self.view, plan, means, attempt);
        self.record_fold(&made, fold, world)
    }

    /// Records the outcome and the cost of a request.
    fn settle_summary(
        &mut self,
        outcome: Result<(), Refusal>,
        written: Value,
        charge: Charge,
        why: UnknownOutcome,
        world: &StepContext<'_>,
    ) -> Result<(), Error> {
        let (reply, result): (ReplyMark, Value) = match outcome {
            Ok(()) => (codes::GATE_OK.any().into(), written),
            Err(refusal) => {
                let fault = world.words.render_fault(refusal);
                (fault.mark, Value::String(fault.message))
            }
        };
        let summarising = self.summarising()?;
        let (call_id, attempt, since) = (summarising.call(), summarising.attempt, summarising.since);
        let held = summarising.reservation.take();
        let price = self.facts.definition.summariser().price;
        self.settle_hold(held, &price, &charge, why, world.now.wall);
        let settled = CallSettled {
            call_id,
            reply,
            result: self.held(result)?,
            duration_ms: super::millis_up(world.now.monotonic.since(since)),
            asked: None,
            data: None,
            ephemeral: false,
            children: Vec::new(),
            changes: Vec::new(),
            clock_ms: None,
            cost: charged_amount(&self.facts.definition.summariser().price, &charge),
            decision: None,
            judged: None,
            attempt: Some(attempt),
            usage: charge.usage().copied(),
        };
        self.draft(settled, world)
    }
}
