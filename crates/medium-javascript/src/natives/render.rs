//! Renders values as text. Getters are not called; an exception of a proxy's trap is an error of the program.

use rquickjs::{Array, Ctx, Object, Value};

use super::{Call, HiddenValue, LazyScript};
use crate::engine::Core;
use crate::raw::{self, Class};

/// The maximum number of bytes that are rendered of one value.
const BUDGET: usize = 1 << 20;
const DEPTH: usize = 4;
const ITEMS: usize = 100;

/// Renders a value as it is shown.
pub(crate) fn render_value<'js>(core: &Core, ctx: &Ctx<'js>, value: &Value<'js>) -> rquickjs::Result<String> {
    text(core, ctx, value, true)
}

/// Renders a value. With `quoted` false only texts inside of another value are quoted, as in printed output.
pub(super) fn text<'js>(core: &Core, ctx: &Ctx<'js>, value: &Value<'js>, quoted: bool) -> rquickjs::Result<String> {
    let mut show = ValueRenderer { core, ctx, open: Vec::new(), out: String::new() };
    show.value(value, quoted, 0)?;
    Ok(show.out)
}

/// The name, message and stack of a thrown value.
#[derive(Default)]
pub(crate) struct ThrownError {
    pub(crate) name: String,
    pub(crate) message: String,
    pub(crate) stack: String,
}

/// Describes a thrown value.
pub(crate) fn describe_thrown<'js>(core: &Core, ctx: &Ctx<'js>, thrown: &Value<'js>) -> rquickjs::Result<ThrownError> {
    match failure_of(core, ctx, thrown) {
        Ok(Some(failure)) => return Ok(failure),
        Ok(None) => {}
        // Reading the parts of the error failed, so it is shown as a plain value.
        Err(_) => {
            ctx.catch();
        }
    }
    Ok(ThrownError { name: "Uncaught".into(), message: render_value(core, ctx, thrown)?, stack: String::new() })
}

fn failure_of<'js>(core: &Core, ctx: &Ctx<'js>, value: &Value<'js>) -> rquickjs::Result<Option<ThrownError>> {
    let Some(object) = value.as_object() else { return Ok(None) };
    if !is_error(core, ctx, object)? {
        return Ok(None);
    }
    let part = |name: &str, otherwise: &str| -> rquickjs::Result<String> {
        let found: Value<'js> = object.get(name)?;
        if found.is_undefined() { Ok(otherwise.to_owned()) } else { plain(ctx, &found) }
    };
    Ok(Some(ThrownError { name: part("name", "Error")?, message: part("message", "")?, stack: part("stack", "")? }))
}

/// Returns the stack that the engine recorded in an error, also after the program was ended. The getter is the engine's
/// own and no code of the entity runs: functions can be called only for the duration of this call.
pub(crate) fn recorded_stack<'js>(core: &Core, ctx: &Ctx<'js>, error: &Value<'js>) -> rquickjs::Result<String> {
    let getter: Value<'js> = core.hidden_values(ctx)?.get(HiddenValue::ErrorStack.place())?;
    let stack = core.with_one_call(|| raw::call(ctx, &getter, error, &[]))?;
    if raw::is_text(&stack) { plain(ctx, &stack) } else { Ok(String::new()) }
}

/// Returns true if the object descends from `Error.prototype`, regardless of its own properties.
fn is_error<'js>(core: &Core, ctx: &Ctx<'js>, object: &Object<'js>) -> rquickjs::Result<bool> {
    let errors: Object<'js> = core.hidden_values(ctx)?.get(HiddenValue::ErrorPrototype.place())?;
    let mut next = raw::prototype(ctx, object)?;
    while let Some(prototype) = next {
        if prototype == errors {
            return Ok(true);
        }
        next = raw::prototype(ctx, &prototype)?;
    }
    Ok(false)
}

/// Returns the text of a value, with a replacement character for each lone surrogate. It may run code of the entity.
pub(super) fn plain<'js>(ctx: &Ctx<'js>, value: &Value<'js>) -> rquickjs::Result<String> {
    raw::text_bytes(ctx, value, |bytes| {
        let mut out = String::new();
        each(bytes, |unit| out.push(unit.unwrap_or(char::REPLACEMENT_CHARACTER)));
        out
    })
}

/// Iterates over a text whose UTF-16 units are each encoded in UTF-8: yields characters, and lone surrogates by their
/// number.
fn each(bytes: &[u8], mut take: impl FnMut(Result<char, u16>)) {
    let unit = |at: usize| -> Option<(usize, u16)> {
        let rest = |n: usize| u16::from(bytes.get(at + n).copied().unwrap_or(0) & 0x3f);
        let first = u16::from(*bytes.get(at)?);
        Some(match first {
            0..0x80 => (1, first),
            0x80..0xe0 => (2, ((first & 0x1f) << 6) | rest(1)),
            _ => (3, ((first & 0x0f) << 12) | (rest(1) << 6) | rest(2)),
        })
    };
    let mut at = 0;
    while let Some((length, one)) = unit(at) {
        at += length;
        let pair = unit(at).filter(|(_, other)| (0xd800..0xdc00).contains(&one) && (0xdc00..0xe000).contains(other));
        match pair {
            Some((more, other)) => {
                at += more;
                let point = 0x1_0000 + ((u32::from(one) - 0xd800) << 10) + (u32::from(other) - 0xdc00);
                take(char::from_u32(point).ok_or(one));
            }
            None => take(char::from_u32(u32::from(one)).ok_or(one)),
        }
    }
}

struct ValueRenderer<'a, 'js> {
    core: &'a Core,
    ctx: &'a Ctx<'js>,
    /// The objects that are being rendered around the current one.
    open: Vec<Value<'js>>,
    out: String,
}

impl<'js> ValueRenderer<'_, 'js> {
    fn left(&self) -> usize {
        BUDGET.saturating_sub(self.out.len())
    }

    fn put(&mut self, part: &str) {
        self.out.push_str(&part[..part.floor_char_boundary(self.left())]);
    }

    fn string(&mut self, text: &Value<'js>, quoted: bool) -> rquickjs::Result<()> {
        let left = self.left();
        let part = raw::text_bytes(self.ctx, text, |bytes| {
            let mut part = String::new();
            // A unit has at most three bytes, and a surrogate pair is not split.
            let bytes = &bytes[..bytes.len().min(left + 6)];
            each(bytes, |unit| match unit {
                Ok(character) if quoted => quote(&mut part, character),
                Ok(character) => part.push(character),
                Err(half) if quoted => part.push_str(&format!("\\u{half:04x}")),
                Err(_) => part.push(char::REPLACEMENT_CHARACTER),
            });
            part
        })?;
        if quoted {
            self.put("\"");
        }
        self.put(&part);
        if quoted {
            self.put("\"");
        }
        Ok(())
    }

    fn value(&mut self, value: &Value<'js>, quoted: bool, depth: usize) -> rquickjs::Result<()> {
        if self.left() == 0 {
            return Ok(());
        }
        if raw::is_text(value) {
            return self.string(value, quoted);
        }
        if value.is_symbol() {
            let described = self.symbol(value)?;
            self.put(&described);
            return Ok(());
        }
        if value.is_function() {
            let name = match value.as_object() {
                Some(function) => self.name(function)?,
                None => None,
            };
            match name {
                Some(name) => self.put(&format!("[Function: {name}]")),
                None => self.put("[Function]"),
            }
            return Ok(());
        }
        let Some(object) = value.as_object() else { return self.simple(value) };
        if self.open.contains(value) {
            self.put("[Circular]");
            return Ok(());
        }
        if depth > DEPTH {
            self.put(if raw::is_list(self.ctx, value)? { "[Array]" } else { "[Object]" });
            return Ok(());
        }
        self.open.push(value.clone());
        let told = self.inside(value, object, depth + 1);
        self.open.pop();
        told
    }

    /// Renders a number or another primitive, in the engine's own text form.
    fn simple(&mut self, value: &Value<'js>) -> rquickjs::Result<()> {
        let negative_zero = value.as_float().is_some_and(|number| number == 0.0 && number.is_sign_negative());
        if negative_zero {
            self.put("-");
        }
        let text = plain(self.ctx, value)?;
        self.put(&text);
        if value.is_big_int() {
            self.put("n");
        }
        Ok(())
    }

    fn symbol(&self, symbol: &Value<'js>) -> rquickjs::Result<String> {
        let description = match symbol.as_symbol() {
            Some(symbol) => symbol.as_atom().to_string().unwrap_or_default(),
            None => String::new(),
        };
        Ok(format!("Symbol({description})"))
    }

    /// Returns the function's own name, if it has a text as its name.
    fn name(&self, function: &Object<'js>) -> rquickjs::Result<Option<String>> {
        let key = rquickjs::String::from_str(self.ctx.clone(), "name")?.into_value();
        let own = raw::own(self.ctx, function, &key)?.and_then(|own| own.value).filter(raw::is_text);
        let name = own.map(|name| plain(self.ctx, &name)).transpose()?;
        Ok(name.filter(|name| !name.is_empty()))
    }

    fn inside(&mut self, value: &Value<'js>, object: &Object<'js>, depth: usize) -> rquickjs::Result<()> {
        if raw::is_list(self.ctx, value)? {
            return self.array(object, depth);
        }
        let class = raw::class(value);
        match class {
            Class::Date => return self.date(value),
            Class::Map | Class::Set => return self.collection(value, class, depth),
            Class::RegExp | Class::Other => {}
        }
        if let Some(failure) = failure_of(self.core, self.ctx, value)? {
            self.put(&failure.name);
            if !failure.message.is_empty() {
                self.put(": ");
                self.put(&failure.message);
            }
            return Ok(());
        }
        if class == Class::RegExp {
            let native = self.hidden_value(HiddenValue::RegExpText)?;
            let text = plain(self.ctx, &raw::call(self.ctx, &native, value, &[])?)?;
            self.put(&text);
            return Ok(());
        }
        if value.is_promise() {
            self.put("Promise {}");
            return Ok(());
        }
        self.object(object, depth)
    }

    fn hidden_value(&self, kind: HiddenValue) -> rquickjs::Result<Value<'js>> {
        self.core.hidden_values(self.ctx)?.get(kind.place())
    }

    fn more(&mut self, total: usize) {
        if total > ITEMS {
            self.put(&format!(", ... {} more", total - ITEMS));
        }
    }

    fn array(&mut self, array: &Object<'js>, depth: usize) -> rquickjs::Result<()> {
        let total = raw::to_number(self.ctx, &raw::member(self.ctx, array.as_value(), c"length")?)?.max(0.0) as usize;
        self.put("[");
        for at in 0..total.min(ITEMS) {
            if at > 0 {
                self.put(", ");
            }
            let key = Value::new_number(self.ctx.clone(), at as f64);
            self.member(array, &key, depth)?;
        }
        self.more(total);
        self.put("]");
        Ok(())
    }

    fn member(&mut self, of: &Object<'js>, key: &Value<'js>, depth: usize) -> rquickjs::Result<()> {
        if self.left() == 0 {
            return Ok(());
        }
        match raw::own(self.ctx, of, key)? {
            None => self.put("<empty>"),
            Some(own) => match own.value {
                Some(value) => return self.value(&value, true, depth),
                None => self.put("[Getter]"),
            },
        }
        Ok(())
    }

    fn date(&mut self, date: &Value<'js>) -> rquickjs::Result<()> {
        let dates = self.core.lazy_script(self.ctx, LazyScript::Date)?;
        let time: f64 = dates.get::<_, rquickjs::Function<'js>>("time")?.call((date.clone(),))?;
        if time.is_nan() {
            self.put("Invalid Date");
            return Ok(());
        }
        let iso: Value<'js> = dates.get::<_, rquickjs::Function<'js>>("isoText")?.call((date.clone(),))?;
        self.string(&iso, false)
    }

    fn collection(&mut self, value: &Value<'js>, class: Class, depth: usize) -> rquickjs::Result<()> {
        let (name, each) = match class {
            Class::Map => ("Map", HiddenValue::MapEach),
            Class::Set | Class::Date | Class::RegExp | Class::Other => ("Set", HiddenValue::SetEach),
        };
        let members = Array::new(self.ctx.clone())?;
        let collect = super::hidden_function(self.ctx, c"collect")?;
        self.core.collected.set(0);
        raw::call(self.ctx, &self.hidden_value(each)?, value, &[collect, members.clone().into_value()])?;
        let total = self.core.collected.get();
        self.put(&format!("{name}({total}) {{"));
        for at in 0..total.min(ITEMS) {
            if at > 0 {
                self.put(", ");
            }
            if class == Class::Map {
                self.value(&members.get(2 * at + 1)?, true, depth)?;
                self.put(" => ");
            }
            self.value(&members.get(2 * at)?, true, depth)?;
        }
        self.more(total);
        self.put("}");
        Ok(())
    }

    fn object(&mut self, object: &Object<'js>, depth: usize) -> rquickjs::Result<()> {
        let maker = self.maker(object)?;
        if let Some(maker) = maker.filter(|maker| maker != "Object") {
            self.put(&maker);
            self.put(" ");
        }
        self.put("{");
        let mut total = 0;
        raw::each_key(self.ctx, object, |key| {
            let Some(own) = raw::own(self.ctx, object, &key)?.filter(|own| own.enumerable) else { return Ok(()) };
            total += 1;
            if total > ITEMS || self.left() == 0 {
                return Ok(());
            }
            if total > 1 {
                self.put(", ");
            }
            self.key(&key)?;
            self.put(": ");
            match own.value {
                Some(value) => self.value(&value, true, depth)?,
                None => self.put("[Getter]"),
            }
            Ok(())
        })?;
        self.more(total);
        self.put("}");
        Ok(())
    }

    fn key(&mut self, key: &Value<'js>) -> rquickjs::Result<()> {
        if key.is_symbol() {
            let described = self.symbol(key)?;
            self.put(&format!("[{described}]"));
            return Ok(());
        }
        let name = plain(self.ctx, key)?;
        let mut letters = name.chars();
        let simple = letters.next().is_some_and(|first| first.is_ascii_alphabetic() || matches!(first, '_' | '$'))
            && letters.all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '$'));
        if simple {
            self.put(&name);
            return Ok(());
        }
        self.string(key, true)
    }

    /// Returns the name of the object's constructor, read from its prototype.
    fn maker(&self, object: &Object<'js>) -> rquickjs::Result<Option<String>> {
        let Some(prototype) = raw::prototype(self.ctx, object)? else { return Ok(None) };
        let key = rquickjs::String::from_str(self.ctx.clone(), "constructor")?.into_value();
        let own = raw::own(self.ctx, &prototype, &key)?.and_then(|own| own.value);
        match own.filter(Value::is_function).and_then(Value::into_object) {
            Some(function) => self.name(&function),
            None => Ok(None),
        }
    }
}

/// Appends a character inside of quotes, escaped as in JSON.
fn quote(out: &mut String, character: char) {
    match character {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\u{8}' => out.push_str("\\b"),
        '\t' => out.push_str("\\t"),
        '\n' => out.push_str("\\n"),
        '\u{c}' => out.push_str("\\f"),
        '\r' => out.push_str("\\r"),
        control if control < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(control))),
        other => out.push(other),
    }
}

/// Called for every member of a collection: stores the first members in the array that is `this`.
pub(super) fn collect<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    let seen = call.core.collected.get();
    call.core.collected.set(seen + 1);
    if seen < ITEMS
        && let Some(members) = call.this.as_object()
    {
        super::lazy::define(members, (2 * seen) as u32, call.arg(0))?;
        super::lazy::define(members, (2 * seen + 1) as u32, call.arg(1))?;
    }
    Ok(call.undefined())
}
