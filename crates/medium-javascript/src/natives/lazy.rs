//! Scripts that run on first use, and the global names that start them.
//!
//! Such a script may run in the middle of a program that has replaced any of its globals. So it uses only the syntax of
//! the language and the functions that it receives here, and none of these depend on a value that a program can reach.

use std::ffi::CStr;
use std::sync::{LazyLock, OnceLock};

use regex::Regex;
use rquickjs::context::intrinsic;
use rquickjs::object::Property;
use rquickjs::{Context, Ctx, IntoAtom, Object, Runtime, Value};
use serde_json::json;

use super::{Call, HiddenValue};
use crate::engine::Core;
use crate::json as values;
use crate::raw::{self, Compiled};
use crate::sandbox::Throw;

/// The name of these scripts in stack frames; no program can have this name.
pub(crate) const NAME: &str = "<late>";

/// A script that runs on first use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LazyScript {
    Arrays,
    Texts,
    Jobs,
    Date,
    GateError,
    AsyncGenerator,
}

impl LazyScript {
    pub(crate) const COUNT: usize = Self::AsyncGenerator as usize + 1;

    fn source(self) -> &'static str {
        match self {
            Self::Arrays => include_str!("../late/arrays.js"),
            Self::Texts => include_str!("../late/texts.js"),
            Self::Jobs => include_str!("../late/jobs.js"),
            Self::Date => include_str!("../late/date.js"),
            Self::GateError => include_str!("../late/gate_error.js"),
            Self::AsyncGenerator => include_str!("../late/async_generator.js"),
        }
    }

    /// The host functions that the script receives.
    fn host(self) -> &'static [&'static CStr] {
        match self {
            Self::Arrays => &[c"apply", c"bounded", c"isLeaf", c"sort", c"visible"],
            Self::Texts => &[c"find", c"slice", c"visible"],
            Self::Date => &[c"apply", c"clock", c"construct", c"dressed", c"hidden", c"isDate", c"zoned"],
            Self::GateError => &[c"hidden", c"visible"],
            Self::Jobs | Self::AsyncGenerator => &[],
        }
    }

    /// The hidden values that the script receives.
    fn kept(self) -> &'static [(&'static str, HiddenValue)] {
        match self {
            Self::Jobs => &[("Promise", HiddenValue::NativePromise)],
            Self::GateError => &[("Error", HiddenValue::Error)],
            Self::Arrays | Self::Texts | Self::Date | Self::AsyncGenerator => &[],
        }
    }
}

/// Runs a script and returns its completion value. Each script is compiled once per process.
pub(super) fn script<'js>(ctx: &Ctx<'js>, late: LazyScript) -> rquickjs::Result<Value<'js>> {
    static COMPILED: [OnceLock<Compiled>; LazyScript::COUNT] = [const { OnceLock::new() }; LazyScript::COUNT];
    let place = &COMPILED[late as usize];
    if let Some(compiled) = place.get() {
        return raw::load(ctx, compiled);
    }
    let context = Context::custom::<intrinsic::Eval>(&Runtime::new()?)?;
    let compiled = context.with(|ctx| {
        raw::enter(&ctx);
        Compiled::new(&ctx, late.source(), NAME)
    })?;
    raw::load(ctx, place.get_or_init(|| compiled))
}

/// Runs a script whose completion value is a function, and returns the result of that function.
pub(crate) fn load<'js>(core: &Core, ctx: &Ctx<'js>, late: LazyScript) -> rquickjs::Result<Object<'js>> {
    let host = Object::new_proto(ctx.clone(), None)?;
    for name in late.host() {
        define(&host, name.to_str()?, super::hidden_function(ctx, name)?)?;
    }
    for (name, kind) in late.kept() {
        define(&host, *name, core.hidden_values(ctx)?.get(kind.place())?)?;
    }
    let made = script(ctx, late)?;
    raw::call(ctx, &made, &Value::new_undefined(ctx.clone()), &[host.into_value()])?.get()
}

/// Defines a property instead of assigning it, so that no setter of a prototype sees the value.
pub(crate) fn define<'js>(object: &Object<'js>, key: impl IntoAtom<'js>, value: Value<'js>) -> rquickjs::Result<()> {
    object.prop(key, Property::from(value).writable().enumerable().configurable())
}

/// A group of global names that are created together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    Dates,
    TypedArrays,
    Performance,
    GateError,
}

/// The global names that are created on first use.
const NAMES: &[(&CStr, Group)] = &[
    (c"Date", Group::Dates),
    (c"GateError", Group::GateError),
    (c"performance", Group::Performance),
    (c"ArrayBuffer", Group::TypedArrays),
    (c"DataView", Group::TypedArrays),
    (c"Int8Array", Group::TypedArrays),
    (c"Uint8Array", Group::TypedArrays),
    (c"Uint8ClampedArray", Group::TypedArrays),
    (c"Int16Array", Group::TypedArrays),
    (c"Uint16Array", Group::TypedArrays),
    (c"Int32Array", Group::TypedArrays),
    (c"Uint32Array", Group::TypedArrays),
    (c"BigInt64Array", Group::TypedArrays),
    (c"BigUint64Array", Group::TypedArrays),
    (c"Float16Array", Group::TypedArrays),
    (c"Float32Array", Group::TypedArrays),
    (c"Float64Array", Group::TypedArrays),
];

/// The functions of these names have the ids from here on.
pub(crate) const NAMES_FROM: usize = 500;

/// Adds the names to the globals. Each has one function, which is called when the name is read and when it is written.
pub(super) fn announce(ctx: &Ctx<'_>) -> rquickjs::Result<()> {
    let globals = ctx.globals();
    for (place, (name, _)) in NAMES.iter().enumerate() {
        raw::accessor(ctx, &globals, name, &raw::function(ctx, name, 0, NAMES_FROM + place)?)?;
    }
    Ok(())
}

/// Handles a read or a write of a name: its value is created first.
pub(crate) fn resolve_name<'js>(
    core: &Core,
    ctx: &Ctx<'js>,
    place: usize,
    args: &[Value<'js>],
) -> rquickjs::Result<Value<'js>> {
    let Some((name, group)) = NAMES.get(place) else { return Err(rquickjs::Error::Unknown) };
    let name = name.to_str()?;
    let globals = ctx.globals();
    // After the end no value is created, and so no group is marked as created.
    core.check_alive(ctx)?;
    if core.begin_group(*group as u8) {
        core.with_room(ctx, || build(core, ctx, *group))?;
    }
    match args.first() {
        None => globals.get(name),
        Some(value) => {
            globals.prop(name, Property::from(value.clone()).writable().configurable())?;
            Ok(Value::new_undefined(ctx.clone()))
        }
    }
}

fn build<'js>(core: &Core, ctx: &Ctx<'js>, group: Group) -> rquickjs::Result<()> {
    let globals = ctx.globals();
    let hide = |name: &str, value: Value<'js>| globals.prop(name, Property::from(value).writable().configurable());
    match group {
        Group::Dates => {
            raw::add_dates(ctx)?;
            let dates = core.lazy_script(ctx, LazyScript::Date)?;
            let date: Object<'_> = dates.get("Date")?;
            date.prop("prototype", Property::from(dates.get::<_, Value<'_>>("prototype")?))?;
            hide("Date", date.into_value())
        }
        Group::TypedArrays => {
            raw::add_typed_arrays(ctx)?;
            raw::delete(ctx, &globals, c"SharedArrayBuffer")?;
            raw::delete(ctx, &globals, c"Atomics")?;
            Ok(())
        }
        Group::Performance => {
            let performance = Object::new(ctx.clone())?;
            performance.prop("now", Property::from(super::hidden_function(ctx, c"now")?).enumerable())?;
            performance.prop("timeOrigin", Property::from(core.origin()).enumerable())?;
            hide("performance", performance.into_value())
        }
        Group::GateError => hide("GateError", core.lazy_script(ctx, LazyScript::GateError)?.get("GateError")?),
    }
}

/// Creates a `GateError`.
pub(crate) fn refusal<'js>(core: &Core, ctx: &Ctx<'js>, throw: &Throw) -> rquickjs::Result<Value<'js>> {
    let class: Value<'js> = core.lazy_script(ctx, LazyScript::GateError)?.get("GateError")?;
    let fields = json!({"type": throw.kind, "code": throw.code, "retry": throw.retry, "data": throw.data});
    let message = rquickjs::String::from_str(ctx.clone(), &throw.message)?.into_value();
    raw::construct(ctx, &class, &class, &[message, values::read(ctx, &fields)?])
}

// The functions that scripts receive.

pub(super) fn hidden<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    if let Some(object) = call.arg(0).as_object() {
        object.prop(call.arg(1), Property::from(call.arg(2)).writable().configurable())?;
    }
    Ok(call.undefined())
}

pub(super) fn visible<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    if let Some(object) = call.arg(0).as_object() {
        define(object, call.arg(1), call.arg(2))?;
    }
    Ok(call.undefined())
}

/// Gives a replacement function the name and the length of the original.
pub(super) fn dressed<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    let made = call.arg(0);
    if let Some(object) = made.as_object() {
        object.prop("name", Property::from(call.arg(1)).configurable())?;
        object.prop("length", Property::from(call.arg(2)).configurable())?;
    }
    Ok(made)
}

impl<'js> Call<'_, 'js> {
    /// Returns the elements of an array that the script made.
    fn array_elements(&self, place: usize) -> rquickjs::Result<Vec<Value<'js>>> {
        match self.arg(place).into_array() {
            Some(list) => (0..list.len()).map(|at| list.get(at)).collect(),
            None => Ok(Vec::new()),
        }
    }
}

pub(super) fn apply<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    raw::call(call.ctx, &call.arg(0), &call.arg(1), &call.array_elements(2)?)
}

pub(super) fn construct<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    raw::construct(call.ctx, &call.arg(0), &call.arg(2), &call.array_elements(1)?)
}

pub(super) fn is_date<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    let date = call.arg(0);
    Ok(Value::new_bool(call.ctx.clone(), date.is_object() && raw::class(&date) == raw::Class::Date))
}

/// For scripts: returns the reading of the host's clock.
pub(super) fn clock<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    Ok(Value::new_number(call.ctx.clone(), call.core.now()))
}

/// `performance.now`.
pub(super) fn since_origin<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    Ok(Value::new_number(call.ctx.clone(), call.core.now() - call.core.origin()))
}

/// Appends UTC, the only time zone here, to a time text that names no zone.
pub(super) fn zoned<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    static ZONE: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"(?i)(?:Z|[+-]\d\d:?\d\d|GMT|UTC|UT|[ECMP][SD]T)\s*(?:\([^)]*\))?\s*$").expect("it is a pattern")
    });
    static DAY_ONLY: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"^\s*[+-]?\d{4,6}(?:-\d\d(?:-\d\d)?)?\s*$").expect("it is a pattern"));
    static ISO_TIME: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^\s*[+-]?\d{4,6}-\d\d(?:-\d\d)?T\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?\s*$").expect("it is a pattern")
    });
    let text = super::render::plain(call.ctx, &call.arg(0))?;
    let zone = match text.as_str() {
        day if DAY_ONLY.is_match(day) || ZONE.is_match(day) => "",
        time if ISO_TIME.is_match(time) => "Z",
        _ => " UTC",
    };
    Ok(rquickjs::String::from_str(call.ctx.clone(), &format!("{text}{zone}"))?.into_value())
}
