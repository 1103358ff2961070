//! The draft of a reply: a code with its data, before the builder checks and redacts it.

use std::fmt;
use std::marker::PhantomData;

use cantrip_canon::json::{WriteFault, to_value};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::code::{AnyCode, Code, CodeFault, CodeFaultKind, Denied, Failure, Invalid, Outcome, Success};
use crate::codes;

/// Keys that would add a second meaning beside the reply type. Data never has them at its top level.
pub const FORBIDDEN_KEYS: [&str; 5] = ["warning", "warnings", "partial", "ok", "success"];

/// The data key that holds the result of a gate.
pub(crate) const VALUE: &str = "value";

/// A code and its data, before the wrapper has checked them.
pub(crate) struct Draft {
    pub code: AnyCode,
    pub data: Map<String, Value>,
    /// The first fault of this draft.
    pub fault: Option<DraftFault>,
}

#[derive(Debug)]
pub(crate) enum DraftFault {
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
    pub(crate) draft: Draft,
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
    /// a fault with [`ReplyBuilder::refuse`](crate::ReplyBuilder::refuse); its code is `MCP-SYS-E-004`.
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

    pub(crate) fn note(mut self, key: &str, value: impl Serialize) -> Self {
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
pub struct Refusal(pub(crate) Box<RefusalKind>);

#[derive(Debug)]
pub(crate) enum RefusalKind {
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

macro_rules! refusals {
    ($($outcome:ident)+) => {$(
        impl From<ReplyDraft<$outcome>> for Refusal {
            fn from(filled: ReplyDraft<$outcome>) -> Self {
                Self(Box::new(RefusalKind::Draft(filled.draft)))
            }
        }
    )+};
}

refusals! { Invalid Denied Failure }

impl From<CodeFault> for Refusal {
    fn from(fault: CodeFault) -> Self {
        Self(Box::new(RefusalKind::Code(fault)))
    }
}
