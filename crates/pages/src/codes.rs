//! The page of a reply code: what it means, when it is answered, and what to do.

use cantrip_service::cantrip::reply::AnyCode;
use maud::html;

use crate::fault::advice_sentence;
use crate::frame::{self, Chrome, Crumb};
use crate::write::{markdown, reply_mark, sentence};

/// Returns the page of a registered code.
pub fn code_page(chrome: &Chrome<'_>, code: AnyCode) -> String {
    let row = code.row();
    let chrome = Chrome {
        title: code.as_str().to_owned(),
        heading_note: Some(row.key.replace('_', " ")),
        crumbs: vec![Crumb::here("Codes"), Crumb::id(code)],
        command: Some(chrome.part.commands.code_show(code.as_str())),
        ..chrome.clone()
    };
    let content = html! {
        div class="page" {
            dl class="facts" {
                div { dt { "Type" } dd { (reply_mark(row.reply_type)) } }
                div { dt { "Decided by" } dd { (row.layer.decider()) } }
                div { dt { "About" } dd { (row.area.domain()) } }
            }
            div class="said" { (markdown(&sentence(row.when))) }
            dl class="fine" {
                div { dt { "Message" } dd class="mono" { (row.message) } }
                div { dt { "Meaning" } dd { (sentence(row.reply_type.meaning())) } }
                @if let Some(advice) = row.retry {
                    div { dt { "Advice" } dd { (advice_sentence(advice)) " " (sentence(advice.meaning())) } }
                }
            }
            p { a href={ "/runs?code=" (code.as_str()) } { "Runs that met it" } }
        }
    };
    frame::page(&chrome, html! {}, &[], content)
}
