//! Text that appears on the terminal while it is streamed.
//!
//! Text is only ever appended: written text can scroll away, and a terminal that is resized or that does not support
//! escape sequences shows it correctly too. One item is written at a time. The others wait until they are complete, or
//! until it is their turn; otherwise the words of two children that stream at once would be mixed.
//!
//! The text of the root may be the answer, which belongs on standard output. If both streams are the same terminal, its
//! words go to standard output at once, and the answer is not written a second time.

use anstyle::Style;
use cantrip::stream::{ItemId, Text};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::cursor::{self, Stream};
use crate::present::{DIM, strip_control, width_of_error};

/// The style of an item's text.
#[derive(Debug, Clone, Copy)]
pub(super) struct TextStyle {
    /// The prefix of every line.
    pub before: &'static str,
    pub depth: usize,
    pub style: Style,
    /// True for the text of the root, which may be the answer.
    pub may_be_answer: bool,
}

/// The item that is being written, and its text so far.
#[derive(Debug)]
struct LiveText {
    item: ItemId,
    written: Text,
}

/// The streamed text on a terminal.
#[derive(Debug)]
pub(super) struct Live {
    /// True if standard output is the same terminal.
    shared: bool,
    open: Option<LiveText>,
    /// The last complete text of the root.
    said: Option<Text>,
}

impl Live {
    pub(super) fn new() -> Self {
        Self { shared: cursor::is_shared_terminal(), open: None, said: None }
    }

    /// Returns true if an item is being written and is not complete.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Returns true if the answer will be written to the same terminal.
    pub(super) fn shows_answers(&self) -> bool {
        self.shared
    }

    /// Returns true if this answer was already written to standard output.
    pub(super) fn has_said(&self, answer: &str) -> bool {
        self.shared && self.said.as_ref().is_some_and(|said| said.to_string().trim() == answer.trim())
    }

    /// Clears the state of the previous cast.
    pub(super) fn begin(&mut self) {
        (self.open, self.said) = (None, None);
    }

    /// Writes the new part of a growing item.
    pub(super) fn grow(&mut self, item: &ItemId, content: &Text, look: TextStyle) {
        match &self.open {
            Some(open) if open.item != *item => {}
            Some(open) => {
                let rest = beyond(content, open.written.len());
                self.write(item, content, &rest, look);
            }
            None => {
                // An item begins on a new line.
                cursor::settle();
                self.write(item, content, &content.to_string(), look);
            }
        }
    }

    /// Writes the rest of a complete item. `note` says why an item ended with an error.
    pub(super) fn finish(&mut self, item: &ItemId, content: &Text, note: Option<&str>, look: TextStyle) {
        let rest = match self.open.take() {
            Some(open) if open.item == *item && begins_with(content, &open.written) => {
                beyond(content, open.written.len())
            }
            // The final text of an item may replace the streamed text.
            Some(open) if open.item == *item => {
                cursor::settle();
                content.to_string()
            }
            other => {
                cursor::settle();
                self.open = other;
                content.to_string()
            }
        };
        self.put(&rest, look);
        cursor::settle();
        if let Some(note) = note {
            let indent = 2 * look.depth;
            crate::present::say(&format!("{:indent$}  {DIM}({note}){DIM:#}", ""));
        }
        if look.may_be_answer && note.is_none() {
            self.said = Some(content.clone());
        }
    }

    fn write(&mut self, item: &ItemId, content: &Text, rest: &str, look: TextStyle) {
        self.put(rest, look);
        self.open = Some(LiveText { item: item.clone(), written: content.clone() });
    }

    fn put(&self, text: &str, look: TextStyle) {
        if text.is_empty() {
            return;
        }
        let text = strip_control(text);
        if look.may_be_answer && self.shared {
            // The text is not wrapped here; the terminal wraps it, so that lines can be copied whole.
            let last = text.rsplit('\n').next().unwrap_or_default();
            let before = if last.len() == text.len() { cursor::column() } else { 0 };
            cursor::append(Stream::Output, look.style, &text, before + last.width());
            return;
        }
        let margin = format!("{:indent$}{}", "", look.before, indent = 2 * look.depth);
        let columns = width_of_error().unwrap_or(usize::MAX);
        let (wrapped, column) = wrap(&text, cursor::column(), &margin, columns);
        cursor::append(Stream::Error, look.style, &wrapped, column);
    }
}

/// Wraps text into lines of at most `columns` columns, each after `margin`, starting at the cursor's column. Returns
/// the lines and the column after the last of them.
pub(super) fn wrap(text: &str, column: usize, margin: &str, columns: usize) -> (String, usize) {
    let (mut out, mut at) = (String::new(), column);
    let first = margin.width();
    let mut rest = text;
    while let Some(char) = rest.chars().next() {
        if char == '\n' {
            out.push('\n');
            at = 0;
            rest = &rest[1..];
            continue;
        }
        if at == 0 {
            out.push_str(margin);
            at = first;
        }
        let word = &rest[..rest.find(|char: char| char.is_whitespace()).unwrap_or(rest.len())];
        if word.is_empty() {
            // A space that would be at the end of a full line is dropped; the line break replaces it.
            let space = char.width().unwrap_or(0);
            if at + space < columns {
                out.push(char);
                at += space;
            }
            rest = &rest[char.len_utf8()..];
            continue;
        }
        let wide = word.width();
        if at > first && at + wide >= columns && first + wide < columns {
            out.push('\n');
            out.push_str(margin);
            at = first;
        }
        for char in word.chars() {
            let wide = char.width().unwrap_or(0);
            if at > first && at + wide >= columns {
                out.push('\n');
                out.push_str(margin);
                at = first;
            }
            out.push(char);
            at += wide;
        }
        rest = &rest[word.len()..];
    }
    (out, at)
}

/// Returns the text after the first `bytes` bytes, which end at a character boundary.
fn beyond(text: &Text, bytes: usize) -> String {
    let (mut skipped, mut rest) = (0, String::new());
    for segment in text.segments() {
        let from = bytes.saturating_sub(skipped).min(segment.len());
        rest.push_str(segment.get(from..).unwrap_or_default());
        skipped += segment.len();
    }
    rest
}

fn begins_with(text: &Text, beginning: &Text) -> bool {
    let mut bytes = text.segments().flat_map(str::bytes);
    beginning.segments().flat_map(str::bytes).all(|byte| bytes.next() == Some(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_kept_whole_where_a_line_has_room_for_them_and_every_line_has_its_margin() {
        let (out, column) = wrap("one two three four", 0, "  ", 13);
        assert_eq!((out.as_str(), column), ("  one two \n  three four", 12));
        let (out, _) = wrap("abcdefghijklmnop", 0, "  ", 8);
        assert_eq!(out, "  abcde\n  fghij\n  klmno\n  p");
        let (out, column) = wrap("a\n\nb", 0, "> ", 20);
        assert_eq!((out.as_str(), column), ("> a\n\n> b", 3));
    }

    #[test]
    fn what_comes_in_pieces_goes_on_where_the_cursor_is() {
        let (first, column) = wrap("one ", 0, "  ", 12);
        let (second, column) = wrap("two thr", column, "  ", 12);
        let (third, column) = wrap("ee", column, "  ", 12);
        assert_eq!((format!("{first}{second}{third}"), column), ("  one two \n  three".to_owned(), 7));
    }

    #[test]
    fn wide_characters_take_the_columns_that_they_have() {
        let (out, column) = wrap("漢字漢字", 0, "", 6);
        assert_eq!((out.as_str(), column), ("漢字\n漢字", 4));
    }
}
