//! Gives the exceptions of a program their arguments as one text.
//!
//! The interpreter makes an exception only from no argument or from one text; anything else is an internal error of it,
//! which hides the error that the program meant to raise. So the arguments of a call of a built-in exception are
//! converted to the text that Python would show for them: `ValueError(1)` gets `'1'`, `ValueError(1, 2)` gets
//! `'(1, 2)'`. What differs from Python is `args`, which has this text.

use monty_types::ExcType;
use ruff_python_ast::visitor::{Visitor, walk_expr};
use ruff_python_ast::{Expr, ExprCall, ModModule};
use ruff_python_parser::Parsed;
use ruff_text_size::Ranged;

use super::last_expression::Insertion;

const BEFORE: &str = "f\"{(";
const AFTER: &str = ")!s}\"";

/// Returns the insertions around the arguments of exceptions that are not one text already.
pub(super) fn insertions(module: &Parsed<ModModule>) -> Vec<Insertion> {
    let mut found = ExceptionCalls::default();
    found.visit_body(&module.syntax().body);
    found.insertions
}

#[derive(Default)]
struct ExceptionCalls {
    insertions: Vec<Insertion>,
}

impl<'a> Visitor<'a> for ExceptionCalls {
    fn visit_expr(&mut self, expr: &'a Expr) {
        if let Expr::Call(call) = expr
            && let Some((start, end)) = arguments_to_convert(call)
        {
            self.insertions.extend([(start, BEFORE), (end, AFTER)]);
        }
        walk_expr(self, expr);
    }
}

/// Returns the bytes between which the arguments of an exception are; `None` if nothing has to be converted.
fn arguments_to_convert(call: &ExprCall) -> Option<(usize, usize)> {
    let Expr::Name(name) = &*call.func else { return None };
    name.id.as_str().parse::<ExcType>().ok()?;
    let arguments = &call.arguments;
    let is_unpacked = arguments.args.iter().any(|argument| matches!(argument, Expr::Starred(_)));
    if !arguments.keywords.is_empty() || is_unpacked {
        return None;
    }
    match &*arguments.args {
        [] | [Expr::StringLiteral(_) | Expr::FString(_) | Expr::Generator(_)] => None,
        [only] => Some((only.range().start().to_usize(), only.range().end().to_usize())),
        [_, ..] => {
            // Between the parentheses of the call, so that parentheses around an argument stay whole.
            let range = arguments.range();
            Some((range.start().to_usize() + 1, range.end().to_usize().checked_sub(1)?))
        }
    }
}
