//! From the prefix of an id to the thing that it names.

use std::collections::BTreeMap;

use cantrip_canon::{Id, Kind};

use super::Projection;
use crate::id::prefix_range;
use crate::{AnyId, Error};

/// The prefix of an id, with its kind (`turn_06cy`) or without (`06cy`).
#[derive(Debug, Clone, Copy)]
pub struct IdPrefix<'a> {
    text: &'a str,
    kind: Option<&'a str>,
    digits: &'a str,
}

impl<'a> IdPrefix<'a> {
    pub fn parse(text: &'a str) -> Self {
        match text.split_once('_') {
            Some((kind, digits)) => Self { text, kind: Some(kind), digits },
            None => Self { text, kind: None, digits: text },
        }
    }

    /// Returns the first and the last id of kind `K` with this prefix, if there can be one.
    pub fn range<K: Kind>(&self) -> Option<(Id<K>, Id<K>)> {
        prefix_range(self.digits).filter(|_| self.kind.is_none_or(|kind| kind == K::PREFIX))
    }

    /// Returns the only match. Two candidates of each kind are enough to detect an ambiguous prefix.
    pub fn require_unique(&self, found: &[AnyId]) -> Result<AnyId, Error> {
        let shown = || self.text.chars().take(64).collect();
        match found {
            [] => Err(Error::NotFound { kind: "id", id: shown() }),
            [named] => Ok(*named),
            [_, _, ..] => Err(Error::Ambiguous { prefix: shown(), matches: found.len() }),
        }
    }
}

impl Projection {
    /// Finds the thing that an id, or an unambiguous prefix of an id, names.
    pub fn resolve(&self, prefix: &str) -> Result<AnyId, Error> {
        let beginning = IdPrefix::parse(prefix);
        let mut found = Vec::new();
        collect_matches(&self.looms, &beginning, AnyId::Loom, &mut found);
        collect_matches(&self.runs, &beginning, AnyId::Run, &mut found);
        collect_matches(&self.entities, &beginning, AnyId::Entity, &mut found);
        collect_matches(&self.casts, &beginning, AnyId::Cast, &mut found);
        collect_matches(&self.folds, &beginning, AnyId::Fold, &mut found);
        if let Some((first, last)) = beginning.range() {
            let closed = self.turns.range(first..=last).filter(|(_, node)| node.closed.is_some());
            found.extend(closed.take(2).map(|(id, _)| AnyId::Turn(*id)));
        }
        beginning.require_unique(&found)
    }
}

/// Adds the first two ids with this prefix.
fn collect_matches<K: Kind, N>(
    nodes: &BTreeMap<Id<K>, N>,
    beginning: &IdPrefix<'_>,
    named: fn(Id<K>) -> AnyId,
    found: &mut Vec<AnyId>,
) {
    if let Some((first, last)) = beginning.range() {
        found.extend(nodes.range(first..=last).take(2).map(|(id, _)| named(*id)));
    }
}
