//! The looms of a store, in numbers.

use std::collections::HashMap;
use std::path::Path;

use cantrip::canon::{LoomId, Timestamp};
use cantrip::loom::{AnyLoom, EntityView, Error, Loom, Page, Turn};
use cantrip::spell::Spell;
use cantrip::{loom_named, store_refusal};
use cantrip_reply::Refusal;
use serde::Serialize;

/// One loom.
#[derive(Debug, Serialize)]
pub(super) struct LoomRow {
    pub(super) loom_id: LoomId,
    /// The spell's, if it was found.
    pub(super) name: Option<String>,
    pub(super) entities: usize,
    pub(super) turns: usize,
    pub(super) last_activity: Option<Timestamp>,
}

pub(super) async fn looms(loom: &AnyLoom, here: &Path) -> Result<Vec<LoomRow>, Refusal> {
    let stored = |error: Error| store_refusal(&error);
    let names = names(here);
    let mut rows = Vec::new();
    for id in loom.looms().await.map_err(stored)? {
        let entities = entities(loom, id).await.map_err(stored)?;
        let turns = turns(loom, id).await.map_err(stored)?;
        let made = entities.iter().map(|entity| entity.at);
        let last_activity = turns.iter().map(|turn| turn.metadata.timestamp).chain(made).max();
        let name = names.get(&id).cloned();
        rows.push(LoomRow { loom_id: id, name, entities: entities.len(), turns: turns.len(), last_activity });
    }
    Ok(rows)
}

/// Every entity of a loom.
pub(super) async fn entities(loom: &AnyLoom, of: LoomId) -> Result<Vec<EntityView>, Error> {
    let (mut page, mut all) = (Page::FIRST, Vec::new());
    loop {
        let listed = loom.entities(of, page).await?;
        all.extend(listed.items);
        match listed.next {
            Some(after) => page.after = Some(after),
            None => return Ok(all),
        }
    }
}

/// Every closed turn of a loom.
pub(super) async fn turns(loom: &AnyLoom, of: LoomId) -> Result<Vec<Turn>, Error> {
    let (mut page, mut all) = (Page::FIRST, Vec::new());
    loop {
        let listed = loom.turns(of, page).await?;
        all.extend(listed.items);
        match listed.next {
            Some(after) => page.after = Some(after),
            None => return Ok(all),
        }
    }
}

/// What the spells that lie here call their looms. A file that is no spell names none.
fn names(here: &Path) -> HashMap<LoomId, String> {
    let folders = [here.to_owned(), here.join("spells")];
    let files = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    let spells = files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|ending| ending == "toml"));
    spells.filter_map(|path| Spell::open(&path).ok()).map(|spell| (loom_named(&spell.name), spell.name)).collect()
}
