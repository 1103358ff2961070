//! Colours for programs: comments, strings, numbers, keywords and calls.
//!
//! A small lexer instead of grammars: those are megabytes, and a wrong colour harms nobody. Each token is a text node
//! of its own, so the text of a program is always exactly what was recorded.

use maud::{Markup, html};

use super::visible_text;
use crate::limits::{PAINT_BYTES_MAX, PAINT_TOKENS_MAX};

/// The colour group of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Colour {
    Plain,
    Keyword,
    Text,
    Number,
    Comment,
    Call,
}

impl Colour {
    const fn class(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Keyword => Some("k"),
            Self::Text => Some("s"),
            Self::Number => Some("nu"),
            Self::Comment => Some("c"),
            Self::Call => Some("f"),
        }
    }
}

type Token<'a> = (Colour, &'a str);

/// The words and marks of a language.
#[derive(Debug)]
struct Language {
    keywords: &'static [&'static str],
    any_case: bool,
    line_comment: &'static str,
    block_comment: Option<(&'static str, &'static str)>,
    /// The longest first. Those of one character but the backtick end with their line.
    quotes: &'static [&'static str],
    /// A text before a colon is a name.
    has_names: bool,
}

const JAVASCRIPT: Language = Language {
    keywords: &[
        "as",
        "async",
        "await",
        "break",
        "case",
        "catch",
        "class",
        "const",
        "continue",
        "default",
        "delete",
        "do",
        "else",
        "enum",
        "export",
        "extends",
        "false",
        "finally",
        "for",
        "from",
        "function",
        "if",
        "import",
        "in",
        "instanceof",
        "interface",
        "let",
        "new",
        "null",
        "of",
        "return",
        "static",
        "super",
        "switch",
        "this",
        "throw",
        "true",
        "try",
        "type",
        "typeof",
        "undefined",
        "var",
        "void",
        "while",
        "yield",
    ],
    any_case: false,
    line_comment: "//",
    block_comment: Some(("/*", "*/")),
    quotes: &["\"", "'", "`"],
    has_names: false,
};

const PYTHON: Language = Language {
    keywords: &[
        "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del",
        "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "match",
        "nonlocal", "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
    ],
    any_case: false,
    line_comment: "#",
    block_comment: None,
    quotes: &["\"\"\"", "'''", "\"", "'"],
    has_names: false,
};

const SHELL: Language = Language {
    keywords: &[
        "case", "do", "done", "elif", "else", "esac", "exit", "export", "fi", "for", "function", "if", "in", "local",
        "return", "set", "shift", "then", "trap", "unset", "until", "while",
    ],
    any_case: false,
    line_comment: "#",
    block_comment: None,
    quotes: &["\"", "'"],
    has_names: false,
};

const JSON: Language = Language {
    keywords: &["true", "false", "null"],
    any_case: false,
    line_comment: "",
    block_comment: None,
    quotes: &["\""],
    has_names: true,
};

const TOML: Language = Language {
    keywords: &["true", "false"],
    any_case: false,
    line_comment: "#",
    block_comment: None,
    quotes: &["\"\"\"", "'''", "\"", "'"],
    has_names: false,
};

const SQL: Language = Language {
    keywords: &[
        "all", "and", "as", "asc", "begin", "between", "by", "case", "commit", "create", "delete", "desc", "distinct",
        "drop", "else", "end", "exists", "from", "group", "having", "in", "index", "inner", "insert", "into", "is",
        "join", "left", "limit", "not", "null", "offset", "on", "or", "order", "outer", "primary", "select", "set",
        "table", "then", "union", "update", "values", "when", "where", "with",
    ],
    any_case: true,
    line_comment: "--",
    block_comment: Some(("/*", "*/")),
    quotes: &["'", "\""],
    has_names: false,
};

fn language(name: &str) -> Option<&'static Language> {
    match name.to_ascii_lowercase().as_str() {
        "javascript" | "js" | "jsx" | "typescript" | "ts" | "tsx" => Some(&JAVASCRIPT),
        "python" | "py" => Some(&PYTHON),
        "shell" | "bash" | "sh" | "zsh" | "console" => Some(&SHELL),
        "json" | "jsonl" => Some(&JSON),
        "toml" => Some(&TOML),
        "sql" => Some(&SQL),
        _ => None,
    }
}

/// Returns a program in colours. A language that is not known, and a program that is too long, is plain text.
pub(crate) fn paint(name: &str, code: &str) -> Markup {
    let tokens = tokens(name, code);
    html! { @for token in tokens { (span(token)) } }
}

/// Returns a program in colours with a number before each line. The numbers are not part of the text.
pub(crate) fn numbered_lines(name: &str, code: &str) -> Markup {
    let code = code.strip_suffix('\n').unwrap_or(code);
    let mut lines: Vec<Vec<Token<'_>>> = vec![Vec::new()];
    for (colour, text) in tokens(name, code) {
        for (at, piece) in text.split('\n').enumerate() {
            if at > 0 {
                lines.push(Vec::new());
            }
            if let Some(line) = lines.last_mut().filter(|_| !piece.is_empty()) {
                line.push((colour, piece));
            }
        }
    }
    let last = lines.len().saturating_sub(1);
    html! {
        @for (at, line) in lines.into_iter().enumerate() {
            i class="ln" {} @for token in line { (span(token)) } @if at < last { "\n" }
        }
    }
}

fn span((colour, text): Token<'_>) -> Markup {
    html! {
        @if let Some(class) = colour.class() { span class=(class) { (visible_text(text)) } }
        @else { (visible_text(text)) }
    }
}

fn tokens<'a>(name: &str, code: &'a str) -> Vec<Token<'a>> {
    if code.len() > PAINT_BYTES_MAX {
        return vec![(Colour::Plain, code)];
    }
    if name.eq_ignore_ascii_case("diff") {
        return code.split_inclusive('\n').map(|line| (diff_colour(line), line)).collect();
    }
    let Some(language) = language(name) else { return vec![(Colour::Plain, code)] };
    let mut found: Vec<Token<'a>> = Vec::new();
    let (mut at, mut plain_from) = (0, 0);
    while at < code.len() && found.len() < PAINT_TOKENS_MAX {
        let (colour, length) = next_token(language, code, at);
        if colour != Colour::Plain {
            if plain_from < at {
                found.push((Colour::Plain, &code[plain_from..at]));
            }
            found.push((colour, &code[at..at + length]));
            plain_from = at + length;
        }
        at += length;
    }
    if plain_from < code.len() {
        found.push((Colour::Plain, &code[plain_from..]));
    }
    found
}

fn diff_colour(line: &str) -> Colour {
    match line.as_bytes().first() {
        Some(b'+') => Colour::Text,
        Some(b'-') => Colour::Keyword,
        Some(b'@') => Colour::Comment,
        Some(_) | None => Colour::Plain,
    }
}

/// Returns the colour and the length in bytes of the token at a place; the length is never zero.
fn next_token(language: &Language, code: &str, at: usize) -> (Colour, usize) {
    let rest = &code[at..];
    if let Some(length) = comment_length(language, code, at) {
        return (Colour::Comment, length);
    }
    if let Some(quote) = language.quotes.iter().find(|quote| rest.starts_with(**quote)) {
        let length = quoted_length(rest, quote);
        let is_name = language.has_names && rest[length..].trim_start().starts_with(':');
        return (if is_name { Colour::Call } else { Colour::Text }, length);
    }
    let first = rest.chars().next().unwrap_or(' ');
    if first.is_ascii_digit() {
        return (Colour::Number, run_length(rest, |char| char.is_ascii_alphanumeric() || matches!(char, '.' | '_')));
    }
    if !is_word(first) {
        return (Colour::Plain, first.len_utf8());
    }
    let length = run_length(rest, |char| is_word(char) || char.is_ascii_digit());
    let word = &rest[..length];
    let is_keyword =
        |keyword: &&str| if language.any_case { keyword.eq_ignore_ascii_case(word) } else { **keyword == *word };
    if language.keywords.iter().any(is_keyword) {
        (Colour::Keyword, length)
    } else if rest[length..].starts_with('(') {
        (Colour::Call, length)
    } else {
        (Colour::Plain, length)
    }
}

fn is_word(char: char) -> bool {
    char.is_alphabetic() || matches!(char, '_' | '$')
}

fn run_length(text: &str, is_inside: impl Fn(char) -> bool) -> usize {
    text.find(|char| !is_inside(char)).unwrap_or(text.len())
}

/// Returns the length of the comment at a place, if there is one. A `#` within a word is none.
fn comment_length(language: &Language, code: &str, at: usize) -> Option<usize> {
    let rest = &code[at..];
    if let Some((open, close)) = language.block_comment.filter(|(open, _)| rest.starts_with(open)) {
        return Some(rest[open.len()..].find(close).map_or(rest.len(), |end| open.len() + end + close.len()));
    }
    let follows_space = code[..at].chars().next_back().is_none_or(char::is_whitespace);
    let is_comment = !language.line_comment.is_empty()
        && rest.starts_with(language.line_comment)
        && (language.line_comment != "#" || follows_space);
    is_comment.then(|| rest.find('\n').unwrap_or(rest.len()))
}

/// Returns the length of a text in quotes, with its quotes. A text that is not closed ends with its line, or with the
/// program if its quotes may hold several lines.
fn quoted_length(rest: &str, quote: &str) -> usize {
    let one_line = quote.len() == 1 && quote != "`";
    let mut at = quote.len();
    while let Some(char) = rest[at..].chars().next() {
        if rest[at..].starts_with(quote) {
            return at + quote.len();
        }
        if char == '\n' && one_line {
            return at;
        }
        at += char.len_utf8();
        if char == '\\' {
            at += rest[at..].chars().next().map_or(0, char::len_utf8);
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(name: &str, code: &str) -> Vec<(Option<&'static str>, String)> {
        tokens(name, code).into_iter().map(|(colour, text)| (colour.class(), text.to_owned())).collect()
    }

    #[test]
    fn a_program_is_coloured_and_its_text_stays_the_same() {
        let code = "const a = f(\"x\\\"y\", 3.5); // end";
        assert_eq!(tokens("javascript", code).iter().map(|(_, text)| *text).collect::<String>(), code);
        let coloured: Vec<_> = classes("javascript", code).into_iter().filter(|(class, _)| class.is_some()).collect();
        let expected = [("k", "const"), ("f", "f"), ("s", "\"x\\\"y\""), ("nu", "3.5"), ("c", "// end")];
        assert_eq!(coloured, expected.map(|(class, text)| (Some(class), text.to_owned())));
    }

    #[test]
    fn texts_and_comments_that_never_end_are_taken_to_the_end() {
        for (name, code) in
            [("js", "`a\n\\"), ("js", "/* a"), ("python", "'''a\n"), ("sql", "SELECT 'ä"), ("sh", "\"\\")]
        {
            assert_eq!(tokens(name, code).iter().map(|(_, text)| *text).collect::<String>(), code);
        }
    }

    #[test]
    fn lines_are_numbered_outside_of_the_text() {
        let markup = numbered_lines("js", "`a\n<b>`\n").into_string();
        assert_eq!(
            markup,
            "<i class=\"ln\"></i><span class=\"s\">`a</span>\n<i class=\"ln\"></i><span class=\"s\">&lt;b&gt;`</span>"
        );
    }
}
