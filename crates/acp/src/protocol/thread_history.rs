//! A recorded thread, replayed for an editor as if it had watched it.

use std::collections::HashSet;

use agent_client_protocol::v1::schema::{SessionUpdate, ToolCallStatus};
use cantrip_service::cantrip::loom::{
    Content, EndedBy, Ending, GateRecord, ReplyMark, Settlement, Thread, Turn, Utterance, render,
};
use cantrip_service::cantrip::reply::ReplyType;
use cantrip_service::cantrip::stream::ReplyKind;
use serde_json::Map;

use super::session_updates::{CallPaths, CallResult, call_id, message_chunk, of_message, thought_chunk, tool_call};

/// Returns the updates for prompts that were cancelled before an answer: the text, and a marker that there was no
/// answer. `place` distinguishes prompts with equal text.
pub(super) fn cancelled_updates(intents: &[Content], place: &str) -> Vec<SessionUpdate> {
    let told = intents.iter().enumerate().flat_map(|(at, intent)| {
        let said = of_message(&format!("{place}/cancelled/{at}"), intent.text());
        let marker = message_chunk(&format!("{place}/cancelled/{at}/marker"), render::CANCELLED.to_owned());
        [SessionUpdate::UserMessageChunk(said), marker]
    });
    told.collect()
}

/// Returns the updates for the turns, oldest first: intents, thinking, messages, calls, and answers.
pub(super) fn thread_updates(thread: &Thread, places: &CallPaths) -> Vec<SessionUpdate> {
    let (mut updates, mut begun) = (Vec::new(), HashSet::new());
    // The thread of a child also contains turns of its parent, but a session never belongs to a child.
    for turn in &thread.turns {
        if let Some(cast) = thread.casts.iter().find(|cast| cast.cast.cast_id == turn.cast_id)
            && begun.insert(turn.cast_id)
        {
            updates.extend(cancelled_updates(&cast.cancelled, &turn.id.to_string()));
        }
        if let Some(intent) = &turn.intent {
            let id = format!("{}/intent", turn.id);
            updates.push(SessionUpdate::UserMessageChunk(of_message(&id, intent.text())));
        }
        if let Some(said) = &turn.utterance {
            push_speech(turn, said, &mut updates);
        }
        push_calls(turn, &thread.entity.entity.medium, places, &mut updates);
        if turn.ended_by() == Some(EndedBy::Done)
            && let Some(answer) = answer(thread, turn)
        {
            updates.push(message_chunk(&format!("{}/answer", turn.id), answer));
        }
    }
    updates
}

fn push_speech(turn: &Turn, said: &Utterance, updates: &mut Vec<SessionUpdate>) {
    if let Some(thinking) = said.thinking.as_ref().filter(|thinking| !thinking.trim().is_empty()) {
        updates.push(thought_chunk(&format!("{}/thinking", turn.id), thinking.clone()));
    }
    if let Some(content) = said.content.as_ref().filter(|content| !content.trim().is_empty()) {
        updates.push(message_chunk(&format!("{}/said", turn.id), content.clone()));
    }
}

fn push_calls(turn: &Turn, medium: &str, places: &CallPaths, updates: &mut Vec<SessionUpdate>) {
    let group = turn.id.to_string();
    let calls = turn.utterance.as_ref().map(|said| said.calls.as_slice()).unwrap_or_default();
    // Programs come first, then the gates that they called.
    for output in &turn.outputs {
        let call = calls.iter().find(|call| Some(&call.tool_call_id) == output.tool_call_id.as_ref());
        let arguments = call.and_then(|call| call.args.as_object()).cloned().unwrap_or_default();
        let id = output.tool_call_id.clone().unwrap_or_else(|| format!("{group}/program"));
        let text = render::output_text(output, turn.sequence, medium);
        let reply = output.reply.as_ref();
        let outcome = CallResult {
            text,
            mark: reply.map(|reply| mark(&reply.mark)),
            position: reply.and_then(|reply| Some((reply.line?, reply.column))),
            is_error: output.is_error(),
        };
        let whole =
            tool_call(places, call_id(&group, &id), medium, &arguments, call_status(output.is_error()), Some(&outcome));
        updates.push(SessionUpdate::ToolCall(whole));
    }
    for record in &turn.gate_calls {
        // A call that delegates settles in a later turn, and is sent there.
        let Some((status, outcome)) = settled_outcome(record) else { continue };
        if record.gate == "done" && !record.is_error() {
            continue;
        }
        let id = match &record.tool_call_id {
            Some(id) if turn.outputs.is_empty() => id.clone(),
            Some(_) | None => record.call_id.to_string(),
        };
        let empty = Map::new();
        let arguments = record.args.as_object().unwrap_or(&empty);
        let whole = tool_call(places, call_id(&group, &id), &record.gate, arguments, status, Some(&outcome));
        updates.push(SessionUpdate::ToolCall(whole));
    }
}

fn call_status(is_error: bool) -> ToolCallStatus {
    if is_error { ToolCallStatus::Failed } else { ToolCallStatus::Completed }
}

fn settled_outcome(record: &GateRecord) -> Option<(ToolCallStatus, CallResult)> {
    match &record.settlement {
        Settlement::Delegated => None,
        Settlement::Settled(settled) => {
            let is_error = record.is_error();
            let text = render::result_text(&settled.result);
            let outcome = CallResult { text, mark: Some(mark(&settled.reply)), position: None, is_error };
            Some((call_status(is_error), outcome))
        }
    }
}

fn mark(reply: &ReplyMark) -> (ReplyKind, String) {
    let kind = match reply.reply_type {
        ReplyType::Success => ReplyKind::Success,
        ReplyType::Invalid => ReplyKind::Invalid,
        ReplyType::Denied => ReplyKind::Denied,
        ReplyType::Failure => ReplyKind::Failure,
    };
    (kind, reply.code.clone())
}

/// Returns the answer of this turn's cast.
fn answer(thread: &Thread, turn: &Turn) -> Option<String> {
    let cast = thread.casts.iter().find(|cast| cast.cast.cast_id == turn.cast_id)?;
    match &cast.outcome.as_ref()?.ending {
        Ending::Terminated { result, .. } => Some(render::result_text(result)),
        Ending::Truncated { .. } => None,
    }
}
