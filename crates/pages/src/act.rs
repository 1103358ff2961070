//! The pages that ask before something is done to a run, and the fields that all forms share.

use cantrip_service::cantrip::loom::ThreadSummary;
use cantrip_view::{ContinueFields, FieldFault, RunHead};
use maud::{Markup, html};

use crate::children::thread_name;
use crate::fit::{cut, one_row};
use crate::frame::{self, Chrome, Crumb, Place, form_fields};
use crate::limits::{FIELD_CHARS_MAX, MESSAGE_BYTES_SHOWN, SIDE_LINES_MAX};
use crate::write::{money, orphaned_mark, plural, prose, state_mark, thread_mark};

/// The length of an intent in a heading or a row.
const INTENT_CHARS: usize = 120;

/// Returns the page that asks once before a run is cancelled.
pub fn cancel_page(chrome: &Chrome<'_>, head: &RunHead) -> String {
    let run = head.run.run_id;
    let chrome = Chrome {
        title: "Cancel this run?".to_owned(),
        crumbs: crumbs(head, "Cancel"),
        place: Some(Place::Runs),
        command: Some(chrome.part.commands.run_cancel(run)),
        ..chrome.clone()
    };
    let live: Vec<&ThreadSummary> = head.threads.iter().skip(1).filter(|thread| thread.state.is_live()).collect();
    let content = html! {
        form class="sheet form" method="post" action={ "/runs/" (run) "/cancel" } {
            (form_fields(chrome.part.forms, "cancel"))
            p class="said" { (prose(&intent(head))) }
            p { (state(head)) }
            (live_children(&live))
            @if !head.pending.is_empty() {
                p {
                    (plural(head.pending.len() as u64, "call waits", "calls wait"))
                    " for a person. No decision is needed then."
                }
            }
            @if let Some(cost) = head.summary.cost { p { (money(cost)) " was spent so far. It stays spent." } }
            p class="dim" {
                "A gate that is running is stopped. Money that is held for it is booked or released by what it did. "
                "The turns so far stay, and the run can be continued later."
            }
            div class="row" {
                button class="btn go" disabled[!head.actions.cancel] { "Cancel the run" }
                a class="btn" href={ "/runs/" (run) } { "Back" }
            }
            @if !head.actions.cancel {
                p class="wrong" { "This run cannot be cancelled: it is over, or it is not yours." }
            }
        }
    };
    frame::page(&chrome, html! {}, &[], content)
}

fn live_children(live: &[&ThreadSummary]) -> Markup {
    html! {
        @if live.is_empty() { p { "No child is running." } }
        @else {
            p { (plural(live.len() as u64, "child is", "children are")) " cancelled with it:" }
            ul class="links" {
                @for child in live.iter().take(SIDE_LINES_MAX) {
                    li {
                        a href={ "/runs/" (child.run_id) "?entity=" (child.entity_id) } {
                            (thread_name(child))
                        }
                        " " (thread_mark(child.state, child.reason))
                    }
                }
                @if live.len() > SIDE_LINES_MAX {
                    li class="faint" { (plural((live.len() - SIDE_LINES_MAX) as u64, "more child", "more children")) }
                }
            }
        }
    }
}

/// Returns the page on which a run that was cut off is given more turns or money.
pub fn continue_page(chrome: &Chrome<'_>, head: &RunHead, fields: &ContinueFields, faults: &[FieldFault]) -> String {
    let run = head.run.run_id;
    let chrome = Chrome {
        title: "Continue this run".to_owned(),
        crumbs: crumbs(head, "Continue"),
        place: Some(Place::Runs),
        command: Some(chrome.part.commands.run_continue_with(
            run,
            fields.turns.trim().parse().ok(),
            fields.budget.trim().parse().ok(),
        )),
        ..chrome.clone()
    };
    let content = html! {
        form class="sheet form" method="post" action={ "/runs/" (run) "/continue" } {
            (form_fields(chrome.part.forms, "continue"))
            p class="said" { (prose(&intent(head))) }
            p { (state(head)) }
            (text_field(&TextField {
                name: "turns",
                label: "Further turns",
                value: &fields.turns,
                hint: "Empty: as many as the spell allows.",
                numeric: true,
            }, faults))
            (text_field(&TextField {
                name: "budget",
                label: "Further budget",
                value: &fields.budget,
                hint: "For example 0.50 USD. Empty: as much as the spell allows.",
                numeric: false,
            }, faults))
            div class="row" {
                button class="btn go" disabled[!head.actions.go_on] { "Continue the run" }
                a class="btn" href={ "/runs/" (run) } { "Back" }
            }
            @if !head.actions.go_on { p class="wrong" { "Only a run that was cut off can be continued." } }
        }
    };
    frame::page(&chrome, html! {}, &[], content)
}

/// Returns the path to a page about a run.
pub(crate) fn crumbs(head: &RunHead, here: &str) -> Vec<Crumb> {
    let run = head.run.run_id;
    vec![Crumb::link("Runs", "/runs"), Crumb::id_link(run, format!("/runs/{run}")), Crumb::here(here)]
}

/// Returns the state of a run. A run whose process is gone is orphaned, whatever its records say.
fn state(head: &RunHead) -> Markup {
    if head.orphaned {
        return orphaned_mark();
    }
    state_mark(head.run.state, head.summary.reason, head.summary.waiting_for)
}

/// Returns the beginning of a run's intent.
pub(crate) fn intent(head: &RunHead) -> String {
    one_row(head.summary.intent.as_deref(), INTENT_CHARS)
}

/// A field of one line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextField<'a> {
    pub(crate) name: &'static str,
    pub(crate) label: &'static str,
    pub(crate) value: &'a str,
    pub(crate) hint: &'static str,
    pub(crate) numeric: bool,
}

pub(crate) fn text_field(field: &TextField<'_>, faults: &[FieldFault]) -> Markup {
    let rule = rule_of(faults, field.name);
    let value: String = field.value.chars().take(FIELD_CHARS_MAX).collect();
    html! {
        div class="field" {
            label for=(field.name) { (field.label) }
            input id=(field.name) name=(field.name) value=(value) maxlength=(FIELD_CHARS_MAX) autocomplete="off"
                inputmode=[field.numeric.then_some("numeric")] aria-invalid=[rule.map(|_| "true")]
                aria-describedby=(described_by(field.name, rule));
            p class="faint" id={ (field.name) "-hint" } { (field.hint) }
            (rule_line(field.name, rule))
        }
    }
}

/// Returns a field of several lines. A text area swallows a line break at its beginning, so one is put before the text.
pub(crate) fn text_area(field: &TextField<'_>, rows: u32, faults: &[FieldFault]) -> Markup {
    let rule = rule_of(faults, field.name);
    html! {
        div class="field" {
            label for=(field.name) { (field.label) }
            textarea id=(field.name) name=(field.name) rows=(rows) aria-invalid=[rule.map(|_| "true")]
                aria-describedby=(described_by(field.name, rule)) { "\n" (field.value) }
            p class="faint" id={ (field.name) "-hint" } { (field.hint) }
            (rule_line(field.name, rule))
        }
    }
}

fn described_by(name: &str, rule: Option<&str>) -> String {
    if rule.is_some() { format!("{name}-hint {name}-rule") } else { format!("{name}-hint") }
}

/// Returns the rule that a field breaks.
pub(crate) fn rule_of<'a>(faults: &'a [FieldFault], field: &str) -> Option<&'a str> {
    faults.iter().find(|fault| fault.field == field).map(|fault| fault.rule.as_str())
}

pub(crate) fn rule_line(name: &str, rule: Option<&str>) -> Markup {
    html! { @if let Some(rule) = rule { p class="wrong" id={ (name) "-rule" } { (cut(rule, MESSAGE_BYTES_SHOWN)) } } }
}
