//! How are the values of a variant written into the user's file?
//!
//! Only the values that differ are replaced: comments, the order of keys, and spaces stay as they are. Writing the
//! whole spell anew from its values was the alternative, and would lose them. The edited text is read again, and must
//! be the spell that was tried.

mod layout;
mod literal;

use std::ops::Range;

use serde_json::{Map, Value};

use crate::{Fault, Issue, Spell, SpellChange, SpellFault};
use layout::{Entry, Layout, line_end};

impl Spell {
    /// Returns `text`, from which this spell was read, with these changes. The result reads as
    /// [`Spell::with_change`] with the same changes.
    pub fn edited(&self, text: &str, change: &SpellChange) -> Result<String, SpellFault> {
        let wanted = self.with_change(change)?;
        let fault = |key: String| {
            let rule = "this file cannot be edited here: write the value by hand".to_owned();
            SpellFault { file: self.file.clone(), fault: Fault::Issues(vec![Issue { line: 0, key, rule }]) }
        };
        let mut editor = Editor { text: text.to_owned() };
        for (path, value) in self.differing(text, change) {
            editor.set(&path, &value).ok_or_else(|| fault(path.join(".")))?;
        }
        let read = Self::read(&editor.text, &self.file, self.folder.clone())?;
        if read.resolved() == wanted.resolved() { Ok(editor.text) } else { Err(fault("file".to_owned())) }
    }

    /// Returns the keys that the file has to get another value for, each with the value.
    fn differing(&self, text: &str, change: &SpellChange) -> Vec<(Vec<String>, Value)> {
        let mut differing = Vec::new();
        let mut put = |path: &[&str], value: Value| {
            differing.push((path.iter().map(|part| (*part).to_owned()).collect(), value));
        };
        if let Some(prompt) = change.system_prompt.as_deref().filter(|prompt| self.call.prompt() != Some(*prompt)) {
            put(&["call", "system_prompt"], prompt.into());
        }
        for (name, description) in &change.descriptions {
            let gate = self.described_gate(name);
            if let Some(gate) = gate.filter(|gate| gate.description.as_ref() != Some(description)) {
                put(&["gates", gate.name.as_str(), "description"], description.as_str().into());
            }
        }
        let own = own_wards(text);
        for (name, value) in change.wards.iter().filter(|(name, value)| own.get(*name) != Some(*value)) {
            put(&["wards", name.as_str()], value.clone());
        }
        // The loader adds a limit of turns only where the wards set none. With another ward it would not add it.
        if let Some(turns) = self.wards.get("max_turns")
            && !change.wards.is_empty()
            && !change.wards.contains_key("max_turns")
            && !own.contains_key("max_turns")
        {
            put(&["wards", "max_turns"], turns.clone());
        }
        differing
    }
}

/// Returns the wards that the file itself has.
fn own_wards(text: &str) -> Map<String, Value> {
    let read = crate::toml_tree::read(text).ok().map(|node| node.to_value());
    let wards = read.as_ref().and_then(|spell| spell.get("wards")).and_then(Value::as_object);
    wards.cloned().unwrap_or_default()
}

/// The place at which a value is written.
enum Place {
    /// In place of the value that stands there.
    Value(Range<usize>),
    /// In an inline table, after its last entry. The key is what is left of the path.
    Inline { at: usize, is_first: bool, key: Vec<String> },
    /// On a line of its own, after the line that contains `beside`.
    Line { beside: Range<usize>, key: Vec<String> },
    /// In a table of its own at the end.
    End { table: Vec<String>, key: Vec<String> },
}

/// Changes values of a text and nothing else.
struct Editor {
    text: String,
}

impl Editor {
    /// Sets the value of a key; none if there is no place for it.
    fn set(&mut self, path: &[String], value: &Value) -> Option<()> {
        let layout = Layout::of(&self.text)?;
        let place = place(&layout, path)?;
        if let Value::Object(fields) = value
            && !matches!(place, Place::Value(_))
            && is_table(&layout, path)
        {
            return fields.iter().try_for_each(|(name, value)| {
                let below: Vec<String> = path.iter().cloned().chain([name.clone()]).collect();
                self.set(&below, value)
            });
        }
        match place {
            Place::Value(at) => {
                let written = self.literal(value)?;
                self.text.replace_range(at, &written);
            }
            Place::Inline { at, is_first, key } => {
                let entry = format!("{} = {}", literal::key(&key), literal::value(value)?);
                self.text.insert_str(at, &if is_first { format!(" {entry} ") } else { format!(", {entry}") });
            }
            Place::Line { beside, key } => {
                let begin = self.text[..beside.start].rfind('\n').map_or(0, |feed| feed + 1);
                let before = &self.text[begin..beside.start];
                let indent: String = before.chars().take_while(|letter| matches!(letter, ' ' | '\t')).collect();
                let line = format!("{indent}{} = {}", literal::key(&key), self.literal(value)?);
                let end = line_end(&self.text, beside.end);
                let feed = self.line_feed();
                if end == self.text.len() {
                    self.text.push_str(&format!("{feed}{line}{feed}"));
                } else {
                    self.text.insert_str(end + 1, &format!("{line}{feed}"));
                }
            }
            Place::End { table, key } => {
                let feed = self.line_feed();
                let close = if self.text.is_empty() || self.text.ends_with('\n') { "" } else { feed };
                let line = format!("{} = {}", literal::key(&key), self.literal(value)?);
                self.text.push_str(&format!("{close}{feed}[{}]{feed}{line}{feed}", literal::key(&table)));
            }
        }
        Some(())
    }

    /// Returns a value as it is written on a line of its own. A text of several lines keeps them, unless the lines of
    /// the file end in another way than those of the text.
    fn literal(&self, value: &Value) -> Option<String> {
        match value {
            Value::String(text) if text.contains('\n') && self.line_feed() == "\n" => Some(literal::in_lines(text)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
                literal::value(value)
            }
        }
    }

    fn line_feed(&self) -> &'static str {
        if self.text.contains("\r\n") { "\r\n" } else { "\n" }
    }
}

/// Returns the entries of tables that have a path.
fn named_entries(layout: &Layout) -> impl DoubleEndedIterator<Item = (Vec<String>, usize, &Entry)> {
    layout.entries.iter().filter_map(move |entry| {
        let header = layout.tables.get(entry.table).filter(|header| !header.is_element)?;
        Some((layout.path(entry), header.path.len(), entry))
    })
}

/// Returns true if the path is a table with a header, or one of dotted keys.
fn is_table(layout: &Layout, path: &[String]) -> bool {
    let has_header = layout.tables.iter().any(|header| header.path == path);
    has_header || named_entries(layout).any(|(whole, _, _)| whole.len() > path.len() && whole.starts_with(path))
}

/// Returns the place for the value of a key; none if a value that is no table stands above it.
fn place(layout: &Layout, path: &[String]) -> Option<Place> {
    for (whole, _, entry) in named_entries(layout) {
        if let Some(rest) = path.strip_prefix(whole.as_slice()) {
            return place_inside(entry, rest);
        }
    }
    let (key, table) = path.split_last()?;
    let header = layout.tables.iter().position(|header| !header.is_element && header.path == table);
    if let Some(number) = header.filter(|number| *number > 0) {
        let last = layout.entries.iter().rfind(|entry| entry.table == number);
        let beside = last.map_or_else(|| layout.tables[number].at.clone(), |last| last.start..last.value.end);
        return Some(Place::Line { beside, key: vec![key.clone()] });
    }
    // A table of dotted keys takes no header, so its next key is dotted too.
    for length in (1..path.len()).rev() {
        let dotted = named_entries(layout)
            .rev()
            .find(|(whole, above, _)| *above < length && whole.len() > length && whole[..length] == path[..length]);
        if let Some((_, above, entry)) = dotted {
            let beside = entry.start..entry.value.end;
            return Some(Place::Line { beside, key: path[above..].to_vec() });
        }
    }
    Some(Place::End { table: table.to_vec(), key: vec![key.clone()] })
}

/// Returns the place below an entry.
fn place_inside(entry: &Entry, rest: &[String]) -> Option<Place> {
    if rest.is_empty() {
        return Some(Place::Value(entry.value.clone()));
    }
    let inner = entry.inner.as_ref()?;
    for one in inner {
        if let Some(below) = rest.strip_prefix(one.key.as_slice()) {
            return place_inside(one, below);
        }
    }
    let at = inner.last().map_or(entry.value.start + 1, |last| last.value.end);
    Some(Place::Inline { at, is_first: inner.is_empty(), key: rest.to_vec() })
}
