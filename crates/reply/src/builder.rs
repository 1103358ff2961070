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
use std::marker::PhantomData;
use std::sync::Arc;

use cantrip_canon::json::{WriteFault, to_value};
use cantrip_canon::{Redactor, known_secrets};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::code::{
    Advice, AnyCode, Code, CodeFault, CodeFaultKind, Denied, Failure, Invalid, Outcome, ReplyType, Success,
};
use crate::codes;
use crate::message::{message, one_line};
use cantrip_trace::Trace;

/// Keys that would add a second meaning beside the reply type. Data never has them at its top level.
pub const FORBIDDEN_KEYS: [&str; 5] = ["warning", "warnings", "partial", "ok", "success"];

/// The data key that holds the result of a gate.
const VALUE: &str = "value";

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

/// A code and its data, before the wrapper has checked them.
struct Draft {
    code: AnyCode,
    data: Map<String, Value>,
    /// The first fault of this draft.
    fault: Option<DraftFault>,
}

#[derive(Debug)]
enum DraftFault {
    NotJson(WriteFault),
    Misused(String),
}

impl Draft {
    fn new(code: AnyCode) -> Self {
        Self { code, data: Map::new(), fault: None }
    }

    fn put(&mut self, key: &str, value: Value) {
        if FORBIDDEN_KEYS.contains(&key) {
            self.misused(format!("no data may have the key {key}"));
        } else if self.data.get(key).is_some_and(|present| *present != value) {
            self.misused(format!("the data key {key} was given twice"));
        } else {
            self.data.insert(key.to_owned(), value);
        }
    }

    fn put_written(&mut self, key: &str, value: Result<Value, WriteFault>) {
        match value {
            Ok(value) => self.put(key, value),
            Err(fault) => self.not_json(fault),
        }
    }

    fn merge(&mut self, data: Result<Value, WriteFault>) {
        match data {
            Ok(Value::Object(entries)) => entries.into_iter().for_each(|(key, value)| self.put(&key, value)),
            Ok(Value::Null) => {}
            Ok(Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
                self.misused("its data is not an object".to_owned());
            }
            Err(fault) => self.not_json(fault),
        }
    }

    fn not_json(&mut self, fault: WriteFault) {
        self.fault.get_or_insert(DraftFault::NotJson(fault));
    }

    fn misused(&mut self, fault: String) {
        self.fault.get_or_insert(DraftFault::Misused(fault));
    }

    fn dynamic(code: AnyCode, fields: Result<Value, WriteFault>) -> Result<Self, CodeFault> {
        let mut draft = Self::new(code);
        let readable = fields.is_ok();
        draft.merge(fields);
        if readable && !code.row().fields.iter().all(|field| draft.data.contains_key(*field)) {
            return Err(CodeFault::new(code.as_str(), CodeFaultKind::FieldMissing));
        }
        Ok(draft)
    }
}

impl fmt::Debug for Draft {
    /// Prints only the names of the keys, because the values are not redacted yet.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.code, self.data.keys().collect::<Vec<_>>())
    }
}

/// A code of type `T` with the fields of its message, ready for the constructor of that type.
pub struct ReplyDraft<T> {
    draft: Draft,
    outcome: PhantomData<fn() -> T>,
}

impl<T> fmt::Debug for ReplyDraft<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.draft.fmt(f)
    }
}

impl<T: Outcome> ReplyDraft<T> {
    pub(crate) fn of<const N: usize>(code: Code<T>, fields: [(&'static str, Result<Value, WriteFault>); N]) -> Self {
        let mut draft = Draft::new(code.any());
        for (field, value) in fields {
            draft.put_written(field, value);
        }
        Self { draft, outcome: PhantomData }
    }

    /// Takes a code that is known only at run time, and an object that has at least the fields of its message. Return
    /// a fault with [`ReplyBuilder::refuse`]; its code is `MCP-SYS-E-004`.
    pub fn dynamic(code: &str, fields: impl Serialize) -> Result<Self, CodeFault> {
        let any = AnyCode::parse(code)?;
        if any.reply_type() != T::TYPE {
            return Err(CodeFault::new(code, CodeFaultKind::OtherType));
        }
        Ok(Self { draft: Draft::dynamic(any, to_value(&fields))?, outcome: PhantomData })
    }

    /// Adds the entries of an object to the data. Each key can be given once; `null` adds nothing.
    #[must_use]
    pub fn data(mut self, entries: impl Serialize) -> Self {
        self.draft.merge(to_value(&entries));
        self
    }

    fn note(mut self, key: &str, value: impl Serialize) -> Self {
        self.draft.put_written(key, to_value(&value));
        self
    }

    pub fn code(&self) -> AnyCode {
        self.draft.code
    }
}

impl ReplyDraft<Success> {
    /// Sets the result of the gate, any JSON. It becomes the `result` of the observation.
    #[must_use]
    pub fn value(self, value: impl Serialize) -> Self {
        self.note(VALUE, value)
    }

    /// Returns the result of the gate, before it is redacted.
    pub fn given_value(&self) -> Option<&Value> {
        self.draft.data.get(VALUE)
    }
}

/// An Invalid, Denied or Failure that a helper returns as an error.
///
/// ```
/// use cantrip_reply::{Refusal, Reply, ReplyBuilder, codes};
///
/// fn checked(path: &str) -> Result<&str, Refusal> {
///     if path.starts_with('/') {
///         return Err(codes::read_refused(path, "read", "root").into());
///     }
///     Ok(path)
/// }
///
/// fn read(path: &str) -> Result<String, Refusal> {
///     let path = checked(path)?;
///     Err(codes::file_missing(path))?
/// }
///
/// fn tool(rb: ReplyBuilder, path: &str) -> Reply {
///     match read(path) {
///         Ok(text) => rb.success(codes::read(path).value(text)),
///         Err(refusal) => rb.refuse(refusal),
///     }
/// }
/// ```
pub struct Refusal(Box<RefusalKind>);

#[derive(Debug)]
enum RefusalKind {
    Draft(Draft),
    Code(CodeFault),
}

impl Refusal {
    /// Takes a code that is known only at run time, of any type but Success, and an object that has at least the
    /// fields of its message.
    pub fn dynamic(code: &str, fields: impl Serialize) -> Result<Self, CodeFault> {
        let any = AnyCode::parse(code)?;
        if any.reply_type().is_success() {
            return Err(CodeFault::new(code, CodeFaultKind::OtherType));
        }
        Ok(Self(Box::new(RefusalKind::Draft(Draft::dynamic(any, to_value(&fields))?))))
    }

    /// Returns the code of the reply that this refusal becomes, unless its data cannot be shown.
    pub fn code(&self) -> AnyCode {
        match &*self.0 {
            RefusalKind::Draft(draft) => draft.code,
            RefusalKind::Code(_) => codes::CODE_MISUSED.any(),
        }
    }
}

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<ReplyDraft<Invalid>> for Refusal {
    fn from(filled: ReplyDraft<Invalid>) -> Self {
        Self(Box::new(RefusalKind::Draft(filled.draft)))
    }
}

impl From<ReplyDraft<Denied>> for Refusal {
    fn from(filled: ReplyDraft<Denied>) -> Self {
        Self(Box::new(RefusalKind::Draft(filled.draft)))
    }
}

impl From<ReplyDraft<Failure>> for Refusal {
    fn from(filled: ReplyDraft<Failure>) -> Self {
        Self(Box::new(RefusalKind::Draft(filled.draft)))
    }
}

impl From<CodeFault> for Refusal {
    fn from(fault: CodeFault) -> Self {
        Self(Box::new(RefusalKind::Code(fault)))
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
