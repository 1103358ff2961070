//! Functions of the engine that its bindings do not wrap.
//!
//! First argument: each function takes a [`Ctx`], which proves that the context is alive and that this thread is the
//! one inside it. Values are lent to the engine for the duration of a call, and a value that the engine returns is
//! owned by the [`Value`] made from it. That makes a call sound whatever code of the entity the engine runs in the
//! middle of it.
//!
//! Second argument: [`EngineControls`] keeps the addresses of the runtime and the context without a `Ctx`, because an
//! interrupt handler receives none. It is used only by that handler, by the allocator and by host functions, which run
//! inside the engine while the engine is alive; a `SandboxEngine` takes it away from them before it frees the engine.
//! It also writes one word of the context: the countdown to the next interrupt, which the engine sets to 10,000 and
//! which can be shortened only by writing that word. The offset of the word is not part of the engine's interface, so
//! it is determined at run time, in a context made for that: it is the one word that decreases by a fixed amount for
//! every iteration of a loop, and that continues from whatever value is written into it. If there is not exactly one
//! such word, nothing is ever written.
//!
//! The file is longer than others because it holds all of these calls: unsafe code is easier to check in one module
//! under one argument than in several.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::ptr::NonNull;
use std::sync::OnceLock;

use rquickjs::{Context, Ctx, Function, Object, Runtime, Value, qjs};

/// Controls a running engine from code that has no context.
#[derive(Clone, Copy)]
pub(crate) struct EngineControls {
    runtime: NonNull<qjs::JSRuntime>,
    countdown: Option<NonNull<i32>>,
}

impl EngineControls {
    pub(crate) fn of(ctx: &Ctx<'_>) -> Self {
        let context = ctx.as_raw();
        // SAFETY: a context belongs to a runtime for as long as it lives.
        let runtime = unsafe { qjs::JS_GetRuntime(context.as_ptr()) };
        // SAFETY: the offset was found inside of a context, and all contexts have the same size.
        let countdown = findings().countdown.map(|place| unsafe { context.cast::<i32>().add(place) });
        Self { runtime: NonNull::new(runtime).expect("a live context has a runtime"), countdown }
    }

    /// Forbids all function calls from now on.
    pub(crate) fn forbid_calls(self) {
        self.set_stack(1);
    }

    /// Sets the amount of stack that functions may use.
    pub(crate) fn set_stack(self, bytes: usize) {
        // SAFETY: see the second argument in the module header; the call writes two words of the runtime.
        unsafe { qjs::JS_SetMaxStackSize(self.runtime.as_ptr(), bytes as qjs::size_t) }
    }

    /// Makes the engine call the interrupt handler again after about this many loop iterations and function calls.
    pub(crate) fn poll_after(self, steps: i32) {
        if let Some(countdown) = self.countdown {
            // SAFETY: see the second argument in the module header; the engine is not in the middle of using the word,
            // because it is inside of a call that it made to the host.
            unsafe { countdown.write_volatile(steps) }
        }
    }
}

/// Facts about the engine that are determined once per process, in a context made for that.
#[derive(Default)]
struct Findings {
    /// The offset in a context of the countdown to the next interrupt, counted in words.
    countdown: Option<usize>,
    /// The classes of objects that wrap a number, a text, a boolean or a big integer.
    boxed: Vec<qjs::JSClassID>,
}

fn findings() -> &'static Findings {
    static FINDINGS: OnceLock<Findings> = OnceLock::new();
    FINDINGS.get_or_init(|| {
        let context = Runtime::new().and_then(|runtime| Context::full(&runtime));
        let found = context.and_then(|context| {
            context.with(|ctx| {
                enter(&ctx);
                let boxed: Vec<Value<'_>> = ctx.eval("[Object(0), Object(''), Object(true), Object(0n)]")?;
                // SAFETY: the values are alive; the call looks at their class.
                let boxed = boxed.iter().map(|value| unsafe { qjs::JS_GetClassID(value.as_raw()) }).collect();
                Ok(Findings { countdown: find_countdown(&ctx)?, boxed })
            })
        });
        found.unwrap_or_default()
    })
}

fn find_countdown(ctx: &Ctx<'_>) -> rquickjs::Result<Option<usize>> {
    let context = ctx.as_raw();
    // SAFETY: a context is a block of the engine's own allocator.
    let bytes = unsafe { qjs::js_malloc_usable_size(context.as_ptr(), context.as_ptr().cast()) };
    let words = bytes as usize / size_of::<i32>();
    // SAFETY: within the block, whose words are all of plain data.
    let read = |place: usize| unsafe { context.cast::<i32>().add(place).read_volatile() };
    let all = || (0..words).map(read).collect::<Vec<i32>>();
    let spin: Function<'_> = ctx.eval("(function (n) { for (var i = 0; i < n; i++); })")?;
    spin.call::<_, ()>((1,))?;
    let before = all();
    spin.call::<_, ()>((7,))?;
    let between = all();
    spin.call::<_, ()>((107,))?;
    let after = all();
    let mut found = (0..words).filter(|place| {
        let (few, many) = (before[*place].wrapping_sub(between[*place]), between[*place].wrapping_sub(after[*place]));
        let each = many.wrapping_sub(few) / 100;
        (1..=4).contains(&each) && many - few == 100 * each && (7 * each..7 * each + 8).contains(&few)
    });
    let (Some(place), None) = (found.next(), found.next()) else { return Ok(None) };
    let few = before[place] - between[place];
    // SAFETY: as above; the word is a count, and the engine can handle any count.
    unsafe { context.cast::<i32>().add(place).write_volatile(5_000) };
    spin.call::<_, ()>((7,))?;
    Ok((read(place) == 5_000 - few).then_some(place))
}

/// Records the current stack position as the top of the stack for the engine.
pub(crate) fn enter(ctx: &Ctx<'_>) {
    // SAFETY: the context is alive; the call records the current stack pointer.
    unsafe { qjs::JS_UpdateStackTop(qjs::JS_GetRuntime(ctx.as_raw().as_ptr())) }
}

/// Throws an error that no `catch` and no `finally` sees. It has no message: setting one would call a setter that the
/// entity may have defined on the prototype of errors.
pub(crate) fn raise(ctx: &Ctx<'_>) -> rquickjs::Error {
    // SAFETY: see the first argument in the module header; the second call sets a flag in the error, which is alive.
    unsafe {
        let context = ctx.as_raw().as_ptr();
        match take_value(ctx, qjs::JS_NewError(context)) {
            Ok(error) => {
                qjs::JS_SetUncatchableError(context, error.as_raw());
                ctx.throw(error)
            }
            Err(no_memory) => no_memory,
        }
    }
}

/// The result of running the next job in the queue.
pub(crate) enum Job<'js> {
    NoneLeft,
    Completed,
    /// The job threw this value, and no promise handled it.
    Threw(Value<'js>),
}

/// Runs the next job of the queue, which is code of the entity.
pub(crate) fn run_job<'js>(ctx: &Ctx<'js>) -> Job<'js> {
    let mut of_job = std::ptr::null_mut();
    // SAFETY: the context is alive and the only one of its runtime; the engine writes the context of the job.
    let ran = unsafe { qjs::JS_ExecutePendingJob(qjs::JS_GetRuntime(ctx.as_raw().as_ptr()), &mut of_job) };
    match ran {
        0 => Job::NoneLeft,
        1.. => Job::Completed,
        ..0 => Job::Threw(ctx.catch()),
    }
}

/// Returns the value that the engine gave, or an error if an exception is pending.
///
/// # Safety
/// `given` is owned by the caller, and its ownership passes to this function.
unsafe fn take_value<'js>(ctx: &Ctx<'js>, given: qjs::JSValue) -> rquickjs::Result<Value<'js>> {
    // SAFETY: the caller's promise.
    unsafe {
        if qjs::JS_IsException(given) {
            return Err(rquickjs::Error::Exception);
        }
        Ok(Value::from_raw(ctx.clone(), given))
    }
}

fn borrowed_args(args: &[Value<'_>]) -> Vec<qjs::JSValue> {
    args.iter().map(Value::as_raw).collect()
}

/// Calls a function.
pub(crate) fn call<'js>(
    ctx: &Ctx<'js>,
    function: &Value<'js>,
    this: &Value<'js>,
    args: &[Value<'js>],
) -> rquickjs::Result<Value<'js>> {
    let mut args = borrowed_args(args);
    let count = args.len() as qjs::c_int;
    // SAFETY: see the first argument in the module header.
    unsafe {
        let context = ctx.as_raw().as_ptr();
        take_value(ctx, qjs::JS_Call(context, function.as_raw(), this.as_raw(), count, args.as_mut_ptr()))
    }
}

/// Calls a constructor on behalf of `target`.
pub(crate) fn construct<'js>(
    ctx: &Ctx<'js>,
    constructor: &Value<'js>,
    target: &Value<'js>,
    args: &[Value<'js>],
) -> rquickjs::Result<Value<'js>> {
    let mut args = borrowed_args(args);
    let count = args.len() as qjs::c_int;
    // SAFETY: see the first argument in the module header.
    unsafe {
        let context = ctx.as_raw().as_ptr();
        let (constructor, target) = (constructor.as_raw(), target.as_raw());
        take_value(ctx, qjs::JS_CallConstructor2(context, constructor, target, count, args.as_mut_ptr()))
    }
}

/// The class of an object whose content is not, or not only, its properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Map,
    Set,
    Date,
    RegExp,
    Other,
}

pub(crate) fn class(value: &Value<'_>) -> Class {
    let raw = value.as_raw();
    // SAFETY: the value is alive; these calls look at its tag and class and nothing else.
    unsafe {
        match () {
            () if qjs::JS_IsMap(raw) => Class::Map,
            () if qjs::JS_IsSet(raw) => Class::Set,
            () if qjs::JS_IsDate(raw) => Class::Date,
            () if qjs::JS_IsRegExp(raw) => Class::RegExp,
            () => Class::Other,
        }
    }
}

/// Returns true if the value is an array or a proxy of one, by the rules of the language.
pub(crate) fn is_list<'js>(ctx: &Ctx<'js>, value: &Value<'js>) -> rquickjs::Result<bool> {
    let mut value = value.clone();
    while value.is_proxy() {
        // SAFETY: see the first argument in the module header.
        value = unsafe { take_value(ctx, qjs::JS_GetProxyTarget(ctx.as_raw().as_ptr(), value.as_raw()))? };
    }
    Ok(value.is_array())
}

/// Returns true if the value is an object that wraps a number, a text, a boolean or a big integer.
pub(crate) fn is_boxed(value: &Value<'_>) -> bool {
    // SAFETY: the value is alive; the call looks at its class.
    value.is_object() && findings().boxed.contains(&unsafe { qjs::JS_GetClassID(value.as_raw()) })
}

/// Returns true if the value is a text: a string, or a rope, which the bindings have no type for.
pub(crate) fn is_text(value: &Value<'_>) -> bool {
    // SAFETY: the value is alive; the call looks at its tag.
    unsafe { qjs::JS_IsString(value.as_raw()) }
}

/// Converts a value to a text, which may run code of the entity.
pub(crate) fn to_text<'js>(ctx: &Ctx<'js>, value: &Value<'js>) -> rquickjs::Result<Value<'js>> {
    // SAFETY: see the first argument in the module header.
    unsafe { take_value(ctx, qjs::JS_ToString(ctx.as_raw().as_ptr(), value.as_raw())) }
}

/// Converts a value to a number, which may run code of the entity.
pub(crate) fn to_number<'js>(ctx: &Ctx<'js>, value: &Value<'js>) -> rquickjs::Result<f64> {
    let mut number = f64::NAN;
    // SAFETY: see the first argument in the module header; the engine writes the number.
    match unsafe { qjs::JS_ToFloat64(ctx.as_raw().as_ptr(), &mut number, value.as_raw()) } {
        0 => Ok(number),
        _ => Err(rquickjs::Error::Exception),
    }
}

/// Reads a property of any value, also of one that is not an object.
pub(crate) fn member<'js>(ctx: &Ctx<'js>, of: &Value<'js>, name: &CStr) -> rquickjs::Result<Value<'js>> {
    // SAFETY: see the first argument in the module header.
    unsafe { take_value(ctx, qjs::JS_GetPropertyStr(ctx.as_raw().as_ptr(), of.as_raw(), name.as_ptr())) }
}

/// Reads an element of any value, also of one that is not an object.
pub(crate) fn element<'js>(ctx: &Ctx<'js>, of: &Value<'js>, at: u32) -> rquickjs::Result<Value<'js>> {
    // SAFETY: see the first argument in the module header.
    unsafe { take_value(ctx, qjs::JS_GetPropertyUint32(ctx.as_raw().as_ptr(), of.as_raw(), at)) }
}

/// Passes the bytes of a value's text to `look`: one UTF-16 unit after the other, each in UTF-8, so that each half of a
/// surrogate pair has its own three bytes. A value that is not a text is converted first, which may run code of the
/// entity.
pub(crate) fn text_bytes<'js, R>(
    ctx: &Ctx<'js>,
    value: &Value<'js>,
    look: impl FnOnce(&[u8]) -> R,
) -> rquickjs::Result<R> {
    /// Returns the text to the engine, also when `look` panics.
    struct Lent(NonNull<qjs::JSContext>, *const qjs::c_char);
    impl Drop for Lent {
        fn drop(&mut self) {
            // SAFETY: the engine gave the text, and it is returned once.
            unsafe { qjs::JS_FreeCString(self.0.as_ptr(), self.1) }
        }
    }
    let mut length: qjs::size_t = 0;
    // SAFETY: see the first argument in the module header; the engine writes the length.
    let bytes = unsafe { qjs::JS_ToCStringLen2(ctx.as_raw().as_ptr(), &mut length, value.as_raw(), true) };
    if bytes.is_null() {
        return Err(rquickjs::Error::Exception);
    }
    let lent = Lent(ctx.as_raw(), bytes);
    // SAFETY: the engine keeps that many bytes there until they are returned.
    Ok(look(unsafe { std::slice::from_raw_parts(lent.1.cast::<u8>(), length as usize) }))
}

/// An object's own property.
pub(crate) struct Own<'js> {
    /// `None` for a property with a getter or a setter.
    pub(crate) value: Option<Value<'js>>,
    pub(crate) getter: Option<Value<'js>>,
    pub(crate) enumerable: bool,
}

/// Reads an object's own property without calling its getter. The key is a text or a symbol.
pub(crate) fn own<'js>(ctx: &Ctx<'js>, object: &Object<'js>, key: &Value<'js>) -> rquickjs::Result<Option<Own<'js>>> {
    let mut found = qjs::JSPropertyDescriptor {
        flags: 0,
        value: qjs::JS_UNDEFINED,
        getter: qjs::JS_UNDEFINED,
        setter: qjs::JS_UNDEFINED,
    };
    // SAFETY: see the first argument in the module header; the atom is freed once, and three values are ours if one was
    // found.
    unsafe {
        let context = ctx.as_raw().as_ptr();
        let key = qjs::JS_ValueToAtom(context, key.as_raw());
        if key == qjs::__JS_ATOM_NULL as qjs::JSAtom {
            return Err(rquickjs::Error::Exception);
        }
        let answer = qjs::JS_GetOwnProperty(context, &mut found, object.as_value().as_raw(), key);
        qjs::JS_FreeAtom(context, key);
        match answer {
            0 => Ok(None),
            1 => {
                let value = Value::from_raw(ctx.clone(), found.value);
                let getter = Value::from_raw(ctx.clone(), found.getter);
                qjs::JS_FreeValue(context, found.setter);
                let flags = found.flags as u32;
                let plain = flags & qjs::JS_PROP_TMASK != qjs::JS_PROP_GETSET;
                Ok(Some(Own {
                    value: plain.then_some(value),
                    getter: (!plain).then_some(getter),
                    enumerable: flags & qjs::JS_PROP_ENUMERABLE != 0,
                }))
            }
            _ => Err(rquickjs::Error::Exception),
        }
    }
}

/// Passes each of an object's own keys to `take`: texts and symbols, also those that are not enumerable.
pub(crate) fn each_key<'js>(
    ctx: &Ctx<'js>,
    object: &Object<'js>,
    mut take: impl FnMut(Value<'js>) -> rquickjs::Result<()>,
) -> rquickjs::Result<()> {
    /// Returns the list to the engine, also when `take` fails or panics.
    struct Lent(NonNull<qjs::JSContext>, *mut qjs::JSPropertyEnum, u32);
    impl Drop for Lent {
        fn drop(&mut self) {
            // SAFETY: the engine gave the list, and it is returned once.
            unsafe { qjs::JS_FreePropertyEnum(self.0.as_ptr(), self.1, self.2) }
        }
    }
    let (mut keys, mut count) = (std::ptr::null_mut(), 0);
    let flags = (qjs::JS_GPN_STRING_MASK | qjs::JS_GPN_SYMBOL_MASK) as qjs::c_int;
    // SAFETY: see the first argument in the module header; the engine writes the address and the length of its list.
    let answer = unsafe {
        let context = ctx.as_raw().as_ptr();
        qjs::JS_GetOwnPropertyNames(context, &mut keys, &mut count, object.as_value().as_raw(), flags)
    };
    if answer < 0 {
        return Err(rquickjs::Error::Exception);
    }
    let lent = Lent(ctx.as_raw(), keys, count);
    for at in 0..count as usize {
        // SAFETY: the list has `count` entries until it is returned.
        let key = unsafe { take_value(ctx, qjs::JS_AtomToValue(ctx.as_raw().as_ptr(), (*lent.1.add(at)).atom))? };
        take(key)?;
    }
    Ok(())
}

/// Returns an object's prototype; a proxy may return any object.
pub(crate) fn prototype<'js>(ctx: &Ctx<'js>, object: &Object<'js>) -> rquickjs::Result<Option<Object<'js>>> {
    // SAFETY: see the first argument in the module header.
    let prototype =
        unsafe { take_value(ctx, qjs::JS_GetPrototype(ctx.as_raw().as_ptr(), object.as_value().as_raw()))? };
    Ok(prototype.into_object())
}

/// Deletes an own property; returns true if it is gone.
pub(crate) fn delete(ctx: &Ctx<'_>, object: &Object<'_>, name: &CStr) -> rquickjs::Result<bool> {
    // SAFETY: see the first argument in the module header; the atom is freed once.
    unsafe {
        let context = ctx.as_raw().as_ptr();
        let key = qjs::JS_NewAtom(context, name.as_ptr());
        let deleted = qjs::JS_DeleteProperty(context, object.as_value().as_raw(), key, 0);
        qjs::JS_FreeAtom(context, key);
        match deleted {
            -1 => Err(rquickjs::Error::Exception),
            gone => Ok(gone == 1),
        }
    }
}

/// Defines a non-enumerable property that calls `function` when it is read, and with a value when it is written.
pub(crate) fn accessor<'js>(
    ctx: &Ctx<'js>,
    object: &Object<'js>,
    name: &CStr,
    function: &Value<'js>,
) -> rquickjs::Result<()> {
    let flags = qjs::JS_PROP_CONFIGURABLE
        | qjs::JS_PROP_HAS_CONFIGURABLE
        | qjs::JS_PROP_HAS_ENUMERABLE
        | qjs::JS_PROP_HAS_GET
        | qjs::JS_PROP_HAS_SET;
    // SAFETY: see the first argument in the module header; the atom is freed once.
    let defined = unsafe {
        let context = ctx.as_raw().as_ptr();
        let key = qjs::JS_NewAtom(context, name.as_ptr());
        let (holder, function) = (object.as_value().as_raw(), function.as_raw());
        let undefined = qjs::JS_UNDEFINED;
        let defined = qjs::JS_DefineProperty(context, holder, key, undefined, function, function, flags as qjs::c_int);
        qjs::JS_FreeAtom(context, key);
        defined
    };
    if defined < 0 { Err(rquickjs::Error::Exception) } else { Ok(()) }
}

/// Defines a non-enumerable property that calls `function` when it is read. The key is a text or a symbol.
pub(crate) fn getter<'js>(
    ctx: &Ctx<'js>,
    object: &Object<'js>,
    key: &Value<'js>,
    function: &Value<'js>,
) -> rquickjs::Result<()> {
    let flags =
        qjs::JS_PROP_CONFIGURABLE | qjs::JS_PROP_HAS_CONFIGURABLE | qjs::JS_PROP_HAS_ENUMERABLE | qjs::JS_PROP_HAS_GET;
    // SAFETY: see the first argument in the module header; the atom is freed once.
    let defined = unsafe {
        let context = ctx.as_raw().as_ptr();
        let key = qjs::JS_ValueToAtom(context, key.as_raw());
        let (holder, function, undefined) = (object.as_value().as_raw(), function.as_raw(), qjs::JS_UNDEFINED);
        let defined = qjs::JS_DefineProperty(context, holder, key, undefined, function, undefined, flags as qjs::c_int);
        qjs::JS_FreeAtom(context, key);
        defined
    };
    if defined < 0 { Err(rquickjs::Error::Exception) } else { Ok(()) }
}

/// Converts a value to a property key as the engine does, to a symbol or a text. That may run code of the entity.
pub(crate) fn key<'js>(ctx: &Ctx<'js>, value: &Value<'js>) -> rquickjs::Result<Value<'js>> {
    // SAFETY: see the first argument in the module header; the atom is freed once.
    unsafe {
        let context = ctx.as_raw().as_ptr();
        let atom = qjs::JS_ValueToAtom(context, value.as_raw());
        if atom == qjs::__JS_ATOM_NULL as qjs::JSAtom {
            return Err(rquickjs::Error::Exception);
        }
        let key = qjs::JS_AtomToValue(context, atom);
        qjs::JS_FreeAtom(context, atom);
        take_value(ctx, key)
    }
}

/// Adds `Date` to the globals.
pub(crate) fn add_dates(ctx: &Ctx<'_>) -> rquickjs::Result<()> {
    // SAFETY: see the first argument in the module header; the caller calls this once in the life of a context.
    check_added(unsafe { qjs::JS_AddIntrinsicDate(ctx.as_raw().as_ptr()) })
}

/// Adds the typed arrays and their related classes to the globals.
pub(crate) fn add_typed_arrays(ctx: &Ctx<'_>) -> rquickjs::Result<()> {
    // SAFETY: as for dates.
    check_added(unsafe { qjs::JS_AddIntrinsicTypedArrays(ctx.as_raw().as_ptr()) })
}

fn check_added(answer: qjs::c_int) -> rquickjs::Result<()> {
    if answer < 0 { Err(rquickjs::Error::Allocation) } else { Ok(()) }
}

/// Compiles a program without running it, so that the engine checks its syntax within the engine's own stack limit.
pub(crate) fn compile(ctx: &Ctx<'_>, source: &str, name: &str) -> rquickjs::Result<()> {
    let compiled = compile_as(ctx, source, name, qjs::JS_EVAL_FLAG_ASYNC)?;
    // SAFETY: the value is owned here and is not used again.
    unsafe { qjs::JS_FreeValue(ctx.as_raw().as_ptr(), compiled) };
    Ok(())
}

fn compile_as(ctx: &Ctx<'_>, source: &str, name: &str, flag: u32) -> rquickjs::Result<qjs::JSValue> {
    let text = CString::new(source)?;
    let name = CString::new(name)?;
    let flags = (qjs::JS_EVAL_TYPE_GLOBAL | qjs::JS_EVAL_FLAG_COMPILE_ONLY | flag) as qjs::c_int;
    // SAFETY: the context is alive; both strings end in a nul and outlive the call.
    unsafe {
        let compiled =
            qjs::JS_Eval(ctx.as_raw().as_ptr(), text.as_ptr(), source.len() as qjs::size_t, name.as_ptr(), flags);
        if qjs::JS_IsException(compiled) { Err(rquickjs::Error::Exception) } else { Ok(compiled) }
    }
}

/// The bytecode of a script, without its text. The engine trusts bytecode blindly, so reading it is sound only because
/// it is always made by the engine in this process.
pub(crate) struct Compiled(Vec<u8>);

impl Compiled {
    pub(crate) fn new(ctx: &Ctx<'_>, source: &str, name: &str) -> rquickjs::Result<Self> {
        let compiled = compile_as(ctx, source, name, 0)?;
        let flags = qjs::JS_WRITE_OBJ_BYTECODE | qjs::JS_WRITE_OBJ_STRIP_SOURCE | qjs::JS_WRITE_OBJ_STRIP_DEBUG;
        // SAFETY: the context is alive; the engine gives `size` bytes, which are copied before they are freed.
        unsafe {
            let context = ctx.as_raw().as_ptr();
            let mut size: qjs::size_t = 0;
            let bytes = qjs::JS_WriteObject(context, &mut size, compiled, flags as qjs::c_int);
            qjs::JS_FreeValue(context, compiled);
            if bytes.is_null() {
                return Err(rquickjs::Error::Allocation);
            }
            let copy = std::slice::from_raw_parts(bytes, size as usize).to_vec();
            qjs::js_free(context, bytes.cast());
            Ok(Self(copy))
        }
    }
}

/// Runs a compiled script and returns its completion value.
pub(crate) fn load<'js>(ctx: &Ctx<'js>, compiled: &Compiled) -> rquickjs::Result<Value<'js>> {
    let flags = qjs::JS_READ_OBJ_BYTECODE as qjs::c_int;
    // SAFETY: the context is alive; the bytes are the engine's own; `JS_EvalFunction` takes ownership of the function.
    unsafe {
        let context = ctx.as_raw().as_ptr();
        let script = qjs::JS_ReadObject(context, compiled.0.as_ptr(), compiled.0.len() as qjs::size_t, flags);
        if qjs::JS_IsException(script) {
            return Err(rquickjs::Error::Exception);
        }
        take_value(ctx, qjs::JS_EvalFunction(context, script))
    }
}

#[cfg(test)]
mod tests {
    use super::findings;

    /// An engine whose countdown is not found is still sound, but its native functions exceed their limits by far.
    #[test]
    fn the_countdown_to_the_next_interrupt_is_found() {
        assert!(findings().countdown.is_some());
        assert_eq!(findings().boxed.len(), 4);
    }
}
