//! Natives that swallow the error which ends a program. Behind each of them stands a check, which raises it again.

use rquickjs::object::Property;
use rquickjs::{Ctx, Function, Object, Value};

use super::{Call, HiddenValue, Holder, LazyScript, number};
use crate::javascript::raw;

/// What `new Promise` is: the engine's own constructor, and the check.
pub(super) fn promise<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    if call.this.is_undefined() {
        return call.wrong("Promise is a constructor: call it with new");
    }
    let native = call.hidden_value(HiddenValue::NativePromise)?;
    let target = if call.this == call.hidden_value(HiddenValue::Promise)? { native.clone() } else { call.this.clone() };
    let made = raw::construct(call.ctx, &native, &target, &call.args)?;
    call.core.check_alive(call.ctx)?;
    Ok(made)
}

/// `Promise.all` and its like, on the engine's own constructor.
pub(super) fn checked_static<'js>(mut call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    if call.this == call.hidden_value(HiddenValue::Promise)? {
        call.this = call.hidden_value(HiddenValue::NativePromise)?;
    }
    checked(call)
}

pub(super) fn checked<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    let made = call.forward()?;
    call.core.check_alive(call.ctx)?;
    Ok(made)
}

/// Puts a constructor of ours in the place of `Promise`, with the same prototype, and gives it.
pub(super) fn replace<'js>(
    ctx: &Ctx<'js>,
    native: &Object<'js>,
    kept: &mut [Value<'js>],
) -> rquickjs::Result<Object<'js>> {
    let ours = raw::constructor(ctx, c"Promise", 1, number(Holder::Hidden, c"Promise")?)?;
    let object = ours.as_object().cloned().ok_or(rquickjs::Error::Unknown)?;
    object.prop("prototype", Property::from(native.get::<_, Value<'js>>("prototype")?))?;
    let species: Value<'js> = ctx.globals().get::<_, Object<'js>>("Symbol")?.get("species")?;
    if let Some(getter) = raw::own(ctx, native, &species)?.and_then(|own| own.getter) {
        raw::getter(ctx, &object, &species, &getter)?;
    }
    ctx.globals().prop("Promise", Property::from(ours.clone()).writable().configurable())?;
    kept[HiddenValue::Promise.place()] = ours;
    Ok(object)
}

/// Where the methods of async generators are; no global name leads there.
pub(super) fn async_generators<'js>(ctx: &Ctx<'js>) -> rquickjs::Result<Object<'js>> {
    let own: Object<'js> = super::lazy::script(ctx, LazyScript::AsyncGenerator)?.get()?;
    raw::prototype(ctx, &own)?.ok_or(rquickjs::Error::Unknown)
}

/// Through a promise, so that what the job throws is an unhandled rejection and not lost.
pub(super) fn queue_microtask<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    let job = call.arg(0);
    if !job.is_function() {
        return call.wrong("queueMicrotask takes a function");
    }
    let alone: Function<'js> = call.core.lazy_script(call.ctx, LazyScript::Jobs)?.get("alone")?;
    let job: Value<'js> = alone.call((job,))?;
    let resolved: Value<'js> = call.core.lazy_script(call.ctx, LazyScript::Jobs)?.get("resolved")?;
    raw::call(call.ctx, &call.hidden_value(HiddenValue::Then)?, &resolved, &[job])?;
    Ok(call.undefined())
}
