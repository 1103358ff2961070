//! Wraps the last expression of a program, so that its value is rendered as text.
//!
//! The interpreter would hand over the value as a tree of host values. Shared parts would be copied at every
//! occurrence, so forty nested lists become a trillion, at the host's expense; and a class of the entity would lose its
//! own `__repr__`. So the expression is converted to text before it is handed over, by `f"{(...)!r}"` around it: inside
//! the language, under its limits, and without a name that a program could replace. No line moves.

use ruff_python_ast::Stmt;
use ruff_python_parser::parse_module;
use ruff_text_size::Ranged;

const BEFORE: &str = "f\"{(";
const AFTER: &str = ")!r}\"";

/// A program whose last expression, if it has one, is converted to text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WrappedProgram {
    pub source: String,
    /// The line and column, counted from 1, after which the columns of that line are shifted.
    from: Option<(u32, u32)>,
}

impl WrappedProgram {
    pub(super) fn of(source: &str) -> Self {
        Self::wrap(source).unwrap_or_else(|| Self { source: source.to_owned(), from: None })
    }

    fn wrap(source: &str) -> Option<Self> {
        let module = parse_module(source).ok()?;
        let Stmt::Expr(last) = module.syntax().body.last()? else { return None };
        let (start, end) = (last.value.range().start().to_usize(), last.value.range().end().to_usize());
        let (before, expression, after) = (source.get(..start)?, source.get(start..end)?, source.get(end..)?);
        let wrapped = format!("{before}{BEFORE}{expression}{AFTER}{after}");
        parse_module(&wrapped).ok()?;
        let line = before.matches('\n').count();
        let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count());
        let from = (u32::try_from(line).ok()? + 1, u32::try_from(column).ok()? + 1);
        Some(Self { source: wrapped, from: Some(from) })
    }

    /// Returns true if the value of the program is the text of its last expression.
    pub(super) fn is_text(&self) -> bool {
        self.from.is_some()
    }

    /// Maps a position of the wrapped program to the position in the program as written.
    pub(super) fn original(&self, line: u32, column: u32) -> (u32, u32) {
        match self.from {
            Some((at, start)) if at == line && column > start => {
                let moved = u32::try_from(BEFORE.len()).unwrap_or(0);
                (line, column.saturating_sub(moved).max(start))
            }
            Some(_) | None => (line, column),
        }
    }
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
    fn columns_of_its_line_are_told_as_they_were_written() {
        let shown = WrappedProgram::of("x = 1\nx = 2; y + z");
        assert_eq!(shown.source, "x = 1\nx = 2; f\"{(y + z)!r}\"");
        assert_eq!(shown.original(2, 12), (2, 8), "y");
        assert_eq!(shown.original(2, 16), (2, 12), "z");
        assert_eq!(shown.original(2, 5), (2, 5), "before it");
        assert_eq!(shown.original(1, 30), (1, 30), "another line");
    }
}
