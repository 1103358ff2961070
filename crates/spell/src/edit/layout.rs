//! Where do the keys and values of a TOML text stand?
//!
//! The parser of TOML gives values and drops the layout. This scanner keeps nothing but the layout: the places of
//! headers, keys and values. It reads only texts that the parser has accepted, so it stops at the first thing that it
//! does not expect, and the caller checks the edited text by parsing it again.

use std::ops::Range;

/// The layout of a text.
#[derive(Debug)]
pub(super) struct Layout {
    /// The tables in the order of the text; the first is the text itself, before any header.
    pub tables: Vec<Header>,
    pub entries: Vec<Entry>,
}

/// A table's header.
#[derive(Debug)]
pub(super) struct Header {
    pub path: Vec<String>,
    /// True for an element of an array of tables, as in `[[name]]`.
    pub is_element: bool,
    /// The place of its brackets.
    pub at: Range<usize>,
}

/// A key with its value.
#[derive(Debug)]
pub(super) struct Entry {
    /// The number of the table that it stands in.
    pub table: usize,
    /// The parts of the key.
    pub key: Vec<String>,
    /// The place at which the key begins.
    pub start: usize,
    /// The place of the value.
    pub value: Range<usize>,
    /// The entries of the value, if it is an inline table.
    pub inner: Option<Vec<Entry>>,
}

impl Layout {
    /// Returns the layout of a text; none if the scanner does not understand it.
    pub(super) fn of(text: &str) -> Option<Self> {
        let mut cursor = Cursor { text, at: if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 } };
        let mut layout =
            Self { tables: vec![Header { path: Vec::new(), is_element: false, at: 0..0 }], entries: Vec::new() };
        loop {
            cursor.skip_blank();
            match cursor.peek() {
                None => return Some(layout),
                Some(b'[') => layout.tables.push(cursor.header()?),
                Some(_) => {
                    let table = layout.tables.len() - 1;
                    layout.entries.push(cursor.entry(table)?);
                }
            }
        }
    }

    /// Returns the whole path of an entry.
    pub(super) fn path(&self, entry: &Entry) -> Vec<String> {
        let above = self.tables.get(entry.table).map(|header| header.path.as_slice()).unwrap_or_default();
        above.iter().chain(&entry.key).cloned().collect()
    }
}

/// A position in a text.
struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl Cursor<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn starts_with(&self, wanted: &str) -> bool {
        self.text.as_bytes()[self.at..].starts_with(wanted.as_bytes())
    }

    /// Takes this byte; none if another one is next.
    fn take(&mut self, wanted: u8) -> Option<()> {
        (self.peek()? == wanted).then(|| self.at += 1)
    }

    fn skip_spaces(&mut self) {
        while let Some(b' ' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    /// Skips spaces, line ends and comments.
    fn skip_blank(&mut self) {
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' => self.at += 1,
                b'#' => self.at = line_end(self.text, self.at),
                _ => return,
            }
        }
    }

    fn header(&mut self) -> Option<Header> {
        let start = self.at;
        self.take(b'[')?;
        let is_element = self.take(b'[').is_some();
        let path = self.key()?;
        self.take(b']')?;
        if is_element {
            self.take(b']')?;
        }
        Some(Header { path, is_element, at: start..self.at })
    }

    fn entry(&mut self, table: usize) -> Option<Entry> {
        let start = self.at;
        let key = self.key()?;
        self.take(b'=')?;
        self.skip_spaces();
        let begin = self.at;
        let is_table = self.peek()? == b'{';
        let entries = self.value(table)?;
        Some(Entry { table, key, start, value: begin..self.at, inner: is_table.then_some(entries) })
    }

    /// Reads a key with the dots between its parts, and the spaces after it.
    fn key(&mut self) -> Option<Vec<String>> {
        let mut parts = Vec::new();
        loop {
            self.skip_spaces();
            let start = self.at;
            match self.peek()? {
                b'"' | b'\'' => {
                    self.string()?;
                    parts.push(unquoted(&self.text[start..self.at])?);
                }
                _ => {
                    while self.peek().is_some_and(is_bare) {
                        self.at += 1;
                    }
                    if self.at == start {
                        return None;
                    }
                    parts.push(self.text[start..self.at].to_owned());
                }
            }
            self.skip_spaces();
            if self.take(b'.').is_none() {
                return Some(parts);
            }
        }
    }

    /// Passes a value. Returns the entries of an inline table; of any other value there are none.
    fn value(&mut self, table: usize) -> Option<Vec<Entry>> {
        let mut entries = Vec::new();
        match self.peek()? {
            b'"' | b'\'' => self.string()?,
            b'[' => {
                self.at += 1;
                loop {
                    self.skip_blank();
                    if self.take(b']').is_some() {
                        break;
                    }
                    self.value(table)?;
                    self.skip_blank();
                    if self.take(b',').is_none() {
                        self.take(b']')?;
                        break;
                    }
                }
            }
            b'{' => {
                self.at += 1;
                loop {
                    self.skip_blank();
                    if self.take(b'}').is_some() {
                        break;
                    }
                    entries.push(self.entry(table)?);
                    self.skip_blank();
                    if self.take(b',').is_none() {
                        self.take(b'}')?;
                        break;
                    }
                }
            }
            _ => {
                // A number, a boolean or a time: it ends with the line, or with what encloses it.
                let rest = &self.text[self.at..];
                let length = rest.find([',', ']', '}', '#', '\r', '\n']).unwrap_or(rest.len());
                let written = rest[..length].trim_end().len();
                if written == 0 {
                    return None;
                }
                self.at += written;
            }
        }
        Some(entries)
    }

    /// Passes a string of any of the four kinds.
    fn string(&mut self) -> Option<()> {
        let quote = self.peek()?;
        let (fence, is_basic) = if quote == b'"' { ("\"\"\"", true) } else { ("'''", false) };
        if self.starts_with(fence) {
            self.at += fence.len();
            while !self.starts_with(fence) {
                self.step(is_basic)?;
            }
            self.at += fence.len();
            // Up to two quotes can stand before the fence, and belong to the text.
            for _ in 0..2 {
                self.take(quote);
            }
            return Some(());
        }
        self.at += 1;
        while self.take(quote).is_none() {
            self.step(is_basic)?;
        }
        Some(())
    }

    /// Passes one byte of a string, or an escaped one with its backslash.
    fn step(&mut self, is_basic: bool) -> Option<()> {
        let escaped = is_basic && self.peek()? == b'\\';
        self.peek()?;
        self.at += if escaped { 2 } else { 1 };
        (self.at < self.text.len()).then_some(())
    }
}

/// Returns true if a key with this byte needs no quotes for it.
pub(super) const fn is_bare(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

/// Returns the end of the line that this place is in, before its line feed.
pub(super) fn line_end(text: &str, at: usize) -> usize {
    text.as_bytes()[at..].iter().position(|byte| *byte == b'\n').map_or(text.len(), |length| at + length)
}

/// Returns the text of a quoted key.
fn unquoted(quoted: &str) -> Option<String> {
    let read: toml::Table = toml::from_str(&format!("key = {quoted}")).ok()?;
    read.get("key")?.as_str().map(str::to_owned)
}
