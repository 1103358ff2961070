//! The cases of a reflection, as the model sees them: without secrets, and within their bounds.
//!
//! Redaction comes first. A part that was cut before could hide the form by which a secret is recognized.

use cantrip::canon::json::canonical;
use cantrip::canon::{Redactor, known_secrets};
use cantrip_contract::micro_number;
use serde_json::{Value, json};

use crate::limits::{REFLECT_CASE_BYTES_MAX, REFLECT_CASES_BYTES_MAX};

/// The end of a part that was cut.
const CUT: &str = " [cut]";
/// The parts of a case that may be cut.
const PARTS: [&str; 4] = ["input", "output", "feedback", "excerpt"];

/// The content of one case, as the store has it.
#[derive(Debug, Clone, PartialEq)]
pub struct CaseBody {
    pub input: Value,
    /// Null if the candidate gave no output.
    pub output: Value,
    pub score_micro: u64,
    pub feedback: String,
    /// The programs and errors on the way to the output, if they say more than the output.
    pub excerpt: String,
}

/// The cases of one reflection, redacted and cut.
#[derive(Debug, Clone, PartialEq)]
pub struct ReflectCases(Vec<Value>);

impl ReflectCases {
    /// Redacts the cases, and cuts each to its share of the bound.
    pub fn new(bodies: &[CaseBody], redactor: &Redactor) -> Self {
        let share = REFLECT_CASES_BYTES_MAX / bodies.len().max(1);
        let bytes_max = share.min(REFLECT_CASE_BYTES_MAX);
        Self(bodies.iter().map(|body| cut_case(redact(&shown(body), redactor), bytes_max)).collect())
    }

    pub fn as_slice(&self) -> &[Value] {
        &self.0
    }

    pub fn into_value(self) -> Value {
        Value::Array(self.0)
    }
}

fn shown(body: &CaseBody) -> Value {
    json!({
        "input": body.input,
        "output": body.output,
        "score": micro_number(i64::try_from(body.score_micro).unwrap_or(i64::MAX)),
        "feedback": body.feedback,
        "excerpt": body.excerpt,
    })
}

/// Replaces secrets by their form, and those that this process knows.
fn redact(value: &Value, redactor: &Redactor) -> Value {
    let redacted = redactor.redact_value(value);
    match known_secrets() {
        Some(known) => known.redact_value(redacted),
        None => redacted,
    }
}

fn length(value: &Value) -> usize {
    canonical(value).map_or(0, |text| text.len())
}

/// Returns a text that has at most this many bytes: its beginning, if it is longer.
pub(super) fn shortened(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let most = bytes_max.saturating_sub(CUT.len());
    let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}{CUT}", &text[..end])
}

/// Halves the longest part of a case until the case fits.
fn cut_case(mut case: Value, bytes_max: usize) -> Value {
    while length(&case) > bytes_max {
        let Some(longest) = PARTS.into_iter().max_by_key(|part| length(&case[*part])) else { return case };
        match halved(&case[longest]) {
            Some(shorter) => case[longest] = Value::String(shorter),
            None => return case,
        }
    }
    case
}

/// Returns the first half of a value, as text; none if nothing is left to cut.
fn halved(value: &Value) -> Option<String> {
    let written = match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            canonical(value).unwrap_or_default()
        }
    };
    let kept = written.strip_suffix(CUT).unwrap_or(&written);
    if kept.is_empty() {
        return None;
    }
    let half = kept.len() / 2;
    let end = (0..=half).rev().find(|end| kept.is_char_boundary(*end)).unwrap_or(0);
    Some(format!("{}{CUT}", &kept[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(input: Value, feedback: &str) -> CaseBody {
        CaseBody {
            input,
            output: json!({"label": "praise"}),
            score_micro: 250_000,
            feedback: feedback.to_owned(),
            excerpt: String::new(),
        }
    }

    #[test]
    fn a_short_case_is_shown_as_it_is() {
        let cases = ReflectCases::new(&[body(json!({"text": "Hello."}), "at /label")], &Redactor::default());
        let shown = json!({
            "input": {"text": "Hello."}, "output": {"label": "praise"}, "score": 0.25, "feedback": "at /label",
            "excerpt": "",
        });
        assert_eq!(cases.into_value(), json!([shown]));
    }

    #[test]
    fn a_long_text_is_shown_from_its_beginning() {
        assert_eq!(shortened("short", 5), "short");
        assert_eq!(shortened("üüüüüü", 11), "üü [cut]");
        assert_eq!(shortened("longer than that", 3), " [cut]");
    }

    #[test]
    fn every_case_and_all_of_them_stay_within_their_bounds() {
        for count in [1, 3, 4, 5, 8, 32] {
            // Letters of several bytes, and characters that canonical JSON escapes.
            let long = body(json!({"text": "ü\"\n".repeat(40_000), "list": vec![1; 9_000]}), &"€".repeat(9_000));
            let cases = ReflectCases::new(&vec![long; count], &Redactor::default());
            let lengths: Vec<usize> = cases.as_slice().iter().map(length).collect();
            assert!(lengths.iter().all(|length| *length <= REFLECT_CASE_BYTES_MAX), "{lengths:?}");
            assert!(lengths.iter().sum::<usize>() <= REFLECT_CASES_BYTES_MAX, "{lengths:?}");
            let first = &cases.as_slice()[0];
            assert!(first["input"].as_str().is_some_and(|text| text.ends_with(CUT)), "the end says that it was cut");
            assert_eq!(first["output"], json!({"label": "praise"}), "a short part stays whole");
        }
    }

    #[test]
    fn secrets_and_personal_data_are_removed_before_anything_is_cut() {
        let redactor = Redactor::with_secrets(["correct horse battery"]).personal_data(true);
        let filler = "x".repeat(REFLECT_CASE_BYTES_MAX / 2 - 40);
        let text = format!("{filler} correct horse battery, ada@example.org {filler}");
        let cases = ReflectCases::new(&[body(json!({"text": text}), "write to ada@example.org")], &redactor);
        let told = cases.into_value().to_string();
        assert!(!told.contains("horse") && !told.contains("ada@"), "{told}");
        assert!(told.contains("write to [REDACTED]"), "{told}");
    }
}
