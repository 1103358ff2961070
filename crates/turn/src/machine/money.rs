//! The worst cost of a request is reserved before it is sent, and its actual cost is booked with the record of its
//! answer.
//!
//! The hold is in the step of the attempt, so no unpaid request is sent. Its settlement is in the step of the answer,
//! so no answer is recorded without its price. If a store keeps no ledger, or a crystal costs nothing, nothing is held,
//! and the wards of the circle count the costs that were reported.

use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::{CastId, Currency, EntityId, Hash, Money, RunId, Timestamp};
use cantrip_crystal::limits::WINDOW_TOKENS_ASSUMED;
use cantrip_crystal::{Charge, Price};
use cantrip_loom::{CallId, Error};
use cantrip_spend::{
    AuthorizationRef, CallKey, Guards, Hold, Operation, Payer, Phase, PolicyQuery, Principal, ProviderKey,
    ReservationId, Reserve, ResolvedAuthorization, RetryClass, SetCap, Subject, Terms, Trifecta, UnknownOutcome,
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
    /// The root of the tree of runs: the run itself, or the job that it is a trial of. The holds of one tree wait for
    /// each other.
    pub root: RunId,
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
    pub(super) fn of(reserve: Reserve) -> Self {
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
        let whole = self.facts.definition.settings().whole;
        // With a ledger, the whole worst case is asked of it: it may be that only other holds of the tree are in the way.
        if let Some(left) = world.money_left.filter(|_| !whole || world.payer().is_none()) {
            let affords = price.affordable_tokens(left, prompt).unwrap_or(0);
            output = output.min(u32::try_from(affords).unwrap_or(u32::MAX));
            let least = if whole { wanted } else { wanted.min(OUTPUT_TOKENS_MIN) };
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
        let Some(mut reserve) = self.reserve("attempt", call, amount, crystal_subject(crystal), world)? else {
            return Ok(None);
        };
        reserve.hold.attempt = attempt;
        Ok(Some(HoldDraft::of(reserve)))
    }

    /// Returns the reservation for the first attempt of a call that may be repeated; none without a ledger. `kind` is
    /// the record that begins the call.
    pub(super) fn reserve(
        &self,
        kind: &str,
        call: CallId,
        amount: Money,
        subject: Subject,
        world: &StepContext<'_>,
    ) -> Result<Option<Reserve>, Error> {
        let payer = match world.funds {
            Funds::NoLedger => return Ok(None),
            Funds::NoAuthorization => return Err(self.incoherent(kind, "nobody pays for it")),
            Funds::Paid(payer) => payer,
        };
        // A call id is short enough for a key.
        let Ok(key) = CallKey::new(call.to_string()) else { return Ok(None) };
        let (now, run) = (world.now.wall, self.facts.run);
        let hold = Hold {
            authorization: payer.authorization,
            run,
            root_run: payer.root,
            call: key,
            attempt: 1,
            amount,
            retry_class: RetryClass::SafeRetry,
            scope: self.facts.scope.clone(),
            decision: world.ids.next(now),
            approval: self.approval_id(call),
            at: now,
            expires_at: hold_expiry(now, self.facts.circle.wards().timeout.unwrap_or_default()),
        };
        let question = PolicyQuery {
            policy_id: POLICY.to_owned(),
            phase: Phase::Spend,
            subject,
            principal: self.principal(payer),
            guards: Guards::default(),
            trifecta: Trifecta::default(),
        };
        Ok(Some(Reserve { hold, question }))
    }

    fn principal(&self, payer: &RunPayer) -> Principal {
        let of_run = Principal::of_run(payer.owner.clone(), self.facts.run, payer.thread, self.facts.definition.name());
        Principal { root_run_id: Some(payer.root.to_string()), ..of_run }
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

/// Returns when a hold expires for a call that may last this long.
pub(super) fn hold_expiry(at: Timestamp, lasts: Duration) -> Timestamp {
    at.after(lasts.saturating_add(Duration::from_secs(HOLD_GRACE_SECONDS)))
}

/// Returns the policy subject of a request to a crystal.
pub fn crystal_subject(crystal: &str) -> Subject {
    let provider = crystal.split_once('/').map_or(crystal, |(provider, _)| provider);
    Subject::model_call(provider, crystal)
}
