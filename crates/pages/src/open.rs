//! Turns that are not closed: the texts and calls so far.
//!
//! A feed sends each item as it grows, and the closed turn takes the place of all of them in the end. An item has the id
//! that it will have in the closed turn.

use cantrip_service::cantrip::canon::TurnId;
use cantrip_service::cantrip::loom::{ReplyMark, ThreadSummary};
use cantrip_service::cantrip::reply::AnyCode;
use cantrip_view::{OpenCall, OpenCallState, OpenItem, OpenTurn};
use maud::{Markup, html};
use serde_json::Value;

use crate::call::{ShownAmount, is_nothing, refusal};
use crate::children::children_list;
use crate::fault::{code_link, reply_class};
use crate::fit::short_name;
use crate::frame::PartContext;
use crate::limits::{OPEN_ITEMS_SHOWN_MAX, OPEN_TEXT_BYTES_MAX, OPEN_TURNS_BYTES_MAX};
use crate::turn::turn_heading;
use crate::write::{
    cut_beginning, cut_text, elapsed, leading_break, markdown, one_line, open_mark, plural, prose, reply_mark,
    visible_text, without_terminal_colours,
};

/// How much of an open turn is shown.
#[derive(Debug, Clone, Copy)]
struct OpenAmount {
    text_bytes: usize,
    items: usize,
    calls: ShownAmount,
}

impl OpenAmount {
    /// As a feed sends it.
    const FULL: Self = Self { text_bytes: OPEN_TEXT_BYTES_MAX, items: OPEN_ITEMS_SHOWN_MAX, calls: ShownAmount::BRIEF };
    const LEAST: Self = Self { text_bytes: 2 << 10, items: 4, calls: ShownAmount::LEAST };
}

/// Returns the articles of the open turns of a page. Turns that would take too much of it show less of each item; a feed
/// then brings the rest of what still grows.
pub(crate) fn open_turns(context: &PartContext<'_>, turns: &[OpenTurn]) -> Markup {
    let written = |amount| html! { @for turn in turns { (article(context, turn, amount)) } };
    let whole = written(OpenAmount::FULL);
    if whole.0.len() <= OPEN_TURNS_BYTES_MAX { whole } else { written(OpenAmount::LEAST) }
}

/// Returns the article of a turn that is not closed, also if it has no item yet.
pub fn open_turn(context: &PartContext<'_>, open: &OpenTurn) -> Markup {
    article(context, open, OpenAmount::FULL)
}

fn article(context: &PartContext<'_>, open: &OpenTurn, amount: OpenAmount) -> Markup {
    html! {
        article class="turn" id=(open.turn_id) data-in="thread" data-sequence=(open.sequence) data-open {
            header {
                (turn_heading(open.turn_id, open.sequence))
                span { (open_mark(false, "open")) }
                span { (elapsed(open.since, context.now)) }
            }
            @for item in open.items.iter().skip(open.items.len().saturating_sub(amount.items)) {
                (item_markup(context, open.turn_id, item, amount))
            }
            (children(open.turn_id, &open.children, amount))
        }
    }
}

/// Returns the children of an open turn so far, also if there is none.
pub fn open_children(_context: &PartContext<'_>, turn: TurnId, children_so_far: &[ThreadSummary]) -> Markup {
    children(turn, children_so_far, OpenAmount::FULL)
}

fn children(turn: TurnId, children: &[ThreadSummary], amount: OpenAmount) -> Markup {
    let listed: Vec<&ThreadSummary> = children.iter().collect();
    html! {
        div id={ (turn) ".children" } data-in=(turn) {
            @if let Some(first) = children.first() {
                (children_list(first.run_id, &listed, amount.calls.listed))
            }
        }
    }
}

/// Returns the article that takes an open turn away, because it ended without a record.
pub fn gone_turn(turn: TurnId) -> Markup {
    html! { article id=(turn) data-gone hidden {} }
}

/// Returns one item of an open turn. An unfinished text is one text node, to which the script appends.
pub fn open_item(context: &PartContext<'_>, turn: TurnId, item: &OpenItem) -> Markup {
    item_markup(context, turn, item, OpenAmount::FULL)
}

fn item_markup(context: &PartContext<'_>, turn: TurnId, item: &OpenItem, amount: OpenAmount) -> Markup {
    match item {
        OpenItem::Thinking { n, text, complete: false } => html! {
            div class="think" id={ (turn) "." (n) } data-in=(turn) { div class="live" { (live_text(text, amount)) } }
        },
        OpenItem::Said { n, text, complete: false } => html! {
            div class="said" id={ (turn) "." (n) } data-in=(turn) { div class="live" { (live_text(text, amount)) } }
        },
        OpenItem::Thinking { n, text, complete: true } => html! {
            details class="think" id={ (turn) "." (n) } data-in=(turn) {
                summary { "Thought, " (plural(text.split_whitespace().count() as u64, "word", "words")) }
                (plain(text, amount))
            }
        },
        OpenItem::Said { n, text, complete: true } => html! {
            div class="said" id={ (turn) "." (n) } data-in=(turn) {
                @if cut_text(text, amount.text_bytes, usize::MAX).1 { (plain(text, amount)) }
                @else { (markdown(text)) }
            }
        },
        OpenItem::Call(open) => call(context, turn, open, amount.calls),
    }
}

/// Returns an unfinished text as one text node: of a very long one the end, where it grows.
fn live_text(text: &str, amount: OpenAmount) -> String {
    let (end, is_cut) = cut_beginning(text, amount.text_bytes);
    if is_cut { format!("… {}", prose(end)) } else { prose(end).into_owned() }
}

/// Returns the beginning of a text as it is. All of it comes with the closed turn.
fn plain(text: &str, amount: OpenAmount) -> Markup {
    let (beginning, is_cut) = cut_text(text, amount.text_bytes, usize::MAX);
    html! { p class="plain" { (prose(beginning)) @if is_cut { "…" } } }
}

/// Returns a call of an open turn. One that went wrong is open from the start, as in the closed turn.
fn call(context: &PartContext<'_>, turn: TurnId, open: &OpenCall, amount: ShownAmount) -> Markup {
    let (class, mark, is_wrong) = match &open.state {
        OpenCallState::Written => ("wait", html! { span class="faint" { "being written" } }, false),
        OpenCallState::Running => ("wait", open_mark(false, "running"), false),
        OpenCallState::Waiting(_) => ("wait", open_mark(true, "asks a person"), false),
        OpenCallState::Settled { reply_type, .. } => {
            (reply_class(*reply_type), reply_mark(*reply_type), !reply_type.is_success())
        }
    };
    let is_written = open.state == OpenCallState::Written;
    html! {
        details class={ "call " (class) } id={ (turn) "." (open.n) } data-in=(turn) open[is_wrong] {
            summary {
                span class="gate" { (short_name(&open.gate)) }
                span class=(if is_written { "args faint" } else { "args" }) {
                    (one_line(&open.args, amount.arguments_chars))
                }
                (running_time(context, open))
                (mark)
            }
            (call_body(open, amount))
        }
    }
}

/// Returns how long a call has been running. The time that a settled one took comes with the closed turn.
fn running_time(context: &PartContext<'_>, open: &OpenCall) -> Markup {
    match open.state {
        OpenCallState::Running | OpenCallState::Waiting(_) => html! {
            span class="ms" { (elapsed(open.since, context.now)) }
        },
        OpenCallState::Written | OpenCallState::Settled { .. } => html! {},
    }
}

fn call_body(open: &OpenCall, amount: ShownAmount) -> Markup {
    match &open.state {
        OpenCallState::Settled { text, reply_type, .. } if reply_type.is_success() => html! {
            (arguments(&open.args, amount))
            @if !text.is_empty() { h3 class="label" { "Result" } (output(text, amount)) }
        },
        OpenCallState::Settled { code, text, reply_type } => {
            let mark = ReplyMark { reply_type: *reply_type, code: code.clone() };
            let advice = mark.known().and_then(AnyCode::advice);
            html! {
                p class="advice" { (refusal(text, &mark, amount.output_bytes, advice)) " " (code_link(code)) }
                (arguments(&open.args, amount))
            }
        }
        OpenCallState::Waiting(approval) => html! {
            (arguments(&open.args, amount))
            p { a href={ "/approvals/" (approval) } { "The request" } }
        },
        OpenCallState::Written | OpenCallState::Running => arguments(&open.args, amount),
    }
}

/// Returns the beginning of the result of a call. All of it comes with the closed turn.
fn output(text: &str, amount: ShownAmount) -> Markup {
    let (beginning, is_cut) = cut_text(text, amount.output_bytes, amount.output_lines);
    html! {
        pre tabindex="0" {
            (leading_break(beginning)) (visible_text(&without_terminal_colours(beginning))) @if is_cut { "\n…" }
        }
    }
}

/// Returns the arguments of a call, as far as they were written.
fn arguments(args: &Value, amount: ShownAmount) -> Markup {
    let text = match args {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => format!("{args:#}"),
    };
    html! { @if !is_nothing(args) { h3 class="label" { "Arguments" } (output(&text, amount)) } }
}
