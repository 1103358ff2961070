//! The list after a fold: the messages that are kept, those that are shortened, and the text for the rest.

use std::collections::HashMap;
use std::sync::Arc;

use cantrip_loom::{Content, FoldSum, Message, Strategy};

use super::{GateCallCount, Group, ListMark, MessageList, content_of};
use crate::limits::{FOLD_INTENTS_MAX, FOLD_MARK_BYTES_MAX, RESULT_STARTS_BYTES_MAX};

/// The totals of the folded turns, over all folds of the thread.
#[derive(Debug, Clone, Default)]
pub struct FoldTotals {
    /// The sequence numbers of the first and last turn that are not shown; none while all are shown.
    pub turns: Option<(u64, u64)>,
    pub deeds: Vec<GateCallCount>,
    pub said: Option<String>,
}

/// Intents of which no group is shown any more.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HiddenIntents {
    /// The newest of these intents, oldest first.
    pub last: Vec<Content>,
    /// The number of intents before those.
    pub more: usize,
}

/// The new layout of the list after a fold.
struct Layout {
    /// The messages directly behind the frame.
    head: Vec<Arc<Message>>,
    /// The index of the fold's own text.
    fold: Option<usize>,
    /// The index from which the old list follows.
    from: usize,
    /// The changed messages, by their old index: another message, or none.
    changed: HashMap<usize, Option<Arc<Message>>>,
    /// The number of oldest groups that are removed.
    gone: usize,
    /// The short texts of the results that are shortened now, by group and position.
    shortened: Vec<(usize, Vec<(usize, String)>)>,
}

impl Layout {
    /// Returns the message in place of the old message at `at`.
    fn at(&self, at: usize, old: &Arc<Message>) -> Option<Arc<Message>> {
        self.changed.get(&at).map_or_else(|| Some(Arc::clone(old)), Clone::clone)
    }
}

impl MessageList {
    /// Folds all turns up to `to`. Earlier folds are included, so that at most one fold is shown; a group that extends
    /// beyond `to` stays whole. With [`Strategy::Selective`] the messages of the folded turns stay and their results
    /// are shortened; otherwise `text` replaces them.
    pub fn fold(&mut self, strategy: Strategy, to: u64, text: &str) {
        let layout = self.layout(strategy, to, text);
        let kept = self.groups.split_off(layout.gone);
        let gone = std::mem::replace(&mut self.groups, kept);
        if let Some(first) = gone.first() {
            let from = self.folded.turns.map_or(first.from, |(from, _)| from);
            self.folded.turns = Some((from, gone.last().map_or(first.to, |last| last.to)));
        }
        for group in &gone {
            GateCallCount::add_all(&mut self.folded.deeds, &group.deeds);
        }
        self.folded.said = gone.iter().rev().find_map(|group| group.said.clone()).or(self.folded.said.take());
        for (group, shortened) in &layout.shortened {
            if let Some(group) = self.groups.get_mut(*group) {
                group.shrunk = true;
                group.shortened.clone_from(shortened);
            }
        }
        self.relist(&layout);
    }

    /// Returns the totals of the thread after this fold. The labels that its entity touched are not known here.
    pub(crate) fn sum_folded(&self, strategy: Strategy, to: u64) -> FoldSum {
        let gone = match strategy {
            Strategy::Window | Strategy::Summary => self.groups.partition_point(|group| group.to <= to),
            Strategy::Selective => 0,
        };
        let gone = &self.groups[..gone];
        let mut deeds = self.folded.deeds.clone();
        gone.iter().for_each(|group| GateCallCount::add_all(&mut deeds, &group.deeds));
        let said = gone.iter().rev().find_map(|group| group.said.clone()).or_else(|| self.folded.said.clone());
        let last = gone.last().map(|group| group.to).or(self.folded.turns.map(|(_, to)| to));
        let (counted, estimated) = self.counted;
        FoldSum { gone: last, deeds, said, counted, estimated, labels: Vec::new() }
    }

    /// Returns the estimated tokens of a request after this fold.
    pub(crate) fn estimate_folded(&self, strategy: Strategy, to: u64, text: &str) -> u64 {
        let layout = self.layout(strategy, to, text);
        let measure = &self.frame.measure;
        let framed = (0..self.framed).filter_map(|at| self.list.get(at).cloned());
        let stays = (layout.from..self.list.len())
            .filter_map(|at| Some(self.without_bound_thoughts(layout.at(at, self.list.get(at)?)?)));
        let messages = framed.chain(layout.head.iter().cloned()).chain(stays);
        let tokens = messages.fold(0.0, |sum, message| sum + measure.tokens(&message));
        ((tokens + self.frame.tokens()) * self.ratio()).ceil() as u64
    }

    fn layout(&self, strategy: Strategy, to: u64, text: &str) -> Layout {
        let folded = self.groups.partition_point(|group| group.to <= to);
        let fold: Arc<Message> = Message::User { content: text.into() }.into();
        match strategy {
            Strategy::Selective => self.shortened(folded, to, fold),
            Strategy::Window | Strategy::Summary => self.without(folded, fold),
        }
    }

    /// Lays out the frame, the intent of the first group that stays, the fold, and the messages behind the removed
    /// groups.
    fn without(&self, gone: usize, fold: Arc<Message>) -> Layout {
        let intent = self.groups.get(gone).map(|group| group.intent);
        let intent = intent.or(self.current.as_ref().map(|current| current.intent)).unwrap_or(0);
        let told = self.intents.get(intent);
        let mut changed = HashMap::new();
        // The head already contains this intent.
        if let Some(told) = told {
            let places = (self.framed..self.list.len())
                .filter(|at| self.list.get(*at).is_some_and(|message| Arc::ptr_eq(told, message)));
            changed.extend(places.map(|at| (at, None)));
        }
        // The intents that were cancelled before it would now be behind it, where nothing answers them.
        if let Some(cancelled) = self.cancelled.get(&intent) {
            let is_told = |at: &usize| {
                self.list.get(*at).is_some_and(|message| cancelled.iter().any(|told| Arc::ptr_eq(told, message)))
            };
            changed.extend((self.framed..self.list.len()).filter(is_told).map(|at| (at, None)));
        }
        changed.extend(self.fold_at.map(|at| (at, None)));
        let head: Vec<_> = told.cloned().into_iter().chain([fold]).collect();
        let from = gone.checked_sub(1).and_then(|last| self.groups.get(last)).map_or(self.framed, |last| last.end);
        Layout { fold: Some(self.framed + head.len() - 1), head, from, changed, gone, shortened: Vec::new() }
    }

    /// Lays out every message at its place, with each result of the first groups shortened to a line.
    fn shortened(&self, folded: usize, to: u64, fold: Arc<Message>) -> Layout {
        let from = self.folded.turns.map(|(from, _)| from).or(self.groups.first().map(|group| group.from));
        let mark = format!("[Folded: turns {}-{to}]", from.unwrap_or(1));
        let mut changed: HashMap<usize, Option<Arc<Message>>> = HashMap::new();
        changed.extend(self.fold_at.map(|at| (at, Some(fold))));
        let mut shortened = Vec::with_capacity(folded);
        for (at, group) in self.groups.iter().take(folded).enumerate() {
            let told = if group.shrunk { group.shortened.clone() } else { self.result_summaries(group) };
            for (place, told) in &told {
                let message =
                    self.list.get(group.start + place).map(|message| with_text(message, format!("{mark} {told}")));
                changed.insert(group.start + place, message);
            }
            shortened.push((at, told));
        }
        Layout { head: Vec::new(), fold: self.fold_at, from: self.framed, changed, gone: 0, shortened }
    }

    /// Returns the short texts of a group's results, for the results that become shorter by it. The choice does not
    /// depend on where a fold ends: a result that was shortened once stays short.
    fn result_summaries(&self, group: &Group) -> Vec<(usize, String)> {
        let results = (1..=group.results).filter_map(|place| Some((place, self.list.get(group.start + place)?)));
        results
            .filter_map(|(place, message)| {
                let text = content_of(message).text();
                let gate = match &**message {
                    Message::Tool { gate, .. } => gate.as_str(),
                    Message::System { .. } | Message::User { .. } | Message::Assistant { .. } => &self.frame.medium,
                };
                let starts = &text[..text.floor_char_boundary(RESULT_STARTS_BYTES_MAX)];
                let told = format!("{gate}: {} bytes, starts {}", text.len(), serde_json::Value::from(starts));
                (FOLD_MARK_BYTES_MAX + told.len() < text.len()).then_some((place, told))
            })
            .collect()
    }

    /// Builds the list again from the layout.
    fn relist(&mut self, layout: &Layout) {
        let old = std::mem::take(&mut self.list);
        let began = self.current.as_ref().and_then(|current| current.began.as_ref()).map(|mark| mark.length);
        let nudged = self.nudged.take().map(|mark| mark.length);
        self.anchor = None;
        self.begin_list();
        for message in &layout.head {
            self.push(Arc::clone(message));
        }
        // The messages behind move by the same distance, except for those that moved to the head.
        let from = layout.from;
        let mut places = Vec::with_capacity(old.len().saturating_sub(from));
        let mut tokens = Vec::with_capacity(places.capacity());
        for at in from..old.len() {
            if began == Some(at) {
                self.remark();
            }
            if nudged == Some(at) {
                self.nudged = Some(ListMark { nudge_due: true, ..self.mark() });
            }
            places.push(self.list.len());
            tokens.push(self.tally.tokens);
            if let Some(message) = old.get(at).and_then(|old| layout.at(at, old)) {
                let message = self.without_bound_thoughts(message);
                self.push(message);
            }
        }
        if began == Some(old.len()) {
            self.remark();
        }
        self.fold_at = layout.fold;
        let (end, all) = (self.list.len(), self.tally.tokens);
        let moved = |at: usize| at.checked_sub(from).and_then(|at| places.get(at)).copied().unwrap_or(end);
        let until = |at: usize| at.checked_sub(from).and_then(|at| tokens.get(at)).copied().unwrap_or(all);
        for group in &mut self.groups {
            if group.shrunk {
                group.tokens = until(group.end) - until(group.start);
            }
            (group.start, group.end) = (moved(group.start), moved(group.end));
        }
    }

    /// Returns a message that stays in the list, without thoughts that are bound to their prefix: the messages before
    /// it have changed, so the provider would refuse them.
    fn without_bound_thoughts(&self, message: Arc<Message>) -> Arc<Message> {
        match &*message {
            Message::Assistant { content, calls, parts: Some(_) } if self.frame.binds_thoughts => {
                Arc::new(Message::Assistant { content: content.clone(), calls: calls.clone(), parts: None })
            }
            Message::System { .. } | Message::User { .. } | Message::Assistant { .. } | Message::Tool { .. } => message,
        }
    }

    fn remark(&mut self) {
        let mark = self.mark();
        if let Some(current) = &mut self.current {
            current.began = Some(mark);
        }
    }

    /// Returns the totals of the fold that is shown.
    pub fn folded(&self) -> &FoldTotals {
        &self.folded
    }

    /// Returns the tokens of a group and of the messages between it and the group before it: the intents that came with
    /// it.
    pub(crate) fn tokens_with_intents(&self, place: usize) -> f64 {
        let Some(group) = self.groups.get(place) else { return 0.0 };
        let before = place.checked_sub(1).and_then(|before| self.groups.get(before));
        let from = before.map_or(self.framed, |before| before.end);
        let between = (from..group.start).filter_map(|at| self.list.get(at));
        group.tokens + between.map(|message| self.frame.measure.tokens(message)).sum::<f64>()
    }

    /// Returns the intents without a shown group once the first `place` groups are folded.
    pub fn intents_before(&self, place: usize) -> HiddenIntents {
        let shown = self.groups.get(place).map(|group| group.intent);
        let shown = shown.or(self.current.as_ref().map(|current| current.intent)).unwrap_or(0);
        let before = &self.intents[..shown.min(self.intents.len())];
        let more = before.len().saturating_sub(FOLD_INTENTS_MAX);
        HiddenIntents { last: before[more..].iter().map(|told| content_of(told)).collect(), more }
    }

    /// Returns the intent of the first shown group, and that of the current cast.
    pub(crate) fn intents_about(&self) -> impl Iterator<Item = Content> {
        let first = self.groups.first().map(|group| group.intent);
        let now = self.current.as_ref().map(|current| current.intent);
        first.into_iter().chain(now).filter_map(|at| self.intents.get(at)).map(|told| content_of(told))
    }

    /// Returns the text of the fold that is shown.
    pub(crate) fn fold_text(&self) -> Option<String> {
        self.fold_at.and_then(|at| self.list.get(at)).map(|message| content_of(message).text())
    }

    /// Returns the messages from the fold, or the frame, to the end of the first `groups` groups. A message that begins
    /// a turn comes with the turn's sequence number.
    pub(crate) fn messages_of(&self, groups: usize) -> impl Iterator<Item = (Option<u64>, &Arc<Message>)> {
        let from = self.fold_at.map_or(self.framed, |at| at + 1);
        let to = groups.checked_sub(1).and_then(|last| self.groups.get(last)).map_or(from, |last| last.end);
        let begins = |at: usize| {
            let place = self.groups.binary_search_by_key(&at, |group| group.start).ok()?;
            self.groups.get(place).map(|group| group.from)
        };
        (from..to).filter_map(move |at| Some((begins(at), self.list.get(at)?)))
    }
}

/// Returns the message with another text.
fn with_text(message: &Message, text: String) -> Arc<Message> {
    let content = Content::Text(text);
    Arc::new(match message {
        Message::Tool { tool_call_id, gate, .. } => {
            Message::Tool { tool_call_id: tool_call_id.clone(), gate: gate.clone(), content }
        }
        Message::System { .. } | Message::User { .. } | Message::Assistant { .. } => Message::User { content },
    })
}
