//! Array functions of the engine that loop over a length without checking the time.
//!
//! A sparse array can have any length and no elements, and an array-like object can report a false length. So these
//! native functions receive only real arrays of a bounded length. Functions whose work cannot be derived from a length
//! at all are replaced by scripts, which the engine interrupts like any program.

use rquickjs::atom::PredefinedAtom;
use rquickjs::{Array, Value};

use super::{Call, HiddenValue, Holder, LazyScript};
use crate::limits;
use crate::raw;

/// The length of the longest array that is processed as a whole.
const LONG: f64 = limits::ARRAY_LENGTH_MAX as f64;
/// The length above which the time is checked first.
const SLOW: f64 = 65_536.0;
/// The number of characters that a native sort may compare without checking the time.
const COMPARED: u64 = 1 << 28;

impl<'js> Call<'_, 'js> {
    fn too_long<T>(&self) -> rquickjs::Result<T> {
        self.range(&format!("an array longer than {LONG} cannot be processed as a whole"))
    }

    /// Returns the length that a value reports.
    fn length(&self, of: &Value<'js>) -> rquickjs::Result<f64> {
        let length = raw::to_number(self.ctx, &raw::member(self.ctx, of, c"length")?)?;
        Ok(if length > 0.0 { length.floor() } else { 0.0 })
    }

    /// Returns the value itself if it is an array of bounded length, else a copy. If the caller changes the array, a
    /// value that is not an array is an error, because the change would be lost in the copy.
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
            // The trap of a proxy may throw, and it may have ended the program.
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

/// Guards a native function that changes its array.
pub(super) fn change<'js>(mut call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    call.this = call.bounded(&call.this, true)?;
    call.forward()
}

/// Guards a native function that only reads its array.
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
    /// Returns true if sorting in the engine's default order, which compares texts, needs few enough comparisons of few
    /// enough characters. Lists with objects are excluded, because the length of an object's text is not known.
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

/// For scripts: returns an array of bounded length, or undefined if the value is not an array.
pub(super) fn bounded_copy<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    let list = call.arg(0);
    if raw::is_list(call.ctx, &list)? { call.bounded(&list, false) } else { Ok(call.undefined()) }
}

/// For scripts: returns true if the list of names of `JSON.stringify` does not apply to this value.
pub(super) fn is_leaf<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    let value = call.arg(0);
    let leaf = raw::is_list(call.ctx, &value)? || raw::is_boxed(&value);
    Ok(Value::new_bool(call.ctx.clone(), leaf))
}

/// For scripts: sorts an array by a function.
pub(super) fn sort_by<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    raw::call(call.ctx, &call.native_of(Holder::Arrays, c"sort")?, &call.arg(0), &[call.arg(1)])
}

/// Guards `Iterator.prototype.drop`, which steps through all dropped elements without interruption.
pub(super) fn drop_first<'js>(mut call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    let count = raw::to_number(call.ctx, &call.arg(0))?;
    if count > LONG {
        return call.range(&format!("no more than {LONG} elements can be dropped"));
    }
    call.set_arg(0, Value::new_number(call.ctx.clone(), count));
    call.forward()
}

/// Guards `JSON.stringify`. It calls a replacer function for every member, and the engine checks the time at each call.
/// Without a replacer, a value that contains the same object in many places would keep the engine busy for as long as
/// memory lasts.
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

/// A replacer that changes nothing.
pub(super) fn as_it_is<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    Ok(call.arg(1))
}
