//! Writes the canonical bytes of a typed value while it is serialized.
//!
//! A record is written and hashed a few times per turn. Building a tree of [`Value`](serde_json::Value)s first would
//! allocate every key and every text once more, only to write them out and drop them. Here the fields go directly into
//! the text. If a type has its fields in another order than the standard, their slices are sorted when the last one is
//! written. The rules are those of [`to_value`](super::to_value), and a test checks that both give the same bytes and
//! faults.

use std::cell::Cell;
use std::cmp::Ordering;
use std::fmt::{self, Write};

use serde::ser::{self, Serialize, Serializer};

use super::canonical::{compare_keys, put_escaped, put_number, put_text, put_whole};
use super::frame::{lists, passing_on, structs};
use super::key::Key;
use super::number;
use super::write::{WriteFault, WriteRule, exactly, next_depth, outside};

/// The canonical text of a typed value: [`canonical`](super::canonical) of its [`to_value`](super::to_value).
///
/// ```
/// use cantrip_canon::json;
///
/// #[derive(serde::Serialize)]
/// struct Said {
///     to: &'static str,
///     about: Option<u8>,
/// }
/// assert_eq!(json::canonical_of(&Said { to: "you", about: None }).unwrap(), r#"{"about":null,"to":"you"}"#);
/// ```
pub fn canonical_of<T: Serialize + ?Sized>(value: &T) -> Result<String, WriteFault> {
    with_canonical(value, str::to_owned)
}

/// Calls `read` with the canonical text of a typed value. For code that hashes the text, or stores it in another form,
/// and needs no copy of it.
///
/// ```
/// use cantrip_canon::json;
///
/// assert_eq!(json::with_canonical(&(1, "x"), str::len).unwrap(), "[1,\"x\"]".len());
/// ```
pub fn with_canonical<T: Serialize + ?Sized, R>(value: &T, read: impl FnOnce(&str) -> R) -> Result<R, WriteFault> {
    // The buffer is taken out while it is in use: a value whose serialization writes another text gets a new buffer.
    let mut page = PAGE.take().unwrap_or_default();
    page.clear();
    let written = value.serialize(Writer { page: &mut page, depth: 0 }).map(|()| read(&page.text));
    if page.text.capacity() + page.sorted.capacity() <= PAGE_BYTES_KEPT {
        PAGE.set(Some(page));
    }
    written
}

thread_local! {
    /// A buffer that is reused, so that a text grows into memory that is already allocated.
    static PAGE: Cell<Option<Box<OutputBuffer>>> = const { Cell::new(None) };
}

/// A buffer larger than this is freed after use.
const PAGE_BYTES_KEPT: usize = 64 << 10;

/// The text so far, and the entries of the maps that are being written, outermost first.
#[derive(Default)]
struct OutputBuffer {
    text: String,
    entries: Vec<Entry>,
    /// The keys of the entries that are not named by a struct field, concatenated.
    keys: String,
    /// The indexes of the entries in sorted order.
    order: Vec<usize>,
    /// The text of the entries in sorted order.
    sorted: String,
}

#[derive(Clone, Copy)]
struct Entry {
    key: Named,
    /// The start of the entry in the text.
    at: usize,
}

/// The key of an entry.
#[derive(Clone, Copy)]
enum Named {
    Field(&'static str),
    /// The range of the key in `keys`.
    Key(usize, usize),
}

impl OutputBuffer {
    fn clear(&mut self) {
        self.text.clear();
        self.entries.clear();
        self.keys.clear();
    }

    fn key(&self, index: usize) -> &str {
        match self.entries[index].key {
            Named::Field(name) => name,
            Named::Key(from, to) => &self.keys[from..to],
        }
    }

    /// Sorts the entries from index `first` on, which start at `from` in the text, into the order of the standard.
    fn sort(&mut self, first: usize, from: usize) -> Result<(), WriteFault> {
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend(first..self.entries.len());
        order.sort_unstable_by(|one, other| compare_keys(self.key(*one), self.key(*other)));
        if let Some(pair) = order.windows(2).find(|pair| self.key(pair[0]) == self.key(pair[1])) {
            return Err(WriteFault::from(WriteRule::DuplicateKey).inside(self.key(pair[0])));
        }
        self.sorted.clear();
        for index in &order {
            if !self.sorted.is_empty() {
                self.sorted.push(',');
            }
            let end = self.entries.get(index + 1).map_or(self.text.len(), |next| next.at - 1);
            self.sorted.push_str(&self.text[self.entries[*index].at..end]);
        }
        self.text.truncate(from);
        self.text.push_str(&self.sorted);
        self.order = order;
        Ok(())
    }
}

/// Writes one value that is nested in `depth` containers.
struct Writer<'p> {
    page: &'p mut OutputBuffer,
    depth: usize,
}

impl<'p> Writer<'p> {
    fn items(mut self, variant: Option<&'static str>) -> Result<Items<'p>, WriteFault> {
        let depth = self.enter(variant)?;
        self.page.text.push('[');
        Ok(Items { page: self.page, depth, count: 0, variant })
    }

    fn entries(mut self, variant: Option<&'static str>) -> Result<Entries<'p>, WriteFault> {
        let depth = self.enter(variant)?;
        self.page.text.push('{');
        let OutputBuffer { text, entries, keys, .. } = &*self.page;
        let (first, from, keys) = (entries.len(), text.len(), keys.len());
        Ok(Entries { page: self.page, depth, first, from, keys, in_order: true, variant })
    }

    /// Returns the depth of the inside of a container, including the map that names a variant if there is one.
    fn enter(&mut self, variant: Option<&'static str>) -> Result<usize, WriteFault> {
        let depth = if variant.is_some() { next_depth(self.depth)? } else { self.depth };
        let depth = next_depth(depth).map_err(|fault| outside(variant, fault))?;
        if let Some(name) = variant {
            self.page.text.push('{');
            put_text(&mut self.page.text, name);
            self.page.text.push(':');
        }
        Ok(depth)
    }

    fn integer(self, value: i64) -> Result<(), WriteFault> {
        put_whole(&mut self.page.text, value);
        Ok(())
    }
}

/// Escapes the text that is written into it.
struct Escaping<'p>(&'p mut String);

impl Write for Escaping<'_> {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        put_escaped(self.0, piece);
        Ok(())
    }
}

impl<'p> Serializer for Writer<'p> {
    passing_on!((), Items<'p>, Entries<'p>);

    fn serialize_bool(self, value: bool) -> Result<(), WriteFault> {
        self.page.text.push_str(if value { "true" } else { "false" });
        Ok(())
    }

    fn serialize_f64(self, value: f64) -> Result<(), WriteFault> {
        put_number(&mut self.page.text, &number(value)?);
        Ok(())
    }

    fn serialize_str(self, value: &str) -> Result<(), WriteFault> {
        put_text(&mut self.page.text, value);
        Ok(())
    }

    fn collect_str<T: fmt::Display + ?Sized>(self, value: &T) -> Result<(), WriteFault> {
        self.page.text.push('"');
        write!(Escaping(&mut self.page.text), "{value}").map_err(<WriteFault as ser::Error>::custom)?;
        self.page.text.push('"');
        Ok(())
    }

    fn serialize_unit(self) -> Result<(), WriteFault> {
        self.page.text.push_str("null");
        Ok(())
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), WriteFault> {
        let depth = next_depth(self.depth)?;
        self.page.text.push('{');
        put_text(&mut self.page.text, variant);
        self.page.text.push(':');
        value.serialize(Writer { page: self.page, depth }).map_err(|fault| fault.inside(variant))?;
        self.page.text.push('}');
        Ok(())
    }
}

/// A list that is being written.
struct Items<'p> {
    page: &'p mut OutputBuffer,
    depth: usize,
    count: usize,
    variant: Option<&'static str>,
}

impl Items<'_> {
    fn push<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), WriteFault> {
        if self.count > 0 {
            self.page.text.push(',');
        }
        item.serialize(Writer { page: self.page, depth: self.depth })
            .map_err(|fault| outside(self.variant, fault.inside(&self.count.to_string())))?;
        self.count += 1;
        Ok(())
    }

    fn finish(self) -> Result<(), WriteFault> {
        self.page.text.push_str(if self.variant.is_some() { "]}" } else { "]" });
        Ok(())
    }
}

/// A map that is being written.
struct Entries<'p> {
    page: &'p mut OutputBuffer,
    depth: usize,
    /// The index of its first entry among all entries that are being written.
    first: usize,
    /// The start of that entry in the text.
    from: usize,
    /// The start of its keys in `keys`.
    keys: usize,
    /// True if the keys came in the order of the standard so far.
    in_order: bool,
    variant: Option<&'static str>,
}

impl Entries<'_> {
    fn begin(&mut self, key: Named) {
        let page = &mut *self.page;
        let index = page.entries.len();
        if index > self.first {
            page.text.push(',');
        }
        page.entries.push(Entry { key, at: page.text.len() });
        if index > self.first && self.in_order {
            self.in_order = compare_keys(page.key(index - 1), page.key(index)) == Ordering::Less;
        }
        match key {
            Named::Field(name) => put_text(&mut page.text, name),
            Named::Key(from, to) => put_text(&mut page.text, &page.keys[from..to]),
        }
        page.text.push(':');
    }

    fn value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), WriteFault> {
        let index = self.page.entries.len() - 1;
        value
            .serialize(Writer { page: self.page, depth: self.depth })
            .map_err(|fault| outside(self.variant, fault.inside(self.page.key(index))))
    }

    fn field<T: Serialize + ?Sized>(&mut self, key: &'static str, entry: &T) -> Result<(), WriteFault> {
        self.begin(Named::Field(key));
        self.value(entry)
    }

    fn finish(self) -> Result<(), WriteFault> {
        if !self.in_order {
            self.page.sort(self.first, self.from).map_err(|fault| outside(self.variant, fault))?;
        }
        self.page.keys.truncate(self.keys);
        self.page.entries.truncate(self.first);
        self.page.text.push_str(if self.variant.is_some() { "}}" } else { "}" });
        Ok(())
    }
}

lists!((), Items<'_>);
structs!((), Entries<'_>);

impl ser::SerializeMap for Entries<'_> {
    type Ok = ();
    type Error = WriteFault;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), WriteFault> {
        let at = self.page.keys.len();
        key.serialize(Key(&mut self.page.keys)).map_err(|fault| outside(self.variant, fault))?;
        self.begin(Named::Key(at, self.page.keys.len()));
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, entry: &T) -> Result<(), WriteFault> {
        if self.page.entries.len() == self.first {
            return Err(WriteRule::Refused("a value came before its key".to_owned()).into());
        }
        self.value(entry)
    }

    fn end(self) -> Result<(), WriteFault> {
        self.finish()
    }
}
