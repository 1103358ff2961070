//! What a reader, and a crystal, is shown of a turn.
//!
//! Rendering is a view: nothing here is stored, and the same turns give the same bytes.

use cantrip_canon::json;
use serde_json::Value;

use crate::limits::RESULT_SHOWN_BYTES_MAX;
use crate::{Content, GateRecord, Message, Output, Settlement, Thread, Turn};

/// The nudge after a text that did not end its cast.
const NUDGE: &str = "Continue. Call done with your answer when the task is finished.";

/// The text of a gate's result: a string as it is, anything else as canonical JSON, cut to what is shown.
pub fn result_text(result: &Value) -> String {
    let text = match result.as_str() {
        Some(text) => text.to_owned(),
        // What has no canonical form is never recorded, but may be looked at before that is found out.
        None => json::canonical(result).unwrap_or_else(|_| result.to_string()),
    };
    if text.len() <= RESULT_SHOWN_BYTES_MAX {
        return text;
    }
    let end = text.floor_char_boundary(RESULT_SHOWN_BYTES_MAX);
    format!("{}\n[cut: {} of {} bytes are shown]", &text[..end], end, text.len())
}

/// What the list shows of a settled call; none of a delegated one, which settles in a later turn.
pub fn call_text(record: &GateRecord) -> Option<String> {
    match &record.settlement {
        Settlement::Delegated => None,
        Settlement::Settled(_) if record.ephemeral => Some(format!("[ephemeral:{}]", record.gate)),
        Settlement::Settled(settled) => Some(result_text(&settled.result)),
    }
}

/// What the list shows of a program's output in turn `sequence`.
pub fn output_text(output: &Output, sequence: u64, medium: &str) -> String {
    let extension = match medium {
        "javascript" => "js",
        "python" => "py",
        other => other,
    };
    let mut lines: Vec<String> = output.environment_lost.iter().cloned().collect();
    lines.extend(output.console.iter().cloned());
    match (&output.error, &output.value) {
        (Some(error), _) => {
            let line = error.line.map(|line| format!(":{line}")).unwrap_or_default();
            let column = error.column.map(|column| format!(":{column}")).unwrap_or_default();
            lines.push(format!("{}: {} (turn-{sequence}.{extension}{line}{column})", error.name, error.message));
        }
        (None, Some(value)) => lines.push(format!("=> {value}")),
        (None, None) if output.console.is_empty() => lines.push("(no output)".to_owned()),
        (None, None) => {}
    }
    if output.cut > 0 {
        lines.push(format!("[{} bytes of output are not shown]", output.cut));
    }
    if let Some(limit) = &output.limit {
        lines.push(format!("[stopped: {limit}]"));
    }
    if output.rolled_back {
        lines.push("[variables are as before this program; calls already made stand]".to_owned());
    }
    lines.join("\n")
}

/// All that the circle answered in a turn, as one text.
pub fn observation(turn: &Turn, medium: &str) -> String {
    let outputs = turn.outputs.iter().map(|output| output_text(output, turn.sequence, medium));
    let results = turn.gate_calls.iter().filter_map(|record| match &record.settlement {
        Settlement::Delegated => None,
        Settlement::Settled(settled) => Some(result_text(&settled.result)),
    });
    outputs.chain(results).collect::<Vec<_>>().join("\n")
}

/// How much of a turn went well: the share of its settled calls and its programs that succeeded; none if it had
/// neither. Derived whenever it is asked for, and never stored.
pub fn implicit_reward(turn: &Turn) -> Option<f64> {
    let calls = turn.gate_calls.iter().filter_map(|record| match &record.settlement {
        Settlement::Delegated => None,
        Settlement::Settled(settled) => Some(settled.reply.is_success()),
    });
    let succeeded: Vec<bool> = calls.chain(turn.outputs.iter().map(|output| !output.is_error())).collect();
    if succeeded.is_empty() {
        return None;
    }
    Some(succeeded.iter().filter(|succeeded| **succeeded).count() as f64 / succeeded.len() as f64)
}

/// The turns of a thread that are its entity's own: from its first turn on, or from the root of what it branched off.
pub fn own_turns(thread: &Thread) -> &[Turn] {
    let start = thread.turns.iter().rposition(|turn| turn.spawned_by.is_some()).unwrap_or(0);
    &thread.turns[start..]
}

/// A message, and the turn it comes from.
pub type Told = (Message, Option<cantrip_canon::TurnId>);

/// The whole thread as messages, without folds: system prompt, then each intent and group in its place.
pub fn messages(thread: &Thread, system_prompt: Option<&str>) -> Vec<Told> {
    let mut told: Vec<Told> = Vec::new();
    if let Some(prompt) = system_prompt {
        told.push((Message::System { content: prompt.into() }, None));
    }
    let medium = thread.entity.entity.medium.as_str();
    let turns = own_turns(thread);
    let mut rest = turns;
    while let Some(first) = rest.first() {
        let group = 1 + rest[1..].iter().take_while(|turn| turn.continuation_of.is_some()).count();
        let (turns, after) = rest.split_at(group);
        if let Some(intent) = &first.intent {
            told.push((Message::User { content: intent.clone() }, Some(first.id)));
        }
        tell_group(turns, medium, after.first().is_some_and(|next| next.intent.is_none()), &mut told);
        rest = after;
    }
    told
}

fn tell_group(turns: &[Turn], medium: &str, goes_on: bool, told: &mut Vec<Told>) {
    let Some(said) = turns.first().and_then(|turn| turn.utterance.as_ref()) else { return };
    let first = &turns[0];
    told.push((
        Message::Assistant {
            content: said.content.clone().map(Content::Text),
            calls: said.calls.clone(),
            parts: said.parts.clone(),
        },
        Some(first.id),
    ));
    if said.calls.is_empty() {
        if goes_on {
            told.push((Message::User { content: NUDGE.into() }, Some(first.id)));
        }
        return;
    }
    let ended = turns.iter().any(Turn::terminated);
    for call in &said.calls {
        let outputs = turns.iter().flat_map(|turn| turn.outputs.iter().map(move |output| (turn, output)));
        let of_call = |id: Option<&str>| id == Some(call.tool_call_id.as_str());
        let shown: Vec<String> = outputs
            .filter(|(_, output)| of_call(output.tool_call_id.as_deref()))
            .map(|(turn, output)| output_text(output, turn.sequence, medium))
            .collect();
        let text = if shown.is_empty() {
            let mut records = turns.iter().flat_map(|turn| &turn.gate_calls);
            let settled = records.by_ref().filter(|record| of_call(record.tool_call_id.as_deref())).find_map(call_text);
            settled.unwrap_or_else(|| not_run(turns, ended))
        } else {
            shown.join("\n")
        };
        let message =
            Message::Tool { tool_call_id: call.tool_call_id.clone(), gate: call.gate.clone(), content: text.into() };
        told.push((message, Some(first.id)));
    }
}

fn not_run(turns: &[Turn], ended: bool) -> String {
    if ended {
        return "[skipped: done was called]".to_owned();
    }
    match turns.last().and_then(Turn::truncation) {
        Some((reason, _)) => format!("[not run: {}]", reason.as_str()),
        None => "[not run: forked here]".to_owned(),
    }
}
