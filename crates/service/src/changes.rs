//! What a run did to files: shown as a difference, and taken back.
//!
//! `write` and `edit` leave the former bytes in the journal, so both are read from there: what a run found is its first
//! record about a file, what it left is made again from the call that left it. A copy of every file after every call was
//! rejected: a call says in a few words what it made of the bytes before it.
//!
//! Taking back is careful with what others did. A file is touched only while it has bytes that this run gave it; one that
//! was changed since, or by someone else between two calls of the run, is named and left alone. Children of a run write in
//! its journal, so what they did is part of it.

mod diff;
mod undo;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use cantrip::canon::{Hash, RunId, TurnId};
use cantrip::circle::gate::builtin::{Root, target_path};
use cantrip::loom::{
    Bodies, BodyRef, CallId, CallStarted, CallWork, Caller, Error, Event, FileChange, GateCallRequest, Journal,
    RecordValue, Seq, Utterance,
};
use cantrip::reply::{Refusal, codes};
use cantrip::spell::{GateKind, Spell};
use cantrip::store_refusal;
use futures_util::StreamExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::Service;

pub use diff::{ChangeKind, FileDiff};

/// The folders that the gates of a spell write in.
#[derive(Debug, Clone, Default)]
pub struct GateRoots {
    by_gate: BTreeMap<String, PathBuf>,
}

impl GateRoots {
    /// Those of this spell. Nothing is opened yet.
    pub fn from_spell(spell: &Spell) -> Self {
        let files = spell.gates.iter().filter_map(|gate| match &gate.kind {
            GateKind::Files { root: Some(root), .. } => {
                let folder = spell.folder.join(root);
                // Two names of one folder are one folder.
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

    /// All of them, by gate.
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
            let rule = "the folder that the run wrote in is not there";
            codes::target_unusable(folder.display().to_string(), rule).data(json!({ "hint": hint })).into()
        })
    }
}

/// One change, with the call that made it.
struct RecordedChange {
    gate: String,
    args: Option<Value>,
    change: FileChange,
    /// Behind the turn that was named.
    behind: bool,
    /// The process that began the call was not there any more when it settled: it was made again, and may have found its
    /// own work.
    again: bool,
}

/// All that a run did to one file, in order. Never empty.
struct FileHistory {
    path: String,
    steps: Vec<RecordedChange>,
}

impl FileHistory {
    /// The steps to be looked at; the first of all of them unless a turn was named.
    fn first_selected(&self) -> usize {
        self.steps.iter().position(|step| step.behind).unwrap_or(self.steps.len())
    }

    /// Whether each chosen step found what the one before it left.
    fn is_unbroken(&self) -> bool {
        let chosen = &self.steps[self.first_selected()..];
        chosen.windows(2).all(|pair| hash_before(&pair[1].change) == pair[0].change.after)
    }

    /// Whether the chosen steps tell what stood there before each of them. A call that was made again after a crash may
    /// have found its own work, and what stood there before that is on no record.
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

/// What a run did to files.
struct FileHistories {
    files: Vec<FileHistory>,
    /// Paths of calls that were begun, and of which nobody knows whether they changed anything.
    unknown: Vec<String>,
}

/// Bodies that were read before they are needed.
struct PreloadedBodies(HashMap<Hash, Arc<[u8]>>);

impl Bodies for PreloadedBodies {
    fn body(&self, hash: &Hash) -> Result<Arc<[u8]>, Error> {
        self.0.get(hash).cloned().ok_or(Error::BodyAltered(*hash))
    }
}

impl Service {
    /// Reads what a run did to files: all of it, or what came after a turn of it.
    async fn histories(&self, run: RunId, to: Option<TurnId>, roots: &GateRoots) -> Result<FileHistories, Refusal> {
        let stored = |error| store_refusal(&error);
        let mut reading = JournalScan { behind: to.is_none(), ..JournalScan::default() };
        let mut records = std::pin::pin!(self.runtime().loom().read(run, Seq::START));
        while let Some(record) = records.next().await {
            let record = record.map_err(stored)?;
            let epoch = record.epoch.get();
            match record.event().map_err(stored)? {
                Event::Opened(opened) => {
                    reading.said.insert(opened.turn_id, opened.utterance);
                }
                Event::Started(CallStarted { call_id, work: CallWork::Gate, asked, .. }) => {
                    reading.begun.insert(call_id, StartedCall { asked, epoch });
                }
                Event::Settled(settled) if reading.begun.contains_key(&settled.call_id) => {
                    let begun = reading.begun.remove(&settled.call_id).expect("it is there");
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
                }
                Event::Turn(closed) if Some(closed.turn_id) == to => reading.behind = true,
                Event::Root(_)
                | Event::Entity(_)
                | Event::Cast(_)
                | Event::Attempt(_)
                | Event::Started(_)
                | Event::Settled(_)
                | Event::Turn(_)
                | Event::Fold(_)
                | Event::Parked(_)
                | Event::End(_)
                | Event::Failed(_)
                | Event::Reward(_)
                | Event::Other { .. } => {}
            }
        }
        if !reading.behind {
            let turn = to.map(|turn| turn.to_string()).unwrap_or_default();
            let hint = format!("name a turn of the run itself: cantrip loom thread {run}");
            return Err(codes::not_found(format!("turn of {run}"), turn).data(json!({ "hint": hint })).into());
        }
        // A call that is begun and not settled stands in a run that has not gone on since.
        for (call, begun) in std::mem::take(&mut reading.begun) {
            let (gate, args) = self.call_arguments(&reading.said, call, begun.asked).await?;
            reading.unknown.extend(args.as_ref().and_then(|args| target_path(&gate, args)));
        }
        let files: Vec<FileHistory> =
            reading.files.into_iter().map(|((_, path), steps)| FileHistory { path, steps }).collect();
        let mut unknown = reading.unknown;
        unknown.sort();
        unknown.dedup();
        // What is on record about a file tells whether the call took place.
        unknown.retain(|path| files.iter().all(|file| file.path != *path));
        Ok(FileHistories { files, unknown })
    }

    /// The gate of a call and its arguments.
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

/// A journal on its way through.
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
