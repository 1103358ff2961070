//! One utterance with all its results, as messages.
//!
//! The messages for a crystal and an exported chat for training have the same text. One function renders a group,
//! because two functions would in time differ.

use super::{call_text_within, cut, output_text};
use crate::{
    Closing, Content, GateCall, GateRecord, Message, OutputRecord, ProviderParts, Settlement, TruncationReason,
    Utterance,
};

/// The way in which a group ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupEnd {
    /// The cast continued.
    Open,
    Terminated,
    Truncated(TruncationReason),
    /// A fork branched off within the group and left the rest of it out.
    Forked,
}

impl GroupEnd {
    /// Returns the end for a closing; none while the group continues in another turn.
    pub fn from_closing(closing: &Closing) -> Option<Self> {
        match closing {
            Closing::Open => Some(Self::Open),
            Closing::Sealed { .. } => None,
            Closing::Terminated { .. } => Some(Self::Terminated),
            Closing::Truncated { reason, .. } => Some(Self::Truncated(*reason)),
        }
    }

    /// Returns the text of a call that has no record.
    fn not_run(self) -> String {
        match self {
            Self::Open => "[not run: no record]".to_owned(),
            Self::Terminated => "[skipped: done was called]".to_owned(),
            Self::Truncated(reason) => format!("[not run: {}]", reason.as_str()),
            Self::Forked => "[not run: forked here]".to_owned(),
        }
    }
}

/// An utterance and its results, over all the turns of its group.
#[derive(Debug, Clone)]
pub struct Group<'a> {
    /// The sequence of its first turn.
    pub from: u64,
    pub utterance: &'a Utterance,
    pub outputs: Vec<&'a OutputRecord>,
    pub records: Vec<&'a GateRecord>,
    pub ended: GroupEnd,
    pub medium: &'a str,
    /// The limit for all its results together, in bytes; beyond it the longest results are cut.
    pub results_bytes_max: usize,
}

/// Returns the limit in bytes for the results of one group, for this context window if it is known. A list with more
/// bytes of results than its window has tokens could not be sent even alone.
pub fn results_bytes_max(window: Option<u64>) -> usize {
    window.and_then(|window| usize::try_from(window).ok()).unwrap_or(usize::MAX)
}

impl Group<'_> {
    /// Returns one assistant message, then one result per call in call order. If the utterance has no calls, the
    /// output of the program in its text, or the answer of a person, follows as a user message. `calls` and `parts`
    /// are those of the utterance, as far as the reader may see them.
    pub fn messages(&self, calls: Vec<GateCall>, parts: Option<ProviderParts>) -> Vec<Message> {
        let said = self.utterance;
        let spoken = said.content.as_deref().filter(|content| !content.trim().is_empty());
        let results: Vec<Message> = calls
            .iter()
            .zip(self.results())
            .map(|(shown, text)| Message::Tool {
                tool_call_id: shown.tool_call_id.clone(),
                gate: shown.gate.clone(),
                content: text.into(),
            })
            .collect();
        let mut messages = vec![Message::Assistant { content: spoken.map(Content::from), calls, parts }];
        messages.extend(results);
        let outputs = self.outputs.iter().map(|output| &output.tool_call_id);
        let records = self.records.iter().map(|record| &record.tool_call_id);
        if said.calls.is_empty() && outputs.chain(records).any(Option::is_none) {
            messages.push(Message::User { content: cut(self.output(None), self.results_bytes_max).into() });
        }
        messages
    }

    /// Returns the result of each call. Room that short results do not need is given to the long ones.
    fn results(&self) -> Vec<String> {
        let within = |most| self.utterance.calls.iter().map(|call| self.result(call, most)).collect();
        let texts: Vec<String> = within(usize::MAX);
        if texts.iter().map(String::len).sum::<usize>() <= self.results_bytes_max {
            return texts;
        }
        within(fair_share(texts.iter().map(String::len).collect(), self.results_bytes_max))
    }

    /// Returns the result of a call, in at most `most` bytes and a note.
    fn result(&self, call: &GateCall, most: usize) -> String {
        let id = Some(call.tool_call_id.as_str());
        if self.outputs.iter().any(|output| output.tool_call_id.as_deref() == id) {
            return cut(self.output(id), most);
        }
        let own = || self.records.iter().copied().filter(|record| record.tool_call_id.as_deref() == id);
        // In a code medium the records with this id are those of the program; only a record with the call's own gate
        // is the call's.
        let program = call.gate == self.medium;
        let shown = |record: &GateRecord| call_text_within(record, most);
        match own().filter(|record| !program || record.gate == call.gate).find_map(shown) {
            Some(text) => text,
            None if program && own().next().is_some() => cut(self.output(id), most),
            None => self.ended.not_run(),
        }
    }

    /// Returns the output of one program, joined over the turns it ran in.
    fn output(&self, id: Option<&str>) -> String {
        let outputs = self.outputs.iter().filter(|output| output.tool_call_id.as_deref() == id);
        let joined = outputs.fold(OutputRecord::default(), |before, after| before.merge(after));
        if self.ended == GroupEnd::Forked && self.left_open(id) {
            let lines = joined.environment_lost.iter().chain(&joined.console).cloned();
            return lines.chain([self.ended.not_run()]).collect::<Vec<_>>().join("\n");
        }
        output_text(&joined, self.from, self.medium)
    }

    /// Returns true if a program still waits for a delegation, and the delegation is the last record.
    fn left_open(&self, id: Option<&str>) -> bool {
        self.records.last().is_some_and(|record| match record.settlement {
            Settlement::Delegated => record.tool_call_id.as_deref() == id,
            Settlement::Settled(_) => false,
        })
    }
}

/// Returns the maximum length of each text so that all of them together fill `room`.
fn fair_share(mut lengths: Vec<usize>, room: usize) -> usize {
    lengths.sort_unstable();
    let (mut left, mut texts) = (room, lengths.len());
    for length in lengths {
        if length > left / texts {
            return left / texts;
        }
        left -= length;
        texts -= 1;
    }
    left
}
