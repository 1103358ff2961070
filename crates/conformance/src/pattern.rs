//! When does a value match an expectation? If it is equal, except for a few words that stand for more than one value.

use cantrip_canon::json;
use cantrip_crystal::tree::{Node, NodeValue};
use serde_json::Value;

use crate::issues::Issues;

/// The expected value of one field.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Pattern {
    /// Exactly this value.
    Is(Value),
    NotNull,
    GreaterThan(f64),
    /// The id of the turn with this index in the loom.
    TurnId(usize),
    /// A mapping with these fields, and perhaps others.
    Has(Fields),
}

/// Named fields; a field that is not named may have any value.
pub(crate) type Fields = Vec<(String, Pattern)>;

impl Pattern {
    pub(crate) fn read(node: &Node) -> Self {
        match &node.shape {
            NodeValue::Text(text) => Self::word(text),
            NodeValue::Map(entries) => {
                Self::Has(entries.iter().map(|(key, value)| (key.text.clone(), Self::read(value))).collect())
            }
            NodeValue::Null | NodeValue::Bool(_) | NodeValue::Number(_) | NodeValue::List(_) => {
                Self::Is(node.to_value())
            }
        }
    }

    fn word(text: &str) -> Self {
        let within = |open: &str, close: &str| text.strip_prefix(open)?.strip_suffix(close);
        if text == "not_null" {
            return Self::NotNull;
        }
        if let Some(bound) = within("greater_than(", ")").and_then(|bound| bound.trim().parse().ok()) {
            return Self::GreaterThan(bound);
        }
        if let Some(at) = within("turns[", "].id").and_then(|at| at.parse().ok()) {
            return Self::TurnId(at);
        }
        Self::Is(text.into())
    }

    /// Returns the expected text, if the pattern is exactly one text.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Is(wanted) => wanted.as_str(),
            Self::NotNull | Self::GreaterThan(_) | Self::TurnId(_) | Self::Has(_) => None,
        }
    }

    /// Returns the difference from `found`, if there is one. `turns` are the ids of the loom's turns.
    pub(crate) fn mismatch(&self, path: &str, found: &Value, turns: &[String]) -> Option<String> {
        let fits = match self {
            Self::Is(wanted) => same(wanted, found),
            Self::NotNull => !found.is_null(),
            Self::GreaterThan(bound) => found.as_f64().is_some_and(|found| found > *bound),
            Self::TurnId(at) => turns.get(*at).is_some_and(|id| found.as_str() == Some(id)),
            Self::Has(fields) => return mismatch(fields, path, found, turns),
        };
        (!fits).then(|| format!("{path}: expected {}, got {}", self.describe(turns), short_json(found)))
    }

    fn describe(&self, turns: &[String]) -> String {
        match self {
            Self::Is(wanted) => short_json(wanted),
            Self::NotNull => "anything but null".to_owned(),
            Self::GreaterThan(bound) => format!("more than {bound}"),
            Self::TurnId(at) => match turns.get(*at) {
                Some(id) => format!("{id}, the id of turns[{at}]"),
                None => format!("the id of turns[{at}], which does not exist"),
            },
            Self::Has(_) => "a mapping".to_owned(),
        }
    }
}

/// Returns the difference of the first named field of `found` that does not match. An absent field is null.
pub(crate) fn mismatch(fields: &Fields, path: &str, found: &Value, turns: &[String]) -> Option<String> {
    fields.iter().find_map(|(name, pattern)| {
        let field = found.get(name).unwrap_or(&Value::Null);
        pattern.mismatch(&format!("{path}.{name}"), field, turns)
    })
}

/// Returns true if both values are equal as JSON. 1 and 1.0 are the same number; nothing else is relaxed.
pub(crate) fn same(wanted: &Value, found: &Value) -> bool {
    match (json::canonical(wanted), json::canonical(found)) {
        (Ok(wanted), Ok(found)) => wanted == found,
        (Err(_), _) | (_, Err(_)) => wanted == found,
    }
}

/// Renders a value on one short line.
pub(crate) fn short_json(value: &Value) -> String {
    const SHOWN_CHARS: usize = 200;
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// Reads the fields of a mapping; unknown names are reported.
pub(crate) fn fields(node: &Node, what: &str, known: &[&str], issues: &mut Issues) -> Fields {
    let entries = issues.map(node, what, known);
    entries.into_iter().map(|(key, value)| (key.text.clone(), Pattern::read(value))).collect()
}
