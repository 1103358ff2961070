//! Secrets are taken out of what a view holds, and counted.

use cantrip_service::cantrip::PendingApproval;
use cantrip_service::cantrip::canon::Redactor;
use cantrip_service::cantrip::loom::{
    CancelledIntent, Cast, CastParked, CastView, Closing, Content, Ending, EntityView, FileChange, FoldView,
    GateRecord, IntentRecord, OutputRecord, Part, RecordValue, RecordedError, RewardView, RunSummary, Settlement,
    ThreadSummary, Turn, Utterance,
};
use serde_json::{Map, Value};

use crate::Views;

/// The text that replaces a secret.
const MARKER: &str = "[REDACTED]";

impl Views<'_> {
    /// Returns the text without secrets.
    pub fn redact_text(&self, text: &str) -> String {
        Redaction::of(self).text(text.to_owned())
    }

    /// Returns the value without secrets, at any depth.
    pub fn redact_value(&self, value: &Value) -> Value {
        Redaction::of(self).value(value.clone())
    }

    pub(crate) fn text(&self, text: String) -> String {
        Redaction::of(self).text(text)
    }

    pub(crate) fn value(&self, value: Value) -> Value {
        Redaction::of(self).value(value)
    }
}

/// Takes secrets out of values and counts them.
#[derive(Debug)]
pub(crate) struct Redaction<'a> {
    redactor: Option<&'a Redactor>,
    pub(crate) count: u64,
}

impl<'a> Redaction<'a> {
    pub(crate) fn of(views: &'a Views<'_>) -> Self {
        Self { redactor: views.redactor.as_ref(), count: 0 }
    }

    pub(crate) fn text(&mut self, text: String) -> String {
        let Some(redactor) = self.redactor else { return text };
        let shown = redactor.redact_text(&text);
        if let std::borrow::Cow::Borrowed(_) = shown {
            return text;
        }
        let shown = shown.into_owned();
        self.count += occurrences(&shown).saturating_sub(occurrences(&text)).max(1);
        shown
    }

    fn texts(&mut self, texts: Vec<String>) -> Vec<String> {
        texts.into_iter().map(|text| self.text(text)).collect()
    }

    fn optional(&mut self, text: Option<String>) -> Option<String> {
        text.map(|text| self.text(text))
    }

    pub(crate) fn value(&mut self, value: Value) -> Value {
        let Some(redactor) = self.redactor else { return value };
        let shown = redactor.redact_value(&value);
        if shown != value {
            self.count += marks(&shown).saturating_sub(marks(&value)).max(1);
        }
        shown
    }

    fn map(&mut self, map: Map<String, Value>) -> Map<String, Value> {
        match self.value(Value::Object(map)) {
            Value::Object(map) => map,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
        }
    }

    pub(crate) fn content(&mut self, content: Content) -> Content {
        match content {
            Content::Text(text) => Content::Text(self.text(text)),
            Content::Parts(parts) => Content::Parts(parts.into_iter().map(|part| self.part(part)).collect()),
        }
    }

    fn part(&mut self, part: Part) -> Part {
        match part {
            Part::Text { text } => Part::Text { text: self.text(text) },
            Part::Image { media_type, image } => Part::Image { media_type, image },
        }
    }

    pub(crate) fn error(&mut self, error: RecordedError) -> RecordedError {
        RecordedError { message: self.text(error.message), ..error }
    }

    pub(crate) fn turn(&mut self, turn: Turn) -> Turn {
        Turn {
            intent: turn.intent.map(|intent| self.content(intent)),
            utterance: turn.utterance.map(|utterance| self.utterance(utterance)),
            outputs: turn.outputs.into_iter().map(|output| self.output(output)).collect(),
            gate_calls: turn.gate_calls.into_iter().map(|record| self.gate_record(record)).collect(),
            closing: self.closing(turn.closing),
            ..turn
        }
    }

    fn closing(&mut self, closing: Closing) -> Closing {
        match closing {
            Closing::Truncated { reason, error } => {
                Closing::Truncated { reason, error: error.map(|error| self.error(error)) }
            }
            Closing::Open | Closing::Sealed { .. } | Closing::Terminated { .. } => closing,
        }
    }

    pub(crate) fn utterance(&mut self, utterance: Utterance) -> Utterance {
        Utterance {
            content: self.optional(utterance.content),
            thinking: self.optional(utterance.thinking),
            calls: utterance
                .calls
                .into_iter()
                .map(|mut call| {
                    call.args = self.value(call.args);
                    call
                })
                .collect(),
            // No surface shows the data that a provider needs back, and nobody has redacted it.
            parts: None,
            ..utterance
        }
    }

    fn output(&mut self, output: OutputRecord) -> OutputRecord {
        let mut output = output;
        output.console = self.texts(output.console);
        output.value = self.optional(output.value);
        output.error = output.error.map(|mut error| {
            error.message = self.text(error.message);
            error
        });
        output.environment_lost = self.optional(output.environment_lost);
        output.reply = output.reply.map(|mut reply| {
            reply.message = self.optional(reply.message);
            reply
        });
        output
    }

    fn gate_record(&mut self, record: GateRecord) -> GateRecord {
        let settlement = match record.settlement {
            Settlement::Delegated => Settlement::Delegated,
            Settlement::Settled(mut settled) => {
                settled.result = self.value(std::mem::take(&mut settled.result));
                settled.data = self.map(std::mem::take(&mut settled.data));
                let changes = std::mem::take(&mut settled.changes);
                settled.changes = changes.into_iter().map(|change| self.change(change)).collect();
                Settlement::Settled(settled)
            }
        };
        GateRecord { args: self.value(record.args), settlement, ..record }
    }

    fn change(&mut self, change: FileChange) -> FileChange {
        FileChange { path: self.text(change.path), ..change }
    }

    pub(crate) fn cast(&mut self, cast: CastView) -> CastView {
        let outcome = cast.outcome.map(|mut outcome| {
            outcome.ending = match outcome.ending {
                Ending::Terminated { ended_by, result } => Ending::Terminated { ended_by, result: self.value(result) },
                Ending::Truncated { reason, error, summary } => Ending::Truncated {
                    reason,
                    error: error.map(|error| self.error(error)),
                    summary: self.text(summary),
                },
            };
            outcome
        });
        let cancelled = cast.cancelled.into_iter().map(|intent| self.content(intent)).collect();
        let record = self.cast_record(cast.cast);
        CastView { cast: record, intent: self.content(cast.intent), cancelled, outcome, ..cast }
    }

    /// The record of a cast holds its intent once more.
    fn cast_record(&mut self, mut cast: Cast) -> Cast {
        cast.intent = match cast.intent {
            IntentRecord::New(intent) => IntentRecord::New(self.recorded(intent, Self::content)),
            IntentRecord::Of(earlier) => IntentRecord::Of(earlier),
        };
        cast.cancelled = std::mem::take(&mut cast.cancelled)
            .into_iter()
            .map(|told| CancelledIntent { intent: self.recorded(told.intent, Self::content), ..told })
            .collect();
        cast
    }

    /// Takes secrets out of a value that its record holds. A body is only named.
    fn recorded<T>(&mut self, value: RecordValue<T>, redact: impl FnOnce(&mut Self, T) -> T) -> RecordValue<T> {
        match value {
            RecordValue::Inline { inline } => RecordValue::Inline { inline: redact(self, inline) },
            RecordValue::Body(body) => RecordValue::Body(body),
        }
    }

    pub(crate) fn entity(&mut self, mut entity: EntityView) -> EntityView {
        entity.entity.context = entity.entity.context.map(|context| self.recorded(context, Self::value));
        entity
    }

    pub(crate) fn summary(&mut self, summary: RunSummary) -> RunSummary {
        let (intent, answer) = (self.optional(summary.intent), self.optional(summary.answer));
        RunSummary { intent, answer, ..summary }
    }

    pub(crate) fn thread(&mut self, thread: ThreadSummary) -> ThreadSummary {
        ThreadSummary { intent: self.optional(thread.intent), ..thread }
    }

    pub(crate) fn threads(&mut self, threads: Vec<ThreadSummary>) -> Vec<ThreadSummary> {
        threads.into_iter().map(|thread| self.thread(thread)).collect()
    }

    pub(crate) fn fold(&mut self, fold: FoldView) -> FoldView {
        let mut fold = fold;
        fold.fold.text = self.recorded(fold.fold.text, Self::text);
        FoldView { text: self.text(fold.text), ..fold }
    }

    pub(crate) fn reward(&mut self, reward: RewardView) -> RewardView {
        RewardView { note: self.optional(reward.note), ..reward }
    }

    pub(crate) fn parked(&mut self, parked: CastParked) -> CastParked {
        let error = parked.error.map(|error| self.error(error));
        CastParked { error, detail: self.optional(parked.detail), ..parked }
    }

    pub(crate) fn pending(&mut self, pending: PendingApproval) -> PendingApproval {
        let (args, reasons) = (self.value(pending.args), self.value(pending.reasons));
        PendingApproval { args, reasons, ..pending }
    }
}

fn occurrences(text: &str) -> u64 {
    text.matches(MARKER).count() as u64
}

/// Counts the replaced secrets in a value, keys included.
fn marks(value: &Value) -> u64 {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => occurrences(text),
        Value::Array(items) => items.iter().map(marks).sum(),
        Value::Object(entries) => entries.iter().map(|(key, entry)| occurrences(key) + marks(entry)).sum(),
    }
}
