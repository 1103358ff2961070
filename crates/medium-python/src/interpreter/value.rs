//! Conversion between the interpreter's values and JSON.

use cantrip_circle::limits;
use monty_types::{DictPairs, MontyObject};
use num_bigint::BigInt;
use serde_json::{Map, Number, Value};

use super::wire::{JsonFault, JsonRule, Kind};

/// One more than the largest integer that JSON readers represent exactly.
const EXACT: i64 = 1 << 53;

/// Converts a JSON value into a value of the interpreter.
///
/// A number without a fraction becomes an `int`, however it was written: a record holds the canonical form, which does
/// not distinguish 5 from 5.0, and a program must see the same value when it is run again.
pub(super) fn object(value: Value) -> MontyObject {
    match value {
        Value::Null => MontyObject::None,
        Value::Bool(flag) => MontyObject::Bool(flag),
        Value::Number(number) => numeral(&number),
        Value::String(text) => MontyObject::String(text),
        Value::Array(list) => MontyObject::List(list.into_iter().map(object).collect()),
        Value::Object(map) => {
            let pairs: Vec<_> = map.into_iter().map(|(key, value)| (MontyObject::String(key), object(value))).collect();
            MontyObject::Dict(DictPairs::from(pairs))
        }
    }
}

fn numeral(number: &Number) -> MontyObject {
    if let Some(whole) = number.as_i64() {
        return MontyObject::Int(whole);
    }
    if let Some(whole) = number.as_u64() {
        return MontyObject::BigInt(BigInt::from(whole));
    }
    let float = number.as_f64().unwrap_or(f64::NAN);
    // The casts are exact: there is no fraction, and the value fits. From 2^64 on JSON readers return a float for
    // either form.
    if float.fract() != 0.0 {
        MontyObject::Float(float)
    } else if float.abs() < 2_f64.powi(63) {
        MontyObject::Int(float as i64)
    } else if float > 0.0 && float < 2_f64.powi(64) {
        MontyObject::BigInt(BigInt::from(float as u64))
    } else {
        MontyObject::Float(float)
    }
}

/// Writes values as JSON; one size limit covers all of them.
#[derive(Debug)]
pub(super) struct Writer {
    path: String,
    depth: usize,
    left: usize,
}

impl Writer {
    pub(super) fn new() -> Self {
        Self { path: String::new(), depth: 0, left: limits::ARGUMENT_BYTES_MAX }
    }

    pub(super) fn positional(&mut self, values: &[MontyObject]) -> Result<Vec<Value>, JsonFault> {
        values.iter().enumerate().map(|(index, value)| self.member(&index.to_string(), value)).collect()
    }

    pub(super) fn keywords(&mut self, pairs: &[(MontyObject, MontyObject)]) -> Result<Vec<(String, Value)>, JsonFault> {
        let named = pairs.iter().map(|(key, value)| {
            let MontyObject::String(key) = key else { return self.fault(JsonRule::Key) };
            Ok((key.clone(), self.member(key, value)?))
        });
        named.collect()
    }

    fn member(&mut self, key: &str, value: &MontyObject) -> Result<Value, JsonFault> {
        let at = self.path.len();
        self.path.push('/');
        self.path.push_str(&key.replace('~', "~0").replace('/', "~1"));
        let written = self.value(value)?;
        self.path.truncate(at);
        Ok(written)
    }

    fn fault<T>(&self, rule: JsonRule) -> Result<T, JsonFault> {
        Err(JsonFault { path: self.path.clone(), rule })
    }

    fn spend(&mut self, bytes: usize) -> Result<(), JsonFault> {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => self.fault(JsonRule::TooLarge),
        }
    }

    fn value(&mut self, value: &MontyObject) -> Result<Value, JsonFault> {
        self.spend(4)?;
        match value {
            MontyObject::None => Ok(Value::Null),
            MontyObject::Bool(flag) => Ok(Value::Bool(*flag)),
            MontyObject::Int(whole) if whole.unsigned_abs() < EXACT.unsigned_abs() => Ok(Value::from(*whole)),
            MontyObject::Int(_) | MontyObject::BigInt(_) => self.fault(JsonRule::BigInteger),
            MontyObject::Float(float) => match Number::from_f64(*float) {
                Some(number) => Ok(Value::Number(number)),
                None => self.fault(JsonRule::NotFinite),
            },
            MontyObject::String(text) => {
                self.spend(text.len())?;
                Ok(Value::String(text.clone()))
            }
            MontyObject::List(values)
            | MontyObject::Tuple(values)
            | MontyObject::NamedTuple { type_name: _, field_names: _, values } => {
                self.deeper(|writer| writer.positional(values).map(Value::Array))
            }
            MontyObject::Dict(pairs) => self.deeper(|writer| writer.members(pairs)),
            MontyObject::Cycle(..) => self.fault(JsonRule::Cycle),
            MontyObject::Function { .. } | MontyObject::BuiltinFunction(_) => self.fault(JsonRule::Function),
            MontyObject::Bytes(_) => self.fault(JsonRule::Object(Kind::Bytes)),
            MontyObject::Set(_) | MontyObject::FrozenSet(_) => self.fault(JsonRule::Object(Kind::Set)),
            MontyObject::Date(_)
            | MontyObject::DateTime(_)
            | MontyObject::Time(_)
            | MontyObject::TimeDelta(_)
            | MontyObject::TimeZone(_) => self.fault(JsonRule::Object(Kind::Date)),
            MontyObject::Exception { .. } => self.fault(JsonRule::Object(Kind::Exception)),
            MontyObject::Type(_) => self.fault(JsonRule::Object(Kind::Type)),
            MontyObject::Path(_) => self.fault(JsonRule::Object(Kind::Path)),
            MontyObject::FileHandle(_) => self.fault(JsonRule::Object(Kind::File)),
            MontyObject::ClassInstance(_) => self.fault(JsonRule::Object(Kind::Instance)),
            MontyObject::Ellipsis | MontyObject::NotImplemented => self.fault(JsonRule::Object(Kind::Ellipsis)),
            MontyObject::Repr(_) => self.fault(JsonRule::Object(Kind::Other)),
        }
    }

    fn deeper(&mut self, write: impl FnOnce(&mut Self) -> Result<Value, JsonFault>) -> Result<Value, JsonFault> {
        if self.depth >= limits::ARGUMENT_DEPTH_MAX {
            return self.fault(JsonRule::TooDeep);
        }
        self.depth += 1;
        let written = write(self)?;
        self.depth -= 1;
        Ok(written)
    }

    fn members(&mut self, pairs: &DictPairs) -> Result<Value, JsonFault> {
        let mut map = Map::new();
        for (key, value) in pairs {
            let MontyObject::String(key) = key else { return self.fault(JsonRule::Key) };
            self.spend(key.len())?;
            let value = self.member(key, value)?;
            map.insert(key.clone(), value);
        }
        Ok(Value::Object(map))
    }
}
