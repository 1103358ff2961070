//! Two threads beside each other: what they share, why they part, and the turns after that.
//!
//! Turns are aligned by the calls that they make. Of turns at the same place, the words of what was said and the lines
//! of programs and results that differ are marked. Equal turns fold away.

use cantrip_service::cantrip::loom::{GateRecord, Settlement, Turn};
use cantrip_view::{CompareRow, CompareSide, CompareView, PartingReason, TurnItem, item_text, output_text, turn_items};
use maud::{Markup, html};
use similar::{ChangeTag, TextDiff};

use crate::fault::reply_class;
use crate::fit::{fitting, fitting_items, one_row, rest, short_name};
use crate::frame::{self, Chrome, Crumb, Place};
use crate::limits::{ARGUMENTS_LINE_CHARS, COMPARE_TEXT_BYTES_MAX, CONTENT_BYTES_MAX};
use crate::write::{
    duration, grouped, money_of, one_line, plural, reply_mark, short_id, state_mark, tokens, visible_text,
};

/// The length of an intent over a side, and of an answer in the table.
const TITLE_CHARS: usize = 160;
/// The part of the page that one turn of one side takes at most.
const SIDE_BYTES_MAX: usize = 3 * COMPARE_TEXT_BYTES_MAX;
/// The markup of the results of one call or program.
const RESULT_BYTES_MAX: usize = COMPARE_TEXT_BYTES_MAX / 4;

/// Returns the page of two threads.
pub fn compare_page(chrome: &Chrome<'_>, view: &CompareView) -> String {
    let chrome = Chrome {
        title: "Two threads".to_owned(),
        heading_note: None,
        crumbs: vec![
            Crumb::link("Looms", "/looms"),
            Crumb::id_link(view.a.run.loom_id, format!("/looms/{}", view.a.run.loom_id)),
            Crumb::here("Compare"),
        ],
        place: Some(Place::Looms),
        command: Some(chrome.part.commands.compare(view.a.leaf, view.b.leaf)),
        ..chrome.clone()
    };
    let content = html! { div class="loomwrap" { (comparison(view)) (totals(view)) } };
    frame::page(&chrome, html! {}, &[], content)
}

fn comparison(view: &CompareView) -> Markup {
    let groups = groups(&view.rows);
    let rows = fitting_items(&groups, CONTENT_BYTES_MAX, group);
    let drawn: usize = groups.iter().take(rows.len()).map(|group| group.len()).sum();
    let left_out = (view.rows.len() - drawn) as u64 + view.left_out;
    html! {
        div class="cmp" {
            (shared(view))
            (side_head(&view.a))
            (side_head(&view.b))
            @for row in &rows { (row) }
            @if left_out > 0 {
                p class="same faint" { (plural(left_out, "further turn is", "further turns are")) " not shown here." }
            }
        }
    }
}

/// Returns what both threads share, in one line, and why they part.
fn shared(view: &CompareView) -> Markup {
    html! {
        div class="same" {
            span {
                @if let Some(last) = view.shared_up_to {
                    (plural(view.shared, "turn is shared", "turns are shared")) ", up to "
                    a href={ "/turns/" (last) } { (short_id(last)) }
                } @else { "No turn is shared" }
            }
            span class="faint" {
                @if view.rows.is_empty() { "they are the same thread" }
                @else if !view.parts.is_empty() { "then they part: " (reasons(&view.parts)) }
            }
        }
    }
}

fn reasons(parts: &[PartingReason]) -> String {
    let words: Vec<&str> = parts
        .iter()
        .map(|part| match part {
            PartingReason::Intent => "another intent",
            PartingReason::Crystal => "another crystal",
            PartingReason::Environment => "another environment",
            PartingReason::CrystalAnswer => "another answer of the crystal",
            PartingReason::NothingShared => "nothing in common",
        })
        .collect();
    words.join(", ")
}

fn title(side: &CompareSide) -> String {
    one_row(side.run.intent.as_deref(), TITLE_CHARS)
}

fn side_head(side: &CompareSide) -> Markup {
    let run = &side.run;
    html! {
        section {
            h2 { a href={ "/runs/" (run.run_id) "?at=" (side.leaf) } { (title(side)) } }
            div class="sub" {
                (state_mark(run.state, run.reason, run.waiting_for))
                span { (plural(side.turns, "turn", "turns")) " after the fork" }
                span { (money_of(side.cost)) }
            }
        }
    }
}

/// Returns the rows in groups: equal ones that follow each other together, each other row alone.
fn groups(rows: &[CompareRow]) -> Vec<&[CompareRow]> {
    rows.chunk_by(|a, b| a.equal && b.equal).collect()
}

fn group(rows: &&[CompareRow]) -> Markup {
    match rows {
        [row] if !row.equal => pair(row.a.as_ref(), row.b.as_ref()),
        _ => equal(rows),
    }
}

/// Returns equal turns as one line that opens to links.
fn equal(rows: &[CompareRow]) -> Markup {
    let turns = || rows.iter().filter_map(|row| row.a.as_ref().or(row.b.as_ref())).take(EQUAL_LINKS_MAX);
    html! {
        details class="same" {
            summary { (plural(rows.len() as u64, "equal turn", "equal turns")) }
            ul class="links" {
                @for turn in turns() { li { a href={ "/turns/" (turn.id) } { "turn " (grouped(turn.sequence)) } } }
            }
        }
    }
}

/// The number of equal turns that a group links to.
const EQUAL_LINKS_MAX: usize = 100;

fn pair(a: Option<&Turn>, b: Option<&Turn>) -> Markup {
    let (left, right) = parts(a, b);
    html! { (cell(a, left)) (cell(b, right)) }
}

fn cell(turn: Option<&Turn>, parts: Vec<Markup>) -> Markup {
    let Some(turn) = turn else { return html! { section class="none" { p class="faint" { "no turn here" } } } };
    let all = parts.len();
    let parts = fitting_items(parts, SIDE_BYTES_MAX, |part| part);
    html! {
        section {
            h3 { a href={ "/turns/" (turn.id) } { "Turn " (grouped(turn.sequence)) } }
            @for part in &parts { (part) }
            @if parts.len() < all {
                p class="faint" { (plural((all - parts.len()) as u64, "more part is", "more parts are")) " not shown" }
            }
        }
    }
}

/// The texts of a turn that are compared.
#[derive(Default)]
struct Texts<'a> {
    said: Option<&'a str>,
    /// Each with its output.
    programs: Vec<(&'a str, String)>,
    calls: Vec<&'a GateRecord>,
}

fn texts(turn: &Turn) -> Texts<'_> {
    let mut texts = Texts::default();
    for item in turn_items(turn) {
        match item {
            TurnItem::Said(said) => texts.said = Some(said),
            TurnItem::Program(program) => {
                let output = program.output.map(output_text).unwrap_or_default();
                texts.programs.push((program.code.unwrap_or_default(), output));
            }
            TurnItem::Call(record) => texts.calls.push(record),
            // A thought and a call that was not begun have no effect, so they are not compared.
            TurnItem::Thinking(_) | TurnItem::Asked(_) => {}
        }
    }
    texts
}

/// Returns the parts of both sides, each with the marks of what the other side does not have. A turn without another
/// one beside it has no marks.
fn parts(a: Option<&Turn>, b: Option<&Turn>) -> (Vec<Markup>, Vec<Markup>) {
    let has_marks = a.is_some() && b.is_some();
    let (a, b) = (a.map(texts).unwrap_or_default(), b.map(texts).unwrap_or_default());
    let (mut left, mut right) = (Vec::new(), Vec::new());
    let (said_a, said_b) = words(a.said.unwrap_or_default(), b.said.unwrap_or_default(), has_marks);
    left.extend(said_a);
    right.extend(said_b);
    for at in 0..a.programs.len().max(b.programs.len()) {
        let text = |of: &Texts<'_>| of.programs.get(at).map(|(code, out)| ((*code).to_owned(), out.clone()));
        let ((one, one_out), (two, two_out)) = (text(&a).unwrap_or_default(), text(&b).unwrap_or_default());
        let (code_a, code_b) = lines(&one, &two, COMPARE_TEXT_BYTES_MAX, has_marks);
        let (out_a, out_b) = lines(&one_out, &two_out, RESULT_BYTES_MAX, has_marks);
        left.extend([code_a, out_a].into_iter().flatten());
        right.extend([code_b, out_b].into_iter().flatten());
    }
    for at in 0..a.calls.len().max(b.calls.len()) {
        let (one, two) = (a.calls.get(at).copied(), b.calls.get(at).copied());
        let (result_a, result_b) = results(one, two, has_marks);
        left.extend(one.map(|record| call(record, result_a)));
        right.extend(two.map(|record| call(record, result_b)));
    }
    (left, right)
}

/// Returns what both said with the words marked that differ. A side that said nothing has no part.
fn words(a: &str, b: &str, has_marks: bool) -> (Option<Markup>, Option<Markup>) {
    let (one, two) = (fitting(a, COMPARE_TEXT_BYTES_MAX), fitting(b, COMPARE_TEXT_BYTES_MAX));
    let diff = TextDiff::from_words(one, two);
    let changes: Vec<(ChangeTag, &str)> =
        diff.iter_all_changes().map(|change| (change.tag(), change.value())).collect();
    let said = |whole: &str, beginning: &str, own: ChangeTag| {
        let stretches = side_text(&changes, own);
        (!stretches.is_empty()).then(|| {
            let marks = has_marks.then_some(own == ChangeTag::Insert);
            html! { div class="said" { p { (stretches_text(&stretches, marks)) (rest(whole, beginning)) } } }
        })
    };
    (said(a, one, ChangeTag::Delete), said(b, two, ChangeTag::Insert))
}

/// Returns the stretches of one side; those that only this side has are marked as taken out or put in. `is_new` is true
/// for the side on which they are put in, and none where nothing is marked.
fn stretches_text(stretches: &[(String, bool)], is_new: Option<bool>) -> Markup {
    html! {
        @for (text, is_own) in stretches {
            @match is_new.filter(|_| *is_own) {
                None => { (visible_text(text)) },
                Some(true) => { ins { (visible_text(text)) } },
                Some(false) => { del { (visible_text(text)) } },
            }
        }
    }
}

/// Returns the text of one side in stretches, each with true if only this side has it.
fn side_text(changes: &[(ChangeTag, &str)], own: ChangeTag) -> Vec<(String, bool)> {
    let mut stretches: Vec<(String, bool)> = Vec::new();
    for (tag, text) in changes.iter().filter(|(tag, _)| *tag == ChangeTag::Equal || *tag == own) {
        let is_own = *tag == own;
        match stretches.last_mut().filter(|(_, last)| *last == is_own) {
            Some((stretch, _)) => stretch.push_str(text),
            None => stretches.push(((*text).to_owned(), is_own)),
        }
    }
    stretches
}

/// Returns two texts with the lines marked that differ. A text that is empty has no part.
fn lines(a: &str, b: &str, markup_max: usize, has_marks: bool) -> (Option<Markup>, Option<Markup>) {
    let (one, two) = (fitting(a, markup_max), fitting(b, markup_max));
    let diff = TextDiff::from_lines(one, two);
    let changes: Vec<(ChangeTag, &str)> =
        diff.iter_all_changes().map(|change| (change.tag(), change.value())).collect();
    let side = |own: ChangeTag, class: &'static str, whole: &str, beginning: &str| {
        let lines: Vec<&(ChangeTag, &str)> =
            changes.iter().filter(|(tag, _)| *tag == ChangeTag::Equal || *tag == own).collect();
        (!lines.is_empty()).then(|| {
            html! {
                div class="diff" tabindex="0" {
                    @for (tag, line) in lines {
                        @let class = (has_marks && *tag == own).then_some(class);
                        span class=[class] { (visible_text(line.trim_end_matches('\n'))) }
                    }
                    @if beginning.len() < whole.len() { span class="at" { (rest(whole, beginning)) } }
                }
            }
        })
    };
    (side(ChangeTag::Delete, "del", a, one), side(ChangeTag::Insert, "add", b, two))
}

/// Returns the results of two calls with the lines marked that differ; nothing if they are equal.
fn results(a: Option<&GateRecord>, b: Option<&GateRecord>, has_marks: bool) -> (Option<Markup>, Option<Markup>) {
    let text =
        |record: Option<&GateRecord>| record.map(|record| item_text(&TurnItem::Call(record))).unwrap_or_default();
    let (one, two) = (text(a), text(b));
    if one == two { (None, None) } else { lines(&one, &two, RESULT_BYTES_MAX, has_marks) }
}

fn call(record: &GateRecord, result: Option<Markup>) -> Markup {
    let (class, ms, mark) = match &record.settlement {
        Settlement::Delegated => ("", None, None),
        Settlement::Settled(settled) => {
            let reply_type = settled.reply.reply_type;
            (reply_class(reply_type), Some(settled.duration_ms), Some(reply_mark(reply_type)))
        }
    };
    html! {
        div class="calls gap" {
            div class={ "call " (class) } {
                div class="line" {
                    span class="gate" { (short_name(&record.gate)) }
                    span class="args" { (one_line(&record.args, ARGUMENTS_LINE_CHARS)) }
                    @if let Some(ms) = ms { span class="ms" { (duration(ms)) } }
                    @match mark { Some(mark) => { (mark) }, None => { span class="faint" { "delegated" } } }
                }
                @if let Some(result) = result { (result) }
            }
        }
    }
}

fn totals(view: &CompareView) -> Markup {
    html! {
        div class="wide" tabindex="0" role="region" aria-label="Totals" {
            table class="totals" {
                caption class="unseen" { "Totals from the fork on" }
                thead {
                    tr {
                        th scope="col" { "From the fork on" }
                        th scope="col" class="num" { "Turns" }
                        th scope="col" class="num" { "Tokens in" }
                        th scope="col" class="num" { "Tokens out" }
                        th scope="col" class="num" { "Money" }
                        th scope="col" class="num" { "Time" }
                        th scope="col" { "Answer" }
                    }
                }
                tbody { (total(&view.a)) (total(&view.b)) }
            }
        }
    }
}

fn total(side: &CompareSide) -> Markup {
    html! {
        tr {
            th scope="row" { (title(side)) }
            td class="num" {
                (grouped(side.turns))
                @if side.counted < side.turns {
                    " " span class="faint" { "(sums of the first " (grouped(side.counted)) ")" }
                }
            }
            td class="num" { (tokens(side.tokens_prompt)) }
            td class="num" { (tokens(side.tokens_completion)) }
            td class="num" { (money_of(side.cost)) }
            td class="num" { (duration(side.duration_ms)) }
            td {
                @if let Some(answer) = &side.answer { (one_line(answer, TITLE_CHARS)) }
                @else { span class="dim" { "not yet" } }
            }
        }
    }
}
