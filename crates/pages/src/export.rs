//! A run as one file: without script, with its stylesheet inside and a policy that lets nothing be loaded.
//!
//! It can be attached to an issue and opened from disk, so it has no link to its server, no form and no image.

use cantrip_service::cantrip::canon::{Timestamp, TurnId};
use cantrip_service::cantrip::loom::{DamagedTurn, EndedBy, Ending, FoldView, GateRecord, Settlement, Turn};
use cantrip_service::cantrip::reply::AnyCode;
use cantrip_view::{ProgramItem, RunHead, ThreadWindow, TurnItem, item_text, output_text, turn_items};
use maud::{Markup, html};
use serde_json::Value;

use crate::call::{is_nothing, refusal};
use crate::children::{thread_name, with_children};
use crate::fault::reply_class;
use crate::fit::{cut, short_name};
use crate::limits::{ARGUMENTS_LINE_CHARS, EXPORT_TEXT_BYTES_MAX};
use crate::turn::fold_summary;
use crate::write::{
    duration, full_stop, grouped, leading_break, markdown, money, numbered_lines, one_line, plural, prose, reply_mark,
    shortened, state_mark, thread_mark, time, tokens, truncation_word, without_terminal_colours,
};
use crate::{frame, run};

/// The length of the intent in the title.
const TITLE_CHARS: usize = 80;

/// Returns a run as one file, from the windows of its thread in their order.
pub fn export_page(now: Timestamp, head: &RunHead, windows: &[ThreadWindow]) -> String {
    let summary = &head.summary;
    let intent = whole_intent(head);
    let turns = || windows.iter().flat_map(|window| &window.window.turns);
    let content = html! {
        div class="page export" {
            p class="crumbs" { span class="mono" { (head.run.run_id) } }
            h1 class="intent" { (prose(&intent)) }
            dl class="facts" {
                div { dt { "State" } dd { (state_mark(head.run.state, summary.reason, summary.waiting_for)) } }
                div { dt { "Turns" } dd { (grouped(summary.turns)) (child_turns(head)) } }
                div {
                    dt { "Tokens" }
                    dd { (tokens(summary.tokens_prompt)) " in, " (tokens(summary.tokens_completion)) " out" }
                }
                @if let Some(cost) = summary.cost { div { dt { "Money with children" } dd { (money(cost)) } } }
                @if let Some(own) = summary.own_cost { div { dt { "Own money" } dd { (money(own)) } } }
                @if let Some(crystal) = &summary.crystal { div { dt { "Crystal" } dd { (short_name(crystal)) } } }
                div { dt { "Begun" } dd { (time(summary.created_at)) } }
                div { dt { "Exported" } dd { (time(now)) } }
            }
            @for window in windows { (thread(window)) }
            @if turns().next().is_none() { p class="empty" { "No turn was closed yet." } }
            (answer(head))
        }
    };
    let title = format!("{} · Cantrip", shortened(&intent, TITLE_CHARS));
    frame::standing_alone(&title, &content)
}

fn whole_intent(head: &RunHead) -> String {
    let of_summary = || head.summary.intent.clone().unwrap_or_else(|| "A run without an intent".to_owned());
    head.cast.as_ref().map_or_else(of_summary, |cast| cast.intent.text())
}

fn child_turns(head: &RunHead) -> Markup {
    let summary = &head.summary;
    html! {
        @if summary.children > 0 {
            " "
            span class="faint" {
                "+ " (grouped(summary.child_turns)) " in " (plural(summary.children, "child", "children"))
            }
        }
    }
}

fn thread(window: &ThreadWindow) -> Markup {
    let part = &window.window;
    let after = |sequence: u64| part.turns.iter().find(|turn| turn.sequence > sequence).map(|turn| turn.id);
    html! {
        @for turn in &part.turns {
            @for damaged in part.damaged.iter().filter(|damaged| after(damaged.sequence) == Some(turn.id)) {
                (damaged_turn(damaged))
            }
            (article(window, turn))
            @for fold in part.folds.iter().filter(|fold| fold.fold.after == turn.id) { (fold_line(fold)) }
        }
        @for damaged in part.damaged.iter().filter(|damaged| after(damaged.sequence).is_none()) {
            (damaged_turn(damaged))
        }
    }
}

/// Returns the place of a turn that cannot be read.
fn damaged_turn(damaged: &DamagedTurn) -> Markup {
    let message = &damaged.error.message;
    html! {
        article class="turn" id=(damaged.turn_id) {
            header { (heading(damaged.turn_id, damaged.sequence)) }
            p class="wrong" { "This turn could not be read: " (text(message)) (full_stop(message)) }
        }
    }
}

fn heading(turn: TurnId, sequence: u64) -> Markup {
    html! { h2 { a class="n" href={ "#" (turn) } { span class="unseen" { "Turn " } (grouped(sequence)) } } }
}

fn fold_line(fold: &FoldView) -> Markup {
    html! {
        details class="fold" { summary { (fold_summary(&fold.fold)) } p class="plain" { (text(&fold.text)) } }
    }
}

fn article(window: &ThreadWindow, turn: &Turn) -> Markup {
    let meta = &turn.metadata;
    let redacted = window.redacted.get(&turn.id).copied().unwrap_or(0);
    let items = turn_items(turn);
    let last_said = items.iter().rposition(|item| matches!(item, TurnItem::Said(_)));
    let answer_at = last_said.filter(|_| turn.ended_by() == Some(EndedBy::Text));
    html! {
        article class="turn" id=(turn.id) {
            header {
                (heading(turn.id, turn.sequence))
                @if let Some(model) = &meta.model { span { (short_name(model)) } }
                span { (duration(meta.duration_ms)) }
                span { (tokens(meta.tokens_prompt)) " in · " (tokens(meta.tokens_completion)) " out" }
                @if turn.continuation_of.is_some() { span { "after children" } }
                @if let Some(cost) = meta.cost { span class="cost" { (money(cost)) } }
            }
            @for (n, item) in items.iter().enumerate() { (item_markup(window, item, answer_at == Some(n))) }
            @if let Some((reason, error)) = turn.truncation() {
                p class="note" {
                    (truncation_word(Some(reason)))
                    @if let Some(error) = error {
                        ": " (text(&error.message)) " " span class="code-id" { (short_name(&error.mark.code)) }
                    }
                }
            }
            @if redacted > 0 {
                p class="note" { (plural(redacted, "secret was", "secrets were")) " taken out of this turn." }
            }
        }
    }
}

fn text(of: &str) -> Markup {
    cut(of, EXPORT_TEXT_BYTES_MAX)
}

/// Returns one item of a turn. `is_answer` is true for what was said as the answer of its cast.
fn item_markup(window: &ThreadWindow, item: &TurnItem<'_>, is_answer: bool) -> Markup {
    match item {
        TurnItem::Thinking(thought) => html! {
            details class="think" { summary { "Thought" } p class="plain" { (text(thought)) } }
        },
        TurnItem::Said(said) if is_answer => html! {
            div class="said answer" { p class="label" { "Answer" } (markdown(said)) }
        },
        TurnItem::Said(said) => html! { div class="said" { (markdown(said)) } },
        TurnItem::Program(program) => program_markup(program),
        TurnItem::Asked(call) => html! {
            div class="call" {
                div class="line" {
                    span class="gate" { (short_name(&call.gate)) }
                    span class="args" { (one_line(&call.args, ARGUMENTS_LINE_CHARS)) }
                    span class="faint" { "not run" }
                }
            }
        },
        TurnItem::Call(record) => html! { (call(record)) (children_of(window, record)) },
    }
}

fn program_markup(program: &ProgramItem<'_>) -> Markup {
    let output = program.output.map(output_text).filter(|output| !output.is_empty());
    html! {
        @if let Some(code) = program.code {
            div class="code" {
                div class="bar" { span { (short_name(program.medium.unwrap_or("program"))) } }
                pre tabindex="0" { (numbered_lines(program.medium.unwrap_or_default(), code)) }
            }
        }
        @if let Some(output) = output {
            div class="out" {
                pre tabindex="0" { (leading_break(&output)) (text(&without_terminal_colours(&output))) }
            }
        }
    }
}

fn call(record: &GateRecord) -> Markup {
    let line = html! {
        span class="gate" { (short_name(&record.gate)) }
        span class="args" { (one_line(&record.args, ARGUMENTS_LINE_CHARS)) }
    };
    match &record.settlement {
        Settlement::Delegated => html! {
            div class="calls" { div class="call" { div class="line" { (line) span class="faint" { "delegated" } } } }
        },
        Settlement::Settled(settled) => {
            let mark = &settled.reply;
            let advice = mark.known().and_then(AnyCode::advice);
            let result = item_text(&TurnItem::Call(record));
            html! {
                div class="calls" {
                    details class={ "call " (reply_class(mark.reply_type)) } open[!mark.is_success()] {
                        summary {
                            (line) span class="ms" { (duration(settled.duration_ms)) } (reply_mark(mark.reply_type))
                        }
                        @if !mark.is_success() {
                            p class="advice" {
                                (refusal(&result, mark, EXPORT_TEXT_BYTES_MAX, advice)) " "
                                span class="code-id" { (short_name(&mark.code)) }
                            }
                        }
                        @if !is_nothing(&record.args) {
                            h3 class="label" { "Arguments" }
                            pre tabindex="0" { (text(&format!("{:#}", record.args))) }
                        }
                        @if mark.is_success() {
                            h3 class="label" { "Result" }
                            pre tabindex="0" { (leading_break(&result)) (text(&result)) }
                        }
                    }
                }
            }
        }
    }
}

/// Returns the children of a call. Their threads are not part of the file.
fn children_of(window: &ThreadWindow, record: &GateRecord) -> Markup {
    let branches = window.window.branches.iter();
    html! {
        @for child in branches.filter(|branch| branch.call_id == Some(record.call_id)) {
            div class="child" {
                span { (thread_name(child)) } " " (thread_mark(child.state, child.reason)) " "
                span class="faint" {
                    (plural(child.turns, "turn", "turns"))
                    @if let Some(cost) = child.cost { " · " (money(cost)) (with_children(child)) }
                }
            }
        }
    }
}

/// Returns the answer of the run, once, at the end. An answer that the entity said stands in its turn already.
fn answer(head: &RunHead) -> Markup {
    let outcome = head.cast.as_ref().and_then(|cast| cast.outcome.as_ref());
    let Some(outcome) = outcome else { return html! {} };
    match &outcome.ending {
        Ending::Terminated { ended_by: EndedBy::Text, .. } => html! {},
        Ending::Terminated { ended_by: EndedBy::Done, result } => html! {
            section class="answer" {
                h2 class="label" { "Answer" }
                @match result {
                    Value::String(said) => { div class="said" { (markdown(said)) } },
                    Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                        (run::answer(result))
                    },
                }
            }
        },
        Ending::Truncated { reason, .. } => html! { p class="note" { (truncation_word(Some(*reason))) } },
    }
}
