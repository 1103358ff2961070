//! The text of a turn, for readers and for the crystal.
//!
//! Rendering is a view: nothing here is stored, and the same turns give the same bytes.

mod group;

use cantrip_canon::{CastId, TurnId, json};
use serde_json::Value;

use crate::limits::RESULT_SHOWN_BYTES_MAX;
use crate::{
    CastView, Content, Entity, Environment, Finish, GateRecord, IntentRecord, Message, OutputRecord, Settlement,
    Thread, Turn, Utterance,
};

pub use group::{Group, GroupEnd, results_bytes_max};

/// The message after a text that did not end its cast.
pub const NUDGE: &str = "Continue. Call done with your answer when the task is finished.";
/// The message after a text that was cut off at the output limit of its crystal.
pub const CUT: &str = "Your answer was cut off at the limit of its output tokens. Continue exactly where it ended, without repeating anything.";
/// The placeholder for the answer to an intent that was cancelled before its first turn was closed.
pub const CANCELLED: &str = "[cancelled before an answer]";
/// The notice to a fork that begins without the variables of the turns it shares.
pub const FRESH: &str = "[environment: fresh; earlier variables are gone]";

/// Returns the message after an utterance that is only text, if its cast continues.
pub fn follow_up_text(utterance: &Utterance) -> &'static str {
    match utterance.finish {
        Finish::Length => CUT,
        Finish::Stop | Finish::Calls | Finish::Refusal | Finish::Other(_) => NUDGE,
    }
}

/// Returns the text of a gate's result: a string as it is, anything else as canonical JSON, cut to the display limit.
pub fn result_text(result: &Value) -> String {
    result_text_within(result, RESULT_SHOWN_BYTES_MAX)
}

fn result_text_within(result: &Value, most: usize) -> String {
    let text = match result.as_str() {
        Some(text) => text.to_owned(),
        // A value without a canonical form is never recorded, but it may be displayed before that check.
        None => json::canonical(result).unwrap_or_else(|_| result.to_string()),
    };
    cut(text, most)
}

/// Returns the first `most` bytes of a text with a note of its full length; a text that is not longer is unchanged.
pub(crate) fn cut(text: String, most: usize) -> String {
    if text.len() <= most {
        return text;
    }
    let end = text.floor_char_boundary(most);
    format!("{}\n[cut: {} of {} bytes are shown]", &text[..end], end, text.len())
}

/// Returns the text of a settled call in the message list; none for a delegated call, which settles in a later turn.
pub fn call_text(record: &GateRecord) -> Option<String> {
    call_text_within(record, RESULT_SHOWN_BYTES_MAX)
}

/// Returns the text of a settled call, cut to `most` bytes.
pub(crate) fn call_text_within(record: &GateRecord, most: usize) -> Option<String> {
    match &record.settlement {
        Settlement::Delegated => None,
        Settlement::Settled(_) if record.ephemeral => Some(format!("[ephemeral:{}]", record.gate)),
        Settlement::Settled(settled) => Some(result_text_within(&settled.result, most.min(RESULT_SHOWN_BYTES_MAX))),
    }
}

/// Returns the text of a program's output in turn `sequence`.
pub fn output_text(output: &OutputRecord, sequence: u64, medium: &str) -> String {
    let extension = match medium {
        "javascript" => "js",
        "python" => "py",
        other => other,
    };
    let mut lines: Vec<String> = output.environment_lost.iter().cloned().collect();
    lines.extend(output.console.iter().cloned());
    match (&output.error, &output.value) {
        (Some(error), _) => {
            let line = error.line.map(|line| format!(":{line}")).unwrap_or_default();
            let column = error.column.map(|column| format!(":{column}")).unwrap_or_default();
            lines.push(format!("{}: {} (turn-{sequence}.{extension}{line}{column})", error.name, error.message));
        }
        (None, Some(value)) => lines.push(format!("=> {value}")),
        (None, None) if output.console.is_empty() => lines.push("(no output)".to_owned()),
        (None, None) => {}
    }
    if output.cut > 0 {
        lines.push(format!("[{} bytes of output are not shown]", output.cut));
    }
    if let Some(limit) = &output.limit {
        lines.push(format!("[stopped: {limit}]"));
    }
    if output.rolled_back {
        lines.push("[variables are as before this program; calls already made stand]".to_owned());
    }
    if let Some(left) = output.left {
        lines.push(format!("[iterations left: {left}]"));
    }
    lines.join("\n")
}

/// Returns everything that the circle answered in a turn, as one text.
pub fn observation(turn: &Turn, medium: &str) -> String {
    let outputs = turn.outputs.iter().map(|output| output_text(output, turn.sequence, medium));
    let results = turn.gate_calls.iter().filter_map(|record| match &record.settlement {
        Settlement::Delegated => None,
        Settlement::Settled(settled) => Some(result_text(&settled.result)),
    });
    outputs.chain(results).collect::<Vec<_>>().join("\n")
}

/// Returns the share of a turn's settled calls and programs that succeeded; none if the turn had neither. It is
/// computed on each call and never stored.
pub fn implicit_reward(turn: &Turn) -> Option<f64> {
    let calls = turn.gate_calls.iter().filter_map(|record| match &record.settlement {
        Settlement::Delegated => None,
        Settlement::Settled(settled) => Some(settled.reply.is_success()),
    });
    let succeeded: Vec<bool> = calls.chain(turn.outputs.iter().map(|output| !output.is_error())).collect();
    if succeeded.is_empty() {
        return None;
    }
    Some(succeeded.iter().filter(|succeeded| **succeeded).count() as f64 / succeeded.len() as f64)
}

/// Returns the turns of a thread that belong to its entity: from its first turn on, or from the root of the entity it
/// branched off from.
pub fn own_turns(thread: &Thread) -> &[Turn] {
    let start = thread.turns.iter().rposition(|turn| turn.spawned_by.is_some()).unwrap_or(0);
    &thread.turns[start..]
}

/// A message, and the turn it comes from.
pub type TurnMessage = (Message, Option<TurnId>);

/// Returns the whole thread as messages, without folds: the system prompt, then each intent and group in its place.
pub fn messages(thread: &Thread, system_prompt: Option<&str>) -> Vec<TurnMessage> {
    let mut told: Vec<TurnMessage> = Vec::new();
    if let Some(prompt) = system_prompt {
        told.push((Message::System { content: prompt.into() }, None));
    }
    let mut rest = own_turns(thread);
    let mut intents = Intents::of(thread);
    while let Some(first) = rest.first() {
        let group = 1 + rest[1..].iter().take_while(|turn| turn.continuation_of.is_some()).count();
        let (turns, after) = rest.split_at(group);
        let begun = intents.begun_by(first);
        if let (Some((silent, said)), None) = (intents.silent, begun) {
            told.push((Message::User { content: said.into() }, Some(silent)));
        }
        let mut tell = |message| told.push((message, Some(first.id)));
        match first.forked_from.map(|fork| fork.environment) {
            Some(Environment::Fresh) => tell(Message::User { content: FRESH.into() }),
            Some(Environment::None | Environment::Snapshot | Environment::Replay) | None => {}
        }
        if let Some(begun) = begun {
            begun.cancelled.iter().flat_map(cancelled_messages).for_each(&mut tell);
            tell(Message::User { content: begun.intent.clone() });
        }
        let messages = group_messages(turns, &thread.entity.entity);
        intents.silent =
            (messages.len() == 1).then(|| (first.id, first.utterance.as_ref().map_or(NUDGE, follow_up_text)));
        messages.into_iter().for_each(&mut tell);
        rest = after;
    }
    told
}

/// The intents of a thread that have been rendered so far.
struct Intents<'a> {
    casts: &'a [CastView],
    begun: Vec<CastId>,
    last: Option<&'a Content>,
    /// The previous group if it was only text, without a result, and the message that follows it.
    silent: Option<(TurnId, &'static str)>,
}

impl<'a> Intents<'a> {
    fn of(thread: &'a Thread) -> Self {
        Self { casts: &thread.casts, begun: Vec::new(), last: None, silent: None }
    }

    /// Returns the intent to render before this turn: the intent of a cast that begins here and does not continue
    /// under an intent that was rendered already. A cast without a turn is on no path, so a cast that continues under
    /// it may name a cast that is unknown here; then the intent itself is compared.
    fn begun_by(&mut self, turn: &Turn) -> Option<&'a CastView> {
        if self.begun.last() == Some(&turn.cast_id) {
            return None;
        }
        let view = self.casts.iter().find(|view| view.cast.cast_id == turn.cast_id)?;
        let told = match view.cast.intent {
            IntentRecord::New(_) => false,
            IntentRecord::Of(earlier) => self.begun.contains(&earlier) || self.last == Some(&view.intent),
        };
        self.begun.push(turn.cast_id);
        if told {
            return None;
        }
        self.last = Some(&view.intent);
        Some(view)
    }
}

/// Returns the messages of an intent that was cancelled before an answer: the intent, and a placeholder instead of the
/// answer, so that the roles still alternate.
pub fn cancelled_messages(intent: &Content) -> [Message; 2] {
    let marker = Message::Assistant { content: Some(CANCELLED.into()), calls: Vec::new(), parts: None };
    [Message::User { content: intent.clone() }, marker]
}

/// Returns the messages of one group, with all provider parts.
fn group_messages(turns: &[Turn], entity: &Entity) -> Vec<Message> {
    let Some((first, last)) = turns.first().zip(turns.last()) else { return Vec::new() };
    let Some(utterance) = &first.utterance else { return Vec::new() };
    let group = Group {
        from: first.sequence,
        utterance,
        outputs: turns.iter().flat_map(|turn| &turn.outputs).collect(),
        records: turns.iter().flat_map(|turn| &turn.gate_calls).collect(),
        ended: GroupEnd::from_closing(&last.closing).unwrap_or(GroupEnd::Forked),
        medium: &entity.medium,
        results_bytes_max: results_bytes_max(entity.window),
    };
    group.messages(utterance.calls.clone(), utterance.parts.clone())
}
