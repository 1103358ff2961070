//! How does a call produce exactly one reply?
//!
//! Through a builder that the reply consumes. The safety wrapper makes one builder for each call, every method that
//! returns a [`Reply`] takes the builder by value, and nothing else makes a reply. So a second reply, a code in the
//! wrong constructor and a missing field do not compile. A builder that remembers at run time whether it was used was
//! rejected: it finds the mistake only if a test happens to run that path.
//!
//! There is no info, warning, partial success or soft error. Their content belongs in the data of a success. If a
//! caller must act differently, it is another code.

use std::fmt;
use std::sync::Arc;

use cantrip_canon::{Redactor, known_secrets};
use cantrip_trace::Trace;
use serde_json::{Map, Value};

use crate::code::{Advice, AnyCode, Denied, Failure, Invalid, ReplyType, Success};
use crate::codes;
use crate::draft::{Draft, DraftFault, Refusal, RefusalKind, ReplyDraft, VALUE};
use crate::message::{message, one_line};

/// Makes the one reply of one call.
///
/// Only [`Guard`](crate::Guard) makes builders, one for each call.
///
/// ```
/// use cantrip_reply::{Reply, ReplyBuilder, codes};
///
/// fn tool(rb: ReplyBuilder) -> Reply {
///     let reply = rb.success(codes::gate_ok("echo"));
///     reply
/// }
/// ```
///
/// Two replies from one builder:
///
/// ```compile_fail,E0382
/// use cantrip_reply::{Reply, ReplyBuilder, codes};
///
/// fn tool(rb: ReplyBuilder) -> Reply {
///     let reply = rb.success(codes::gate_ok("echo")); let reply = rb.error(codes::crash());
///     reply
/// }
/// ```
///
/// Cloning the builder does not get around that:
///
/// ```
/// use cantrip_reply::{Reply, ReplyBuilder, codes};
///
/// fn tool(rb: ReplyBuilder) -> Reply {
///     let other = rb;
///     other.success(codes::gate_ok("echo"))
/// }
/// ```
///
/// ```compile_fail,E0599
/// use cantrip_reply::{Reply, ReplyBuilder, codes};
///
/// fn tool(rb: ReplyBuilder) -> Reply {
///     let other = rb.clone();
///     other.success(codes::gate_ok("echo"))
/// }
/// ```
///
/// Only the wrapper can make a builder:
///
/// ```compile_fail,E0277
/// use cantrip_reply::{Reply, ReplyBuilder, codes};
///
/// fn tool(rb: ReplyBuilder) -> Reply {
///     let other: ReplyBuilder = Default::default();
///     other.success(codes::gate_ok("echo"))
/// }
/// ```
#[must_use = "a call ends in exactly one reply"]
pub struct ReplyBuilder {
    tool: Arc<str>,
    trace: Trace,
    redactor: Arc<Redactor>,
}

impl fmt::Debug for ReplyBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyBuilder").field("tool", &self.tool).field("trace", &self.trace).finish_non_exhaustive()
    }
}

impl ReplyBuilder {
    pub(crate) fn new(tool: Arc<str>, trace: Trace, redactor: Arc<Redactor>) -> Self {
        Self { tool, trace, redactor }
    }

    /// The trace of this call. Calls inside this call get their numbers from it.
    pub fn trace(&self) -> Trace {
        self.trace.clone()
    }

    /// Makes a Success reply: the call did what was asked.
    pub fn success(self, filled: ReplyDraft<Success>) -> Reply {
        self.finish(filled.draft)
    }

    /// Makes an Invalid reply: the request cannot be carried out as stated.
    ///
    /// ```
    /// # use cantrip_reply::{Reply, ReplyBuilder, codes};
    /// fn tool(rb: ReplyBuilder) -> Reply {
    ///     rb.invalid(codes::gate_unknown("fetch"))
    /// }
    /// ```
    ///
    /// A refusal by a ward is not a mistake of the caller, so its code does not fit here:
    ///
    /// ```compile_fail,E0308
    /// # use cantrip_reply::{Reply, ReplyBuilder, codes};
    /// fn tool(rb: ReplyBuilder) -> Reply {
    ///     rb.invalid(codes::gate_removed("fetch", "remove_gate"))
    /// }
    /// ```
    pub fn invalid(self, filled: ReplyDraft<Invalid>) -> Reply {
        self.finish(filled.draft)
    }

    /// Makes a Denied reply: a valid request was refused. Only codes of the layer EN fit. No other layer has a code of
    /// this type, and a registry row that gave it one would not build.
    ///
    /// ```
    /// # use cantrip_reply::{Code, Denied, codes};
    /// const REFUSED: Code<Denied> = codes::READ_REFUSED;
    /// ```
    ///
    /// ```compile_fail,E0308
    /// # use cantrip_reply::{Code, Denied, codes};
    /// const REFUSED: Code<Denied> = codes::FILE_MISSING;
    /// ```
    pub fn denied(self, filled: ReplyDraft<Denied>) -> Reply {
        self.finish(filled.draft)
    }

    /// Makes an Error reply: the system failed.
    ///
    /// ```
    /// # use cantrip_reply::{Reply, ReplyBuilder, codes};
    /// fn tool(rb: ReplyBuilder) -> Reply {
    ///     rb.error(codes::io_failed("read", "a.txt", "input/output error"))
    /// }
    /// ```
    ///
    /// A mistake that the caller can correct is not a failure of the system:
    ///
    /// ```compile_fail,E0308
    /// # use cantrip_reply::{Reply, ReplyBuilder, codes};
    /// fn tool(rb: ReplyBuilder) -> Reply {
    ///     rb.error(codes::file_missing("a.txt"))
    /// }
    /// ```
    pub fn error(self, filled: ReplyDraft<Failure>) -> Reply {
        self.finish(filled.draft)
    }

    /// Makes a Success reply, or the reply of the refusal.
    pub fn answer(self, answered: Result<ReplyDraft<Success>, Refusal>) -> Reply {
        match answered {
            Ok(filled) => self.success(filled),
            Err(refusal) => self.refuse(refusal),
        }
    }

    /// Makes the reply from the first refusal inside a tool.
    pub fn refuse(self, refusal: Refusal) -> Reply {
        match *refusal.0 {
            RefusalKind::Draft(draft) => self.finish(draft),
            RefusalKind::Code(fault) => {
                let misuse = codes::code_misused(&*self.tool, fault.code(), fault.fault().to_string());
                self.seal(misuse.draft)
            }
        }
    }

    fn finish(self, draft: Draft) -> Reply {
        let substitute = match &draft.fault {
            None => return self.seal(draft),
            Some(DraftFault::NotJson(fault)) => {
                codes::not_serialisable(&*self.tool).note("of", draft.code.as_str()).note("fault", fault.to_string())
            }
            Some(DraftFault::Misused(fault)) => codes::code_misused(&*self.tool, draft.code, fault),
        };
        self.seal(substitute.draft)
    }

    /// The only place that makes a reply. It redacts the fields of the message, and all data of a reply that is not a
    /// success. The further data of a success is the answer to the request and stays unchanged, except for the secrets
    /// of this process: an endpoint may echo the key that it was sent.
    fn seal(self, Draft { code, data: mut further, fault: _ }: Draft) -> Reply {
        let mut data = Map::with_capacity(further.len());
        for field in code.row().fields {
            if let Some(value) = further.shift_remove(*field) {
                // We choose the field names: an `authorization` here is the id of a budget, not a header.
                data.insert((*field).to_owned(), self.redact_as_rendered(self.redactor.redact_value(&value)));
            }
        }
        if code.reply_type().is_success() || further.is_empty() {
            match known_secrets() {
                None => data.append(&mut further),
                Some(known) => data.append(&mut known.map(further)),
            }
        } else if let Value::Object(mut redacted) = self.redactor.redact_value(&Value::Object(further)) {
            data.append(&mut redacted);
        }
        Reply { code, data }
    }

    /// Redacts the text as a message shows it. A message drops control characters, and that could join the two halves
    /// of a secret.
    fn redact_as_rendered(&self, value: Value) -> Value {
        match value {
            Value::String(text) => {
                let line = one_line(&text);
                let redacted = self.redactor.redact_text(&line);
                if redacted == line { Value::String(text) } else { Value::String(redacted.into_owned()) }
            }
            Value::Array(items) => items.into_iter().map(|item| self.redact_as_rendered(item)).collect(),
            Value::Object(entries) => {
                entries.into_iter().map(|(key, value)| (key, self.redact_as_rendered(value))).collect()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => value,
        }
    }
}

/// The outcome of one call: a code and its data. Type and message are derived from them and are not stored.
///
/// Code outside this crate can neither build a reply nor take it apart:
///
/// ```
/// # use cantrip_reply::{AnyCode, Reply};
/// fn code(reply: Reply) -> AnyCode {
///     reply.code()
/// }
/// ```
///
/// ```compile_fail,E0451
/// # use cantrip_reply::{AnyCode, Reply};
/// fn code(reply: Reply) -> AnyCode {
///     (Reply { code: reply.code(), data: Default::default() }).code()
/// }
/// ```
///
/// A reply must be used:
///
/// ```
/// #![deny(unused_must_use)]
/// # use cantrip_reply::{Reply, ReplyBuilder, codes};
/// fn tool(rb: ReplyBuilder) {
///     drop(rb.success(codes::gate_ok("echo")));
/// }
/// ```
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # use cantrip_reply::{Reply, ReplyBuilder, codes};
/// fn tool(rb: ReplyBuilder) {
///     rb.success(codes::gate_ok("echo"));
/// }
/// ```
#[must_use = "a reply is the outcome of a call: return it"]
#[derive(PartialEq)]
pub struct Reply {
    code: AnyCode,
    data: Map<String, Value>,
}

impl Reply {
    pub fn code(&self) -> AnyCode {
        self.code
    }

    pub fn reply_type(&self) -> ReplyType {
        self.code.reply_type()
    }

    /// The advice for the caller; none for a success.
    pub fn advice(&self) -> Option<Advice> {
        self.code.advice()
    }

    /// The message, for people only: no code may branch on it.
    pub fn message(&self) -> String {
        message(self.code, &self.data)
    }

    /// The fields of the message in their order, then the further data of the tool.
    pub fn data(&self) -> &Map<String, Value> {
        &self.data
    }

    /// The result of the gate, if it returned one.
    pub fn value(&self) -> Option<&Value> {
        self.data.get(VALUE)
    }

    pub(crate) fn into_data(self) -> Map<String, Value> {
        self.data
    }
}

impl fmt::Debug for Reply {
    /// Prints code and message only: the further data of a success is not redacted, and debug output ends in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.code, self.message())
    }
}
