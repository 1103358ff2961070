//! The looms of a store, with their counts.

use std::collections::HashMap;

use cantrip::canon::LoomId;
use cantrip::loom::{Error, Extent, Loom};
use cantrip::{loom_id_for, store_refusal};
use cantrip_reply::Refusal;

use cantrip_local::origin;
use cantrip_local::spells;
use cantrip_local::store::Store;
use cantrip_terminal::loom::LoomRow;

pub(super) async fn looms(store: &Store) -> Result<Vec<LoomRow>, Refusal> {
    let loom = &store.loom;
    let stored = |error: Error| store_refusal(&error);
    // The names of nearby spells, by the ids of their looms.
    let spells = spells::around().into_iter();
    let names: HashMap<LoomId, String> = spells.map(|(_, spell)| (loom_id_for(&spell.name), spell.name)).collect();
    let mut rows = Vec::new();
    for id in loom.looms().await.map_err(stored)? {
        let Extent { entities, turns, last_activity } = loom.extent(id).await.map_err(stored)?;
        let name = match names.get(&id) {
            Some(near) => Some(near.clone()),
            None => noted_name(store, id).await?,
        };
        rows.push(LoomRow { loom_id: id, name, entities, turns, last_activity });
    }
    Ok(rows)
}

/// Returns the name of a loom whose spell is not near, from the notes beside the store about the spells that were cast.
async fn noted_name(store: &Store, id: LoomId) -> Result<Option<String>, Refusal> {
    let roots = store.loom.roots(id).await.map_err(|error| store_refusal(&error))?;
    // The newest root first: an older one may have been cast from a spell that was renamed since.
    let mut noted = roots.iter().rev().filter_map(|root| origin::noted_name(store, root.cantrip_id));
    Ok(noted.find(|name| loom_id_for(name) == id))
}
