//! Writes the canonical bytes of a value (RFC 8785) in one pass.
//!
//! Every record of every run is written and hashed in this form several times per turn, so the writer avoids extra
//! work: keys are sorted only where they are out of order, and text is copied in long slices.
//! `serde_json_canonicalizer`, which makes a list of byte vectors of every object, took a third of the time of a turn.
//! It still writes the numbers that are not whole, the hard part of the standard, and the property tests compare every
//! other byte with its output as well.

use std::cmp::Ordering;
use std::fmt::Write;

use serde_json::{Map, Number, Value};

use super::WriteFault;
use super::write::{exact, next_depth};

/// Returns the canonical text, or the fault of the part that has none.
pub(super) fn text(value: &Value) -> Result<String, WriteFault> {
    let mut out = String::new();
    put(&mut out, value, 0)?;
    Ok(out)
}

/// Appends the value. It stops at the depth limit, so the recursion is bounded for every value.
fn put(out: &mut String, value: &Value, depth: usize) -> Result<(), WriteFault> {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(given) => put_number(out, &exact(given)?),
        Value::String(text) => put_text(out, text),
        Value::Array(items) => {
            let depth = next_depth(depth)?;
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
            let depth = next_depth(depth)?;
            out.push('{');
            if entries.keys().is_sorted_by(|one, other| compare_keys(one, other) == Ordering::Less) {
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
    sorted.sort_unstable_by(|(one, _), (other, _)| compare_keys(one, other));
    sorted
}

/// Compares keys by their UTF-16 units. That is the order of their bytes, except between characters that take two units
/// and the last characters that take one. Where two keys first differ in such characters, the differing bytes are 0xee
/// or higher, and on different sides of 0xf0.
pub(super) fn compare_keys(one: &str, other: &str) -> Ordering {
    let parted = one.bytes().zip(other.bytes()).find(|(one, other)| one != other);
    match parted {
        None => one.len().cmp(&other.len()),
        Some((one, other)) if one.min(other) >= 0xee && (one < 0xf0) != (other < 0xf0) => other.cmp(&one),
        Some((one, other)) => one.cmp(&other),
    }
}

pub(super) fn put_number(out: &mut String, number: &Number) {
    match number.as_i64() {
        Some(whole) => put_whole(out, whole),
        None => out.push_str(&serde_json_canonicalizer::to_string(number).expect("a checked number is finite")),
    }
}

pub(super) fn put_whole(out: &mut String, whole: i64) {
    out.push_str(itoa::Buffer::new().format(whole));
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

/// Returns true if the byte must be escaped in a JSON string.
const fn is_escaped(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

/// Returns the position of the first byte that must be escaped. Most texts have few, so this checks 16 bytes at once,
/// without a branch for each.
fn first_escaped(bytes: &[u8]) -> Option<usize> {
    let (chunks, rest) = bytes.as_chunks::<16>();
    let clean = chunks.iter().take_while(|chunk| !chunk.iter().fold(false, |any, byte| any | is_escaped(*byte)));
    let clean = clean.count() * 16;
    let left = if clean == chunks.len() * 16 { rest } else { &bytes[clean..] };
    left.iter().position(|byte| is_escaped(*byte)).map(|at| clean + at)
}

pub(super) fn put_escaped(out: &mut String, text: &str) {
    let mut rest = text;
    while let Some(at) = first_escaped(rest.as_bytes()) {
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
