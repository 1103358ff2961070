//! Which value does a text hold, and on which line is each part of it?
//!
//! Scripts are written by people, so each fault must be reported with its line, and all faults at once. `serde` behind
//! a YAML crate was the alternative: it stops at the first fault, keeps few line numbers, and does not define how
//! duplicate keys or tagged values are read. So the events of a YAML 1.2 parser (`saphyr-parser`: it passes the YAML
//! test suite, is maintained, and needs two small crates) are strictly converted into a tree of our own, and JSON lines
//! into the same tree.

use std::borrow::Cow;
use std::collections::HashMap;

use cantrip_canon::json;
use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};
use serde_json::{Map, Number, Value};

use crate::limits::{SCRIPT_DEPTH_MAX, SCRIPT_NODES_MAX};

/// A value and the line it begins on.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The line number, counted from 1.
    pub line: usize,
    pub shape: NodeValue,
}

/// The value of a [`Node`].
#[derive(Debug, Clone, PartialEq)]
pub enum NodeValue {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Node>),
    /// Entries in the order of the text; no two keys are equal.
    Map(Vec<(Key, Node)>),
}

/// A key and its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    pub line: usize,
    pub text: String,
}

/// A fault in a text, with its line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {rule}")]
pub struct Issue {
    pub line: usize,
    pub rule: String,
}

impl Issue {
    pub fn new(line: usize, rule: impl Into<String>) -> Self {
        Self { line, rule: rule.into() }
    }
}

impl Node {
    /// Parses one YAML document of the core schema. Rejects a duplicate key, a key that is not a scalar, a custom tag,
    /// a second document, and numbers that JSON cannot represent.
    pub fn read_yaml(text: &str) -> Result<Self, Issue> {
        let mut builder = Builder::default();
        for event in Parser::new_from_str(text) {
            let (event, span) = event.map_err(|error| Issue::new(error.marker().line(), error.info().to_owned()))?;
            builder.take(event, span)?;
        }
        Ok(builder.root.unwrap_or(Node { line: 1, shape: NodeValue::Null }))
    }

    /// Parses one JSON value on line `line` of a JSON lines file.
    pub fn read_json_line(text: &str, line: usize) -> Result<Self, Issue> {
        let value = json::read(text).map_err(|fault| Issue::new(line, fault.to_string()))?;
        Ok(Self::of_value(value, line))
    }

    fn of_value(value: Value, line: usize) -> Self {
        let shape = match value {
            Value::Null => NodeValue::Null,
            Value::Bool(flag) => NodeValue::Bool(flag),
            Value::Number(number) => NodeValue::Number(number),
            Value::String(text) => NodeValue::Text(text),
            Value::Array(items) => NodeValue::List(items.into_iter().map(|item| Self::of_value(item, line)).collect()),
            Value::Object(entries) => NodeValue::Map(
                entries.into_iter().map(|(text, value)| (Key { line, text }, Self::of_value(value, line))).collect(),
            ),
        };
        Self { line, shape }
    }

    /// Returns the value without its lines.
    pub fn to_value(&self) -> Value {
        match &self.shape {
            NodeValue::Null => Value::Null,
            NodeValue::Bool(flag) => Value::Bool(*flag),
            NodeValue::Number(number) => Value::Number(number.clone()),
            NodeValue::Text(text) => Value::String(text.clone()),
            NodeValue::List(items) => items.iter().map(Self::to_value).collect(),
            NodeValue::Map(entries) => {
                let entries = entries.iter().map(|(key, value)| (key.text.clone(), value.to_value()));
                Value::Object(entries.collect::<Map<_, _>>())
            }
        }
    }

    /// Returns the type of the value in words.
    pub fn noun(&self) -> &'static str {
        match self.shape {
            NodeValue::Null => "nothing",
            NodeValue::Bool(_) => "a truth value",
            NodeValue::Number(_) => "a number",
            NodeValue::Text(_) => "a text",
            NodeValue::List(_) => "a list",
            NodeValue::Map(_) => "a mapping",
        }
    }
}

/// A collection that is not complete yet.
enum Open {
    List { line: usize, anchor: usize, items: Vec<Node> },
    Map { line: usize, anchor: usize, entries: Vec<(Key, Node)>, key: Option<Key> },
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    root: Option<Node>,
}

impl Builder {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Issue> {
        let line = span.start.line();
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                // A key is always text, even if it looks like another type.
                let shape = if self.expects_key() {
                    NodeValue::Text(text.into_owned())
                } else {
                    scalar(&text, style, tag.as_deref(), line)?
                };
                self.close(Node { line, shape }, anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                check_untagged(tag, line)?;
                self.open(Open::List { line, anchor, items: Vec::new() }, line)
            }
            Event::MappingStart(anchor, tag) => {
                check_untagged(tag, line)?;
                self.open(Open::Map { line, anchor, entries: Vec::new(), key: None }, line)
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open::List { line, anchor, items }) => {
                    self.close(Node { line, shape: NodeValue::List(items) }, anchor)
                }
                Some(Open::Map { line, anchor, entries, .. }) => {
                    self.close(Node { line, shape: NodeValue::Map(entries) }, anchor)
                }
                None => Ok(()),
            },
            Event::Alias(anchor) => {
                let known = self.anchors.get(&anchor).cloned();
                let node =
                    known.ok_or_else(|| Issue::new(line, "an alias cannot be inside the value that it names"))?;
                let size = measure(&node);
                if self.open.len() + size.depth > SCRIPT_DEPTH_MAX {
                    return Err(deep(line));
                }
                self.nodes += size.nodes;
                self.close(node, 0)
            }
            Event::DocumentStart(_) if self.root.is_some() => Err(Issue::new(line, "a second document begins here")),
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) | Event::DocumentEnd => {
                Ok(())
            }
        }
    }

    fn expects_key(&self) -> bool {
        matches!(self.open.last(), Some(Open::Map { key: None, .. }))
    }

    fn open(&mut self, collection: Open, line: usize) -> Result<(), Issue> {
        if self.expects_key() {
            return Err(Issue::new(line, "a key must be a plain text"));
        }
        if self.open.len() == SCRIPT_DEPTH_MAX {
            return Err(deep(line));
        }
        self.open.push(collection);
        Ok(())
    }

    /// Adds a complete value to its parent.
    fn close(&mut self, node: Node, anchor: usize) -> Result<(), Issue> {
        // A node with an anchor is stored twice.
        self.nodes += if anchor > 0 { 1 + measure(&node).nodes } else { 1 };
        if self.nodes > SCRIPT_NODES_MAX {
            return Err(Issue::new(node.line, format!("more than {SCRIPT_NODES_MAX} values")));
        }
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open::List { items, .. }) => items.push(node),
            Some(Open::Map { entries, key, .. }) => match (key.take(), node) {
                (Some(key), value) => entries.push((key, value)),
                (None, Node { line, shape: NodeValue::Text(text) }) => {
                    if let Some((first, _)) = entries.iter().find(|(key, _)| key.text == text) {
                        let rule = format!("the key {text:?} was given on line {} already", first.line);
                        return Err(Issue::new(line, rule));
                    }
                    *key = Some(Key { line, text });
                }
                (None, other) => return Err(Issue::new(other.line, "a key must be a plain text")),
            },
        }
        Ok(())
    }
}

struct Size {
    nodes: usize,
    depth: usize,
}

/// Counts nodes and depth. No node here is deeper than [`SCRIPT_DEPTH_MAX`].
fn measure(node: &Node) -> Size {
    let below =
        |size: Size, inner: Size| Size { nodes: size.nodes + inner.nodes, depth: size.depth.max(inner.depth + 1) };
    let own = Size { nodes: 1, depth: 0 };
    match &node.shape {
        NodeValue::List(items) => items.iter().map(measure).fold(Size { depth: 1, ..own }, below),
        NodeValue::Map(entries) => {
            entries.iter().map(|(_, value)| measure(value)).fold(Size { depth: 1, ..own }, below)
        }
        NodeValue::Null | NodeValue::Bool(_) | NodeValue::Number(_) | NodeValue::Text(_) => own,
    }
}

fn deep(line: usize) -> Issue {
    Issue::new(line, format!("nested deeper than {SCRIPT_DEPTH_MAX} levels"))
}

fn check_untagged(tag: Option<Cow<'_, Tag>>, line: usize) -> Result<(), Issue> {
    match tag {
        Some(tag) if !tag.is_yaml_core_schema() => Err(Issue::new(line, format!("the tag {tag} is not known here"))),
        Some(_) | None => Ok(()),
    }
}

/// Parses a scalar by the core schema. A quoted scalar, or one tagged `!!str`, is text.
fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>, line: usize) -> Result<NodeValue, Issue> {
    let quoted = match style {
        ScalarStyle::Plain => false,
        ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted | ScalarStyle::Literal | ScalarStyle::Folded => true,
    };
    match tag {
        Some(tag) if tag.is_yaml_core_schema() && tag.suffix == "str" => return Ok(NodeValue::Text(text.to_owned())),
        Some(tag) => return Err(Issue::new(line, format!("the tag {tag} is not known here"))),
        None if quoted => return Ok(NodeValue::Text(text.to_owned())),
        None => {}
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Ok(NodeValue::Null),
        "true" | "True" | "TRUE" => Ok(NodeValue::Bool(true)),
        "false" | "False" | "FALSE" => Ok(NodeValue::Bool(false)),
        _ => match number(text) {
            None => Ok(NodeValue::Text(text.to_owned())),
            Some(Some(number)) => Ok(NodeValue::Number(number)),
            Some(None) => Err(Issue::new(
                line,
                format!("{text} is a number that JSON cannot keep exactly; write it as a quoted text"),
            )),
        },
    }
}

/// Returns none if the text does not look like a number, and `Some(None)` for a number that JSON cannot represent.
fn number(text: &str) -> Option<Option<Number>> {
    let exact = |value: Option<i64>| {
        let kept = value.and_then(|value| json::to_value(&value).ok());
        Some(kept.and_then(|value| match value {
            Value::Number(number) => Some(number),
            Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => None,
        }))
    };
    let all = |digits: &str, radix: u32| !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix));
    if let Some(digits) = text.strip_prefix("0x").filter(|digits| all(digits, 16)) {
        return exact(i64::from_str_radix(digits, 16).ok());
    }
    if let Some(digits) = text.strip_prefix("0o").filter(|digits| all(digits, 8)) {
        return exact(i64::from_str_radix(digits, 8).ok());
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if all(unsigned, 10) {
        return exact(text.parse().ok());
    }
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return Some(None);
    }
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = |part: &str| part.is_empty() || all(part, 10);
    let exponent_fits = all(exponent.strip_prefix(['-', '+']).unwrap_or(exponent), 10);
    if !(digits(whole) && digits(fraction) && exponent_fits) || whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let value = text.parse::<f64>().ok().and_then(|value| json::to_value(&value).ok());
    Some(match value {
        Some(Value::Number(number)) => Some(number),
        Some(Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_)) | None => None,
    })
}
