//! The files that a run changed, as differences from what it found to what it left.

use cantrip_service::{ChangeKind, FileDiff};
use cantrip_view::{FilesView, RunHead};
use maud::{Markup, html};

use crate::fault::recorded_error;
use crate::fit::{cut, cut_diff, fitting_items};
use crate::frame::Chrome;
use crate::limits::{CONTENT_BYTES_MAX, FILE_BYTES_SHOWN};
use crate::run::RunTab;
use crate::tree::run_view;
use crate::write::{bytes, plural};

/// The markup of the path of a file.
pub(crate) const PATH_BYTES_MAX: usize = 1 << 10;
/// The markup of the paths with an unknown outcome.
const UNKNOWN_BYTES_MAX: usize = 8 << 10;

/// Returns the page of the files that a run changed.
pub fn files_page(chrome: &Chrome<'_>, head: &RunHead, files: &FilesView) -> String {
    let command = chrome.part.commands.run_diff(head.run.run_id);
    run_view(chrome, head, RunTab::Files, "Files", &command, &content(head, files))
}

fn content(head: &RunHead, view: &FilesView) -> Markup {
    let files = fitting_items(&view.files, CONTENT_BYTES_MAX, |file| section(head, view, file));
    let left_out = view.files.len() - files.len();
    html! {
        @if let Some(fault) = &view.fault { (recorded_error(fault)) }
        @else if view.files.is_empty() {
            p class="empty" {
                "No file was changed. The files that gates such as " code { "write" } " and " code { "edit" }
                " change stand here, each with its difference."
            }
        }
        @for file in &files { (file) }
        (unknown(&view.unknown))
        @if left_out > 0 {
            p class="faint" { (plural(left_out as u64, "more file is", "more files are")) " not shown here." }
        }
    }
}

/// Names the files of calls whose outcome is unknown.
fn unknown(paths: &[String]) -> Markup {
    let items = fitting_items(paths, UNKNOWN_BYTES_MAX, |path| html! { li { (cut(path, PATH_BYTES_MAX)) } });
    html! {
        @if !paths.is_empty() {
            p class="dim" { "A call that was cut off may have changed these files. Its outcome is unknown." }
            ul class="argv" { @for item in &items { (item) } }
        }
    }
}

fn section(head: &RunHead, view: &FilesView, file: &FileDiff) -> Markup {
    let undo_to = view.undo_to.get(&file.path).filter(|_| head.actions.rewind);
    html! {
        section class="file" {
            h2 { code { (cut(&file.path, PATH_BYTES_MAX)) } " " span class="faint" { (kind(file.touched)) (sizes(file)) } }
            @if file.others_between {
                p class="dim" { "Something else changed the file during the run. That change is in the difference too." }
            }
            @if let Some(unified) = &file.unified { (cut_diff(unified, FILE_BYTES_SHOWN)) }
            @else { p class="dim" { "No difference can be shown: the bytes are not text, or are not on record." } }
            @if let Some(turn) = undo_to { p { a href={ "/turns/" (turn) "/rewind" } { "Undo this far" } } }
        }
    }
}

/// The word for a change.
const fn kind(touched: ChangeKind) -> &'static str {
    match touched {
        ChangeKind::Created => "created",
        ChangeKind::Changed => "changed",
        ChangeKind::Deleted => "deleted",
    }
}

fn sizes(file: &FileDiff) -> String {
    let (before, after) = file.sizes();
    match (file.touched, before, after) {
        (ChangeKind::Created, _, Some(after)) => format!(", {}", bytes(after)),
        (ChangeKind::Deleted, Some(before), _) => format!(", {}", bytes(before)),
        (ChangeKind::Changed, Some(before), Some(after)) => format!(", {} to {}", bytes(before), bytes(after)),
        (ChangeKind::Created | ChangeKind::Changed | ChangeKind::Deleted, _, _) => String::new(),
    }
}
