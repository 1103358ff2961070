//! Spells: a cantrip as a file.
//!
//! A spell is read in two steps. [`Spell::read`] takes the text and opens nothing: it reports every unknown key and
//! every value of the wrong type, with the line and the fix. [`Spell::build`] then opens the files that the spell names
//! (roots, scripts, schemas) and builds the [`Cantrip`](cantrip::Cantrip). The loader's additions (`done`, a limit of
//! turns, the `loom` gate where an ephemeral one needs it) are part of the value between the two steps, so
//! [`Spell::resolved`] shows what will be cast and not what was written.
//!
//! ```
//! use cantrip_spell::Spell;
//!
//! let spell = Spell::read("name = 'count'\ncrystal = 'scripted/count.yaml'\n[gates.raed]\n", "count.toml", ".");
//! let fault = spell.unwrap_err().to_string();
//! assert!(fault.contains("line 3") && fault.contains("did you mean read?"), "{fault}");
//! ```

mod build;
mod change;
mod edit;
mod endpoint;
mod gates;
pub mod limits;
mod new_spell;
mod programs;
mod protected_files;
mod read;
mod schema;
mod server;
mod settlement;
mod shell;
mod toml_tree;
mod trial;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cantrip_circle::{AnyGate, Medium, MediumKind};
use cantrip_crystal::{AnyCrystal, ModelName, ProfileRow, Profiles, RetryPolicy};
use cantrip_loom::AnyLoom;
use cantrip_reply::{Invalid, Refusal, ReplyDraft, codes};
use serde_json::{Value, json};
use url::Url;

pub use change::SpellChange;
pub use endpoint::EndpointSpell;
pub use gates::{GateKind, GateSpell, InlineOrFile};
pub use new_spell::{DEFAULT, NewFile, default_spell, new_spell_files};
pub use schema::schema;
pub use server::{ServerLocation, ServerSpell};
pub use settlement::SettlementSpell;
pub use shell::ShellSpell;
pub use trial::{CopyFault, TrialCopies, TrialGates, TrialRemoval};

use crate::limits::SPELL_BYTES_MAX;
use cantrip::Call;
use cantrip::fold::FoldOptions;
use toml_tree::{Issues, Table};

/// One fault of a spell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issue {
    /// The line, counted from 1; 0 for the whole spell.
    pub line: usize,
    /// The dotted key.
    pub key: String,
    /// The fault, and how to fix it.
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

/// The reason why a spell is invalid.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The text is not TOML.
    Text { position: String, detail: String },
    /// The faults in the order of the text.
    Issues(Vec<Issue>),
    /// The spell describes an invalid cantrip.
    Cantrip(cantrip::CantripFaults),
    /// A resource that the spell names refused.
    Refused(Refusal),
}

/// The error of a spell that cannot be cast.
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
    /// Returns all faults in the order of the text; empty if the text is not TOML or if its cantrip is invalid.
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

/// Creates crystals that need more than a file: a provider's model, at another address if the spell names one, or a
/// recorded thread.
pub type Crystals = Arc<dyn Fn(&ModelName, Option<&Url>) -> Result<AnyCrystal, Refusal> + Send + Sync>;

/// The parts that a spell cannot contain; the caller supplies them.
#[derive(Clone, Default)]
pub struct BuildContext {
    /// The source of crystals other than scripts and programs.
    pub crystals: Option<Crystals>,
    /// The runtimes of mediums other than the conversation.
    pub mediums: Vec<Arc<dyn Medium>>,
    /// The gate that asks the person who is present.
    pub ask_human: Option<AnyGate>,
    /// The gate that reads the entity's own thread; by default it is created over `store`.
    pub loom: Option<AnyGate>,
    /// The store that records the casts.
    pub store: Option<AnyLoom>,
    /// The prices of scripts, if they are not free.
    pub profiles: Option<Arc<Profiles>>,
}

impl fmt::Debug for BuildContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BuildContext").finish_non_exhaustive()
    }
}

/// A spell as it will be cast: read, checked, and completed by the loader.
#[derive(Debug, Clone)]
pub struct Spell {
    /// The name of the spell and of its loom.
    pub name: String,
    /// The file name that messages use.
    pub file: String,
    /// The folder that relative paths start from.
    pub folder: PathBuf,
    pub crystal: ModelName,
    /// The crystals that are tried in the same turn while the first one stays unavailable, in this order.
    pub fallback: Vec<ModelName>,
    /// The address of the provider, if it is not the default one.
    pub base_url: Option<Url>,
    /// The crystal's properties for which the spell overrides the table of models.
    pub profile: ProfileRow,
    pub medium: MediumKind,
    pub call: Call,
    /// Files whose text follows the system prompt; missing files are skipped.
    pub prompt_files: Vec<String>,
    /// The gates in declared order.
    pub gates: Vec<GateSpell>,
    /// The wards as they are written, with the loader's additions.
    pub wards: Value,
    pub folding: FoldOptions,
    /// The crystal that writes summaries of folds; by default the crystal itself.
    pub folding_crystal: Option<ModelName>,
    pub retry: RetryPolicy,
    pub park: bool,
    pub fenced: bool,
    pub answer_schema: Option<InlineOrFile>,
    pub verify: Option<VerifySpell>,
}

/// The settings of the program that verifies answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifySpell {
    /// The program with its arguments.
    pub command: Vec<String>,
    /// The timeout for verifying one answer.
    pub timeout: Option<Duration>,
}

impl Spell {
    /// Returns the mediums that the cantrip and its children may act in.
    pub fn mediums(&self) -> BTreeSet<MediumKind> {
        let mut all = BTreeSet::from([self.medium]);
        for gate in &self.gates {
            if let GateKind::Delegation { mediums, .. } = &gate.kind {
                all.extend(mediums);
            }
        }
        all
    }

    /// Returns the gates that count as risky because their tables have no labels; none if the spell allows the three
    /// labels together.
    pub fn unlabelled_gates(&self) -> Vec<&str> {
        if self.wards.get("allow_trifecta").is_some_and(|reason| !reason.is_null()) {
            return Vec::new();
        }
        self.gates.iter().filter(|gate| gate.is_unlabelled()).map(|gate| gate.name.as_str()).collect()
    }

    /// Returns the same spell with another crystal. The fallbacks, address and profile of the old crystal are dropped.
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

    /// Reads a spell's text. `file` is the name that messages use; relative paths start from `folder`. Nothing is
    /// opened.
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

    /// Returns the spell as it will be cast, in the format of its file, with the loader's additions.
    pub fn resolved(&self) -> Value {
        build::resolved(self)
    }

    /// Returns the resolved spell as TOML.
    pub fn resolved_toml(&self) -> String {
        toml::to_string_pretty(&self.resolved()).unwrap_or_else(|fault| format!("# {fault}\n"))
    }
}

/// Reads a file's text, up to a maximum size. An error does not contain the host's path.
pub(crate) fn read_text(path: &Path) -> Result<String, String> {
    use std::io::Read;
    let cannot = |error: std::io::Error| {
        // The operating system calls a missing file an "entity", which has another meaning here.
        if error.kind() == std::io::ErrorKind::NotFound {
            return "the file does not exist; create it, or name another one".to_owned();
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

impl Spell {
    /// Returns the JSON Schema of the answers, read from its file if it has one. The error is the rule that is broken.
    pub fn read_answer_schema(&self) -> Result<Option<Value>, String> {
        match &self.answer_schema {
            None => Ok(None),
            Some(InlineOrFile::Here(schema)) => Ok(Some(schema.clone())),
            Some(InlineOrFile::File(file)) => {
                read_json(&self.folder.join(file)).map(Some).map_err(|rule| format!("{file}: {rule}"))
            }
        }
    }
}

/// Reads a file that contains JSON.
pub(crate) fn read_json(path: &Path) -> Result<Value, String> {
    let text = read_text(path)?;
    cantrip_canon::json::read(&text).map_err(|fault| format!("not valid JSON: {fault}"))
}
