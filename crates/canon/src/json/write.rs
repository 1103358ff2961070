//! What is the JSON of this value, and what are its canonical bytes?
//!
//! The serializer is our own, because `serde_json::to_value` changes values that do not fit (NaN to `null`, the key `1`
//! to `"1"`), and a check of its result would come too late to see it.

use std::fmt;

use serde::ser::{self, Serialize, Serializer};
use serde_json::{Map, Number, Value};

use super::frame::{lists, passing_on, structs};
use super::key::Key;
use super::{NumberError, integer, number, show_path, step};
use crate::limits::JSON_DEPTH_MAX;

/// The reason why a value cannot be written as unambiguous JSON, and the place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct WriteFault {
    pub rule: WriteRule,
    /// The JSON Pointer (RFC 6901) of the value that broke the rule: empty for the whole value.
    pub path: String,
}

impl fmt::Display for WriteFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (", self.rule)?;
        show_path(f, &self.path)?;
        f.write_str(")")
    }
}

/// The rule that a value broke.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteRule {
    #[error("NaN and Infinity are not JSON")]
    NotFinite,
    #[error("a whole number beyond 9007199254740991 is not kept exact by every reader: write it as a string")]
    InexactInteger,
    #[error("the key of a map is not a string")]
    KeyNotText,
    #[error("two entries have the same key")]
    DuplicateKey,
    #[error("nested deeper than 128 levels")]
    TooDeep,
    /// The `Serialize` of the type returned an error.
    #[error("{0}")]
    Refused(String),
}

impl From<WriteRule> for WriteFault {
    fn from(rule: WriteRule) -> Self {
        Self { rule, path: String::new() }
    }
}

impl From<NumberError> for WriteFault {
    fn from(unfit: NumberError) -> Self {
        match unfit {
            NumberError::NotFinite => WriteRule::NotFinite.into(),
            NumberError::Inexact => WriteRule::InexactInteger.into(),
        }
    }
}

impl ser::Error for WriteFault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        WriteRule::Refused(message.to_string()).into()
    }
}

impl WriteFault {
    /// The same fault, with its path seen from one container further out.
    pub(super) fn inside(mut self, segment: &str) -> Self {
        self.path.insert_str(0, &step(segment));
        self
    }
}

/// The canonical text (RFC 8785): no spaces, keys in UTF-16 order, numbers as ECMAScript writes them.
///
/// Refuses values that [`read`](super::read) would not accept again; nothing is rounded.
///
/// ```
/// use cantrip_canon::json;
///
/// let value = serde_json::json!({"b": 1e30, "a": [1.0, "\n"]});
/// assert_eq!(json::canonical(&value).unwrap(), r#"{"a":[1,"\n"],"b":1e+30}"#);
///
/// let fault = json::canonical(&serde_json::json!({"n": [9_007_199_254_740_993_u64]})).unwrap_err();
/// assert_eq!((fault.rule, fault.path.as_str()), (json::WriteRule::InexactInteger, "/n/0"));
/// ```
pub fn canonical(value: &Value) -> Result<String, WriteFault> {
    super::canonical::text(value)
}

/// Returns the number as it would be read back, if it stays exact.
pub(super) fn exact(given: &Number) -> Result<Number, WriteFault> {
    if let Some(signed) = given.as_i64() {
        whole(signed)
    } else if let Some(unsigned) = given.as_u64() {
        whole(unsigned)
    } else {
        Ok(number(given.as_f64().unwrap_or(f64::NAN))?)
    }
}

pub(super) fn whole<I: TryInto<i64>>(value: I) -> Result<Number, WriteFault> {
    exactly(value).map(Number::from)
}

pub(super) fn exactly<I: TryInto<i64>>(value: I) -> Result<i64, WriteFault> {
    integer(value).ok_or_else(|| WriteRule::InexactInteger.into())
}

pub(super) fn next_depth(depth: usize) -> Result<usize, WriteFault> {
    if depth < JSON_DEPTH_MAX { Ok(depth + 1) } else { Err(WriteRule::TooDeep.into()) }
}

/// The JSON of a typed value, in the same shapes as `serde_json`, but no value is changed to fit: a value that JSON
/// cannot represent exactly is a fault with its path.
///
/// ```
/// use cantrip_canon::json::{self, WriteRule};
/// use std::collections::BTreeMap;
///
/// assert_eq!(json::to_value(&(1_u8, 0.5, "x")).unwrap(), serde_json::json!([1, 0.5, "x"]));
///
/// let fault = json::to_value(&BTreeMap::from([("ratio", [0.0, f64::NAN])])).unwrap_err();
/// assert_eq!((fault.rule, fault.path.as_str()), (WriteRule::NotFinite, "/ratio/1"));
/// ```
pub fn to_value<T: Serialize + ?Sized>(value: &T) -> Result<Value, WriteFault> {
    value.serialize(Writer { depth: 0 })
}

/// Writes one value that is nested in `depth` containers.
#[derive(Clone, Copy)]
struct Writer {
    depth: usize,
}

impl Writer {
    fn items(self, variant: Option<&'static str>) -> Result<Items, WriteFault> {
        Ok(Items { inner: self.variant(variant)?.enter(variant)?, items: Vec::new(), variant })
    }

    fn entries(self, variant: Option<&'static str>) -> Result<Entries, WriteFault> {
        let inner = self.variant(variant)?.enter(variant)?;
        Ok(Entries { inner, entries: Map::new(), key: None, variant })
    }

    fn integer(self, value: i64) -> Result<Value, WriteFault> {
        Ok(value.into())
    }

    /// Returns the writer inside the map that names a variant, if there is one.
    fn variant(self, variant: Option<&'static str>) -> Result<Self, WriteFault> {
        if variant.is_some() { self.enter(None) } else { Ok(self) }
    }

    fn enter(self, variant: Option<&'static str>) -> Result<Self, WriteFault> {
        match next_depth(self.depth) {
            Ok(depth) => Ok(Self { depth }),
            Err(fault) => Err(outside(variant, fault)),
        }
    }
}

/// Returns `{variant: value}`, or the value alone if there is no variant.
fn wrap_variant(variant: Option<&'static str>, value: Value) -> Value {
    match variant {
        Some(name) => Value::Object(Map::from_iter([(name.to_owned(), value)])),
        None => value,
    }
}

pub(super) fn outside(variant: Option<&'static str>, fault: WriteFault) -> WriteFault {
    match variant {
        Some(name) => fault.inside(name),
        None => fault,
    }
}

impl Serializer for Writer {
    passing_on!(Value, Items, Entries);

    fn serialize_bool(self, value: bool) -> Result<Value, WriteFault> {
        Ok(Value::Bool(value))
    }

    fn serialize_f64(self, value: f64) -> Result<Value, WriteFault> {
        Ok(Value::Number(number(value)?))
    }

    fn serialize_str(self, value: &str) -> Result<Value, WriteFault> {
        Ok(Value::String(value.to_owned()))
    }

    fn serialize_unit(self) -> Result<Value, WriteFault> {
        Ok(Value::Null)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Value, WriteFault> {
        let inner = self.enter(None)?;
        let value = value.serialize(inner).map_err(|fault| fault.inside(variant))?;
        Ok(wrap_variant(Some(variant), value))
    }
}

/// A list that is being written.
struct Items {
    inner: Writer,
    items: Vec<Value>,
    variant: Option<&'static str>,
}

impl Items {
    fn push<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), WriteFault> {
        let written = item
            .serialize(self.inner)
            .map_err(|fault| outside(self.variant, fault.inside(&self.items.len().to_string())))?;
        self.items.push(written);
        Ok(())
    }

    fn finish(self) -> Result<Value, WriteFault> {
        Ok(wrap_variant(self.variant, Value::Array(self.items)))
    }
}

/// A map that is being written.
struct Entries {
    inner: Writer,
    entries: Map<String, Value>,
    /// The key whose value comes next.
    key: Option<String>,
    variant: Option<&'static str>,
}

impl Entries {
    fn insert<T: Serialize + ?Sized>(&mut self, key: String, entry: &T) -> Result<(), WriteFault> {
        let written = if self.entries.contains_key(&key) {
            Err(WriteRule::DuplicateKey.into())
        } else {
            entry.serialize(self.inner)
        };
        let written = written.map_err(|fault| outside(self.variant, fault.inside(&key)))?;
        self.entries.insert(key, written);
        Ok(())
    }

    fn field<T: Serialize + ?Sized>(&mut self, key: &'static str, entry: &T) -> Result<(), WriteFault> {
        self.insert(key.to_owned(), entry)
    }

    fn finish(self) -> Result<Value, WriteFault> {
        Ok(wrap_variant(self.variant, Value::Object(self.entries)))
    }
}

lists!(Value, Items);
structs!(Value, Entries);

impl ser::SerializeMap for Entries {
    type Ok = Value;
    type Error = WriteFault;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), WriteFault> {
        let mut text = String::new();
        key.serialize(Key(&mut text)).map_err(|fault| outside(self.variant, fault))?;
        self.key = Some(text);
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, entry: &T) -> Result<(), WriteFault> {
        let key = self.key.take().ok_or_else(|| WriteRule::Refused("a value came before its key".to_owned()))?;
        self.insert(key, entry)
    }

    fn end(self) -> Result<Value, WriteFault> {
        self.finish()
    }
}
