//! Which spell was an entity cast from?
//!
//! A loom records what a cantrip was, but not how to make it: gates and crystals are not data. So whoever casts notes
//! beside the loom which spell the cantrip came from, and whoever forks, replays or takes up finds it there, or among
//! the spells that lie around. Only the place is noted, never the text: a spell may hold what is nobody's business.
//! What was found is proved by its id: a spell that was edited since makes another cantrip, and says so.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cantrip::canon::EntityId;
use cantrip::loom::{AnyLoom, CantripId, EntityView, Loom, Origin, RootView, RunKind};
use cantrip::spell::Spell;
use cantrip::{Cantrip, Runtime, loom_id_for, store_refusal};
use cantrip_reply::{Refusal, codes};
use serde_json::{Value, json};

use crate::predict;
use crate::spells::{self, Source};
use crate::store::Store;

/// A cantrip that can be cast again, and the spell it came from.
pub(crate) struct SpellOrigin {
    pub(crate) source: Source,
    pub(crate) spell: Spell,
    pub(crate) cantrip: Cantrip,
    /// Whether it is the very cantrip that was asked for.
    pub(crate) same: bool,
}

/// What the caller says about it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SpellQuery<'a> {
    pub(crate) spell: Option<&'a str>,
    pub(crate) crystal: Option<&'a str>,
}

/// Notes where a cantrip came from. It is a convenience: a store that cannot be written to will say so itself.
pub(crate) fn note(store: &Store, cantrip: &Cantrip, source: &Source) {
    let Some(beside) = &store.beside else { return };
    let absolute = |path: &Path| {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        path.to_string_lossy().into_owned()
    };
    let noted = match source {
        Source::File(path) => json!({"spell": absolute(path)}),
        Source::BuiltIn { folder, crystal, budget } => {
            let budget = budget.map(|budget| budget.to_string());
            let (folder, crystal) = (absolute(folder), crystal.to_string());
            json!({"built_in": "default", "folder": folder, "crystal": crystal, "budget": budget})
        }
    };
    let place = place(beside, cantrip.id());
    if let Err(error) = write_note(&place, &noted) {
        tracing::warn!(place = %place.display(), %error, "where the cantrip came from could not be noted");
    }
}

/// Whole or not at all: another process may read it meanwhile.
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

/// The cantrip of an entity, or the nearest to it that can be found: `same` says which. That of a child is carved out of
/// that of whom it answered to.
pub(crate) async fn of_entity(store: &Store, entity: EntityId, wanted: SpellQuery<'_>) -> Result<SpellOrigin, Refusal> {
    let loom = &store.loom;
    let view = loom.entity(entity).await.map_err(|error| store_refusal(&error))?;
    let ancestor = ancestor(loom, &view).await?;
    // A record has the name of the crystal it was cast with, whatever its spell says today.
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
                    "a predict has a signature and no spell: cantrip predict asks it again, cantrip receipt \
                                     verify checks it"
                }
                RunKind::Cast | RunKind::Summon | RunKind::Job => {
                    "the spell is not where it was: name it with --spell FILE"
                }
            };
            Err(codes::not_found("spell", view.entity.cantrip_id.to_string()).data(json!({ "hint": hint })).into())
        }
    }
}

/// The same, where nothing but the very cantrip will do.
pub(crate) async fn exact_of_entity(
    store: &Store,
    entity: EntityId,
    wanted: SpellQuery<'_>,
) -> Result<SpellOrigin, Refusal> {
    let found = of_entity(store, entity, wanted).await?;
    if found.same {
        return Ok(found);
    }
    let made = store.loom.entity(entity).await.map_err(|error| store_refusal(&error))?.entity.cantrip_id;
    let (spell, now) = (found.source.display_name(), found.cantrip.id());
    let fault = format!("{entity} was cast from {made}, and {spell} makes {now}: it was changed since");
    let hint = format!("name the spell as it was with --spell FILE, or branch off: cantrip loom fork {entity} INTENT");
    Err(codes::contract_invalid(fault).data(json!({ "hint": hint })).into())
}

async fn build_origin(store: &Store, source: &Source, crystal: &str, of: &EntityView) -> Result<SpellOrigin, Refusal> {
    let spell = source.read(Some(crystal))?;
    let made = spells::build(&spell, &store.loom)?;
    // A fork may have a spell of its own, whoever it branched off from.
    let cantrip = if made.id() == of.entity.cantrip_id {
        made
    } else {
        let runtime = predict::with_predictor(&Runtime::new(store.loom.clone()), store);
        runtime.descendant(&made, of.entity.entity_id).await?
    };
    let same = cantrip.id() == of.entity.cantrip_id;
    Ok(SpellOrigin { source: source.clone(), spell, cantrip, same })
}

/// The one that was named; else those that were noted, then those around that are called alike.
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

/// The entity at the root of a thread.
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
    // What was imported as turns alone has no root.
    root.ok_or_else(|| {
        let hint = "it was imported without its journal, and cannot be cast again";
        codes::not_found("cantrip", id.to_string()).data(json!({ "hint": hint })).into()
    })
}
