//! The settlement of gates that move money.
//!
//! The maximum cost of a call is reserved before the call begins, and the actual cost is booked with its reply. A call
//! is settled only by an answer that has both the provider's id for the payment and the cost. An answer without them is
//! not a success, because the payment could not be found again.

use cantrip_canon::Money;
use cantrip_reply::{Refusal, ReplyDraft, Success, codes};
use serde_json::{Value, json};

use super::Effects;
use crate::limits::CORRELATION_BYTES_MAX;

/// The default place of the payment's id in a result, as a JSON Pointer.
pub const CORRELATION: &str = "/provider_correlation_id";

/// The way in which a gate settles a payment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "give it to a gate"]
pub struct Settlement {
    max_cost: Money,
    cost: Option<String>,
    correlation: String,
    repeatable: bool,
}

/// The reason why it is unknown whether a call was charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownCharge {
    /// The call was stopped from outside, or took too long.
    Cut,
    /// The answer had no provider id for the payment.
    NoCorrelation,
    /// The answer had no cost.
    NoCost,
    /// The gate reported a failure that may have come after the payment.
    Failed,
}

impl Settlement {
    /// Sets the maximum cost of a call. It is reserved before the call, and it is the cost of each call unless
    /// [`cost_at`](Self::cost_at) or the gate itself reports another.
    pub fn up_to(most: Money) -> Self {
        Self { max_cost: most, cost: None, correlation: CORRELATION.to_owned(), repeatable: false }
    }

    /// Sets the place of the cost in a result, as a JSON Pointer to a text such as `"1.20 USD"`.
    pub fn cost_at(mut self, pointer: impl Into<String>) -> Self {
        self.cost = Some(pointer.into());
        self
    }

    /// Sets the place of the provider's id for the payment in a result, as a JSON Pointer.
    pub fn correlation_at(mut self, pointer: impl Into<String>) -> Self {
        self.correlation = pointer.into();
        self
    }

    /// Declares that a repeated call only costs money again and has no other effect. Without this, a call with an
    /// unknown outcome is not repeated before a person has checked it.
    pub fn repeatable(mut self) -> Self {
        self.repeatable = true;
        self
    }

    pub fn max_cost(&self) -> Money {
        self.max_cost
    }

    pub fn is_repeatable(&self) -> bool {
        self.repeatable
    }

    /// Returns the answer if it settles the payment, and records the cost and the provider's id.
    pub(crate) fn settle(
        &self,
        gate: &str,
        filled: ReplyDraft<Success>,
        effects: &Effects,
    ) -> Result<ReplyDraft<Success>, Refusal> {
        let noted = effects.recorded_effects();
        let given = filled.given_value().cloned().unwrap_or_default();
        let unsettled = |doubt: UnknownCharge, detail: &str| {
            effects.record_unknown_charge(doubt);
            let data = json!({"settlement": detail, "answered": given});
            Err(Refusal::from(codes::gate_failed(gate, format!("it answered, and {detail}")).data(data)))
        };
        if noted.correlation.is_none() {
            match given.pointer(&self.correlation).and_then(text) {
                Some(id) => effects.record_correlation(id),
                None => {
                    return unsettled(
                        UnknownCharge::NoCorrelation,
                        "gave no id of the payment: whether it was made is unknown",
                    );
                }
            }
        }
        if noted.cost.is_none() {
            match &self.cost {
                None => effects.record_cost(self.max_cost),
                Some(pointer) => {
                    let said = given.pointer(pointer).and_then(Value::as_str).and_then(|cost| cost.parse().ok());
                    match said.filter(|cost: &Money| cost.currency() == self.max_cost.currency()) {
                        Some(cost) => effects.record_cost(cost),
                        None => return unsettled(UnknownCharge::NoCost, "did not say what it cost"),
                    }
                }
            }
        }
        Ok(filled)
    }
}

/// Returns a provider's id as text: from a string or a number.
fn text(value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => text.trim().to_owned(),
        Value::Number(number) => number.to_string(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
    };
    (!text.is_empty() && text.len() <= CORRELATION_BYTES_MAX).then_some(text)
}
