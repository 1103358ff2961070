//! The items of a closed turn, in the order in which a thread shows them.
//!
//! The number of an item is its index here. An open turn counts in the same order: thinking, what was said, programs,
//! then the calls. So an element that a live page made keeps its place when the turn is read from the record.

use cantrip_service::cantrip::canon::json;
use cantrip_service::cantrip::loom::{GateCall, GateRecord, OutputRecord, Settlement, Turn};
use serde_json::Value;

/// One item of a turn. Its id is `{turn_id}.{n}`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TurnItem<'a> {
    Thinking(&'a str),
    Said(&'a str),
    Program(ProgramItem<'a>),
    /// A call of the utterance that was not begun before the turn ended.
    Asked(&'a GateCall),
    Call(&'a GateRecord),
}

/// A program, or the part of one that ran in this turn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProgramItem<'a> {
    /// The name of its medium; none on a continuation, whose program is in the first turn of its group.
    pub medium: Option<&'a str>,
    pub code: Option<&'a str>,
    /// None if the program did not run.
    pub output: Option<&'a OutputRecord>,
}

/// Returns the items of a turn. The index of an item is its number.
pub fn turn_items(turn: &Turn) -> Vec<TurnItem<'_>> {
    let mut items = Vec::new();
    let mut told = vec![false; turn.outputs.len()];
    if let Some(utterance) = &turn.utterance {
        items.extend(utterance.thinking.as_deref().filter(|text| !text.is_empty()).map(TurnItem::Thinking));
        items.extend(utterance.content.as_deref().filter(|text| !text.is_empty()).map(TurnItem::Said));
        for call in &utterance.calls {
            let is_recorded = |record: &GateRecord| {
                record.gate == call.gate && record.tool_call_id.as_deref() == Some(call.tool_call_id.as_str())
            };
            let at = turn.outputs.iter().position(|output| output.tool_call_id.as_ref() == Some(&call.tool_call_id));
            if at.is_none() && turn.gate_calls.iter().any(is_recorded) {
                continue;
            }
            if let Some(told) = at.and_then(|at| told.get_mut(at)) {
                *told = true;
            }
            items.push(match call.args.get("code").and_then(Value::as_str) {
                Some(code) => TurnItem::Program(ProgramItem {
                    medium: Some(&call.gate),
                    code: Some(code),
                    output: at.and_then(|at| turn.outputs.get(at)),
                }),
                None => TurnItem::Asked(call),
            });
        }
    }
    let rest = turn.outputs.iter().zip(told).filter(|(_, told)| !told);
    items.extend(
        rest.map(|(output, _)| TurnItem::Program(ProgramItem { medium: None, code: None, output: Some(output) })),
    );
    items.extend(turn.gate_calls.iter().map(TurnItem::Call));
    items
}

/// Returns the whole text of what an item says or results in: the text that a download holds.
pub fn item_text(item: &TurnItem<'_>) -> String {
    match item {
        TurnItem::Thinking(text) | TurnItem::Said(text) => (*text).to_owned(),
        TurnItem::Program(program) => program.output.map(output_text).unwrap_or_default(),
        TurnItem::Asked(call) => value_text(&call.args),
        TurnItem::Call(record) => match &record.settlement {
            Settlement::Delegated => String::new(),
            Settlement::Settled(settled) => value_text(&settled.result),
        },
    }
}

/// Returns what a program printed, its value and the way it failed, a line each.
pub fn output_text(output: &OutputRecord) -> String {
    let value = output.value.as_ref().map(|value| format!("=> {value}"));
    let error = output.error.as_ref().map(|error| format!("{}: {}", error.name, error.message));
    let limit = output.limit.as_ref().map(|limit| format!("stopped by {limit}"));
    output.console.iter().cloned().chain(value).chain(error).chain(limit).collect::<Vec<_>>().join("\n")
}

/// Returns the whole text of a result: a string as it is, anything else as canonical JSON.
pub fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            json::canonical(value).unwrap_or_else(|_| value.to_string())
        }
    }
}
