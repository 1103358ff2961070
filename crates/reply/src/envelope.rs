//! What is sent over the wire, and with which status?
//!
//! The envelope is for `serve` and `cli` only. Only they call [`Envelope::of`], and from it they get the HTTP status,
//! the delay of `Retry-After` and the exit status. All crates below them return a [`Reply`] and know no transport.
//! A status on each row of the registry was rejected: then every crate would carry the mapping of one wire format.

use std::time::Duration;

use cantrip_canon::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::builder::Reply;
use crate::code::{Advice, AnyCode, Area, Layer, ReplyType};
use crate::codes;
use crate::exit_status::ExitStatus;
use crate::guard::Meta;

/// A serialized reply: seven keys, always all of them, in this order.
#[derive(Debug, Serialize)]
pub struct Envelope {
    status: &'static str,
    reply_type: ReplyType,
    code: AnyCode,
    message: String,
    data: Map<String, Value>,
    meta: MetaWritten,
    error: Option<ErrorWritten>,
    #[serde(skip)]
    ended_at: Timestamp,
}

#[derive(Debug, Serialize)]
struct MetaWritten {
    trace_id: String,
    duration_ms: u64,
}

#[derive(Debug, Serialize)]
struct ErrorWritten {
    code: AnyCode,
    message: String,
    retry: Advice,
}

/// The codes whose HTTP status is not derived from layer, area and type.
const STATUS_BY_CODE: [(AnyCode, u16); 9] = [
    (codes::CURSOR_STALE.any(), 410),
    (codes::CURSOR_INVALID.any(), 400),
    (codes::LIMIT.any(), 413),
    (codes::CONTRACT_INVALID.any(), 422),
    (codes::UNAUTHENTICATED.any(), 401),
    (codes::RATE_LIMITED.any(), 503),
    (codes::OVERLOADED.any(), 503),
    (codes::STORE_UNAVAILABLE.any(), 503),
    (codes::TIMED_OUT.any(), 504),
];

impl Envelope {
    /// Makes the envelope of a reply. Only `serve` and `cli` call this.
    pub fn of(reply: Reply, meta: &Meta) -> Self {
        let (code, message) = (reply.code(), reply.message());
        Self {
            status: status(reply.reply_type()),
            reply_type: reply.reply_type(),
            code,
            error: reply.advice().map(|retry| ErrorWritten { code, message: message.clone(), retry }),
            message,
            meta: MetaWritten { trace_id: meta.trace_id().to_string(), duration_ms: meta.duration_ms() },
            data: reply.into_data(),
            ended_at: meta.ended_at(),
        }
    }

    /// The type as a word: success, invalid, denied, error.
    pub fn status(&self) -> &'static str {
        self.status
    }

    pub fn reply_type(&self) -> ReplyType {
        self.reply_type
    }

    pub fn code(&self) -> AnyCode {
        self.code
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    pub fn data(&self) -> &Map<String, Value> {
        &self.data
    }

    pub fn trace_id(&self) -> &str {
        &self.meta.trace_id
    }

    /// Serializes the envelope as one line of JSON, without a line end.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("text, numbers and JSON values always serialise")
    }

    pub fn http_status(&self) -> u16 {
        if let Some((_, status)) = STATUS_BY_CODE.iter().find(|(code, _)| *code == self.code) {
            return *status;
        }
        match self.reply_type {
            ReplyType::Success => self.success_status(),
            ReplyType::Invalid => match self.code.area() {
                Area::Res | Area::Read => 404,
                Area::Val | Area::Exec => 422,
                Area::Gate | Area::Log | Area::Write => 409,
                Area::Parse | Area::Cfg | Area::Sys | Area::Vis | Area::Io | Area::Db => 400,
            },
            ReplyType::Denied => 403,
            ReplyType::Failure if self.code.layer() == Layer::Mcp && self.code.area() == Area::Io => 502,
            ReplyType::Failure => 500,
        }
    }

    /// Created is 201, or 202 while the work continues.
    fn success_status(&self) -> u16 {
        if self.code != codes::CREATED {
            return 200;
        }
        match self.data.get("state").and_then(Value::as_str) {
            Some("queued" | "running" | "waiting") => 202,
            Some(_) | None => 201,
        }
    }

    /// The delay before a retry, in whole seconds rounded up, if the advice is to wait and the delay is known: from the
    /// data field `retry_after_ms`, or from `resets_at` and the time at which the call ended.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.error.as_ref()?.retry {
            Advice::Wait => {}
            Advice::FixAndRetry | Advice::AskScope | Advice::Stop => return None,
        }
        let millis = match self.data.get("retry_after_ms").and_then(Value::as_u64) {
            Some(millis) => millis,
            None => {
                let resets_at: Timestamp = self.data.get("resets_at")?.as_str()?.parse().ok()?;
                u64::try_from(resets_at.unix_millis() - self.ended_at.unix_millis()).unwrap_or(0)
            }
        };
        Some(Duration::from_secs(millis.div_ceil(1_000)))
    }

    /// Returns the exit status of a command after this envelope: the status of the reply's type, except that a success
    /// whose run still waits is `Waiting` or `Interrupted`. `data.state` says that the run waits, and `data.reason`
    /// whether a person interrupted it. If `state` describes something other than the run, `data.run_state` is the
    /// state of the run.
    pub fn exit_status(&self) -> ExitStatus {
        let text = |key: &str| self.data.get(key).and_then(Value::as_str);
        // Only these two codes can leave a run waiting; a command that only reads a waiting run succeeds.
        if self.code == codes::CHANGED && text("run_state") == Some("waiting") {
            return ExitStatus::Waiting;
        }
        if self.code != codes::CREATED || text("state") != Some("waiting") {
            return self.reply_type.into();
        }
        if text("reason") == Some("interrupted") { ExitStatus::Interrupted } else { ExitStatus::Waiting }
    }
}

pub(crate) const fn status(reply_type: ReplyType) -> &'static str {
    match reply_type {
        ReplyType::Success => "success",
        ReplyType::Invalid => "invalid",
        ReplyType::Denied => "denied",
        ReplyType::Failure => "error",
    }
}
