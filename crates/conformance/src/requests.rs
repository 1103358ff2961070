//! Checks the requests that the crystals of a case received and recorded.

use cantrip_crystal::{RecordedRequest, ScriptedCrystal};
use cantrip_loom::{GateCall, Message};
use serde_json::{Value, json};

use crate::check::equal;
use crate::expect::{Invocation, Invocations};
use crate::pattern::{Fields, mismatch, short_json};

pub(crate) fn invocations(
    key: &str,
    crystal: Option<&ScriptedCrystal>,
    wanted: &Invocations,
    turns: &[String],
) -> Option<String> {
    let Some(crystal) = crystal else { return Some(unrecorded(key)) };
    match wanted {
        Invocations::Count(count) => equal(key, *count, crystal.request_count()),
        Invocations::Each(each) => {
            let inputs = crystal.requests();
            each.iter().enumerate().find_map(|(at, wanted)| {
                let path = format!("{key}[{at}]");
                match inputs.get(at) {
                    Some(input) => invocation(&path, input, wanted, turns),
                    None => Some(format!("{path}: it was asked {} times", inputs.len())),
                }
            })
        }
    }
}

/// Compares the whole list of tools, in order, in every request.
pub(crate) fn tools(crystal: Option<&ScriptedCrystal>, wanted: &[Fields], turns: &[String]) -> Option<String> {
    let key = "crystal_received_tools";
    every(key, crystal, |path, input| {
        let found: Vec<Value> = input.definitions.iter().map(|definition| json!(definition)).collect();
        if found.len() != wanted.len() {
            let names: Vec<&str> = input.definitions.iter().map(|definition| definition.name.as_str()).collect();
            return Some(format!("{path}: expected {} tools, got {}", wanted.len(), short_json(&json!(names))));
        }
        let mut both = wanted.iter().zip(&found).enumerate();
        both.find_map(|(at, (wanted, found))| mismatch(wanted, &format!("{path}.tools[{at}]"), found, turns))
    })
}

pub(crate) fn choice(crystal: Option<&ScriptedCrystal>, wanted: &str) -> Option<String> {
    every("crystal_received_tool_choice", crystal, |path, input| equal(path, wanted, input.choice.as_str()))
}

fn every(
    key: &str,
    crystal: Option<&ScriptedCrystal>,
    check: impl Fn(&str, &RecordedRequest) -> Option<String>,
) -> Option<String> {
    let Some(crystal) = crystal else { return Some(unrecorded(key)) };
    let inputs = crystal.requests();
    if inputs.is_empty() {
        return Some(format!("{key}: the crystal was never asked"));
    }
    inputs.iter().enumerate().find_map(|(at, input)| check(&format!("{key}, request {at}"), input))
}

fn unrecorded(key: &str) -> String {
    format!("{key}: the case has no scripted crystal under that key, and no other records what it is asked")
}

fn invocation(path: &str, input: &RecordedRequest, wanted: &Invocation, turns: &[String]) -> Option<String> {
    let found: Vec<&Message> = input.messages.iter().collect();
    if let Some(fault) =
        wanted.message_count.and_then(|count| equal(&format!("{path}.message_count"), count, found.len() as u64))
    {
        return Some(fault);
    }
    if let Some(first) = &wanted.first_message {
        let shape = found.first().map_or(Value::Null, |message| shape(message));
        if let Some(fault) = mismatch(first, &format!("{path}.first_message"), &shape, turns) {
            return Some(fault);
        }
    }
    if let Some(messages) = &wanted.messages {
        if messages.len() != found.len() {
            return Some(format!("{path}.messages: expected {}, got {}", messages.len(), found.len()));
        }
        let mut both = messages.iter().zip(&found).enumerate();
        let fault = both.find_map(|(at, (wanted, found))| {
            mismatch(wanted, &format!("{path}.messages[{at}]"), &shape(found), turns)
        });
        if fault.is_some() {
            return fault;
        }
    }
    let texts: Vec<String> = found.iter().flat_map(|message| texts(message)).collect();
    let holds = |part: &String| texts.iter().any(|text| text.contains(part.as_str()));
    if let Some(part) = wanted.include.iter().find(|part| !holds(part)) {
        return Some(format!("{path}: no message has {part:?}"));
    }
    wanted.exclude.iter().find(|part| holds(part)).map(|part| format!("{path}: a message has {part:?}"))
}

/// Returns a message as a case sees it: text and arguments, without ids.
fn shape(message: &Message) -> Value {
    match message {
        Message::System { content } => json!({"role": "system", "content": content.text()}),
        Message::User { content } => json!({"role": "user", "content": content.text()}),
        Message::Assistant { content, calls, .. } => {
            let calls: Vec<Value> =
                calls.iter().map(|GateCall { gate, args, .. }| json!({"gate": gate, "args": args})).collect();
            json!({"role": "assistant", "content": content.as_ref().map(|content| content.text()), "calls": calls})
        }
        Message::Tool { gate, content, .. } => json!({"role": "tool", "content": content.text(), "gate": gate}),
    }
}

/// Returns the texts of a message: its text, and the arguments of its calls as a whole and each text in them.
fn texts(message: &Message) -> Vec<String> {
    match message {
        Message::System { content } | Message::User { content } | Message::Tool { content, .. } => vec![content.text()],
        Message::Assistant { content, calls, .. } => {
            let mut said: Vec<String> = content.iter().map(|content| content.text()).collect();
            for call in calls {
                said.push(call.args.to_string());
                leaves(&call.args, &mut said);
            }
            said
        }
    }
}

fn leaves(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::String(text) => into.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| leaves(item, into)),
        Value::Object(entries) => entries.values().for_each(|value| leaves(value, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
