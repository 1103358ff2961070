//! Text of entities, gates and files: characters that nobody sees made visible, and long text cut.

use std::borrow::Cow;

use serde_json::Value;

use super::grouped;

/// Returns text with every character made visible that a reader could not see: control characters, changes of
/// direction, characters without width. For calls, commands, addresses, paths and differences, by which people decide.
pub(crate) fn visible_text(text: &str) -> Cow<'_, str> {
    replace_unseen(text, is_unseen)
}

/// Returns text for reading: as [`visible_text`], but joiners within words and emoji stay.
pub(crate) fn prose(text: &str) -> Cow<'_, str> {
    replace_unseen(text, |char| is_unseen(char) && !matches!(char, '\u{200c}' | '\u{200d}'))
}

fn replace_unseen(text: &str, is_unseen: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_unseen) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().fold(String::with_capacity(text.len() + 16), |mut out, char| {
        if is_unseen(char) {
            push_visible(&mut out, char);
        } else {
            out.push(char);
        }
        out
    }))
}

/// Returns true for a character that a reader cannot see. Line breaks and tabs can be seen by what they do.
fn is_unseen(char: char) -> bool {
    match char {
        '\n' | '\t' => false,
        '\u{ad}'
        | '\u{61c}'
        | '\u{115f}'
        | '\u{1160}'
        | '\u{180e}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{3164}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}' => true,
        other => other.is_control(),
    }
}

/// Writes a control character as its picture, any other unseen character by its number.
fn push_visible(out: &mut String, char: char) {
    let code = u32::from(char);
    match code {
        0..0x20 => out.push(char::from_u32(0x2400 + code).unwrap_or('␀')),
        0x7f => out.push('␡'),
        _ => out.push_str(&format!("⟨U+{code:04X}⟩")),
    }
}

/// Returns console output without the escape sequences by which terminals set colours and move the cursor.
pub(crate) fn without_terminal_colours(text: &str) -> Cow<'_, str> {
    if !text.contains('\u{1b}') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        if char == '\u{1b}' && chars.peek() == Some(&'[') {
            chars.next();
            // A sequence ends with its first letter. What does not end is shown from its next line on.
            for inner in chars.by_ref() {
                if matches!(inner, '@'..='~' | '\n') {
                    break;
                }
            }
        } else {
            out.push(char);
        }
    }
    Cow::Owned(out)
}

/// Returns the beginning of a text that takes at most this many bytes of markup, cut at a character, and true if
/// something was cut. Counting the markup keeps a page within its bytes, whatever the text consists of.
pub(crate) fn cut_text(text: &str, bytes_max: usize, lines_max: usize) -> (&str, bool) {
    let (mut size, mut lines) = (0, 1);
    for (at, char) in text.char_indices() {
        size += markup_bytes(char);
        lines += usize::from(char == '\n');
        if size > bytes_max || lines > lines_max {
            return (&text[..at], &text[at..] != "\n");
        }
    }
    (text, false)
}

/// Returns the end of a text that takes at most this many bytes of markup, and true if something was cut.
pub(crate) fn cut_beginning(text: &str, bytes_max: usize) -> (&str, bool) {
    let mut size = 0;
    for (at, char) in text.char_indices().rev() {
        size += markup_bytes(char);
        if size > bytes_max {
            let from = at + char.len_utf8();
            return (&text[from..], true);
        }
    }
    (text, false)
}

/// The number of bytes that a character takes in markup.
fn markup_bytes(char: char) -> usize {
    match char {
        '"' => "&quot;".len(),
        '&' => "&amp;".len(),
        '<' | '>' => "&lt;".len(),
        other if is_unseen(other) => "⟨U+E0000⟩".len(),
        other => other.len_utf8(),
    }
}

/// Returns the line break that a parser leaves out at the beginning of a `pre`; empty if the text begins otherwise.
pub(crate) fn leading_break(text: &str) -> &'static str {
    if text.starts_with('\n') { "\n" } else { "" }
}

/// Returns the full stop of a sentence that ends with this text; empty if the text ends a sentence itself.
pub(crate) fn full_stop(text: &str) -> &'static str {
    if text.trim_end().ends_with(['.', '?', '!']) { "" } else { "." }
}

/// Returns words of ours as a sentence: with a capital letter and a full stop.
pub(crate) fn sentence(words: &str) -> String {
    let mut chars = words.chars();
    let first = chars.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}{}", chars.as_str(), full_stop(words))
}

/// Returns a value as text: a string as it is, anything else as JSON over several lines, cut to a number of characters.
pub(crate) fn value_text(value: &Value, chars_max: usize) -> String {
    if let Value::String(text) = value { bounded(text, chars_max) } else { bounded(&format!("{value:#}"), chars_max) }
}

/// Returns text with its invisible characters made visible, cut to a number of characters. The cut is told.
pub(crate) fn bounded(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        None => visible_text(text).into_owned(),
        Some((end, _)) => {
            let left = text[end..].chars().count() as u64;
            format!("{} … ({} more characters)", visible_text(&text[..end]), grouped(left))
        }
    }
}

/// Returns text on one line, cut to a number of characters, for a drawing or a row.
pub(crate) fn shortened(text: &str, chars_max: usize) -> String {
    let line = match text.char_indices().nth(chars_max) {
        None => visible_text(text).into_owned(),
        Some((end, _)) => format!("{}…", visible_text(&text[..end])),
    };
    line.replace(['\n', '\t'], " ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_long_value_is_cut_and_the_cut_is_told() {
        assert_eq!(value_text(&json!("abcdef"), 4), "abcd … (2 more characters)");
        assert_eq!(value_text(&json!({"a": 1}), 100), "{\n  \"a\": 1\n}");
        assert_eq!(shortened("a\nbcd", 3), "a b…");
    }

    #[test]
    fn characters_that_nobody_sees_are_shown_by_their_picture_or_number() {
        assert_eq!(bounded("a\u{202e}b\u{1b}[31m\nc\0", 100), "a⟨U+202E⟩b␛[31m\nc␀");
        assert_eq!(visible_text("paypa\u{200b}l.com"), "paypa⟨U+200B⟩l.com");
        assert_eq!(prose("👩\u{200d}💻 \u{202e}x"), "👩\u{200d}💻 ⟨U+202E⟩x");
    }

    #[test]
    fn a_sentence_has_a_capital_letter_and_one_end() {
        assert_eq!(sentence("a retry changes nothing"), "A retry changes nothing.");
        assert_eq!([full_stop("Put it into German."), full_stop("why? "), full_stop("")], ["", "", "."]);
        assert_eq!([leading_break("\n a"), leading_break("a\n")], ["\n", ""]);
    }

    #[test]
    fn terminal_colours_are_taken_out_and_other_text_stays() {
        assert_eq!(without_terminal_colours("\u{1b}[1;31mred\u{1b}[0m and \u{1b}]0;title"), "red and \u{1b}]0;title");
        assert_eq!(without_terminal_colours("\u{1b}[31"), "");
    }

    #[test]
    fn text_is_cut_at_a_character_and_at_a_line() {
        assert_eq!(cut_text("äöü", 3, 40), ("ä", true));
        assert_eq!(cut_text("1\n2\n3", 100, 2), ("1\n2", true));
        assert_eq!(cut_text("1\n2\n", 100, 2), ("1\n2", false));
        assert_eq!(cut_text("", 100, 2), ("", false));
        assert_eq!(cut_text("\"\"\"", 12, 2), ("\"\"", true), "a quote takes six bytes of markup");
        assert_eq!(cut_beginning("äöü", 3), ("ü", true));
    }
}
