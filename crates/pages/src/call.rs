//! The items of a turn: thinking, what was said, programs and calls.

use cantrip_service::cantrip::canon::{RunId, Timestamp, TurnId};
use cantrip_service::cantrip::loom::{
    GateCall, GateRecord, OutputRecord, ReplyMark, SettledCall, Settlement, ThreadSummary,
};
use cantrip_service::cantrip::reply::{Advice, AnyCode};
use cantrip_view::{CallNote, ProgramItem, TurnItem, item_text, output_text};
use maud::{Markup, html};
use serde_json::Value;

use crate::children::{child_records, children_list};
use crate::fault::{advice_sentence, code_link, reply_class};
use crate::fit::{cut, short_line, short_name};
use crate::frame::{PartContext, copy_button};
use crate::limits::{
    ARGUMENTS_LINE_CHARS, CHILDREN_SHOWN_MAX, NOTES_SHOWN_MAX, OUTPUT_PART_BYTES_MAX, OUTPUT_SHOWN_BYTES,
    OUTPUT_SHOWN_LINES, PROGRAM_SHOWN_BYTES, SAID_SHOWN_BYTES,
};
use crate::write::{
    bytes, cut_text, duration, full_stop, leading_break, markdown, money, numbered_lines, one_line, paint, plural,
    prose, reply_mark, short_id, shortened, time, visible_text, without_terminal_colours,
};

/// The length of the sentence with the advice of a refusal.
const ADVICE_CHARS: usize = 200;
/// The length of the path of a file that a call changed.
const PATH_CHARS: usize = 200;

/// How much of a turn is shown at first. A turn that is too large as a whole is shown with less of each item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShownAmount {
    pub(crate) output_bytes: usize,
    pub(crate) output_lines: usize,
    pub(crate) program_bytes: usize,
    pub(crate) said_bytes: usize,
    /// The length of the arguments in the line of a call.
    pub(crate) arguments_chars: usize,
    pub(crate) items: usize,
    /// The number of children below a call, and of branches and rewards below a turn.
    pub(crate) listed: usize,
    /// True if a call shows what stood around it.
    pub(crate) has_fine_print: bool,
}

impl ShownAmount {
    pub(crate) const FULL: Self = Self {
        output_bytes: OUTPUT_SHOWN_BYTES,
        output_lines: OUTPUT_SHOWN_LINES,
        program_bytes: PROGRAM_SHOWN_BYTES,
        said_bytes: SAID_SHOWN_BYTES,
        arguments_chars: ARGUMENTS_LINE_CHARS,
        items: 120,
        listed: CHILDREN_SHOWN_MAX,
        has_fine_print: true,
    };
    pub(crate) const BRIEF: Self = Self {
        output_bytes: 512,
        output_lines: 10,
        program_bytes: 2 << 10,
        said_bytes: 2 << 10,
        arguments_chars: ARGUMENTS_LINE_CHARS / 2,
        items: 40,
        listed: CHILDREN_SHOWN_MAX / 2,
        has_fine_print: false,
    };
    pub(crate) const LEAST: Self = Self {
        output_bytes: 96,
        output_lines: 2,
        program_bytes: 192,
        said_bytes: 256,
        arguments_chars: ARGUMENTS_LINE_CHARS / 4,
        items: 12,
        listed: 2,
        has_fine_print: false,
    };
    /// The heading of a turn, with the number of its items.
    pub(crate) const HEADING: Self = Self { items: 0, ..Self::LEAST };
}

/// The place of an item: its id is `{turn}.{n}`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ItemPlace {
    pub(crate) run: RunId,
    pub(crate) turn: TurnId,
    pub(crate) n: usize,
    pub(crate) amount: ShownAmount,
}

impl ItemPlace {
    pub(crate) fn id(&self) -> String {
        format!("{}.{}", self.turn, self.n)
    }
}

/// The facts of a call beside its record.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CallExtras<'a> {
    pub(crate) note: Option<&'a CallNote>,
    /// The children that are listed here; none if they are listed elsewhere.
    pub(crate) children: Option<&'a [&'a ThreadSummary]>,
}

/// Returns one item of a closed turn. `is_answer` is true for what was said as the answer of its cast.
pub(crate) fn item(
    context: &PartContext<'_>,
    place: ItemPlace,
    item: &TurnItem<'_>,
    extras: CallExtras<'_>,
    is_answer: bool,
) -> Markup {
    match item {
        TurnItem::Thinking(text) => thinking(place, text),
        TurnItem::Said(text) => said_text(place, text, is_answer),
        TurnItem::Program(program) => program_box(place, program),
        TurnItem::Asked(call) => call_not_run(place, call),
        TurnItem::Call(record) => call(context, place, record, extras),
    }
}

pub(crate) fn thinking(place: ItemPlace, text: &str) -> Markup {
    let words = text.split_whitespace().count() as u64;
    let (beginning, is_cut) = cut_text(text, place.amount.said_bytes, usize::MAX);
    html! {
        details class="think" id=(place.id()) {
            summary { "Thought, " (plural(words, "word", "words")) }
            div id=(out_id(place)) {
                p class="plain" { (prose(beginning)) }
                @if is_cut { (show_all(place, text.len())) }
            }
        }
    }
}

/// Returns what an entity said: as Markdown if all of it is shown, else its beginning as plain text.
pub(crate) fn said_text(place: ItemPlace, text: &str, is_answer: bool) -> Markup {
    let (beginning, is_cut) = cut_text(text, place.amount.said_bytes, usize::MAX);
    html! {
        div class=(if is_answer { "said answer" } else { "said" }) id=(place.id()) {
            @if is_answer { p class="label" { "Answer" } }
            @if is_cut {
                div id=(out_id(place)) { p class="plain" { (prose(beginning)) } (show_all(place, text.len())) }
            } @else { (markdown(text)) }
        }
    }
}

fn program_box(place: ItemPlace, program: &ProgramItem<'_>) -> Markup {
    let code = program.code.unwrap_or_default();
    let medium = program.medium.unwrap_or("program");
    let (beginning, is_cut) = cut_text(code, place.amount.program_bytes, usize::MAX);
    html! {
        div id=(place.id()) {
            @if program.code.is_some() {
                div class="code" {
                    div class="bar" {
                        span { (short_name(medium)) } span { (plural(code.lines().count() as u64, "line", "lines")) }
                        @if is_cut { span { "its first " (bytes(beginning.len())) " are shown" } }
                        button type="button" class="copy" data-copy-text { "Copy" }
                    }
                    pre tabindex="0" { (numbered_lines(medium, beginning)) }
                }
            }
            @if let Some(output) = program.output { (program_output(place, output)) }
            @else { p class="faint" { "It did not run in this turn." } }
        }
    }
}

/// Returns the console, the value and the failure of a program.
fn program_output(place: ItemPlace, output: &OutputRecord) -> Markup {
    let text = output_text(output);
    let reply = output.reply.as_ref().filter(|reply| !reply.mark.is_success());
    html! {
        @if let Some(lost) = &output.environment_lost { p class="faint" { (cut(lost, place.amount.output_bytes)) } }
        @if !text.is_empty() { (output_box(place, &without_terminal_colours(&text), "", text.len())) }
        @if output.cut > 0 { p class="faint" { (plural(output.cut, "byte", "bytes")) " of output were not kept." } }
        @if output.rolled_back {
            p class="faint" { "The variables are as before this program; calls already made stand." }
        }
        @if let Some(reply) = reply {
            div class={ "call " (reply_class(reply.mark.reply_type)) } {
                div class="line" {
                    span class="gate" { "program" } span class="args" {} (reply_mark(reply.mark.reply_type))
                }
                p class="advice" {
                    @if let Some(message) = &reply.message {
                        (cut(message, place.amount.output_bytes)) (full_stop(message)) " "
                    }
                    (advice_and_code(reply.mark.known().and_then(AnyCode::advice), &reply.mark.code))
                }
            }
        }
    }
}

/// Returns a call of the utterance that never began.
fn call_not_run(place: ItemPlace, call: &GateCall) -> Markup {
    html! {
        div class="call" id=(place.id()) {
            div class="line" {
                span class="gate" { (short_name(&call.gate)) }
                span class="args" { (one_line(&call.args, place.amount.arguments_chars)) }
                span class="faint" { "not run" }
            }
        }
    }
}

/// Returns a call as one line that opens. A call that went wrong is open from the start.
fn call(context: &PartContext<'_>, place: ItemPlace, record: &GateRecord, extras: CallExtras<'_>) -> Markup {
    let children = extras.children.map(|children| children_list(place.run, children, place.amount.listed));
    match &record.settlement {
        Settlement::Delegated => html! {
            details class="call" id=(place.id()) {
                summary { (call_line(place, record)) span class="faint" { "delegated" } }
                (arguments(place, &record.args))
            }
            @if let Some(children) = children { (children) }
        },
        Settlement::Settled(settled) => html! {
            details class={ "call " (reply_class(settled.reply.reply_type)) } id=(place.id())
                open[!settled.reply.is_success()] {
                summary {
                    (call_line(place, record))
                    span class="ms" { (duration(settled.duration_ms)) }
                    (reply_mark(settled.reply.reply_type))
                }
                (call_body(context, place, record, settled, extras.note))
            }
            @match (extras.children, children) {
                (Some([]), _) => { (child_records(place, &settled.children)) },
                (Some(_), Some(children)) => { (children) },
                (None, _) | (Some(_), None) => {},
            }
        },
    }
}

fn call_line(place: ItemPlace, record: &GateRecord) -> Markup {
    html! {
        span class="gate" { (short_name(&record.gate)) }
        span class="args" { (one_line(&record.args, place.amount.arguments_chars)) }
    }
}

fn call_body(
    context: &PartContext<'_>,
    place: ItemPlace,
    record: &GateRecord,
    settled: &SettledCall,
    note: Option<&CallNote>,
) -> Markup {
    let mark = &settled.reply;
    html! {
        @if !mark.is_success() {
            @let advice = note.and_then(|note| note.advice).or_else(|| mark.known().and_then(AnyCode::advice));
            p class="advice" {
                (refusal(&item_text(&TurnItem::Call(record)), mark, place.amount.output_bytes, advice)) " "
                (code_link(&mark.code))
            }
        }
        (arguments(place, &record.args))
        @if mark.is_success() {
            h3 class="label" { "Result" }
            @if record.ephemeral { p class="faint" { "The entity is shown a placeholder instead of this result." } }
            (result_box(place, &settled.result))
        }
        @if place.amount.has_fine_print { (fine_print(context, place, record, settled, note)) }
    }
}

fn advice_and_code(advice: Option<Advice>, code: &str) -> Markup {
    html! { @if let Some(advice) = advice { b { (advice_sentence(advice)) } " " } (code_link(code)) }
}

/// The beginnings of the sentences that end the text of a refusal.
const ADVICE_BEGINS: [&str; 4] =
    ["Fix the arguments", "Do not retry; ask for scope", "Stop; trace id", "Temporary; do not retry"];

/// Returns the text of a refusal: its message, then its advice. Its type and its code stand beside it and are left out.
/// `advice` is that of its code, for a text without an advice of its own.
pub(crate) fn refusal(text: &str, mark: &ReplyMark, bytes_max: usize, advice: Option<Advice>) -> Markup {
    let text = text.strip_prefix(&format!("{} {}: ", mark.reply_type.word(), mark.code)).unwrap_or(text);
    let (message, own) = match ADVICE_BEGINS.iter().find_map(|begin| text.rfind(begin)) {
        Some(at) => (text[..at].trim_end(), Some(&text[at..])),
        None => (text, None),
    };
    html! {
        @if !message.is_empty() { (cut(message, bytes_max)) (full_stop(message)) " " }
        @if let Some(own) = own { b { (shortened(own, ADVICE_CHARS)) } }
        @else if let Some(advice) = advice { b { (advice_sentence(advice)) } }
    }
}

/// Returns the arguments of a call. Its line has only their beginning, and less of it on a narrow page.
fn arguments(place: ItemPlace, args: &Value) -> Markup {
    let text = format!("{args:#}");
    let (beginning, is_cut) = cut_text(&text, place.amount.output_bytes, place.amount.output_lines);
    html! {
        @if !is_nothing(args) {
            h3 class="label" { "Arguments" }
            pre tabindex="0" { (paint("json", beginning)) @if is_cut { "\n… " (bytes(text.len())) " in all" } }
        }
    }
}

/// Returns true for arguments that say nothing.
pub(crate) fn is_nothing(args: &Value) -> bool {
    match args {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => false,
    }
}

fn result_box(place: ItemPlace, result: &Value) -> Markup {
    match result {
        Value::Null => html! { p class="faint" { "It returned nothing." } },
        Value::String(text) => output_box(place, text, "", text.len()),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            let size = result.to_string().len();
            output_box(place, &format!("{result:#}"), "json", size)
        }
    }
}

/// Returns the beginning of an output, and the way to all of it.
fn output_box(place: ItemPlace, text: &str, language: &str, size: usize) -> Markup {
    let (beginning, is_cut) = cut_text(text, place.amount.output_bytes, place.amount.output_lines);
    html! {
        div class="out" id=(out_id(place)) {
            pre tabindex="0" { (leading_break(beginning)) (paint(language, beginning)) }
            @if is_cut { (show_all(place, size)) }
        }
    }
}

fn out_id(place: ItemPlace) -> String {
    format!("{}.{}.out", place.turn, place.n)
}

/// Returns the link to a whole output: as a part of the page, or as a download if it is too long for one.
fn show_all(place: ItemPlace, size: usize) -> Markup {
    let address = format!("/runs/{}/output/{}/{}", place.run, place.turn, place.n);
    html! {
        @if size <= OUTPUT_PART_BYTES_MAX {
            a class="all" data-part="output" data-into=(out_id(place)) href=(address) { "show all " (bytes(size)) }
        } @else {
            a class="all" download href=(address) { "download all " (bytes(size)) }
        }
    }
}

/// Returns a whole output as the part that takes the place of its beginning. It is plain text.
pub fn output_part(run: RunId, turn: TurnId, n: usize, text: &str) -> Markup {
    let place = ItemPlace { run, turn, n, amount: ShownAmount::FULL };
    let (beginning, is_cut) = cut_text(text, OUTPUT_PART_BYTES_MAX, usize::MAX);
    html! {
        div class="out whole" id=(out_id(place)) {
            pre tabindex="0" { (leading_break(beginning)) (visible_text(&without_terminal_colours(beginning))) }
            @if is_cut { (show_all(place, text.len())) }
        }
    }
}

/// Returns what stood around the call: policy, money, clock, and the command that shows it.
fn fine_print(
    context: &PartContext<'_>,
    place: ItemPlace,
    record: &GateRecord,
    settled: &SettledCall,
    note: Option<&CallNote>,
) -> Markup {
    html! {
        dl class="fine" {
            @if let Some(outcome) = &settled.decision {
                div {
                    dt { "Policy" }
                    dd {
                        (outcome.decision.decision.as_str()) " "
                        span class="mono" { (short_name(outcome.decision.reason_code.as_str())) }
                    }
                }
            }
            @if let Some(cost) = settled.cost { div { dt { "Money" } dd { (money(cost)) } } }
            @if let Some(reservation) = note.and_then(|note| note.reservation.as_deref()) {
                div { dt { "Reservation" } dd class="mono" { (short_name(reservation)) } }
            }
            @if let Some(approval) = note.and_then(|note| note.approval) {
                div {
                    dt { "Approval" }
                    dd { a href={ "/approvals/" (approval) "?run=" (place.run) } { (short_id(approval)) } }
                }
            }
            @if let Some(clock) = settled.clock_ms.and_then(clock_time) { div { dt { "Clock" } dd { (time(clock)) } } }
            @for change in settled.changes.iter().take(NOTES_SHOWN_MAX) {
                div { dt { "File" } dd class="mono" { (short_line(&change.path, PATH_CHARS)) } }
            }
            @if let Some(left @ 1..) = settled.changes.len().checked_sub(NOTES_SHOWN_MAX) {
                div { dt { "Files" } dd { (left) " more" } }
            }
            div {
                dt { "Call" }
                dd {
                    "number " (record.call_id.number()) " "
                    a href={ "/calls/" (place.turn) ":" (place.n) } data-copy-link { "link" } " "
                    (copy_button(&context.commands.call_show(place.turn, place.n), "command"))
                }
            }
        }
    }
}

/// Returns the host clock at the end of a call; none for a number that is not a time.
fn clock_time(ms: u64) -> Option<Timestamp> {
    Timestamp::from_unix_millis(i64::try_from(ms).ok()?).ok()
}
