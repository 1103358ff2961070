//! A loom: its threads as a drawing and, with the same numbers, as a nested list, in which two are chosen for a
//! comparison.

use cantrip_service::cantrip::canon::{Money, TurnId};
use cantrip_service::cantrip::loom::{RunState, ThreadSummary};
use cantrip_service::wording::decimal;
use cantrip_view::LoomView;
use maud::{Markup, html};

use crate::draw::{Row, is_child, rows, threads};
use crate::fit::one_row;
use crate::frame::{self, Chrome, Crumb, Place};
use crate::limits::THREADS_DRAWN_MAX;
use crate::write::{grouped, money_of, plural, thread_mark};

/// The length of an intent in the list.
const INTENT_CHARS: usize = 60;
/// The length of the name of a crystal in the list.
const CRYSTAL_CHARS: usize = 40;
/// The deepest indentation of the list.
const DEPTH_MAX: usize = 6;
/// The states of the legend, in the order of the drawing's shapes.
const LEGEND: [RunState; 5] =
    [RunState::Terminated, RunState::Truncated, RunState::Failed, RunState::Running, RunState::Waiting];

/// Returns the page of a loom. `chosen` are the leaves of the threads that are marked.
pub fn loom_page(chrome: &Chrome<'_>, loom: &LoomView, chosen: &[TurnId]) -> String {
    let name = loom.name.clone().unwrap_or_else(|| "Loom".to_owned());
    let chrome = Chrome {
        title: name.clone(),
        heading_note: Some(extent(loom)),
        crumbs: vec![Crumb::link("Looms", "/looms"), Crumb::here(name), Crumb::id(loom.loom_id)],
        place: Some(Place::Looms),
        command: Some(chrome.part.commands.loom_show(loom.loom_id)),
        ..chrome.clone()
    };
    let content = html! { div class="loomwrap" { (content(loom, chosen)) } };
    frame::page(&chrome, html! {}, &[], content)
}

/// Returns the size of a loom in words: `5 threads, 643 turns, 27 children`.
fn extent(loom: &LoomView) -> String {
    let children = loom.threads.iter().filter(|thread| is_child(thread)).count() as u64;
    let lines = loom.entities.saturating_sub(children);
    let mut text = format!("{}, {}", plural(lines, "thread", "threads"), plural(loom.turns, "turn", "turns"));
    if children > 0 {
        text.push_str(&format!(", {}", plural(children, "child", "children")));
    }
    text
}

fn content(loom: &LoomView, chosen: &[TurnId]) -> Markup {
    if loom.threads.is_empty() {
        return html! {
            p class="empty" { "No thread yet. A cast makes one: " a href="/spells" { "choose a spell" } "." }
        };
    }
    let says = |thread: &ThreadSummary| note(loom, thread);
    html! {
        div class="loom" { (threads(&loom.threads, chosen, says, address)) }
        (legend())
        (list(loom, chosen))
        @if let Some(next) = loom.next {
            p class="more" { a rel="next" href={ "/looms/" (loom.loom_id) "?after=" (next) } { "Further threads" } }
        }
    }
}

fn address(thread: &ThreadSummary) -> String {
    format!("/runs/{}?entity={}", thread.run_id, thread.entity_id)
}

/// Returns the line below the name of a thread: `39 turns · 0.0871 USD · forked at 228`.
fn note(loom: &LoomView, thread: &ThreadSummary) -> String {
    let mut parts = vec![plural(thread.turns, "turn", "turns")];
    parts.extend(thread.cost.map(amount));
    if let Some(sequence) = thread.parent_sequence {
        let word = if is_child(thread) { "spawned at" } else { "forked at" };
        parts.push(format!("{word} {}", grouped(sequence)));
    }
    if let Some(more) = loom.behind.get(&thread.entity_id) {
        parts.push(format!("{} behind it", grouped(*more)));
    }
    parts.join(" · ")
}

fn amount(money: Money) -> String {
    format!("{} {}", decimal(money.micros(), 4), money.currency())
}

fn legend() -> Markup {
    html! {
        div class="legend" {
            @for state in LEGEND { span { (thread_mark(state, None)) } }
            span { "○ fork" }
            span { "┬ children" }
            span class="faint right" { "Choose two threads with " kbd { "space" } ", compare with " kbd { "c" } }
        }
    }
}

/// Returns the threads as a nested list with the numbers of the drawing. On a narrow page it stands alone.
fn list(loom: &LoomView, chosen: &[TurnId]) -> Markup {
    let mut all = rows(&loom.threads);
    let left_out = all.len().saturating_sub(THREADS_DRAWN_MAX);
    all.truncate(THREADS_DRAWN_MAX);
    html! {
        form method="get" action="/compare" data-compare {
            div class="wide" {
                table class="totals list stack" {
                    caption { "Threads" }
                    thead {
                        tr {
                            th scope="col" { span class="unseen" { "Chosen" } }
                            th scope="col" { "Intent" }
                            th scope="col" { "State" }
                            th scope="col" { "Crystal" }
                            th scope="col" class="num" { "Turns" }
                            th scope="col" class="num" { "Own money" }
                            th scope="col" class="num" { "With children" }
                            th scope="col" { "Branched off" }
                        }
                    }
                    tbody { @for (row, number) in all.iter().zip(1..) { (list_row(loom, row, number, chosen)) } }
                }
            }
            @if left_out > 0 {
                p class="faint" { (plural(left_out as u64, "more thread is", "more threads are")) " not drawn." }
            }
            div class="row" { button class="btn" { "Compare the two chosen" } }
        }
    }
}

fn list_row(loom: &LoomView, row: &Row<'_>, number: u32, chosen: &[TurnId]) -> Markup {
    let thread = row.thread;
    let intent = one_row(thread.intent.as_deref(), INTENT_CHARS);
    html! {
        tr {
            td {
                // A thread without a turn of its own is compared at the turn that it branched off.
                @let end = thread.leaf.or(thread.fork.map(|fork| fork.turn));
                input type="checkbox" name="of" value=[end] checked[end.is_some_and(|end| chosen.contains(&end))]
                    disabled[end.is_none()] aria-label={ "Choose thread " (number) };
            }
            th scope="row" class=(format!("what in-{}", row.depth.min(DEPTH_MAX))) {
                a href=(address(thread)) { (intent) }
                @if let Some(more) = loom.behind.get(&thread.entity_id) {
                    " " a class="faint" href={ "/looms/" (loom.loom_id) "?of=" (thread.entity_id) } {
                        (grouped(*more)) " more behind it"
                    }
                }
            }
            td { (thread_mark(thread.state, thread.reason)) }
            td { @if let Some(crystal) = &thread.crystal { (one_row(Some(crystal), CRYSTAL_CHARS)) } }
            td class="num" data-label="turns" { (grouped(thread.turns)) }
            td class="num" data-label="own" { (money_of(thread.own_cost)) }
            td class="num" data-label="with children" { (money_of(thread.cost)) }
            td { (branching(thread)) }
        }
    }
}

/// Returns the turn at which a thread branched off.
fn branching(thread: &ThreadSummary) -> Markup {
    let Some(sequence) = thread.parent_sequence else { return html! {} };
    html! {
        @if let Some(fork) = &thread.fork { a href={ "/turns/" (fork.turn) } { "turn " (grouped(sequence)) } }
        @else { "turn " (grouped(sequence)) }
    }
}
