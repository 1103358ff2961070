//! The inbox: everything that waits for a person, the oldest first, and the page of one request.

use cantrip_service::cantrip::loom::ListPage;
use cantrip_view::{DecideFields, FieldFault, WaitingView};
use maud::{Markup, html};

use crate::act::rule_of;
use crate::fit::{fitting_items, one_row, short_name};
use crate::frame::{self, Chrome, Crumb, PartContext, Place};
use crate::limits::CONTENT_BYTES_MAX;
use crate::proposal::{TypedDecision, proposal, whole_proposal};
use crate::write::{ago, plural, short_id};

/// The length of an intent over a request.
const INTENT_CHARS: usize = 160;

/// Returns the page of everything that waits.
pub fn approvals_page(chrome: &Chrome<'_>, waiting: &ListPage<WaitingView>) -> String {
    let chrome = Chrome {
        title: "Approvals".to_owned(),
        crumbs: vec![Crumb::here("Approvals")],
        place: Some(Place::Approvals),
        command: Some(chrome.part.commands.approvals()),
        ..chrome.clone()
    };
    let content = html! { div class="page" { (approvals_rows(&chrome.part, waiting)) } };
    frame::page(&chrome, html! {}, &[], content)
}

/// Returns the requests: the part `rows`.
pub fn approvals_rows(context: &PartContext<'_>, waiting: &ListPage<WaitingView>) -> Markup {
    let requests = fitting_items(&waiting.items, CONTENT_BYTES_MAX, |one| request(context, one));
    let left_out = waiting.items.len() - requests.len();
    html! {
        div id="rows" data-poll="rows" {
            @if requests.is_empty() {
                p class="empty" {
                    "Nothing waits for you. A call of a gate under "
                    code { "require_approval" } " stands here until somebody decides."
                }
            }
            @for request in &requests { (request) }
            @if left_out > 0 {
                p class="faint" {
                    (plural(left_out as u64, "more request waits", "more requests wait"))
                    ". They are shown when these are decided."
                }
            }
            @if let Some(next) = waiting.next {
                p class="more" { a rel="next" href={ "/approvals?after=" (next) } { "Later requests" } }
            }
        }
    }
}

fn request(context: &PartContext<'_>, waiting: &WaitingView) -> Markup {
    let address = format!("/approvals/{}?run={}", waiting.pending.approval_id, waiting.run.run_id);
    html! { article class="request" { (asker(context, waiting, Some(&address))) (proposal(context, waiting)) } }
}

/// Returns who asks: the spell, the run and its owner. `address` is that of the request, unless its page is shown.
fn asker(context: &PartContext<'_>, waiting: &WaitingView, address: Option<&str>) -> Markup {
    let run = &waiting.run;
    let intent = one_row(run.intent.as_deref(), INTENT_CHARS);
    html! {
        header {
            h2 { a href={ "/runs/" (run.run_id) } { (intent) } }
            p class="sub" {
                @if let Some(spell) = &run.spell { span { "spell " (short_name(spell)) } " " }
                span { (short_id(run.run_id)) } " "
                span { "owner " (short_name(run.owner.as_str())) } " "
                span { "asked " (ago(waiting.asked_at, context.now)) }
                @if let Some(turn) = waiting.proposal.turn { " " a href={ "/turns/" (turn) } { "the turn that asks" } }
                @if let Some(address) = address { " " a href=(address) { "this request" } }
            }
        }
    }
}

/// Returns the page of one request, with what was typed.
pub fn approval_page(
    chrome: &Chrome<'_>,
    waiting: &WaitingView,
    fields: &DecideFields,
    faults: &[FieldFault],
) -> String {
    let (run, approval) = (waiting.run.run_id, waiting.pending.approval_id);
    let chrome = Chrome {
        title: "A request".to_owned(),
        crumbs: vec![Crumb::link("Approvals", "/approvals"), Crumb::id(approval)],
        place: Some(Place::Approvals),
        command: Some(chrome.part.commands.approve(run, approval)),
        ..chrome.clone()
    };
    let rule = rule_of(faults, "reason").or_else(|| rule_of(faults, "decision"));
    let typed = TypedDecision { reason: &fields.reason, rule };
    let content = html! {
        div class="page" {
            article class="request" {
                (asker(&chrome.part, waiting, None))
                (whole_proposal(&chrome.part, waiting, typed))
            }
        }
    };
    frame::page(&chrome, html! {}, &[], content)
}
