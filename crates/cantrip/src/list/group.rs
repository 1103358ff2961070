//! One utterance with all it caused, and how it reads.

use cantrip_canon::{CastId, TurnId};
use cantrip_loom::{Closing, Content, GateCall, GateRecord, Message, Output, TruncationReason, Utterance, render};

use super::frame::provider_of;
use super::{Closed, Frame, is_delegated};
use crate::limits::SAID_BYTES_MAX;

/// Why a turn cannot be taken into a list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CloseFault {
    #[error("turn {turn} continues an utterance that is not on its path")]
    NothingToContinue { turn: TurnId },
    #[error("turn {turn} belongs to no cast that has begun")]
    NoCast { turn: TurnId },
    #[error("cast {cast} is not among the casts of its thread")]
    CastUnknown { cast: CastId },
}

/// How often a gate was called, and how often in vain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deed {
    pub gate: String,
    pub calls: u64,
    pub failed: u64,
}

impl Deed {
    /// Adds up by gate, in the order in which gates were first called.
    pub(crate) fn add_all(to: &mut Vec<Self>, more: &[Self]) {
        for deed in more {
            match to.iter_mut().find(|known| known.gate == deed.gate) {
                Some(known) => {
                    known.calls += deed.calls;
                    known.failed += deed.failed;
                }
                None => to.push(deed.clone()),
            }
        }
    }
}

/// How a group came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The cast went on.
    Open,
    Terminated,
    Truncated(TruncationReason),
    /// A fork left the rest of it behind.
    Forked,
}

impl Ended {
    /// None while the group goes on in another turn.
    pub(super) fn by(closing: &Closing) -> Option<Self> {
        match closing {
            Closing::Open => Some(Self::Open),
            Closing::Sealed { .. } => None,
            Closing::Terminated { .. } => Some(Self::Terminated),
            Closing::Truncated { reason, .. } => Some(Self::Truncated(*reason)),
        }
    }

    /// How a call reads that left no record.
    fn not_run(self) -> String {
        match self {
            Self::Open => "[not run: no record]".to_owned(),
            Self::Terminated => "[skipped: done was called]".to_owned(),
            Self::Truncated(reason) => format!("[not run: {}]", reason.as_str()),
            Self::Forked => "[not run: forked here]".to_owned(),
        }
    }
}

/// The turns of a group as they come.
#[derive(Debug, Clone)]
pub(super) struct Parts {
    pub(super) from: u64,
    pub(super) to: u64,
    first: TurnId,
    pub(super) last: TurnId,
    pub(super) intent: usize,
    utterance: Utterance,
    outputs: Vec<Output>,
    records: Vec<GateRecord>,
    pub(super) tokens_prompt: u64,
    pub(super) tokens_completion: u64,
}

/// A group as messages.
pub(super) struct Told {
    pub(super) messages: Vec<Message>,
    /// It said something and nothing answered it.
    pub(super) silent: bool,
}

impl Parts {
    pub(super) fn opened(turn: &Closed<'_>, said: &Utterance, intent: usize) -> Self {
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

    pub(super) fn extend(&mut self, turn: &Closed<'_>) {
        self.to = turn.sequence;
        self.last = turn.id;
        self.outputs.extend_from_slice(turn.outputs);
        self.records.extend_from_slice(turn.gate_calls);
    }

    /// Settled calls by gate. A call that was delegated is counted where it settled.
    pub(super) fn deeds(&self) -> Vec<Deed> {
        let mut deeds = Vec::new();
        for record in self.records.iter().filter(|record| !is_delegated(record)) {
            let deed = Deed { gate: record.gate.clone(), calls: 1, failed: u64::from(record.is_error()) };
            Deed::add_all(&mut deeds, &[deed]);
        }
        deeds
    }

    pub(super) fn said(&self) -> Option<String> {
        let said = self.utterance.content.as_deref().map(str::trim).filter(|said| !said.is_empty())?;
        let end = said.floor_char_boundary(SAID_BYTES_MAX);
        Some(if end < said.len() { format!("{}...", &said[..end]) } else { said.to_owned() })
    }

    /// One assistant message, then one result per call in call order; or what a program in the text, or a person,
    /// answered.
    pub(super) fn messages(&self, frame: &Frame, ended: Ended) -> Told {
        let said = &self.utterance;
        let calls: Vec<GateCall> =
            said.calls.iter().enumerate().map(|(at, call)| self.shown(call, at, frame)).collect();
        let results = said.calls.iter().zip(&calls).map(|(call, shown)| Message::Tool {
            tool_call_id: shown.tool_call_id.clone(),
            gate: shown.gate.clone(),
            content: self.result(call, frame, ended).into(),
        });
        let mut messages = Vec::with_capacity(1 + said.calls.len());
        messages.extend(results);
        if said.calls.is_empty() && self.outputs.iter().any(|output| output.tool_call_id.is_none()) {
            messages.push(Message::User { content: self.output(None, frame, ended).into() });
        }
        let silent = messages.is_empty();
        let spoken = said.content.as_deref().filter(|content| !content.trim().is_empty());
        let parts = said.parts.clone().filter(|parts| frame.is_own(&parts.provider));
        messages.insert(0, Message::Assistant { content: spoken.map(Content::from), calls, parts });
        Told { messages, silent }
    }

    /// A call as it is shown: an id that another provider made is replaced by one of ours, the same every time.
    fn shown(&self, call: &GateCall, at: usize, frame: &Frame) -> GateCall {
        let own = match &self.utterance.parts {
            Some(parts) => frame.is_own(&parts.provider),
            // A bare model name does not say whose it is; then it is the crystal's own.
            None => !self.utterance.model.contains('/') || frame.is_own(provider_of(&self.utterance.model)),
        };
        if own { call.clone() } else { GateCall { tool_call_id: format!("{}_{}", self.first, at + 1), ..call.clone() } }
    }

    /// What came of a call.
    fn result(&self, call: &GateCall, frame: &Frame, ended: Ended) -> String {
        let id = Some(call.tool_call_id.as_str());
        if self.outputs.iter().any(|output| output.tool_call_id.as_deref() == id) {
            return self.output(id, frame, ended);
        }
        let own = || self.records.iter().filter(|record| record.tool_call_id.as_deref() == id);
        // In code the records with this id are those of the program; only one of its own name is the call's.
        let program = call.gate == frame.medium;
        match own().filter(|record| !program || record.gate == call.gate).find_map(render::call_text) {
            Some(text) => text,
            None if program && own().next().is_some() => self.output(id, frame, ended),
            None => ended.not_run(),
        }
    }

    /// The output of one program, joined over the turns it ran in.
    fn output(&self, id: Option<&str>, frame: &Frame, ended: Ended) -> String {
        let outputs = self.outputs.iter().filter(|output| output.tool_call_id.as_deref() == id);
        let joined = outputs.fold(nothing(), join);
        let left_open = ended == Ended::Forked && self.records.last().is_some_and(is_delegated);
        if left_open && self.records.last().is_some_and(|record| record.tool_call_id.as_deref() == id) {
            let lines = joined.environment_lost.iter().chain(&joined.console).cloned();
            return lines.chain([ended.not_run()]).collect::<Vec<_>>().join("\n");
        }
        render::output_text(&joined, self.from, &frame.medium)
    }
}

fn nothing() -> Output {
    Output {
        tool_call_id: None,
        clock_ms: None,
        console: Vec::new(),
        value: None,
        error: None,
        cut: 0,
        limit: None,
        rolled_back: false,
        environment_lost: None,
    }
}

/// What one program gave in an earlier turn and in a later one.
fn join(before: Output, after: &Output) -> Output {
    Output {
        tool_call_id: before.tool_call_id.or_else(|| after.tool_call_id.clone()),
        clock_ms: before.clock_ms.or(after.clock_ms),
        console: before.console.into_iter().chain(after.console.iter().cloned()).collect(),
        value: after.value.clone().or(before.value),
        error: after.error.clone().or(before.error),
        cut: before.cut + after.cut,
        limit: after.limit.clone().or(before.limit),
        rolled_back: before.rolled_back || after.rolled_back,
        environment_lost: before.environment_lost.or_else(|| after.environment_lost.clone()),
    }
}
