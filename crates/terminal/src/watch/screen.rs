//! The state of the screen while a cast runs, and the drawing of each event.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use anstyle::Style;
use cantrip::circle::MediumKind;
use cantrip::events::{CallProgress, RetryNotice};
use cantrip::loom::{CallId, CostTotal};
use cantrip::stream::codes::{ITEM_CANCELLED, STREAM_CLOSED};
use cantrip::stream::{
    CancelReason, Emission, Item, ItemId, Origin, ReplyKind, Status, Text, ToolCall, TurnEvent, TurnId, Upsert, Usage,
};
use cantrip_reply::ReplyType;
use unicode_width::UnicodeWidthStr;

use super::live::{self, Live, TextStyle};
use super::{cost, retry_line, tokens};
use crate::cursor;
use crate::limits::PROGRESS_MS;
use crate::present::{BOLD, DIM, colour, cut, position, say, strip_control, width_of_error};

/// The lines of a program, an output or a text that are shown; the loom has them all.
const LINES_SHOWN: usize = 12;

/// The text of the loom for a program that printed nothing and has no value.
const NO_OUTPUT: &str = "(no output)";

/// The drawn items, and the items in progress.
#[derive(Debug, Default)]
pub(super) struct Screen {
    /// The running turns.
    shown: HashMap<TurnId, TurnState>,
    /// The calls that were drawn and have no reply yet.
    asked: HashSet<ItemId>,
    /// The number of turns of each entity; the cast's own entity has no name.
    pub(super) turns: HashMap<Option<Box<str>>, u64>,
    /// The last turn of each entity. A resumed turn is not counted again.
    pub(super) last: HashMap<Option<Box<str>>, TurnId>,
    /// The number of each child, in the order of appearance.
    pub(super) children: HashMap<Box<str>, usize>,
    /// The time of the last progress line of each call in the running turns.
    progressed: HashMap<CallId, Instant>,
    /// The usage of the cast's children.
    pub(super) below: ChildUsage,
    /// The streamed text; None if standard error is not a terminal.
    pub(super) live: Option<Live>,
    /// The turn whose text is being streamed; `kept` has the events of other turns meanwhile.
    speaking: Option<TurnId>,
    kept: Vec<(Instant, Emission)>,
    /// The turn that was drawn last; output of another turn is labelled.
    drawn: Option<TurnId>,
}

/// The usage of a cast's children.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ChildUsage {
    pub(super) input: u64,
    pub(super) output: u64,
    pub(super) spent: CostTotal,
}

#[derive(Debug, Clone)]
struct TurnState {
    depth: usize,
    entity: Option<Box<str>>,
    since: Instant,
}

impl Screen {
    pub(super) fn new(live: Option<Live>) -> Self {
        Self { live, ..Self::default() }
    }

    /// Draws an event. While the text of one turn is streamed, events of other turns are kept until the text is
    /// complete; otherwise the words of two children would be on the same line.
    pub(super) fn draw(&mut self, emission: Emission) {
        let now = Instant::now();
        if self.is_kept_back(&emission) {
            return self.keep(now, emission);
        }
        self.draw_now(now, &emission);
        while !self.kept.is_empty() {
            let (before, waiting) = (self.kept.len(), std::mem::take(&mut self.kept));
            for (at, emission) in waiting {
                if self.is_kept_back(&emission) {
                    self.kept.push((at, emission));
                } else {
                    self.draw_now(at, &emission);
                }
            }
            if self.kept.len() == before {
                break;
            }
        }
    }

    fn is_kept_back(&self, emission: &Emission) -> bool {
        self.speaking.as_ref().is_some_and(|speaking| speaking != emission.turn_id())
    }

    /// Keeps an emission for later. It replaces an earlier one of the same growing item.
    fn keep(&mut self, at: Instant, emission: Emission) {
        let grows = |emission: &Emission| match emission {
            Emission::Upsert(upsert) if !upsert.status.is_final() => Some(upsert.item_id.clone()),
            Emission::Upsert(_) | Emission::Turn(_) => None,
        };
        if let Some(item) = grows(&emission)
            && let Some(earlier) = self.kept.iter_mut().find(|(_, kept)| grows(kept).as_ref() == Some(&item))
            // A call with its name and a call with its arguments are drawn separately, so neither replaces the other.
            && matches!(&emission, Emission::Upsert(Upsert { item: Item::Message { .. } | Item::Thinking { .. }, .. }))
        {
            *earlier = (at, emission);
            return;
        }
        self.kept.push((at, emission));
    }

    /// Prints which child continues, if another one was drawn last.
    fn attribute(&mut self, turn: &TurnId) {
        if self.drawn.as_ref() == Some(turn) || self.live.is_none() {
            return;
        }
        self.drawn = Some(turn.clone());
        let Some(shown) = self.shown.get(turn) else { return };
        let number = shown.entity.as_ref().and_then(|entity| self.children.get(entity));
        if let Some(number) = number.filter(|_| self.children.len() > 1) {
            self.say(shown.depth, &format!("{DIM}child {number} goes on{DIM:#}"));
        }
    }

    /// Draws an emission that happened at this time.
    fn draw_now(&mut self, at: Instant, emission: &Emission) {
        match emission {
            Emission::Turn(TurnEvent::Started { turn_id, model_id, child, .. }) => {
                let depth = usize::try_from(child.depth.unwrap_or(0)).unwrap_or(0);
                let entity: Option<Box<str>> = child.entity_id.as_ref().map(|entity| entity.as_str().into());
                let number = self.turns.entry(entity.clone()).or_default();
                let before = self.last.insert(entity.clone(), turn_id.clone());
                if before.as_ref() != Some(turn_id) || *number == 0 {
                    *number += 1;
                }
                let mut line = format!("{BOLD}turn {number}{BOLD:#} {DIM}{model_id}{DIM:#}");
                if let Some(entity) = &entity {
                    let all = self.children.len() + 1;
                    let child = *self.children.entry(entity.clone()).or_insert(all);
                    line = format!("{BOLD}child {child}, turn {number}{BOLD:#} {DIM}{model_id}{DIM:#}");
                }
                self.say(depth, &line);
                self.drawn = Some(turn_id.clone());
                self.shown.insert(turn_id.clone(), TurnState { depth, entity, since: at });
            }
            Emission::Turn(TurnEvent::Complete { turn_id, usage, continuations, .. }) => {
                let Some(shown) = self.shown.remove(turn_id) else { return };
                self.progressed.clear();
                // A turn that delegates continues as further turns.
                let further = continuations.as_ref().map_or(0, |turns| turns.len() as u64);
                *self.turns.entry(shown.entity.clone()).or_default() += further;
                self.show_usage(at, &shown, usage.as_ref());
            }
            Emission::Turn(TurnEvent::Error { turn_id, error_code, error_message, usage, .. }) => {
                let Some(shown) = self.shown.remove(turn_id) else { return };
                // An interrupted turn is requested again. The error that ends the cast itself is in its reply.
                if &**error_code != STREAM_CLOSED && shown.depth > 0 {
                    let (style, message) = (colour(ReplyType::Failure), strip_control(error_message));
                    self.say(shown.depth, &format!("  {style}{message}{style:#} {DIM}{error_code}{DIM:#}"));
                }
                self.show_usage(at, &shown, usage.as_ref());
            }
            Emission::Upsert(upsert) => {
                let depth = self.shown.get(&upsert.turn_id).map_or(0, |shown| shown.depth);
                self.upsert(depth, upsert);
                let speaks = self.live.as_ref().is_some_and(Live::is_open);
                self.speaking = speaks.then(|| upsert.turn_id.clone());
            }
        }
    }

    /// Draws the progress of a call, at most one line per interval.
    pub(super) fn progressed(&mut self, CallProgress { turn_id, call_id, gate, progress }: &CallProgress) {
        let Some(depth) = self.shown.get(&TurnId::from(turn_id)).map(|shown| shown.depth) else { return };
        let now = Instant::now();
        let recent = self.progressed.get(call_id).is_some_and(|told| now - *told < Duration::from_millis(PROGRESS_MS));
        if recent {
            return;
        }
        self.progressed.insert(*call_id, now);
        let total = progress.total.map_or_else(String::new, |total| format!("/{total}"));
        let message = progress.message.as_deref().map_or_else(String::new, |message| format!(" {message}"));
        let line = strip_control(&format!("{gate}: {}{total}{message}", progress.done)).replace('\n', " ");
        let columns = width_of_error().unwrap_or(160).saturating_sub(4 + 2 * depth);
        self.say(depth, &format!("{DIM}  … {}{DIM:#}", cut(&line, columns)));
    }

    pub(super) fn retrying(&mut self, retrying: &RetryNotice) {
        let turn = retrying.turn_id.as_ref().map(TurnId::from);
        let depth = turn.and_then(|turn| self.shown.get(&turn)).map_or(0, |shown| shown.depth);
        self.say(depth, &retry_line(retrying));
    }

    /// Draws the duration and the usage of a turn, if they are worth a line.
    fn show_usage(&mut self, at: Instant, shown: &TurnState, usage: Option<&Usage>) {
        if let (Some(usage), true) = (usage, shown.depth > 0) {
            self.below.input = self.below.input.saturating_add(usage.input_tokens);
            self.below.output = self.below.output.saturating_add(usage.output_tokens);
            self.below.spent.add(usage.cost);
        }
        let tokens = usage.map_or_else(String::new, |usage| {
            let spent = CostTotal::new(usage.cost, u64::from(usage.cost.is_none()));
            format!("{}{}", tokens(usage.input_tokens, usage.output_tokens), cost(&spent))
        });
        let seconds = at.saturating_duration_since(shown.since).as_secs_f64();
        if seconds >= 0.1 || !tokens.is_empty() {
            // If several children work at once, only the number shows which child the line belongs to.
            let number = shown.entity.as_ref().and_then(|entity| self.children.get(entity));
            let several = self.live.is_some() && self.children.len() > 1;
            let of = number.filter(|_| several).map(|number| format!("child {number} · "));
            let of = of.unwrap_or_default();
            self.say(shown.depth, &format!("  {DIM}{of}{seconds:.1} s{tokens}{DIM:#}"));
        }
    }

    /// Draws an upsert. Text is drawn as it grows, or when it is complete if standard error is not a terminal. A call
    /// is drawn by its name, then with its arguments, and again with its reply.
    fn upsert(&mut self, depth: usize, Upsert { status, item, item_id, turn_id, .. }: &Upsert) {
        let whole = status.is_final();
        // The answer is not drawn here; it goes to standard output.
        let is_answer = item_id.as_str().ends_with("/answer");
        match item {
            Item::Message { content, origin: Origin::Agent } if !is_answer => {
                let look = TextStyle { before: "  ", depth, style: Style::new(), may_be_answer: depth == 0 };
                self.show_text(turn_id, status, item_id, content, look);
            }
            Item::Thinking { content, .. } => {
                let look = TextStyle { before: "  ~ ", depth, style: DIM, may_be_answer: false };
                self.show_text(turn_id, status, item_id, content, look);
            }
            Item::ToolCall(call) => {
                let depth = depth + usize::from(call.parent_item_id.is_some());
                let announced = matches!(status, Status::Update) || whole;
                if !announced {
                    self.show_call_name(depth, call);
                }
                if announced && self.asked.insert(item_id.clone()) {
                    self.attribute(turn_id);
                    self.call(depth, call);
                }
                if whole {
                    self.asked.remove(item_id);
                    self.attribute(turn_id);
                    self.output(depth, call);
                }
            }
            Item::Message { .. } => {}
        }
    }

    /// Draws the text of an item.
    fn show_text(&mut self, turn: &TurnId, status: &Status, item: &ItemId, content: &Text, look: TextStyle) {
        if self.live.is_some() || status.is_final() {
            self.attribute(turn);
        }
        match (&mut self.live, status) {
            (Some(live), Status::Create | Status::Update) => live.grow(item, content, look),
            (Some(live), Status::Complete { .. }) => live.finish(item, content, None, look),
            (Some(live), Status::Error { code, message }) if is_withdrawn(code, message.as_deref()) => {
                live.finish(item, content, Some("withdrawn: the answer broke off and is requested again"), look);
            }
            // The next attempt says it again.
            (None, Status::Error { code, message }) if is_withdrawn(code, message.as_deref()) => {}
            (Some(live), Status::Error { code, message }) => {
                let why = message.as_deref().filter(|_| &**code != STREAM_CLOSED).map(strip_control);
                let note = why.map_or_else(|| "interrupted".to_owned(), |why| format!("broken off: {why}"));
                live.finish(item, content, Some(&note), look);
            }
            (None, Status::Complete { .. } | Status::Error { .. }) => {
                self.text(look.depth, look.before, &content.to_string());
            }
            (None, Status::Create | Status::Update) => {}
        }
    }

    /// Shows the name of a call as a status line until its arguments are known.
    fn show_call_name(&self, depth: usize, call: &ToolCall) {
        if self.live.is_some() {
            let name = cut(&strip_control(call.name.as_str()), width_of_error().unwrap_or(80) / 4);
            let line = format!("{:indent$}  > {name} …", "", indent = 2 * depth);
            let columns = line.width();
            if columns < width_of_error().unwrap_or(80) {
                cursor::show_status(DIM, &line, columns);
            }
        }
    }

    /// Returns true if the call holds the answer that is about to be written to this terminal.
    fn is_answering(&self, depth: usize, call: &ToolCall) -> bool {
        depth == 0 && call.name.as_str() == "done" && self.live.as_ref().is_some_and(Live::shows_answers)
    }

    fn call(&self, depth: usize, call: &ToolCall) {
        if self.is_answering(depth, call) {
            return self.say(depth, "  > done");
        }
        let arguments = serde_json::to_value(&call.arguments).unwrap_or_default();
        match arguments.get("code").and_then(|code| code.as_str()) {
            Some(code) if is_program(call) => self.text(depth, "  > ", code),
            Some(_) | None => self.text(depth, "  > ", &format!("{}({arguments})", call.name)),
        }
    }

    fn output(&self, depth: usize, call: &ToolCall) {
        let Some(output) = &call.output else { return };
        // A program that succeeded shows its output; the code of its success would add nothing.
        let is_program = is_program(call);
        if let Some(reply) = output.reply.as_ref().filter(|reply| !is_program || reply.kind != ReplyKind::Success) {
            let kind = reply_type(reply.kind);
            let style = colour(kind);
            let word = kind.word().to_lowercase();
            self.say(
                depth,
                &format!("  < {style}{word}{style:#} {DIM}{}{}{DIM:#}", reply.code, position(reply.line, reply.column)),
            );
        }
        if !output.is_error && self.is_answering(depth, call) {
            return;
        }
        let text = output.text.to_string();
        if output.is_error {
            // An error and its remedy are shown in full.
            return self.whole(depth, "    ", &text);
        }
        // A program without output needs no line.
        if text != NO_OUTPUT {
            self.text(depth, "    ", &text);
        }
    }

    /// Draws a text in full, wrapped to the width of the screen.
    fn whole(&self, depth: usize, before: &str, text: &str) {
        let margin = format!("{:indent$}{before}", "", indent = 2 * depth);
        let (lines, _) = live::wrap(strip_control(text).trim_end(), 0, &margin, width_of_error().unwrap_or(usize::MAX));
        lines.lines().for_each(say);
    }

    fn text(&self, depth: usize, before: &str, text: &str) {
        let lines: Vec<&str> = text.lines().collect();
        let columns = width_of_error().unwrap_or(160).saturating_sub(before.len() + 2 * depth);
        for line in lines.iter().take(LINES_SHOWN) {
            self.say(depth, &format!("{before}{}", cut(&strip_control(line), columns)));
        }
        if lines.len() > LINES_SHOWN {
            self.say(depth, &format!("{DIM}{before}({} more lines){DIM:#}", lines.len() - LINES_SHOWN));
        }
    }

    fn say(&self, depth: usize, line: &str) {
        say(&format!("{:indent$}{line}", "", indent = 2 * depth));
    }
}

/// Returns true if the call runs a program, and not a gate that happens to have an argument `code`.
fn is_program(call: &ToolCall) -> bool {
    call.name.as_str().parse().is_ok_and(MediumKind::is_code)
}

/// Returns true for the end of an item whose attempt broke off and is made again.
fn is_withdrawn(code: &str, message: Option<&str>) -> bool {
    code == ITEM_CANCELLED && message == Some(CancelReason::Retry.as_str())
}

const fn reply_type(kind: ReplyKind) -> ReplyType {
    match kind {
        ReplyKind::Success => ReplyType::Success,
        ReplyKind::Invalid => ReplyType::Invalid,
        ReplyKind::Denied => ReplyType::Denied,
        ReplyKind::Failure => ReplyType::Failure,
    }
}
