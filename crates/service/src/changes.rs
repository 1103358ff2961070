//! The file changes of a run: shown as a diff, and undone.
//!
//! `write` and `edit` leave the previous bytes in the journal, so both the diff and the undo are read from there: the
//! first record about a file has the bytes that the run found, and the bytes that it left are reconstructed from the
//! last call. A copy of every file after every call was rejected: a call describes its change in a few words.
//!
//! Undo is careful with the changes of others. A file is touched only while it has bytes that this run wrote. A file
//! that was changed since, or by someone else between two calls of the run, is reported and left alone. Children of a
//! run write to its journal, so their changes are part of it.

mod diff;
mod disk;
mod plan;
mod undo;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cantrip::canon::{Hash, RunId, TurnId};
use cantrip::circle::gate::builtin::{Root, target_path};
use cantrip::loom::{
    Bodies, BodyRef, CallId, CallStarted, CallWork, Caller, Error, Event, FileChange, GateCallRequest, Journal,
    RecordValue, Seq, Utterance,
};
use cantrip::reply::{Refusal, codes};
use cantrip::store_refusal;
use cantrip_spell::{GateKind, Spell};
use futures_util::StreamExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::Service;

pub use diff::{ChangeKind, FileDiff, FileDiffs, FileVersion, unified_diff};
pub use disk::DiskFile;
pub use plan::FilePlan;

/// The root folders of a spell's file gates.
#[derive(Debug, Clone, Default)]
pub struct GateRoots {
    by_gate: BTreeMap<String, PathBuf>,
}

impl GateRoots {
    /// Returns the roots of this spell. Nothing is opened yet.
    pub fn from_spell(spell: &Spell) -> Self {
        let files = spell.gates.iter().filter_map(|gate| match &gate.kind {
            GateKind::Files { root: Some(root), .. } => {
                let folder = spell.folder.join(root);
                // Two paths of one folder must be equal.
                Some((gate.name.clone(), folder.canonicalize().unwrap_or(folder)))
            }
            GateKind::Files { root: None, .. }
            | GateKind::Plain
            | GateKind::Delegation { .. }
            | GateKind::Predict { .. }
            | GateKind::Fetch { .. }
            | GateKind::Command { .. }
            | GateKind::Endpoint(_)
            | GateKind::Server(_)
            | GateKind::Shell(_) => None,
        });
        Self { by_gate: files.collect() }
    }

    /// Returns these folders as roots, by gate.
    pub fn from_folders(folders: impl IntoIterator<Item = (String, PathBuf)>) -> Self {
        // Two paths of one folder must be equal.
        let real = |(gate, folder): (String, PathBuf)| (gate, folder.canonicalize().unwrap_or(folder));
        Self { by_gate: folders.into_iter().map(real).collect() }
    }

    /// Returns the root of a gate.
    pub fn folder(&self, gate: &str) -> Option<&Path> {
        self.by_gate.get(gate).map(PathBuf::as_path)
    }

    /// Returns all roots, by gate.
    pub fn all(self) -> impl Iterator<Item = (String, PathBuf)> {
        self.by_gate.into_iter()
    }

    fn open(&self, gate: &str) -> Result<Root, Refusal> {
        let hint = "name the spell as it was when it was cast: --spell FILE";
        let Some(folder) = self.by_gate.get(gate) else {
            let rule = "the spell has no such gate with a root";
            return Err(codes::target_unusable(gate, rule).data(json!({ "hint": hint })).into());
        };
        Root::at(folder).map_err(|_| {
            let hint = format!("make it again, or {hint}");
            let rule = "the folder that the run wrote to does not exist";
            codes::target_unusable(folder.display().to_string(), rule).data(json!({ "hint": hint })).into()
        })
    }
}

/// One change, with the call that made it.
struct RecordedChange {
    gate: String,
    args: Option<Value>,
    change: FileChange,
    /// True if the change was made after the named turn.
    behind: bool,
    /// True if the process that began the call was dead when the call settled: the call was repeated, and may have
    /// found its own result.
    again: bool,
}

/// All changes of a run to one file, in order. Never empty.
struct FileHistory {
    path: String,
    steps: Vec<RecordedChange>,
}

impl FileHistory {
    /// Returns the index of the first selected step; the first of all steps unless a turn was named.
    fn first_selected(&self) -> usize {
        self.steps.iter().position(|step| step.behind).unwrap_or(self.steps.len())
    }

    /// Returns true if each selected step found the bytes that the step before it left.
    fn is_unbroken(&self) -> bool {
        let chosen = &self.steps[self.first_selected()..];
        chosen.windows(2).all(|pair| hash_before(&pair[1].change) == pair[0].change.after)
    }

    /// Returns true if the bytes before each selected step are known. A call that was repeated after a crash may have
    /// found its own result, and the bytes before that are not on record.
    fn is_known(&self) -> bool {
        let mut before = None;
        self.steps[self.first_selected()..].iter().all(|step| {
            let found = hash_before(&step.change);
            let own_work = step.again && found == step.change.after && before != Some(found);
            before = Some(step.change.after);
            !own_work
        })
    }
}

fn hash_before(change: &FileChange) -> Option<Hash> {
    change.before.map(|body| body.hash)
}

/// The file changes of a run.
struct FileHistories {
    files: Vec<FileHistory>,
    /// The paths of calls that were begun and may or may not have changed the file.
    unknown: Vec<String>,
}

/// Bodies that were loaded in advance.
struct PreloadedBodies(HashMap<Hash, Arc<[u8]>>);

impl Bodies for PreloadedBodies {
    fn body(&self, hash: &Hash) -> Result<Arc<[u8]>, Error> {
        self.0.get(hash).cloned().ok_or(Error::BodyAltered(*hash))
    }
}

impl Service {
    /// Reads the file changes of a run: all of them, or those after one of its turns.
    async fn histories(&self, run: RunId, to: Option<TurnId>, roots: &GateRoots) -> Result<FileHistories, Refusal> {
        let stored = |error| store_refusal(&error);
        let mut reading = JournalScan { behind: to.is_none(), ..JournalScan::default() };
        let mut records = std::pin::pin!(self.runtime().loom().read(run, Seq::START));
        while let Some(record) = records.next().await {
            let record = record.map_err(stored)?;
            let epoch = record.epoch.get();
            let event = record.event().map_err(stored)?;
            if let Event::Opened(opened) = event {
                reading.said.insert(opened.turn_id, opened.utterance);
            } else if let Event::Started(CallStarted { call_id, work: CallWork::Gate, asked, .. }) = event {
                reading.begun.insert(call_id, StartedCall { asked, epoch });
            } else if let Event::Settled(settled) = event {
                let Some(begun) = reading.begun.remove(&settled.call_id) else { continue };
                let lost = settled.reply.code == codes::OUTCOME_UNKNOWN.any().as_str();
                if settled.changes.is_empty() && !lost {
                    continue;
                }
                let again = begun.epoch != epoch;
                let (gate, args) = self.call_arguments(&reading.said, settled.call_id, begun.asked).await?;
                if lost {
                    reading.unknown.extend(args.as_ref().and_then(|args| target_path(&gate, args)));
                }
                for change in settled.changes {
                    let folder = roots.by_gate.get(&gate).cloned().unwrap_or_default();
                    let (gate, args) = (gate.clone(), args.clone());
                    let step = RecordedChange { gate, args, change, behind: reading.behind, again };
                    let key = (folder, step.change.path.clone());
                    reading.files.entry(key).or_default().push(step);
                }
            } else if let Event::Turn(closed) = event {
                reading.behind |= Some(closed.turn_id) == to;
            }
        }
        if !reading.behind {
            let turn = to.map(|turn| turn.to_string()).unwrap_or_default();
            let hint = format!("name a turn of the run itself: cantrip loom thread {run}");
            return Err(codes::not_found(format!("turn of {run}"), turn).data(json!({ "hint": hint })).into());
        }
        // A call that was begun and is not settled belongs to a run that has not continued since.
        for (call, begun) in std::mem::take(&mut reading.begun) {
            let (gate, args) = self.call_arguments(&reading.said, call, begun.asked).await?;
            reading.unknown.extend(args.as_ref().and_then(|args| target_path(&gate, args)));
        }
        let files: Vec<FileHistory> =
            reading.files.into_iter().map(|((_, path), steps)| FileHistory { path, steps }).collect();
        let mut unknown = reading.unknown;
        unknown.sort();
        unknown.dedup();
        // The records about a file show whether the call took place.
        unknown.retain(|path| files.iter().all(|file| file.path != *path));
        Ok(FileHistories { files, unknown })
    }

    /// Returns the gate and the arguments of a call.
    async fn call_arguments(
        &self,
        said: &HashMap<TurnId, RecordValue<Utterance>>,
        call: CallId,
        asked: Option<GateCallRequest>,
    ) -> Result<(String, Option<Value>), Refusal> {
        if let Some(asked) = asked {
            return Ok((asked.gate, Some(self.load_held(&asked.args).await?)));
        }
        let Caller::Turn(turn) = call.caller() else { return Ok((String::new(), None)) };
        let Some(utterance) = said.get(&turn) else { return Ok((String::new(), None)) };
        let calls = self.load_held(utterance).await?.calls;
        let number = usize::try_from(call.number()).unwrap_or(usize::MAX);
        match number.checked_sub(1).and_then(|at| calls.into_iter().nth(at)) {
            Some(call) => Ok((call.gate, Some(call.args))),
            None => Ok((String::new(), None)),
        }
    }

    async fn load_held<T: Serialize + DeserializeOwned + Clone>(&self, held: &RecordValue<T>) -> Result<T, Refusal> {
        let mut read = HashMap::new();
        if let Some(reference) = held.reference() {
            read.insert(reference.hash, self.bytes(reference).await?);
        }
        held.load(&PreloadedBodies(read)).map_err(|error| store_refusal(&error))
    }

    async fn bytes(&self, body: BodyRef) -> Result<Arc<[u8]>, Refusal> {
        let body = self.runtime().loom().body(body.hash).await.map_err(|error| store_refusal(&error))?;
        Ok(Arc::clone(body.bytes()))
    }
}

/// The state of a scan through a journal.
#[derive(Default)]
struct JournalScan {
    said: HashMap<TurnId, RecordValue<Utterance>>,
    begun: HashMap<CallId, StartedCall>,
    files: BTreeMap<(PathBuf, String), Vec<RecordedChange>>,
    unknown: Vec<String>,
    behind: bool,
}

/// A call that was begun and has not settled.
struct StartedCall {
    asked: Option<GateCallRequest>,
    epoch: u64,
}
