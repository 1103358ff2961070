//! Natives that swallow the error which ends a program. Behind each of them stands a check, which raises it again.

use rquickjs::object::Property;
use rquickjs::{Ctx, Function, Object, Value};

use super::{Call, Holder, Kept, Late, number};
use crate::javascript::raw;

/// What `new Promise` is: the engine's own constructor, and the check.
pub(super) fn promise<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    if call.this.is_undefined() {
        return call.wrong("Promise is a constructor: call it with new");
    }
    let native = call.kept(Kept::NativePromise)?;
    let target = if call.this == call.kept(Kept::Promise)? { native.clone() } else { call.this.clone() };
    let made = raw::construct(call.ctx, &native, &target, &call.args)?;
    call.core.alive(call.ctx)?;
    Ok(made)
}

/// `Promise.all` and its like, on the engine's own constructor.
pub(super) fn checked_static<'js>(mut call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    if call.this == call.kept(Kept::Promise)? {
        call.this = call.kept(Kept::NativePromise)?;
    }
    checked(call)
}

pub(super) fn checked<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    let made = call.forward()?;
    call.core.alive(call.ctx)?;
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
    kept[Kept::Promise.place()] = ours;
    Ok(object)
}

/// Where the methods of async generators are; no global name leads there.
pub(super) fn async_generators<'js>(ctx: &Ctx<'js>) -> rquickjs::Result<Object<'js>> {
    let own: Object<'js> = super::late::script(ctx, Late::AsyncGenerator)?.get()?;
    raw::prototype(ctx, &own)?.ok_or(rquickjs::Error::Unknown)
}

/// Through a promise, so that what the job throws is an unhandled rejection and not lost.
pub(super) fn queue_microtask<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    let job = call.arg(0);
    if !job.is_function() {
        return call.wrong("queueMicrotask takes a function");
    }
    let alone: Function<'js> = call.core.late(call.ctx, Late::Jobs)?.get("alone")?;
    let job: Value<'js> = alone.call((job,))?;
    let resolved: Value<'js> = call.core.late(call.ctx, Late::Jobs)?.get("resolved")?;
    raw::call(call.ctx, &call.kept(Kept::Then)?, &resolved, &[job])?;
    Ok(call.undefined())
}
