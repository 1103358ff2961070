//! From TOML to a tree with line numbers.
//!
//! The alternative was `serde` over the TOML: it stops at the first fault, and its messages about a wrong type name
//! Rust's types. The author of a spell gets all faults at once, with lines.

use cantrip_crystal::tree::{Key, Node, NodeValue};
use serde_json::Number;
use toml::de::{DeTable, DeValue};

use crate::limits::SPELL_BYTES_MAX;
use crate::{Fault, Issue};

/// Reads a spell's text; a TOML error is returned with its position.
pub(super) fn read(text: &str) -> Result<Node, Fault> {
    if text.len() > SPELL_BYTES_MAX {
        let detail = format!("it has {} bytes, the limit is {SPELL_BYTES_MAX}", text.len());
        return Err(Fault::Text { position: "its end".to_owned(), detail });
    }
    let lines = LineIndex::of(text);
    match DeTable::parse(text) {
        Ok(table) => Ok(lines.table(table.span().start, table.get_ref())),
        Err(error) => {
            let position =
                error.span().map_or_else(|| "its beginning".to_owned(), |span| lines.place(text, span.start));
            Err(Fault::Text { position, detail: error.message().to_owned() })
        }
    }
}

/// The offsets at which lines begin.
struct LineIndex(Vec<usize>);

impl LineIndex {
    fn of(text: &str) -> Self {
        Self(std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect())
    }

    /// Returns the line of an offset, counted from 1.
    fn line(&self, at: usize) -> usize {
        self.0.partition_point(|start| *start <= at)
    }

    fn place(&self, text: &str, at: usize) -> String {
        let line = self.line(at);
        let start = self.0.get(line - 1).copied().unwrap_or(0);
        let column = text.get(start..at).map_or(0, |before| before.chars().count()) + 1;
        format!("line {line}, column {column}")
    }

    /// Returns a table with its entries in the order of the text: the parser's map is sorted.
    fn table(&self, at: usize, table: &DeTable<'_>) -> Node {
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        let entries = entries.into_iter().map(|(key, value)| {
            let written = Key { line: self.line(key.span().start), text: key.get_ref().to_string() };
            let mut node = self.node(value.span().start, value.get_ref());
            // A table with a header begins at the header; a table of dotted keys has no better position than its key.
            if let NodeValue::Map(_) = node.shape {
                node.line = written.line;
            }
            (written, node)
        });
        Node { line: self.line(at), shape: NodeValue::Map(entries.collect()) }
    }

    fn node(&self, at: usize, value: &DeValue<'_>) -> Node {
        let shape = match value {
            DeValue::String(text) => NodeValue::Text(text.to_string()),
            DeValue::Boolean(flag) => NodeValue::Bool(*flag),
            DeValue::Integer(digits) => match i64::from_str_radix(&digits.as_str().replace('_', ""), digits.radix()) {
                Ok(number) => NodeValue::Number(number.into()),
                Err(_) => NodeValue::Text(digits.as_str().to_owned()),
            },
            DeValue::Float(digits) => {
                let number = digits.as_str().replace('_', "").parse().ok().and_then(Number::from_f64);
                // Infinities are not valid in a spell; as a text they have the wrong type everywhere.
                number.map_or_else(|| NodeValue::Text(digits.as_str().to_owned()), NodeValue::Number)
            }
            DeValue::Datetime(time) => NodeValue::Text(time.to_string()),
            DeValue::Array(items) => {
                NodeValue::List(items.iter().map(|item| self.node(item.span().start, item.get_ref())).collect())
            }
            DeValue::Table(table) => return self.table(at, table),
        };
        Node { line: self.line(at), shape }
    }
}

/// A table of a spell, read key by key; faults are collected.
pub(super) struct Table<'a> {
    /// The dotted name; empty for the spell itself.
    path: String,
    pub(super) line: usize,
    entries: &'a [(Key, Node)],
}

/// The collected faults.
#[derive(Debug, Default)]
pub(super) struct Issues(pub(super) Vec<Issue>);

impl Issues {
    pub(super) fn note(&mut self, line: usize, key: impl Into<String>, rule: impl Into<String>) {
        self.0.push(Issue { line, key: key.into(), rule: rule.into() });
    }
}

impl<'a> Table<'a> {
    pub(super) fn of(path: impl Into<String>, node: &'a Node, issues: &mut Issues) -> Option<Self> {
        let path = path.into();
        let NodeValue::Map(entries) = &node.shape else {
            let rule = format!("this is {}, but a table is expected: write [{path}] and its keys below", node.noun());
            issues.note(node.line, path, rule);
            return None;
        };
        Some(Self { path, line: node.line, entries })
    }

    pub(super) fn key(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&'a Key, &'a Node)> {
        self.entries.iter().map(|(key, node)| (key, node))
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a Node> {
        self.entries.iter().find(|(key, _)| key.text == name).map(|(_, node)| node)
    }

    /// Reports a fault of this key, at its line; the line is that of the table if the key is missing.
    pub(super) fn fault(&self, name: &str, rule: impl Into<String>, issues: &mut Issues) {
        issues.note(self.line_of(name), self.key(name), rule);
    }

    pub(super) fn line_of(&self, name: &str) -> usize {
        self.get(name).map_or(self.line, |node| node.line)
    }

    /// Reports every key that is not one of these.
    pub(super) fn only(&self, known: &[&str], issues: &mut Issues) {
        for (key, _) in self.entries {
            if !known.contains(&key.text.as_str()) {
                let shown: String = key.text.chars().take(64).collect();
                issues.note(key.line, self.key(&shown), format!("unknown key{}", suggestion(&key.text, known)));
            }
        }
    }

    /// Reports a value of the wrong type; `example` is a value of the wanted one.
    fn misfit<T>(&self, name: &str, node: &Node, wanted: &str, example: &str, issues: &mut Issues) -> Option<T> {
        let rule = format!("this is {}, but {wanted} is expected, as in {name} = {example}", noun(node));
        issues.note(node.line, self.key(name), rule);
        None
    }

    pub(super) fn text(&self, name: &str, example: &'static str, issues: &mut Issues) -> Option<&'a str> {
        let node = self.get(name)?;
        let NodeValue::Text(text) = &node.shape else { return self.misfit(name, node, "a text", example, issues) };
        Some(text)
    }

    pub(super) fn flag(&self, name: &str, issues: &mut Issues) -> Option<bool> {
        let node = self.get(name)?;
        let NodeValue::Bool(flag) = node.shape else { return self.misfit(name, node, "true or false", "true", issues) };
        Some(flag)
    }

    pub(super) fn number(&self, name: &str, example: &'static str, issues: &mut Issues) -> Option<f64> {
        let node = self.get(name)?;
        let number = number_of(node).and_then(Number::as_f64);
        number.or_else(|| self.misfit(name, node, "a number", example, issues))
    }

    pub(super) fn whole(&self, name: &str, example: &'static str, issues: &mut Issues) -> Option<u64> {
        let node = self.get(name)?;
        let number = number_of(node).and_then(Number::as_u64);
        number.or_else(|| self.misfit(name, node, "a whole number from 0 on", example, issues))
    }

    /// Reads one text, or a list of texts.
    pub(super) fn texts(&self, name: &str, example: &'static str, issues: &mut Issues) -> Option<Vec<String>> {
        let node = self.get(name)?;
        let texts = match &node.shape {
            NodeValue::Text(text) => Some(vec![text.clone()]),
            NodeValue::List(items) => items.iter().map(text_of).collect(),
            NodeValue::Null | NodeValue::Bool(_) | NodeValue::Number(_) | NodeValue::Map(_) => None,
        };
        texts.or_else(|| self.misfit(name, node, "a list of texts", example, issues))
    }

    pub(super) fn table(&self, name: &str, issues: &mut Issues) -> Option<Table<'a>> {
        Table::of(self.key(name), self.get(name)?, issues)
    }
}

fn text_of(node: &Node) -> Option<String> {
    if let NodeValue::Text(text) = &node.shape { Some(text.clone()) } else { None }
}

fn number_of(node: &Node) -> Option<&Number> {
    if let NodeValue::Number(number) = &node.shape { Some(number) } else { None }
}

/// Returns the type of a node in TOML's words.
fn noun(node: &Node) -> &'static str {
    if let NodeValue::Map(_) = node.shape { "a table" } else { node.noun() }
}

/// Returns `; did you mean x?` if a known word is similar enough.
pub(super) fn suggestion(written: &str, known: &[&str]) -> String {
    let near = |known: &str| strsim::damerau_levenshtein(written, known);
    match known.iter().copied().min_by_key(|known| near(known)) {
        Some(nearest) if near(nearest) <= (written.chars().count() / 3).max(2) => {
            format!("; did you mean {nearest}?")
        }
        Some(_) | None => format!("; known: {}", known.join(", ")),
    }
}
