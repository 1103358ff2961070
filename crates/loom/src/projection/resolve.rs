//! From the beginning of an id to what it names.

use std::collections::BTreeMap;

use cantrip_canon::{Id, Kind};

use super::Projection;
use crate::id::prefix_range;
use crate::{Error, Named};

/// The beginning of an id, with its kind (`turn_06cy`) or without (`06cy`).
#[derive(Debug, Clone, Copy)]
pub struct Beginning<'a> {
    text: &'a str,
    kind: Option<&'a str>,
    digits: &'a str,
}

impl<'a> Beginning<'a> {
    pub fn of(text: &'a str) -> Self {
        match text.split_once('_') {
            Some((kind, digits)) => Self { text, kind: Some(kind), digits },
            None => Self { text, kind: None, digits: text },
        }
    }

    /// The first and the last id of kind `K` that begin so, if one can.
    pub fn range<K: Kind>(&self) -> Option<(Id<K>, Id<K>)> {
        prefix_range(self.digits).filter(|_| self.kind.is_none_or(|kind| kind == K::PREFIX))
    }

    /// The one thing that was found. It is enough to look for two of each kind.
    pub fn one_of(&self, found: &[Named]) -> Result<Named, Error> {
        let shown = || self.text.chars().take(64).collect();
        match found {
            [] => Err(Error::NotFound { kind: "id", id: shown() }),
            [named] => Ok(*named),
            [_, _, ..] => Err(Error::Ambiguous { prefix: shown(), matches: found.len() }),
        }
    }
}

impl Projection {
    /// What an id, or an unambiguous beginning of one, names.
    pub fn resolve(&self, prefix: &str) -> Result<Named, Error> {
        let beginning = Beginning::of(prefix);
        let mut found = Vec::new();
        within(&self.looms, &beginning, Named::Loom, &mut found);
        within(&self.runs, &beginning, Named::Run, &mut found);
        within(&self.entities, &beginning, Named::Entity, &mut found);
        within(&self.casts, &beginning, Named::Cast, &mut found);
        within(&self.folds, &beginning, Named::Fold, &mut found);
        if let Some((first, last)) = beginning.range() {
            let closed = self.turns.range(first..=last).filter(|(_, node)| node.closed.is_some());
            found.extend(closed.take(2).map(|(id, _)| Named::Turn(*id)));
        }
        beginning.one_of(&found)
    }
}

/// The first two that begin so.
fn within<K: Kind, N>(
    nodes: &BTreeMap<Id<K>, N>,
    beginning: &Beginning<'_>,
    named: fn(Id<K>) -> Named,
    found: &mut Vec<Named>,
) {
    if let Some((first, last)) = beginning.range() {
        found.extend(nodes.range(first..=last).take(2).map(|(id, _)| named(*id)));
    }
}
