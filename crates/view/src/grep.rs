//! A search in the texts of a run.
//!
//! There is no index of texts: it would be a second copy of every word. The turns are read in the order in which they
//! were closed, for a bounded time a page, and the next page goes on from there.

use std::time::Duration;

use cantrip_service::cantrip::canon::RunId;
use cantrip_service::cantrip::loom::{Event, Journal, Kind, Loom, Overview, Seq, Settlement, Turn};
use cantrip_service::cantrip::reply::{Refusal, codes};
use futures_util::TryStreamExt;
use serde_json::Value;

use crate::limits::{GREP_AROUND_CHARS, GREP_MATCHES_MAX, GREP_MS, GREP_NEEDLE_CHARS_MAX, GREP_TEXT_MATCHES_MAX};
use crate::redact::Redaction;
use crate::{TextField, TextMatch, TextMatches, Views, output_text, stored, value_text};

/// The place where a search goes on: the last record that it read, and the number of turns up to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct GrepCursor {
    seq: u64,
    turns: u64,
}

impl GrepCursor {
    /// The cursor as one number. A run has fewer than 2^32 records.
    fn pack(self) -> u64 {
        (self.turns << 32) | (self.seq & u64::from(u32::MAX))
    }

    fn unpack(number: u64) -> Self {
        Self { seq: number & u64::from(u32::MAX), turns: number >> 32 }
    }
}

impl Views<'_> {
    /// Searches the texts of a run and its children, without regard to the case of ASCII letters. Texts are searched as
    /// they are shown, so that no search finds out a secret.
    pub async fn grep(&self, run: RunId, needle: &str, cursor: Option<u64>) -> Result<TextMatches, Refusal> {
        self.service.own_run(run).await?;
        let chars = needle.chars().count();
        if needle.trim().is_empty() {
            return Err(codes::schema("the searched text", "/q", "it is empty").into());
        }
        if chars > GREP_NEEDLE_CHARS_MAX {
            return Err(codes::limit("the searched text", chars, GREP_NEEDLE_CHARS_MAX).into());
        }
        let summary = self.loom().summary(run).await.map_err(stored)?;
        let needle = needle.to_ascii_lowercase();
        let mut at = cursor.map_or(GrepCursor { seq: 0, turns: 0 }, GrepCursor::unpack);
        let mut matches = Vec::new();
        let clock = self.service.clock();
        let until = clock.now().monotonic.after(Duration::from_millis(GREP_MS));
        let mut records = std::pin::pin!(self.loom().read(run, Seq::new(at.seq)));
        let (mut next, mut has_read) = (None, false);
        while let Some(record) = records.try_next().await.map_err(stored)? {
            if record.kind == Kind::Turn {
                // At least one turn is read, so that the search ends.
                let is_full = matches.len() >= GREP_MATCHES_MAX || clock.now().monotonic >= until;
                if is_full && has_read {
                    next = Some(at.pack());
                    break;
                }
                if let Event::Turn(closed) = record.event().map_err(stored)? {
                    let turn = self.loom().turn(closed.turn_id).await.map_err(stored)?;
                    find_in_turn(&Redaction::of(self).turn(turn), &needle, &mut matches);
                }
                at.turns += 1;
                has_read = true;
            }
            at.seq = record.seq.get();
        }
        let turns_all = (summary.turns + summary.child_turns).max(at.turns);
        Ok(TextMatches { matches, turns_read: at.turns, turns_all, next })
    }
}

/// Adds the matches in the texts of a turn.
fn find_in_turn(turn: &Turn, needle: &str, matches: &mut Vec<TextMatch>) {
    let mut look = |field: TextField, text: &str| find_in_text(turn, field, text, needle, matches);
    if let Some(intent) = &turn.intent {
        look(TextField::Intent, &intent.text());
    }
    if let Some(utterance) = &turn.utterance {
        for text in utterance.thinking.iter().chain(&utterance.content) {
            look(TextField::Said, text);
        }
        for code in utterance.calls.iter().filter_map(|call| call.args.get("code").and_then(Value::as_str)) {
            look(TextField::Code, code);
        }
    }
    for record in &turn.gate_calls {
        look(TextField::Arguments, &format!("{} {}", record.gate, value_text(&record.args)));
        match &record.settlement {
            Settlement::Delegated => {}
            Settlement::Settled(settled) => look(TextField::Result, &value_text(&settled.result)),
        }
    }
    for output in &turn.outputs {
        look(TextField::Result, &output_text(output));
    }
}

fn find_in_text(turn: &Turn, field: TextField, text: &str, needle: &str, matches: &mut Vec<TextMatch>) {
    // Lower case of ASCII letters keeps every position.
    let lower = text.to_ascii_lowercase();
    for (start, found) in lower.match_indices(needle).take(GREP_TEXT_MATCHES_MAX) {
        let end = start + found.len();
        matches.push(TextMatch {
            turn: turn.id,
            sequence: turn.sequence,
            field,
            before: last_chars(&text[..start]),
            found: text[start..end].to_owned(),
            after: text[end..].chars().take(GREP_AROUND_CHARS).collect(),
        });
    }
}

/// Returns the last characters of a text.
fn last_chars(text: &str) -> String {
    let start = text.char_indices().rev().nth(GREP_AROUND_CHARS.saturating_sub(1)).map_or(0, |(at, _)| at);
    text[start..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_its_number() {
        let cursor = GrepCursor { seq: 4_000_000_000, turns: 123_456 };
        assert_eq!(GrepCursor::unpack(cursor.pack()), cursor);
    }

    #[test]
    fn the_characters_before_a_match_are_counted_as_characters() {
        assert_eq!(last_chars("grün"), "grün");
        assert_eq!(last_chars(""), "");
        assert_eq!(last_chars(&"ü".repeat(200)).chars().count(), GREP_AROUND_CHARS);
    }
}
