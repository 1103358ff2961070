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

/// Keys go by their UTF-16 units. Where both are ASCII, those are their bytes.
fn in_order(one: &str, other: &str) -> Ordering {
    if one.is_ascii() && other.is_ascii() { one.cmp(other) } else { one.encode_utf16().cmp(other.encode_utf16()) }
}

fn put_number(out: &mut String, number: &Number) {
    match number.as_i64() {
        // Writing to a string does not fail.
        Some(whole) => _ = write!(out, "{whole}"),
        None => out.push_str(&serde_json_canonicalizer::to_string(number).expect("a checked number is finite")),
    }
}

fn put_text(out: &mut String, text: &str) {
    out.push('"');
    let mut from = 0;
    for (at, byte) in text.bytes().enumerate() {
        let escaped = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            0x08 => "\\b",
            b'\t' => "\\t",
            b'\n' => "\\n",
            0x0c => "\\f",
            b'\r' => "\\r",
            0x00..=0x1f => "",
            _ => continue,
        };
        out.push_str(&text[from..at]);
        from = at + 1;
        if escaped.is_empty() {
            _ = write!(out, "\\u{byte:04x}");
        } else {
            out.push_str(escaped);
        }
    }
    out.push_str(&text[from..]);
    out.push('"');
}
