//! The global functions that a sandbox adds to the bare language, and the guards of some native functions.
//!
//! Ten thousand sandboxes sit idle in one process, so each must hold little. A function here is an entry of a static
//! table until a program first uses it, and objects that most programs never need (dates, typed arrays) are created
//! when their name is first read. The alternative, a script that runs in every sandbox, took two fifths of a sandbox's
//! memory and most of its start time.
//!
//! A program may replace any of its globals. So the native functions that are needed later are saved at the start, in a
//! list that no program can reach, and all code here calls the saved ones.

mod arrays;
mod globals;
mod lazy;
mod promises;
mod render;
mod texts;

use std::ffi::{CStr, CString};
use std::sync::LazyLock;

use rquickjs::object::Property;
use rquickjs::{Array, Ctx, Exception, Object, Persistent, String as JsString, Value};

use super::engine::Core;
use super::raw::{self, Entry, Table};

pub(super) use lazy::{LazyScript, NAME as LATE_NAME, NAMES_FROM, load, refusal, resolve_name};
pub(super) use render::{ThrownError, describe_thrown, recorded_stack, render_value};

/// A call of one of these functions.
pub(super) struct Call<'a, 'js> {
    core: &'a Core,
    ctx: &'a Ctx<'js>,
    id: usize,
    this: Value<'js>,
    args: Vec<Value<'js>>,
}

type Body = for<'a, 'js> fn(Call<'a, 'js>) -> rquickjs::Result<Value<'js>>;

/// The object that holds a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    Arrays,
    Texts,
    String,
    Iterators,
    Json,
    Promise,
    AsyncGenerators,
    Object,
    Objects,
    Reflect,
    Proxy,
    Math,
    Console,
    Globals,
    /// No object: the function is created when it is needed.
    Hidden,
}

struct Native {
    holder: Holder,
    name: &'static CStr,
    length: u8,
    body: Body,
    /// True if the function guards a native function of the same name, which it calls.
    guards: bool,
}

const fn guard(holder: Holder, name: &'static CStr, length: u8, body: Body) -> Native {
    Native { holder, name, length, body, guards: true }
}

const fn own(holder: Holder, name: &'static CStr, length: u8, body: Body) -> Native {
    Native { holder, name, length, body, guards: false }
}

/// All host functions; the index of a function is its id.
static NATIVES: &[Native] = &[
    guard(Holder::Arrays, c"reverse", 0, arrays::change),
    guard(Holder::Arrays, c"copyWithin", 2, arrays::change),
    guard(Holder::Arrays, c"fill", 1, arrays::change),
    guard(Holder::Arrays, c"splice", 2, arrays::change),
    guard(Holder::Arrays, c"shift", 0, arrays::change),
    guard(Holder::Arrays, c"unshift", 1, arrays::change),
    guard(Holder::Arrays, c"slice", 2, arrays::look),
    guard(Holder::Arrays, c"join", 1, arrays::look),
    guard(Holder::Arrays, c"toLocaleString", 0, arrays::look),
    guard(Holder::Arrays, c"concat", 1, arrays::concat),
    guard(Holder::Arrays, c"sort", 1, arrays::sort),
    guard(Holder::Arrays, c"toSorted", 1, arrays::to_sorted),
    own(Holder::Arrays, c"flat", 0, arrays::flat),
    own(Holder::Arrays, c"flatMap", 1, arrays::flat_map),
    guard(Holder::Texts, c"indexOf", 1, texts::index_of),
    guard(Holder::Texts, c"lastIndexOf", 1, texts::last_index_of),
    guard(Holder::Texts, c"includes", 1, texts::includes),
    guard(Holder::Texts, c"split", 2, texts::split),
    guard(Holder::Texts, c"replace", 2, texts::replace),
    guard(Holder::Texts, c"replaceAll", 2, texts::replace_all),
    guard(Holder::Texts, c"normalize", 0, texts::normalize),
    guard(Holder::Texts, c"localeCompare", 1, texts::locale_compare),
    guard(Holder::String, c"raw", 1, texts::raw),
    guard(Holder::Iterators, c"drop", 1, arrays::drop_first),
    guard(Holder::Json, c"stringify", 3, arrays::stringify),
    guard(Holder::Promise, c"resolve", 1, promises::checked_static),
    guard(Holder::Promise, c"reject", 1, promises::checked_static),
    guard(Holder::Promise, c"all", 1, promises::checked_static),
    guard(Holder::Promise, c"allSettled", 1, promises::checked_static),
    guard(Holder::Promise, c"any", 1, promises::checked_static),
    guard(Holder::Promise, c"race", 1, promises::checked_static),
    guard(Holder::Promise, c"try", 1, promises::checked_static),
    guard(Holder::Promise, c"withResolvers", 0, promises::checked_static),
    guard(Holder::AsyncGenerators, c"next", 1, promises::checked),
    guard(Holder::AsyncGenerators, c"return", 1, promises::checked),
    guard(Holder::AsyncGenerators, c"throw", 1, promises::checked),
    guard(Holder::Object, c"defineProperty", 3, globals::define_property),
    guard(Holder::Object, c"defineProperties", 2, globals::define_properties),
    guard(Holder::Object, c"freeze", 1, globals::lock),
    guard(Holder::Object, c"seal", 1, globals::lock),
    guard(Holder::Object, c"preventExtensions", 1, globals::lock),
    guard(Holder::Objects, c"__defineGetter__", 2, globals::define_accessor),
    guard(Holder::Objects, c"__defineSetter__", 2, globals::define_accessor),
    guard(Holder::Reflect, c"defineProperty", 3, globals::define_property),
    guard(Holder::Reflect, c"preventExtensions", 1, globals::lock),
    guard(Holder::Proxy, c"revocable", 2, globals::revocable),
    own(Holder::Math, c"random", 0, globals::random),
    own(Holder::Console, c"log", 0, globals::log),
    own(Holder::Console, c"info", 0, globals::log),
    own(Holder::Console, c"warn", 0, globals::log),
    own(Holder::Console, c"error", 0, globals::log),
    own(Holder::Console, c"debug", 0, globals::log),
    own(Holder::Globals, c"queueMicrotask", 1, promises::queue_microtask),
    own(Holder::Hidden, c"Promise", 1, promises::promise),
    own(Holder::Hidden, c"Proxy", 2, globals::proxy),
    own(Holder::Hidden, c"asItIs", 2, arrays::as_it_is),
    own(Holder::Hidden, c"collect", 2, render::collect),
    own(Holder::Hidden, c"bounded", 1, arrays::bounded_copy),
    own(Holder::Hidden, c"isLeaf", 1, arrays::is_leaf),
    own(Holder::Hidden, c"sort", 2, arrays::sort_by),
    own(Holder::Hidden, c"find", 3, texts::find),
    own(Holder::Hidden, c"slice", 3, texts::slice),
    own(Holder::Hidden, c"hidden", 3, lazy::hidden),
    own(Holder::Hidden, c"visible", 3, lazy::visible),
    own(Holder::Hidden, c"dressed", 3, lazy::dressed),
    own(Holder::Hidden, c"apply", 3, lazy::apply),
    own(Holder::Hidden, c"construct", 3, lazy::construct),
    own(Holder::Hidden, c"isDate", 1, lazy::is_date),
    own(Holder::Hidden, c"zoned", 1, lazy::zoned),
    own(Holder::Hidden, c"clock", 0, lazy::clock),
    own(Holder::Hidden, c"now", 0, lazy::since_origin),
];

/// The ids of gates start here.
pub(super) const GATES_FROM: usize = 1_000;

/// Values that programs cannot reach, in addition to the guarded native functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HiddenValue {
    NativePromise,
    /// The host's guard of the native constructor.
    Promise,
    Then,
    NativeProxy,
    Error,
    ErrorPrototype,
    /// The getter of the stack that the engine recorded in an error when the error was created.
    ErrorStack,
    MapEach,
    SetEach,
    RegExpText,
    Slice,
    AsItIs,
}

impl HiddenValue {
    const COUNT: usize = Self::AsItIs as usize + 1;

    fn place(self) -> usize {
        NATIVES.len() + self as usize
    }
}

/// Returns the id of a function by its holder and its name.
fn number(holder: Holder, name: &CStr) -> rquickjs::Result<usize> {
    let found = NATIVES.iter().position(|native| native.holder == holder && native.name == name);
    found.ok_or(rquickjs::Error::Unknown)
}

/// Creates a host function that no global refers to.
fn hidden_function<'js>(ctx: &Ctx<'js>, name: &CStr) -> rquickjs::Result<Value<'js>> {
    let id = number(Holder::Hidden, name)?;
    raw::function(ctx, name, NATIVES[id].length, id)
}

fn entries(holder: Holder) -> impl Iterator<Item = Entry> {
    let natives = NATIVES.iter().enumerate().filter(move |(_, native)| native.holder == holder);
    natives.map(|(id, native)| Entry::Function { name: native.name, length: native.length, id })
}

/// The functions of each holder, in the order of installation.
static TABLES: LazyLock<Vec<(Holder, &'static Table)>> = LazyLock::new(|| {
    let leaked = |table: Table| -> &'static Table { Box::leak(Box::new(table)) };
    let console = Entry::Object { name: c"console", members: leaked(Table::new(entries(Holder::Console))) };
    let globals = Table::new(entries(Holder::Globals).chain([console]));
    let simple = [
        Holder::Arrays,
        Holder::Texts,
        Holder::String,
        Holder::Iterators,
        Holder::Json,
        Holder::Promise,
        Holder::AsyncGenerators,
        Holder::Object,
        Holder::Objects,
        Holder::Reflect,
        Holder::Proxy,
        Holder::Math,
    ];
    let simple = simple.into_iter().map(|holder| (holder, leaked(Table::new(entries(holder)))));
    simple.chain([(Holder::Globals, leaked(globals))]).collect()
});

/// Sets up the globals of a new sandbox, and returns the values that its programs cannot reach.
pub(super) fn install(ctx: &Ctx<'_>, gates: &[CString]) -> rquickjs::Result<Persistent<Array<'static>>> {
    let mut kept = vec![Value::new_undefined(ctx.clone()); NATIVES.len() + HiddenValue::COUNT];
    keep_others(ctx, &mut kept)?;
    for (holder, table) in TABLES.iter() {
        let found = holder.find(ctx)?;
        for (id, native) in NATIVES.iter().enumerate().filter(|(_, native)| native.guards && native.holder == *holder) {
            kept[id] = found.get(native.name.to_str()?)?;
        }
        let replaced = if *holder == Holder::Promise {
            promises::replace(ctx, &found, &mut kept)?
        } else if *holder == Holder::Proxy {
            globals::replace_proxy(ctx)?
        } else {
            found
        };
        table.define(ctx, &replaced)?;
    }
    lazy::announce(ctx)?;
    for (index, gate) in gates.iter().enumerate() {
        kept.push(raw::function(ctx, gate, 0, GATES_FROM + index)?);
    }
    let list = Array::new(ctx.clone())?;
    for (place, value) in kept.into_iter().enumerate() {
        list.set(place, value)?;
    }
    Ok(Persistent::save(ctx, list))
}

fn keep_others<'js>(ctx: &Ctx<'js>, kept: &mut [Value<'js>]) -> rquickjs::Result<()> {
    let globals = ctx.globals();
    let of = |class: &str, name: &str| -> rquickjs::Result<Value<'js>> {
        globals.get::<_, Object<'js>>(class)?.get::<_, Object<'js>>("prototype")?.get(name)
    };
    let errors: Object<'js> = globals.get::<_, Object<'js>>("Error")?.get("prototype")?;
    let stack = raw::own(ctx, &errors, &JsString::from_str(ctx.clone(), "stack")?.into_value())?;
    for (kind, value) in [
        (HiddenValue::NativePromise, globals.get("Promise")?),
        (HiddenValue::Then, of("Promise", "then")?),
        (HiddenValue::NativeProxy, globals.get("Proxy")?),
        (HiddenValue::Error, globals.get("Error")?),
        (HiddenValue::ErrorPrototype, errors.into_value()),
        (HiddenValue::ErrorStack, stack.and_then(|stack| stack.getter).ok_or(rquickjs::Error::Unknown)?),
        (HiddenValue::MapEach, of("Map", "forEach")?),
        (HiddenValue::SetEach, of("Set", "forEach")?),
        (HiddenValue::RegExpText, of("RegExp", "toString")?),
        (HiddenValue::Slice, of("String", "slice")?),
        (HiddenValue::AsItIs, hidden_function(ctx, c"asItIs")?),
    ] {
        kept[kind.place()] = value;
    }
    for name in [c"prepareStackTrace", c"stackTraceLimit", c"captureStackTrace"] {
        raw::delete(ctx, &globals.get("Error")?, name)?;
    }
    Ok(())
}

impl Holder {
    fn find<'js>(self, ctx: &Ctx<'js>) -> rquickjs::Result<Object<'js>> {
        let globals = ctx.globals();
        let of = |name: &str| globals.get::<_, Object<'js>>(name);
        let prototype = |name: &str| of(name)?.get::<_, Object<'js>>("prototype");
        match self {
            Self::Arrays => prototype("Array"),
            Self::Texts => prototype("String"),
            Self::String => of("String"),
            Self::Iterators => prototype("Iterator"),
            Self::Json => of("JSON"),
            Self::Promise => of("Promise"),
            Self::AsyncGenerators => promises::async_generators(ctx),
            Self::Object => of("Object"),
            Self::Objects => prototype("Object"),
            Self::Reflect => of("Reflect"),
            Self::Proxy => of("Proxy"),
            Self::Math => of("Math"),
            Self::Globals | Self::Console | Self::Hidden => Ok(globals),
        }
    }
}

/// Calls the host function with this id.
pub(super) fn call<'js>(
    core: &Core,
    ctx: &Ctx<'js>,
    id: usize,
    this: Value<'js>,
    args: Vec<Value<'js>>,
) -> rquickjs::Result<Value<'js>> {
    match NATIVES.get(id) {
        Some(native) => (native.body)(Call { core, ctx, id, this, args }),
        None => Err(rquickjs::Error::Unknown),
    }
}

/// Returns the function of the gate with this index.
pub(super) fn gate<'js>(core: &Core, ctx: &Ctx<'js>, index: usize) -> rquickjs::Result<Value<'js>> {
    core.hidden_values(ctx)?.get(NATIVES.len() + HiddenValue::COUNT + index)
}

/// Binds a global name to a value, whatever a program has done to the name. Returns true if that succeeded.
pub(super) fn bind<'js>(ctx: &Ctx<'js>, name: &str, value: Value<'js>) -> rquickjs::Result<bool> {
    let globals = ctx.globals();
    let key = JsString::from_str(ctx.clone(), name)?.into_value();
    let defined = globals.prop(name, Property::from(value.clone()).writable().configurable());
    if defined.is_err() {
        ctx.catch();
    }
    let is_bound = || -> rquickjs::Result<bool> {
        Ok(raw::own(ctx, &globals, &key)?.and_then(|own| own.value).is_some_and(|bound| bound == value))
    };
    if is_bound()? {
        return Ok(true);
    }
    if globals.set(name, value.clone()).is_err() {
        ctx.catch();
    }
    is_bound()
}

impl<'a, 'js> Call<'a, 'js> {
    fn hidden_value(&self, kind: HiddenValue) -> rquickjs::Result<Value<'js>> {
        self.core.hidden_values(self.ctx)?.get(kind.place())
    }

    /// Returns the native function that this function guards.
    fn native(&self) -> rquickjs::Result<Value<'js>> {
        self.core.hidden_values(self.ctx)?.get(self.id)
    }

    /// Returns the native function that another function guards.
    fn native_of(&self, holder: Holder, name: &CStr) -> rquickjs::Result<Value<'js>> {
        self.core.hidden_values(self.ctx)?.get(number(holder, name)?)
    }

    /// Calls the native function with the same `this` and arguments.
    fn forward(&self) -> rquickjs::Result<Value<'js>> {
        raw::call(self.ctx, &self.native()?, &self.this, &self.args)
    }

    /// Returns the argument at this index, or undefined if it is missing.
    fn arg(&self, place: usize) -> Value<'js> {
        self.args.get(place).cloned().unwrap_or_else(|| self.undefined())
    }

    fn set_arg(&mut self, place: usize, value: Value<'js>) {
        while self.args.len() <= place {
            self.args.push(self.undefined());
        }
        self.args[place] = value;
    }

    fn undefined(&self) -> Value<'js> {
        Value::new_undefined(self.ctx.clone())
    }

    fn range<T>(&self, message: &str) -> rquickjs::Result<T> {
        Err(Exception::throw_range(self.ctx, message))
    }

    fn wrong<T>(&self, message: &str) -> rquickjs::Result<T> {
        Err(Exception::throw_type(self.ctx, message))
    }

    /// Converts the value to a text, which may run code of the entity.
    fn text(&self, value: &Value<'js>) -> rquickjs::Result<Value<'js>> {
        if raw::is_text(value) { Ok(value.clone()) } else { raw::to_text(self.ctx, value) }
    }
}
