//! From the beginning of an id to what it names.

use std::collections::BTreeMap;

use cantrip_canon::{Id, Kind};

use super::Projection;
use crate::id::prefix_range;
use crate::{Error, Named};

impl Projection {
    /// What an id, or an unambiguous beginning of one, names.
    pub fn resolve(&self, prefix: &str) -> Result<Named, Error> {
        let (kind, digits) = match prefix.split_once('_') {
            Some((kind, digits)) => (Some(kind), digits),
            None => (None, prefix),
        };
        let mut found = Vec::new();
        let mut matches = 0;
        let mut look = |ids: (usize, Option<Named>)| {
            matches += ids.0;
            found.extend(ids.1);
        };
        look(within(&self.looms, kind, digits, Named::Loom));
        look(within(&self.runs, kind, digits, Named::Run));
        look(within(&self.entities, kind, digits, Named::Entity));
        look(within(&self.casts, kind, digits, Named::Cast));
        look(within(&self.folds, kind, digits, Named::Fold));
        let mut closed = self.turns_within(kind, digits);
        if let Some(first) = closed.next() {
            look((1 + closed.take(1).count(), Some(Named::Turn(first))));
        }
        match (matches, found.first()) {
            (1, Some(named)) => Ok(*named),
            (0, _) | (_, None) => Err(Error::NotFound { kind: "id", id: shown(prefix) }),
            (matches, Some(_)) => Err(Error::Ambiguous { prefix: shown(prefix), matches }),
        }
    }

    fn turns_within(&self, kind: Option<&str>, digits: &str) -> impl Iterator<Item = cantrip_canon::TurnId> + '_ {
        let range = prefix_range(digits).filter(|_| kind.is_none_or(|kind| kind == cantrip_canon::kinds::Turn::PREFIX));
        let nodes = range.into_iter().flat_map(|(first, last)| self.turns.range(first..=last));
        nodes.filter(|(_, node)| node.closed.is_some()).map(|(id, _)| *id)
    }
}

fn shown(prefix: &str) -> String {
    prefix.chars().take(64).collect()
}

/// How many ids begin so, counted up to two, and the first of them.
fn within<K: Kind, N>(
    nodes: &BTreeMap<Id<K>, N>,
    kind: Option<&str>,
    digits: &str,
    named: fn(Id<K>) -> Named,
) -> (usize, Option<Named>) {
    if kind.is_some_and(|kind| kind != K::PREFIX) {
        return (0, None);
    }
    let Some((first, last)) = prefix_range::<K>(digits) else { return (0, None) };
    let mut ids = nodes.range(first..=last).map(|(id, _)| *id);
    match ids.next() {
        None => (0, None),
        Some(id) => (1 + ids.take(1).count(), Some(named(id))),
    }
}
