//! A spell as an evaluation casts it: it must not act on the world.
//!
//! A trial works on copies of the spell's folders, and the gates that could reach further are removed by the ward
//! `remove_gate`: a model that calls one is told that it is denied, as under any ward. A server of tools is left out
//! whole, because asking it for its tools would already start it. Delegation and predicts stay: they act through the
//! gates that are left. Running the trials in a container was the alternative, which needs one.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use cantrip_circle::Label;
use cantrip_circle::gate::builtin::is_hidden;
use cantrip_circle::gate::canonical_name;
use cantrip_reply::{Refusal, codes};
use serde_json::{Value, json};

use crate::limits::TRIAL_FILES_BYTES_MAX;
use crate::{Fault, GateKind, GateSpell, Issue, Spell, SpellFault};

/// The name under which the program that verifies answers is listed and let through.
const VERIFY: &str = "verify";

/// The file that says that a copy is whole.
const COMPLETE: &str = "complete";

/// The reason why a trial does not have a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrialRemoval {
    /// It communicates with the outside.
    ExternalComm,
    /// It moves money.
    Settlement,
    /// It is neither read-only nor a file gate.
    Effects,
    /// It asks a person.
    Human,
}

impl TrialRemoval {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ExternalComm => "external_comm",
            Self::Settlement => "settlement",
            Self::Effects => "effects",
            Self::Human => "human",
        }
    }
}

/// The gates that the trials of a spell do not have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TrialGates {
    /// The removed gates in declared order.
    pub removed: Vec<(String, TrialRemoval)>,
    /// The gates that would have been removed and that the caller allows, in declared order.
    pub let_through: Vec<String>,
}

impl GateSpell {
    /// Returns the reason why a trial must not have this gate.
    fn trial_removal(&self) -> Option<TrialRemoval> {
        let labelled = |unless: bool| match &self.labels {
            Some(labels) => labels.contains(&Label::ExternalComm),
            None => unless,
        };
        let outside = |is_outside: bool| if is_outside { TrialRemoval::ExternalComm } else { TrialRemoval::Effects };
        if self.settlement.is_some() {
            return Some(TrialRemoval::Settlement);
        }
        match &self.kind {
            GateKind::Plain if canonical_name(&self.name) == "ask_human" => Some(TrialRemoval::Human),
            GateKind::Plain | GateKind::Files { .. } | GateKind::Delegation { .. } | GateKind::Predict { .. } => {
                labelled(false).then_some(TrialRemoval::ExternalComm)
            }
            GateKind::Fetch { .. } => Some(TrialRemoval::ExternalComm),
            // A gate of the user's own without labels counts as having all three.
            GateKind::Command { .. } | GateKind::Endpoint(_) | GateKind::Server(_) => Some(outside(labelled(true))),
            GateKind::Shell(shell) => Some(outside(shell.network || labelled(false))),
        }
    }
}

impl Spell {
    /// Returns the gates that a trial does not have, except those that the caller allows. A person is asked in no
    /// trial, whatever is allowed. An allowed name that the spell does not have is a fault.
    pub fn trial_gates(&self, allowed: &[String]) -> Result<TrialGates, SpellFault> {
        let named: BTreeSet<&str> = allowed.iter().map(|name| canonical_name(name)).collect();
        let mut gates = TrialGates::default();
        let mut known: BTreeSet<&str> = BTreeSet::new();
        for gate in &self.gates {
            let name = canonical_name(&gate.name);
            known.insert(name);
            match gate.trial_removal() {
                None => {}
                Some(reason) if reason == TrialRemoval::Human || !named.contains(name) => {
                    gates.removed.push((name.to_owned(), reason));
                }
                Some(_) => gates.let_through.push(name.to_owned()),
            }
        }
        if self.verify.is_some() {
            known.insert(VERIFY);
            if named.contains(VERIFY) {
                gates.let_through.push(VERIFY.to_owned());
            } else {
                gates.removed.push((VERIFY.to_owned(), TrialRemoval::Effects));
            }
        }
        match named.iter().find(|name| !known.contains(*name)) {
            None => Ok(gates),
            Some(unknown) => {
                let rule = format!("the spell has no gate {unknown}, so an evaluation cannot let it through");
                let issue = Issue { line: 0, key: format!("gates.{unknown}"), rule };
                Err(SpellFault { file: self.file.clone(), fault: Fault::Issues(vec![issue]) })
            }
        }
    }

    /// Returns the folders that a trial needs copies of: the roots of the file gates and of the shell. A root inside
    /// another one is part of that copy, so that both gates see the same files.
    pub fn trial_roots(&self) -> Vec<PathBuf> {
        let mut roots: Vec<PathBuf> = self.gates.iter().filter_map(|gate| self.root_of(gate)).collect();
        roots.sort();
        roots.dedup();
        let all = roots.clone();
        roots.retain(|root| !all.iter().any(|other| other != root && root.starts_with(other)));
        roots
    }

    /// Returns the spell as trials cast it: on these copies, without the removed gates, and without waiting for an
    /// unavailable crystal.
    pub fn for_trial(&self, allowed: &[String], copies: &TrialCopies) -> Result<Self, SpellFault> {
        let removed = self.trial_gates(allowed)?.removed;
        let is_removed = |name: &str| removed.iter().any(|(gate, _)| gate == canonical_name(name));
        let mut spell = self.clone();
        spell.park = false;
        if is_removed(VERIFY) {
            spell.verify = None;
        }
        spell.gates.retain(|gate| !matches!(gate.kind, GateKind::Server(_)) || !is_removed(&gate.name));
        for gate in &mut spell.gates {
            let copy = self.root_of(gate).and_then(|root| copies.copy_of(&root));
            let Some(copy) = copy else { continue };
            let copy = copy.display().to_string();
            match &mut gate.kind {
                GateKind::Files { root, .. } => *root = Some(copy),
                GateKind::Shell(shell) => shell.root = copy,
                GateKind::Plain
                | GateKind::Delegation { .. }
                | GateKind::Predict { .. }
                | GateKind::Fetch { .. }
                | GateKind::Command { .. }
                | GateKind::Endpoint(_)
                | GateKind::Server(_) => {}
            }
        }
        let names: Vec<&str> =
            spell.gates.iter().map(|gate| gate.name.as_str()).filter(|name| is_removed(name)).collect();
        if !names.is_empty() {
            let further = json!({ "remove_gate": names });
            spell.wards = match std::mem::take(&mut spell.wards) {
                Value::Array(mut tables) => {
                    tables.push(further);
                    Value::Array(tables)
                }
                Value::Null => further,
                wards @ (Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_)) => {
                    json!([wards, further])
                }
            };
        }
        Ok(spell)
    }

    /// Returns the folder that a gate works in, if it has one that exists. A missing folder is reported when the gate
    /// is built.
    fn root_of(&self, gate: &GateSpell) -> Option<PathBuf> {
        let root = match &gate.kind {
            GateKind::Files { root, .. } => root.as_deref()?,
            GateKind::Shell(shell) => shell.root.as_str(),
            GateKind::Plain
            | GateKind::Delegation { .. }
            | GateKind::Predict { .. }
            | GateKind::Fetch { .. }
            | GateKind::Command { .. }
            | GateKind::Endpoint(_)
            | GateKind::Server(_) => return None,
        };
        self.folder.join(root).canonicalize().ok()
    }
}

/// The copies of a spell's folders for one trial.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TrialCopies {
    /// Each folder with its copy.
    folders: Vec<(PathBuf, PathBuf)>,
}

/// The reason why the folders of a spell cannot be copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyFault {
    #[error("the files of a trial have more than {TRIAL_FILES_BYTES_MAX} bytes")]
    TooLarge,
    #[error("the files of a trial cannot be copied: {}", .0.kind())]
    Disk(#[from] io::Error),
}

impl From<CopyFault> for Refusal {
    fn from(fault: CopyFault) -> Self {
        match fault {
            CopyFault::TooLarge => {
                let hint = "an evaluation copies the roots of the spell's gates for each trial: name a smaller folder \
                            as their root";
                let more = TRIAL_FILES_BYTES_MAX.saturating_add(1);
                codes::limit("the files of a trial", more, TRIAL_FILES_BYTES_MAX).data(json!({ "hint": hint })).into()
            }
            CopyFault::Disk(error) => codes::job_failed("the trial", format!("files: {}", error.kind())).into(),
        }
    }
}

impl TrialCopies {
    /// Returns no copies, for a spell that is only looked at.
    pub fn none() -> Self {
        Self::default()
    }

    /// Checks that these folders fit into one trial. Nothing is written.
    pub fn check(roots: &[PathBuf]) -> Result<(), CopyFault> {
        let mut left = TRIAL_FILES_BYTES_MAX;
        roots.iter().try_for_each(|root| walk(root, None, &mut left))
    }

    /// Copies these folders below `into`. The copies of a trial that was interrupted are used again, in the state in
    /// which it left them.
    pub fn make(roots: &[PathBuf], into: &Path) -> Result<Self, CopyFault> {
        let folders: Vec<_> =
            roots.iter().enumerate().map(|(at, root)| (root.clone(), into.join(at.to_string()))).collect();
        if !is_complete(into) {
            Self::remove(into)?;
            // Created here and by nobody else: the name may be known to others who share the folder above.
            fs::DirBuilder::new().mode(PRIVATE).create(into)?;
            let mut left = TRIAL_FILES_BYTES_MAX;
            for (root, copy) in &folders {
                walk(root, Some(copy), &mut left)?;
            }
            fs::write(into.join(COMPLETE), [])?;
        }
        Ok(Self { folders })
    }

    /// Removes the copies of a trial. It is no fault if there are none.
    pub fn remove(into: &Path) -> Result<(), CopyFault> {
        match fs::remove_dir_all(into) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the copy of a folder: a copied folder, or one below it.
    fn copy_of(&self, root: &Path) -> Option<PathBuf> {
        self.folders.iter().find_map(|(from, copy)| root.strip_prefix(from).ok().map(|below| copy.join(below)))
    }
}

/// The mode of the folder of a trial: nobody else reads the copies.
const PRIVATE: u32 = 0o700;

/// Returns true if this is a folder of ours with whole copies. Another user could have made a folder of this name, but
/// not one that only its owner may enter and that we can read.
fn is_complete(into: &Path) -> bool {
    let Ok(found) = fs::symlink_metadata(into) else { return false };
    found.is_dir() && found.permissions().mode() & 0o777 == PRIVATE && into.join(COMPLETE).is_file()
}

/// Walks a folder, takes the sizes of its files from `left`, and copies it if `copy` is given. Files that no gate shows
/// (keys, the repository, the store) are left out; a link is copied as a link.
fn walk(root: &Path, copy: Option<&Path>, left: &mut u64) -> Result<(), CopyFault> {
    let mut open = vec![PathBuf::new()];
    while let Some(folder) = open.pop() {
        if let Some(copy) = copy {
            fs::create_dir_all(copy.join(&folder))?;
        }
        for entry in fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            if is_hidden(&entry.file_name().to_string_lossy()) {
                continue;
            }
            let (kind, below) = (entry.file_type()?, folder.join(entry.file_name()));
            if kind.is_dir() {
                open.push(below);
            } else if kind.is_symlink() {
                if let Some(copy) = copy {
                    symlink(fs::read_link(entry.path())?, copy.join(below))?;
                }
            } else if kind.is_file() {
                *left = left.checked_sub(entry.metadata()?.len()).ok_or(CopyFault::TooLarge)?;
                if let Some(copy) = copy {
                    fs::copy(entry.path(), copy.join(below))?;
                }
            }
        }
    }
    Ok(())
}
