//! Compares two threads: their common turns, where they part, and the differences after that.
//!
//! Threads of one tree share turns. Shared turns are found by their ids, not compared. The turns after them, or all
//! turns of threads that share none, are compared by position. A turn is split into text, calls, results and output, so
//! that each difference names the part that it concerns.

use std::fmt::Write;

use cantrip::canon::{EntityId, TurnId};
use cantrip::loom::{
    AnyLoom, Ending, GateRecord, Loom, Origin, OutputRecord, Settlement, Thread, ThreadState, Turn, render,
};
use cantrip::store_refusal;
use cantrip_reply::{Refusal, ReplyType, codes};
use serde::Serialize;
use serde_json::{Value, json};
use similar::{ChangeTag, TextDiff};

use super::count_noun;
use super::turns::{closing_text, thread_state};
use crate::limits::{DIFF_LISTED_BYTES_MAX, DIFF_TEXT_BYTES};
use crate::present::{BOLD, DIM, colour, cut, strip_control, width};

/// The lines of one difference that are drawn; `--json` has them all.
const LINES_SHOWN: usize = 40;
/// The number of equal lines that are drawn around a difference.
const LINES_AROUND: usize = 2;

/// Two threads side by side.
#[derive(Debug, Serialize)]
pub struct Diff {
    a: Side,
    b: Side,
    shared: Shared,
    turns: Vec<Pair>,
    outcome: Difference,
    /// The counts of a comparison whose texts were cut, because the size of an envelope is bounded.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<Value>,
}

#[derive(Debug, Serialize)]
struct Side {
    leaf: TurnId,
    entity_id: EntityId,
    state: ThreadState,
    turns: usize,
}

/// The turns that both threads have.
#[derive(Debug, Serialize)]
struct Shared {
    turns: usize,
    last: Option<TurnId>,
}

/// The turns at the same position.
#[derive(Debug, Serialize)]
struct Pair {
    a: Option<Place>,
    b: Option<Place>,
    differences: Vec<Difference>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Place {
    id: TurnId,
    sequence: u64,
}

/// One part that differs; None for a side that does not have it.
#[derive(Debug, Serialize)]
struct Difference {
    what: String,
    a: Option<String>,
    b: Option<String>,
}

/// Compares two threads, each named by its last turn. Without a first one, the second is a fork and is compared with
/// its original.
pub async fn read_diff(loom: &AnyLoom, a: Option<TurnId>, b: TurnId) -> Result<Diff, Refusal> {
    let stored = |error| store_refusal(&error);
    let a = match a {
        Some(a) => a,
        None => original(loom, b).await?,
    };
    Ok(compare_threads(&loom.thread(a).await.map_err(stored)?, &loom.thread(b).await.map_err(stored)?))
}

/// Returns the thread from which the fork with this leaf branched off.
async fn original(loom: &AnyLoom, leaf: TurnId) -> Result<TurnId, Refusal> {
    let stored = |error| store_refusal(&error);
    let entity = loom.entity(loom.turn(leaf).await.map_err(stored)?.entity_id).await.map_err(stored)?;
    if let Origin::Fork(fork) = entity.entity.origin {
        let before = loom.turn(fork.turn).await.map_err(stored)?.entity_id;
        return Ok(loom.entity(before).await.map_err(stored)?.leaf.unwrap_or(fork.turn));
    }
    let hint =
        format!("the latest thread is not a fork; name the thread to compare it with: cantrip loom diff THREAD {leaf}");
    Err(codes::not_found("thread", "original").data(json!({ "hint": hint })).into())
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
        shared: Shared { turns: shared, last: a.turns[..shared].last().map(|turn| turn.id) },
        turns: turns.collect(),
        outcome: Difference { what: "outcome".to_owned(), a: outcome(a), b: outcome(b) },
        truncated: None,
    }
}

fn side(thread: &Thread) -> Side {
    let (leaf, state, turns) = (thread.leaf, thread.state, thread.turns.len());
    Side { leaf, entity_id: thread.entity.entity.entity_id, state, turns }
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

fn pair(a: Option<&Turn>, b: Option<&Turn>) -> Pair {
    let place = |turn: &Turn| Place { id: turn.id, sequence: turn.sequence };
    let (parts_a, parts_b) = (a.map(parts).unwrap_or_default(), b.map(parts).unwrap_or_default());
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
        (a != b).then(|| Difference { what: name.clone(), a, b })
    });
    Pair { differences: differences.collect(), a: a.map(place), b: b.map(place) }
}

/// Splits a turn into parts. The name of a part is unique within the turn.
fn parts(turn: &Turn) -> Vec<(String, String)> {
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
    let value = output.value.as_ref().map(|value| format!("=> {value}"));
    let error = output.error.as_ref().map(|error| format!("{}: {}", error.name, error.message));
    let limit = output.limit.as_ref().map(|limit| format!("stopped by {limit}"));
    let reply = output.reply.as_ref().filter(|reply| !reply.mark.is_success());
    let reply = reply.map(|reply| format!("{} {}", reply.mark.reply_type.word().to_lowercase(), reply.mark.code));
    output.console.iter().cloned().chain(value).chain(error).chain(limit).chain(reply).collect::<Vec<_>>().join("\n")
}

impl Diff {
    /// Returns the comparison in a size that fits into an envelope: long texts are cut if their sum is too long.
    pub fn truncate(mut self) -> Self {
        let all = self.turns.iter().flat_map(|pair| &pair.differences).chain([&self.outcome]);
        let bytes: usize = all.flat_map(|difference| [&difference.a, &difference.b]).flatten().map(String::len).sum();
        if bytes <= DIFF_LISTED_BYTES_MAX {
            return self;
        }
        let turns = self.turns.len();
        let most = DIFF_LISTED_BYTES_MAX / DIFF_TEXT_BYTES / 2;
        let mut left = most;
        for pair in &mut self.turns {
            pair.differences.truncate(left);
            left -= pair.differences.len();
        }
        self.turns.truncate(most);
        let listed = self.turns.iter_mut().flat_map(|pair| &mut pair.differences).chain([&mut self.outcome]);
        for text in listed.flat_map(|difference| [&mut difference.a, &mut difference.b]).flatten() {
            *text = cut(text, DIFF_TEXT_BYTES / 4);
        }
        self.truncated = Some(json!({"shown": self.turns.len(), "total": turns, "bytes": bytes}));
        self
    }

    /// Renders the comparison, turn by turn.
    pub fn draw(&self) -> String {
        let (minus, plus) = (colour(ReplyType::Failure), colour(ReplyType::Success));
        let mut text = String::new();
        for (sign, style, Side { leaf, entity_id, state, turns }) in [("-", minus, &self.a), ("+", plus, &self.b)] {
            let (state, turns) = (thread_state(*state), count_noun(*turns, "turn", "turns"));
            let _ = writeln!(text, "{style}{sign}{style:#} {BOLD}{leaf}{BOLD:#}  {state}  {turns}");
            let _ = writeln!(text, "  {DIM}{entity_id}{DIM:#}");
        }
        let shared = count_noun(self.shared.turns, "turn is", "turns are");
        let _ = match self.shared.last {
            Some(last) => writeln!(text, "\n  {shared} shared, up to {last}"),
            None => writeln!(text, "\n  no turn is shared"),
        };
        if self.turns.is_empty() {
            let _ = writeln!(text, "\n{BOLD}they are the same thread{BOLD:#}");
            return text;
        }
        for pair in &self.turns {
            text.push('\n');
            text.push_str(&pair.draw());
        }
        let differs = self.outcome.a != self.outcome.b;
        let _ = writeln!(text, "\n{BOLD}outcome{BOLD:#}{}", if differs { "" } else { "  the same" });
        if differs {
            draw_changes(&mut text, &self.outcome);
        }
        text
    }
}

impl Pair {
    fn draw(&self) -> String {
        let number = |place: &Place| format!("turn {}", place.sequence);
        let (heading, note) = match (&self.a, &self.b) {
            (Some(a), Some(b)) if a.sequence == b.sequence => (number(a), ""),
            (Some(a), Some(b)) => (format!("{} | {}", number(a), number(b)), ""),
            (Some(a), None) => (number(a), "  only in -"),
            (None, Some(b)) => (number(b), "  only in +"),
            (None, None) => (String::new(), ""),
        };
        let same = if self.differences.is_empty() { "  the same" } else { "" };
        let mut text = format!("{BOLD}{heading}{BOLD:#}{note}{same}\n");
        for difference in &self.differences {
            let _ = writeln!(text, "  {DIM}{}{DIM:#}", difference.what);
            draw_changes(&mut text, difference);
        }
        text
    }
}

/// Draws the lines that differ, with a few equal lines around them.
fn draw_changes(text: &mut String, Difference { a, b, .. }: &Difference) {
    let (a, b) = (strip_control(a.as_deref().unwrap_or_default()), strip_control(b.as_deref().unwrap_or_default()));
    let columns = width().map(|all| all.saturating_sub(4));
    let shown = |line: &str| columns.map_or_else(|| line.to_owned(), |columns| cut(line, columns));
    let diff = TextDiff::from_lines(&a, &b);
    let mut lines = Vec::new();
    for (at, group) in diff.grouped_ops(LINES_AROUND).iter().enumerate() {
        if at > 0 {
            lines.push(format!("  {DIM}...{DIM:#}"));
        }
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let line = shown(change.value().trim_end_matches('\n'));
            let (sign, style) = match change.tag() {
                ChangeTag::Delete => ("-", colour(ReplyType::Failure)),
                ChangeTag::Insert => ("+", colour(ReplyType::Success)),
                ChangeTag::Equal => (" ", DIM),
            };
            lines.push(format!("  {style}{sign}{style:#} {line}"));
        }
    }
    for line in lines.iter().take(LINES_SHOWN) {
        let _ = writeln!(text, "{line}");
    }
    if let Some(more) = lines.len().checked_sub(LINES_SHOWN).filter(|more| *more > 0) {
        let _ = writeln!(text, "  {DIM}({more} more lines){DIM:#}");
    }
}
