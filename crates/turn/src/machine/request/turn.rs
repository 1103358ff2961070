//! The request for a turn: the checks before it, and the contract that the answer must keep.

use std::sync::Arc;

use cantrip_canon::{Instant, TurnId};
use cantrip_circle::MediumKind;
use cantrip_crystal::{Answer, Failure, RetryDecision, contract, limits::DEMANDS_MAX};
use cantrip_loom::{
    CallId, CastParked, Error, Finish, Message, ParkReason, TruncationReason, TurnOpened, Usage, Utterance,
};
use cantrip_reply::codes;
use cantrip_spend::{ApprovalKind, DecisionRecord, ReasonCode, Ruling, UnknownOutcome};
use serde_json::Value;

use super::charge::charge_from_usage;
use super::{AttemptDraft, AttemptState, RequestStage};
use crate::denial::{PolicyRefusal, policy_denial, truncation};
use crate::fold::Trigger;
use crate::funds::Funds;
use crate::limits::OUTPUT_TOKENS_MIN;
use crate::machine::approval::ApprovalNeeded;
use crate::machine::money::RequestCost;
use crate::machine::{CastFailure, Effect, Machine, StepContext, millis_up};

/// The state of the request for the next turn.
#[derive(Debug)]
pub(super) struct TurnRequest {
    pub attempts: AttemptState,
    /// The id of the turn, assigned with its first attempt.
    pub id: Option<TurnId>,
    /// The index of the crystal: 0, or that of a fallback.
    pub place: usize,
    /// The number of times that a missing call was demanded. `empties` counts the empty answers that were retried.
    demands: u32,
    empties: u32,
    /// Messages for the next attempt only.
    pub aside: Arc<[Message]>,
    /// The reason why policy wants an approval.
    wanted_for: Option<ReasonCode>,
    /// True if a fold was made, or tried, because the crystal reported that the list is too long.
    refolded: bool,
    /// True if such a fold was being written when the process that wrote it was lost.
    refolding: bool,
}

impl TurnRequest {
    pub(super) fn new(since: Instant) -> Self {
        Self {
            attempts: AttemptState::new(since),
            id: None,
            place: 0,
            demands: 0,
            empties: 0,
            aside: Arc::default(),
            wanted_for: None,
            refolded: false,
            refolding: false,
        }
    }

    /// Notes a recorded attempt to write a fold; `written` is true if the fold was written.
    pub(super) fn note_fold(&mut self, written: bool) {
        if self.id.is_some() {
            self.refolding = !written;
            self.refolded = written;
        }
    }
}

impl Machine {
    fn turn_request(&mut self) -> Result<&mut TurnRequest, Error> {
        Ok(&mut self.request()?.turn)
    }

    /// Returns the index of the crystal in use: 0, or that of a fallback.
    pub(super) fn crystal_index(&self) -> usize {
        self.asking().map_or(0, |request| request.turn.place)
    }

    pub(super) fn requested_turn(&mut self, world: &StepContext<'_>) -> Result<TurnId, Error> {
        let asking = self.turn_request()?;
        Ok(*asking.id.get_or_insert_with(|| world.ids.next(world.now.wall)))
    }

    /// Ends the cast if a limit is reached, then folds the list if it is too long.
    pub(super) fn check_before_request(&mut self, world: &StepContext<'_>) -> Result<Option<Effect>, Error> {
        if let Some(reason) = self.halt.or_else(|| self.exhausted_limit(world)) {
            return self.end_alone(reason, None, world).map(|()| None);
        }
        // No request is sent to a crystal before policy has reported that nobody pays.
        if let Funds::NoAuthorization = world.funds {
            self.attempts()?.stage = RequestStage::Authorize;
            return Ok(None);
        }
        let asking = self.turn_request()?;
        if asking.id.is_none() {
            self.fold_if_due(world)?;
        } else if asking.refolding {
            self.fold_to_last(world)?;
        }
        if self.is_folding() {
            return Ok(None);
        }
        self.remind_of_calls()?;
        let wanted = self.facts.definition.output_tokens_at(self.crystal_index());
        let mut cap = wanted;
        let mut worst_tokens = None;
        if let Some(left) = world.tokens_left {
            let prompt = self.view.estimate();
            let left = left.saturating_sub(prompt);
            if left < u64::from(wanted.min(OUTPUT_TOKENS_MIN)) {
                return self.end_alone(TruncationReason::MaxTokens, None, world).map(|()| None);
            }
            cap = cap.min(u32::try_from(left).unwrap_or(u32::MAX));
            worst_tokens = Some(prompt.saturating_add(u64::from(cap)));
        }
        let now = world.now.monotonic;
        let attempts = self.attempts()?;
        attempts.output_tokens = cap;
        attempts.worst_tokens = worst_tokens;
        attempts.stage = RequestStage::Authorize;
        if attempts.number == 0 || attempts.since == Instant::default() {
            attempts.since = now;
        }
        Ok(None)
    }

    /// Tells the crystal what is missing, if one more repetition of its last text would end the cast. The message is
    /// part of this request only.
    fn remind_of_calls(&mut self) -> Result<(), Error> {
        if !self.tally.is_reminder_due() || !self.turn_request()?.aside.is_empty() {
            return Ok(());
        }
        let shown = self.facts.medium.0.present(&self.facts.circle, self.facts.definition.mode());
        let medium = self.facts.circle.medium();
        let language = medium.is_code().then(|| medium.as_str());
        let reminder = contract::repetition_reminder(shown.tools.iter().map(|tool| tool.name.as_str()), language);
        self.turn_request()?.aside = vec![reminder].into();
        Ok(())
    }

    /// Returns the next attempt; none if the cast ended instead, because the attempt cannot be made or paid for.
    pub(super) fn draft_request(
        &mut self,
        call: CallId,
        world: &StepContext<'_>,
    ) -> Result<Option<AttemptDraft>, Error> {
        self.expire(call, world)?;
        let messages = match self.view.request() {
            Ok(messages) => messages,
            Err(unpaired) => {
                self.fail(CastFailure::Unpaired(unpaired.to_string()), world)?;
                return Ok(None);
            }
        };
        let digest = self.view.digest();
        let place = self.crystal_index();
        let wanted = self.attempts()?.output_tokens;
        let crystal = self.facts.definition.crystal_at(place).clone();
        let (amount, output_tokens) = match self.request_cost(&crystal.price, wanted, world) {
            RequestCost::Nothing => (None, wanted),
            RequestCost::Held { amount, output_tokens } => (Some(amount), output_tokens),
            RequestCost::TooDear { shortest: Some(amount), output_tokens } if self.defers_to_policy(world) => {
                (Some(amount), output_tokens)
            }
            RequestCost::TooDear { .. } => {
                return self.end_alone(TruncationReason::MaxCost, None, world).map(|()| None);
            }
            RequestCost::Unpriced => {
                let limit = "a limit of money";
                let fault = world.words.render_fault(codes::price_unknown(crystal.name.as_str(), limit).into());
                return self.end_alone(TruncationReason::MaxCost, Some(fault), world).map(|()| None);
            }
        };
        let recorded_crystal = (place > 0).then(|| crystal.name.clone());
        Ok(Some(AttemptDraft { messages, digest, crystal, recorded_crystal, amount, output_tokens }))
    }

    /// Asks a person once to approve the cost, and waits. After an answer, or after the approval expired, policy is
    /// asked again.
    pub(super) fn request_spend(&mut self, world: &StepContext<'_>) -> Result<Option<Effect>, Error> {
        let call = CallId::request(self.requested_turn(world)?);
        let place = self.crystal_index();
        let asking = self.turn_request()?;
        asking.attempts.stage = RequestStage::Check;
        let (price, output_tokens) = (asking.attempts.price, asking.attempts.output_tokens);
        let code = asking.wanted_for.take();
        let (Some((amount, subject)), Some(code)) = (price, code) else { return Ok(None) };
        let model = self.facts.definition.crystal_at(place).name.clone();
        let args = serde_json::json!({"output_tokens": output_tokens});
        let waits =
            ApprovalNeeded::for_request(call, args).policy(model, ApprovalKind::Spend, subject, code, Some(amount));
        self.request_approval(waits, world)
    }

    /// Handles a request of a caller for whom nobody pays: the request is not sent, whatever it costs, and the cast
    /// ends.
    pub(super) fn handle_unfunded(&mut self, decided: DecisionRecord, world: &StepContext<'_>) -> Result<(), Error> {
        let refusal = policy_denial(self.facts.crystal(), &decided.decision, &decided.input, None);
        let reason = truncation(&decided.decision.reason_code);
        self.record_decision(decided, world)?;
        let fault = world.words.render_fault(refusal);
        self.end_alone(reason, Some(fault), world)
    }

    /// Handles a hold that policy did not allow: a person is asked to approve it, or the cast ends.
    pub(super) fn handle_spend_refused(
        &mut self,
        refused: PolicyRefusal,
        world: &StepContext<'_>,
    ) -> Result<(), Error> {
        let PolicyRefusal { decided, terms } = refused;
        if decided.decision.decision == Ruling::NeedsApproval {
            let asking = self.turn_request()?;
            asking.wanted_for = Some(decided.decision.reason_code);
            asking.attempts.stage = RequestStage::Approve;
            return Ok(());
        }
        let call = CallId::request(self.requested_turn(world)?);
        let refusal = match self.verdict_on_request(call, &decided.decision) {
            Some(verdict) => verdict.refusal(self.facts.crystal().to_owned()),
            None => policy_denial(self.facts.crystal(), &decided.decision, &decided.input, terms.as_ref()),
        };
        let fault = world.words.render_fault(refusal);
        self.end_alone(truncation(&decided.decision.reason_code), Some(fault), world)
    }

    /// Checks the answer against the contract, then opens the turn, retries or fails.
    pub(super) fn handle_utterance(&mut self, answer: Answer, world: &StepContext<'_>) -> Result<(), Error> {
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
                    CastFailure::CutBeforeSaying(self.attempts()?.output_tokens)
                }
                contract::ContractViolation::Empty | contract::ContractViolation::DuplicateCall { .. } => {
                    CastFailure::Breach(breach)
                }
            };
            let refusal = failing.refusal(self.facts.crystal(), &Value::Null);
            self.settle_attempt(Err(refusal), charge_from_usage(usage), UnknownOutcome::UsageNotReported, world)?;
            if again {
                let asking = self.turn_request()?;
                asking.empties += 1;
                asking.attempts.stage = RequestStage::Check;
                return Ok(());
            }
            return self.fail(failing, world);
        }
        let choice = self.facts.definition.choice_at(self.crystal_index());
        // If the medium is a person, text counts as the call.
        let talks = self.facts.circle.medium() == MediumKind::Human;
        if contract::is_call_missing(choice, &utterance) && !talks {
            let prompts = self.turn_request()?.demands + 1;
            let refusal = contract::missing_call_failure(prompts).into();
            self.settle_attempt(Err(refusal), charge_from_usage(usage), UnknownOutcome::UsageNotReported, world)?;
            if prompts > DEMANDS_MAX {
                return self.fail(CastFailure::CallMissing(prompts), world);
            }
            let shown = self.facts.medium.0.present(&self.facts.circle, self.facts.definition.mode());
            let aside = contract::call_reminder(&utterance, shown.tools.iter().map(|tool| tool.name.as_str()));
            let asking = self.turn_request()?;
            asking.demands = prompts;
            asking.aside = aside.to_vec().into();
            asking.attempts.stage = RequestStage::Check;
            return Ok(());
        }
        self.open(utterance, usage, world)
    }

    fn open(&mut self, utterance: Utterance, usage: Option<Usage>, world: &StepContext<'_>) -> Result<(), Error> {
        let turn_id = self.requested_turn(world)?;
        let attempt = self.attempts()?.number;
        let charge = charge_from_usage(usage);
        let cost = self.settle_request_hold(&charge, UnknownOutcome::UsageNotReported, world)?;
        let opened = TurnOpened {
            turn_id,
            cast_id: self.facts.cast,
            parent_id: self.position.parent(),
            sequence: self.position.sequence() + 1,
            utterance: self.drafts.hold(utterance)?,
            usage: usage.unwrap_or_default(),
            attempt,
            cost,
        };
        self.draft(opened, world)
    }

    /// Handles a failed attempt that was settled: the list is folded, the request backs off or goes to a fallback, or
    /// the cast parks or ends.
    pub(super) fn handle_request_failure(
        &mut self,
        failure: Failure,
        tries: u32,
        plan: RetryDecision,
        world: &StepContext<'_>,
    ) -> Result<(), Error> {
        self.turn_request()?.aside = Arc::default();
        if failure.is_context_too_long() {
            self.restart_request()?;
            if self.fold_to_last(world)? {
                return Ok(());
            }
        }
        match plan {
            RetryDecision::Again(delay) => self.back_off(delay),
            // A crystal that stays unavailable is replaced by its fallback, in the same turn.
            RetryDecision::Unavailable if self.halt.is_none() && self.next_crystal()? => Ok(()),
            RetryDecision::Unavailable if self.facts.parks && self.halt.is_none() => {
                self.failing = Some(CastFailure::Crystal(failure, tries));
                self.attempts()?.stage = RequestStage::Park;
                Ok(())
            }
            RetryDecision::Unavailable | RetryDecision::Final => self.fail(CastFailure::Crystal(failure, tries), world),
            // The next attempt would start after the deadline, so the cast ends with a timeout.
            RetryDecision::Deadline => {
                let fault = world.words.render_fault(failure.to_reply(tries).into());
                self.end_alone(TruncationReason::Timeout, Some(fault), world)
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
        asking.attempts.tries = 0;
        asking.attempts.stage = RequestStage::Check;
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
        self.end_alone(reason, Some(fault), world)
    }

    pub(super) fn park(&mut self, world: &StepContext<'_>) -> Result<Effect, Error> {
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
        let (cast_id, turn_id) = (self.facts.cast, self.turn_request()?.id);
        let parked = CastParked {
            cast_id,
            reason: ParkReason::CrystalUnavailable,
            turn_id,
            error: Some(error.clone()),
            detail: detail.clone(),
            elapsed_ms: Some(millis_up(world.elapsed)),
        };
        self.draft(parked, world)?;
        self.attempts()?.stage = RequestStage::Parked;
        Ok(Effect::Park { fault: error, detail })
    }
}
