//! Natives that go through a length without looking at the time.
//!
//! A sparse array can have any length and no elements, and the length of an array-like can be a lie. So these natives are
//! given real arrays of a bounded length and nothing else. Those whose work cannot be told from a length at all are
//! replaced by scripts, which the engine interrupts like any program.

use rquickjs::atom::PredefinedAtom;
use rquickjs::{Array, Value};

use super::{Call, HiddenValue, Holder, LazyScript};
use crate::javascript::raw;
use crate::limits;

/// The longest array that is processed as a whole.
const LONG: f64 = limits::ARRAY_LENGTH_MAX as f64;
/// From here on a look at the time is worth its while.
const SLOW: f64 = 65_536.0;
/// Characters that a sort may compare before it has to look at the time.
const COMPARED: u64 = 1 << 28;

impl<'js> Call<'_, 'js> {
    fn too_long<T>(&self) -> rquickjs::Result<T> {
        self.range(&format!("an array longer than {LONG} cannot be processed as a whole"))
    }

    /// The length that a value says it has.
    fn length(&self, of: &Value<'js>) -> rquickjs::Result<f64> {
        let length = raw::to_number(self.ctx, &raw::member(self.ctx, of, c"length")?)?;
        Ok(if length > 0.0 { length.floor() } else { 0.0 })
    }

    /// The value itself if it is an array whose length is no lie, else a copy, which a change would be lost in.
    pub(super) fn bounded(&self, value: &Value<'js>, changes: bool) -> rquickjs::Result<Value<'js>> {
        if value.is_array() {
            let length = self.length(value)?;
            if length > LONG {
                return self.too_long();
            }
            if length > SLOW {
                self.core.check_time(self.ctx)?;
            }
            return Ok(value.clone());
        }
        if value.is_null() || value.is_undefined() {
            return self.wrong("cannot convert undefined or null to object");
        }
        if changes {
            return self.wrong("this array method changes arrays only");
        }
        self.copy(value)
    }

    fn copy(&self, of: &Value<'js>) -> rquickjs::Result<Value<'js>> {
        let length = self.length(of)?;
        if length > LONG {
            return self.too_long();
        }
        let copy = Array::new(self.ctx.clone())?;
        for at in 0..length as u32 {
            if at % 4_096 == 4_095 {
                self.core.check_time(self.ctx)?;
            }
            // A proxy's trap may throw, and it may have ended the program.
            let there = of.as_object().map(|object| object.contains_key(at)).transpose()?.unwrap_or(true);
            if there {
                super::lazy::define(copy.as_object(), at, raw::element(self.ctx, of, at)?)?;
            }
        }
        if (copy.len() as f64) < length {
            copy.as_object().set("length", length)?;
        }
        Ok(copy.into_value())
    }
}

/// A native that changes its array.
pub(super) fn change<'js>(mut call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    call.this = call.bounded(&call.this, true)?;
    call.forward()
}

/// A native that makes something of an array.
pub(super) fn look<'js>(mut call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    call.this = call.bounded(&call.this, false)?;
    call.forward()
}

pub(super) fn concat<'js>(mut call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    let bounded = |call: &Call<'_, 'js>, value: &Value<'js>| -> rquickjs::Result<Value<'js>> {
        let Some(object) = value.as_object() else { return Ok(value.clone()) };
        let spread: Value<'js> = object.get(PredefinedAtom::SymbolIsConcatSpreadable)?;
        match spread.as_bool() {
            Some(false) => Ok(value.clone()),
            None if spread.is_undefined() && !raw::is_list(call.ctx, value)? => Ok(value.clone()),
            Some(true) | None => call.bounded(value, false),
        }
    };
    call.this = bounded(&call, &call.this)?;
    for place in 0..call.args.len() {
        call.args[place] = bounded(&call, &call.args[place])?;
    }
    call.forward()
}

pub(super) fn sort<'js>(mut call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    call.this = call.bounded(&call.this, true)?;
    if !call.arg(0).is_undefined() || call.is_quick_to_sort(&call.this)? {
        return call.forward();
    }
    call.core
        .lazy_script(call.ctx, LazyScript::Arrays)?
        .get::<_, rquickjs::Function<'js>>("sorted")?
        .call((call.this.clone(),))
}

pub(super) fn to_sorted<'js>(mut call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    call.this = call.bounded(&call.this, false)?;
    if !call.arg(0).is_undefined() || call.is_quick_to_sort(&call.this)? {
        return call.forward();
    }
    let copy = call.copy(&call.this)?;
    call.core.lazy_script(call.ctx, LazyScript::Arrays)?.get::<_, rquickjs::Function<'js>>("sorted")?.call((copy,))
}

impl<'js> Call<'_, 'js> {
    /// Whether the engine's own order, which is that of texts, needs few enough comparisons of few enough characters.
    /// What an object's text is only it knows.
    fn is_quick_to_sort(&self, list: &Value<'js>) -> rquickjs::Result<bool> {
        let length = self.length(list)? as u32;
        let mut characters = 0_u64;
        for at in 0..length {
            let item = raw::element(self.ctx, list, at)?;
            if item.is_object() {
                return Ok(length < 2);
            }
            if raw::is_text(&item) {
                characters = characters.saturating_add(self.length(&item)? as u64);
            }
            if at % 65_536 == 65_535 {
                self.core.check_time(self.ctx)?;
            }
        }
        Ok(characters.saturating_mul(u64::from(length.max(2).ilog2()) + 1) <= COMPARED)
    }
}

pub(super) fn flat<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    let script: rquickjs::Function<'js> = call.core.lazy_script(call.ctx, LazyScript::Arrays)?.get("flat")?;
    let list = call.bounded(&call.this, false)?;
    let depth = match call.arg(0) {
        depth if depth.is_undefined() => 1.0,
        depth => raw::to_number(call.ctx, &depth)?,
    };
    script.call((list, if depth.is_nan() { 0.0 } else { depth }))
}

pub(super) fn flat_map<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    if !call.arg(0).is_function() {
        return call.wrong("flatMap takes a function");
    }
    let script: rquickjs::Function<'js> = call.core.lazy_script(call.ctx, LazyScript::Arrays)?.get("flatMap")?;
    let list = call.bounded(&call.this, false)?;
    script.call((list, call.arg(0), call.arg(1), call.this.clone()))
}

/// For scripts: an array that can be gone through as a whole; undefined if it is none.
pub(super) fn bounded_copy<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    let list = call.arg(0);
    if raw::is_list(call.ctx, &list)? { call.bounded(&list, false) } else { Ok(call.undefined()) }
}

/// For scripts: whether a list of names does not apply to it when it is written as JSON.
pub(super) fn is_leaf<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    let value = call.arg(0);
    let leaf = raw::is_list(call.ctx, &value)? || raw::is_boxed(&value);
    Ok(Value::new_bool(call.ctx.clone(), leaf))
}

/// For scripts: sorts an array by a function.
pub(super) fn sort_by<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    raw::call(call.ctx, &call.native_of(Holder::Arrays, c"sort")?, &call.arg(0), &[call.arg(1)])
}

/// `Iterator.prototype.drop` runs through what it drops in one go.
pub(super) fn drop_first<'js>(mut call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    let count = raw::to_number(call.ctx, &call.arg(0))?;
    if count > LONG {
        return call.range(&format!("no more than {LONG} elements can be dropped"));
    }
    call.set_arg(0, Value::new_number(call.ctx.clone(), count));
    call.forward()
}

/// `JSON.stringify` asks a function about every member, and asking is when the engine looks at the time. Without one a
/// value that refers to itself in many places would keep it busy for as long as memory lasts.
pub(super) fn stringify<'js>(mut call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    let replacer = call.arg(1);
    if raw::is_list(call.ctx, &replacer)? {
        let names = call.bounded(&replacer, false)?;
        let script: rquickjs::Function<'js> = call.core.lazy_script(call.ctx, LazyScript::Arrays)?.get("listed")?;
        call.set_arg(1, script.call((names,))?);
    } else if !replacer.is_function() {
        call.set_arg(1, call.hidden_value(HiddenValue::AsItIs)?);
    }
    call.forward()
}

/// A replacer that replaces nothing.
pub(super) fn as_it_is<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    Ok(call.arg(1))
}
