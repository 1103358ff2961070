//! Which spell does an argument name, and how is it built?

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cantrip::Cantrip;
use cantrip::canon::Money;
use cantrip::circle::gate::{AnyGate, builtin};
use cantrip::circle::{Medium, MediumKind};
use cantrip::crystal::{Access, AnyCrystal, Hosted, ModelName, NameFault, Price, ScriptedCrystal};
use cantrip::loom::{AnyLoom, MemoryLoom};
use cantrip_medium_javascript::{Javascript, Options};
use cantrip_reply::{Refusal, codes};
use cantrip_spell::{BuildContext, Spell, default_spell};
use serde_json::{Value, json};
use url::Url;

use crate::python;
use cantrip_settings::addresses;
use cantrip_settings::config;
use cantrip_settings::endpoints;
use cantrip_settings::keys;
use cantrip_settings::models;
use cantrip_terminal::user::TerminalUser;

/// The budget of the built-in spell if its crystal has a price.
const BUDGET: &str = "1 USD";

/// The source of a spell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    File(PathBuf),
    /// The built-in spell for this folder and crystal; `budget` replaces the default budget.
    BuiltIn {
        folder: PathBuf,
        crystal: ModelName,
        budget: Option<Money>,
    },
}

impl Source {
    /// Reads the spell. `crystal` overrides the crystal of the spell.
    pub fn read(&self, crystal: Option<&str>) -> Result<Spell, Refusal> {
        match self {
            Self::File(path) => {
                let spell = Spell::open(path)?;
                match crystal {
                    Some(named) => Ok(spell.with_crystal(parse_crystal(named)?)),
                    None => Ok(spell),
                }
            }
            Self::BuiltIn { folder, crystal: settled, budget } => {
                let crystal = match crystal {
                    Some(named) => parse_crystal(named)?,
                    None => settled.clone(),
                };
                let mut spell = default_spell(folder, &crystal.to_string())?;
                // A crystal with a known price always gets a budget, even if the user names none.
                let priced = matches!(models::known()?.price(&crystal.to_string()), Price::Listed(_));
                if let (true, Value::Object(wards)) = (priced, &mut spell.wards) {
                    let budget = budget.map_or_else(|| BUDGET.to_owned(), |budget| budget.to_string());
                    wards.insert("max_cost".to_owned(), budget.into());
                }
                Ok(spell)
            }
        }
    }

    /// The built-in spell for the project that contains this folder.
    pub fn built_in(here: &Path, crystal: ModelName, budget: Option<Money>) -> Self {
        let root = here.ancestors().find(|folder| folder.join(".git").exists()).unwrap_or(here);
        Self::BuiltIn { folder: root.to_owned(), crystal, budget }
    }

    /// Returns the name of the source for messages.
    pub fn display_name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::BuiltIn { .. } => "the built-in spell".to_owned(),
        }
    }
}

pub fn parse_crystal(name: &str) -> Result<ModelName, Refusal> {
    name.parse().map_err(|fault: NameFault| codes::config_invalid("--crystal", name, fault.to_string()).into())
}

/// Finds a spell by its file, or by its name: in the current folder, in `./spells`, then in the user's own folder. A
/// file of that name comes before a spell that only declares the name, as a server would find it.
pub fn find(named: &str) -> Result<PathBuf, Refusal> {
    let ending = Path::new(named).extension();
    let is_name = !named.contains(|char: char| char.is_whitespace() || std::path::is_separator(char))
        && ending.is_none_or(|ending| ending != "toml")
        && !named.is_empty();
    let mut looked = vec![PathBuf::from(named)];
    if is_name {
        let folders = std::iter::once(PathBuf::new()).chain(folders_of(Path::new("")));
        looked.extend(folders.map(|folder| folder.join(format!("{named}.toml"))));
    }
    if let Some(found) = looked.iter().find(|file| file.is_file()) {
        return Ok(found.clone());
    }
    if is_name && let Some((found, _)) = around().into_iter().find(|(_, spell)| spell.name == named) {
        return Ok(found);
    }
    let new = if is_name && ending.is_none() { named } else { "hello" };
    let hint = format!("cantrip new {new}");
    let looked: Vec<String> = looked.iter().map(|file| file.display().to_string()).collect();
    Err(codes::not_found("spell", named).data(json!({ "hint": hint, "looked": looked })).into())
}

/// Returns the folders in which spells are looked up by name, besides the current one.
fn folders_of(here: &Path) -> Vec<PathBuf> {
    let own = config::own_folder().map(|own| own.join("spells"));
    [Some(here.join("spells")), own].into_iter().flatten().collect()
}

/// Returns every spell that can be found from the current folder without being named.
pub fn around() -> Vec<(PathBuf, Spell)> {
    around_of(Path::new(""))
}

/// Like [`around`], from another folder.
pub fn around_of(here: &Path) -> Vec<(PathBuf, Spell)> {
    let beside = if here.as_os_str().is_empty() { Path::new(".") } else { here };
    let folders = std::iter::once(beside.to_owned()).chain(folders_of(here));
    let files = folders.filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    let spells = files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|ending| ending == "toml"));
    // Ignore files that are not spells.
    let mut found: Vec<_> = spells.filter_map(|path| Spell::open(&path).ok().map(|spell| (path, spell))).collect();
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    found
}

/// Builds the cantrip of a spell without a store. Every fault of the spell is reported before a store is opened, so a
/// spell that cannot be cast leaves no folder behind.
pub fn build_nowhere(spell: &Spell) -> Result<Cantrip, Refusal> {
    build(spell, &AnyLoom::new(MemoryLoom::new()))
}

/// Builds the cantrip of a spell, to be cast into this loom.
pub fn build(spell: &Spell, loom: &AnyLoom) -> Result<Cantrip, Refusal> {
    build_asking(spell, loom, builtin::ask_human(TerminalUser))
}

/// Like [`build`], with another gate `ask_human` than the one for the terminal.
pub fn build_asking(spell: &Spell, loom: &AnyLoom, ask_human: AnyGate) -> Result<Cantrip, Refusal> {
    let around = BuildContext {
        crystals: Some(Arc::new(endpoint)),
        mediums: mediums(spell)?,
        ask_human: Some(ask_human),
        store: Some(loom.clone()),
        profiles: models::own()?,
        ..BuildContext::default()
    };
    Ok(spell.build(&around)?)
}

/// Returns the mediums that this spell and its children may need; the conversation medium is always available.
fn mediums(spell: &Spell) -> Result<Vec<Arc<dyn Medium>>, Refusal> {
    spell.mediums().into_iter().filter_map(|kind| medium(kind).transpose()).collect()
}

/// Starts the medium of this kind, if this process serves it.
pub fn medium(kind: MediumKind) -> Result<Option<Arc<dyn Medium>>, Refusal> {
    match kind {
        MediumKind::Javascript => {
            let medium = Javascript::start(Options::default())
                .map_err(|error| codes::sandbox_unavailable("javascript", error.to_string()))?;
            Ok(Some(Arc::new(medium)))
        }
        MediumKind::Python => Ok(Some(Arc::new(python::start()?))),
        // The build of the spell reports which of these are not available yet.
        MediumKind::Conversation | MediumKind::Shell | MediumKind::Browser | MediumKind::Human => Ok(None),
    }
}

/// Opens the crystal of this name outside of any spell.
pub fn crystal(name: &ModelName) -> Result<AnyCrystal, Refusal> {
    match name {
        ModelName::Scripted { file, script } => {
            let opened = ScriptedCrystal::open(Path::new(file), script.as_deref());
            let crystal = opened.map_err(|fault| Refusal::from(fault.to_reply()))?;
            Ok(AnyCrystal::new(match models::own()? {
                Some(profiles) => crystal.with_profiles(&profiles),
                None => crystal,
            }))
        }
        ModelName::Local { .. }
        | ModelName::Hosted { .. }
        | ModelName::Endpoint { .. }
        | ModelName::Replay { .. }
        | ModelName::Program { .. }
        | ModelName::Human => endpoint(name, None),
    }
}

/// Opens a crystal that is neither a script nor a program.
fn endpoint(name: &ModelName, base: Option<&Url>) -> Result<AnyCrystal, Refusal> {
    match name {
        ModelName::Local { model, url } => {
            let crystal = Hosted::compatible(model, url, None)
                .map_err(|fault| codes::config_invalid("crystal", name.to_string(), fault.to_string()))?;
            let crystal = crystal.with_profiles(&*models::known()?).on_assumed_window(models::window_assumed);
            Ok(AnyCrystal::new(if keys::whole_answers() { crystal.without_streaming() } else { crystal }))
        }
        ModelName::Hosted { provider, model } => {
            let mut access = Access { profiles: Some(models::known()?), ..keys::access(*provider)? };
            if let Some(base) = base {
                if access.key.is_some() {
                    addresses::check_key_address(*provider, base, access.base.as_ref())?;
                }
                access.base = Some(base.clone());
            }
            provider
                .model(model, &access)
                .map_err(|fault| codes::config_invalid("crystal", name.to_string(), fault.to_string()).into())
        }
        ModelName::Endpoint { endpoint, model } => {
            let (endpoint, access) = endpoints::access_endpoint(endpoint, &name.to_string())?;
            endpoint
                .model(model, &access)
                .map_err(|fault| codes::config_invalid("crystal", name.to_string(), fault.to_string()).into())
        }
        ModelName::Scripted { .. } | ModelName::Replay { .. } | ModelName::Program { .. } | ModelName::Human => {
            Err(codes::config_invalid(
                "crystal",
                name.to_string(),
                "it cannot be used here: use a provider's or an endpoint's model, local/<model>@<url>, scripted/ or \
                 program/",
            )
            .into())
        }
    }
}
