//! Is this text a valid value, and if not, where does it first break which rule?
//!
//! One pass over the text, with the open containers on a separate stack, so that no input can exhaust the stack of the
//! thread. A visitor behind `serde_json`'s parser was the alternative: it would see duplicate keys, but no position, no
//! literal (it receives a rounded double), and it could not distinguish a lone surrogate from any other fault.

use std::fmt;

use serde_json::{Map, Value};

use super::{NumberError, integer, number, show_path, step};
use crate::limits::JSON_DEPTH_MAX;

/// The reason why a text was refused, and the place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ReadFault {
    pub rule: ReadRule,
    /// The JSON Pointer (RFC 6901) of the value that was being read: empty for the whole text.
    pub path: String,
    pub at: Position,
}

impl fmt::Display for ReadFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (line {}, column {}, ", self.rule, self.at.line, self.at.column)?;
        show_path(f, &self.path)?;
        f.write_str(")")
    }
}

/// A position in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The number of bytes before this position.
    pub byte: usize,
    /// The line, counted from 1.
    pub line: usize,
    /// The character in its line, counted from 1.
    pub column: usize,
}

/// The rule that a text broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadRule {
    #[error("the key is given twice")]
    DuplicateKey,
    #[error("half of a surrogate pair stands for no character")]
    LoneSurrogate,
    #[error("NaN, Infinity and numbers beyond a double are not JSON")]
    NotFinite,
    #[error("an integer beyond 9007199254740991 is not kept exact by every reader: write it as a string")]
    InexactInteger,
    #[error("nested deeper than 128 levels")]
    TooDeep,
    #[error("something follows the value")]
    Trailing,
    #[error("a control character in a string must be escaped")]
    ControlCharacter,
    #[error("no such escape")]
    Escape,
    #[error("not a number as JSON writes it")]
    NumberForm,
    #[error("expected {0}")]
    Expected(&'static str),
    #[error("the text ends too early")]
    End,
    #[error("not UTF-8")]
    NotUtf8,
}

/// Reads a text that must have exactly one meaning.
///
/// Refuses everything that RFC 8259 refuses, and also duplicate keys, lone surrogates, numbers beyond a double, nesting
/// deeper than [`JSON_DEPTH_MAX`], and whole numbers beyond 2^53-1 in either direction, unless they are so large (1e21)
/// that canonical JSON writes them with an exponent.
///
/// ```
/// use cantrip_canon::json::{self, ReadRule};
///
/// assert_eq!(json::read("[1, 1.0, 1e0, -0]").unwrap(), serde_json::json!([1, 1, 1, 0]));
///
/// let fault = json::read("[0,\n 9007199254740993]").unwrap_err();
/// assert_eq!(fault.rule, ReadRule::InexactInteger);
/// assert_eq!((fault.path.as_str(), fault.at.byte, fault.at.line, fault.at.column), ("/1", 5, 2, 2));
/// ```
pub fn read(text: &str) -> Result<Value, ReadFault> {
    Reader::new(text, Inexact::Refused).document()
}

/// Like [`read`], for bytes that may not be UTF-8.
///
/// ```
/// use cantrip_canon::json::{self, ReadRule};
///
/// assert_eq!(json::read_bytes(b"[true]").unwrap(), serde_json::json!([true]));
/// assert_eq!(json::read_bytes(b"[\"\xff\"]").unwrap_err().rule, ReadRule::NotUtf8);
/// ```
pub fn read_bytes(bytes: &[u8]) -> Result<Value, ReadFault> {
    match std::str::from_utf8(bytes) {
        Ok(text) => read(text),
        Err(error) => {
            let valid = &bytes[..error.valid_up_to()];
            let before = std::str::from_utf8(valid).expect("from_utf8 said that this much is valid");
            Err(ReadFault { rule: ReadRule::NotUtf8, path: String::new(), at: Position::after(before) })
        }
    }
}

/// Like [`read`], for external text that does not follow our rules: a whole number that would not stay exact is not a
/// fault but becomes a string of its digits, as they were written.
///
/// ```
/// let order = cantrip_canon::json::read_foreign(r#"{"id": 9007199254740993}"#).unwrap();
/// assert_eq!(order, serde_json::json!({"id": "9007199254740993"}));
/// ```
pub fn read_foreign(text: &str) -> Result<Value, ReadFault> {
    Reader::new(text, Inexact::AsText).document()
}

impl Position {
    fn after(text: &str) -> Self {
        let line_start = text.rfind('\n').map_or(0, |feed| feed + 1);
        Self {
            byte: text.len(),
            line: text.bytes().filter(|byte| *byte == b'\n').count() + 1,
            column: text[line_start..].chars().count() + 1,
        }
    }
}

/// The handling of a whole number that would not stay exact.
#[derive(Clone, Copy)]
enum Inexact {
    Refused,
    AsText,
}

/// A container that is not closed yet. In a map, `key` is the key of the next value.
enum Open {
    List(Vec<Value>),
    Map { entries: Map<String, Value>, key: String },
}

/// The subject of a fault: the value that was expected next, or the container around it.
#[derive(Clone, Copy)]
enum About {
    Value,
    Container,
}

struct Reader<'a> {
    text: &'a str,
    /// The position of the next byte; never inside a character when a fault is made.
    at: usize,
    open: Vec<Open>,
    inexact: Inexact,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str, inexact: Inexact) -> Self {
        Self { text, at: 0, open: Vec::new(), inexact }
    }

    fn document(mut self) -> Result<Value, ReadFault> {
        loop {
            // A value must start here.
            self.skip_space();
            let mut value = match self.peek() {
                Some(b'[') => {
                    self.enter(Open::List(Vec::new()))?;
                    if !self.take(b']') {
                        continue;
                    }
                    self.leave()
                }
                Some(b'{') => {
                    self.enter(Open::Map { entries: Map::new(), key: String::new() })?;
                    if !self.take(b'}') {
                        self.key()?;
                        continue;
                    }
                    self.leave()
                }
                Some(_) | None => self.scalar()?,
            };
            // A value has ended here, and perhaps the containers whose last value it is.
            loop {
                self.skip_space();
                let (close, either) = match self.open.last_mut() {
                    None if self.at == self.text.len() => return Ok(value),
                    None => return Err(self.fault(ReadRule::Trailing, About::Value)),
                    Some(Open::List(items)) => {
                        items.push(value);
                        (b']', "a comma or ]")
                    }
                    Some(Open::Map { entries, key }) => {
                        entries.insert(std::mem::take(key), value);
                        (b'}', "a comma or }")
                    }
                };
                if self.take(b',') {
                    if close == b'}' {
                        self.skip_space();
                        self.key()?;
                    }
                    break;
                }
                if !self.take(close) {
                    return Err(self.missing(either, About::Container));
                }
                value = self.leave();
            }
        }
    }

    fn enter(&mut self, container: Open) -> Result<(), ReadFault> {
        if self.open.len() == JSON_DEPTH_MAX {
            return Err(self.fault(ReadRule::TooDeep, About::Value));
        }
        self.open.push(container);
        self.at += 1;
        self.skip_space();
        Ok(())
    }

    fn leave(&mut self) -> Value {
        match self.open.pop().expect("only an open container is left") {
            Open::List(items) => Value::Array(items),
            Open::Map { entries, .. } => Value::Object(entries),
        }
    }

    /// Reads a key and its colon.
    fn key(&mut self) -> Result<(), ReadFault> {
        let start = self.at;
        if self.peek() != Some(b'"') {
            return Err(self.missing("a key", About::Container));
        }
        let read = self.string(About::Container)?;
        let Some(Open::Map { entries, key }) = self.open.last_mut() else {
            unreachable!("keys are read in maps only");
        };
        let twice = entries.contains_key(&read);
        *key = read;
        if twice {
            return Err(self.fault_at(start, ReadRule::DuplicateKey, About::Value));
        }
        self.skip_space();
        if self.take(b':') { Ok(()) } else { Err(self.missing("a colon", About::Value)) }
    }

    fn scalar(&mut self) -> Result<Value, ReadFault> {
        let rest = &self.text[self.at..];
        match self.peek() {
            Some(b'"') => Ok(Value::String(self.string(About::Value)?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') if rest.starts_with("true") => Ok(self.word("true", Value::Bool(true))),
            Some(b'f') if rest.starts_with("false") => Ok(self.word("false", Value::Bool(false))),
            Some(b'n') if rest.starts_with("null") => Ok(self.word("null", Value::Null)),
            Some(b'N') if rest.starts_with("NaN") => Err(self.fault(ReadRule::NotFinite, About::Value)),
            Some(b'I') if rest.starts_with("Infinity") => Err(self.fault(ReadRule::NotFinite, About::Value)),
            Some(_) | None => Err(self.missing("a value", About::Value)),
        }
    }

    fn word(&mut self, word: &str, value: Value) -> Value {
        self.at += word.len();
        value
    }

    fn number(&mut self) -> Result<Value, ReadFault> {
        let start = self.at;
        self.take(b'-');
        let leads_with_zero = self.peek() == Some(b'0');
        let digits = self.skip_digits();
        if digits == 0 || leads_with_zero && digits > 1 {
            return Err(self.not_a_number(start));
        }
        let mut whole_literal = true;
        if self.take(b'.') {
            whole_literal = false;
            if self.skip_digits() == 0 {
                return Err(self.not_a_number(start));
            }
        }
        if self.take(b'e') || self.take(b'E') {
            whole_literal = false;
            let _sign = self.take(b'+') || self.take(b'-');
            if self.skip_digits() == 0 {
                return Err(self.not_a_number(start));
            }
        }
        let literal = &self.text[start..self.at];
        let read = if whole_literal {
            literal.parse::<i64>().ok().and_then(integer).map(Into::into).ok_or(NumberError::Inexact)
        } else {
            // Rust parses every literal of this form, to the nearest double.
            literal.parse::<f64>().map_err(|_| NumberError::NotFinite).and_then(number)
        };
        match read {
            Ok(number) => Ok(Value::Number(number)),
            Err(NumberError::NotFinite) => Err(self.fault_at(start, ReadRule::NotFinite, About::Value)),
            Err(NumberError::Inexact) => match self.inexact {
                Inexact::AsText => Ok(Value::String(literal.to_owned())),
                Inexact::Refused => Err(self.fault_at(start, ReadRule::InexactInteger, About::Value)),
            },
        }
    }

    /// The fault of a number that starts at `start` and cannot continue here.
    fn not_a_number(&self, start: usize) -> ReadFault {
        let word = &self.text[start..];
        let rule = if word.starts_with("-Infinity") || word.starts_with("-NaN") {
            ReadRule::NotFinite
        } else if self.at == self.text.len() {
            ReadRule::End
        } else {
            ReadRule::NumberForm
        };
        self.fault_at(start, rule, About::Value)
    }

    /// Reads a string from its opening quote past its closing one.
    fn string(&mut self, about: About) -> Result<String, ReadFault> {
        self.at += 1;
        let mut read = String::new();
        loop {
            let rest = &self.text[self.at..];
            // All three are ASCII, so the slice before them ends between two characters.
            let Some(plain) = rest.bytes().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f)) else {
                self.at = self.text.len();
                return Err(self.fault(ReadRule::End, about));
            };
            read.push_str(&rest[..plain]);
            self.at += plain;
            match rest.as_bytes()[plain] {
                b'"' => {
                    self.at += 1;
                    return Ok(read);
                }
                b'\\' => {
                    let character = self.escape(about)?;
                    read.push(character);
                }
                _ => return Err(self.fault(ReadRule::ControlCharacter, about)),
            }
        }
    }

    /// Reads an escape from its backslash on; a surrogate pair counts as one escape.
    fn escape(&mut self, about: About) -> Result<char, ReadFault> {
        let start = self.at;
        let bytes = self.text.as_bytes();
        let character = match bytes.get(start + 1) {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode_escape(about),
            Some(_) => return Err(self.fault(ReadRule::Escape, about)),
            None => return Err(self.fault(ReadRule::End, about)),
        };
        self.at = start + 2;
        Ok(character)
    }

    fn unicode_escape(&mut self, about: About) -> Result<char, ReadFault> {
        let start = self.at;
        let first = self.code_unit(start).ok_or_else(|| self.fault(ReadRule::Escape, about))?;
        let second = match first {
            0xd800..=0xdbff => self.code_unit(start + 6),
            _ => None,
        };
        let units = [Some(first), second];
        match char::decode_utf16(units.into_iter().flatten()).next() {
            Some(Ok(character)) => {
                self.at = start + 6 * character.len_utf16();
                Ok(character)
            }
            Some(Err(_)) | None => Err(self.fault(ReadRule::LoneSurrogate, about)),
        }
    }

    /// Returns the code unit of the `\uXXXX` at this position, if there is one.
    fn code_unit(&self, at: usize) -> Option<u16> {
        let digits = self.text.as_bytes().get(at..at + 6)?.strip_prefix(b"\\u")?;
        digits.iter().try_fold(0, |unit, digit| Some(unit << 4 | char::from(*digit).to_digit(16)? as u16))
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let taken = self.peek() == Some(byte);
        self.at += usize::from(taken);
        taken
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn skip_digits(&mut self) -> usize {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        self.at - start
    }

    fn missing(&self, what: &'static str, about: About) -> ReadFault {
        let rule = if self.at == self.text.len() { ReadRule::End } else { ReadRule::Expected(what) };
        self.fault(rule, about)
    }

    fn fault(&self, rule: ReadRule, about: About) -> ReadFault {
        self.fault_at(self.at, rule, about)
    }

    fn fault_at(&self, at: usize, rule: ReadRule, about: About) -> ReadFault {
        let within = match about {
            About::Value => &self.open[..],
            About::Container => &self.open[..self.open.len().saturating_sub(1)],
        };
        let path = within
            .iter()
            .map(|container| match container {
                Open::List(items) => step(&items.len().to_string()),
                Open::Map { key, .. } => step(key),
            })
            .collect();
        ReadFault { rule, path, at: Position::after(&self.text[..at]) }
    }
}
