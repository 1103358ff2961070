//! The canonical bytes of a value (RFC 8785), written in one walk.
//!
//! Every record of every run is written and hashed in this form, several times a turn, so it is written without a detour:
//! keys are sorted only where they are not, and text is copied in stretches. `serde_json_canonicalizer`, which makes a list of
//! byte vectors of every object, took a third of the time of a turn. It still writes the numbers that are not whole, which
//! is the part of the standard that is hard, and the property tests hold every other byte to it as well.

use std::cmp::Ordering;
use std::fmt::Write;

use serde_json::{Map, Number, Value};

use super::WriteFault;
use super::write::{deeper, exact};

/// The text, or what in the value has none.
pub(super) fn text(value: &Value) -> Result<String, WriteFault> {
    let mut out = String::new();
    put(&mut out, value, 0)?;
    Ok(out)
}

/// Goes no deeper than the limit allows, so the recursion is bounded whatever the value.
fn put(out: &mut String, value: &Value, depth: usize) -> Result<(), WriteFault> {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(given) => put_number(out, &exact(given)?),
        Value::String(text) => put_text(out, text),
        Value::Array(items) => {
            let depth = deeper(depth)?;
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                put(out, item, depth).map_err(|fault| fault.inside(&index.to_string()))?;
            }
            out.push(']');
        }
        Value::Object(entries) => {
            let depth = deeper(depth)?;
            out.push('{');
            if entries.keys().is_sorted_by(|one, other| in_order(one, other) == Ordering::Less) {
                put_entries(out, entries.iter(), depth)?;
            } else {
                put_entries(out, sorted(entries).into_iter(), depth)?;
            }
            out.push('}');
        }
    }
    Ok(())
}

fn put_entries<'a>(
    out: &mut String,
    entries: impl Iterator<Item = (&'a String, &'a Value)>,
    depth: usize,
) -> Result<(), WriteFault> {
    for (index, (key, entry)) in entries.enumerate() {
        if index > 0 {
            out.push(',');
        }
        put_text(out, key);
        out.push(':');
        put(out, entry, depth).map_err(|fault| fault.inside(key))?;
    }
    Ok(())
}

fn sorted(entries: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut sorted: Vec<_> = entries.iter().collect();
    sorted.sort_unstable_by(|(one, _), (other, _)| in_order(one, other));
    sorted
}

/// Keys go by their UTF-16 units. That is the order of their bytes, except between the characters that take two units
/// and the last ones that take one: both begin with a byte from 0xee on.
pub(super) fn in_order(one: &str, other: &str) -> Ordering {
    let high = |text: &str| text.bytes().any(|byte| byte >= 0xee);
    match one.as_bytes().cmp(other.as_bytes()) {
        Ordering::Equal => Ordering::Equal,
        order if !high(one) || !high(other) => order,
        Ordering::Less | Ordering::Greater => one.encode_utf16().cmp(other.encode_utf16()),
    }
}

pub(super) fn put_number(out: &mut String, number: &Number) {
    match number.as_i64() {
        // Writing to a string does not fail.
        Some(whole) => _ = write!(out, "{whole}"),
        None => out.push_str(&serde_json_canonicalizer::to_string(number).expect("a checked number is finite")),
    }
}

/// Appends a text as canonical JSON.
///
/// ```
/// let mut out = "said:".to_owned();
/// cantrip_canon::json::put_text(&mut out, "a \"word\"");
/// assert_eq!(out, r#"said:"a \"word\"""#);
/// ```
pub fn put_text(out: &mut String, text: &str) {
    out.push('"');
    put_escaped(out, text);
    out.push('"');
}

/// Whether a byte may not stand in a text as it is.
const ESCAPED: [bool; 256] = {
    let mut escaped = [false; 256];
    let mut control = 0;
    while control < 0x20 {
        escaped[control] = true;
        control += 1;
    }
    escaped[b'"' as usize] = true;
    escaped[b'\\' as usize] = true;
    escaped
};

pub(super) fn put_escaped(out: &mut String, text: &str) {
    let mut rest = text;
    while let Some(at) = rest.bytes().position(|byte| ESCAPED[usize::from(byte)]) {
        out.push_str(&rest[..at]);
        match rest.as_bytes()[at] {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            0x08 => out.push_str("\\b"),
            b'\t' => out.push_str("\\t"),
            b'\n' => out.push_str("\\n"),
            0x0c => out.push_str("\\f"),
            b'\r' => out.push_str("\\r"),
            // Writing to a string does not fail.
            control => _ = write!(out, "\\u{control:04x}"),
        }
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
}
