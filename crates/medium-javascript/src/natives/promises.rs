//! Guards of native functions that swallow the error which ends a program. Each guard checks for the end after the
//! call, and raises the error again.

use rquickjs::object::Property;
use rquickjs::{Ctx, Function, Object, Value};

use super::{Call, HiddenValue, Holder, LazyScript, number};
use crate::raw;

/// `new Promise`: calls the engine's own constructor, and checks for the end.
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

/// Guards `Promise.all` and the other static functions, which are called on the engine's own constructor.
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

/// Replaces `Promise` by the host's constructor, with the same prototype, and returns that constructor.
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

/// Returns the prototype with the methods of async generators; no global name refers to it.
pub(super) fn async_generators<'js>(ctx: &Ctx<'js>) -> rquickjs::Result<Object<'js>> {
    let own: Object<'js> = super::lazy::script(ctx, LazyScript::AsyncGenerator)?.get()?;
    raw::prototype(ctx, &own)?.ok_or(rquickjs::Error::Unknown)
}

/// Queues the job through a promise, so that an exception of the job is an unhandled rejection and is not lost.
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
