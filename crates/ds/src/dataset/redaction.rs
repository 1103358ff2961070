//! Redaction of examples: when they leave, and on request before they are stored.

use cantrip::canon::{Redactor, known_secrets};
use cantrip_contract::{Example, Weight, micro_number};
use serde_json::{Value, json};

/// Returns an example as a line of a dataset file. Reading the line again gives the same example.
pub fn example_line(example: &Example) -> Value {
    let mut line =
        json!({ "id": example.id, "input": example.input, "split": example.split, "source": example.source });
    let mut add = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            line[key] = value;
        }
    };
    add("expected", example.expected.clone());
    add("labels", (!example.labels.is_empty()).then(|| json!(example.labels)));
    let weight = i64::try_from(example.weight.micro()).unwrap_or(i64::MAX);
    add("weight", (example.weight != Weight::ONE).then(|| micro_number(weight)));
    add("group", example.group.as_ref().map(|group| json!(group)));
    add("reward", example.reward.map(micro_number));
    line
}

/// Returns the line of an example as it may leave the store: with secrets and personal data replaced, or as it is
/// stored if there is no redactor. Numbers and the split are never redacted.
pub fn redacted_example(example: &Example, redactor: Option<&Redactor>) -> Value {
    let mut line = example_line(example);
    if let Some(redactor) = redactor {
        for key in ["id", "input", "expected", "labels", "group", "source"] {
            if let Some(content) = line.get_mut(key) {
                *content = redact(content, redactor);
            }
        }
    }
    line
}

/// Replaces secrets by their form, and those that this process knows.
fn redact(value: &Value, redactor: &Redactor) -> Value {
    let redacted = redactor.redact_value(value);
    match known_secrets() {
        Some(known) => known.redact_value(redacted),
        None => redacted,
    }
}

/// Redacts a value before it is stored, and counts the texts that were replaced.
pub(super) fn redact_counted(value: &mut Value, redactor: &Redactor, count: &mut u64) {
    let redacted = redact(value, redactor);
    *count += differing_texts(value, &redacted);
    *value = redacted;
}

/// Counts the strings and keys that differ between a value and its redacted form, which has the same shape.
fn differing_texts(before: &Value, after: &Value) -> u64 {
    match (before, after) {
        (Value::String(before), Value::String(after)) => u64::from(before != after),
        (Value::Array(before), Value::Array(after)) => {
            before.iter().zip(after).map(|(before, after)| differing_texts(before, after)).sum()
        }
        (Value::Object(before), Value::Object(after)) => {
            let pairs = before.iter().zip(after);
            pairs.map(|(before, after)| u64::from(before.0 != after.0) + differing_texts(before.1, after.1)).sum()
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_replaced_text_counts_once() {
        let redactor = Redactor::default().personal_data(true);
        let mut value =
            json!({"text": "write to ada@example.org", "list": ["plain", "+44 20 7946 0018"], "email": "x"});
        let mut count = 0;
        redact_counted(&mut value, &redactor, &mut count);
        assert_eq!(count, 3, "{value}");
        let mut again = value.clone();
        redact_counted(&mut again, &redactor, &mut count);
        assert_eq!((count, &again), (3, &value));
    }
}
