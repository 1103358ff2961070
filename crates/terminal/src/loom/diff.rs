//! Draws the comparison of two threads.

use std::fmt::Write;

use cantrip_reply::ReplyType;
use cantrip_view::{Diff, DiffPair, DiffPart, DiffPlace, DiffSide};
use serde_json::json;
use similar::{ChangeTag, TextDiff};

use super::count_noun;
use super::turns::thread_state;
use crate::limits::{DIFF_LISTED_BYTES_MAX, DIFF_TEXT_BYTES};
use crate::present::{BOLD, DIM, colour, cut, strip_control, width};

/// The lines of one difference that are drawn; `--json` has them all.
const LINES_SHOWN: usize = 40;
/// The number of equal lines that are drawn around a difference.
const LINES_AROUND: usize = 2;

/// Returns the comparison in a size that fits into an envelope: long texts are cut if their sum is too long.
pub fn truncate_diff(mut diff: Diff) -> Diff {
    let all = diff.turns.iter().flat_map(|pair| &pair.differences).chain([&diff.outcome]);
    let bytes: usize = all.flat_map(|difference| [&difference.a, &difference.b]).flatten().map(String::len).sum();
    if bytes <= DIFF_LISTED_BYTES_MAX {
        return diff;
    }
    let turns = diff.turns.len();
    let most = DIFF_LISTED_BYTES_MAX / DIFF_TEXT_BYTES / 2;
    let mut left = most;
    for pair in &mut diff.turns {
        pair.differences.truncate(left);
        left -= pair.differences.len();
    }
    diff.turns.truncate(most);
    let listed = diff.turns.iter_mut().flat_map(|pair| &mut pair.differences).chain([&mut diff.outcome]);
    for text in listed.flat_map(|difference| [&mut difference.a, &mut difference.b]).flatten() {
        *text = cut(text, DIFF_TEXT_BYTES / 4);
    }
    diff.truncated = Some(json!({"shown": diff.turns.len(), "total": turns, "bytes": bytes}));
    diff
}

/// Renders the comparison, turn by turn.
pub fn draw_diff(diff: &Diff) -> String {
    let (minus, plus) = (colour(ReplyType::Failure), colour(ReplyType::Success));
    let mut text = String::new();
    for (sign, style, DiffSide { leaf, entity_id, state, turns }) in [("-", minus, &diff.a), ("+", plus, &diff.b)] {
        let (state, turns) = (thread_state(*state), count_noun(*turns, "turn", "turns"));
        let _ = writeln!(text, "{style}{sign}{style:#} {BOLD}{leaf}{BOLD:#}  {state}  {turns}");
        let _ = writeln!(text, "  {DIM}{entity_id}{DIM:#}");
    }
    let shared = count_noun(diff.shared.turns, "turn is", "turns are");
    let _ = match diff.shared.last {
        Some(last) => writeln!(text, "\n  {shared} shared, up to {last}"),
        None => writeln!(text, "\n  no turn is shared"),
    };
    if diff.turns.is_empty() {
        let _ = writeln!(text, "\n{BOLD}they are the same thread{BOLD:#}");
        return text;
    }
    for pair in &diff.turns {
        text.push('\n');
        text.push_str(&draw_pair(pair));
    }
    let differs = diff.outcome.a != diff.outcome.b;
    let _ = writeln!(text, "\n{BOLD}outcome{BOLD:#}{}", if differs { "" } else { "  the same" });
    if differs {
        draw_changes(&mut text, &diff.outcome);
    }
    text
}

fn draw_pair(pair: &DiffPair) -> String {
    let number = |place: &DiffPlace| format!("turn {}", place.sequence);
    let (heading, note) = match (&pair.a, &pair.b) {
        (Some(a), Some(b)) if a.sequence == b.sequence => (number(a), ""),
        (Some(a), Some(b)) => (format!("{} | {}", number(a), number(b)), ""),
        (Some(a), None) => (number(a), "  only in -"),
        (None, Some(b)) => (number(b), "  only in +"),
        (None, None) => (String::new(), ""),
    };
    let same = if pair.differences.is_empty() { "  the same" } else { "" };
    let mut text = format!("{BOLD}{heading}{BOLD:#}{note}{same}\n");
    for difference in &pair.differences {
        let _ = writeln!(text, "  {DIM}{}{DIM:#}", difference.what);
        draw_changes(&mut text, difference);
    }
    text
}

/// Draws the lines that differ, with a few equal lines around them.
fn draw_changes(text: &mut String, DiffPart { a, b, .. }: &DiffPart) {
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
