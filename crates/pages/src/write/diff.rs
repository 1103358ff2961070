//! A unified difference, line by line.

use maud::{Markup, html};

use super::{plural, shortened};
use crate::limits::DIFF_LINE_CHARS_MAX;

/// Returns a unified difference with at most a number of lines. The rest is told.
pub(crate) fn diff(unified: &str, lines_max: usize) -> Markup {
    let mut is_inside = false;
    let mut lines = unified.lines();
    let shown: Vec<(Option<&str>, String)> = lines
        .by_ref()
        .take(lines_max)
        .map(|line| {
            is_inside |= line.starts_with("@@");
            (line_class(line, is_inside), shortened(line, DIFF_LINE_CHARS_MAX))
        })
        .collect();
    let left = lines.count() as u64;
    html! {
        div class="diff" role="region" aria-label="Difference" tabindex="0" {
            @for (class, line) in shown { span class=[class] { (line) } }
            @if left > 0 { span class="at" { (plural(left, "more line", "more lines")) } }
        }
    }
}

/// Returns the class of a line. The names of the files stand before the first place.
fn line_class(line: &str, is_inside: bool) -> Option<&'static str> {
    match line.as_bytes().first() {
        Some(b'@') => Some("at"),
        Some(b'+') if is_inside => Some("add"),
        Some(b'-') if is_inside => Some("del"),
        Some(b'+' | b'-') => Some("at"),
        Some(_) | None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_marks_its_lines_and_tells_what_is_left() {
        let markup = diff("--- a\n+++ b\n@@ -1 +1 @@\n-old <b>\n+new\u{202e}\n same\n", 5).into_string();
        assert!(markup.contains(r#"<span class="at">--- a</span>"#), "{markup}");
        assert!(
            markup.contains(r#"<span class="del">-old &lt;b&gt;</span><span class="add">+new⟨U+202E⟩</span>"#),
            "{markup}"
        );
        assert!(markup.contains("1 more line<"), "{markup}");
    }
}
