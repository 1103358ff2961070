//! One case in several mediums.
//!
//! A rule about code holds for every language in which code can be written. Such a case names its `mediums`, and writes
//! each value that differs between them as a mapping (`code: {javascript: .., python: ..}`); all other values are
//! written once. The case is read as one case per medium, and each of them must hold by itself.

use cantrip_circle::MediumKind;
use cantrip_crystal::tree::{Key, Node, NodeValue};

use crate::issues::Issues;

/// A case in one medium.
pub(crate) struct Variant {
    pub(crate) node: Node,
    /// None for a case that does not name mediums.
    pub(crate) medium: Option<MediumKind>,
}

/// Returns the variants of a case; empty if its mediums are not valid.
pub(crate) fn variants(node: &Node, issues: &mut Issues) -> Vec<Variant> {
    let Some(listed) = entry(node, "mediums") else { return vec![Variant { node: node.clone(), medium: None }] };
    let mut mediums: Vec<MediumKind> = Vec::new();
    for item in issues.list(listed, "a list of mediums") {
        match issues.text(item).map(|name| name.parse::<MediumKind>()) {
            Some(Ok(medium)) if mediums.contains(&medium) => issues.push(item.line, "a medium is named twice"),
            Some(Ok(medium)) => mediums.push(medium),
            Some(Err(fault)) => issues.push(item.line, fault.to_string()),
            None => {}
        }
    }
    if mediums.is_empty() {
        issues.push(listed.line, "`mediums` names none");
    }
    let circle = entry(node, "setup").and_then(|setup| entry(setup, "circle"));
    let Some(Node { shape: NodeValue::Map(circle), line }) = circle else {
        issues.push(listed.line, "a case in several mediums needs a circle");
        return Vec::new();
    };
    if let Some((key, _)) = circle.iter().find(|(key, _)| matches!(&*key.text, "type" | "medium" | "circle_type")) {
        issues.push(key.line, "the case says in which mediums it is run; its circle says none");
        return Vec::new();
    }
    let made = |medium: &MediumKind| {
        let mut node = MediumSelector { mediums: &mediums, medium: *medium, issues: &mut *issues }.select(node);
        let name = Node { line: *line, shape: NodeValue::Text(medium.as_str().to_owned()) };
        let key = Key { line: *line, text: "medium".to_owned() };
        if let NodeValue::Map(entries) = &mut node.shape {
            entries.retain(|(key, _)| key.text != "mediums");
        }
        if let Some(circle) = entry_mut(&mut node, "setup").and_then(|setup| entry_mut(setup, "circle"))
            && let NodeValue::Map(entries) = &mut circle.shape
        {
            entries.push((key, name));
        }
        Variant { node, medium: Some(*medium) }
    };
    mediums.iter().map(made).collect()
}

struct MediumSelector<'a> {
    mediums: &'a [MediumKind],
    medium: MediumKind,
    issues: &'a mut Issues,
}

impl MediumSelector<'_> {
    /// Returns the node without the values for other mediums.
    fn select(&mut self, node: &Node) -> Node {
        let shape = match &node.shape {
            NodeValue::Map(entries) if self.is_choice(entries) => return self.select_variant(node, entries),
            NodeValue::Map(entries) => {
                NodeValue::Map(entries.iter().map(|(key, value)| (key.clone(), self.select(value))).collect())
            }
            NodeValue::List(items) => NodeValue::List(items.iter().map(|item| self.select(item)).collect()),
            NodeValue::Null | NodeValue::Bool(_) | NodeValue::Number(_) | NodeValue::Text(_) => node.shape.clone(),
        };
        Node { line: node.line, shape }
    }

    /// Returns true if a mapping only selects a value by medium.
    fn is_choice(&self, entries: &[(Key, Node)]) -> bool {
        !entries.is_empty() && entries.iter().all(|(key, _)| self.mediums.iter().any(|one| one.as_str() == key.text))
    }

    fn select_variant(&mut self, node: &Node, entries: &[(Key, Node)]) -> Node {
        match entries.iter().find(|(key, _)| key.text == self.medium.as_str()) {
            Some((_, value)) => self.select(value),
            None => {
                self.issues.push(node.line, format!("nothing is said for {}", self.medium.as_str()));
                Node { line: node.line, shape: NodeValue::Null }
            }
        }
    }
}

fn entry<'a>(node: &'a Node, name: &str) -> Option<&'a Node> {
    let NodeValue::Map(entries) = &node.shape else { return None };
    entries.iter().find(|(key, _)| key.text == name).map(|(_, value)| value)
}

fn entry_mut<'a>(node: &'a mut Node, name: &str) -> Option<&'a mut Node> {
    let NodeValue::Map(entries) = &mut node.shape else { return None };
    entries.iter_mut().find(|(key, _)| key.text == name).map(|(_, value)| value)
}
