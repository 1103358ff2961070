//! Text functions of the engine whose work grows with the product of two lengths, or with the square of one.
//!
//! The engine compares the sought text at every position of the other. If that could take long, the search here takes
//! time proportional to the sum of the lengths instead.

use memchr::memmem;
use rquickjs::atom::PredefinedAtom;
use rquickjs::{Array, Function, String as JsString, Value};

use super::{Call, HiddenValue, Holder, LazyScript};
use crate::raw;

/// The number of character comparisons that the engine's own search may need. A sought text of at most [`SHORT`] units
/// is always left to the engine.
const COMPARISONS: f64 = (1_u64 << 28) as f64;
const SHORT: f64 = 16.0;
/// The longest section of a text that is normalised at once, and the length from which a cut is sought.
const STRETCH: usize = 16_384;
const CUT_FROM: usize = STRETCH / 2;

/// The direction and the start of a search.
enum SearchDirection {
    /// Finds the first match at or after this position.
    First(f64),
    /// Finds the last match at or before this position.
    Last(f64),
}

/// A text, and the text that is sought in it.
struct Pair<'js> {
    within: Value<'js>,
    sought: Value<'js>,
}

impl<'js> Call<'_, 'js> {
    /// Returns the length of a text in UTF-16 units.
    fn units(&self, text: &Value<'js>) -> rquickjs::Result<f64> {
        raw::to_number(self.ctx, &raw::member(self.ctx, text, c"length")?)
    }

    /// Returns both texts if the engine's own search might take long. `this` and the first argument of the call are
    /// replaced by the texts.
    fn long_search(&mut self) -> rquickjs::Result<Option<Pair<'js>>> {
        let sought = self.arg(0);
        if self.this.is_null() || self.this.is_undefined() || !(sought.is_object() || raw::is_text(&sought)) {
            return Ok(None);
        }
        self.this = self.text(&self.this)?;
        let sought = self.text(&sought)?;
        self.set_arg(0, sought.clone());
        let (length, of) = (self.units(&self.this)?, self.units(&sought)?);
        if length > 65_536.0 {
            self.core.check_time(self.ctx)?;
        }
        let long = of > SHORT && of <= length && length * of > COMPARISONS;
        Ok(long.then(|| Pair { within: self.this.clone(), sought }))
    }

    fn search(&self, pair: &Pair<'js>, way: SearchDirection) -> rquickjs::Result<Option<usize>> {
        let units = self.units(&pair.within)?;
        raw::text_bytes(self.ctx, &pair.within, |bytes| {
            let within = Within { bytes, simple: bytes.len() as f64 == units };
            raw::text_bytes(self.ctx, &pair.sought, |sought| match way {
                SearchDirection::First(from) => {
                    let from = within.byte_of(from);
                    memmem::find(&bytes[from..], sought).map(|at| within.unit_of(from + at))
                }
                SearchDirection::Last(to) => {
                    let to = within.byte_of(to).saturating_add(sought.len()).min(bytes.len());
                    memmem::rfind(&bytes[..to], sought).map(|at| within.unit_of(at))
                }
            })
        })?
    }

    fn place(&self, found: Option<usize>) -> Value<'js> {
        Value::new_number(self.ctx.clone(), found.map_or(-1.0, |at| at as f64))
    }
}

/// The UTF-16 units of a text as bytes.
struct Within<'a> {
    bytes: &'a [u8],
    /// True if each unit is one byte.
    simple: bool,
}

impl Within<'_> {
    /// Returns the byte at which the unit with this index begins. Each unit has exactly one byte that is not a
    /// continuation byte.
    fn byte_of(&self, unit: f64) -> usize {
        if unit.is_nan() || unit <= 0.0 {
            return 0;
        }
        if unit >= self.bytes.len() as f64 {
            return self.bytes.len();
        }
        if self.simple {
            return unit as usize;
        }
        let starts = self.bytes.iter().enumerate().filter(|(_, byte)| **byte & 0xc0 != 0x80);
        starts.map(|(at, _)| at).nth(unit as usize).unwrap_or(self.bytes.len())
    }

    fn unit_of(&self, byte: usize) -> usize {
        if self.simple { byte } else { self.bytes[..byte].iter().filter(|byte| **byte & 0xc0 != 0x80).count() }
    }
}

pub(super) fn index_of<'js>(mut call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    match call.long_search()? {
        None => call.forward(),
        Some(pair) => {
            let from = raw::to_number(call.ctx, &call.arg(1))?;
            Ok(call.place(call.search(&pair, SearchDirection::First(from))?))
        }
    }
}

pub(super) fn last_index_of<'js>(mut call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    match call.long_search()? {
        None => call.forward(),
        Some(pair) => {
            let to = raw::to_number(call.ctx, &call.arg(1))?;
            let to = if to.is_nan() { f64::INFINITY } else { to };
            Ok(call.place(call.search(&pair, SearchDirection::Last(to))?))
        }
    }
}

pub(super) fn includes<'js>(mut call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    // A regular expression is an error here, and the engine reports it.
    if call.arg(0).is_object() && raw::class(&call.arg(0)) == raw::Class::RegExp {
        return call.forward();
    }
    match call.long_search()? {
        None => call.forward(),
        Some(pair) => {
            let from = raw::to_number(call.ctx, &call.arg(1))?;
            let found = call.search(&pair, SearchDirection::First(from))?;
            Ok(Value::new_bool(call.ctx.clone(), found.is_some()))
        }
    }
}

/// For scripts: returns the position of a text in another, at or after a given position.
pub(super) fn find<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    call.core.check_time(call.ctx)?;
    let pair = Pair { within: call.arg(0), sought: call.arg(1) };
    let from = raw::to_number(call.ctx, &call.arg(2))?;
    Ok(call.place(call.search(&pair, SearchDirection::First(from))?))
}

/// For scripts: returns a part of a text.
pub(super) fn slice<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    raw::call(call.ctx, &call.hidden_value(HiddenValue::Slice)?, &call.arg(0), &[call.arg(1), call.arg(2)])
}

impl<'js> Call<'_, 'js> {
    /// Returns true if the first argument defines its own search, as regular expressions do.
    fn has_own_way(&self, way: PredefinedAtom) -> rquickjs::Result<bool> {
        match self.arg(0).as_object() {
            Some(object) => {
                let own: Value<'js> = object.get(way)?;
                Ok(!own.is_undefined() && !own.is_null())
            }
            None => Ok(false),
        }
    }

    fn script(&self, name: &str) -> rquickjs::Result<Function<'js>> {
        self.core.lazy_script(self.ctx, LazyScript::Texts)?.get(name)
    }
}

pub(super) fn split<'js>(mut call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    if call.has_own_way(PredefinedAtom::SymbolSplit)? {
        return call.forward();
    }
    match call.long_search()? {
        None => call.forward(),
        Some(Pair { within, sought }) => {
            let limit = match call.arg(1) {
                limit if limit.is_undefined() => f64::from(u32::MAX),
                limit => f64::from(wrapped(raw::to_number(call.ctx, &limit)?)),
            };
            call.script("split")?.call((within, sought, limit))
        }
    }
}

/// Converts a number to an unsigned 32-bit integer, by the rules of the language.
fn wrapped(number: f64) -> u32 {
    if number.is_finite() { number.trunc().rem_euclid(4_294_967_296.0) as u32 } else { 0 }
}

pub(super) fn replace<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    replace_text(call, false)
}

pub(super) fn replace_all<'js>(call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    replace_text(call, true)
}

fn replace_text<'js>(mut call: Call<'_, 'js>, all: bool) -> rquickjs::Result<Value<'js>> {
    if call.has_own_way(PredefinedAtom::SymbolReplace)? {
        return call.forward();
    }
    match call.long_search()? {
        None => call.forward(),
        Some(Pair { within, sought }) => {
            let by = match call.arg(1) {
                by if by.is_function() => by,
                by => call.text(&by)?,
            };
            call.script("replace")?.call((within, sought, by, all))
        }
    }
}

/// Guards `normalize`. The engine sorts the combining marks of one letter by insertion sort, so a long text is
/// normalised in sections.
pub(super) fn normalize<'js>(mut call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    if call.this.is_null() || call.this.is_undefined() {
        return call.forward();
    }
    call.this = call.text(&call.this)?;
    let form = call.args.first().cloned();
    call.normal(&call.this, form.as_slice())
}

pub(super) fn locale_compare<'js>(mut call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    if call.this.is_null() || call.this.is_undefined() {
        return call.forward();
    }
    let normal = |call: &Call<'_, 'js>, text: &Value<'js>| {
        let text = call.text(text)?;
        if call.units(&text)? <= STRETCH as f64 { Ok(text) } else { call.normal(&text, &[]) }
    };
    call.this = normal(&call, &call.this)?;
    call.set_arg(0, normal(&call, &call.arg(0))?);
    call.forward()
}

impl<'js> Call<'_, 'js> {
    fn normal(&self, text: &Value<'js>, form: &[Value<'js>]) -> rquickjs::Result<Value<'js>> {
        let native = self.native_of(Holder::Texts, c"normalize")?;
        let Some(cuts) = raw::text_bytes(self.ctx, text, cuts)? else {
            return self.range("a text with so many marks on one letter cannot be normalised");
        };
        if cuts.is_empty() {
            return raw::call(self.ctx, &native, text, form);
        }
        let pieces = Array::new(self.ctx.clone())?;
        let number = |at: usize| Value::new_number(self.ctx.clone(), at as f64);
        let slice = self.hidden_value(HiddenValue::Slice)?;
        let ends = cuts.iter().map(|at| number(*at)).chain([self.undefined()]);
        for (place, (from, to)) in [0].iter().chain(&cuts).zip(ends).enumerate() {
            self.core.check_time(self.ctx)?;
            let piece = raw::call(self.ctx, &slice, text, &[number(*from), to])?;
            super::lazy::define(pieces.as_object(), place as u32, raw::call(self.ctx, &native, &piece, form)?)?;
        }
        let join = self.native_of(Holder::Arrays, c"join")?;
        let nothing = JsString::from_str(self.ctx.clone(), "")?.into_value();
        raw::call(self.ctx, &join, &pieces.into_value(), &[nothing])
    }
}

/// Returns the positions, in units, at which a text can be cut so that each section can be normalised separately;
/// `None` if it cannot be cut so.
///
/// A cut is made before a character that is not a combining mark and that never composes with the character before it.
fn cuts(text: &[u8]) -> Option<Vec<usize>> {
    let mut cuts = Vec::new();
    if text.len() <= STRETCH || text.is_ascii() {
        return Some(cuts);
    }
    let (mut at, mut unit, mut last) = (0, 0, 0);
    while at < text.len() {
        let rest = |n: usize| u32::from(text.get(at + n).copied().unwrap_or(0) & 0x3f);
        let (length, point) = match u32::from(text[at]) {
            first @ 0..0x80 => (1, first),
            first @ 0x80..0xe0 => (2, ((first & 0x1f) << 6) | rest(1)),
            first => (3, ((first & 0x0f) << 12) | (rest(1) << 6) | rest(2)),
        };
        if unit - last >= CUT_FROM && begins_anew(point) {
            cuts.push(unit);
            last = unit;
        } else if unit - last >= STRETCH {
            return None;
        }
        at += length;
        unit += 1;
    }
    Some(cuts)
}

fn begins_anew(point: u32) -> bool {
    matches!(point, 0..=0x2ff | 0x370..=0x482 | 0x3001..=0x3029 | 0x3041..=0x3096 | 0x30a1..=0x30ff | 0x3400..=0x9fff
        | 0xac00..=0xd7a3)
}

/// Guards `String.raw`, which loops over as many parts as its argument reports.
pub(super) fn raw<'js>(mut call: Call<'_, 'js>) -> rquickjs::Result<Value<'js>> {
    let template = call.arg(0);
    if template.is_null() || template.is_undefined() {
        return call.forward();
    }
    let parts = raw::member(call.ctx, &template, c"raw")?;
    let parts = call.bounded(&parts, false)?;
    let object = rquickjs::Object::new(call.ctx.clone())?;
    super::lazy::define(&object, "raw", parts)?;
    call.set_arg(0, object.into_value());
    call.forward()
}
