//! Guards of the global object, so that a program cannot remove a gate permanently.
//!
//! A program may give the name of a gate another meaning for as long as that program runs. So the global object cannot
//! be frozen, and the property of a gate cannot be redefined, also not through a proxy.

use rquickjs::object::Property;
use rquickjs::{Ctx, Object, Value};

use super::{Call, HiddenValue, Holder, number};
use crate::raw;

impl<'js> Call<'_, 'js> {
    fn is_globals(&self, value: &Value<'js>) -> bool {
        *value == self.ctx.globals().into_value()
    }

    /// Converts a property key as the engine does, to a symbol or a text. The conversion of another value runs once.
    fn key(&self, key: &Value<'js>) -> rquickjs::Result<Value<'js>> {
        raw::key(self.ctx, key)
    }

    fn refuse_gate(&self, key: &Value<'js>) -> rquickjs::Result<()> {
        if !raw::is_text(key) {
            return Ok(());
        }
        let gates = &self.core.spec.gates;
        let named = raw::text_bytes(self.ctx, key, |name| gates.iter().any(|gate| gate.name.as_bytes() == name))?;
        if !named {
            return Ok(());
        }
        let name = key.get::<String>().unwrap_or_default();
        self.wrong(&format!("{name} is a gate: its property cannot be redefined"))
    }

    fn frozen<T>(&self) -> rquickjs::Result<T> {
        self.wrong("the global object cannot be frozen, sealed or wrapped")
    }
}

/// Guards `Object.defineProperty` and `Reflect.defineProperty`.
pub(super) fn define_property<'js>(mut call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    if call.is_globals(&call.arg(0)) {
        let key = call.key(&call.arg(1))?;
        call.refuse_gate(&key)?;
        call.set_arg(1, key);
    }
    call.forward()
}

pub(super) fn define_properties<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    let target = call.arg(0);
    let properties = call.arg(1);
    let (true, Some(properties)) = (call.is_globals(&target), properties.as_object()) else { return call.forward() };
    let native = call.native_of(Holder::Object, c"defineProperty")?;
    raw::each_key(call.ctx, properties, |key| {
        if !raw::own(call.ctx, properties, &key)?.is_some_and(|own| own.enumerable) {
            return Ok(());
        }
        call.refuse_gate(&key)?;
        let property: Value<'js> = properties.get(key.clone())?;
        raw::call(call.ctx, &native, &call.undefined(), &[target.clone(), key, property])?;
        Ok(())
    })?;
    Ok(target)
}

/// Guards `__defineGetter__` and `__defineSetter__`.
pub(super) fn define_accessor<'js>(mut call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    if call.this.is_undefined() || call.is_globals(&call.this) {
        let key = call.key(&call.arg(0))?;
        call.refuse_gate(&key)?;
        call.set_arg(0, key);
    }
    call.forward()
}

/// Guards `Object.freeze`, `Object.seal` and `preventExtensions`.
pub(super) fn lock<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    if call.is_globals(&call.arg(0)) {
        return call.frozen();
    }
    call.forward()
}

pub(super) fn proxy<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    if call.this.is_undefined() {
        return call.wrong("Proxy is a constructor: call it with new");
    }
    if call.is_globals(&call.arg(0)) {
        return call.frozen();
    }
    let native = call.hidden_value(HiddenValue::NativeProxy)?;
    raw::construct(call.ctx, &native, &native, &call.args)
}

pub(super) fn revocable<'js>(mut call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    if call.is_globals(&call.arg(0)) {
        return call.frozen();
    }
    call.this = call.hidden_value(HiddenValue::NativeProxy)?;
    call.forward()
}

/// Replaces `Proxy` by the host's constructor, and returns that constructor.
pub(super) fn replace_proxy<'js>(ctx: &Ctx<'js>) -> rquickjs::Result<Object<'js>> {
    let ours = raw::constructor(ctx, c"Proxy", 2, number(Holder::Hidden, c"Proxy")?)?;
    ctx.globals().prop("Proxy", Property::from(ours.clone()).writable().configurable())?;
    ours.into_object().ok_or(rquickjs::Error::Unknown)
}

/// `Math.random` takes its numbers from the host.
pub(super) fn random<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    Ok(Value::new_float(call.ctx.clone(), call.core.random()))
}

/// `console.log` and the other functions of `console`.
pub(super) fn log<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    call.core.check_alive(call.ctx)?;
    let mut line = String::new();
    for (place, value) in call.args.iter().enumerate() {
        if place > 0 {
            line.push(' ');
        }
        line.push_str(&super::render::text(call.core, call.ctx, value, false)?);
    }
    call.core.print(call.ctx, &line)?;
    Ok(call.undefined())
}
