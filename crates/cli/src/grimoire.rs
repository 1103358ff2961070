//! The spells that can be cast by name from outside: those that lie around, found again at every look, and the built-in one.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use cantrip::Cantrip;
use cantrip::canon::EntityId;
use cantrip::spell::Spell;
use cantrip_reply::{Refusal, codes};
use cantrip_serve::{Card, Grimoire};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::json;

use crate::choice;
use crate::origin::{self, Wanted};
use crate::spells::{self, Source};
use crate::store::Store;

/// What the files around this process offer. A spell that is cast twice is built once, unless its file has changed.
pub(crate) struct Shelf {
    store: Arc<Store>,
    built: Mutex<HashMap<PathBuf, (Option<SystemTime>, Cantrip)>>,
}

impl Shelf {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        Self { store, built: Mutex::default() }
    }

    fn made(&self, path: PathBuf) -> Result<Cantrip, Refusal> {
        let changed = std::fs::metadata(&path).and_then(|found| found.modified()).ok();
        let known = self.built.lock().unwrap_or_else(PoisonError::into_inner).get(&path).cloned();
        if let Some((at, cantrip)) = known
            && at == changed
        {
            return Ok(cantrip);
        }
        let cantrip = self.noted(&Source::File(path.clone()))?;
        self.built.lock().unwrap_or_else(PoisonError::into_inner).insert(path, (changed, cantrip.clone()));
        Ok(cantrip)
    }

    async fn built_in(&self) -> Result<Cantrip, Refusal> {
        let here = std::env::current_dir().map_err(|error| codes::io_failed("find", ".", error.to_string()))?;
        let crystal = choice::crystal(&here, choice::Who::Cast).await?;
        self.noted(&Source::built_in(&here, crystal, None))
    }

    fn noted(&self, source: &Source) -> Result<Cantrip, Refusal> {
        let cantrip = spells::build(&source.read(None)?, &self.store.loom)?;
        origin::note(&self.store, &cantrip, source);
        Ok(cantrip)
    }
}

/// The name of the built-in spell, unless a file has taken it.
const BUILT_IN: &str = "default";

/// The spells around, the first of each name.
fn offered() -> Vec<(PathBuf, Spell)> {
    let mut offered: Vec<(PathBuf, Spell)> = Vec::new();
    for (path, spell) in spells::around() {
        if !offered.iter().any(|(_, known)| known.name == spell.name) {
            offered.push((path, spell));
        }
    }
    offered.sort_by(|(_, one), (_, other)| one.name.cmp(&other.name));
    offered
}

impl Grimoire for Shelf {
    fn spells(&self) -> Vec<Card> {
        let card = |(_, spell): (PathBuf, Spell)| {
            let (crystal, medium) = (spell.crystal.to_string(), spell.medium.to_string());
            Card { name: spell.name, crystal, medium, about: String::new() }
        };
        let mut cards: Vec<Card> = offered().into_iter().map(card).collect();
        if !cards.iter().any(|card| card.name == BUILT_IN) {
            let crystal = "the one whose key is found".to_owned();
            let about = "reads this project, and writes where a person allows it".to_owned();
            let (name, medium) = (BUILT_IN.to_owned(), "javascript".to_owned());
            cards.push(Card { name, crystal, medium, about });
        }
        cards
    }

    fn cantrip<'a>(&'a self, spell: &'a str) -> BoxFuture<'a, Result<Cantrip, Refusal>> {
        async move {
            match offered().into_iter().find(|(_, known)| known.name == spell) {
                Some((path, _)) => self.made(path),
                None if spell == BUILT_IN => self.built_in().await,
                None => {
                    let hint = "put its file into ./spells where the server was started";
                    Err(codes::not_found("spell", spell).data(json!({ "hint": hint })).into())
                }
            }
        }
        .boxed()
    }

    fn of_entity(&self, entity: EntityId) -> BoxFuture<'_, Result<Cantrip, Refusal>> {
        async move { Ok(origin::exactly(&self.store, entity, Wanted::default()).await?.cantrip) }.boxed()
    }
}
