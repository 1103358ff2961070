//! Collects everything that is wrong with a file, each fault with its line.

use cantrip_crystal::tree::{Issue, Key, Node, NodeValue};

/// The faults so far. Reading continues after a fault, so that one pass reports all of them.
#[derive(Debug, Default)]
pub(crate) struct Issues(pub(crate) Vec<Issue>);

/// An entry of a mapping.
pub(crate) type Entry<'a> = (&'a Key, &'a Node);

impl Issues {
    pub(crate) fn push(&mut self, line: usize, rule: impl Into<String>) {
        self.0.push(Issue::new(line, rule));
    }

    pub(crate) fn wanted(&mut self, node: &Node, wanted: &str) {
        self.push(node.line, format!("expected {wanted}, found {}", node.noun()));
    }

    /// Returns the entries whose keys are known; every other key is reported.
    pub(crate) fn map<'a>(&mut self, node: &'a Node, what: &str, known: &[&str]) -> Vec<Entry<'a>> {
        self.map_where(node, what, |key| known.contains(&key))
    }

    pub(crate) fn map_where<'a>(&mut self, node: &'a Node, what: &str, known: impl Fn(&str) -> bool) -> Vec<Entry<'a>> {
        let NodeValue::Map(entries) = &node.shape else {
            self.wanted(node, what);
            return Vec::new();
        };
        let mut found = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            if known(&key.text) {
                found.push((key, value));
            } else {
                self.push(key.line, format!("unknown key {:?} in {what}", key.text));
            }
        }
        found
    }

    pub(crate) fn list<'a>(&mut self, node: &'a Node, what: &str) -> &'a [Node] {
        match &node.shape {
            NodeValue::List(items) => items,
            NodeValue::Null | NodeValue::Bool(_) | NodeValue::Number(_) | NodeValue::Text(_) | NodeValue::Map(_) => {
                self.wanted(node, what);
                &[]
            }
        }
    }

    pub(crate) fn text(&mut self, node: &Node) -> Option<String> {
        match &node.shape {
            NodeValue::Text(text) => Some(text.clone()),
            NodeValue::Null | NodeValue::Bool(_) | NodeValue::Number(_) | NodeValue::List(_) | NodeValue::Map(_) => {
                self.wanted(node, "a text");
                None
            }
        }
    }

    /// Reads one text, or a list of texts.
    pub(crate) fn texts(&mut self, node: &Node) -> Vec<String> {
        match &node.shape {
            NodeValue::Text(text) => vec![text.clone()],
            NodeValue::List(items) => items.iter().filter_map(|item| self.text(item)).collect(),
            NodeValue::Null | NodeValue::Bool(_) | NodeValue::Number(_) | NodeValue::Map(_) => {
                self.wanted(node, "a text, or a list of texts");
                Vec::new()
            }
        }
    }

    pub(crate) fn flag(&mut self, node: &Node) -> Option<bool> {
        match node.shape {
            NodeValue::Bool(flag) => Some(flag),
            NodeValue::Null | NodeValue::Number(_) | NodeValue::Text(_) | NodeValue::List(_) | NodeValue::Map(_) => {
                self.wanted(node, "true or false");
                None
            }
        }
    }

    pub(crate) fn count(&mut self, node: &Node) -> Option<u64> {
        let count = match &node.shape {
            NodeValue::Number(number) => number.as_u64(),
            NodeValue::Null | NodeValue::Bool(_) | NodeValue::Text(_) | NodeValue::List(_) | NodeValue::Map(_) => None,
        };
        if count.is_none() {
            self.wanted(node, "a whole number");
        }
        count
    }

    pub(crate) fn index(&mut self, node: &Node) -> Option<usize> {
        self.count(node).and_then(|count| usize::try_from(count).ok())
    }

    pub(crate) fn number(&mut self, node: &Node) -> Option<f64> {
        let number = match &node.shape {
            NodeValue::Number(number) => number.as_f64(),
            NodeValue::Null | NodeValue::Bool(_) | NodeValue::Text(_) | NodeValue::List(_) | NodeValue::Map(_) => None,
        };
        if number.is_none() {
            self.wanted(node, "a number");
        }
        number
    }
}
