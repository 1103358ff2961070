//! When is an entry complete, and what does it mean?
//!
//! A line is an intent. A line that ends in a backslash continues in the next line. A block between `"""` may contain
//! anything, also blank lines and backslashes. Pasted text is one entry and is not changed.

const BLOCK: &str = "\"\"\"";

/// A parsed entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    Nothing,
    Intent(String),
    /// A line that begins with one slash.
    Command(String),
}

/// Returns true if these lines need another line.
pub(super) fn is_open(typed: &str) -> bool {
    match typed.trim_start().strip_prefix(BLOCK) {
        Some(inside) => !inside.trim_end().ends_with(BLOCK),
        None => typed.ends_with('\\'),
    }
}

/// Returns true if an entry with this beginning is a block.
pub(super) fn is_block(beginning: &str) -> bool {
    beginning.trim_start().starts_with(BLOCK)
}

/// Returns true if an entry needs another line after `line`, which is not its first.
pub(super) fn continues(block: bool, line: &str) -> bool {
    if block { !line.trim_end().ends_with(BLOCK) } else { line.trim_end_matches('\n').ends_with('\\') }
}

pub(super) fn parse_entry(typed: &str) -> Entry {
    if let Some(inside) = typed.trim_start().strip_prefix(BLOCK) {
        // The end of the input closes an open block.
        let inside = inside.trim_end();
        let inside = inside.strip_suffix(BLOCK).unwrap_or(inside);
        let inside = inside.strip_prefix('\n').unwrap_or(inside);
        return intent(inside.strip_suffix('\n').unwrap_or(inside).to_owned());
    }
    let text = typed.trim_end().strip_suffix('\\').unwrap_or(typed.trim_end());
    let text = text.replace("\\\n", "\n");
    if text.trim_start().starts_with('/') && !text.trim().contains('\n') {
        return match text.trim().strip_prefix("//") {
            Some(rest) => intent(format!("/{rest}")),
            None => Entry::Command(text.trim().to_owned()),
        };
    }
    intent(text)
}

fn intent(text: String) -> Entry {
    if text.trim().is_empty() { Entry::Nothing } else { Entry::Intent(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Entry {
        Entry::Intent(text.to_owned())
    }

    #[test]
    fn a_line_is_an_intent_and_a_blank_one_is_nothing() {
        assert_eq!(parse_entry("count the rows\n"), said("count the rows"));
        assert_eq!(parse_entry("  \n"), Entry::Nothing);
        assert_eq!(parse_entry(""), Entry::Nothing);
        assert!(!is_open("count the rows"));
    }

    #[test]
    fn a_backslash_at_the_end_joins_the_next_line() {
        assert!(is_open("one \\") && is_open("one \\\ntwo\\") && !is_open("one \\\ntwo"));
        assert_eq!(parse_entry("one \\\ntwo\\\nthree"), said("one \ntwo\nthree"));
        assert_eq!(parse_entry("a\\b"), said("a\\b"), "only at the end of a line");
        assert_eq!(parse_entry("left open\\"), said("left open"));
    }

    #[test]
    fn a_block_holds_anything() {
        assert!(is_open("\"\"\"") && is_open("\"\"\"one\n\n/two \\") && !is_open("\"\"\"one\n\n/two \\\n\"\"\""));
        assert_eq!(parse_entry("\"\"\"\none\n\n/two \\\n\"\"\""), said("one\n\n/two \\"));
        assert_eq!(parse_entry("\"\"\"short\"\"\""), said("short"));
        assert!(!is_open("\"\"\"short\"\"\""));
        assert_eq!(parse_entry("\"\"\"\n\n\"\"\""), Entry::Nothing);
        assert_eq!(parse_entry("\"\"\"\nnever closed\n"), said("never closed"));
    }

    #[test]
    fn a_slash_begins_a_command_and_two_an_intent() {
        assert_eq!(parse_entry("/fork 2 again\n"), Entry::Command("/fork 2 again".to_owned()));
        assert_eq!(parse_entry("//etc/hosts: what is it?"), said("/etc/hosts: what is it?"));
        assert_eq!(parse_entry("/etc/hosts\nwas pasted"), said("/etc/hosts\nwas pasted"));
        assert_eq!(parse_entry("\"\"\"/quit\"\"\""), said("/quit"));
    }
}
