//! Redaction of examples: when they leave, and on request before they are stored.

use cantrip::canon::Redactor;
use cantrip_contract::Example;
use serde_json::Value;

/// Returns an example as a line of JSON that may leave the store: with these secrets and personal data replaced, or as
/// it is stored if there is no redactor.
pub fn redacted_example(example: &Example, redactor: Option<&Redactor>) -> Value {
    todo!()
}
