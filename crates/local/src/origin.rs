//! Which spell was an entity cast from?
//!
//! A loom records a cantrip, but not how to build it: gates and crystals are not data. So a cast saves a note beside
//! the loom about the spell of its cantrip. A fork, a replay or a resume finds the spell by this note, or among nearby
//! spells. Only the path is noted, never the text, because a spell may hold private content. The cantrip's id proves
//! that the right spell was found: a spell that was edited since builds another cantrip, and the refusal says so.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cantrip::canon::EntityId;
use cantrip::loom::{AnyLoom, CantripId, EntityView, Loom, Origin, RootView, RunKind};
use cantrip::{Cantrip, Runtime, loom_id_for, store_refusal};
use cantrip_reply::{Refusal, codes};
use cantrip_spell::Spell;
use serde_json::{Value, json};

use crate::predictor::with_predictor;
use crate::spells::{self, Source};
use crate::store::Store;

/// A cantrip that can be cast again, and its spell.
pub struct SpellOrigin {
    pub source: Source,
    pub spell: Spell,
    pub cantrip: Cantrip,
    /// True if this is exactly the cantrip of the entity.
    pub same: bool,
}

impl std::fmt::Debug for SpellOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpellOrigin").field("source", &self.source).finish_non_exhaustive()
    }
}

/// The spell and the crystal that the caller names.
#[derive(Debug, Clone, Copy, Default)]
pub struct SpellQuery<'a> {
    pub spell: Option<&'a str>,
    pub crystal: Option<&'a str>,
}

/// Saves a note about the spell of a cantrip. A failure is only logged, because the note is a convenience: a store that
/// cannot be written reports that itself.
pub fn note(store: &Store, cantrip: &Cantrip, source: &Source) {
    let Some(beside) = &store.beside else { return };
    let absolute = |path: &Path| {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        path.to_string_lossy().into_owned()
    };
    let noted = match source {
        Source::File(path) => json!({"spell": absolute(path), "name": cantrip.name()}),
        Source::BuiltIn { folder, crystal, budget } => {
            let budget = budget.map(|budget| budget.to_string());
            let (folder, crystal) = (absolute(folder), crystal.to_string());
            let name = cantrip.name();
            json!({"built_in": "default", "folder": folder, "crystal": crystal, "budget": budget, "name": name})
        }
    };
    let place = place(beside, cantrip.id());
    if let Err(error) = write_note(&place, &noted) {
        tracing::warn!(place = %place.display(), %error, "the path of the spell could not be stored beside the loom");
    }
}

/// Writes the note atomically, because another process may read it at the same time.
fn write_note(place: &Path, noted: &Value) -> io::Result<()> {
    let folder = place.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    io::Write::write_all(&mut file, noted.to_string().as_bytes())?;
    file.persist(place)?;
    Ok(())
}

fn place(beside: &Path, cantrip: CantripId) -> PathBuf {
    beside.join("origins").join(format!("{cantrip}.json"))
}

fn read_note(store: &Store, cantrip: CantripId) -> Option<Source> {
    let text = fs::read_to_string(place(store.beside.as_ref()?, cantrip)).ok()?;
    let noted: Value = serde_json::from_str(&text).ok()?;
    if let Some(path) = noted.get("spell").and_then(Value::as_str) {
        return Some(Source::File(PathBuf::from(path)));
    }
    let text = |key: &str| noted.get(key).and_then(Value::as_str);
    let (folder, crystal) = (PathBuf::from(text("folder")?), text("crystal")?.parse().ok()?);
    let budget = text("budget").and_then(|budget| budget.parse().ok());
    Some(Source::BuiltIn { folder, crystal, budget })
}

/// Returns the name of the spell that a cantrip was cast from, as noted beside the store. A note of an earlier version
/// has no name; then the spell is read.
pub fn noted_name(store: &Store, cantrip: CantripId) -> Option<String> {
    let text = fs::read_to_string(place(store.beside.as_ref()?, cantrip)).ok()?;
    let noted: Value = serde_json::from_str(&text).ok()?;
    if let Some(name) = noted.get("name").and_then(Value::as_str) {
        return Some(name.to_owned());
    }
    let path = noted.get("spell").and_then(Value::as_str)?;
    Spell::open(Path::new(path)).ok().map(|spell| spell.name)
}

/// Returns the cantrip of an entity, or the nearest match; `same` says which. The cantrip of a child is derived from
/// its parent's.
pub async fn of_entity(store: &Store, entity: EntityId, wanted: SpellQuery<'_>) -> Result<SpellOrigin, Refusal> {
    let loom = &store.loom;
    let view = loom.entity(entity).await.map_err(|error| store_refusal(&error))?;
    let ancestor = ancestor(loom, &view).await?;
    // Use the recorded crystal, because the spell may name another one today.
    let mut crystals = match wanted.crystal {
        Some(crystal) => vec![crystal.to_owned()],
        None => vec![root(loom, &view).await?.cantrip.crystal, root(loom, &ancestor).await?.cantrip.crystal],
    };
    crystals.dedup();
    let (mut near, mut refusal) = (None, None);
    for source in candidates(store, &view, &ancestor, wanted.spell)? {
        for crystal in &crystals {
            match build_origin(store, &source, crystal, &view).await {
                Ok(found) if found.same => return Ok(found),
                Ok(found) => near = near.or(Some(found)),
                Err(fault) => refusal = refusal.or(Some(fault)),
            }
        }
    }
    match (near, refusal) {
        (Some(near), _) => Ok(near),
        (None, Some(refusal)) => Err(refusal),
        (None, None) => {
            let run = loom.run(ancestor.run_id).await.map_err(|error| store_refusal(&error))?;
            let hint = match run.kind {
                RunKind::Predict => {
                    "a predict has no spell: cantrip predict runs it again, cantrip receipt verify verifies it"
                }
                RunKind::Cast | RunKind::Summon | RunKind::Job => {
                    "the spell was not found where it was: name it with --spell FILE"
                }
            };
            Err(codes::not_found("spell", view.entity.cantrip_id.to_string()).data(json!({ "hint": hint })).into())
        }
    }
}

/// Like [`of_entity`], but refuses if the cantrip is not exactly that of the entity.
pub async fn exact_of_entity(store: &Store, entity: EntityId, wanted: SpellQuery<'_>) -> Result<SpellOrigin, Refusal> {
    let found = of_entity(store, entity, wanted).await?;
    if found.same {
        return Ok(found);
    }
    let made = store.loom.entity(entity).await.map_err(|error| store_refusal(&error))?.entity.cantrip_id;
    let (spell, now) = (found.source.display_name(), found.cantrip.id());
    let fault = format!("{entity} was cast from {made}, and {spell} makes {now}: it was changed since");
    let hint =
        format!("name the earlier version with --spell FILE, or create a fork: cantrip loom fork {entity} INTENT");
    Err(codes::contract_invalid(fault).data(json!({ "hint": hint })).into())
}

async fn build_origin(store: &Store, source: &Source, crystal: &str, of: &EntityView) -> Result<SpellOrigin, Refusal> {
    let spell = source.read(Some(crystal))?;
    let made = spells::build(&spell, &store.loom)?;
    let made = with_recorded_answer(&store.loom, made, of).await;
    // The entity may be a fork that was cast from a spell of its own.
    let cantrip = if made.id() == of.entity.cantrip_id {
        made
    } else {
        let runtime = with_predictor(&Runtime::new(store.loom.clone()), store);
        runtime.descendant(&made, of.entity.entity_id).await?
    };
    let same = cantrip.id() == of.entity.cantrip_id;
    Ok(SpellOrigin { source: source.clone(), spell, cantrip, same })
}

/// Returns the cantrip with the answer schema on record, if that is the cantrip of the entity: the caller of a cast may
/// have asked for an answer of a type that the spell does not name.
pub async fn with_recorded_answer(loom: &AnyLoom, made: Cantrip, of: &EntityView) -> Cantrip {
    let id = of.entity.cantrip_id;
    if made.id() == id || made.circle().answer_schema().is_some() {
        return made;
    }
    let Ok(root) = root(loom, of).await else { return made };
    let recorded = root.cantrip.circle.get("answer_schema").filter(|schema| !schema.is_null()).cloned();
    let typed = recorded.and_then(|schema| made.with_answer_schema(schema).ok());
    typed.filter(|typed| typed.id() == id).unwrap_or(made)
}

/// Returns the named spell; else the noted spells, then nearby spells of the same name.
fn candidates(
    store: &Store,
    entity: &EntityView,
    ancestor: &EntityView,
    named: Option<&str>,
) -> Result<Vec<Source>, Refusal> {
    if let Some(named) = named {
        return Ok(vec![Source::File(spells::find(named)?)]);
    }
    let alike = spells::around().into_iter().filter(|(_, spell)| loom_id_for(&spell.name) == entity.loom_id);
    let alike = alike.map(|(path, _)| Source::File(path));
    let noted = [entity, ancestor].into_iter().filter_map(|view| read_note(store, view.entity.cantrip_id));
    let noted = noted.filter(|source| match source {
        Source::File(path) => path.is_file(),
        Source::BuiltIn { folder, .. } => folder.is_dir(),
    });
    let mut all: Vec<Source> = Vec::new();
    for source in noted.chain(alike) {
        if !all.contains(&source) {
            all.push(source);
        }
    }
    Ok(all)
}

/// Returns the entity at the root of the thread.
async fn ancestor(loom: &AnyLoom, entity: &EntityView) -> Result<EntityView, Refusal> {
    let mut view = entity.clone();
    loop {
        let above = match view.entity.origin {
            Origin::Root => return Ok(view),
            Origin::Child { parent, .. } => parent,
            Origin::Fork(fork) => fork.turn,
        };
        let above = loom.turn(above).await.map_err(|error| store_refusal(&error))?.entity_id;
        view = loom.entity(above).await.map_err(|error| store_refusal(&error))?;
    }
}

async fn root(loom: &AnyLoom, entity: &EntityView) -> Result<RootView, Refusal> {
    let roots = loom.roots(entity.loom_id).await.map_err(|error| store_refusal(&error))?;
    let id = entity.entity.cantrip_id;
    let root = roots.into_iter().find(|root| root.cantrip_id == id);
    // An entity that was imported as turns only has no root.
    root.ok_or_else(|| {
        let hint = "it was imported without its journal, and cannot be cast again";
        codes::not_found("cantrip", id.to_string()).data(json!({ "hint": hint })).into()
    })
}
