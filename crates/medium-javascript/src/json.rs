//! Conversion between the engine's values and JSON.
//!
//! From the engine to JSON nothing is lost silently: a value that JSON cannot represent is a fault with its path.
//! Reading a value may run code of the entity (a getter, a proxy's trap, `toJSON`), and that code may itself call
//! gates; so nothing is borrowed during the read.

use cantrip_circle::arguments::{Fault, Rule};
use cantrip_circle::limits;
use rquickjs::function::This;
use rquickjs::object::{Filter, Property};
use rquickjs::{Array, Ctx, Function, IntoAtom, Object, String as JsString, Value};
use serde_json::{Map, Number, Value as Json};

use super::raw::{self, Class};

/// The reason why a value could not be written as JSON.
pub(super) enum JsonError {
    /// JSON cannot represent the value.
    Fault(Fault),
    /// Code of the entity threw during the read; the exception is pending.
    Threw(rquickjs::Error),
}

impl From<rquickjs::Error> for JsonError {
    fn from(error: rquickjs::Error) -> Self {
        Self::Threw(error)
    }
}

/// Writes values as JSON; one size limit covers all of them.
pub(super) struct Writer<'js> {
    open: Vec<Value<'js>>,
    path: String,
    left: usize,
}

/// One more than the largest integer that a JavaScript number represents exactly.
const EXACT: f64 = 9_007_199_254_740_992.0;

impl Default for Writer<'_> {
    fn default() -> Self {
        Self { open: Vec::new(), path: String::new(), left: limits::ARGUMENT_BYTES_MAX }
    }
}

impl<'js> Writer<'js> {
    /// Writes the arguments of a call; an `undefined` argument becomes `None`.
    pub(super) fn arguments(&mut self, values: Vec<Value<'js>>) -> Result<Vec<Option<Json>>, JsonError> {
        let mut written = Vec::with_capacity(values.len());
        for (index, value) in values.into_iter().enumerate() {
            let at = self.step(&index.to_string());
            written.push(self.value(value)?);
            self.path.truncate(at);
        }
        Ok(written)
    }

    fn step(&mut self, key: &str) -> usize {
        let at = self.path.len();
        self.path.push('/');
        self.path.push_str(&key.replace('~', "~0").replace('/', "~1"));
        at
    }

    fn fault<T>(&self, rule: Rule) -> Result<T, JsonError> {
        Err(JsonError::Fault(Fault { path: self.path.clone(), rule }))
    }

    fn spend(&mut self, bytes: usize) -> Result<(), JsonError> {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => self.fault(Rule::TooLarge),
        }
    }

    /// Writes one value; `undefined` becomes `None`.
    fn value(&mut self, value: Value<'js>) -> Result<Option<Json>, JsonError> {
        self.spend(4)?;
        if value.is_undefined() {
            Ok(None)
        } else if value.is_null() {
            Ok(Some(Json::Null))
        } else if let Some(flag) = value.as_bool() {
            Ok(Some(Json::Bool(flag)))
        } else if let Some(number) = value.as_number() {
            self.number(number).map(Some)
        } else if value.is_big_int() {
            self.big(&value).map(Some)
        } else if value.is_symbol() {
            self.fault(Rule::Symbol)
        } else if let Some(text) = value.as_string() {
            self.text(text).map(|text| Some(Json::String(text)))
        } else if value.is_function() {
            self.fault(Rule::Function)
        } else if value.is_promise() {
            self.fault(Rule::Promise)
        } else if let Some(object) = value.as_object().cloned() {
            self.nested(value, object)
        } else {
            // This is a string that is still a rope, which the bindings have no type for.
            let text: String = value.get()?;
            self.spend(text.len())?;
            Ok(Some(Json::String(text)))
        }
    }

    fn number(&mut self, number: f64) -> Result<Json, JsonError> {
        if number.fract() == 0.0 && number.abs() < EXACT {
            return Ok(Json::Number(Number::from(number as i64)));
        }
        match Number::from_f64(number) {
            Some(number) => Ok(Json::Number(number)),
            None => self.fault(Rule::NotFinite),
        }
    }

    fn big(&mut self, value: &Value<'js>) -> Result<Json, JsonError> {
        let exact = value.clone().into_big_int().and_then(|big| big.to_i64().ok());
        match exact {
            Some(number) if number.unsigned_abs() < 1 << 53 => Ok(Json::Number(Number::from(number))),
            Some(_) | None => self.fault(Rule::BigInteger),
        }
    }

    fn text(&mut self, text: &JsString<'js>) -> Result<String, JsonError> {
        match text.to_string() {
            Ok(text) => {
                self.spend(text.len())?;
                Ok(text)
            }
            Err(rquickjs::Error::Utf8(_)) => self.fault(Rule::Surrogate),
            Err(error) => Err(error.into()),
        }
    }

    fn nested(&mut self, value: Value<'js>, object: Object<'js>) -> Result<Option<Json>, JsonError> {
        if self.open.len() >= limits::ARGUMENT_DEPTH_MAX {
            return self.fault(Rule::TooDeep);
        }
        if self.open.contains(&value) {
            return self.fault(Rule::Cycle);
        }
        let own: Value<'js> = object.get("toJSON")?;
        self.open.push(value);
        let written = match own.into_function() {
            Some(to_json) => self.replaced(&to_json, object),
            None => self.members(object).map(Some),
        };
        self.open.pop();
        written
    }

    fn replaced(&mut self, to_json: &Function<'js>, object: Object<'js>) -> Result<Option<Json>, JsonError> {
        let value: Value<'js> = to_json.call((This(object.clone()),))?;
        // If `toJSON` returns `this`, write the members directly; calling it again would never end.
        match value.as_object() {
            Some(same) if *same == object => self.members(object).map(Some),
            Some(_) | None => self.value(value),
        }
    }

    fn members(&mut self, object: Object<'js>) -> Result<Json, JsonError> {
        if raw::is_list(object.ctx(), object.as_value())? {
            return self.elements(&object);
        }
        let mut map = Map::new();
        for key in object.own_keys::<Value<'js>>(Filter::new().string().enum_only()) {
            let Some(key) = key?.into_string() else { continue };
            let name = self.text(&key)?;
            let at = self.step(&name);
            let member: Value<'js> = object.get(key)?;
            if let Some(member) = self.value(member)? {
                map.insert(name, member);
            }
            self.path.truncate(at);
        }
        if map.is_empty() {
            // The members of a collection are not properties: as an object it would be written empty.
            match raw::class(object.as_value()) {
                Class::Map => return self.fault(Rule::Collection("Map")),
                Class::Set => return self.fault(Rule::Collection("Set")),
                Class::Date | Class::RegExp | Class::Other => {}
            }
        }
        Ok(Json::Object(map))
    }

    /// Writes the elements of an array. The bindings' own array type is not used, because it reads every length as a
    /// small integer.
    fn elements(&mut self, array: &Object<'js>) -> Result<Json, JsonError> {
        let length: f64 = array.get("length")?;
        // The size is counted before any memory is reserved: the length of a sparse array is only a number.
        self.spend((length * 4.0) as usize)?;
        let mut list = Vec::new();
        for index in 0..length as u32 {
            let at = self.step(&index.to_string());
            let element: Value<'js> = array.get(index)?;
            list.push(self.value(element)?.unwrap_or(Json::Null));
            self.path.truncate(at);
        }
        Ok(Json::Array(list))
    }
}

/// Converts a JSON value into a value of the engine.
pub(super) fn read<'js>(ctx: &Ctx<'js>, json: &Json) -> rquickjs::Result<Value<'js>> {
    match json {
        Json::Null => Ok(Value::new_null(ctx.clone())),
        Json::Bool(flag) => Ok(Value::new_bool(ctx.clone(), *flag)),
        Json::Number(number) => Ok(Value::new_number(ctx.clone(), number.as_f64().unwrap_or(f64::NAN))),
        Json::String(text) => JsString::from_str(ctx.clone(), text).map(JsString::into_value),
        Json::Array(elements) => list(ctx, elements, |element| read(ctx, element)),
        Json::Object(map) => {
            let object = Object::new(ctx.clone())?;
            for (name, member) in map {
                define(&object, name.as_str(), read(ctx, member)?)?;
            }
            Ok(object.into_value())
        }
    }
}

/// Builds an array from the results of `value` for each element.
pub(super) fn list<'js, T>(
    ctx: &Ctx<'js>,
    of: &[T],
    value: impl Fn(&T) -> rquickjs::Result<Value<'js>>,
) -> rquickjs::Result<Value<'js>> {
    let array = Array::new(ctx.clone())?;
    for (index, element) in (0_u32..).zip(of) {
        define(array.as_object(), index, value(element)?)?;
    }
    Ok(array.into_value())
}

/// Defines a property instead of assigning it: a member named `__proto__` stays an ordinary member, and no setter of a
/// prototype sees it.
fn define<'js>(object: &Object<'js>, key: impl IntoAtom<'js>, value: Value<'js>) -> rquickjs::Result<()> {
    object.prop(key, Property::from(value).writable().enumerable().configurable())
}
