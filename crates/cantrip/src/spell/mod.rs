//! Spells: a cantrip as a file.
//!
//! A spell is read in two steps. [`Spell::read`] takes the text and opens nothing: every key it does not know and every
//! value of the wrong kind is told, with its line and how to mend it. [`Spell::build`] then opens what the spell names
//! (roots, scripts, schemas) and makes the [`Cantrip`](crate::Cantrip). What the loader adds (`done`, a limit of turns, the `loom` gate
//! where an ephemeral one needs it) is part of the value between the two, so [`Spell::resolved`] shows what will be cast
//! and not what was written.
//!
//! ```
//! use cantrip::spell::Spell;
//!
//! let spell = Spell::read("name = 'count'\ncrystal = 'scripted/count.yaml'\n[gates.raed]\n", "count.toml", ".");
//! let fault = spell.unwrap_err().to_string();
//! assert!(fault.contains("line 3") && fault.contains("did you mean read?"), "{fault}");
//! ```

mod build;
mod endpoint;
mod gates;
mod new_spell;
mod own_thread;
mod protected_files;
mod read;
mod schema;
mod server;
mod settlement;
mod shell;
mod toml_tree;
mod verifier;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cantrip_circle::{AnyGate, Medium, MediumKind};
use cantrip_crystal::{AnyCrystal, ModelName, ProfileRow, RetryPolicy};
use cantrip_loom::AnyLoom;
use cantrip_reply::{Invalid, Refusal, ReplyDraft, codes};
use serde_json::{Value, json};
use url::Url;

pub use endpoint::EndpointSpell;
pub use gates::{GateKind, GateSpell, InlineOrFile};
pub use new_spell::{DEFAULT, NewFile, default_spell, new_spell_files};
pub use own_thread::OwnThreadReader;
pub use schema::schema;
pub use server::{ServerLocation, ServerSpell};
pub use settlement::SettlementSpell;
pub use shell::ShellSpell;
pub use verifier::CommandVerifier;

use crate::fold::FoldOptions;
use crate::limits::SPELL_BYTES_MAX;
use crate::{Call, cantrip};
use toml_tree::{Issues, Table};

/// One thing that is wrong with a spell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issue {
    /// Counted from 1; 0 for the whole.
    pub line: usize,
    /// The dotted key.
    pub key: String,
    /// What is wrong, and how it is mended.
    pub rule: String,
}

impl fmt::Display for Issue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.rule),
            line => write!(f, "line {line}: {}", self.rule),
        }
    }
}

/// What a spell cannot be made of.
#[derive(Debug)]
pub(crate) enum Fault {
    /// It is no TOML.
    Text { position: String, detail: String },
    /// In the order of the text.
    Issues(Vec<Issue>),
    /// The cantrip it describes cannot be.
    Cantrip(cantrip::CantripFaults),
    /// What it names answered so.
    Refused(Refusal),
}

/// Why a spell cannot be cast.
#[derive(Debug, thiserror::Error)]
pub struct SpellFault {
    file: String,
    fault: Fault,
}

impl fmt::Display for SpellFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = &self.file;
        match &self.fault {
            Fault::Text { position, detail } => write!(f, "{file} cannot be parsed at {position}: {detail}"),
            Fault::Issues(issues) => {
                let lines: Vec<_> = issues.iter().map(|issue| format!("{file}: {}: {issue}", issue.key)).collect();
                f.write_str(&lines.join("\n"))
            }
            Fault::Cantrip(faults) => write!(f, "{file}: {faults}"),
            Fault::Refused(refusal) => write!(f, "{file}: {}", refusal.code()),
        }
    }
}

impl SpellFault {
    /// Everything that was found, in the order of the text; empty if it is no TOML or its cantrip cannot be.
    pub fn issues(&self) -> &[Issue] {
        match &self.fault {
            Fault::Issues(issues) => issues,
            Fault::Text { .. } | Fault::Cantrip(_) | Fault::Refused(_) => &[],
        }
    }

    fn filled(file: &str, issues: &[Issue]) -> ReplyDraft<Invalid> {
        let (key, rule) = match issues.first() {
            Some(issue) => (issue.key.clone(), issue.to_string()),
            None => (String::new(), "it cannot be used".to_owned()),
        };
        let all: Vec<Value> =
            issues.iter().map(|Issue { line, key, rule }| json!({"line": line, "key": key, "rule": rule})).collect();
        codes::config_invalid(file, key, rule).data(json!({ "issues": all }))
    }
}

impl From<SpellFault> for Refusal {
    fn from(SpellFault { file, fault }: SpellFault) -> Self {
        match fault {
            Fault::Text { position, detail } => codes::unparsable(format!("spell {file}"), position, detail).into(),
            Fault::Issues(issues) => SpellFault::filled(&file, &issues).into(),
            Fault::Cantrip(faults) => faults.into(),
            Fault::Refused(refusal) => refusal,
        }
    }
}

/// Makes crystals that need more than a file: a provider's, at another address where the spell names one, or a recorded
/// thread's.
pub type Crystals = Arc<dyn Fn(&ModelName, Option<&Url>) -> Result<AnyCrystal, Refusal> + Send + Sync>;

/// What a spell cannot bring along: whoever casts it gives these.
#[derive(Clone, Default)]
pub struct BuildContext {
    /// Crystals other than scripts and programs.
    pub crystals: Option<Crystals>,
    /// What runs mediums other than the conversation.
    pub mediums: Vec<Arc<dyn Medium>>,
    /// The gate that asks the person who is there.
    pub ask_human: Option<AnyGate>,
    /// The gate that reads the own thread; made over `store` where none is given.
    pub loom: Option<AnyGate>,
    /// Where casts are woven.
    pub store: Option<AnyLoom>,
}

impl fmt::Debug for BuildContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BuildContext").finish_non_exhaustive()
    }
}

/// A spell as it will be cast: read, checked, and completed by the loader.
#[derive(Debug, Clone)]
pub struct Spell {
    /// Its loom.
    pub name: String,
    /// As messages name it.
    pub file: String,
    /// Relative paths begin here.
    pub folder: PathBuf,
    pub crystal: ModelName,
    /// Who is asked in the same turn where it stays down, in this order.
    pub fallback: Vec<ModelName>,
    /// Where its provider is reached instead of at home.
    pub base_url: Option<Url>,
    /// What the spell knows better about it than the table of models.
    pub profile: ProfileRow,
    pub medium: MediumKind,
    pub call: Call,
    /// Files whose text follows the system prompt, those that exist.
    pub prompt_files: Vec<String>,
    /// In declared order.
    pub gates: Vec<GateSpell>,
    /// As they are written, with what the loader added.
    pub wards: Value,
    pub folding: FoldOptions,
    /// Who writes folds; the crystal itself unless given.
    pub folding_crystal: Option<ModelName>,
    pub retry: RetryPolicy,
    pub park: bool,
    pub fenced: bool,
    pub answer_schema: Option<InlineOrFile>,
    pub verify: Option<VerifySpell>,
}

/// The program that looks at answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifySpell {
    /// With its arguments.
    pub command: Vec<String>,
    /// How long it may look at one answer.
    pub timeout: Option<Duration>,
}

impl Spell {
    /// The mediums that it and its children may act in.
    pub fn mediums(&self) -> BTreeSet<MediumKind> {
        let of_children = self.gates.iter().flat_map(|gate| match &gate.kind {
            GateKind::Delegation { mediums, .. } => mediums.iter().copied().collect(),
            GateKind::Plain
            | GateKind::Predict { .. }
            | GateKind::Files { .. }
            | GateKind::Fetch { .. }
            | GateKind::Command { .. }
            | GateKind::Endpoint(_)
            | GateKind::Server(_)
            | GateKind::Shell(_) => Vec::new(),
        });
        of_children.chain([self.medium]).collect()
    }

    /// Returns the gates that count as risky because their tables have no labels; none where the spell allows the three
    /// labels together.
    pub fn unlabelled_gates(&self) -> Vec<&str> {
        if self.wards.get("allow_trifecta").is_some_and(|reason| !reason.is_null()) {
            return Vec::new();
        }
        self.gates.iter().filter(|gate| gate.is_unlabelled()).map(|gate| gate.name.as_str()).collect()
    }

    /// The same spell with another crystal. What it knows about its own holds for no other.
    #[must_use]
    pub fn with_crystal(self, crystal: ModelName) -> Self {
        if crystal == self.crystal {
            return self;
        }
        Self { crystal, fallback: Vec::new(), base_url: None, profile: ProfileRow::default(), ..self }
    }

    /// Reads a spell's file.
    pub fn open(path: &Path) -> Result<Self, SpellFault> {
        let file =
            path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let text = read_text(path).map_err(|rule| SpellFault {
            file: file.clone(),
            fault: Fault::Issues(vec![Issue { line: 0, key: "file".to_owned(), rule }]),
        })?;
        Self::read(&text, &file, folder)
    }

    /// Reads a spell's text. `file` is how messages name it; relative paths begin in `folder`. Nothing is opened.
    pub fn read(text: &str, file: &str, folder: impl Into<PathBuf>) -> Result<Self, SpellFault> {
        let fault = |fault| SpellFault { file: file.to_owned(), fault };
        let node = toml_tree::read(text).map_err(fault)?;
        let mut issues = Issues::default();
        let spell =
            Table::of("", &node, &mut issues).and_then(|table| read::spell(&table, file, folder.into(), &mut issues));
        match (spell, issues.0) {
            (Some(spell), issues) if issues.is_empty() => Ok(spell),
            (_, mut issues) => {
                issues.sort_by_key(|issue| issue.line);
                Err(fault(Fault::Issues(issues)))
            }
        }
    }

    /// The spell as it will be cast, in the shape of its file: what the loader added is in it.
    pub fn resolved(&self) -> Value {
        build::resolved(self)
    }

    /// The same as TOML.
    pub fn resolved_toml(&self) -> String {
        toml::to_string_pretty(&self.resolved()).unwrap_or_else(|fault| format!("# {fault}\n"))
    }
}

/// A file's text, bounded; what went wrong is told without the host's path.
pub(crate) fn read_text(path: &Path) -> Result<String, String> {
    use std::io::Read;
    let cannot = |error: std::io::Error| {
        // The system calls a missing file an entity, which is another thing here.
        if error.kind() == std::io::ErrorKind::NotFound {
            return "there is no such file; write it, or name another one".to_owned();
        }
        format!("it cannot be read: {}", error.kind())
    };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(cannot)?;
    file.take(SPELL_BYTES_MAX as u64 + 1).read_to_string(&mut text).map_err(cannot)?;
    if text.len() > SPELL_BYTES_MAX {
        return Err(format!("it has more than {SPELL_BYTES_MAX} bytes"));
    }
    Ok(text)
}

/// A file that holds JSON.
pub(crate) fn read_json(path: &Path) -> Result<Value, String> {
    let text = read_text(path)?;
    cantrip_canon::json::read(&text).map_err(|fault| format!("it is no JSON: {fault}"))
}
