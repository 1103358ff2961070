//! Values as texts: for needles, patterns and messages.

use cantrip::canon::json::canonical;
use cantrip_contract::limits::FEEDBACK_VALUE_CHARS;
use cantrip_contract::{Normalise, near_form};
use serde_json::Value;

use super::score::cut_text;

/// Returns a text as it is, and any other value as its canonical text.
pub(super) fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => canonical_text(value),
    }
}

/// Returns the canonical text of a value.
pub(super) fn canonical_text(value: &Value) -> String {
    canonical(value).unwrap_or_else(|_| value.to_string())
}

/// Returns the text of a value in the form in which it is compared.
pub(super) fn compared_text(value: &Value, normalise: Normalise) -> String {
    match normalise {
        Normalise::None => text_of(value),
        Normalise::Text => near_form(value),
    }
}

/// Returns the value for a message, cut to a readable length.
pub(super) fn shown(value: &Value) -> String {
    cut_text(&text_of(value), FEEDBACK_VALUE_CHARS)
}
