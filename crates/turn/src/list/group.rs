//! One utterance with its results, and how it is rendered.

use cantrip_canon::{CastId, TurnId};
use cantrip_loom::render::{self, GroupEnd};
use cantrip_loom::{Closing, GateCall, GateCallCount, GateRecord, Message, OutputRecord, Settlement, Turn, Utterance};

use super::Frame;
use crate::limits::SAID_BYTES_MAX;

/// The reason why a turn cannot be added to a list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CloseFault {
    #[error("turn {turn} continues an utterance that is not on its path")]
    NothingToContinue { turn: TurnId },
    #[error("turn {turn} belongs to no cast that has begun")]
    NoCast { turn: TurnId },
    #[error("cast {cast} is not among the casts of its thread")]
    CastUnknown { cast: CastId },
}

/// The parts of a closed turn that the list needs.
#[derive(Debug, Clone, Copy)]
pub struct ClosedTurn<'a> {
    pub id: TurnId,
    pub sequence: u64,
    /// None if the turn continues the utterance of the turn before.
    pub utterance: Option<&'a Utterance>,
    pub outputs: &'a [OutputRecord],
    pub gate_calls: &'a [GateRecord],
    pub closing: &'a Closing,
    /// The token counts of the accepted answer; 0 if nobody counted.
    pub tokens_prompt: u64,
    pub tokens_completion: u64,
}

impl<'a> From<&'a Turn> for ClosedTurn<'a> {
    fn from(turn: &'a Turn) -> Self {
        Self {
            id: turn.id,
            sequence: turn.sequence,
            utterance: turn.utterance.as_ref(),
            outputs: &turn.outputs,
            gate_calls: &turn.gate_calls,
            closing: &turn.closing,
            tokens_prompt: turn.metadata.tokens_prompt,
            tokens_completion: turn.metadata.tokens_completion,
        }
    }
}

/// One closed utterance with its results, as it is in the list.
#[derive(Debug, Clone)]
pub struct Group {
    /// The sequence numbers of its first and last turn.
    pub from: u64,
    pub to: u64,
    /// The last turn of the group.
    pub last: TurnId,
    /// The gate calls of the group, counted by gate.
    pub deeds: Vec<GateCallCount>,
    /// The beginning of the utterance's text, if it has any.
    pub said: Option<String>,
    /// The estimated tokens of its messages, without the correction by `ratio`.
    pub tokens: f64,
    /// True if a fold shortened its results.
    pub shrunk: bool,
    /// The follow-up message if the cast continues and nothing answered the group.
    pub(super) said_after: &'static str,
    /// The index of the intent that the group works on.
    pub(super) intent: usize,
    /// The range of its messages. Messages between two groups, such as intents, are between the two ranges.
    pub(super) start: usize,
    pub(super) end: usize,
    /// The number of result messages behind the first message.
    pub(super) results: usize,
    /// The short text of each shortened result, by its position behind the first message.
    pub(super) shortened: Vec<(usize, String)>,
}

/// The turns of a group, collected as they are closed.
#[derive(Debug, Clone)]
pub(super) struct GroupParts {
    pub(super) from: u64,
    pub(super) to: u64,
    first: TurnId,
    pub(super) last: TurnId,
    pub(super) intent: usize,
    utterance: Utterance,
    outputs: Vec<OutputRecord>,
    records: Vec<GateRecord>,
    pub(super) tokens_prompt: u64,
    pub(super) tokens_completion: u64,
}

impl GroupParts {
    pub(super) fn opened(turn: &ClosedTurn<'_>, said: &Utterance, intent: usize) -> Self {
        Self {
            from: turn.sequence,
            to: turn.sequence,
            first: turn.id,
            last: turn.id,
            intent,
            utterance: said.clone(),
            outputs: turn.outputs.to_vec(),
            records: turn.gate_calls.to_vec(),
            tokens_prompt: turn.tokens_prompt,
            tokens_completion: turn.tokens_completion,
        }
    }

    pub(super) fn extend(&mut self, turn: &ClosedTurn<'_>) {
        self.to = turn.sequence;
        self.last = turn.id;
        self.outputs.extend_from_slice(turn.outputs);
        self.records.extend_from_slice(turn.gate_calls);
    }

    /// Returns the settled calls by gate. A delegated call is counted where it settled.
    pub(super) fn deeds(&self) -> Vec<GateCallCount> {
        let mut deeds = Vec::new();
        for record in self.records.iter().filter(|record| matches!(record.settlement, Settlement::Settled(_))) {
            let deed = GateCallCount { gate: record.gate.clone(), calls: 1, failed: u64::from(record.is_error()) };
            GateCallCount::add_all(&mut deeds, &[deed]);
        }
        deeds
    }

    /// Returns the follow-up message if the cast continues and nothing answered the group.
    pub(super) fn said_after(&self) -> &'static str {
        render::follow_up_text(&self.utterance)
    }

    pub(super) fn said(&self) -> Option<String> {
        let said = self.utterance.content.as_deref().map(str::trim).filter(|said| !said.is_empty())?;
        let end = said.floor_char_boundary(SAID_BYTES_MAX);
        Some(if end < said.len() { format!("{}...", &said[..end]) } else { said.to_owned() })
    }

    /// Returns the messages of the group for its crystal.
    pub(super) fn messages(&self, frame: &Frame, ended: GroupEnd) -> Vec<Message> {
        let said = &self.utterance;
        let calls = said.calls.iter().enumerate().map(|(at, call)| self.display_call(call, at, frame)).collect();
        let parts = said.parts.clone().filter(|parts| frame.is_own(&parts.maker));
        self.group(frame, ended).messages(calls, parts)
    }

    fn group<'a>(&'a self, frame: &'a Frame, ended: GroupEnd) -> render::Group<'a> {
        render::Group {
            from: self.from,
            utterance: &self.utterance,
            outputs: self.outputs.iter().collect(),
            records: self.records.iter().collect(),
            ended,
            medium: &frame.medium,
            results_bytes_max: render::results_bytes_max(frame.measure.window),
        }
    }

    /// Returns the messages as they were rendered before signed parts were sent back to providers: without those parts,
    /// and with our own call ids. None if there is no difference.
    pub(super) fn former_messages(&self, frame: &Frame, ended: GroupEnd) -> Option<Vec<Message>> {
        let maker = &self.utterance.parts.as_ref()?.maker;
        let differs = frame.is_own(maker) && maker.crystal().contains('/');
        differs.then(|| {
            let calls = self.utterance.calls.iter().enumerate().map(|(at, call)| self.renamed(call, at)).collect();
            self.group(frame, ended).messages(calls, None)
        })
    }

    fn renamed(&self, call: &GateCall, at: usize) -> GateCall {
        GateCall { tool_call_id: format!("{}_{}", self.first, at + 1), ..call.clone() }
    }

    /// Returns a call as it is shown: an id from another provider is replaced by our own id, the same each time.
    fn display_call(&self, call: &GateCall, at: usize, frame: &Frame) -> GateCall {
        let own = match &self.utterance.parts {
            Some(parts) => frame.is_own(&parts.maker),
            None => frame.is_own_model(&self.utterance.model),
        };
        if own { call.clone() } else { self.renamed(call, at) }
    }
}
