//! Wraps the last expression of a program, so that its value is rendered as text.
//!
//! The interpreter would hand over the value as a tree of host values. Shared parts would be copied at every
//! occurrence, so forty nested lists become a trillion, at the host's expense; and a class of the entity would lose its
//! own `__repr__`. So the expression is converted to text before it is handed over, by `f"{(...)!r}"` around it: inside
//! the language, under its limits, and without a name that a program could replace. The arguments of exceptions are
//! converted in the same way ([`exception_arguments`]). No line moves.

use ruff_python_ast::{ModModule, Stmt};
use ruff_python_parser::{Parsed, parse_module};
use ruff_text_size::Ranged;

use super::exception_arguments;
use super::surrogates;

const BEFORE: &str = "f\"{(";
const AFTER: &str = ")!r}\"";

/// A text that is inserted into a program: the byte before which it comes, and the text.
pub(super) type Insertion = (usize, &'static str);

/// A program whose last expression, if it has one, is converted to text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WrappedProgram {
    pub source: String,
    /// True if the last expression is converted.
    is_text: bool,
    /// The line and column, counted from 1 in the program as written, of each inserted text, and its length.
    inserted: Vec<(u32, u32, u32)>,
    /// The line and column of the first escape that is half of a surrogate pair.
    pub surrogate: Option<(u32, u32)>,
}

impl WrappedProgram {
    pub(super) fn of(source: &str) -> Self {
        let unchanged = Self { source: source.to_owned(), is_text: false, inserted: Vec::new(), surrogate: None };
        let Ok(module) = parse_module(source) else { return unchanged };
        let surrogate = surrogates::find(source, &module).map(|byte| position(source, byte));
        let last = last_expression(&module);
        let arguments = exception_arguments::insertions(&module);
        let wrapped = Self::with(source, last.into_iter().flatten().chain(arguments).collect(), last.is_some());
        let wrapped = wrapped.or_else(|| Self::with(source, last.into_iter().flatten().collect(), last.is_some()));
        Self { surrogate, ..wrapped.unwrap_or(unchanged) }
    }

    /// Returns the program with these insertions, if it can still be parsed.
    fn with(source: &str, mut insertions: Vec<Insertion>, is_text: bool) -> Option<Self> {
        insertions.sort_by_key(|(byte, _)| *byte);
        let (mut wrapped, mut inserted, mut done) = (String::with_capacity(source.len() + 64), Vec::new(), 0);
        for (byte, text) in insertions {
            wrapped.push_str(source.get(done..byte)?);
            wrapped.push_str(text);
            done = byte;
            let (line, column) = position(source, byte);
            inserted.push((line, column, u32::try_from(text.len()).ok()?));
        }
        wrapped.push_str(source.get(done..)?);
        parse_module(&wrapped).ok()?;
        Some(Self { source: wrapped, is_text, inserted, surrogate: None })
    }

    /// Returns true if the value of the program is the text of its last expression.
    pub(super) fn is_text(&self) -> bool {
        self.is_text
    }

    /// Maps a position of the wrapped program to the position in the program as written.
    pub(super) fn original(&self, line: u32, column: u32) -> (u32, u32) {
        let mut moved = 0;
        for (_, start, length) in self.inserted.iter().filter(|(at, _, _)| *at == line) {
            let begins = start.saturating_add(moved);
            if column <= begins {
                break;
            }
            if column < begins.saturating_add(*length) {
                return (line, *start);
            }
            moved = moved.saturating_add(*length);
        }
        (line, column.saturating_sub(moved))
    }
}

/// Returns the insertions around the last expression.
fn last_expression(module: &Parsed<ModModule>) -> Option<[Insertion; 2]> {
    let Stmt::Expr(last) = module.syntax().body.last()? else { return None };
    let range = last.value.range();
    Some([(range.start().to_usize(), BEFORE), (range.end().to_usize(), AFTER)])
}

/// Returns the line and column of a byte, counted from 1.
fn position(source: &str, byte: usize) -> (u32, u32) {
    let before = source.get(..byte).unwrap_or_default();
    let line = before.matches('\n').count();
    let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count());
    let counted = |number: usize| u32::try_from(number).unwrap_or(u32::MAX).saturating_add(1);
    (counted(line), counted(column))
}

#[cfg(test)]
mod tests {
    use super::WrappedProgram;

    #[test]
    fn the_last_expression_is_wrapped_whatever_it_is_made_of() {
        for expression in [
            "1",
            "a, b",
            "*a, b",
            "x if y else z",
            "lambda: 1",
            "(n := 3)",
            "'quoted'",
            "\"quoted\"",
            "'''three'''",
            "\"\"\"three\n\"\"\"",
            "f'{x!r:>{width}}'",
            "f\"{f\"{x}\"}\"",
            "{'a': 1}['a'] != 2",
            "[\n  1,  # one\n  2,\n]",
            "a[1:2]",
            "await f()",
            "not x",
            "{**a}",
            "r'\\n'",
            "'\\n'",
            "1 + \\\n  2",
        ] {
            let source = format!("x = 1\n{expression}");
            let shown = WrappedProgram::of(&source);
            assert!(shown.is_text(), "{expression}");
            assert_eq!(shown.source.lines().count(), source.lines().count(), "{expression}");
            let semicolon = WrappedProgram::of(&format!("{source} ; # end"));
            assert!(semicolon.is_text(), "{expression}");
        }
        for source in ["", "x = 1", "for x in y:\n  x", "def f(): pass", "1 +", "x = 1\nif x:\n  2"] {
            assert_eq!(WrappedProgram::of(source).source, source);
        }
    }

    #[test]
    fn an_exception_gets_its_arguments_as_one_text() {
        for (source, expected) in [
            ("raise ValueError(1)", "raise ValueError(f\"{(1)!s}\")"),
            ("raise ValueError(1, 'two')", "raise ValueError(f\"{(1, 'two')!s}\")"),
            ("raise SystemExit(code)", "raise SystemExit(f\"{(code)!s}\")"),
            ("raise TypeError((3))", "raise TypeError((f\"{(3)!s}\"))"),
            ("raise ValueError('text')", "raise ValueError('text')"),
            ("raise ValueError(f'{x}')", "raise ValueError(f'{x}')"),
            ("raise ValueError", "raise ValueError"),
            ("raise ValueError()", "raise ValueError()"),
            ("raise ValueError(*many)", "raise ValueError(*many)"),
            ("x = value(1)", "x = value(1)"),
        ] {
            assert_eq!(WrappedProgram::of(source).source, expected);
        }
        let nested = WrappedProgram::of("raise ValueError(KeyError(1)); x = y");
        assert_eq!(nested.source, "raise ValueError(f\"{(KeyError(f\"{(1)!s}\"))!s}\"); x = y");
        assert_eq!(nested.original(1, 54), (1, 36), "y");
    }

    #[test]
    fn half_of_a_surrogate_pair_is_found_where_it_is_an_escape() {
        for (source, place) in [
            ("x = 'a\\ud800b'", Some((1, 7))),
            ("y = 1\nx = f'{y}\\udfff'", Some((2, 10))),
            ("x = '\\U0000dc00'", Some((1, 6))),
            ("x = '\\ufffd\\u00e9'", None),
            ("x = r'\\ud800'", None),
            ("x = '\\\\ud800'", None),
            ("x = b'\\ud800'", None),
            ("# \\ud800", None),
        ] {
            assert_eq!(WrappedProgram::of(source).surrogate, place, "{source}");
        }
    }

    #[test]
    fn columns_of_its_line_are_told_as_they_were_written() {
        let shown = WrappedProgram::of("x = 1\nx = 2; y + z");
        assert_eq!(shown.source, "x = 1\nx = 2; f\"{(y + z)!r}\"");
        assert_eq!(shown.original(2, 12), (2, 8), "y");
        assert_eq!(shown.original(2, 16), (2, 12), "z");
        assert_eq!(shown.original(2, 5), (2, 5), "before it");
        assert_eq!(shown.original(1, 30), (1, 30), "another line");
    }
}
