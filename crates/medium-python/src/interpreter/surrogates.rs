//! Finds escapes in the texts of a program that are half of a surrogate pair.
//!
//! A text of the interpreter is UTF-8 and cannot hold such a half, so its parser puts a replacement character there
//! without a word. JavaScript keeps the half and refuses it where it would become JSON; here the program is refused.

use ruff_python_ast::ModModule;
use ruff_python_ast::token::TokenKind;
use ruff_python_parser::Parsed;
use ruff_text_size::Ranged;

/// Returns the first byte of the first escape of this kind.
pub(super) fn find(source: &str, module: &Parsed<ModModule>) -> Option<usize> {
    // True for each open f-string that is raw.
    let mut raw = Vec::new();
    for token in module.tokens() {
        let (start, end) = (token.range().start().to_usize(), token.range().end().to_usize());
        let text = source.get(start..end)?;
        let kind = token.kind();
        let is_raw = if kind == TokenKind::String {
            has_prefix(text, "rRbB")
        } else if kind == TokenKind::FStringStart {
            raw.push(has_prefix(text, "rR"));
            continue;
        } else if kind == TokenKind::FStringEnd {
            raw.pop();
            continue;
        } else if kind == TokenKind::FStringMiddle {
            raw.last().copied().unwrap_or(false)
        } else {
            continue;
        };
        if !is_raw && let Some(at) = find_escape(text) {
            return Some(start + at);
        }
    }
    None
}

/// Returns true if one of these letters is before the first quote.
fn has_prefix(text: &str, letters: &str) -> bool {
    text.chars().take_while(|char| !matches!(char, '\'' | '"')).any(|char| letters.contains(char))
}

/// Returns the position of an escape whose number is half of a surrogate pair.
fn find_escape(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        if *byte != b'\\' {
            at += 1;
            continue;
        }
        let digits = match bytes.get(at + 1) {
            Some(b'u') => 4,
            Some(b'U') => 8,
            Some(_) | None => 0,
        };
        let number = text.get(at + 2..at + 2 + digits).and_then(|digits| u32::from_str_radix(digits, 16).ok());
        if number.is_some_and(|number| (0xd800..=0xdfff).contains(&number)) {
            return Some(at);
        }
        at += 2;
    }
    None
}
