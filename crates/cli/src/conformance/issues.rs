//! What is wrong with a file, all of it, each on its line.

use cantrip_crystal::tree::{Issue, Key, Node, Shape};

/// Reads on after a fault, so that one look tells all of them.
#[derive(Debug, Default)]
pub(super) struct Issues(pub(super) Vec<Issue>);

/// An entry of a mapping.
pub(super) type Entry<'a> = (&'a Key, &'a Node);

impl Issues {
    pub(super) fn push(&mut self, line: usize, rule: impl Into<String>) {
        self.0.push(Issue::new(line, rule));
    }

    pub(super) fn wanted(&mut self, node: &Node, wanted: &str) {
        self.push(node.line, format!("expected {wanted}, found {}", node.noun()));
    }

    /// The entries whose keys are known; every other key is told.
    pub(super) fn map<'a>(&mut self, node: &'a Node, what: &str, known: &[&str]) -> Vec<Entry<'a>> {
        self.map_where(node, what, |key| known.contains(&key))
    }

    pub(super) fn map_where<'a>(&mut self, node: &'a Node, what: &str, known: impl Fn(&str) -> bool) -> Vec<Entry<'a>> {
        let Shape::Map(entries) = &node.shape else {
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

    pub(super) fn list<'a>(&mut self, node: &'a Node, what: &str) -> &'a [Node] {
        match &node.shape {
            Shape::List(items) => items,
            Shape::Null | Shape::Bool(_) | Shape::Number(_) | Shape::Text(_) | Shape::Map(_) => {
                self.wanted(node, what);
                &[]
            }
        }
    }

    pub(super) fn text(&mut self, node: &Node) -> Option<String> {
        match &node.shape {
            Shape::Text(text) => Some(text.clone()),
            Shape::Null | Shape::Bool(_) | Shape::Number(_) | Shape::List(_) | Shape::Map(_) => {
                self.wanted(node, "a text");
                None
            }
        }
    }

    /// One text, or a list of them.
    pub(super) fn texts(&mut self, node: &Node) -> Vec<String> {
        match &node.shape {
            Shape::Text(text) => vec![text.clone()],
            Shape::List(items) => items.iter().filter_map(|item| self.text(item)).collect(),
            Shape::Null | Shape::Bool(_) | Shape::Number(_) | Shape::Map(_) => {
                self.wanted(node, "a text, or a list of texts");
                Vec::new()
            }
        }
    }

    pub(super) fn flag(&mut self, node: &Node) -> Option<bool> {
        match node.shape {
            Shape::Bool(flag) => Some(flag),
            Shape::Null | Shape::Number(_) | Shape::Text(_) | Shape::List(_) | Shape::Map(_) => {
                self.wanted(node, "true or false");
                None
            }
        }
    }

    pub(super) fn count(&mut self, node: &Node) -> Option<u64> {
        let count = match &node.shape {
            Shape::Number(number) => number.as_u64(),
            Shape::Null | Shape::Bool(_) | Shape::Text(_) | Shape::List(_) | Shape::Map(_) => None,
        };
        if count.is_none() {
            self.wanted(node, "a whole number");
        }
        count
    }

    pub(super) fn index(&mut self, node: &Node) -> Option<usize> {
        self.count(node).and_then(|count| usize::try_from(count).ok())
    }

    pub(super) fn number(&mut self, node: &Node) -> Option<f64> {
        let number = match &node.shape {
            Shape::Number(number) => number.as_f64(),
            Shape::Null | Shape::Bool(_) | Shape::Text(_) | Shape::List(_) | Shape::Map(_) => None,
        };
        if number.is_none() {
            self.wanted(node, "a number");
        }
        number
    }
}
