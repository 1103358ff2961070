//! The file changes of a run on a terminal: their diff, and what an undo did.

use std::fmt::Write;

use cantrip_reply::ReplyType;
use cantrip_service::{ChangeKind, FileDiff};
use serde_json::Value;

use crate::present::{BOLD, DIM, colour, strip_control};

/// Renders the diff of one file in the format of `patch`; on a terminal with colours and without control characters.
pub fn draw_file_diff(text: &mut String, file: &FileDiff, styled: bool) {
    let Some(unified) = &file.unified else {
        let size = |bytes: Option<usize>| bytes.map_or_else(|| "of unknown size".to_owned(), |n| format!("{n} bytes"));
        let (before, after) = file.sizes();
        let what = match file.touched {
            ChangeKind::Created => format!("created, {}", size(after)),
            ChangeKind::Deleted => format!("deleted, {}", size(before)),
            ChangeKind::Changed => format!("changed, {} to {}", size(before), size(after)),
        };
        let _ = writeln!(text, "Binary file {} {what}", strip_control(&file.path));
        return;
    };
    if !styled {
        text.push_str(unified);
        return;
    }
    for line in unified.lines() {
        let shown = strip_control(&line.replace('\t', "    "));
        let style = match line.as_bytes() {
            [b'-', b'-', b'-', b' ', ..] | [b'+', b'+', b'+', b' ', ..] => BOLD,
            [b'-', ..] => colour(ReplyType::Failure),
            [b'+', ..] => colour(ReplyType::Success),
            [b'@', ..] | [b'\\', ..] => DIM,
            _ => {
                let _ = writeln!(text, "{shown}");
                continue;
            }
        };
        let _ = writeln!(text, "{style}{shown}{style:#}");
    }
}

/// Returns a note for each interrupted call whose file changes are unknown.
pub fn unknown_changes(seen: Option<&Value>) -> impl Iterator<Item = String> {
    let paths = seen.and_then(|seen| seen["unknown"].as_array()).into_iter().flatten().filter_map(Value::as_str);
    paths.map(|path| format!("a call that was cut off may have changed {path}: its outcome is unknown"))
}

/// Renders the result of an undo for each file.
pub fn draw_undo(data: &Value, outcome: ReplyType) -> String {
    let mut text = String::new();
    let listed = |key: &str| data[key].as_array().cloned().unwrap_or_default();
    let style = colour(ReplyType::Success);
    for (key, word) in [("restored", "restored"), ("deleted", "deleted")] {
        for path in listed(key).iter().filter_map(Value::as_str) {
            let _ = writeln!(text, "{style}{word:<8}{style:#}  {}", strip_control(path));
        }
    }
    for path in listed("already").iter().filter_map(Value::as_str) {
        let _ = writeln!(text, "{DIM}as before{DIM:#} {}", strip_control(path));
    }
    let style = colour(ReplyType::Invalid);
    for left in listed("left") {
        let of = |key: &str| strip_control(left[key].as_str().unwrap_or_default());
        let _ = writeln!(text, "{style}left{style:#}      {}  {DIM}{}{DIM:#}", of("path"), of("said"));
    }
    if outcome.is_success() && listed("restored").is_empty() && listed("deleted").is_empty() {
        let _ = writeln!(text, "{DIM}nothing to undo: every file is as it was{DIM:#}");
    }
    text
}
