//! The worst cost of a request is reserved before it is sent, and its actual cost is booked with the record of its
//! answer.
//!
//! The hold is in the step of the attempt, so no unpaid request is sent. Its settlement is in the step of the answer,
//! so no answer is recorded without its price. If a store keeps no ledger, or a crystal costs nothing, nothing is held,
//! and the wards of the circle count the costs that were reported.

use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::{ApprovalId, CastId, Currency, EntityId, Hash, Money, Timestamp};
use cantrip_circle::gate::GateSpec;
use cantrip_crystal::limits::WINDOW_TOKENS_ASSUMED;
use cantrip_crystal::{Charge, Price};
use cantrip_loom::{CallId, Error};
use cantrip_spend::{
    AuthorizationRef, CallKey, ExplicitDenial, Guards, Hold, Operation, Payer, Phase, PolicyQuery, Principal,
    ProviderKey, ReservationId, Reserve, ResolvedAuthorization, RetryClass, SetCap, Subject, Terms, Trifecta,
    UnknownOutcome,
};

use super::{ChildSpec, Machine, StepContext};
use crate::denial::PolicyRefusal;
use crate::funds::Funds;
use crate::limits::{HOLD_GRACE_SECONDS, MESSAGE_TOKENS_BOUND, OUTPUT_TOKENS_MIN};
use crate::policy::POLICY;

/// The payer of a run.
#[derive(Debug, Clone)]
pub struct RunPayer {
    pub authorization: AuthorizationRef,
    pub owner: Payer,
    /// The root entity, whose conversation the whole tree belongs to.
    pub thread: EntityId,
    pub currency: Currency,
    /// The terms as they were last read. `named` is how a decision refers to them.
    pub terms: Arc<Terms>,
    pub named: ResolvedAuthorization,
    /// True if the authorization has a money limit, so it cannot pay for a request without a known price.
    pub limited: bool,
}

/// The reason why a request was not sent.
#[derive(Debug)]
pub enum UnpaidReason {
    Refused(Box<PolicyRefusal>),
    /// Only others of its tree held the money, and one of their holds was settled.
    Waited,
}

/// A hold that is appended with the next records.
#[derive(Debug)]
pub(super) struct HoldDraft {
    pub reservation: ReservationId,
    pub provider_key: ProviderKey,
    /// The hash that identifies the subject.
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

/// The cost to be held for a request.
#[derive(Debug)]
pub(super) enum RequestCost {
    Nothing,
    Held {
        amount: Money,
        output_tokens: u32,
    },
    /// Not even the shortest answer can be paid: its cost and its length.
    TooDear {
        shortest: Option<Money>,
        output_tokens: u32,
    },
    /// The price is unknown, and there is a money limit.
    Unpriced,
}

impl Machine {
    /// Returns the worst cost of a request, with as many output tokens as can be paid.
    pub(super) fn request_cost(&self, price: &Price, wanted: u32, world: &StepContext<'_>) -> RequestCost {
        self.prompt_cost(price, self.prompt_bound(), wanted, world)
    }

    /// Like `request_cost`, for a prompt of at most `prompt` tokens.
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

    /// Returns true if policy is asked about a request that cannot be paid, so that its refusal says why. If only a
    /// ward is the limit, the ward's refusal is used.
    pub(super) fn defers_to_policy(&self, world: &StepContext<'_>) -> bool {
        world.payer().is_some_and(|payer| payer.limited || self.facts.circle.wards().max_cost.is_empty())
    }

    /// Returns an upper bound of the prompt tokens: no tokenizer makes more than one token of a byte.
    fn prompt_bound(&self) -> u64 {
        // A request may add one message to the list.
        let messages = self.view.len() as u64 + 1;
        let measure = self.facts.definition.measure();
        let images = (self.images.len() as f64 * measure.image_tokens).ceil() as u64;
        let bytes = self.view.bytes().saturating_add(self.view.frame().definition_bytes);
        let bound = bytes.saturating_add(messages.saturating_mul(MESSAGE_TOKENS_BOUND)).saturating_add(images);
        // A window that is only assumed does not bound what a server may accept and charge for.
        let window = measure.window.filter(|window| *window != WINDOW_TOKENS_ASSUMED);
        window.map_or(bound, |window| bound.min(window))
    }

    /// Returns the hold for an attempt of a request; none without a ledger. If there is a ledger and nobody pays,
    /// policy has refused the request before this is called.
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

    /// Returns the hold for a gate call.
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
            autopilot_id: self.facts.definition.name().map(str::to_owned),
        }
    }

    /// Settles a hold in the step of the next records.
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
        self.drafts.add_money([settled]);
    }

    /// Returns the scope that a child's money is counted in, and its cap: the child has its own scope if its wards
    /// allow it less than its parent has.
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
}

/// Returns the policy subject of a request to a crystal.
pub fn crystal_subject(crystal: &str) -> Subject {
    let provider = crystal.split_once('/').map_or(crystal, |(provider, _)| provider);
    Subject::model_call(provider, crystal)
}
