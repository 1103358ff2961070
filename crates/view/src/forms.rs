//! The fields of forms: the texts as they were typed, and the values that they mean.
//!
//! A form that is refused is shown again with everything that was typed, and each fault stands beside its field. So the
//! texts are kept apart from the values, and all faults of a form are found at once.

use cantrip_service::cantrip::canon::{Money, json};
use cantrip_service::limits::NOTE_BYTES_MAX;
use serde_json::Value;

use crate::limits::{FORM_REASON_BYTES_MAX, FORM_TURNS_MAX};

/// A field that cannot be used, and the rule that it breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldFault {
    pub field: &'static str,
    pub rule: String,
}

impl FieldFault {
    pub fn new(field: &'static str, rule: impl Into<String>) -> Self {
        Self { field, rule: rule.into() }
    }
}

/// The fields of a cast.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CastFields {
    pub intent: String,
    pub context: String,
    pub budget: String,
}

/// The request that the fields of a cast mean.
#[derive(Debug, Clone, PartialEq)]
pub struct CastInput {
    pub intent: String,
    /// JSON as a value, anything else as text, as on the command line.
    pub context: Option<Value>,
    pub budget: Option<Money>,
}

impl CastFields {
    pub fn read(&self) -> Result<CastInput, Vec<FieldFault>> {
        let mut faults = Vec::new();
        if self.intent.trim().is_empty() {
            faults.push(FieldFault::new("intent", "say what is to be done"));
        }
        let budget = money("budget", &self.budget, &mut faults);
        let context = match self.context.as_str() {
            "" => None,
            text => Some(json::read(text).unwrap_or_else(|_| Value::String(text.to_owned()))),
        };
        unless_faulty(CastInput { intent: self.intent.clone(), context, budget }, faults)
    }
}

/// The fields by which a truncated run is continued.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContinueFields {
    pub turns: String,
    pub budget: String,
}

/// The further limits of a run that is continued; none leaves those of its spell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContinueInput {
    pub turns: Option<u64>,
    pub budget: Option<Money>,
}

impl ContinueFields {
    pub fn read(&self) -> Result<ContinueInput, Vec<FieldFault>> {
        let mut faults = Vec::new();
        let turns = whole("turns", &self.turns, &mut faults);
        let budget = money("budget", &self.budget, &mut faults);
        unless_faulty(ContinueInput { turns, budget }, faults)
    }
}

/// The fields of a fork.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ForkFields {
    pub intent: String,
    /// `restored` or `fresh`; empty is `restored`.
    pub environment: String,
}

/// The fork that its fields mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForkInput {
    /// None goes on under the intent of the turn.
    pub intent: Option<String>,
    pub fresh: bool,
}

impl ForkFields {
    pub fn read(&self) -> Result<ForkInput, Vec<FieldFault>> {
        let mut faults = Vec::new();
        let fresh = match self.environment.as_str() {
            "" | "restored" => false,
            "fresh" => true,
            _ => {
                faults.push(FieldFault::new("environment", "choose restored or fresh"));
                false
            }
        };
        unless_faulty(ForkInput { intent: given(&self.intent), fresh }, faults)
    }
}

/// The fields of a rating.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RewardFields {
    pub reward: String,
    pub note: String,
}

/// The rating that its fields mean.
#[derive(Debug, Clone, PartialEq)]
pub struct RewardInput {
    pub reward: f64,
    pub note: Option<String>,
}

impl RewardFields {
    pub fn read(&self) -> Result<RewardInput, Vec<FieldFault>> {
        let mut faults = Vec::new();
        let reward = match self.reward.trim().parse::<f64>() {
            Ok(reward) if reward.is_finite() => reward,
            Ok(_) | Err(_) => {
                faults.push(FieldFault::new("reward", "write a number, for example 0.5"));
                0.0
            }
        };
        if self.note.len() > NOTE_BYTES_MAX {
            faults.push(FieldFault::new("note", format!("it is longer than {NOTE_BYTES_MAX} bytes")));
        }
        unless_faulty(RewardInput { reward, note: given(&self.note) }, faults)
    }
}

/// The fields of a decision about a waiting call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DecideFields {
    /// `approve` or `refuse`: the button that was used.
    pub decision: String,
    pub reason: String,
    /// The digest of the proposal that the person saw.
    pub seen: String,
}

/// The decision that the fields mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecideInput {
    Approve,
    Refuse {
        /// The reason, which the entity reads.
        reason: String,
    },
}

impl DecideFields {
    pub fn read(&self) -> Result<DecideInput, Vec<FieldFault>> {
        let reason = self.reason.trim();
        if reason.len() > FORM_REASON_BYTES_MAX {
            let rule = format!("it is longer than {FORM_REASON_BYTES_MAX} bytes");
            return Err(vec![FieldFault::new("reason", rule)]);
        }
        match self.decision.as_str() {
            "approve" => Ok(DecideInput::Approve),
            "refuse" if reason.is_empty() => Ok(DecideInput::Refuse { reason: "no reason was given".to_owned() }),
            "refuse" => Ok(DecideInput::Refuse { reason: reason.to_owned() }),
            _ => Err(vec![FieldFault::new("decision", "choose approve or refuse")]),
        }
    }
}

fn unless_faulty<T>(input: T, faults: Vec<FieldFault>) -> Result<T, Vec<FieldFault>> {
    if faults.is_empty() { Ok(input) } else { Err(faults) }
}

/// Returns the text, unless it is blank.
fn given(text: &str) -> Option<String> {
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn money(field: &'static str, text: &str, faults: &mut Vec<FieldFault>) -> Option<Money> {
    let text = given(text)?;
    match text.parse::<Money>() {
        Ok(amount) if amount.micros() > 0 => Some(amount),
        Ok(_) => {
            faults.push(FieldFault::new(field, "write an amount above zero, or leave it empty"));
            None
        }
        Err(fault) => {
            faults.push(FieldFault::new(field, fault.to_string()));
            None
        }
    }
}

fn whole(field: &'static str, text: &str, faults: &mut Vec<FieldFault>) -> Option<u64> {
    let text = given(text)?;
    match text.parse::<u64>() {
        Ok(count) if (1..=FORM_TURNS_MAX).contains(&count) => Some(count),
        Ok(_) | Err(_) => {
            faults.push(FieldFault::new(field, format!("write a whole number from 1 to {FORM_TURNS_MAX}")));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_fault_of_a_cast_is_told_beside_its_field() {
        let typed = CastFields { intent: " \n".to_owned(), budget: "much".to_owned(), ..CastFields::default() };
        let faults = typed.read().expect_err("two fields cannot be used");
        assert_eq!(faults.iter().map(|fault| fault.field).collect::<Vec<_>>(), ["intent", "budget"]);
        let nothing = CastFields { intent: "go".to_owned(), budget: "0 USD".to_owned(), ..CastFields::default() };
        assert_eq!(nothing.read().expect_err("an empty budget").first().map(|fault| fault.field), Some("budget"));
    }

    #[test]
    fn a_context_is_json_where_it_is_json_and_text_otherwise() {
        let context = |text: &str| {
            let typed = CastFields { intent: "go".to_owned(), context: text.to_owned(), ..CastFields::default() };
            typed.read().expect("a sound form").context
        };
        assert_eq!(context(""), None);
        assert_eq!(context("{\"a\": 1}"), Some(json!({"a": 1})));
        assert_eq!(context("a, b\n"), Some(json!("a, b\n")));
    }

    #[test]
    fn a_fork_without_an_intent_goes_on_and_an_unknown_environment_is_refused() {
        let read = |intent: &str, environment: &str| {
            ForkFields { intent: intent.to_owned(), environment: environment.to_owned() }.read()
        };
        assert_eq!(read(" ", ""), Ok(ForkInput { intent: None, fresh: false }));
        assert_eq!(read("other", "fresh"), Ok(ForkInput { intent: Some("other".to_owned()), fresh: true }));
        assert!(read("other", "stale").is_err());
    }

    #[test]
    fn a_decision_is_one_of_two_and_a_refusal_always_has_a_reason() {
        let read = |decision: &str, reason: &str| {
            let fields =
                DecideFields { decision: decision.to_owned(), reason: reason.to_owned(), ..Default::default() };
            fields.read()
        };
        assert_eq!(read("approve", "ignored"), Ok(DecideInput::Approve));
        assert_eq!(read("refuse", " not here "), Ok(DecideInput::Refuse { reason: "not here".to_owned() }));
        assert_eq!(read("refuse", ""), Ok(DecideInput::Refuse { reason: "no reason was given".to_owned() }));
        assert!(read("", "").is_err());
        assert!(read("refuse", &"x".repeat(5_000)).is_err());
    }

    #[test]
    fn numbers_that_no_run_can_have_are_refused() {
        for turns in ["0", "-1", "1.5", "99999999999"] {
            let typed = ContinueFields { turns: turns.to_owned(), ..ContinueFields::default() };
            assert!(typed.read().is_err(), "{turns}");
        }
        for reward in ["", "NaN", "inf", "good"] {
            let typed = RewardFields { reward: reward.to_owned(), ..RewardFields::default() };
            assert!(typed.read().is_err(), "{reward}");
        }
    }
}
