//! What a request may cost is put aside before it leaves, and what it cost is booked with the record of its answer.
//!
//! The hold travels in the step of the attempt, so no request leaves that nobody paid for; what becomes of it travels in
//! the step of the answer, so no answer stands without its price. Where a store keeps no ledger, and where a crystal costs
//! nothing, there is nothing to hold, and the wards of the circle count what was told.

use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::{ApprovalId, CastId, Currency, EntityId, Hash, Money, Timestamp};
use cantrip_circle::gate::GateSpec;
use cantrip_crystal::limits::WINDOW_TOKENS_ASSUMED;
use cantrip_crystal::{Charge, Price};
use cantrip_loom::{CallId, Error};
use cantrip_spend::{
    AuthorizationRef, CallKey, DecisionRecord, ExplicitDenial, Guards, Hold, Operation, Payer, Phase, PolicyQuery,
    Principal, ProviderKey, ReservationId, Reserve, ResolvedAuthorization, RetryClass, Ruling, SetCap, Subject, Terms,
    Trifecta, UnknownOutcome,
};

use super::{ChildSpec, Machine, StepContext};
use crate::denial::{PolicyRefusal, policy_denial, truncation};
use crate::funds::Funds;
use crate::limits::{HOLD_GRACE_SECONDS, MESSAGE_TOKENS_BOUND, OUTPUT_TOKENS_MIN};
use crate::policy::POLICY;

/// Who pays for a run.
#[derive(Debug, Clone)]
pub(crate) struct RunPayer {
    pub authorization: AuthorizationRef,
    pub owner: Payer,
    /// The entity whose conversation it is: the root's, for all of its tree.
    pub thread: EntityId,
    pub currency: Currency,
    /// The terms as they were when someone last looked, and how a decision names them.
    pub terms: Arc<Terms>,
    pub named: ResolvedAuthorization,
    /// It has a limit of money, so what has no price cannot be paid by it.
    pub limited: bool,
}

/// Why a request did not leave.
#[derive(Debug)]
pub(crate) enum UnpaidReason {
    Refused(Box<PolicyRefusal>),
    /// Only others of its tree stood in the way, and something of theirs was settled.
    Waited,
}

/// A hold that goes with the next records.
#[derive(Debug)]
pub(super) struct HoldDraft {
    pub reservation: ReservationId,
    pub provider_key: ProviderKey,
    /// What its subject is recognised by.
    pub subject: Hash,
    pub operation: Operation,
}

impl HoldDraft {
    fn of(reserve: Reserve) -> Self {
        Self {
            reservation: reserve.hold.id(),
            provider_key: reserve.hold.provider_key(),
            subject: reserve.question.subject.hash(),
            operation: Operation::Reserve(Box::new(reserve)),
        }
    }
}

/// What has to be held for a request.
#[derive(Debug)]
pub(super) enum RequestCost {
    Nothing,
    Held {
        amount: Money,
        output_tokens: u32,
    },
    /// Not even the shortest answer can be paid: this is what it would cost, and how long it is.
    TooDear {
        shortest: Option<Money>,
        output_tokens: u32,
    },
    /// Nobody knows what it costs, and there is a limit to keep.
    Unpriced,
}

impl Machine {
    /// The most that a request to who is asked at `place` can cost, with as many tokens of answer as can be paid.
    pub(super) fn request_cost(&self, price: &Price, wanted: u32, world: &StepContext<'_>) -> RequestCost {
        self.prompt_cost(price, self.prompt_bound(), wanted, world)
    }

    /// The same of a request with so many tokens of prompt at most.
    pub(super) fn prompt_cost(&self, price: &Price, prompt: u64, wanted: u32, world: &StepContext<'_>) -> RequestCost {
        let limited = world.money_left.is_some() || world.payer().is_some_and(|payer| payer.limited);
        match price {
            Price::Free => return RequestCost::Nothing,
            Price::Unknown if limited => return RequestCost::Unpriced,
            Price::Unknown => return RequestCost::Nothing,
            Price::Listed(_) => {}
        }
        let mut output = wanted;
        if let Some(left) = world.money_left {
            let affords = price.affordable_tokens(left, prompt).unwrap_or(0);
            output = output.min(u32::try_from(affords).unwrap_or(u32::MAX));
            let least = wanted.min(OUTPUT_TOKENS_MIN);
            if output < least {
                return RequestCost::TooDear {
                    shortest: price.worst_cost(prompt, u64::from(least)),
                    output_tokens: least,
                };
            }
        }
        match price.worst_cost(prompt, u64::from(output)) {
            Some(amount) => RequestCost::Held { amount, output_tokens: output },
            None => RequestCost::Unpriced,
        }
    }

    /// Whether policy is asked about a request that nobody can pay, so that its refusal says why. Where a ward alone is in
    /// the way, the ward says so.
    pub(super) fn defers_to_policy(&self, world: &StepContext<'_>) -> bool {
        world.payer().is_some_and(|payer| payer.limited || self.facts.circle.wards().max_cost.is_empty())
    }

    /// No tokeniser makes more than a token of a byte.
    fn prompt_bound(&self) -> u64 {
        // A request may add one to the list.
        let messages = self.view.len() as u64 + 1;
        let measure = self.facts.cantrip.measure();
        let images = (self.images.len() as f64 * measure.image_tokens).ceil() as u64;
        let bytes = self.view.bytes().saturating_add(self.view.frame().definition_bytes);
        let bound = bytes.saturating_add(messages.saturating_mul(MESSAGE_TOKENS_BOUND)).saturating_add(images);
        // A window that is only assumed does not bound what a server may accept and charge for.
        let window = measure.window.filter(|window| *window != WINDOW_TOKENS_ASSUMED);
        window.map_or(bound, |window| bound.min(window))
    }

    /// The hold for an attempt of a request; none where nobody keeps a ledger. Where one is kept and nobody pays, policy has
    /// refused the request before it came to this.
    pub(super) fn request_hold(
        &self,
        crystal: &str,
        call: CallId,
        attempt: u32,
        amount: Money,
        world: &StepContext<'_>,
    ) -> Result<Option<HoldDraft>, Error> {
        match world.funds {
            Funds::NoLedger => Ok(None),
            Funds::NoAuthorization => Err(self.incoherent("attempt", "nobody pays for it")),
            Funds::Paid(payer) => Ok(self.hold(payer, crystal, call, attempt, amount, world)),
        }
    }

    fn hold(
        &self,
        payer: &RunPayer,
        crystal: &str,
        call: CallId,
        attempt: u32,
        amount: Money,
        world: &StepContext<'_>,
    ) -> Option<HoldDraft> {
        let approval = self.approval_id(call);
        let call = CallKey::new(call.to_string()).ok()?;
        let now = world.now.wall;
        let lasts = self.facts.circle.wards().timeout.unwrap_or_default();
        let run = self.facts.run;
        let hold = Hold {
            authorization: payer.authorization,
            run,
            root_run: run,
            call,
            attempt,
            amount,
            retry_class: RetryClass::SafeRetry,
            scope: self.facts.scope.clone(),
            decision: world.ids.next(now),
            approval,
            at: now,
            expires_at: now.after(lasts.saturating_add(Duration::from_secs(HOLD_GRACE_SECONDS))),
        };
        let question = PolicyQuery {
            policy_id: POLICY.to_owned(),
            phase: Phase::Spend,
            subject: crystal_subject(crystal),
            principal: self.principal(payer),
            guards: Guards::default(),
            trifecta: Trifecta::default(),
        };
        Some(HoldDraft::of(Reserve { hold, question }))
    }

    /// The hold for a call of a gate.
    #[allow(clippy::too_many_arguments, reason = "each of them is another fact about the call")]
    pub(super) fn hold_for_gate(
        &self,
        payer: &RunPayer,
        call: CallId,
        amount: Money,
        subject: Subject,
        touched: Option<Vec<String>>,
        promises: &GateSpec,
        approval: Option<ApprovalId>,
        barred: bool,
        world: &StepContext<'_>,
    ) -> Option<HoldDraft> {
        let now = world.now.wall;
        let again = match &promises.settlement {
            Some(settlement) => settlement.is_repeatable(),
            None => promises.is_idempotent(),
        };
        let lasts = promises.time_max.or(self.facts.circle.wards().timeout).unwrap_or_default();
        let run = self.facts.run;
        let hold = Hold {
            authorization: payer.authorization,
            run,
            root_run: run,
            call: CallKey::new(call.to_string()).ok()?,
            attempt: 1,
            amount,
            retry_class: if again { RetryClass::SafeRetry } else { RetryClass::DedupeReconcileRequired },
            scope: self.facts.scope.clone(),
            decision: world.ids.next(now),
            approval,
            at: now,
            expires_at: now.after(lasts.saturating_add(Duration::from_secs(HOLD_GRACE_SECONDS))),
        };
        let explicit = barred.then(|| ExplicitDenial { reason_code: "policy_denied.reconcile_required".to_owned() });
        let question = PolicyQuery {
            policy_id: POLICY.to_owned(),
            phase: Phase::Spend,
            subject,
            principal: self.principal(payer),
            guards: Guards { explicit, ..Guards::default() },
            trifecta: Trifecta { ward: touched.is_some(), touched: touched.unwrap_or_default() },
        };
        Some(HoldDraft::of(Reserve { hold, question }))
    }

    fn principal(&self, payer: &RunPayer) -> Principal {
        Principal {
            owner: payer.owner.clone(),
            run_id: Some(self.facts.run.to_string()),
            root_run_id: Some(self.facts.run.to_string()),
            thread_id: Some(payer.thread.to_string()),
            autopilot_id: self.facts.cantrip.name().map(str::to_owned),
        }
    }

    /// What becomes of a hold goes with the next records.
    pub(super) fn settle_hold(
        &mut self,
        reservation: Option<ReservationId>,
        price: &Price,
        charge: &Charge,
        why: UnknownOutcome,
        at: Timestamp,
    ) {
        let Some(reservation) = reservation else { return };
        let settled = match (charge, super::request::charged_amount(price, charge)) {
            (Charge::Nothing, _) => Operation::release(reservation, at),
            (Charge::Reported(_), Some(actual)) => Operation::commit(reservation, actual, None, at),
            (Charge::Reported(_) | Charge::Unknown, _) => Operation::unknown(reservation, why, at),
        };
        self.money.push(settled);
    }

    /// The scope that a child's money is counted in, and the cap that comes with it: its own, where its wards leave it
    /// less than its parent has.
    pub(super) fn child_scope(
        &self,
        child: &ChildSpec,
        cast: CastId,
        world: &StepContext<'_>,
    ) -> (String, Option<Operation>) {
        let (own, above) = (&child.child.circle.wards().max_cost, &self.facts.circle.wards().max_cost);
        let cap = world.payer().filter(|_| own != above).and_then(|payer| {
            let limit = *own.iter().find(|limit| limit.currency() == payer.currency)?;
            let (scope, parent) = (cast.to_string(), Some(self.facts.scope.clone()));
            Some(SetCap { authorization: payer.authorization, scope, parent, limit })
        });
        match cap {
            Some(cap) => (cap.scope.clone(), Some(Operation::SetCap(cap))),
            None => (self.facts.scope.clone(), None),
        }
    }

    /// Nobody pays for whoever asks, whatever the request costs: it does not leave, and the cast is over.
    pub(super) fn handle_unfunded(&mut self, decided: DecisionRecord, world: &StepContext<'_>) -> Result<(), Error> {
        let refusal = policy_denial(self.facts.crystal(), &decided.decision, &decided.input, None);
        let reason = truncation(&decided.decision.reason_code);
        self.record_decision(decided, world)?;
        let fault = world.words.render_fault(refusal);
        self.end_alone(reason, Some(fault), world).map(|_| ())
    }

    /// The request was not paid for, so it never left.
    pub(super) fn handle_unpaid(&mut self, unpaid: UnpaidReason, world: &StepContext<'_>) -> Result<(), Error> {
        self.ready = None;
        self.discard_attempt()?;
        match unpaid {
            UnpaidReason::Waited => Ok(()),
            UnpaidReason::Refused(refused) if refused.decided.decision.decision == Ruling::NeedsApproval => {
                self.require_approval(refused.decided.decision.reason_code)
            }
            UnpaidReason::Refused(refused) => {
                let PolicyRefusal { decided, terms } = *refused;
                let call = CallId::request(self.requested_turn(world)?);
                let refusal = match self.verdict_on_request(call, &decided.decision) {
                    Some(verdict) => verdict.refusal(self.facts.crystal().to_owned()),
                    None => policy_denial(self.facts.crystal(), &decided.decision, &decided.input, terms.as_ref()),
                };
                let fault = world.words.render_fault(refusal);
                self.end_alone(truncation(&decided.decision.reason_code), Some(fault), world).map(|_| ())
            }
        }
    }
}

/// A request to a crystal, as policy is told it.
pub(crate) fn crystal_subject(crystal: &str) -> Subject {
    let provider = crystal.split_once('/').map_or(crystal, |(provider, _)| provider);
    Subject::model_call(provider, crystal)
}
