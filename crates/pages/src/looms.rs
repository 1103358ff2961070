//! The list of looms.

use cantrip_service::cantrip::loom::ListPage;
use cantrip_view::LoomLine;
use maud::{Markup, html};

use crate::fit::short_name;
use crate::frame::{self, Chrome, Crumb, Place};
use crate::write::{ago, grouped, short_id};

/// Returns the page that lists looms.
pub fn looms_page(chrome: &Chrome<'_>, looms: &ListPage<LoomLine>) -> String {
    let chrome = Chrome {
        title: "Looms".to_owned(),
        crumbs: vec![Crumb::here("Looms")],
        place: Some(Place::Looms),
        command: Some(chrome.part.commands.loom_list()),
        ..chrome.clone()
    };
    let content = html! { div class="loomwrap" { (list(&chrome, looms)) } };
    frame::page(&chrome, html! {}, &[], content)
}

fn list(chrome: &Chrome<'_>, looms: &ListPage<LoomLine>) -> Markup {
    if looms.items.is_empty() {
        return html! {
            p class="empty" {
                "No loom yet. The first cast of a spell makes one: "
                a href="/spells" { "choose a spell" } "."
            }
        };
    }
    html! {
        div class="wide" {
            table class="totals list" {
                caption class="unseen" { "Looms, each with the threads of one spell" }
                thead {
                    tr {
                        th scope="col" { "Loom" }
                        th scope="col" class="num" { "Entities" }
                        th scope="col" class="num" { "Turns" }
                        th scope="col" class="num" { "Last activity" }
                    }
                }
                tbody { @for loom in &looms.items { (row(chrome, loom)) } }
            }
        }
        @if let Some(next) = looms.next {
            p class="more" { a rel="next" href={ "/looms?after=" (next) } { "More looms" } }
        }
    }
}

fn row(chrome: &Chrome<'_>, loom: &LoomLine) -> Markup {
    html! {
        tr {
            th scope="row" {
                a href={ "/looms/" (loom.loom_id) } {
                    @if let Some(name) = &loom.name { (short_name(name)) } @else { (short_id(loom.loom_id)) }
                }
                @if loom.name.is_some() { " " span class="faint" { (short_id(loom.loom_id)) } }
            }
            td class="num" { (grouped(loom.entities)) }
            td class="num" { (grouped(loom.turns)) }
            td class="num" { @if let Some(at) = loom.last_activity { (ago(at, chrome.part.now)) } @else { "none" } }
        }
    }
}
