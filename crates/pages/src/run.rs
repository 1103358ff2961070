//! The page of a run: its head, its thread beside the spine, the answer, what is asked, and the side.
//!
//! Every piece that changes while the run goes on is a part with an id of its own, and it is always there, also empty.

use cantrip_service::cantrip::canon::{RunId, Timestamp};
use cantrip_service::cantrip::loom::{Content, EndedBy, Ending, RunKind, RunState, RunSummary};
use cantrip_view::command::CommandLine;
use cantrip_view::{NowLine, RunHead, ThreadWindow, WaitingView};
use maud::{Markup, html};
use serde_json::{Map, Value};

use crate::fault::{code_link, recorded_error};
use crate::fit::{short_line, short_name};
use crate::frame::{self, Chrome, Crumb, PartContext, Place, Tab, form_fields};
use crate::limits::{
    ANSWER_ROWS_MAX, ANSWER_SHOWN_BYTES, INTENT_HEADING_CHARS, INTENT_SHOWN_BYTES, PROPOSAL_BRIEF_BYTES,
    REQUESTS_BYTES_MAX, REQUESTS_IN_THREAD_MAX,
};
use crate::proposal::brief_proposal;
use crate::side::side_part;
use crate::turn::{content, thread_articles};
use crate::write::{
    address_text, bounded, budget_bar, cut_text, duration, grouped, json, markdown, money, money_of, one_line,
    orphaned_mark, plural, prose, short_id, since, state_mark, tokens, visible_text,
};

/// The length of what a provider said about its fault.
const DETAIL_CHARS: usize = 1_000;

/// The views of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunTab {
    Thread,
    Tree,
    Files,
    Records,
    /// The page of the messages for a turn, which has no tab.
    Sent,
}

/// Returns the tabs of a run.
pub fn run_tabs(run: RunId, here: RunTab, files: u64) -> Vec<Tab> {
    let tab = |tab: RunTab, label: &'static str, path: &str, count: Option<u64>| Tab {
        label,
        address: format!("/runs/{run}{path}"),
        count,
        is_here: tab == here,
    };
    vec![
        tab(RunTab::Thread, "Thread", "", None),
        tab(RunTab::Tree, "Tree", "/tree", None),
        tab(RunTab::Files, "Files", "/files", (files > 0).then_some(files)),
        tab(RunTab::Records, "Records", "/records", None),
    ]
}

/// The views that the page of a run is made of.
#[derive(Debug, Clone, Copy)]
pub struct RunPage<'a> {
    pub head: &'a RunHead,
    pub window: &'a ThreadWindow,
    pub now: &'a [NowLine],
    /// The calls of the run that wait for a person.
    pub waiting: &'a [WaitingView],
}

/// Returns the page of a run.
pub fn run_page(chrome: &Chrome<'_>, page: &RunPage<'_>) -> String {
    let head = page.head;
    let chrome = Chrome { title: title(head), place: Some(Place::Runs), ..chrome.clone() };
    let files = if head.files_counted { head.files } else { 0 };
    let content = html! {
        div class="thread" {
            nav class="spine" id="spine" aria-label="The whole thread" data-part="spine"
                data-src=(spine_address(page)) {}
            div class="turns" {
                a class="about btn" href="#about" { "About this run" }
                (turns_column(&chrome.part, page))
            }
            section class="side" id="about" aria-label="About this run" { (side_part(&chrome.part, head, page.now)) }
        }
    };
    let tabs = run_tabs(head.run.run_id, RunTab::Thread, files);
    frame::page_with_head(&chrome, &head_part(&chrome.part, head), &tabs, &content)
}

/// Returns the part `window`: everything that a page needs to go on from another place or after a gap.
pub fn thread_window(context: &PartContext<'_>, page: &RunPage<'_>) -> Markup {
    html! {
        (turns_column(context, page))
        (head_part(context, page.head))
        (side_part(context, page.head, page.now))
    }
}

fn turns_column(context: &PartContext<'_>, page: &RunPage<'_>) -> Markup {
    let RunPage { head, window, waiting, .. } = page;
    let is_empty = window.window.turns.is_empty() && window.window.damaged.is_empty() && window.open.is_empty();
    html! {
        (earlier(head, window))
        div id="thread" data-cursor=(window.newest) data-over[!head.run.state.is_live()] {
            (thread_articles(context, window))
        }
        // The stylesheet takes it away with the first turn.
        @if is_empty { p class="empty" { "No turn yet. The first one stands here as soon as the crystal answers." } }
        (later(head, window))
        @if window.at_end { (answer_part(context, head)) } @else { section id="answer" {} }
        (asks_part(context, waiting))
    }
}

/// Returns the query that keeps the shown entity, if it is not the root of the run.
fn entity_query(head: &RunHead) -> String {
    let shown = head.shown.as_ref().map(|shown| shown.entity.entity_id);
    match shown.filter(|shown| Some(*shown) != head.run.entity_id) {
        Some(entity) => format!("&entity={entity}"),
        None => String::new(),
    }
}

fn spine_address(page: &RunPage<'_>) -> String {
    let query = entity_query(page.head);
    let address = format!("/runs/{}", page.head.run.run_id);
    if query.is_empty() { address } else { format!("{address}?{}", query.trim_start_matches('&')) }
}

/// Returns the sequence numbers of the first and the last turn that the window shows.
fn span(window: &ThreadWindow) -> Option<(u64, u64)> {
    let turns = window.window.turns.iter().map(|turn| turn.sequence);
    let all = || turns.clone().chain(window.window.damaged.iter().map(|damaged| damaged.sequence));
    all().min().zip(all().max())
}

fn earlier(head: &RunHead, window: &ThreadWindow) -> Markup {
    let first = window.window.first;
    let above = span(window).map(|(shown, _)| shown).filter(|shown| *shown > first);
    html! {
        div id="earlier" class="older" hidden[above.is_none()] {
            @if let Some(shown) = above {
                a rel="prev" href={ "/runs/" (head.run.run_id) "?before=" (shown) (entity_query(head)) } {
                    "Earlier turns, " (grouped(first)) " to " (grouped(shown - 1))
                }
                span class="faint" { (grouped(shown - first)) " above" }
            }
        }
    }
}

fn later(head: &RunHead, window: &ThreadWindow) -> Markup {
    let last = window.window.last;
    let below = span(window).map(|(_, shown)| shown).filter(|shown| *shown < last);
    html! {
        div id="later" class="older" hidden[below.is_none()] {
            @if let Some(shown) = below {
                a rel="next" href={ "/runs/" (head.run.run_id) "?after=" (shown) (entity_query(head)) } {
                    "Later turns, " (grouped(shown + 1)) " to " (grouped(last))
                }
                span class="faint" { (grouped(last - shown)) " below" }
            }
        }
    }
}

/// Returns the requests to a person: the part `asks`. Each is decided where it stands.
pub fn asks_part(context: &PartContext<'_>, waiting: &[WaitingView]) -> Markup {
    let left = waiting.len().saturating_sub(REQUESTS_IN_THREAD_MAX) as u64;
    html! {
        div id="asks" {
            (requests(context, &waiting[..waiting.len().min(REQUESTS_IN_THREAD_MAX)]))
            @if left > 0 { p { a href="/approvals" { (plural(left, "more request", "more requests")) } } }
        }
    }
}

/// Returns requests that fit into a page together. Longer ones show less of each of their texts.
fn requests(context: &PartContext<'_>, waiting: &[WaitingView]) -> Markup {
    let written = |room| html! { @for waiting in waiting { (brief_proposal(context, waiting, room)) } };
    let mut requests = written(PROPOSAL_BRIEF_BYTES);
    for room in [PROPOSAL_BRIEF_BYTES / 4, PROPOSAL_BRIEF_BYTES / 16] {
        if requests.0.len() > REQUESTS_BYTES_MAX {
            requests = written(room);
        }
    }
    requests
}

/// Returns the end of the run: the part `answer`. What an entity said as its answer stands in its turn already.
pub fn answer_part(_context: &PartContext<'_>, head: &RunHead) -> Markup {
    let is_root = entity_query(head).is_empty();
    let outcome = head.cast.as_ref().and_then(|cast| cast.outcome.as_ref()).filter(|_| is_root);
    html! {
        section id="answer" {
            @if let Some(outcome) = outcome {
                @match &outcome.ending {
                    Ending::Terminated { ended_by: EndedBy::Done, result } => {
                        div class="answer" { h2 class="label" { "Answer" } (bounded_answer(result)) }
                    },
                    Ending::Terminated { ended_by: EndedBy::Text, .. } => {},
                    Ending::Truncated { reason, error, summary } => {
                        div class="answer cut" {
                            @let (text, is_cut) = cut_text(summary, ANSWER_SHOWN_BYTES, usize::MAX);
                            h2 class="label" { "Cut off: " (reason.as_str()) }
                            p class="plain" { (prose(text)) @if is_cut { "…" } }
                            @if let Some(error) = error { (recorded_error(error)) }
                        }
                    },
                }
            }
            @if let (RunState::Failed, None, Some(code)) = (head.run.state, outcome, &head.summary.code) {
                div class="answer cut" { h2 class="label" { "Failed" } p { (code_link(code)) } }
            }
        }
    }
}

fn beginning(text: &str) -> &str {
    cut_text(text, ANSWER_SHOWN_BYTES, usize::MAX).0
}

/// Returns an answer, or its beginning as plain text if it would take too much of the page.
fn bounded_answer(value: &Value) -> Markup {
    let whole = answer(value);
    if whole.0.len() <= 2 * ANSWER_SHOWN_BYTES {
        return whole;
    }
    match value {
        Value::String(text) => html! { p class="plain said" { (prose(beginning(text))) "…" } },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            json(value, ANSWER_SHOWN_BYTES)
        }
    }
}

/// Returns an answer: a text as it was said, a typed value as a table.
pub(crate) fn answer(value: &Value) -> Markup {
    match value {
        Value::String(text) => {
            let (shown, is_cut) = cut_text(text, ANSWER_SHOWN_BYTES, usize::MAX);
            html! {
                div class="said" {
                    @if is_cut {
                        p class="plain" { (prose(shown)) "…" }
                        p class="faint" { "All of it is in the last call." }
                    } @else { (markdown(text)) }
                }
            }
        }
        Value::Object(fields) => answer_fields(fields),
        Value::Array(items) => answer_items(value, items),
        Value::Null | Value::Bool(_) | Value::Number(_) => html! { p class="said" { (value.to_string()) } },
    }
}

fn answer_fields(fields: &Map<String, Value>) -> Markup {
    html! {
        table class="totals" {
            tbody {
                @for (name, value) in fields.iter().take(ANSWER_ROWS_MAX) {
                    tr { th scope="row" { (visible_text(name)) } td { (answer_cell(value)) } }
                }
            }
        }
        (rows_left(fields.len()))
    }
}

/// Returns a list as a table if its items are objects, else as a list.
fn answer_items(value: &Value, items: &[Value]) -> Markup {
    let rows: Option<Vec<&Map<String, Value>>> = items.iter().take(ANSWER_ROWS_MAX).map(Value::as_object).collect();
    let columns: Vec<&String> =
        rows.iter().flatten().next().map(|first| first.keys().take(8).collect()).unwrap_or_default();
    if let (Some(rows), false) = (&rows, columns.is_empty()) {
        return html! {
            div class="wide" tabindex="0" role="region" aria-label="Answer" {
                table class="totals" {
                    thead { tr { @for column in &columns { th scope="col" { (visible_text(column)) } } } }
                    tbody {
                        @for row in rows {
                            tr {
                                @for column in &columns {
                                    td { @if let Some(value) = row.get(*column) { (answer_cell(value)) } }
                                }
                            }
                        }
                    }
                }
            }
            (rows_left(items.len()))
        };
    }
    if items.iter().all(|item| !item.is_array() && !item.is_object()) {
        return html! {
            ul class="said" { @for item in items.iter().take(ANSWER_ROWS_MAX) { li { (answer_cell(item)) } } }
            (rows_left(items.len()))
        };
    }
    json(value, ANSWER_SHOWN_BYTES)
}

fn answer_cell(value: &Value) -> Markup {
    html! { (one_line(value, 300)) }
}

fn rows_left(count: usize) -> Markup {
    let left = count.saturating_sub(ANSWER_ROWS_MAX) as u64;
    html! { @if left > 0 { p class="faint" { (plural(left, "more row", "more rows")) " in the last call." } } }
}

fn title(head: &RunHead) -> String {
    let intent = head.summary.intent.as_deref().filter(|intent| !intent.trim().is_empty());
    intent.map_or_else(|| kind_word(head.run.kind).to_owned(), |intent| short_line(intent, 80))
}

const fn kind_word(kind: RunKind) -> &'static str {
    match kind {
        RunKind::Cast => "A cast",
        RunKind::Summon => "A summoned entity",
        RunKind::Predict => "A predict",
        RunKind::Job => "A job",
    }
}

/// Returns the head of a run: the part `head`.
pub fn head_part(context: &PartContext<'_>, head: &RunHead) -> Markup {
    head_with_command(context, head, &context.commands.run_show(head.run.run_id))
}

/// Returns the head of a run on a page that another command shows.
pub(crate) fn head_with_command(context: &PartContext<'_>, head: &RunHead, command: &CommandLine) -> Markup {
    let mut crumbs = vec![Crumb::link("Runs", "/runs")];
    crumbs.extend(head.summary.spell.as_ref().map(|spell| Crumb::link(short_name(spell), spell_address(spell))));
    crumbs.push(Crumb::id(head.run.run_id));
    frame::head(&crumbs, Some(command), &actions(context, head), &heading(head), &below(context, head))
}

fn spell_address(spell: &str) -> String {
    format!("/spells/{}", address_text(spell))
}

/// The formats of an export with their names.
const EXPORTS: [(&str, &str); 5] = [
    ("page", "One page"),
    ("markdown", "Markdown"),
    ("chat", "Chat for training"),
    ("turns", "Turns"),
    ("journal", "Journal"),
];

/// Returns what may be done with the run now.
fn actions(context: &PartContext<'_>, head: &RunHead) -> Markup {
    let (run, may) = (head.run.run_id, head.actions);
    html! {
        details class="menu" {
            summary class="btn" { "Export" }
            ul {
                @for (format, label) in EXPORTS {
                    li { a href={ "/runs/" (run) "/export?as=" (format) } { (label) } }
                }
            }
        }
        @if may.resume {
            form method="post" action={ "/runs/" (run) "/resume" } {
                (form_fields(context.forms, &format!("resume-{run}-{}", head.run.newest)))
                button class="btn go" { "Resume" }
            }
        }
        @if may.go_on { a class="btn" href={ "/runs/" (run) "/continue" } { "Continue" } }
        @if let (true, Some(leaf)) = (may.fork, head.leaf) {
            a class="btn" href={ "/turns/" (leaf) "/fork" } { "Fork" }
        }
        @if may.cancel { a class="btn" href={ "/runs/" (run) "/cancel" } { "Cancel" } }
    }
}

fn heading(head: &RunHead) -> Markup {
    let whole = head.cast.as_ref().map(|cast| cast.intent.text());
    let text = whole.or_else(|| head.summary.intent.clone()).filter(|text| !text.trim().is_empty());
    html! {
        @if let Some(text) = text {
            @let end = text.char_indices().nth(INTENT_HEADING_CHARS).map(|(at, _)| at);
            (prose(text.get(..end.unwrap_or(text.len())).unwrap_or(&text))) @if end.is_some() { "…" }
        } @else { (kind_word(head.run.kind)) }
    }
}

fn below(context: &PartContext<'_>, head: &RunHead) -> Markup {
    html! {
        (whole_intent(head))
        (facts(context, head))
        @if let Some(parked) = &head.parked {
            @if let Some(error) = &parked.error { (recorded_error(error)) }
            @if let Some(detail) = &parked.detail { p class="note" { (bounded(detail, DETAIL_CHARS)) } }
        }
        @if !entity_query(head).is_empty() {
            p class="note" {
                "This is the thread of another entity of the run. "
                a href={ "/runs/" (head.run.run_id) } { "To the root of the run" }
            }
        }
    }
}

/// Returns the images of an intent, and all of its text where the heading has only its beginning.
fn whole_intent(head: &RunHead) -> Markup {
    let Some(cast) = &head.cast else { return html! {} };
    let is_long = cast.intent.text().chars().count() > INTENT_HEADING_CHARS;
    let name = match &cast.intent {
        Content::Parts(_) => "The intent with its images",
        Content::Text(_) if is_long => "The whole intent",
        Content::Text(_) => return html! {},
    };
    html! {
        details class="whole" {
            summary { (name) }
            (content(head.run.run_id, &cast.intent, INTENT_SHOWN_BYTES))
        }
    }
}

fn facts(context: &PartContext<'_>, head: &RunHead) -> Markup {
    let summary = &head.summary;
    let ended = summary.ended_at.unwrap_or(context.now);
    html! {
        dl class="facts" {
            div {
                dt { "State" }
                dd {
                    @if head.orphaned { (orphaned_mark()) }
                    @else { (state_mark(summary.state, summary.reason, summary.waiting_for)) }
                }
            }
            div {
                dt { "Turns" }
                dd {
                    (grouped(summary.turns))
                    @if summary.children > 0 {
                        " "
                        span class="faint" {
                            "+ " (grouped(summary.child_turns)) " in " (plural(summary.children, "child", "children"))
                        }
                    }
                }
            }
            div { dt { "Tokens" } dd { (token_fact(summary)) } }
            div { dt { "Money" } dd { (money_fact(head)) } }
            div { dt { "Time" } dd { (time_fact(summary.created_at, ended)) } }
            @if let Some(crystal) = &summary.crystal { div { dt { "Crystal" } dd { (short_name(crystal)) } } }
            @if let Some(spell) = &summary.spell {
                div { dt { "Spell" } dd { a href=(spell_address(spell)) { (short_name(spell)) } } }
            }
            @if let Some(cantrip) = &head.cantrip_id { div { dt { "Cantrip" } dd { (short_id(cantrip)) } } }
        }
    }
}

fn time_fact(begun: Timestamp, ended: Timestamp) -> Markup {
    html! { span title={ "begun " (begun) } { (duration(since(begun, ended))) } }
}

fn token_fact(summary: &RunSummary) -> Markup {
    let RunSummary { tokens_prompt, tokens_completion, tokens_cached, .. } = summary;
    let share = (u128::from(*tokens_cached) * 100).checked_div(u128::from(*tokens_prompt)).unwrap_or(0);
    html! {
        (tokens(*tokens_prompt)) " in"
        @if share > 0 { " " span class="faint" { "(" (share.to_string()) "% cached)" } }
        ", " (tokens(*tokens_completion)) " out"
    }
}

/// Returns the money of a run: with its children, against its cap, and its own share where that differs.
fn money_fact(head: &RunHead) -> Markup {
    let RunSummary { cost, own_cost, budget, .. } = &head.summary;
    html! {
        (money_of(*cost))
        @if let Some(budget) = budget { " " span class="faint" { "of " (budget) } }
        @if let (Some(own), true) = (own_cost, own_cost != cost) {
            " " span class="faint" { "with children, own " (money(*own)) }
        }
        (budget_bar(*cost, *budget))
        @if !head.has_ledger { " " span class="faint" { "(this store keeps no ledger)" } }
    }
}
