//! What does a code say, and which texts are codes?
//!
//! `WA-READ-I-001` names who decided (layer), about what (area) and what it means (type). The number only distinguishes
//! rows. A code is a reference to its row in the registry and never a string. So an unregistered code, or a code whose
//! layer may not use its type, cannot be represented. Strings that are checked where they are used were rejected: one
//! forgotten check gives one outcome two meanings.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

use serde::{Serialize, Serializer};

use crate::registry::{CodeRow, ROWS};

/// The part of the system that decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layer {
    /// The circle, which checks the request against its environment.
    Wa,
    /// Wards, policy, approval, spend.
    En,
    /// The life cycle of contracts.
    Ct,
    /// Infrastructure. The name does not mean the protocol.
    Mcp,
}

/// The subject of the decision. The thirteen areas are a closed set and are never named after a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Area {
    /// The process as a whole, where nothing else fits.
    Sys,
    /// Resolving names and ids.
    Res,
    /// Visibility: the things that a circle can see.
    Vis,
    /// Network and devices.
    Io,
    /// Reading files, looms, records.
    Read,
    /// Changing files.
    Write,
    /// Running code, gates, casts, jobs.
    Exec,
    /// The store.
    Db,
    /// Parsing text into structure.
    Parse,
    /// Validating structure against a schema, a contract or a limit.
    Val,
    /// Preconditions and life cycles.
    Gate,
    /// Loom, journal, receipts, ledger.
    Log,
    /// Spells, environment, keys, prices.
    Cfg,
}

/// The meaning of a reply, which decides what the caller does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReplyType {
    /// The call did what was asked.
    Success,
    /// The request cannot be carried out as stated; the caller must change it.
    Invalid,
    /// A valid request that a ward, a policy, a budget or a person refused.
    Denied,
    /// The system failed; a better request would not help.
    Failure,
}

/// The advice for a caller whose reply is not a success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Advice {
    FixAndRetry,
    AskScope,
    Stop,
    Wait,
}

macro_rules! written {
    ($($kind:ty { $($variant:ident = $text:literal),+ $(,)? })+) => {$(
        impl $kind {
            /// All values, in the order of the generated page.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The value as it is serialized.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl Serialize for $kind {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
    )+};
}

written! {
    Layer { Wa = "WA", En = "EN", Ct = "CT", Mcp = "MCP" }
    Area {
        Sys = "SYS", Res = "RES", Vis = "VIS", Io = "IO", Read = "READ", Write = "WRITE", Exec = "EXEC", Db = "DB",
        Parse = "PARSE", Val = "VAL", Gate = "GATE", Log = "LOG", Cfg = "CFG",
    }
    ReplyType { Success = "S", Invalid = "I", Denied = "D", Failure = "E" }
    Advice { FixAndRetry = "fix_and_retry", AskScope = "ask_scope", Stop = "stop", Wait = "wait" }
}

impl Layer {
    /// Returns true if this layer may use this type: only EN denies, and EN never calls a request invalid.
    pub const fn may_answer(self, reply_type: ReplyType) -> bool {
        match reply_type {
            ReplyType::Success | ReplyType::Failure => true,
            ReplyType::Invalid => !matches!(self, Self::En),
            ReplyType::Denied => matches!(self, Self::En),
        }
    }
}

impl ReplyType {
    /// The word for people.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Success => "Success",
            Self::Invalid => "Invalid",
            Self::Denied => "Denied",
            Self::Failure => "Error",
        }
    }

    pub const fn is_success(self) -> bool {
        matches!(self, Self::Success)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A reply type as a Rust type. It keeps a code of one type out of the constructor of another.
pub trait Outcome: sealed::Sealed + 'static {
    const TYPE: ReplyType;
}

macro_rules! outcomes {
    ($($(#[$doc:meta])* $outcome:ident)+) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $outcome {}
        impl sealed::Sealed for $outcome {}
        impl Outcome for $outcome {
            const TYPE: ReplyType = ReplyType::$outcome;
        }
    )+};
}

outcomes! {
    /// [`ReplyType::Success`] as a type; it has no value.
    Success
    /// [`ReplyType::Invalid`] as a type; it has no value.
    Invalid
    /// [`ReplyType::Denied`] as a type; it has no value.
    Denied
    /// [`ReplyType::Failure`] as a type; it has no value.
    Failure
}

/// A registered code of any type.
#[derive(Clone, Copy)]
pub struct AnyCode {
    row: &'static CodeRow,
}

impl AnyCode {
    /// Parses a code byte for byte: nothing is trimmed, case-folded or normalized. Returns the first fault, in the
    /// order shape, layer, area, type, layer against type, registry.
    ///
    /// ```
    /// # use cantrip_reply::{AnyCode, CodeFaultKind, codes};
    /// assert_eq!(AnyCode::parse("WA-READ-I-001").unwrap(), codes::FILE_MISSING.any());
    /// assert_eq!(AnyCode::parse("WA-READ-D-001").unwrap_err().fault(), CodeFaultKind::Matrix);
    /// ```
    pub fn parse(text: &str) -> Result<Self, CodeFault> {
        match Parts::parse(text.as_bytes()) {
            Ok(_) => ROWS
                .iter()
                .find(|row| row.code == text)
                .map(|row| Self { row })
                .ok_or_else(|| CodeFault::new(text, CodeFaultKind::Unregistered)),
            Err(fault) => Err(CodeFault::new(text, fault)),
        }
    }

    /// All codes, in the order of the registry.
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        ROWS.iter().map(|row| Self { row })
    }

    /// The registry row of this code.
    pub const fn row(self) -> &'static CodeRow {
        self.row
    }

    pub const fn as_str(self) -> &'static str {
        self.row.code
    }

    pub const fn layer(self) -> Layer {
        self.row.layer
    }

    pub const fn area(self) -> Area {
        self.row.area
    }

    pub const fn reply_type(self) -> ReplyType {
        self.row.reply_type
    }

    /// The advice for the caller; none for a success.
    pub const fn advice(self) -> Option<Advice> {
        self.row.retry
    }
}

impl fmt::Display for AnyCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for AnyCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl PartialEq for AnyCode {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for AnyCode {}

impl PartialOrd for AnyCode {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for AnyCode {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl Hash for AnyCode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl Serialize for AnyCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// A registered code whose type the compiler knows. The values are the constants in [`codes`](crate::codes).
pub struct Code<T> {
    any: AnyCode,
    outcome: PhantomData<fn() -> T>,
}

impl<T: Outcome> Code<T> {
    /// For the constants of the registry only, by the place of their row: a row of another type does not build.
    pub(crate) const fn at(place: usize) -> Self {
        let any = AnyCode { row: &ROWS[place] };
        assert!(any.row.reply_type as u8 == T::TYPE as u8, "the constant's type is not the code's");
        Self { any, outcome: PhantomData }
    }
}

impl<T> Code<T> {
    /// The code without its compile-time type.
    pub const fn any(self) -> AnyCode {
        self.any
    }

    pub const fn as_str(self) -> &'static str {
        self.any.as_str()
    }
}

impl<T> Clone for Code<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Code<T> {}

impl<T> From<Code<T>> for AnyCode {
    fn from(code: Code<T>) -> Self {
        code.any
    }
}

impl<T> fmt::Debug for Code<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<T> fmt::Display for Code<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl<T> PartialEq<AnyCode> for Code<T> {
    fn eq(&self, other: &AnyCode) -> bool {
        self.any == *other
    }
}

impl<T> PartialEq<Code<T>> for AnyCode {
    fn eq(&self, other: &Code<T>) -> bool {
        *self == other.any
    }
}

/// The fault of a code that is known only at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeFaultKind {
    /// Not of the shape `LAYER-AREA-T-NNN`, or number `000`.
    Format,
    Layer,
    Area,
    Type,
    /// The layer may not use this type.
    Matrix,
    Unregistered,
    /// The code is registered with another type than the requested one.
    OtherType,
    /// A field of the code's message is missing.
    FieldMissing,
}

impl fmt::Display for CodeFaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Format => "it is not of the form LAYER-AREA-TYPE-NNN",
            Self::Layer => "there is no such layer",
            Self::Area => "there is no such area",
            Self::Type => "there is no such type",
            Self::Matrix => "its layer never answers with its type",
            Self::Unregistered => "it is not registered",
            Self::OtherType => "it is of another type than was asked for",
            Self::FieldMissing => "a field of its message is missing",
        })
    }
}

/// A text that cannot be used as a code, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code:?} cannot be used as a code: {fault}")]
pub struct CodeFault {
    code: String,
    fault: CodeFaultKind,
}

impl CodeFault {
    pub(crate) fn new(code: &str, fault: CodeFaultKind) -> Self {
        Self { code: code.chars().take(crate::limits::LOGGED_NAME_CHARS_MAX).collect(), fault }
    }

    /// The rejected text, truncated.
    pub fn code(&self) -> &str {
        &self.code
    }

    pub fn fault(&self) -> CodeFaultKind {
        self.fault
    }
}

/// A parsed code, registered or not. This is the only implementation of the grammar: it checks the registry at compile
/// time and parses texts at run time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts {
    pub(crate) layer: Layer,
    pub(crate) area: Area,
    pub(crate) reply_type: ReplyType,
    pub(crate) number: u16,
}

impl Parts {
    pub(crate) const fn parse(code: &[u8]) -> Result<Self, CodeFaultKind> {
        let Some((layer, rest)) = letters(code, 2, 3) else { return Err(CodeFaultKind::Format) };
        let Some((area, rest)) = letters(rest, 2, 5) else { return Err(CodeFaultKind::Format) };
        let Some((reply_type, rest)) = letters(rest, 1, 1) else { return Err(CodeFaultKind::Format) };
        let Some(number) = number(rest) else { return Err(CodeFaultKind::Format) };
        let layer = match layer {
            b"WA" => Layer::Wa,
            b"EN" => Layer::En,
            b"CT" => Layer::Ct,
            b"MCP" => Layer::Mcp,
            _ => return Err(CodeFaultKind::Layer),
        };
        let area = match area {
            b"SYS" => Area::Sys,
            b"RES" => Area::Res,
            b"VIS" => Area::Vis,
            b"IO" => Area::Io,
            b"READ" => Area::Read,
            b"WRITE" => Area::Write,
            b"EXEC" => Area::Exec,
            b"DB" => Area::Db,
            b"PARSE" => Area::Parse,
            b"VAL" => Area::Val,
            b"GATE" => Area::Gate,
            b"LOG" => Area::Log,
            b"CFG" => Area::Cfg,
            _ => return Err(CodeFaultKind::Area),
        };
        let reply_type = match reply_type {
            b"S" => ReplyType::Success,
            b"I" => ReplyType::Invalid,
            b"D" => ReplyType::Denied,
            b"E" => ReplyType::Failure,
            _ => return Err(CodeFaultKind::Type),
        };
        if !layer.may_answer(reply_type) {
            return Err(CodeFaultKind::Matrix);
        }
        Ok(Self { layer, area, reply_type, number })
    }
}

/// Splits `least` to `most` capital letters and a hyphen from the rest of the text.
const fn letters(text: &[u8], least: usize, most: usize) -> Option<(&[u8], &[u8])> {
    let mut length = 0;
    while length < text.len() && text[length].is_ascii_uppercase() {
        length += 1;
    }
    if length < least || length > most || length == text.len() || text[length] != b'-' {
        return None;
    }
    let (letters, rest) = text.split_at(length);
    Some((letters, rest.split_at(1).1))
}

/// Parses exactly three digits that are not all zero.
const fn number(text: &[u8]) -> Option<u16> {
    let [hundreds, tens, ones] = *text else { return None };
    if !(hundreds.is_ascii_digit() && tens.is_ascii_digit() && ones.is_ascii_digit()) {
        return None;
    }
    match (hundreds - b'0') as u16 * 100 + (tens - b'0') as u16 * 10 + (ones - b'0') as u16 {
        0 => None,
        number => Some(number),
    }
}

/// Compares bytes in constant evaluation.
pub(crate) const fn same(left: &[u8], right: &[u8]) -> bool {
    if left.len() != right.len() {
        return false;
    }
    let mut at = 0;
    while at < left.len() {
        if left[at] != right[at] {
            return false;
        }
        at += 1;
    }
    true
}
