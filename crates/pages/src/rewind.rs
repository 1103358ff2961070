//! The form that goes back to a turn: files are restored, and a fork begins there.

use cantrip_service::ChangeKind;
use cantrip_view::{RewindFile, RewindPlan, RunHead};
use maud::{Markup, html};

use crate::act::{crumbs, intent};
use crate::files::PATH_BYTES_MAX;
use crate::fit::{cut, cut_diff, fitting_items};
use crate::frame::{self, Chrome, Place, form_fields};
use crate::limits::{CONTENT_BYTES_MAX, FILE_BYTES_SHOWN};
use crate::write::{full_stop, grouped, plural, prose};

const NOTHING_TO_RESTORE: &str =
    "No file would be restored: the run changed none after this turn, or they have their former content.";

/// Returns the page that goes back to a turn with this sequence number.
pub fn rewind_page(chrome: &Chrome<'_>, head: &RunHead, plan: &RewindPlan, sequence: u64) -> String {
    let run = head.run.run_id;
    let chrome = Chrome {
        title: format!("Go back to turn {}", grouped(sequence)),
        crumbs: crumbs(head, "Rewind"),
        place: Some(Place::Runs),
        command: Some(chrome.part.commands.run_undo(run, plan.to)),
        ..chrome.clone()
    };
    let restored: Vec<&RewindFile> = plan.files.iter().filter(|file| file.kept.is_none()).collect();
    let kept: Vec<&RewindFile> = plan.files.iter().filter(|file| file.kept.is_some()).collect();
    let content = html! {
        form class="sheet form" method="post" action={ "/turns/" (plan.to) "/rewind" } {
            (form_fields(chrome.part.forms, "rewind"))
            p class="said" { (prose(&intent(head))) }
            p class="dim" {
                "The turns after turn " a href={ "/turns/" (plan.to) } { (grouped(sequence)) }
                " stay in the loom: this thread remains at "
                a href={ "/runs/" (run) } { "its own address" } "."
            }
            (ticks(head, !restored.is_empty()))
            div class="row" {
                button class="btn go" disabled[!head.actions.rewind && !head.actions.fork] { "Go back" }
                a class="btn" href={ "/turns/" (plan.to) } { "Back" }
            }
            @if !head.actions.rewind && !head.actions.fork {
                p class="wrong" { "You may neither restore the files of this run nor fork its thread." }
            }
        }
        (files("Files that would be restored", NOTHING_TO_RESTORE, &restored))
        @if !kept.is_empty() { (files("Files that stay as they are", "", &kept)) }
    };
    frame::page(&chrome, html! {}, &[], html! { div class="page" { (content) } })
}

/// The two parts of going back, each with its tick. Files are restored only for the owner on this machine.
fn ticks(head: &RunHead, has_files: bool) -> Markup {
    html! {
        label class="pick" {
            input type="checkbox" name="files" value="on" checked[head.actions.rewind && has_files]
                disabled[!head.actions.rewind || !has_files];
            "Restore the files below"
        }
        @if !head.actions.rewind {
            p class="faint" { "Files are restored only by the local owner on this machine. The command does it there." }
        }
        label class="pick" {
            input type="checkbox" name="fork" value="on" checked[head.actions.fork] disabled[!head.actions.fork];
            "Fork at this turn under the same intent"
        }
    }
}

fn files(title: &str, empty: &str, files: &[&RewindFile]) -> Markup {
    let sections = fitting_items(files, CONTENT_BYTES_MAX / 2, |file| section(file));
    let left_out = files.len() - sections.len();
    html! {
        section {
            h2 { (title) }
            @if files.is_empty() { p class="empty" { (empty) } }
            @for section in &sections { (section) }
            @if left_out > 0 {
                p class="faint" { (plural(left_out as u64, "more file is", "more files are")) " not shown here." }
            }
        }
    }
}

fn section(file: &RewindFile) -> Markup {
    html! {
        section class="file" {
            h3 {
                code { (cut(&file.path, PATH_BYTES_MAX)) }
                @if file.kept.is_none() { " " span class="faint" { (effect(file.touched)) } }
            }
            @if let Some(kept) = &file.kept {
                p class="changed" {
                    (cut(kept, PATH_BYTES_MAX)) (full_stop(kept))
                    @if file.unified.is_some() { " This difference is not made:" }
                }
            }
            @if let Some(unified) = &file.unified { (cut_diff(unified, FILE_BYTES_SHOWN / 2)) }
            @else { p class="dim" { "No difference can be shown: the bytes are not text, or are not on record." } }
        }
    }
}

/// The words for what restoring does to a file.
const fn effect(touched: ChangeKind) -> &'static str {
    match touched {
        ChangeKind::Created => "is created again",
        ChangeKind::Changed => "gets its former content",
        ChangeKind::Deleted => "is deleted: the run created it",
    }
}
