//! Renders turns, threads and looms for people.

use std::collections::HashSet;
use std::fmt::Write;

use cantrip::loom::{
    Closing, Content, CostTotal, GateRecord, OutputRecord, RemovedCounts, Settlement, Strategy, ThreadState, Turn,
    VerifyReport, render,
};
use cantrip_reply::ReplyType;
use cantrip_view::closing_text;
use serde_json::Value;

use super::{LoomRow, ShownThread, count_noun};
use crate::present::{BOLD, DIM, code_text, colour, cut, position, width};
use crate::watch::cost;

/// The lines that are drawn of each text in a thread; `loom show` has them all.
const LINES_SHOWN: usize = 12;

/// Renders the looms of a store, one line for each.
pub fn draw_looms(rows: &[LoomRow]) -> String {
    if rows.is_empty() {
        return format!("{DIM}nothing was cast yet{DIM:#}\n");
    }
    let name = |row: &LoomRow| row.name.clone().unwrap_or_else(|| "-".to_owned());
    let columns = rows.iter().map(|row| name(row).chars().count()).max().unwrap_or_default();
    let mut text = String::new();
    for row in rows {
        let at = row.last_activity.map(|at| at.to_string()).unwrap_or_default();
        let (name, entities, turns) = (name(row), count_noun(row.entities, "entity", "entities"), turns(row.turns));
        let _ =
            writeln!(text, "{BOLD}{name:<columns$}{BOLD:#}  {}  {entities}  {turns}  {DIM}{at}{DIM:#}", row.loom_id);
    }
    text
}

/// Renders the result of a verification of a store.
pub fn draw_verified(shown: &str, found: &VerifyReport) -> String {
    let VerifyReport { records, runs, bodies, torn_bytes, removed } = found;
    let (records, runs) = (count_noun(*records, "record", "records"), count_noun(*runs, "run", "runs"));
    let mut text = format!(
        "{shown}: {records} of {runs} and {} are as they were written\n",
        count_noun(*bodies, "body", "bodies")
    );
    if let Some(RemovedCounts { runs, records, unrecorded }) = removed {
        let (records, runs) = (count_noun(*records, "record", "records"), count_noun(*runs, "run", "runs"));
        let _ = writeln!(text, "{records} of {runs} were removed by retention: cantrip retention ls");
        if *unrecorded > 0 {
            let _ =
                writeln!(text, "{unrecorded} of these runs were cut by an earlier version, which kept no record of it");
        }
        let _ = writeln!(text, "{DIM}the link to the removed records cannot be checked{DIM:#}");
    }
    if *torn_bytes > 0 {
        let _ = writeln!(text, "{DIM}{torn_bytes} bytes of an unfinished step are at the end{DIM:#}");
    }
    text
}

/// Renders one turn in full.
pub fn draw_turn(turn: &Turn) -> String {
    let mut text = head(turn);
    let _ = writeln!(text, "  {DIM}entity {}  cast {}{DIM:#}", turn.entity_id, turn.cast_id);
    if let Some(parent) = turn.parent_id {
        let _ = writeln!(text, "  {DIM}after {parent}{DIM:#}");
    }
    if let Some(fork) = turn.forked_from {
        let _ = writeln!(text, "  {DIM}forked from {}{DIM:#}", fork.turn);
    }
    body(&mut text, turn, None);
    let metadata = &turn.metadata;
    let _ = write!(
        text,
        "  {DIM}{} tokens in ({} cached), {} out · {} ms",
        metadata.tokens_prompt, metadata.tokens_cached, metadata.tokens_completion, metadata.duration_ms
    );
    if turn.continuation_of.is_none() {
        text.push_str(&cost(&CostTotal::new(metadata.cost, u64::from(metadata.cost.is_none()))));
    }
    if let Some(model) = &metadata.model {
        let _ = write!(text, " · {}", one_line(model));
    }
    let _ = writeln!(text, " · {}{DIM:#}", metadata.timestamp);
    text
}

/// Renders a thread, turn by turn.
pub fn draw_thread(shown: &ShownThread) -> String {
    let thread = &shown.thread;
    let entity = &thread.entity.entity;
    let mut text = format!(
        "{BOLD}thread {}{BOLD:#}  {}  {}\n  {DIM}{} · {}{DIM:#}\n",
        thread.leaf,
        thread_state(thread.state),
        turns(thread.turns.len()),
        entity.entity_id,
        one_line(&entity.medium)
    );
    if let Some(first) = thread.turns.first().filter(|first| first.parent_id.is_some()) {
        let _ = writeln!(text, "  {DIM}those before turn {} are not shown{DIM:#}", first.sequence);
    }
    // The folds are in the order of the path, as the turns are.
    let mut folds = thread.folds.iter().peekable();
    let mut begun = HashSet::new();
    for turn in &thread.turns {
        if let Some(cast) = thread.casts.iter().find(|cast| cast.cast.cast_id == turn.cast_id)
            && begun.insert(turn.cast_id)
        {
            cancelled(&mut text, &cast.cancelled);
        }
        text.push('\n');
        text.push_str(&head(turn));
        body(&mut text, turn, Some(LINES_SHOWN));
        while let Some(made) = folds.next_if(|made| made.fold.after == turn.id) {
            let strategy = match made.fold.strategy {
                Strategy::Window if made.fold.degraded => "window, because no summary could be made",
                Strategy::Window => "window",
                Strategy::Summary => "summary",
                Strategy::Selective => "selective",
            };
            lines(&mut text, &format!("  folded by {strategy}: "), &made.text, Some(LINES_SHOWN));
        }
    }
    cancelled(&mut text, &shown.cancelled);
    text
}

/// Renders the intents that were cancelled before an answer.
fn cancelled(text: &mut String, intents: &[Content]) {
    for intent in intents {
        text.push('\n');
        lines(text, "  ? ", &intent.text(), Some(LINES_SHOWN));
        let _ = writeln!(text, "    {DIM}{}{DIM:#}", render::CANCELLED);
    }
}

fn head(turn: &Turn) -> String {
    let reward = turn.reward.map(|reward| format!("  reward {reward}")).unwrap_or_default();
    format!("{BOLD}{}. {}{BOLD:#}  {}{reward}\n", turn.sequence, turn.id, state(turn))
}

/// Renders the intent, the utterance, the programs and the calls of a turn.
fn body(text: &mut String, turn: &Turn, most: Option<usize>) {
    if let Some(intent) = &turn.intent {
        lines(text, "  ? ", &intent.text(), most);
    }
    if let Some(utterance) = &turn.utterance {
        if let Some(thinking) = &utterance.thinking {
            lines(text, "  ~ ", thinking, most);
        }
        if let Some(content) = &utterance.content {
            lines(text, "  ", content, most);
        }
        // The calls of a program are drawn below it; a tool call is drawn with its reply.
        for call in &utterance.calls {
            if let Some(code) = call.args.get("code").and_then(Value::as_str) {
                lines(text, "  > ", code, most);
            }
        }
    }
    for output in &turn.outputs {
        printed(text, output, most);
    }
    for record in &turn.gate_calls {
        call(text, record, most);
    }
    if let Closing::Truncated { error: Some(fault), .. } = &turn.closing {
        let style = colour(fault.mark.reply_type);
        let (message, code) = (one_line(&fault.message), one_line(&code_text(&fault.mark.code)));
        let _ = writeln!(text, "  {style}{message}{style:#} {DIM}{code}{DIM:#}");
    }
}

fn printed(text: &mut String, output: &OutputRecord, most: Option<usize>) {
    for line in &output.console {
        lines(text, "    ", line, most);
    }
    if let Some(value) = &output.value {
        lines(text, "  = ", value, most);
    }
    if let Some(error) = &output.error {
        let style = colour(ReplyType::Failure);
        let _ = writeln!(text, "  {style}{}: {}{style:#}", one_line(&error.name), one_line(&error.message));
    }
    if let Some(limit) = &output.limit {
        let style = colour(ReplyType::Denied);
        let _ = writeln!(text, "  {style}stopped by {}{style:#}", one_line(limit));
    }
    if let Some(reply) = &output.reply {
        let style = colour(reply.mark.reply_type);
        let (word, code) = (reply.mark.reply_type.word().to_lowercase(), one_line(&code_text(&reply.mark.code)));
        let at = position(reply.line, reply.column);
        let _ = writeln!(text, "  < {style}{word}{style:#} {DIM}{code}{at}{DIM:#}");
    }
}

fn call(text: &mut String, record: &GateRecord, most: Option<usize>) {
    lines(text, "  > ", &format!("{}({})", record.gate, record.args), most);
    match &record.settlement {
        Settlement::Delegated => {
            let _ = writeln!(text, "  < {DIM}delegated: its reply is in a later turn{DIM:#}");
        }
        Settlement::Settled(settled) => {
            let style = colour(settled.reply.reply_type);
            let word = settled.reply.reply_type.word().to_lowercase();
            let code = one_line(&code_text(&settled.reply.code));
            let _ = writeln!(text, "  < {style}{word}{style:#} {DIM}{code}{DIM:#}");
            for child in &settled.children {
                let code = one_line(&code_text(&child.reply.code));
                let _ = writeln!(text, "    {DIM}child {} {code}{DIM:#}", child.entity_id);
            }
            match &settled.result {
                Value::Null => {}
                Value::String(result) => lines(text, "    ", result, most),
                result @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                    lines(text, "    ", &result.to_string(), most);
                }
            }
        }
    }
}

/// Returns how a turn was closed, in a word or two and in its colour.
pub(super) fn state(turn: &Turn) -> String {
    let style = match &turn.closing {
        Closing::Open | Closing::Sealed { .. } => DIM,
        Closing::Terminated { .. } => colour(ReplyType::Success),
        Closing::Truncated { .. } => colour(ReplyType::Denied),
    };
    format!("{style}{}{style:#}", closing_text(&turn.closing))
}

pub(super) const fn thread_state(state: ThreadState) -> &'static str {
    match state {
        ThreadState::Active => "active",
        ThreadState::Terminated => "terminated",
        ThreadState::Truncated => "truncated",
    }
}

/// Appends a text line by line. `before` precedes the first line; the others are indented to match.
fn lines(text: &mut String, before: &str, told: &str, most: Option<usize>) {
    let columns = most.and(width()).map(|all| all.saturating_sub(before.len()));
    let all = told.lines().count();
    for (at, line) in told.lines().take(most.unwrap_or(all)).enumerate() {
        let shown = one_line(line);
        let shown = columns.map_or_else(|| shown.clone(), |columns| cut(&shown, columns));
        let before = if at == 0 { before.to_owned() } else { " ".repeat(before.len()) };
        let _ = writeln!(text, "{before}{shown}");
    }
    if let Some(more) = most.map(|most| all.saturating_sub(most)).filter(|more| *more > 0) {
        let _ = writeln!(text, "{}{DIM}({more} more lines){DIM:#}", " ".repeat(before.len()));
    }
}

/// Replaces control characters, so that recorded text cannot control the terminal.
pub(super) fn one_line(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect()
}

fn turns(count: impl TryInto<u64>) -> String {
    count_noun(count, "turn", "turns")
}
