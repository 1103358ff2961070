//! The export of turns, chats and trajectories.

use std::collections::VecDeque;

use cantrip_canon::{LoomId, json};
use futures_util::stream::{self, Stream};
use serde_json::{Map, Value, json};

use super::Redaction;
use crate::limits::PAGE_ITEMS_MAX;
use crate::render::{implicit_reward, messages, observation};
use crate::{Closing, Error, GateRecord, Loom, PageRequest, RootView, Thread, Turn};

/// The number of turns or threads that are read at once.
const AT_ONCE: usize = 64;
const _: () = assert!(AT_ONCE <= PAGE_ITEMS_MAX);

struct LineExport<'a, S> {
    store: &'a S,
    loom: LoomId,
    redaction: Redaction,
    roots: Vec<RootView>,
    ready: VecDeque<String>,
    next: Option<PageRequest>,
}

impl<'a, S> LineExport<'a, S> {
    fn new(store: &'a S, loom: LoomId, redaction: Redaction) -> Self {
        let next = Some(PageRequest { after: None, most: AT_ONCE });
        Self { store, loom, redaction, roots: Vec::new(), ready: VecDeque::new(), next }
    }
}

fn text(value: &impl serde::Serialize) -> Result<String, Error> {
    // Not canonical: the keys are in the order in which people read them.
    let value = json::to_value(value)?;
    serde_json::to_string(&value).map_err(|source| Error::Misread { what: "a line of the export".to_owned(), source })
}

pub(super) fn turns<S: Loom>(
    store: &S,
    loom: LoomId,
    redaction: Redaction,
) -> impl Stream<Item = Result<String, Error>> + Send + '_ {
    stream::try_unfold(LineExport::new(store, loom, redaction), async |mut reading| {
        while reading.ready.is_empty() {
            let Some(page) = reading.next else { return Ok(None) };
            let listed = reading.store.turns(reading.loom, page).await?;
            for turn in &listed.items {
                let medium = reading.store.entity(turn.entity_id).await?.entity.medium;
                reading.ready.push_back(text(&turn_line(turn, &medium, &reading.redaction)?)?);
            }
            reading.next = listed.next.map(|after| PageRequest { after: Some(after), most: AT_ONCE });
        }
        Ok(reading.ready.pop_front().map(|line| (line, reading)))
    })
}

/// A function that makes the line of one thread.
type ThreadLine = fn(&Thread, Option<&str>, &Redaction) -> Result<Value, Error>;

pub(super) fn threads<S: Loom>(
    store: &S,
    loom: LoomId,
    redaction: Redaction,
    line: ThreadLine,
) -> impl Stream<Item = Result<String, Error>> + Send + '_ {
    stream::try_unfold(LineExport::new(store, loom, redaction), move |mut reading| async move {
        while reading.ready.is_empty() {
            let Some(page) = reading.next else { return Ok(None) };
            if reading.roots.is_empty() {
                reading.roots = reading.store.roots(reading.loom).await?;
            }
            // One thread at a time, because a single thread may be long.
            let listed = reading.store.leaves(reading.loom, PageRequest { most: 1, ..page }).await?;
            for leaf in &listed.items {
                let thread = reading.store.thread(*leaf).await?;
                let root = reading.roots.iter().find(|root| root.cantrip_id == thread.entity.entity.cantrip_id);
                let prompt = root.and_then(|root| root.cantrip.call.system_prompt.as_deref());
                reading.ready.push_back(text(&line(&thread, prompt, &reading.redaction)?)?);
            }
            reading.next = listed.next.map(|after| PageRequest { after: Some(after), most: AT_ONCE });
        }
        Ok(reading.ready.pop_front().map(|line| (line, reading)))
    })
}

/// Returns the five fields that every record of a gate call has, and the fields that only ours have.
fn gate_call(record: &GateRecord, redaction: &Redaction) -> Result<(Value, Value), Error> {
    let Value::Object(mut all) = json::to_value(record)? else { return Ok((Value::Null, Value::Null)) };
    let mut common = Map::new();
    for key in ["gate", "args", "result", "is_error", "tool_call_id"] {
        let value = all.shift_remove(key).unwrap_or_default();
        let value = if matches!(key, "args" | "result") { redaction.redact_value(value) } else { value };
        common.insert(key.to_owned(), value);
    }
    if let Some(data) = all.get_mut("data") {
        *data = redaction.redact_value(data.take());
    }
    Ok((Value::Object(common), Value::Object(all)))
}

/// Returns the line of a turn whose entity acts in this medium.
pub fn turn_line(turn: &Turn, medium: &str, redaction: &Redaction) -> Result<Value, Error> {
    let calls: Result<Vec<(Value, Value)>, Error> =
        turn.gate_calls.iter().map(|record| gate_call(record, redaction)).collect();
    let (gate_calls, ours): (Vec<Value>, Vec<Value>) = calls?.into_iter().unzip();
    let (reason, error) = match turn.truncation() {
        Some((reason, error)) => (Some(reason), error.map(|fault| (fault.mark.clone(), fault.message.clone()))),
        None => (None, None),
    };
    let error = error.map(|(mark, message)| {
        json!({"type": mark.reply_type.as_str(), "code": mark.code, "message": redaction.redact_text(message)})
    });
    let metadata = &turn.metadata;
    Ok(json!({
        "id": turn.id,
        "parent_id": turn.parent_id,
        "cantrip_id": turn.cantrip_id,
        "entity_id": turn.entity_id,
        "sequence": turn.sequence,
        "utterance": redaction.redact_text(turn.utterance_text()),
        "observation": redaction.redact_text(observation(turn, medium)),
        "gate_calls": gate_calls,
        "metadata": {
            "tokens_prompt": metadata.tokens_prompt,
            "tokens_completion": metadata.tokens_completion,
            "tokens_cached": metadata.tokens_cached,
            "duration_ms": metadata.duration_ms,
            "timestamp": metadata.timestamp,
        },
        "reward": turn.reward,
        "terminated": turn.is_terminated(),
        "truncated": turn.is_truncated(),
        "x": {
            "loom_id": turn.loom_id,
            "cast_id": turn.cast_id,
            "medium": medium,
            "intent": redaction.redact_value(json::to_value(&turn.intent)?),
            "utterance": redaction.redact_value(json::to_value(&turn.utterance)?),
            "outputs": redaction.redact_value(json::to_value(&turn.outputs)?),
            "gate_calls": ours,
            "sealed": turn.is_sealed(),
            "continuation_of": turn.continuation_of,
            "forked_from": turn.forked_from,
            "spawned_by": turn.spawned_by,
            "ended_by": turn.ended_by(),
            "truncation_reason": reason,
            "error": error,
            "attempts": metadata.attempts,
            "cost_micros": metadata.cost_micros,
            "cost": metadata.cost,
            "model": metadata.model,
            "implicit_reward": implicit_reward(turn),
        },
    }))
}

fn status(thread: &Thread) -> Value {
    match thread.turns.last().map(|turn| &turn.closing) {
        Some(Closing::Terminated { ended_by }) => json!({"status": "terminated", "ended_by": ended_by}),
        Some(Closing::Truncated { reason, .. }) => json!({"status": "truncated", "reason": reason}),
        Some(Closing::Open | Closing::Sealed { .. }) | None => json!({"status": "active"}),
    }
}

/// Returns a thread as a conversation for training.
pub fn chat(thread: &Thread, prompt: Option<&str>, redaction: &Redaction) -> Result<Value, Error> {
    let told: Vec<_> = messages(thread, prompt).into_iter().map(|(message, _)| message).collect();
    Ok(json!({
        "messages": redaction.redact_value(json::to_value(&told)?),
        "x": {
            "thread": thread.leaf,
            "entity_id": thread.entity.entity.entity_id,
            "end": status(thread),
            "reward": thread.turns.last().and_then(|turn| turn.reward),
        },
    }))
}

/// Returns a thread as states, actions and rewards. Messages are nodes that name the node before them, so threads with
/// a common prefix share its nodes.
pub(super) fn trajectory(thread: &Thread, prompt: Option<&str>, redaction: &Redaction) -> Result<Value, Error> {
    let mut nodes = Vec::new();
    let mut parent = Value::Null;
    let mut place = (None, 0_u32);
    for (message, turn) in messages(thread, prompt) {
        place = if place.0 == turn { (turn, place.1 + 1) } else { (turn, 0) };
        let id = match turn {
            Some(turn) => format!("{turn}/{}", place.1),
            None => "root".to_owned(),
        };
        nodes.push(json!({
            "id": id, "parent": parent, "turn_id": turn, "message": redaction.redact_value(json::to_value(&message)?),
        }));
        parent = Value::String(id);
    }
    let steps: Vec<Value> = crate::render::own_turns(thread)
        .iter()
        .map(|turn| {
            json!({
                "turn_id": turn.id,
                "reward": turn.reward,
                "implicit_reward": implicit_reward(turn),
                "terminated": turn.is_terminated(),
                "truncated": turn.is_truncated(),
                "tokens_completion": turn.metadata.tokens_completion,
            })
        })
        .collect();
    Ok(json!({
        "thread": thread.leaf,
        "entity_id": thread.entity.entity.entity_id,
        "cantrip_id": thread.entity.entity.cantrip_id,
        "nodes": nodes,
        "steps": steps,
        "termination": status(thread),
    }))
}
