//! Texts of a page: numbers with their exact value, and values of entities and files as plain, bounded text.

use std::fmt::Display;

use maud::{Markup, html};
use serde_json::Value;

pub(crate) use cantrip_service::wording::signed;

/// Returns a number of the report: a text for people, with the exact value and its place in the JSON report beside it.
pub(crate) fn number(place: &str, value: impl Display, text: &str) -> Markup {
    html! { data value=(value.to_string()) data-of=(place) { (text) } }
}

/// Returns a whole number of the report.
pub(crate) fn count(place: &str, value: u64) -> Markup {
    number(place, value, &grouped(value))
}

/// Returns a whole number with its thousands apart.
pub(crate) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a value as text: a string as it is, anything else as JSON over several lines, cut to a number of characters.
pub(crate) fn value_text(value: &Value, chars_max: usize) -> String {
    if let Value::String(text) = value { bounded(text, chars_max) } else { bounded(&format!("{value:#}"), chars_max) }
}

/// Returns text with its invisible characters made visible, cut to a number of characters. The cut is told.
pub(crate) fn bounded(text: &str, chars_max: usize) -> String {
    let mut shown: String = text.chars().take(chars_max).map(visible).collect();
    let left = text.chars().count().saturating_sub(chars_max);
    if left > 0 {
        shown.push_str(&format!(" … ({} more characters)", grouped(left as u64)));
    }
    shown
}

/// Returns text on one line, cut to a number of characters, for a drawing.
pub(crate) fn shortened(text: &str, chars_max: usize) -> String {
    let mut shown: String = text.chars().take(chars_max).map(visible).collect();
    if text.chars().count() > chars_max {
        shown.push('…');
    }
    shown.replace(['\n', '\t'], " ")
}

/// Returns a character as it is, or its number if it cannot be seen: a control character, a change of direction, a
/// character without width.
fn visible(char: char) -> String {
    let unseen = match char {
        '\n' | '\t' => false,
        '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' => true,
        other => other.is_control(),
    };
    if unseen { format!("⟨U+{:04X}⟩", u32::from(char)) } else { char.to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_long_value_is_cut_and_the_cut_is_told() {
        assert_eq!(value_text(&json!("abcdef"), 4), "abcd … (2 more characters)");
        assert_eq!(value_text(&json!({"a": 1}), 100), "{\n  \"a\": 1\n}");
        assert_eq!([grouped(0), grouped(999), grouped(1_000), grouped(1_234_567)], ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn characters_that_nobody_sees_are_shown_by_their_number() {
        assert_eq!(bounded("a\u{202e}b\u{1b}[31m\nc", 100), "a⟨U+202E⟩b⟨U+001B⟩[31m\nc");
    }

    #[test]
    fn text_of_others_is_escaped() {
        let markup = number("/x", 5, "<script>").into_string();
        assert_eq!(markup, r#"<data value="5" data-of="/x">&lt;script&gt;</data>"#);
    }
}
