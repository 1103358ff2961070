//! What stands on the screen while a cast runs, and what is written there next.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use anstyle::Style;
use cantrip::circle::MediumKind;
use cantrip::events::{CallProgress, RetryNotice};
use cantrip::loom::{CallId, CostTotal};
use cantrip::stream::codes::STREAM_CLOSED;
use cantrip::stream::{
    Emission, Item, ItemId, Origin, ReplyKind, Status, Text, ToolCall, TurnEvent, TurnId, Upsert, Usage,
};
use cantrip_reply::ReplyType;
use unicode_width::UnicodeWidthStr;

use super::live::{self, Live, TextStyle};
use super::{cost, retry_line, tokens};
use crate::cursor;
use crate::limits::PROGRESS_MS;
use crate::loom::draw::position;
use crate::present::{BOLD, DIM, colour, cut, say, strip_control, width_of_error};

/// Lines of a program, an output or a text that are shown; the loom has them all.
const LINES_SHOWN: usize = 12;

/// What is rendered for a program that printed nothing and has no value.
const NO_OUTPUT: &str = "(no output)";

/// What was drawn, and what is being drawn.
#[derive(Debug, Default)]
pub(super) struct Screen {
    /// The turns that are shown.
    shown: HashMap<TurnId, TurnState>,
    /// Calls that were shown before they were answered.
    asked: HashSet<ItemId>,
    /// How far each entity has come; the one that was cast has no name.
    pub(super) turns: HashMap<Option<Box<str>>, u64>,
    /// The last turn of each: one that is taken up again is no further one.
    pub(super) last: HashMap<Option<Box<str>>, TurnId>,
    /// Children, in the order in which they were met.
    pub(super) children: HashMap<Box<str>, usize>,
    /// When the calls of the turns that are shown last told how far they had come.
    progressed: HashMap<CallId, Instant>,
    /// What the children of the cast took.
    pub(super) below: ChildUsage,
    /// Where text appears as it is said; none where nobody sees it grow.
    pub(super) live: Option<Live>,
    /// The turn whose text is being said, and what happened in others meanwhile.
    speaking: Option<TurnId>,
    kept: Vec<(Instant, Emission)>,
    /// The turn that was drawn last: whatever belongs to another one says so.
    drawn: Option<TurnId>,
}

/// What the children of a cast took.
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

    /// Draws what happened. While the text of one turn is being said, what happens in others is kept until it is whole:
    /// words of two children would otherwise stand in each other's lines.
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

    /// Keeps an emission for later; an earlier one of an item that grows is not needed any more.
    fn keep(&mut self, at: Instant, emission: Emission) {
        let grows = |emission: &Emission| match emission {
            Emission::Upsert(upsert) if !upsert.status.is_final() => Some(upsert.item_id.clone()),
            Emission::Upsert(_) | Emission::Turn(_) => None,
        };
        if let Some(item) = grows(&emission)
            && let Some(earlier) = self.kept.iter_mut().find(|(_, kept)| grows(kept).as_ref() == Some(&item))
            // A call that is named and one whose arguments are known are two things to show.
            && matches!(&emission, Emission::Upsert(Upsert { item: Item::Message { .. } | Item::Thinking { .. }, .. }))
        {
            *earlier = (at, emission);
            return;
        }
        self.kept.push((at, emission));
    }

    /// Says which child goes on, where another one was drawn last.
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

    /// Draws what happened at this time.
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
                // A turn that delegates goes on as the next one.
                let further = continuations.as_ref().map_or(0, |turns| turns.len() as u64);
                *self.turns.entry(shown.entity.clone()).or_default() += further;
                self.show_usage(at, &shown, usage.as_ref());
            }
            Emission::Turn(TurnEvent::Error { turn_id, error_code, error_message, usage, .. }) => {
                let Some(shown) = self.shown.remove(turn_id) else { return };
                // A turn that was only interrupted is asked for again. What ends the cast itself is told by its reply.
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

    /// How far a call has come; a line of it now and then will do.
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

    /// What a turn took, if that is worth a line.
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
            // Of children that work at once nobody knows whose line this is but by its number.
            let number = shown.entity.as_ref().and_then(|entity| self.children.get(entity));
            let several = self.live.is_some() && self.children.len() > 1;
            let of = number.filter(|_| several).map(|number| format!("child {number} · "));
            let of = of.unwrap_or_default();
            self.say(shown.depth, &format!("  {DIM}{of}{seconds:.1} s{tokens}{DIM:#}"));
        }
    }

    /// Texts are shown as they grow, or where nobody would see that when they are whole; a call by its name, then when its
    /// arguments are known, and again when it is answered.
    fn upsert(&mut self, depth: usize, Upsert { status, item, item_id, turn_id, .. }: &Upsert) {
        let whole = status.is_final();
        // The answer goes to standard output.
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

    /// Shows what an item says.
    fn show_text(&mut self, turn: &TurnId, status: &Status, item: &ItemId, content: &Text, look: TextStyle) {
        if self.live.is_some() || status.is_final() {
            self.attribute(turn);
        }
        match (&mut self.live, status) {
            (Some(live), Status::Create | Status::Update) => live.grow(item, content, look),
            (Some(live), Status::Complete { .. }) => live.finish(item, content, None, look),
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

    /// Shows for the moment what is called, as long as nobody knows with which arguments.
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

    /// Whether a call says what is about to be written to this same screen as the answer.
    fn is_answering(&self, depth: usize, call: &ToolCall) -> bool {
        depth == 0 && call.name.as_str() == "done" && self.live.as_ref().is_some_and(Live::shows_answers)
    }

    fn call(&self, depth: usize, call: &ToolCall) {
        if self.is_answering(depth, call) {
            return self.say(depth, "  > done");
        }
        let arguments = serde_json::to_value(&call.arguments).unwrap_or_default();
        match arguments.get("code").and_then(|code| code.as_str()) {
            Some(code) => self.text(depth, "  > ", code),
            None => self.text(depth, "  > ", &format!("{}({arguments})", call.name)),
        }
    }

    fn output(&self, depth: usize, call: &ToolCall) {
        let Some(output) = &call.output else { return };
        // A program that ran to its end shows what it gave; the code of its success would say nothing more.
        let is_program = call.name.as_str().parse().is_ok_and(MediumKind::is_code);
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
            // What was refused, and what can be done about it, is read to its end.
            return self.whole(depth, "    ", &text);
        }
        // A program that gave nothing back has shown what it did.
        if text != NO_OUTPUT {
            self.text(depth, "    ", &text);
        }
    }

    /// Shows every word of a text, in lines that the screen has room for.
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

const fn reply_type(kind: ReplyKind) -> ReplyType {
    match kind {
        ReplyKind::Success => ReplyType::Success,
        ReplyKind::Invalid => ReplyType::Invalid,
        ReplyKind::Denied => ReplyType::Denied,
        ReplyKind::Failure => ReplyType::Failure,
    }
}
