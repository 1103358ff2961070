//! `context`: an entity reads the data that it was given, in parts.
//!
//! In code the data is a variable. Elsewhere it would have to be in the prompt, which has no room for ten megabytes. So
//! a gate shows the requested part, and always the total size.

use std::sync::Arc;

use cantrip_reply::{Refusal, ReplyDraft, Success, codes};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::gate::function::{immediate_gate, parameters, parse_arguments};
use crate::gate::{AnyGate, GateSpec, Purity};
use crate::limits::CONTEXT_SHOWN_BYTES;

/// Makes a gate that reads this value and nothing else.
pub fn context(value: Arc<Value>) -> AnyGate {
    let description = "Reads the data this task was given: its type, its size, and the part that is asked for.";
    let promises = GateSpec::new("context", description, parameters::<Part>()).purity(Purity::ReadOnly);
    immediate_gate(promises, move |name, call| show(&value, parse_arguments(name, call.arguments)?))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Part {
    /// A JSON Pointer such as /documents/3/title; the whole unless given.
    #[serde(default)]
    pointer: String,
    /// The first character of a text, item of a list or key of an object to be shown, from 0.
    #[serde(default)]
    offset: usize,
    /// How many of them at most.
    limit: Option<usize>,
}

fn show(value: &Value, Part { pointer, offset, limit }: Part) -> Result<ReplyDraft<Success>, Refusal> {
    let found = value.pointer(&pointer).ok_or_else(|| unusable(&pointer, "nothing is there"))?;
    let limit = limit.unwrap_or(usize::MAX);
    let shown = match found {
        Value::String(text) => {
            let size = text.chars().count();
            within(&pointer, offset, size)?;
            let taken: String = text.chars().skip(offset).take(limit).scan(0, fits_letter).collect();
            json!({"type": "text", "size": size, "value": taken})
        }
        Value::Array(items) => {
            within(&pointer, offset, items.len())?;
            let taken: Vec<&Value> = items.iter().skip(offset).take(limit).scan(0, fits).collect();
            if taken.is_empty() && limit > 0 && offset < items.len() {
                let rule = "it is too large to be shown whole: read into it";
                return Err(unusable(&format!("{pointer}/{offset}"), rule));
            }
            json!({"type": "list", "size": items.len(), "value": taken})
        }
        Value::Object(entries) => object(&pointer, entries, offset, limit)?,
        Value::Null | Value::Bool(_) | Value::Number(_) => json!({"type": "value", "size": 1, "value": found}),
    };
    Ok(codes::read(if pointer.is_empty() { "context" } else { &pointer }).value(shown))
}

/// Renders the whole object if it fits, otherwise its keys.
fn object(pointer: &str, entries: &Map<String, Value>, offset: usize, limit: usize) -> Result<Value, Refusal> {
    let whole = offset == 0 && limit >= entries.len() && written_bytes(entries) <= CONTEXT_SHOWN_BYTES;
    if whole {
        return Ok(json!({"type": "object", "size": entries.len(), "value": entries}));
    }
    within(pointer, offset, entries.len())?;
    let keys: Vec<&String> = entries.keys().skip(offset).take(limit).scan(0, fits).collect();
    Ok(json!({"type": "object", "size": entries.len(), "keys": keys}))
}

fn within(pointer: &str, offset: usize, size: usize) -> Result<(), Refusal> {
    if offset <= size { Ok(()) } else { Err(unusable(pointer, &format!("offset {offset} is past its end at {size}"))) }
}

fn unusable(pointer: &str, rule: &str) -> Refusal {
    codes::target_unusable(if pointer.is_empty() { "context" } else { pointer }, rule).into()
}

fn written_bytes(value: &impl serde::Serialize) -> usize {
    serde_json::to_string(value).map_or(usize::MAX, |text| text.len())
}

fn fits<'a, T: serde::Serialize>(used: &mut usize, item: &'a T) -> Option<&'a T> {
    *used = used.saturating_add(written_bytes(item)).saturating_add(1);
    (*used <= CONTEXT_SHOWN_BYTES).then_some(item)
}

fn fits_letter(used: &mut usize, letter: char) -> Option<char> {
    *used += letter.len_utf8();
    (*used <= CONTEXT_SHOWN_BYTES).then_some(letter)
}
