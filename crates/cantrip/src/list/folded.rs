//! The list after a fold: what is kept, and what is told of the rest.

use std::sync::Arc;

use cantrip_loom::{Content, Message};

use super::{Deed, Mark, View, content_of};

/// What a fold stands for, added up over all folds of the thread.
#[derive(Debug, Clone, Default)]
pub struct Folded {
    /// Sequences of the first and the last turn; none while nothing is folded.
    pub turns: Option<(u64, u64)>,
    pub deeds: Vec<Deed>,
    pub said: Option<String>,
}

impl View {
    /// Puts a text in the place of all turns up to `to`. What was folded before is part of it, so that at most one fold
    /// shows; a group that reaches beyond `to` stays whole.
    pub fn fold(&mut self, to: u64, text: &str) {
        let kept_from = self.groups.partition_point(|group| group.to <= to);
        let kept = self.groups.split_off(kept_from);
        let gone = std::mem::replace(&mut self.groups, kept);
        if let Some(first) = gone.first() {
            let from = self.folded.turns.map_or(first.from, |(from, _)| from);
            self.folded.turns = Some((from, gone.last().map_or(first.to, |last| last.to)));
        }
        let shown_from = self.groups.first().map(|group| group.intent);
        let shown_from = shown_from.or(self.current.as_ref().map(|current| current.intent)).unwrap_or(0);
        for group in &gone {
            Deed::add_all(&mut self.folded.deeds, &group.deeds);
        }
        self.folded.said = gone.iter().rev().find_map(|group| group.said.clone()).or(self.folded.said.take());
        self.relist(shown_from, gone.last().map_or(self.framed, |last| last.end), text);
    }

    /// Begins the list anew: the frame, the intent, the fold, and what stood behind place `from`.
    fn relist(&mut self, intent: usize, from: usize, text: &str) {
        let old = std::mem::take(&mut self.list);
        let began = self.current.as_ref().and_then(|current| current.began.as_ref()).map(|mark| mark.length);
        let nudged = self.nudged.take().map(|mark| mark.length);
        self.anchor = None;
        self.begin_list();
        let told = self.intents.get(intent).cloned();
        if let Some(told) = &told {
            self.push(Arc::clone(told));
        }
        self.push(Message::User { content: text.into() }.into());
        // What stands behind moves by the same distance, except an intent that was told above.
        let mut places = Vec::with_capacity(old.len().saturating_sub(from));
        for at in from..old.len() {
            if began == Some(at) {
                self.remark();
            }
            if nudged == Some(at) {
                self.nudged = Some(Mark { nudge_due: true, ..self.mark() });
            }
            places.push(self.list.len());
            let Some(message) = old.get(at) else { continue };
            if told.as_ref().is_some_and(|told| Arc::ptr_eq(told, message)) {
                continue;
            }
            self.push(Arc::clone(message));
        }
        if began == Some(old.len()) {
            self.remark();
        }
        let end = self.list.len();
        let moved = |at: usize| at.checked_sub(from).and_then(|at| places.get(at)).copied().unwrap_or(end);
        for group in &mut self.groups {
            (group.start, group.end) = (moved(group.start), moved(group.end));
        }
    }

    fn remark(&mut self) {
        let mark = self.mark();
        if let Some(current) = &mut self.current {
            current.began = Some(mark);
        }
    }

    /// What the fold that shows stands for.
    pub fn folded(&self) -> &Folded {
        &self.folded
    }

    /// The intents of which no group is left once the first `place` groups are folded, oldest first.
    pub fn intents_before(&self, place: usize) -> Vec<Content> {
        let shown = self.groups.get(place).map(|group| group.intent);
        let shown = shown.or(self.current.as_ref().map(|current| current.intent)).unwrap_or(0);
        self.intents[..shown.min(self.intents.len())].iter().map(|told| content_of(told)).collect()
    }
}
