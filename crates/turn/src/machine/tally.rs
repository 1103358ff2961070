//! The work of a cast so far, counted for its limits and for the record of its end.

use cantrip_canon::{Hash, Money};
use cantrip_circle::Wards;
use cantrip_loom::{CostTotal, End, Ending, RecordValue, Usage, Utterance};
use serde_json::Value;

use super::CastFacts;
use super::position::ThreadPosition;
use crate::fold::describe_calls;
use crate::limits::{CUT_TEXTS_MAX, REPEATED_TEXTS_MAX, SAID_BYTES_MAX};
use crate::list::GateCallCount;

/// The counters of a cast.
#[derive(Debug, Default)]
pub(super) struct CastTally {
    turns: u64,
    utterances: u64,
    /// The number of children that this cast spawned.
    children: u64,
    /// The usage of all attempts that reported it.
    usage: Usage,
    /// The cost of all requests and calls of the cast.
    spent: CostTotal,
    calls: Vec<GateCallCount>,
    last_said: Option<String>,
    /// The marks of this cast's groups, for loop detection. A mark of `None` resets it.
    marks: Vec<Option<Hash>>,
    /// The mark of the last group and how often in a row it came, if the group was only a text.
    same_text: Option<(Hash, u64)>,
    /// True if the crystal was invited to write its programs into its text, because it repeated a text without a call.
    invites_programs: bool,
    /// The joined texts of the consecutive cut-off answers up to the last turn, and their number.
    cut_text: String,
    cut_texts: u32,
}

impl CastTally {
    pub(super) fn turns(&self) -> u64 {
        self.turns
    }

    pub(super) fn utterances(&self) -> u64 {
        self.utterances
    }

    pub(super) fn children(&self) -> u64 {
        self.children
    }

    /// Sets the text that an earlier cast under the same intent could not finish.
    pub(super) fn continue_text(&mut self, cut_text: String) {
        self.cut_text = cut_text;
    }

    pub(super) fn add_utterance(&mut self, said: &Utterance) {
        self.utterances += 1;
        if let Some(content) = said.content.as_deref().filter(|content| !content.trim().is_empty()) {
            self.last_said = Some(content.to_owned());
        }
    }

    /// Counts the usage and the cost of a request; a cost of none is unknown.
    pub(super) fn add_request(&mut self, usage: Option<&Usage>, cost: Option<Money>) {
        if let Some(usage) = usage {
            self.usage = self.usage.plus(usage);
        }
        self.spent.add(cost);
    }

    pub(super) fn add_children(&mut self, children: usize) {
        self.children += children as u64;
    }

    /// Counts a settled call; most calls have no cost.
    pub(super) fn add_call(&mut self, gate: &str, succeeded: bool, cost: Option<Money>) {
        if cost.is_some() {
            self.spent.add(cost);
        }
        let count = GateCallCount { gate: gate.to_owned(), calls: 1, failed: u64::from(!succeeded) };
        GateCallCount::add_all(&mut self.calls, &[count]);
    }

    pub(super) fn close_turn(&mut self) {
        self.turns += 1;
    }

    /// Counts a closed group; `text_mark` is its mark if it was only a complete text, and `cut_text` is its text if the
    /// answer was only a text that was cut off.
    pub(super) fn close_group(&mut self, mark: Option<Hash>, text_mark: Option<Hash>, cut_text: Option<&str>) {
        self.same_text = text_mark.map(|mark| (mark, self.repeated_texts(Some(Some(mark)))));
        self.invites_programs |= self.is_reminder_due();
        match cut_text {
            Some(text) => {
                self.cut_text.push_str(text);
                self.cut_texts += 1;
            }
            None => {
                self.cut_text.clear();
                self.cut_texts = 0;
            }
        }
        self.marks.push(mark);
    }

    /// Returns the whole text that ends with `last`: a text that was cut off before is its beginning.
    pub(super) fn whole_text(&self, last: &str) -> String {
        format!("{}{last}", self.cut_text)
    }

    /// Returns the last text, joined from all its pieces, if the crystal was cut off before finishing it.
    pub(super) fn cut_text(&self) -> Option<&str> {
        (self.cut_texts > 0).then_some(&*self.cut_text)
    }

    /// Returns true if the limit on consecutive cut-off texts is reached, with `open` more.
    pub(super) fn is_cut_too_often(&self, open: bool) -> bool {
        self.cut_texts + u32::from(open) >= CUT_TEXTS_MAX
    }

    /// Returns how often in a row the last text came without a call. `open` is the text mark of the open group, if there
    /// is an open group.
    pub(super) fn repeated_texts(&self, open: Option<Option<Hash>>) -> u64 {
        match (open, self.same_text) {
            (None, same) => same.map_or(0, |(_, count)| count),
            (Some(None), _) => 0,
            (Some(Some(mark)), Some((before, count))) if before == mark => count + 1,
            (Some(Some(_)), _) => 1,
        }
    }

    /// Returns true if one more repetition of the last text would end the cast: the next request says what is missing.
    pub(super) fn is_reminder_due(&self) -> bool {
        self.repeated_texts(None) + 1 >= REPEATED_TEXTS_MAX
    }

    /// Returns true if a program in a text is run although a tool is offered for programs: the template of a server may
    /// leave tools out, and then the crystal has never seen the tool.
    pub(super) fn invites_programs(&self) -> bool {
        self.invites_programs
    }

    /// Returns the loop pattern and its number of repetitions, if the ward is set and a loop is found. `open` is the
    /// mark of the open group.
    pub(super) fn detect_loop(&self, wards: &Wards, open: Option<Option<Hash>>) -> Option<(&'static str, u64)> {
        let loops = wards.loop_detected?;
        let longest = loops.repeats.max(loops.cycles.saturating_mul(2));
        let tail = self.marks.len().saturating_sub(usize::try_from(longest).unwrap_or(usize::MAX));
        let marks: Vec<_> = self.marks[tail..].iter().copied().chain(open).collect();
        let last = |count: u64| {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            marks.len().checked_sub(count).map(|from| &marks[from..])
        };
        if let Some(same) = last(loops.repeats)
            && let Some(Some(first)) = same.first()
            && same.iter().all(|mark| mark.as_ref() == Some(first))
        {
            return Some(("repeat", loops.repeats));
        }
        let pairs = last(loops.cycles.saturating_mul(2))?;
        let (Some(Some(one)), Some(Some(two))) = (pairs.first(), pairs.get(1)) else { return None };
        let alternates = pairs.chunks(2).all(|pair| pair == [Some(*one), Some(*two)]);
        (one != two && alternates).then_some(("ping-pong", loops.cycles))
    }

    /// Returns the record of the cast's end.
    pub(super) fn end(&self, facts: &CastFacts, position: &ThreadPosition, ending: Ending<RecordValue<Value>>) -> End {
        End {
            cast_id: facts.cast,
            ending,
            leaf: position.leaf(),
            turns: self.turns,
            utterances: self.utterances,
            usage: self.usage,
            cost: self.spent.cost(),
            uncosted: self.spent.uncosted(),
        }
    }

    /// Returns a summary of the cast, from the record alone.
    pub(super) fn summary(&self) -> String {
        let mut text = match self.utterances {
            1 => "1 utterance".to_owned(),
            utterances => format!("{utterances} utterances"),
        };
        text.push_str(&match self.turns {
            1 => " in 1 turn.".to_owned(),
            turns => format!(" in {turns} turns."),
        });
        if !self.calls.is_empty() {
            text.push_str(&describe_calls(&self.calls));
        }
        if let Some(said) = &self.last_said {
            let end = said.floor_char_boundary(SAID_BYTES_MAX);
            let cut = if self.cut_texts > 0 { ", cut off at the limit of its output" } else { "" };
            text.push_str(&format!(" Last said{cut}: {}", Value::from(&said[..end])));
        }
        text
    }
}
