//! The spells that a surface can cast by name: nearby spell files, looked up again at every request, and the built-in
//! spell.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use cantrip::canon::{Clock, EntityId};
use cantrip::circle::gate::builtin::{self, AskError, Human, Question};
use cantrip::circle::gate::{AnyGate, Identity};
use cantrip::crystal::ModelName;
use cantrip::loom::{CantripId, Loom};
use cantrip::{Cantrip, MachineClock, store_refusal};
use cantrip_ds::Predictor;
use cantrip_reply::{Refusal, codes};
use cantrip_service::{GateRoots, Service, SpellCatalog, SpellFile, SpellSummary};
use cantrip_spell::Spell;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use crate::model_list;
use crate::origin::{self, SpellQuery};
use crate::predictor;
use crate::spells::{self, Source};
use crate::store::Store;
use cantrip_settings::{choice, current_folder};

/// The built cantrips by file, each with the modification time of its file and the day of its prices.
type Built = HashMap<PathBuf, ((Option<SystemTime>, String), Cantrip)>;

/// The spells near a folder. A spell that is cast twice is built once, unless its file has changed. An entity is
/// resumed with the same cantrip value that it was cast with, if this process built it.
#[derive(Clone)]
pub struct FileSpellCatalog {
    store: Arc<Store>,
    here: PathBuf,
    /// The gate `ask_human` for the built cantrips.
    asks: AnyGate,
    /// The spell that is listed first.
    first: Option<String>,
    built: Arc<Mutex<Built>>,
    made: Arc<Mutex<HashMap<CantripId, Cantrip>>>,
}

impl std::fmt::Debug for FileSpellCatalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileSpellCatalog").field("here", &self.here).finish_non_exhaustive()
    }
}

/// The human of a surface on which no person can be asked.
struct NoHuman;

impl Human for NoHuman {
    async fn ask(&self, _: Option<&Identity>, _: Question) -> Result<String, AskError> {
        let reason = "no person can be asked where it was cast".to_owned();
        Err(AskError::Refused { actor: "nobody".to_owned(), reason })
    }
}

impl FileSpellCatalog {
    /// A catalog for the current folder, without a person to ask.
    pub fn new(store: Arc<Store>) -> Result<Self, Refusal> {
        let here = current_folder()?;
        let asks = builtin::ask_human(NoHuman);
        Ok(Self { store, here, asks, first: None, built: Arc::default(), made: Arc::default() })
    }

    /// Returns the catalog with a person to ask.
    pub fn with_human(self, human: impl Human) -> Self {
        Self { asks: builtin::ask_human(human), ..self }
    }

    /// Returns the catalog with this spell listed first.
    pub fn with_first_spell(self, first: Option<String>) -> Self {
        Self { first, ..self }
    }

    /// Returns the catalog for another folder.
    pub fn for_folder(&self, here: &Path) -> Self {
        Self { here: here.to_owned(), ..self.clone() }
    }

    fn load_file(&self, path: PathBuf) -> Result<Cantrip, Refusal> {
        let modified = std::fs::metadata(&path).and_then(|found| found.modified()).ok();
        let changed = (modified, MachineClock::new().now().wall.day());
        let known = self.built.lock().unwrap_or_else(PoisonError::into_inner).get(&path).cloned();
        if let Some((at, cantrip)) = known
            && at == changed
        {
            return Ok(cantrip);
        }
        let cantrip = self.build_and_note(&Source::File(path.clone()))?;
        self.built.lock().unwrap_or_else(PoisonError::into_inner).insert(path, (changed, cantrip.clone()));
        Ok(cantrip)
    }

    /// Builds a spell with a scripted crystal again for every cast, because a script is played only once.
    fn rebuild_file(&self, path: PathBuf) -> Result<Cantrip, Refusal> {
        let source = Source::File(path);
        let cantrip = spells::build_asking(&source.read(None)?, &self.store.loom, self.asks.clone())?;
        origin::note(&self.store, &cantrip, &source);
        self.made.lock().unwrap_or_else(PoisonError::into_inner).insert(cantrip.id(), cantrip.clone());
        Ok(cantrip)
    }

    async fn built_in(&self) -> Result<Cantrip, Refusal> {
        let crystal = choice::crystal(&self.here, choice::Who::Cast).await?;
        self.build_and_note(&Source::built_in(&self.here, crystal, None))
    }

    fn build_and_note(&self, source: &Source) -> Result<Cantrip, Refusal> {
        let cantrip = spells::build_asking(&source.read(None)?, &self.store.loom, self.asks.clone())?;
        origin::note(&self.store, &cantrip, source);
        Ok(self.intern(cantrip))
    }

    /// Returns the cantrip with the same id that was built first, if there is one with the same price. A price changes
    /// when a promotion of its model ends.
    fn intern(&self, cantrip: Cantrip) -> Cantrip {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        match made.get(&cantrip.id()) {
            Some(known) if known.price() == cantrip.price() => known.clone(),
            Some(_) | None => {
                made.insert(cantrip.id(), cantrip.clone());
                cantrip
            }
        }
    }

    async fn cantrip_for_entity(&self, entity: EntityId) -> Result<Cantrip, Refusal> {
        let view = self.store.loom.entity(entity).await.map_err(|error| store_refusal(&error))?;
        let id = view.entity.cantrip_id;
        if let Some(made) = self.made.lock().unwrap_or_else(PoisonError::into_inner).get(&id) {
            return Ok(made.clone());
        }
        let found = origin::exact_of_entity(&self.store, entity, SpellQuery::default()).await?;
        // The found cantrip asks at the terminal. Build it again to ask through this catalog, unless it is derived from
        // another.
        let asking = spells::build_asking(&found.spell, &self.store.loom, self.asks.clone())?;
        let asking = origin::with_recorded_answer(&self.store.loom, asking, &view).await;
        Ok(self.intern(if asking.id() == id { asking } else { found.cantrip }))
    }

    /// Returns the file of a nearby spell.
    fn file_of(&self, spell: &str) -> Result<SpellFile, Refusal> {
        let Some((path, _)) = self.available_spells().into_iter().find(|(_, known)| known.name == spell) else {
            let hint = if spell == BUILT_IN {
                "the built-in spell has no file: cantrip new writes one that can be changed"
            } else {
                "its file is not near this folder any more: go to the folder in which it was compiled"
            };
            return Err(codes::not_found("file", spell).data(json!({ "hint": hint })).into());
        };
        let label = path.strip_prefix(&self.here).unwrap_or(&path).display().to_string();
        let text = read_spell_text(&path)?;
        Ok(SpellFile { path, label: label.trim_start_matches('/').to_owned(), text })
    }

    /// Returns the nearby spells, the first of each name.
    fn available_spells(&self) -> Vec<(PathBuf, Spell)> {
        let mut offered: Vec<(PathBuf, Spell)> = Vec::new();
        for (path, spell) in spells::around_of(&self.here) {
            if !offered.iter().any(|(_, known)| known.name == spell.name) {
                offered.push((path, spell));
            }
        }
        offered.sort_by(|(_, one), (_, other)| one.name.cmp(&other.name));
        offered
    }
}

/// The name of the built-in spell; a file with the same name replaces it.
pub const BUILT_IN: &str = "default";

impl SpellCatalog for FileSpellCatalog {
    fn spells(&self) -> Vec<SpellSummary> {
        let card = |(_, spell): (PathBuf, Spell)| {
            let (crystal, medium) = (spell.crystal.to_string(), spell.medium.to_string());
            SpellSummary { name: spell.name, crystal, medium, about: String::new() }
        };
        let mut cards: Vec<SpellSummary> = self.available_spells().into_iter().map(card).collect();
        if !cards.iter().any(|card| card.name == BUILT_IN) {
            let crystal = "the first one with a key".to_owned();
            let about = "reads this project, and writes with a person's approval".to_owned();
            let (name, medium) = (BUILT_IN.to_owned(), "javascript".to_owned());
            cards.push(SpellSummary { name, crystal, medium, about });
        }
        if let Some(at) = cards.iter().position(|card| Some(&card.name) == self.first.as_ref()) {
            cards[..=at].rotate_right(1);
        }
        cards
    }

    fn cantrip<'a>(&'a self, spell: &'a str) -> BoxFuture<'a, Result<Cantrip, Refusal>> {
        async move {
            match self.available_spells().into_iter().find(|(_, known)| known.name == spell) {
                Some((path, spell)) if matches!(spell.crystal, ModelName::Scripted { .. }) => self.rebuild_file(path),
                Some((path, _)) => self.load_file(path),
                None if spell == BUILT_IN => self.built_in().await,
                None => {
                    let hint = "put its file into ./spells of the folder in which the server was started";
                    Err(codes::not_found("spell", spell).data(json!({ "hint": hint })).into())
                }
            }
        }
        .boxed()
    }

    fn crystals(&self) -> Result<Value, Refusal> {
        model_list::list_json()
    }

    fn cantrip_of_entity(&self, entity: EntityId) -> BoxFuture<'_, Result<Cantrip, Refusal>> {
        self.cantrip_for_entity(entity).boxed()
    }

    fn read_spell<'a>(&'a self, spell: &'a str) -> BoxFuture<'a, Result<Spell, Refusal>> {
        async move {
            match self.available_spells().into_iter().find(|(_, known)| known.name == spell) {
                Some((_, found)) => Ok(found),
                None if spell == BUILT_IN => {
                    let crystal = choice::crystal(&self.here, choice::Who::Cast).await?;
                    Source::built_in(&self.here, crystal, None).read(None)
                }
                None => Err(codes::not_found("spell", spell).into()),
            }
        }
        .boxed()
    }

    fn build_spell<'a>(&'a self, spell: &'a Spell) -> BoxFuture<'a, Result<Cantrip, Refusal>> {
        async move { spells::build_asking(spell, &self.store.loom, builtin::ask_human(NoHuman)) }.boxed()
    }

    fn spell_file<'a>(&'a self, spell: &'a str) -> BoxFuture<'a, Result<SpellFile, Refusal>> {
        async move { self.file_of(spell) }.boxed()
    }

    fn replace_spell<'a>(
        &'a self,
        path: &'a Path,
        before: &'a str,
        text: &'a str,
    ) -> BoxFuture<'a, Result<(), Refusal>> {
        async move { replace_text_of(path, before, text) }.boxed()
    }

    fn roots(&self, spell: &str) -> Vec<(String, PathBuf)> {
        let found = self.available_spells().into_iter().find(|(_, known)| known.name == spell);
        match found {
            Some((_, spell)) => GateRoots::from_spell(&spell).all().collect(),
            None => {
                let Source::BuiltIn { folder, .. } = Source::built_in(&self.here, ModelName::Human, None) else {
                    return Vec::new();
                };
                ["read", "list", "search", "write", "edit"].map(|gate| (gate.to_owned(), folder.clone())).into()
            }
        }
    }

    fn predictor<'a>(&'a self, service: &'a Service) -> BoxFuture<'a, Result<Predictor, Refusal>> {
        async move {
            let unless = choice::crystal(&self.here, choice::Who::Predict).await;
            Ok(service.predictor(predictor::crystals(Some(unless)), predictor::traces(&self.store)?))
        }
        .boxed()
    }
}

fn read_spell_text(path: &Path) -> Result<String, Refusal> {
    fs::read_to_string(path)
        .map_err(|error| codes::io_failed("read", path.display().to_string(), error.to_string()).into())
}

/// Replaces the text of a file, if it still is `before`.
fn replace_text_of(path: &Path, before: &str, text: &str) -> Result<(), Refusal> {
    let shown = path.display().to_string();
    if read_spell_text(path)? != before {
        return Err(codes::wrong_state("file", shown, "changed", "a patch", "the text that it was made from").into());
    }
    replace_text(path, text).map_err(|error| codes::io_failed("write", shown, error.to_string()).into())
}

/// Replaces a file at once, so that nobody reads a part of it. Its permissions stay, and a link stays a link.
fn replace_text(path: &Path, text: &str) -> io::Result<()> {
    let place = path.canonicalize()?;
    let mut file = tempfile::NamedTempFile::new_in(place.parent().unwrap_or(Path::new(".")))?;
    file.write_all(text.as_bytes())?;
    file.as_file().set_permissions(fs::metadata(&place)?.permissions())?;
    file.as_file().sync_all()?;
    file.persist(place)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_spell_is_replaced_only_if_it_is_unchanged_and_keeps_its_permissions_and_links() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("a.toml"), folder.path().join("b.toml"));
        fs::write(&file, "one").expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("permissions");
        symlink("a.toml", &link).expect("a link");
        assert!(replace_text_of(&link, "one", "two").is_ok());
        assert_eq!(fs::read_to_string(&file).expect("a file"), "two");
        assert_eq!(fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&link).expect("a link").is_symlink());
        // Somebody else has changed it since the first text was read.
        assert!(replace_text_of(&link, "one", "three").is_err());
        assert!(replace_text_of(&folder.path().join("c.toml"), "", "three").is_err());
        assert_eq!(fs::read_to_string(&file).expect("a file"), "two");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2, "nothing else is left");
    }
}
