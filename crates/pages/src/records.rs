//! The journal of a run: its records as they are stored, a page at a time.

use cantrip_service::cantrip::loom::ListPage;
use cantrip_view::{RecordLine, RunHead};
use maud::{Markup, html};

use crate::fit::{cut, short_line, short_name};
use crate::frame::Chrome;
use crate::limits::{CONTENT_BYTES_MAX, RECORD_BYTES_SHOWN};
use crate::run::RunTab;
use crate::tree::run_view;
use crate::write::{grouped, time};

/// The length of the beginning of a payload in its row.
const SUMMARY_CHARS: usize = 80;

/// Returns the page of a part of a run's journal.
pub fn records_page(chrome: &Chrome<'_>, head: &RunHead, records: &ListPage<RecordLine>) -> String {
    let command = chrome.part.commands.run_records(head.run.run_id);
    run_view(chrome, head, RunTab::Records, "Records", &command, &content(head, records))
}

fn content(head: &RunHead, records: &ListPage<RecordLine>) -> Markup {
    if records.items.is_empty() {
        return html! { p class="empty" { "No record here. A run writes its first one when it begins." } };
    }
    let (rows, next) = rows(records);
    html! {
        div class="wide" {
            table class="totals list" {
                caption { "Records in the order in which they were written" }
                thead {
                    tr {
                        th scope="col" class="num" { "Number" }
                        th scope="col" { "Kind" }
                        th scope="col" { "Time" }
                        th scope="col" { "Payload" }
                    }
                }
                tbody { @for row in &rows { (row) } }
            }
        }
        @if let Some(next) = next {
            p class="more" { a rel="next" href={ "/runs/" (head.run.run_id) "/records?after=" (next) } { "Later records" } }
        }
    }
}

/// Returns the rows that fit on a page, and the position at which the next page begins.
fn rows(records: &ListPage<RecordLine>) -> (Vec<Markup>, Option<u64>) {
    let (mut rows, mut size, mut last) = (Vec::new(), 0, None);
    for record in &records.items {
        let markup = row(record);
        size += markup.0.len();
        if size > CONTENT_BYTES_MAX && !rows.is_empty() {
            return (rows, last);
        }
        last = Some(record.seq);
        rows.push(markup);
    }
    (rows, records.next)
}

fn row(record: &RecordLine) -> Markup {
    html! {
        tr id={ "record-" (record.seq) } {
            td class="num" { (grouped(record.seq)) }
            th scope="row" class="mono" { (short_name(&record.kind)) }
            td { (time(record.at)) }
            td {
                details {
                    summary class="mono" { (short_line(&record.payload.to_string(), SUMMARY_CHARS)) }
                    p class="faint mono" { (short_name(&record.hash)) }
                    pre class="plain" tabindex="0" { (cut(&format!("{:#}", record.payload), RECORD_BYTES_SHOWN)) }
                }
            }
        }
    }
}
