//! The request for a turn: the checks before it, its attempts, and the contract that the answer must keep.

use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::{Hash, Instant, Money, TurnId};
use cantrip_circle::MediumKind;
use cantrip_crystal::{Answer, Cause, Charge, Failure, Price, RetryDecision, contract, limits::DEMANDS_MAX};
use cantrip_loom::{
    Attempt, CallId, CallSettled, CastParked, Error, Finish, Message, ParkReason, RecordedError, TruncationReason,
    TurnOpened, Usage, Utterance,
};
use cantrip_reply::{Refusal, codes};
use cantrip_spend::{ApprovalKind, ReasonCode, ReservationId, UnknownOutcome};
use serde_json::Value;

use super::approval::ApprovalNeeded;
use super::money::RequestCost;
use super::{
    AuthorizeKind, AuthorizeRequest, CastFailure, CrystalRequest, Effect, Machine, Phase, PolicyAnswer, StepContext,
    WorstCase,
};
use crate::fold::Trigger;
use crate::funds::Funds;
use crate::limits::OUTPUT_TOKENS_MIN;

/// The state of the request for the next turn.
#[derive(Debug)]
pub(super) struct TurnRequest {
    /// The id of the turn, assigned with its first attempt.
    pub turn: Option<TurnId>,
    /// The last attempt that was recorded; 0 before the first.
    pub attempt: u32,
    /// The attempts at the current crystal since this machine, or a resume, took up the turn: retries start again.
    tries: u32,
    /// The index of the crystal: 0, or that of a fallback.
    place: usize,
    /// The number of times that a missing call was demanded. `empties` counts the empty answers that were retried.
    demands: u32,
    empties: u32,
    /// Messages for the next attempt only.
    aside: Arc<[Message]>,
    stage: RequestStage,
    pub since: Instant,
    output_tokens: u32,
    /// The most tokens that the request can use, under a token limit.
    worst_tokens: Option<u64>,
    /// The hold for the attempt in flight. Holds of an earlier owner were marked when the run was taken over.
    reservation: Option<ReservationId>,
    /// The last amount to be held and the hash of its subject: a person may be asked about it.
    price: Option<(Money, Hash)>,
    wanted_for: Option<ReasonCode>,
    /// True if a fold was made, or tried, because the crystal reported that the list is too long.
    refolded: bool,
    /// True if such a fold was being written when the process that wrote it was lost.
    refolding: bool,
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

impl TurnRequest {
    pub(super) fn new(since: Instant) -> Self {
        Self {
            turn: None,
            attempt: 0,
            tries: 0,
            place: 0,
            demands: 0,
            empties: 0,
            aside: Arc::default(),
            stage: RequestStage::Check,
            since,
            output_tokens: 0,
            worst_tokens: None,
            reservation: None,
            price: None,
            wanted_for: None,
            refolded: false,
            refolding: false,
        }
    }

    /// Notes a recorded attempt to write a fold; `written` is true if the fold was written.
    pub(super) fn note_fold(&mut self, written: bool) {
        if self.turn.is_some() {
            self.refolding = !written;
            self.refolded = written;
        }
    }

    /// Notes a recorded attempt. The next attempt continues from it.
    pub(super) fn note_attempt(&mut self, turn: TurnId, attempt: u32, reservation: Option<ReservationId>, fresh: bool) {
        self.turn = Some(turn);
        self.attempt = attempt;
        self.reservation = reservation.filter(|_| fresh);
    }

    /// Notes that a person was asked about the cost before any attempt.
    pub(super) fn asked_about(&mut self, turn: TurnId) {
        self.turn = Some(turn);
    }

    /// Ends the attempt.
    pub(super) fn end_attempt(&mut self) {
        self.reservation = None;
    }
}

impl Machine {
    fn turn_request(&mut self) -> Result<&mut TurnRequest, Error> {
        let fault = self.incoherent("attempt", "nothing is being asked");
        match &mut self.phase {
            Phase::Asking(asking) => Ok(asking),
            Phase::Folding(_) | Phase::Acting(_) | Phase::Ended => Err(fault),
        }
    }

    /// Returns the index of the crystal in use: 0, or that of a fallback.
    fn crystal_index(&self) -> usize {
        match &self.phase {
            Phase::Asking(asking) => asking.place,
            Phase::Folding(_) | Phase::Acting(_) | Phase::Ended => 0,
        }
    }

    pub(super) fn step_request(&mut self, world: &StepContext<'_>) -> Result<Option<Effect>, Error> {
        let asking = self.turn_request()?;
        match asking.stage {
            RequestStage::Check => self.check_before_request(world),
            RequestStage::Authorize => {
                // The last payment must be booked before the remaining money is measured.
                if !self.money.is_empty() && world.payer().is_some_and(|payer| payer.limited) {
                    return Ok(Some(self.take_append()));
                }
                let call = CallId::request(self.requested_turn(world)?);
                Ok(Some(Effect::Authorize(vec![AuthorizeRequest { call, about: AuthorizeKind::Request }])))
            }
            RequestStage::Reserve => {
                let call = CallId::request(self.requested_turn(world)?);
                let tokens = self.turn_request()?.worst_tokens;
                // Money is held in the step of the attempt itself.
                Ok(Some(Effect::Reserve(vec![WorstCase { call, tokens }])))
            }
            RequestStage::Record => self.record_attempt(world).map(Some),
            RequestStage::Approve => self.request_spend(world),
            RequestStage::Wait(delay) => Ok(Some(Effect::Sleep(delay))),
            RequestStage::Park => self.park(world).map(Some),
            RequestStage::Flying | RequestStage::Parked => {
                Err(self.incoherent("attempt", "it was asked for a second effect"))
            }
        }
    }

    pub(super) fn requested_turn(&mut self, world: &StepContext<'_>) -> Result<TurnId, Error> {
        let asking = self.turn_request()?;
        Ok(*asking.turn.get_or_insert_with(|| world.ids.next(world.now.wall)))
    }

    /// Ends the cast if a limit is reached, then folds the list if it is too long.
    fn check_before_request(&mut self, world: &StepContext<'_>) -> Result<Option<Effect>, Error> {
        if let Some(reason) = self.halt {
            return self.end_alone(reason, None, world);
        }
        if let Some(reason) = self.exhausted_limit(world) {
            return self.end_alone(reason, None, world);
        }
        // No request is sent to a crystal before policy has reported that nobody pays.
        if let Funds::NoAuthorization = world.funds {
            self.turn_request()?.stage = RequestStage::Authorize;
            return Ok(None);
        }
        match (self.turn_request()?.turn, self.turn_request()?.refolding) {
            (None, _) => self.fold_if_due(world)?,
            (Some(_), true) => {
                self.fold_to_last(world)?;
            }
            (Some(_), false) => {}
        }
        if let Phase::Folding(_) = self.phase {
            return Ok(None);
        }
        let wanted = self.facts.definition.output_tokens_at(self.crystal_index());
        let mut cap = wanted;
        let mut worst_tokens = None;
        if let Some(left) = world.tokens_left {
            let prompt = self.view.estimate();
            let left = left.saturating_sub(prompt);
            if left < u64::from(wanted.min(OUTPUT_TOKENS_MIN)) {
                return self.end_alone(TruncationReason::MaxTokens, None, world);
            }
            cap = cap.min(u32::try_from(left).unwrap_or(u32::MAX));
            worst_tokens = Some(prompt.saturating_add(u64::from(cap)));
        }
        let now = world.now.monotonic;
        let asking = self.turn_request()?;
        asking.output_tokens = cap;
        asking.worst_tokens = worst_tokens;
        asking.stage = RequestStage::Authorize;
        if asking.attempt == 0 || asking.since == Instant::default() {
            asking.since = now;
        }
        Ok(None)
    }

    pub(super) fn handle_authorized(&mut self, said: Vec<PolicyAnswer>, world: &StepContext<'_>) -> Result<(), Error> {
        match &mut self.phase {
            Phase::Acting(_) => self.handle_entries_authorized(said, world),
            Phase::Asking(asking) => match said.into_iter().next() {
                Some(PolicyAnswer::Unfunded(decided)) => self.handle_unfunded(*decided, world),
                Some(
                    PolicyAnswer::Nothing | PolicyAnswer::Judged(_) | PolicyAnswer::Barred | PolicyAnswer::Refused(_),
                )
                | None => {
                    asking.stage = RequestStage::Reserve;
                    Ok(())
                }
            },
            Phase::Folding(_) | Phase::Ended => Err(self.incoherent("attempt", "nothing was asked for")),
        }
    }

    pub(super) fn handle_reserved(&mut self) -> Result<(), Error> {
        match &mut self.phase {
            Phase::Asking(asking) => {
                asking.stage = RequestStage::Record;
                Ok(())
            }
            Phase::Acting(_) | Phase::Folding(_) | Phase::Ended => {
                Err(self.incoherent("attempt", "nothing was asked for"))
            }
        }
    }

    /// Restarts the request with its checks, after other entities of the tree held the money that it needs.
    pub(super) fn restart_request(&mut self) -> Result<(), Error> {
        self.turn_request()?.stage = RequestStage::Check;
        Ok(())
    }

    fn record_attempt(&mut self, world: &StepContext<'_>) -> Result<Effect, Error> {
        let turn = self.requested_turn(world)?;
        self.expire(CallId::request(turn), world)?;
        let messages = match self.view.request() {
            Ok(messages) => messages,
            Err(unpaired) => {
                self.fail(CastFailure::Unpaired(unpaired.to_string()), world)?;
                return Ok(Effect::Finish);
            }
        };
        let digest = self.view.digest();
        let cast_id = self.facts.cast;
        let place = self.crystal_index();
        let (attempt, wanted) = (self.turn_request()?.attempt + 1, self.turn_request()?.output_tokens);
        let definition = Arc::clone(&self.facts.definition);
        let (amount, output_tokens) = match self.request_cost(&definition.crystal_at(place).price, wanted, world) {
            RequestCost::Nothing => (None, wanted),
            RequestCost::Held { amount, output_tokens } => (Some(amount), output_tokens),
            RequestCost::TooDear { shortest: Some(amount), output_tokens } if self.defers_to_policy(world) => {
                (Some(amount), output_tokens)
            }
            RequestCost::TooDear { .. } => {
                self.end_alone(TruncationReason::MaxCost, None, world)?;
                return Ok(Effect::Finish);
            }
            RequestCost::Unpriced => {
                let limit = "a limit of money";
                let refusal = codes::price_unknown(definition.crystal_at(place).name.as_str(), limit).into();
                let fault = world.words.render_fault(refusal);
                self.end_alone(TruncationReason::MaxCost, Some(fault), world)?;
                return Ok(Effect::Finish);
            }
        };
        let hold = match amount.filter(|amount| amount.micros() > 0) {
            Some(amount) => {
                let crystal = &definition.crystal_at(place).name;
                let held = self.request_hold(crystal, CallId::request(turn), attempt, amount, world)?;
                held.map(|held| (held, amount))
            }
            None => None,
        };
        // If the store refuses this request, the records before it must still be appended.
        if hold.is_some() && !self.pending.is_empty() {
            return Ok(self.take_append());
        }
        let asking = self.turn_request()?;
        let call = CallId::request(turn);
        let aside = Arc::clone(&asking.aside);
        asking.price = hold.as_ref().map(|(held, amount)| (*amount, held.subject));
        let (reservation_id, operation) = hold.map(|(held, _)| (held.reservation, held.operation)).unzip();
        asking.output_tokens = output_tokens;
        asking.tries += 1;
        let (tries, place) = (asking.tries, asking.place);
        let before = attempt.saturating_sub(tries);
        let recorded = Attempt {
            call_id: call,
            cast_id,
            number: attempt,
            request_digest: digest,
            list_length: messages.list_length() as u64,
            crystal: (place > 0).then(|| self.facts.definition.crystal_at(place).name.clone()),
            reservation_id,
        };
        self.draft(recorded, world)?;
        self.money.extend(operation);
        self.turn_request()?.stage = RequestStage::Flying;
        let messages = if aside.is_empty() { messages } else { messages.with_extra(aside) };
        Ok(Effect::Ask(CrystalRequest { turn, call, place, tries, before, messages, output_tokens }))
    }

    /// Discards the attempt that was about to be sent; nothing of it is on record.
    pub(super) fn discard_attempt(&mut self) -> Result<(), Error> {
        let asking = self.turn_request()?;
        asking.attempt = asking.attempt.saturating_sub(1);
        asking.tries = asking.tries.saturating_sub(1);
        asking.end_attempt();
        asking.stage = RequestStage::Check;
        Ok(())
    }

    /// Asks a person once to approve the cost, and waits. After an answer, or after the approval expired, policy is
    /// asked again.
    fn request_spend(&mut self, world: &StepContext<'_>) -> Result<Option<Effect>, Error> {
        let call = CallId::request(self.requested_turn(world)?);
        let place = self.crystal_index();
        let asking = self.turn_request()?;
        asking.stage = RequestStage::Check;
        let (price, code, output_tokens) = (asking.price, asking.wanted_for.take(), asking.output_tokens);
        let (Some((amount, subject)), Some(code)) = (price, code) else { return Ok(None) };
        let model = self.facts.definition.crystal_at(place).name.clone();
        let args = serde_json::json!({"output_tokens": output_tokens});
        let waits =
            ApprovalNeeded::for_request(call, args).policy(model, ApprovalKind::Spend, subject, code, Some(amount));
        self.request_approval(waits, world)
    }

    /// Notes that policy requires an approval.
    pub(super) fn require_approval(&mut self, code: ReasonCode) -> Result<(), Error> {
        let asking = self.turn_request()?;
        asking.wanted_for = Some(code);
        asking.stage = RequestStage::Approve;
        Ok(())
    }

    pub(super) fn handle_slept(&mut self) -> Result<(), Error> {
        self.turn_request()?.stage = RequestStage::Check;
        Ok(())
    }

    /// Checks the answer against the contract, then opens the turn, retries or fails.
    pub(super) fn handle_answer(&mut self, answer: Answer, world: &StepContext<'_>) -> Result<(), Error> {
        let Answer { mut utterance, usage, call_items: _ } = answer;
        let aside = std::mem::take(&mut self.turn_request()?.aside);
        if !aside.is_empty() && self.facts.definition.crystal_at(self.crystal_index()).profile.binds_thoughts {
            // The extra messages are in no later request, so the provider would refuse these signed thoughts without
            // them.
            utterance.parts = None;
        }
        if let Some(breach) = contract::find_violation(&utterance) {
            let again = match breach {
                contract::ContractViolation::Empty => {
                    self.facts.definition.retry().empty_response > self.turn_request()?.empties
                }
                contract::ContractViolation::DuplicateCall { .. } => false,
            };
            let failing = match breach {
                contract::ContractViolation::Empty if utterance.finish == Finish::Length => {
                    CastFailure::CutBeforeSaying(self.turn_request()?.output_tokens)
                }
                contract::ContractViolation::Empty | contract::ContractViolation::DuplicateCall { .. } => {
                    CastFailure::Breach(breach)
                }
            };
            let refusal = failing.refusal(self.facts.crystal(), &Value::Null);
            self.settle_attempt(refusal, charge_from_usage(usage), UnknownOutcome::UsageNotReported, world)?;
            if again {
                let asking = self.turn_request()?;
                asking.empties += 1;
                asking.stage = RequestStage::Check;
                return Ok(());
            }
            return self.fail(failing, world);
        }
        if contract::is_call_missing(self.facts.definition.choice_at(self.crystal_index()), &utterance) && !self.talks()
        {
            let prompts = self.turn_request()?.demands + 1;
            let refusal = contract::missing_call_failure(prompts).into();
            self.settle_attempt(refusal, charge_from_usage(usage), UnknownOutcome::UsageNotReported, world)?;
            if prompts > DEMANDS_MAX {
                return self.fail(CastFailure::CallMissing(prompts), world);
            }
            let shown = self.facts.medium.0.present(&self.facts.circle, self.facts.definition.mode());
            let aside = contract::call_reminder(&utterance, shown.tools.iter().map(|tool| tool.name.as_str()));
            let asking = self.turn_request()?;
            asking.demands = prompts;
            asking.aside = aside.to_vec().into();
            asking.stage = RequestStage::Check;
            return Ok(());
        }
        self.open(utterance, usage, world)
    }

    /// Returns true if the medium is a person: there, text counts as the call.
    fn talks(&self) -> bool {
        self.facts.circle.medium() == MediumKind::Human
    }

    fn open(&mut self, utterance: Utterance, usage: Option<Usage>, world: &StepContext<'_>) -> Result<(), Error> {
        let turn_id = self.requested_turn(world)?;
        let price = self.facts.definition.crystal_at(self.crystal_index()).price;
        let charge = charge_from_usage(usage);
        let cost = charged_amount(&price, &charge);
        let attempt = self.turn_request()?.attempt;
        let held = self.turn_request()?.reservation.take();
        self.settle_hold(held, &price, &charge, UnknownOutcome::UsageNotReported, world.now.wall);
        let opened = TurnOpened {
            turn_id,
            cast_id: self.facts.cast,
            parent_id: self.parent,
            sequence: self.sequence + 1,
            utterance: self.held(utterance)?,
            usage: usage.unwrap_or_default(),
            attempt,
            cost,
        };
        self.draft(opened, world)
    }

    /// Records a failed attempt with its cost; it adds nothing to the list and no turn.
    fn settle_attempt(
        &mut self,
        refusal: Refusal,
        charge: Charge,
        why: UnknownOutcome,
        world: &StepContext<'_>,
    ) -> Result<RecordedError, Error> {
        let turn = self.requested_turn(world)?;
        let attempt = self.turn_request()?.attempt;
        let since = self.turn_request()?.since;
        let price = self.facts.definition.crystal_at(self.crystal_index()).price;
        let fault = world.words.render_fault(refusal);
        let held = self.turn_request()?.reservation.take();
        self.settle_hold(held, &price, &charge, why, world.now.wall);
        let settled = CallSettled {
            call_id: CallId::request(turn),
            reply: fault.mark.clone(),
            result: self.held(Value::String(fault.message.clone()))?,
            duration_ms: super::millis_up(world.now.monotonic.since(since)),
            asked: None,
            ephemeral: false,
            data: None,
            children: Vec::new(),
            changes: Vec::new(),
            clock_ms: None,
            cost: charged_amount(&price, &charge),
            decision: None,
            judged: None,
            attempt: Some(attempt),
            usage: charge.usage().copied(),
        };
        self.draft(settled, world)?;
        Ok(fault)
    }

    pub(super) fn handle_failure(
        &mut self,
        failure: Failure,
        plan: RetryDecision,
        world: &StepContext<'_>,
    ) -> Result<(), Error> {
        let tries = self.turn_request()?.tries;
        self.turn_request()?.aside = Arc::default();
        self.settle_attempt(failure.to_reply(tries).into(), failure.charge, unknown_after_failure(&failure), world)?;
        if failure.is_context_too_long() {
            self.turn_request()?.stage = RequestStage::Check;
            if self.fold_to_last(world)? {
                return Ok(());
            }
        }
        match plan {
            RetryDecision::Again(delay) => {
                self.turn_request()?.stage = RequestStage::Wait(delay);
                Ok(())
            }
            // A crystal that stays unavailable is replaced by its fallback, in the same turn.
            RetryDecision::Unavailable if self.halt.is_none() && self.next_crystal()? => Ok(()),
            RetryDecision::Unavailable if self.facts.parks && self.halt.is_none() => {
                self.failing = Some(CastFailure::Crystal(failure, tries));
                self.turn_request()?.stage = RequestStage::Park;
                Ok(())
            }
            RetryDecision::Unavailable | RetryDecision::Final => self.fail(CastFailure::Crystal(failure, tries), world),
            // The next attempt would start after the deadline, so the cast ends with a timeout.
            RetryDecision::Deadline => {
                let fault = world.words.render_fault(failure.to_reply(tries).into());
                self.end_alone(TruncationReason::Timeout, Some(fault), world).map(|_| ())
            }
        }
    }

    /// Switches to the next fallback crystal. Returns false if there is none.
    fn next_crystal(&mut self) -> Result<bool, Error> {
        let last = self.facts.definition.settings().others.fallback.len();
        let asking = self.turn_request()?;
        if asking.place >= last {
            return Ok(false);
        }
        asking.place += 1;
        asking.tries = 0;
        asking.stage = RequestStage::Check;
        Ok(true)
    }

    /// Folds to the last group, at most once per turn. Returns false if there was nothing to fold.
    fn fold_to_last(&mut self, world: &StepContext<'_>) -> Result<bool, Error> {
        let asking = self.turn_request()?;
        asking.refolding = false;
        if std::mem::replace(&mut asking.refolded, true) {
            return Ok(false);
        }
        self.fold(Trigger::TooLong, world)
    }

    fn fail(&mut self, failing: CastFailure, world: &StepContext<'_>) -> Result<(), Error> {
        let fault = world.words.render_fault(failing.refusal(self.facts.crystal(), &Value::Null));
        let reason = failing.reason();
        self.failing = Some(failing);
        self.end_alone(reason, Some(fault), world).map(|_| ())
    }

    fn park(&mut self, world: &StepContext<'_>) -> Result<Effect, Error> {
        let crystal = self.facts.crystal().to_owned();
        let refusal = match &self.failing {
            Some(failing) => failing.refusal(&crystal, &Value::Null),
            None => codes::unreachable(crystal, "it stays away").into(),
        };
        let error = world.words.render_fault(refusal);
        let detail = match &self.failing {
            Some(CastFailure::Crystal(failure, _)) => failure.omitted_detail().map(|words| world.words.redact(&words)),
            Some(_) | None => None,
        };
        let (cast_id, turn_id) = (self.facts.cast, self.turn_request()?.turn);
        let parked = CastParked {
            cast_id,
            reason: ParkReason::CrystalUnavailable,
            turn_id,
            error: Some(error.clone()),
            detail: detail.clone(),
            elapsed_ms: Some(super::millis_up(world.elapsed)),
        };
        self.draft(parked, world)?;
        self.turn_request()?.stage = RequestStage::Parked;
        Ok(Effect::Park { fault: error, detail })
    }

    /// Handles a request that was given up: it is unknown whether the provider charges for it.
    pub(super) fn handle_interrupted(&mut self, world: &StepContext<'_>) -> Result<(), Error> {
        let reason = self.halt.unwrap_or(TruncationReason::Cancelled);
        self.settle_attempt(self.halt_refusal(reason), Charge::Unknown, unknown_after_halt(reason), world)?;
        self.end_alone(reason, None, world).map(|_| ())
    }
}

/// Returns the charge of an answer as the provider reported its usage.
pub(super) fn charge_from_usage(usage: Option<Usage>) -> Charge {
    usage.map_or(Charge::Unknown, Charge::Reported)
}

/// Returns the reason why the cost of a failed request is unknown, if it is.
pub(super) fn unknown_after_failure(failure: &Failure) -> UnknownOutcome {
    match &failure.cause {
        Cause::TimedOut { .. } => UnknownOutcome::TimedOut,
        Cause::Broken { .. } | Cause::TooLarge { .. } | Cause::Unreachable { .. } => UnknownOutcome::StreamCut,
        Cause::Status { .. } | Cause::ContextTooLong { .. } | Cause::Refused { .. } | Cause::Rejected { .. } => {
            UnknownOutcome::UsageNotReported
        }
    }
}

/// Returns the reason why the cost of an interrupted request is unknown.
pub(super) fn unknown_after_halt(reason: TruncationReason) -> UnknownOutcome {
    match reason {
        TruncationReason::Timeout => UnknownOutcome::TimedOut,
        TruncationReason::MaxTurns
        | TruncationReason::MaxTokens
        | TruncationReason::MaxCost
        | TruncationReason::ParentTerminated
        | TruncationReason::Cancelled
        | TruncationReason::CrystalError
        | TruncationReason::LoopDetected
        | TruncationReason::PolicyDenied => UnknownOutcome::StreamCut,
    }
}

/// Returns the cost of a request; none if it is unknown.
pub(super) fn charged_amount(price: &Price, charge: &Charge) -> Option<Money> {
    match (price, charge) {
        (Price::Free, _) | (_, Charge::Nothing) => Some(Money::zero(price.currency())),
        (Price::Unknown | Price::Listed(_), Charge::Unknown) => None,
        (Price::Unknown | Price::Listed(_), Charge::Reported(usage)) => price.cost(usage),
    }
}
