//! Rewrites top-level `let`, `const` and `class` to `var`, so that a later program can declare a name again.
//!
//! The engine forbids a second `let` of a name, and a name whose first initialiser threw can never be used again. A
//! regular expression cannot distinguish a declaration from a template or from the head of a loop, so a real parser
//! locates the declarations. Nothing moves to another line. Where text has to be inserted, [`Rewritten::original`] maps
//! a column back to the text that the entity wrote.
//!
//! The parser recurses without a stack check. Therefore it only gets text that the engine's parser, which has such a
//! check, has already compiled, and it runs on a separate stack.

use std::fmt::Write as _;

use oxc_allocator::Allocator;
use oxc_ast::ast::{Program, Statement, VariableDeclarationKind};
use oxc_parser::{Parser, ParserReturn};
use oxc_span::{GetSpan, SourceType};

/// A program as the engine receives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rewritten {
    pub(super) source: String,
    edits: Vec<Edit>,
}

/// A range of the source that was replaced by other text on the same line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Edit {
    start: usize,
    end: usize,
    text: String,
}

/// Rewrites a source that the engine has accepted; returns `None` if this parser cannot read it.
pub(super) fn rewrite(source: &str) -> Option<Rewritten> {
    let allocator = Allocator::default();
    let read = read(&allocator, source)?;
    let mut edits = Vec::new();
    for statement in &read.body {
        edits_of(statement, source, &mut edits);
    }
    let mut text = String::with_capacity(source.len() + 16 * edits.len());
    let mut copied = 0;
    for edit in &edits {
        text.push_str(source.get(copied..edit.start)?);
        text.push_str(&edit.text);
        copied = edit.end;
    }
    text.push_str(source.get(copied..)?);
    Some(Rewritten { source: text, edits })
}

/// Parses the source as a script, as the engine does, or as a module if it has an `await` at top level, which only
/// modules allow.
fn read<'a>(allocator: &'a Allocator, source: &'a str) -> Option<Program<'a>> {
    let script = Parser::new(allocator, source, SourceType::script()).parse();
    if script.diagnostics.is_empty() {
        return Some(script.program);
    }
    let module = Parser::new(allocator, source, SourceType::mjs()).parse();
    // The engine decides what is an error; here only a syntax tree is needed.
    let complete = |read: ParserReturn<'a>| (!read.panicked).then_some(read.program);
    if module.diagnostics.is_empty() { Some(module.program) } else { complete(module).or_else(|| complete(script)) }
}

fn edits_of(statement: &Statement<'_>, source: &str, edits: &mut Vec<Edit>) {
    if let Statement::VariableDeclaration(declaration) = statement {
        let keyword = match declaration.kind {
            VariableDeclarationKind::Let => "let",
            VariableDeclarationKind::Const => "const",
            VariableDeclarationKind::Var | VariableDeclarationKind::Using | VariableDeclarationKind::AwaitUsing => {
                return;
            }
        };
        let start = declaration.span.start as usize;
        let mut var = String::from("var");
        while var.len() < keyword.len() {
            var.push(' ');
        }
        edits.push(Edit { start, end: start + keyword.len(), text: var });
        for declarator in &declaration.declarations {
            if declarator.init.is_none() {
                let end = declarator.span.end as usize;
                edits.push(Edit { start: end, end, text: "=void 0".into() });
            }
        }
    } else if let Statement::ClassDeclaration(class) = statement
        && let Some(name) = &class.id
    {
        let span = class.span();
        let (start, end) = (span.start as usize, span.end as usize);
        let mut text = String::new();
        // The name is copied as written, because it may contain an escape.
        let _ =
            write!(text, "var {}=", source.get(name.span.start as usize..name.span.end as usize).unwrap_or_default());
        edits.push(Edit { start, end: start, text });
        // Without the semicolon, a next line that begins with a bracket would be part of this statement.
        edits.push(Edit { start: end, end, text: ";".into() });
    }
}

impl Rewritten {
    /// Maps a column of the rewritten text to the column in the entity's own text; both count characters from 1.
    pub(super) fn original(&self, line: u32, column: u32) -> u32 {
        let (Some(line_before), Ok(wanted)) = (line.checked_sub(1), usize::try_from(column)) else { return column };
        let mut start = 0;
        for _ in 0..line_before {
            match self.source[start..].find('\n') {
                Some(feed) => start += feed + 1,
                None => return column,
            }
        }
        // Walk through the edits up to the line, then count the characters that were inserted before the column.
        let mut shift = 0_isize; // rewritten minus original, in bytes, before the edit at hand
        let mut inserted = 0_usize;
        for edit in &self.edits {
            let at = edit.start.saturating_add_signed(shift);
            shift += edit.text.len() as isize - (edit.end - edit.start) as isize;
            if at < start {
                continue;
            }
            let Some(before) = self.source.get(start..at) else { break };
            let characters_before = before.chars().count();
            if before.contains('\n') || characters_before + 1 >= wanted {
                break;
            }
            let grown = edit.text.len().saturating_sub(edit.end - edit.start);
            // A column inside inserted text maps to the point of insertion.
            inserted += grown.min(wanted - 1 - characters_before);
        }
        column - u32::try_from(inserted).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::rewrite;

    fn text(source: &str) -> String {
        rewrite(source).expect("readable").source
    }

    #[test]
    fn only_declarations_at_top_level_are_touched() {
        for (source, wanted) in [
            ("let a = 1", "var a = 1"),
            ("const a = 1;", "var   a = 1;"),
            ("let a;", "var a=void 0;"),
            ("let a, b = 2, c", "var a=void 0, b = 2, c=void 0"),
            ("let {a, b: [c]} = d", "var {a, b: [c]} = d"),
            ("class A {}\n(1)", "var A=class A {};\n(1)"),
            ("for (let i = 0; i < 2; i++) { const j = i }", "for (let i = 0; i < 2; i++) { const j = i }"),
            ("{ let a = 1; class B {} }", "{ let a = 1; class B {} }"),
            ("function f() { let a; const b = 1 }", "function f() { let a; const b = 1 }"),
            ("`let a = ${'const b'}`; /let a/.test('x')", "`let a = ${'const b'}`; /let a/.test('x')"),
            ("// let a\nlet a = await f()", "// let a\nvar a = await f()"),
            ("var a = 1; async function f() {}", "var a = 1; async function f() {}"),
            ("let a = 1\nlet b = 2", "var a = 1\nvar b = 2"),
            ("let\na\n= 1", "var\na\n= 1"),
        ] {
            assert_eq!(text(source), wanted, "{source}");
        }
    }

    #[test]
    fn a_column_leads_back_to_what_was_written() {
        let rewritten = rewrite("let é, b; boom()\nclass A {} boom()").expect("readable");
        assert_eq!(rewritten.source, "var é=void 0, b=void 0; boom()\nvar A=class A {}; boom()");
        let column_of = |line: &str| u32::try_from(line.chars().count()).expect("short") + 1;
        assert_eq!(rewritten.original(1, column_of("var é=void 0, b=void 0; ")), column_of("let é, b; "));
        assert_eq!(rewritten.original(2, column_of("var A=class A {}; ")), column_of("class A {} "));
        assert_eq!(rewritten.original(1, 1), 1);
    }
}
