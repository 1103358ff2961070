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
        let (found, unknown): (Vec<_>, Vec<_>) =
            self.entries(node, what).into_iter().partition(|(key, _)| known.contains(&key.text.as_str()));
        unknown.into_iter().for_each(|(key, _)| self.unknown(key, what));
        found
    }

    /// Returns all entries, for a reader that reports the keys it does not know.
    pub(crate) fn entries<'a>(&mut self, node: &'a Node, what: &str) -> Vec<Entry<'a>> {
        let NodeValue::Map(entries) = &node.shape else {
            self.wanted(node, what);
            return Vec::new();
        };
        entries.iter().map(|(key, value)| (key, value)).collect()
    }

    pub(crate) fn unknown(&mut self, key: &Key, what: &str) {
        self.push(key.line, format!("unknown key {:?} in {what}", key.text));
    }

    pub(crate) fn list<'a>(&mut self, node: &'a Node, what: &str) -> &'a [Node] {
        if let NodeValue::List(items) = &node.shape {
            return items;
        }
        self.wanted(node, what);
        &[]
    }

    pub(crate) fn text(&mut self, node: &Node) -> Option<String> {
        if let NodeValue::Text(text) = &node.shape {
            return Some(text.clone());
        }
        self.wanted(node, "a text");
        None
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
        if let NodeValue::Bool(flag) = node.shape {
            return Some(flag);
        }
        self.wanted(node, "true or false");
        None
    }

    pub(crate) fn count(&mut self, node: &Node) -> Option<u64> {
        let count = if let NodeValue::Number(number) = &node.shape { number.as_u64() } else { None };
        if count.is_none() {
            self.wanted(node, "a whole number");
        }
        count
    }

    pub(crate) fn index(&mut self, node: &Node) -> Option<usize> {
        self.count(node).and_then(|count| usize::try_from(count).ok())
    }

    pub(crate) fn number(&mut self, node: &Node) -> Option<f64> {
        let number = if let NodeValue::Number(number) = &node.shape { number.as_f64() } else { None };
        if number.is_none() {
            self.wanted(node, "a number");
        }
        number
    }
}
