//! What does a person read?
//!
//! A message is the template of its code filled from data, rendered anew for each request. A stored message was
//! rejected: it would be a second source of truth beside code and data, and someone would branch on it.

use std::borrow::Cow;

use cantrip_canon::Money;
use serde_json::{Map, Value};

use crate::code::AnyCode;
use crate::codes;
use crate::limits::{MESSAGE_FIELD_CHARS_MAX, VERIFY_RULE_CHARS_MAX};

/// Renders the message of this code with these data, whose fields are already redacted.
pub(crate) fn message(code: AnyCode, data: &Map<String, Value>) -> String {
    let row = code.row();
    let mut text = String::with_capacity(row.message.len() + 64);
    let mut rest = row.message;
    // The braces of a template are paired and hold its fields: any other row does not build.
    while let Some((before, from_field)) = rest.split_once('{') {
        let Some((field, after)) = from_field.split_once('}') else { break };
        text.push_str(before);
        match data.get(field) {
            // The JSON Pointer of the whole value is the empty string.
            Some(Value::String(path)) if field == "path" && path.is_empty() => text.push_str("the top"),
            Some(value) => text.extend(render_field(value).chars().take(chars_max(code, field))),
            None => {}
        }
        rest = after;
    }
    text.push_str(rest);
    text
}

fn chars_max(code: AnyCode, field: &str) -> usize {
    if code == codes::DONE_MALFORMED && field == "rule" { VERIFY_RULE_CHARS_MAX } else { MESSAGE_FIELD_CHARS_MAX }
}

/// Renders the value of a field on one line, without a full stop at its end: the sentence around it has its own.
fn render_field(value: &Value) -> String {
    let text = render_value(value);
    let mut line = one_line(&text).into_owned();
    if line.ends_with('.') {
        line.pop();
    }
    line
}

fn render_value(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => Cow::Borrowed(text),
        Value::Array(items) => Cow::Owned(items.iter().map(render_value).collect::<Vec<_>>().join(", ")),
        Value::Object(_) => match serde_json::from_value::<Money>(value.clone()) {
            Ok(money) => Cow::Owned(money.to_string()),
            Err(_) => Cow::Owned(value.to_string()),
        },
        Value::Null | Value::Bool(_) | Value::Number(_) => Cow::Owned(value.to_string()),
    }
}

/// Removes control characters from the text. Line ends and tabs between words become one space, so that the words stay
/// separate; at the end of the text they become nothing.
pub(crate) fn one_line(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut line = String::with_capacity(text.len());
    let mut apart = false;
    for char in text.chars() {
        if !char.is_control() {
            if apart && !line.is_empty() && !line.ends_with(' ') && char != ' ' {
                line.push(' ');
            }
            apart = false;
            line.push(char);
        } else if char.is_whitespace() {
            apart = true;
        }
    }
    Cow::Owned(line)
}

/// Returns the longest prefix of `text` that has at most `bytes_max` bytes and splits no character.
pub(crate) fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}
