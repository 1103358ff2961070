//! Texts and lists that fit into a number of bytes of markup, whatever they hold.
//!
//! A bound on the text alone would not bound the page: a quotation mark has one byte as text and six as markup, and a
//! line of a difference is an element.

use maud::{Markup, html};

use crate::limits::NAME_CHARS_MAX;
use crate::write::{bytes, diff, shortened, visible_text};

/// The markup around one line.
const LINE_MARKUP: usize = 32;

/// Returns the beginning of a text whose markup has at most a number of bytes.
pub(crate) fn fitting(text: &str, markup_max: usize) -> &str {
    // Markup is never shorter than its text.
    let mut end = text.floor_char_boundary(markup_max);
    loop {
        let beginning = &text[..end];
        let lines = beginning.bytes().filter(|byte| *byte == b'\n').count();
        let size = html! { (visible_text(beginning)) }.into_string().len() + lines * LINE_MARKUP;
        if size <= markup_max || end == 0 {
            return beginning;
        }
        // Almost always the right place at once. It is smaller each time, so this ends.
        let share = (end as u128 * markup_max as u128 / size as u128) as usize;
        end = text.floor_char_boundary(share.min(end - 1));
    }
}

/// Returns the first items whose markup has at most a number of bytes together, and at least one.
pub(crate) fn fitting_items<T>(
    items: impl IntoIterator<Item = T>,
    markup_max: usize,
    write: impl FnMut(T) -> Markup,
) -> Vec<Markup> {
    let mut size = 0;
    let mut fitting = Vec::new();
    for markup in items.into_iter().map(write) {
        size += markup.0.len();
        if size > markup_max && !fitting.is_empty() {
            break;
        }
        fitting.push(markup);
    }
    fitting
}

/// Returns a text, cut if it is long. The cut is told, so that nobody decides about something that they do not know to
/// be there.
pub(crate) fn cut(text: &str, markup_max: usize) -> Markup {
    let beginning = fitting(text, markup_max);
    html! { (visible_text(beginning)) (rest(text, beginning)) }
}

/// Returns an intent for a row or a heading, as [`short_line`].
pub(crate) fn one_row(intent: Option<&str>, chars_max: usize) -> String {
    let intent = intent.filter(|intent| !intent.trim().is_empty());
    intent.map_or_else(|| "no intent yet".to_owned(), |intent| short_line(intent, chars_max))
}

/// Returns the name of a gate, a spell or a crystal for a line.
pub(crate) fn short_name(name: &str) -> String {
    short_line(name, NAME_CHARS_MAX)
}

/// Returns a text on one line, cut to a number of characters and to twice as many bytes of markup.
pub(crate) fn short_line(text: &str, chars_max: usize) -> String {
    let line = shortened(text, chars_max);
    let beginning = fitting(&line, chars_max * 2);
    if beginning.len() == line.len() { line } else { format!("{beginning}…") }
}

/// Returns a unified difference, cut if it is long.
pub(crate) fn cut_diff(unified: &str, markup_max: usize) -> Markup {
    let beginning = fitting(unified, markup_max);
    html! {
        (diff(beginning, usize::MAX))
        @if beginning.len() < unified.len() { p { (rest(unified, beginning)) } }
    }
}

/// Returns how much of a text is left after its beginning; nothing if that is all of it.
pub(crate) fn rest(text: &str, beginning: &str) -> Markup {
    html! {
        @if beginning.len() < text.len() {
            " " b class="cut" { "… " (bytes(text.len() - beginning.len())) " more are not shown" }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_by_the_size_of_its_markup() {
        assert_eq!(fitting("short", 100), "short");
        assert_eq!(fitting("\"\"\"\"\"\"", 18), "\"\"\"");
        assert_eq!(fitting("äöü", 3), "ä");
        assert_eq!(fitting("a\n\n\n\nb", 70), "a\n\n");
        for hostile in ["\"", "<", "\u{202e}", "\u{e0001}", "\n", "😀", "\0"] {
            let long = hostile.repeat(10_000);
            let markup = cut(&long, 4_096).into_string();
            assert!(markup.len() < 4_200 && markup.len() > 100, "{hostile:?}: {}", markup.len());
            assert!(markup.contains("more are not shown"));
        }
    }

    #[test]
    fn a_row_is_bounded_by_its_characters_and_by_its_markup() {
        assert_eq!(one_row(Some("which module\nis it?"), 60), "which module is it?");
        assert_eq!(one_row(None, 60), "no intent yet");
        assert_eq!(one_row(Some(&"\"".repeat(60)), 60), format!("{}…", "\"".repeat(20)));
    }

    #[test]
    fn items_fill_their_room_and_there_is_always_one() {
        let write = |text: &str| html! { p { (text) } };
        assert_eq!(fitting_items(["1", "2", "3"], 16, write).len(), 2);
        assert_eq!(fitting_items(["a long text"], 1, write).len(), 1);
        assert_eq!(fitting_items([], 100, write).len(), 0);
    }

    #[test]
    fn a_long_difference_tells_how_much_is_left() {
        let unified = format!("--- a\n+++ a\n@@ -1 +1,999 @@\n{}", "+line\n".repeat(999));
        let markup = cut_diff(&unified, 4_096).into_string();
        assert!(markup.len() < 8_192, "{}", markup.len());
        assert!(markup.contains("KiB more are not shown"), "{markup}");
    }
}
