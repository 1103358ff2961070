//! The difference between two threads, part by part.
//!
//! Threads of one tree share turns. Shared turns are found by their ids, not compared. The turns after them, or all
//! turns of threads that share none, are compared by position. A turn is split into text, calls, results and output, so
//! that each difference names the part that it concerns.

use cantrip_service::cantrip::canon::{EntityId, TurnId};
use cantrip_service::cantrip::loom::{
    Closing, EndedBy, Ending, GateRecord, Loom, Origin, OutputRecord, Settlement, Thread, ThreadState, Turn, render,
};
use cantrip_service::cantrip::reply::{Refusal, codes};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{Views, stored};

/// Two threads side by side.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diff {
    pub a: DiffSide,
    pub b: DiffSide,
    pub shared: DiffShared,
    pub turns: Vec<DiffPair>,
    pub outcome: DiffPart,
    /// The counts of a comparison whose texts were cut, because the size of an envelope is bounded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated: Option<Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DiffSide {
    pub leaf: TurnId,
    pub entity_id: EntityId,
    pub state: ThreadState,
    pub turns: usize,
}

/// The turns that both threads have.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DiffShared {
    pub turns: usize,
    pub last: Option<TurnId>,
}

/// The turns at the same position.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DiffPair {
    pub a: Option<DiffPlace>,
    pub b: Option<DiffPlace>,
    pub differences: Vec<DiffPart>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DiffPlace {
    pub id: TurnId,
    pub sequence: u64,
}

/// One part that differs; None for a side that does not have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DiffPart {
    pub what: String,
    pub a: Option<String>,
    pub b: Option<String>,
}

impl Views<'_> {
    /// Compares two threads, each named by its last turn. Without a first one, the second is a fork and is compared
    /// with its original.
    pub async fn diff(&self, a: Option<TurnId>, b: TurnId) -> Result<Diff, Refusal> {
        self.service.own_turn(b).await?;
        let a = match a {
            Some(a) => self.service.own_turn(a).await?.id,
            None => self.original(b).await?,
        };
        let (a, b) = (self.loom().thread(a).await.map_err(stored)?, self.loom().thread(b).await.map_err(stored)?);
        Ok(compare_threads(&self.shown_thread(a), &self.shown_thread(b)))
    }

    /// Returns the thread from which the fork with this leaf branched off.
    async fn original(&self, leaf: TurnId) -> Result<TurnId, Refusal> {
        let loom = self.loom();
        let entity = loom.turn(leaf).await.map_err(stored)?.entity_id;
        if let Origin::Fork(fork) = loom.entity(entity).await.map_err(stored)?.entity.origin {
            let before = self.service.own_turn(fork.turn).await?.entity_id;
            return Ok(loom.entity(before).await.map_err(stored)?.leaf.unwrap_or(fork.turn));
        }
        let hint = format!(
            "the latest thread is not a fork; name the thread to compare it with: cantrip loom diff THREAD {leaf}"
        );
        Err(codes::not_found("thread", "original").data(json!({ "hint": hint })).into())
    }

    fn shown_thread(&self, thread: Thread) -> Thread {
        let mut redaction = crate::redact::Redaction::of(self);
        Thread {
            turns: thread.turns.into_iter().map(|turn| redaction.turn(turn)).collect(),
            casts: thread.casts.into_iter().map(|cast| redaction.cast(cast)).collect(),
            ..thread
        }
    }
}

fn compare_threads(a: &Thread, b: &Thread) -> Diff {
    let same = a.turns.iter().zip(&b.turns).take_while(|(a, b)| a.id == b.id);
    let shared = same.count();
    let (behind_a, behind_b) = (&a.turns[shared..], &b.turns[shared..]);
    let places = 0..behind_a.len().max(behind_b.len());
    let turns = places.map(|at| pair(behind_a.get(at), behind_b.get(at)));
    Diff {
        a: side(a),
        b: side(b),
        shared: DiffShared { turns: shared, last: a.turns[..shared].last().map(|turn| turn.id) },
        turns: turns.collect(),
        outcome: DiffPart { what: "outcome".to_owned(), a: outcome(a), b: outcome(b) },
        truncated: None,
    }
}

fn side(thread: &Thread) -> DiffSide {
    let (leaf, state, turns) = (thread.leaf, thread.state, thread.turns.len());
    DiffSide { leaf, entity_id: thread.entity.entity.entity_id, state, turns }
}

/// Returns the outcome of a thread's last cast; None while the cast is running.
fn outcome(thread: &Thread) -> Option<String> {
    let outcome = thread.casts.last()?.outcome.as_ref()?;
    Some(match &outcome.ending {
        Ending::Terminated { result, .. } => render::result_text(result),
        Ending::Truncated { reason, error, .. } => match error {
            Some(fault) => format!("truncated ({}): {}", reason.as_str(), fault.message),
            None => format!("truncated ({})", reason.as_str()),
        },
    })
}

fn pair(a: Option<&Turn>, b: Option<&Turn>) -> DiffPair {
    let place = |turn: &Turn| DiffPlace { id: turn.id, sequence: turn.sequence };
    let (parts_a, parts_b) = (a.map(turn_parts).unwrap_or_default(), b.map(turn_parts).unwrap_or_default());
    let mut names: Vec<&String> = parts_a.iter().map(|(name, _)| name).collect();
    for (at, (name, _)) in parts_b.iter().enumerate() {
        if !names.contains(&name) {
            // Insert the name at the position that it has on side b.
            let before = parts_b[..at].iter().rev().find_map(|(name, _)| names.iter().position(|known| *known == name));
            names.insert(before.map_or(0, |at| at + 1), name);
        }
    }
    let of = |parts: &[(String, String)], wanted: &str| {
        parts.iter().find(|(name, _)| name == wanted).map(|(_, text)| text.clone())
    };
    let differences = names.into_iter().filter_map(|name| {
        let (a, b) = (of(&parts_a, name), of(&parts_b, name));
        (a != b).then(|| DiffPart { what: name.clone(), a, b })
    });
    DiffPair { differences: differences.collect(), a: a.map(place), b: b.map(place) }
}

/// Splits a turn into parts. The name of a part is unique within the turn.
pub(crate) fn turn_parts(turn: &Turn) -> Vec<(String, String)> {
    let mut parts = Vec::new();
    let mut put = |name: String, text: String| {
        if !text.is_empty() {
            parts.push((name, text));
        }
    };
    if let Some(intent) = &turn.intent {
        put("intent".to_owned(), intent.text());
    }
    if let Some(utterance) = &turn.utterance {
        if let Some(thinking) = &utterance.thinking {
            put("thinking".to_owned(), thinking.clone());
        }
        if let Some(content) = &utterance.content {
            put("said".to_owned(), content.clone());
        }
        let programs = utterance.calls.iter().filter_map(|call| call.args.get("code").and_then(Value::as_str));
        for (at, program) in (1..).zip(programs) {
            put(numbered("program", at), program.to_owned());
        }
    }
    for record in &turn.gate_calls {
        let number = record.call_id.number();
        put(numbered("call", number), format!("{}({})", record.gate, record.args));
        put(numbered("observation", number), observation_text(record));
    }
    for (at, output) in (1..).zip(&turn.outputs) {
        put(numbered("output", at), output_text(output));
    }
    put("end".to_owned(), closing_text(&turn.closing));
    parts
}

fn numbered(name: &str, number: u32) -> String {
    format!("{name} {number}")
}

fn observation_text(record: &GateRecord) -> String {
    match &record.settlement {
        Settlement::Delegated => "delegated".to_owned(),
        Settlement::Settled(settled) if settled.reply.is_success() => render::result_text(&settled.result),
        Settlement::Settled(settled) => {
            let (word, code) = (settled.reply.reply_type.word().to_lowercase(), &settled.reply.code);
            format!("{word} {code}\n{}", render::result_text(&settled.result))
        }
    }
}

fn output_text(output: &OutputRecord) -> String {
    let shown = crate::output_text(output);
    let reply = output.reply.as_ref().filter(|reply| !reply.mark.is_success());
    let reply = reply.map(|reply| format!("{} {}", reply.mark.reply_type.word().to_lowercase(), reply.mark.code));
    Some(shown).filter(|shown| !shown.is_empty()).into_iter().chain(reply).collect::<Vec<_>>().join("\n")
}

/// Returns the way in which a turn ended, in words.
pub fn closing_text(closing: &Closing) -> String {
    match closing {
        Closing::Open => "went on".to_owned(),
        Closing::Sealed { .. } => "sealed".to_owned(),
        Closing::Terminated { ended_by: EndedBy::Done } => "terminated (done)".to_owned(),
        Closing::Terminated { ended_by: EndedBy::Text } => "terminated (text)".to_owned(),
        Closing::Truncated { reason, .. } => format!("truncated ({})", reason.as_str()),
    }
}
