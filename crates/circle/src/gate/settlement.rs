//! Where a gate moves money.
//!
//! What a call may cost at most is put aside before it begins, and what it cost is booked with its reply. Only an answer
//! that says so ends the matter: the id under which its provider keeps the payment, and what it was. An answer without
//! them is no success, because nobody could find the payment again.

use cantrip_canon::Money;
use cantrip_reply::{Refusal, ReplyDraft, Success, codes};
use serde_json::{Value, json};

use super::Effects;
use crate::limits::CORRELATION_BYTES_MAX;

/// Where the id of the payment stands in a result, unless told otherwise.
pub const CORRELATION: &str = "/provider_correlation_id";

/// How a gate settles.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "give it to a gate"]
pub struct Settlement {
    max_cost: Money,
    cost: Option<String>,
    correlation: String,
    repeatable: bool,
}

/// Why nobody knows whether a call was charged for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownCharge {
    /// It was ended from outside, or took too long.
    Cut,
    /// It answered without its provider's id for the payment.
    NoCorrelation,
    /// It answered without what it cost.
    NoCost,
}

impl Settlement {
    /// A call costs this much at most; it is put aside before the call, and it is what each call costs unless
    /// [`cost_at`](Self::cost_at) or the gate itself says otherwise.
    pub fn up_to(most: Money) -> Self {
        Self { max_cost: most, cost: None, correlation: CORRELATION.to_owned(), repeatable: false }
    }

    /// Where in its result stands what a call cost, as a JSON Pointer to a text such as `"1.20 USD"`.
    pub fn cost_at(mut self, pointer: impl Into<String>) -> Self {
        self.cost = Some(pointer.into());
        self
    }

    /// Where in its result stands its provider's id for the payment, as a JSON Pointer.
    pub fn correlation_at(mut self, pointer: impl Into<String>) -> Self {
        self.correlation = pointer.into();
        self
    }

    /// Making a call again costs money again and does nothing else; without this, a call of unknown outcome is not made
    /// again before someone has looked.
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

    /// The answer, if it settles the matter; what it cost and its id are noted.
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

/// An id as its provider writes it.
fn text(value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => text.trim().to_owned(),
        Value::Number(number) => number.to_string(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
    };
    (!text.is_empty() && text.len() <= CORRELATION_BYTES_MAX).then_some(text)
}
