//! What does the log record about a call?
//!
//! One line with the message `call` and no data; at debug level the names of the first data keys; after a panic its
//! text, place and backtrace, redacted. A failing subscriber never fails the call: logging that can fail a call was
//! rejected, because the effect has already taken place when the line is written.

use std::time::Duration;

use cantrip_canon::{EntityId, Redactor, RunId, TurnId};
use tracing::{Level, enabled, event, field};

use crate::builder::Reply;
use crate::code::ReplyType;
use crate::limits::{LOGGED_KEYS_MAX, LOGGED_NAME_CHARS_MAX, PANIC_BACKTRACE_BYTES_MAX, PANIC_TEXT_BYTES_MAX};
use crate::message::{cut, one_line};
use crate::panics::{Panic, catch_panic};
use cantrip_trace::TraceId;

/// The target of every line written here.
const TARGET: &str = "cantrip::call";

/// The ids of the run, the entity and the turn of a call, as far as the caller knows them.
#[derive(Debug, Default)]
pub(crate) struct CallLocation {
    pub(crate) run_id: Option<RunId>,
    pub(crate) entity_id: Option<EntityId>,
    pub(crate) turn_id: Option<TurnId>,
    pub(crate) tool_call_id: Option<String>,
}

/// The fields of a log line that do not come from the reply.
pub(crate) struct Line<'a> {
    pub(crate) trace_id: TraceId,
    pub(crate) tool: &'a str,
    pub(crate) place: &'a CallLocation,
    pub(crate) duration: Duration,
    pub(crate) abandoned: bool,
}

/// Writes the log line of a call.
pub(crate) fn call(line: &Line<'_>, reply: &Reply, redactor: &Redactor) {
    // If the subscriber panics, there is no other place to report it.
    let _ = catch_panic(|| {
        let tool = name(line.tool, redactor);
        let tool_call_id = line.place.tool_call_id.as_deref().map(|id| name(id, redactor));
        macro_rules! write_at {
            ($level:expr) => {
                event!(
                    target: TARGET,
                    $level,
                    trace_id = %line.trace_id,
                    tool = tool.as_str(),
                    "type" = reply.reply_type().as_str(),
                    code = reply.code().as_str(),
                    duration_us = u64::try_from(line.duration.as_micros()).unwrap_or(u64::MAX),
                    run_id = line.place.run_id.map(field::display),
                    entity_id = line.place.entity_id.map(field::display),
                    turn_id = line.place.turn_id.map(field::display),
                    tool_call_id = tool_call_id.as_deref(),
                    abandoned = line.abandoned.then_some(true),
                    "call"
                )
            };
        }
        match reply.reply_type() {
            ReplyType::Success => write_at!(Level::INFO),
            ReplyType::Invalid | ReplyType::Denied => write_at!(Level::WARN),
            ReplyType::Failure => write_at!(Level::ERROR),
        }
        if enabled!(target: TARGET, Level::DEBUG) {
            let keys: Vec<_> = reply.data().keys().take(LOGGED_KEYS_MAX).map(|key| name(key, redactor)).collect();
            event!(target: TARGET, Level::DEBUG, trace_id = %line.trace_id, keys = ?keys, "call data");
        }
    });
}

/// Logs the details of a panic, which no reply shows.
pub(crate) fn panic(trace_id: TraceId, panic: &Panic, redactor: &Redactor) {
    let _ = catch_panic(|| {
        // Redact before truncating: a secret that is cut in half at the edge would not be found.
        let text = redactor.redact_text(&panic.text);
        let text = one_line(&text);
        let text = redactor.redact_text(&text);
        let backtrace = redactor.redact_text(&panic.backtrace);
        event!(
            target: TARGET,
            Level::ERROR,
            trace_id = %trace_id,
            text = cut(&text, PANIC_TEXT_BYTES_MAX),
            place = panic.place.as_str(),
            backtrace = cut(&backtrace, PANIC_BACKTRACE_BYTES_MAX),
            "panic"
        );
    });
}

/// Prepares a name that may come from a model for a log line.
fn name(text: &str, redactor: &Redactor) -> String {
    redactor.redact_text(&one_line(&redactor.redact_text(text))).chars().take(LOGGED_NAME_CHARS_MAX).collect()
}
