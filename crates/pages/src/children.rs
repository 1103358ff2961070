//! The children of a call, and the names of threads.

use cantrip_service::cantrip::canon::{Money, RunId};
use cantrip_service::cantrip::loom::{ChildRecord, RunState, ThreadSummary};
use maud::{Markup, html};

use crate::call::ItemPlace;
use crate::fit::short_line;
use crate::write::{money, plural, reply_mark, short_id, shortened, thread_mark};

/// The length of the intent of a child in its line.
const CHILD_INTENT_CHARS: usize = 60;

/// Returns the children of a call, those that went wrong first. The rest is counted and added up.
pub(crate) fn children_list(run: RunId, children: &[&ThreadSummary], most: usize) -> Markup {
    let mut sorted = children.to_vec();
    sorted.sort_by_key(|child| !went_wrong(child.state));
    let (listed, rest) = sorted.split_at(sorted.len().min(most));
    html! {
        @for child in listed { (child_line(child)) }
        @if !rest.is_empty() {
            div class="child" {
                a href={ "/runs/" (run) "/tree" } { (plural(rest.len() as u64, "more child", "more children")) } " "
                @if let Some(cost) = sum(rest.iter().filter_map(|child| child.cost)) {
                    span class="faint" { (money(cost)) }
                }
            }
        }
    }
}

pub(crate) const fn went_wrong(state: RunState) -> bool {
    match state {
        RunState::Truncated | RunState::Failed => true,
        RunState::Queued | RunState::Running | RunState::Waiting | RunState::Terminated => false,
    }
}

/// Returns one child: its intent, its state, its turns and its money with everything below it.
pub(crate) fn child_line(child: &ThreadSummary) -> Markup {
    html! {
        div class="child" {
            a href={ "/runs/" (child.run_id) "?entity=" (child.entity_id) } { (thread_name(child)) } " "
            (thread_mark(child.state, child.reason)) " "
            span class="faint" {
                (plural(child.turns, "turn", "turns"))
                @if let Some(cost) = child.cost { " · " (money(cost)) (with_children(child)) }
            }
        }
    }
}

/// Returns the words that tell the money of a child with everything below it from its own, where these differ.
pub(crate) fn with_children(child: &ThreadSummary) -> &'static str {
    if child.own_cost == child.cost { "" } else { " with children" }
}

/// Returns the name of a thread for people: the beginning of its intent, otherwise of its id.
pub(crate) fn thread_name(thread: &ThreadSummary) -> String {
    match thread.intent.as_deref().filter(|intent| !intent.trim().is_empty()) {
        Some(intent) => short_line(intent, CHILD_INTENT_CHARS),
        None => shortened(&thread.entity_id.to_string(), 18),
    }
}

/// Returns the children that only the record of the call names.
pub(crate) fn child_records(place: ItemPlace, children: &[ChildRecord]) -> Markup {
    let run = place.run;
    let (listed, rest) = children.split_at(children.len().min(place.amount.listed));
    html! {
        @for child in listed {
            div class="child" {
                a href={ "/runs/" (run) "?entity=" (child.entity_id) } { (short_id(child.entity_id)) } " "
                (reply_mark(child.reply.reply_type))
                @if let Some(reason) = child.reason { " " span class="faint" { (reason.as_str()) } }
            }
        }
        @if !rest.is_empty() {
            div class="child" {
                a href={ "/runs/" (run) "/tree" } { (plural(rest.len() as u64, "more child", "more children")) }
            }
        }
    }
}

/// Returns the sum of amounts of one currency; none if there is none, or if they cannot be added.
pub(crate) fn sum(amounts: impl Iterator<Item = Money>) -> Option<Money> {
    let mut total: Option<Money> = None;
    for amount in amounts {
        total = Some(match total {
            Some(before) => before.plus(amount).ok()?,
            None => amount,
        });
    }
    total
}
