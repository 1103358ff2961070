//! Turns a denial of the policy into the refusal that a caller reads.
//!
//! Casts and predicts use this one function. Amounts, limits and times come from the input and the terms of the
//! decision, never from the present: a refusal that names another amount, or the time at which it was read, would
//! mislead its reader.

use std::time::Duration;

use cantrip_canon::{Currency, Money, Timestamp};
use cantrip_loom::TruncationReason;
use cantrip_reply::{Refusal, codes};
use cantrip_spend::{
    AuthorizationMode, Decision, DecisionRecord, Family, PolicyInput, ReasonCode, Ruling, RunCap, Terms,
};
use serde_json::{Value, json};

/// A decision that did not allow an operation, with its terms.
#[derive(Debug, Clone)]
pub struct PolicyRefusal {
    pub decided: DecisionRecord,
    /// `None` if no authorization was resolved.
    pub terms: Option<Terms>,
}

/// Returns how a cast ends if its request was denied for this reason: by a limit of money, or because the policy
/// forbids it.
pub(crate) fn truncation(code: &ReasonCode) -> TruncationReason {
    if code.is_over_limit() || code.as_str() == "policy_denied.per_call_limit" {
        TruncationReason::MaxCost
    } else {
        TruncationReason::PolicyDenied
    }
}

/// Returns the refusal for a policy decision about `subject`. `input` and `terms` are those of the decision; without an
/// authorization there are no terms.
pub fn policy_denial(subject: &str, decision: &Decision, input: &PolicyInput, terms: Option<&Terms>) -> Refusal {
    let code = decision.reason_code.as_str();
    let authorization = input.authorization.as_ref().map(|named| named.authorization_id.as_str());
    let data = json!({
        "reason_code": code, "evaluation_hash": decision.evaluation_hash, "authorization_id": authorization,
    });
    let reason = code.rsplit('.').next().unwrap_or_default();
    let Some((authorization, terms)) = authorization.zip(terms) else {
        let why = if reason == "authorization_missing" {
            "no authorization covers the caller; the operator grants one: cantrip spend authorize"
        } else {
            reason
        };
        return codes::not_authorized(subject, why).data(data).into();
    };
    let amounts = Amounts { input, terms };
    match reason {
        "budget_exhausted" => {
            codes::budget_spent(amounts.needed(), amounts.left_in_total(), authorization).data(data).into()
        }
        "run_limit" => {
            let (left, cap) = amounts.left_in_run();
            codes::budget_spent(amounts.needed(), left, cap).data(data).into()
        }
        "per_call_limit" => codes::per_call(amounts.needed(), amounts.limit(terms.max_per_call)).data(data).into(),
        "per_day_limit" => {
            let mut data = data;
            data["resets_at"] = json!(next_day(&input.usage.day));
            codes::per_day(amounts.needed(), amounts.limit(terms.max_per_day)).data(data).into()
        }
        "authorization_expired" => codes::expired(authorization, terms.expires_at).data(data).into(),
        "authorization_revoked" => codes::revoked(authorization, terms.revoked_at).data(data).into(),
        "unknown_price" => {
            let model = input.subject.model.as_deref().unwrap_or(subject);
            codes::price_unknown(model, amounts.limit_in_force(authorization)).data(data).into()
        }
        "reconcile_required" => codes::reconcile_first(subject).data(data).into(),
        "explicit_deny" if terms.mode == AuthorizationMode::Deny => {
            let why = format!("explicit_deny, the mode of {authorization} is deny");
            codes::not_authorized(subject, why).data(data).into()
        }
        reason => {
            let needs =
                decision.decision == Ruling::NeedsApproval || decision.reason_code.family() == Family::ApprovalRequired;
            let why = if needs { "a person has to approve it" } else { reason };
            codes::not_authorized(subject, why).data(data).into()
        }
    }
}

/// The amounts of a policy input, as money.
struct Amounts<'a> {
    input: &'a PolicyInput,
    terms: &'a Terms,
}

impl Amounts<'_> {
    fn currency(&self) -> Currency {
        self.input.request.currency.unwrap_or(self.terms.currency)
    }

    fn needed(&self) -> Money {
        amount(i128::from(self.input.request.amount), self.currency())
    }

    fn limit(&self, micros: Option<i64>) -> Money {
        amount(micros.map_or(0, i128::from), self.terms.currency)
    }

    fn left_in_total(&self) -> Money {
        let usage = &self.input.usage;
        let total = self.terms.max_total.map_or(0, i128::from);
        amount(total - i128::from(usage.spent) - i128::from(usage.reserved), self.terms.currency)
    }

    /// Returns the amount that the tightest cap leaves, and the name of that cap.
    fn left_in_run(&self) -> (Money, Value) {
        let currency = self.terms.currency;
        match &self.input.usage.run_cap {
            Some(RunCap { scope_id, limit, spent, reserved }) => {
                let left = i128::from(*limit) - i128::from(*spent) - i128::from(*reserved);
                let cap = format!("the {} of {scope_id}", amount(i128::from(*limit), currency));
                (amount(left, currency), json!(cap))
            }
            None => (Money::zero(currency), json!("the cap of its run")),
        }
    }

    /// Describes the limit that cannot be enforced because no price is known.
    fn limit_in_force(&self, authorization: &str) -> String {
        let Terms { max_total, max_per_call, max_per_day, .. } = self.terms;
        let limits = [("total", *max_total), ("per call", *max_per_call), ("per day", *max_per_day)];
        match limits.into_iter().find(|(_, limit)| limit.is_some()) {
            Some((what, limit)) => format!("the limit of {} {what} of {authorization}", self.limit(limit)),
            None => match &self.input.usage.run_cap {
                Some(cap) => format!("the {} of {}", amount(i128::from(cap.limit), self.terms.currency), cap.scope_id),
                None => authorization.to_owned(),
            },
        }
    }
}

/// Returns an amount as money. An overdrawn amount becomes zero; the exact numbers are in the decision.
fn amount(micros: i128, currency: Currency) -> Money {
    let micros = i64::try_from(micros.max(0)).unwrap_or(i64::MAX);
    Money::new(micros, currency).unwrap_or_else(|_| Money::zero(currency))
}

/// Returns the start of the next UTC day.
fn next_day(day: &str) -> Option<Timestamp> {
    let begins: Timestamp = format!("{day}T00:00:00.000Z").parse().ok()?;
    Some(begins.after(Duration::from_secs(24 * 60 * 60)))
}
