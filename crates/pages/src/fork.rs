//! The form that forks a thread at a turn.

use cantrip_service::cantrip::canon::TurnId;
use cantrip_view::command::ForkWords;
use cantrip_view::{FieldFault, ForkFields, RunHead};
use maud::{Markup, html};

use crate::act::{TextField, crumbs, intent, rule_line, rule_of, text_area};
use crate::frame::{self, Chrome, Place, form_fields};
use crate::write::{grouped, prose};

/// The turn at which a thread is forked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForkPlace {
    pub turn: TurnId,
    pub sequence: u64,
}

/// Returns the page of the fork at a turn, with what was typed.
pub fn fork_page(
    chrome: &Chrome<'_>,
    head: &RunHead,
    place: &ForkPlace,
    fields: &ForkFields,
    faults: &[FieldFault],
) -> String {
    let intent_typed = Some(fields.intent.trim()).filter(|intent| !intent.is_empty());
    let words = ForkWords { intent: intent_typed, fresh: fields.environment == "fresh", crystal: None };
    let chrome = Chrome {
        title: format!("Fork at turn {}", grouped(place.sequence)),
        crumbs: crumbs(head, "Fork"),
        place: Some(Place::Runs),
        command: Some(chrome.part.commands.fork_with(place.turn, &words)),
        ..chrome.clone()
    };
    let content = html! {
        form class="sheet form" method="post" action={ "/turns/" (place.turn) "/fork" } {
            (form_fields(chrome.part.forms, "fork"))
            p class="said" { (prose(&intent(head))) }
            p class="dim" {
                "A fork is a new thread that begins after turn "
                a href={ "/turns/" (place.turn) } { (grouped(place.sequence)) }
                ". The turns up to it are kept, and no gate of theirs runs again. "
                "This thread stays as it is. Files on disk stay as they are."
            }
            (text_area(&TextField {
                name: "intent",
                label: "Intent",
                value: &fields.intent,
                hint: "Empty: it goes on under its own intent, where that is possible.",
                numeric: false,
            }, 4, faults))
            (environment(fields, faults))
            div class="row" {
                button class="btn go" disabled[!head.actions.fork] { "Fork" }
                a class="btn" href={ "/turns/" (place.turn) } { "Back" }
            }
            @if !head.actions.fork { p class="wrong" { "This thread cannot be forked by you." } }
        }
    };
    frame::page(&chrome, html! {}, &[], content)
}

fn environment(fields: &ForkFields, faults: &[FieldFault]) -> Markup {
    let is_fresh = fields.environment == "fresh";
    html! {
        fieldset {
            legend { "Variables of its programs" }
            label class="pick" {
                input type="radio" name="environment" value="restored" checked[!is_fresh];
                "Restored, from a snapshot or by running the programs again with the recorded results"
            }
            label class="pick" {
                input type="radio" name="environment" value="fresh" checked[is_fresh];
                "Fresh: earlier variables are gone"
            }
            (rule_line("environment", rule_of(faults, "environment")))
        }
    }
}
