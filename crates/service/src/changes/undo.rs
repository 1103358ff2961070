//! Undoes the file changes of a run.

use cantrip::canon::{RunId, TurnId};
use cantrip::circle::gate::builtin::FileState;
use cantrip::loom::{Journal, Loom, RunState};
use cantrip::reply::{Call, GuardedReply, Refusal, codes};
use cantrip::store_refusal;
use futures_util::future::OptionFuture;
use serde::Serialize;
use serde_json::json;

use super::{FileHistories, FileHistory, GateRoots, hash_before};
use crate::Service;

/// The reason why a file was left unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SkipReason {
    /// The file has bytes that the run did not write.
    ChangedSince,
    DeletedSince,
    /// A folder or a link is there now.
    Replaced,
    /// Someone else changed the file between two calls of the run: restoring the bytes from before the run would lose
    /// that change.
    ChangedBetween,
    /// A call was begun, and it is unknown whether it changed the file, or which bytes were there before.
    OutcomeUnknown,
    /// The system or the store failed.
    Failed,
}

impl SkipReason {
    pub(super) const fn state(self) -> &'static str {
        match self {
            Self::ChangedSince => "changed since",
            Self::DeletedSince => "deleted since",
            Self::Replaced => "no file any more",
            Self::ChangedBetween => "changed by someone else during the run",
            Self::OutcomeUnknown => "of a call whose outcome is unknown",
            Self::Failed => "not restored",
        }
    }
}

#[derive(Debug, Serialize)]
struct SkippedFile {
    path: String,
    why: SkipReason,
    /// The reason for people.
    said: String,
}

/// The result for each file.
#[derive(Debug, Default, Serialize)]
struct UndoReport {
    /// The files that have their previous bytes again.
    restored: Vec<String>,
    /// The files that did not exist before.
    deleted: Vec<String>,
    /// The files that already had their previous bytes.
    already: Vec<String>,
    left: Vec<SkippedFile>,
}

/// The action for one file.
#[derive(Debug)]
pub(super) enum UndoDecision {
    Restore,
    Already,
    Leave(SkipReason),
}

impl FileHistory {
    /// Decides about the file by its current state. Any bytes that the run itself wrote may be replaced, including
    /// those that an earlier undo restored.
    pub(super) fn verdict(&self, now: FileState) -> UndoDecision {
        let chosen = self.first_selected();
        let Some(first) = self.steps.get(chosen) else { return UndoDecision::Already };
        let target = hash_before(&first.change);
        if !self.is_known() {
            return UndoDecision::Leave(SkipReason::OutcomeUnknown);
        }
        if now.matches_hash(target) {
            return UndoDecision::Already;
        }
        if !self.is_unbroken() {
            return UndoDecision::Leave(SkipReason::ChangedBetween);
        }
        if self.steps[chosen..].iter().any(|step| now.matches_hash(step.change.after)) {
            return UndoDecision::Restore;
        }
        // An earlier undo went back further.
        if self.steps[..chosen].iter().any(|step| now.matches_hash(hash_before(&step.change))) {
            return UndoDecision::Already;
        }
        UndoDecision::Leave(match now {
            FileState::Nothing => SkipReason::DeletedSince,
            FileState::File(_) => SkipReason::ChangedSince,
            FileState::Other => SkipReason::Replaced,
        })
    }
}

impl Service {
    /// Undoes the file changes of a run, children included, or those after one of its turns.
    ///
    /// A file that has bytes of the run gets its previous bytes back, and a file that the run created is removed. Other
    /// files are left alone and reported: then the reply is Invalid, and its data lists the files that were restored
    /// and those that were not. A second undo is harmless. Nothing is recorded: the journal of a run records what the
    /// run did, and an undo does not change that.
    pub async fn undo(&self, run: RunId, to: Option<TurnId>, roots: Result<GateRoots, Refusal>) -> GuardedReply {
        let answered = self.runtime().guard().call(Call::surface("undo").run(run), |rb| async {
            match self.undo_files(run, to, roots).await {
                Ok(undone) if undone.left.is_empty() => {
                    rb.success(codes::changed("run", run.to_string(), "undone").data(undone))
                }
                Ok(undone) => rb.refuse(refusal(run, undone)),
                Err(refusal) => rb.refuse(refusal),
            }
        });
        answered.await
    }

    async fn undo_files(
        &self,
        run: RunId,
        to: Option<TurnId>,
        roots: Result<GateRoots, Refusal>,
    ) -> Result<UndoReport, Refusal> {
        self.own_run(run).await?;
        self.check_undoable(run).await?;
        let (roots, refused) = match roots {
            Ok(roots) => (roots, None),
            Err(refusal) => (GateRoots::default(), Some(refusal)),
        };
        let FileHistories { files, unknown } = self.histories(run, to, &roots).await?;
        // Without changes the folders are not needed.
        if let Some(refusal) = refused.filter(|_| !files.is_empty()) {
            return Err(refusal);
        }
        // All folders are opened before the first file is touched.
        let mut placed = Vec::with_capacity(files.len());
        for history in files {
            let Some(gate) = history.steps.first().map(|step| step.gate.clone()) else { continue };
            placed.push((roots.open(&gate)?, history));
        }
        let mut undone = UndoReport::default();
        for (root, history) in placed {
            let now = root.file_state(&history.path).await?;
            match history.verdict(now) {
                UndoDecision::Already => undone.already.push(history.path),
                UndoDecision::Leave(why) => undone.skip(history.path, why, None),
                UndoDecision::Restore => {
                    let before = history.steps.get(history.first_selected()).and_then(|step| step.change.before);
                    let hash = match now {
                        FileState::File(hash) => Some(hash),
                        FileState::Nothing | FileState::Other => None,
                    };
                    let put = async {
                        let bytes = OptionFuture::from(before.map(|body| self.bytes(body))).await.transpose()?;
                        root.restore(&history.path, hash, bytes).await
                    };
                    match put.await {
                        Ok(Ok(())) if before.is_some() => undone.restored.push(history.path),
                        Ok(Ok(())) => undone.deleted.push(history.path),
                        Ok(Err(_)) => undone.skip(history.path, SkipReason::ChangedSince, None),
                        Err(refusal) => undone.skip(history.path, SkipReason::Failed, Some(&refusal)),
                    }
                }
            }
        }
        for path in unknown {
            undone.skip(path, SkipReason::OutcomeUnknown, None);
        }
        Ok(undone)
    }

    pub(super) async fn check_undoable(&self, run: RunId) -> Result<(), Refusal> {
        let stored = |error| store_refusal(&error);
        let view = self.runtime().loom().run(run).await.map_err(stored)?;
        if view.copied {
            let hint = "its files are on the machine where it was cast: undo it there";
            let refusal = codes::wrong_state("run", run.to_string(), "a copy", "undoing", "the run itself");
            return Err(refusal.data(json!({ "hint": hint })).into());
        }
        match view.state {
            RunState::Queued | RunState::Running => {}
            RunState::Waiting | RunState::Terminated | RunState::Truncated | RunState::Failed => return Ok(()),
        }
        match self.runtime().loom().holder(run).await.map_err(stored)? {
            Some(lease) if lease.expires_at > self.clock.now().wall => {
                let hint = format!("it is still running: cantrip run cancel {run}");
                let busy = codes::busy("run", run.to_string(), lease.owner.as_str());
                Err(busy.data(json!({ "hint": hint })).into())
            }
            Some(_) | None => Ok(()),
        }
    }
}

impl UndoReport {
    fn skip(&mut self, path: String, why: SkipReason, refusal: Option<&Refusal>) {
        let said = match refusal {
            Some(refusal) => format!("{} ({})", why.state(), refusal.code()),
            None => why.state().to_owned(),
        };
        self.left.push(SkippedFile { path, why, said });
    }
}

/// Returns the refusal for files that were left: the first of them is in the message, all are in the data.
fn refusal(run: RunId, undone: UndoReport) -> Refusal {
    let failed = undone.left.iter().find(|left| left.why == SkipReason::Failed);
    if let Some(failed) = failed {
        let (path, said) = (failed.path.clone(), failed.said.clone());
        return codes::io_failed("restoring", path, said).data(undone).into();
    }
    let (path, state) = match undone.left.first() {
        Some(left) => (left.path.clone(), left.said.clone()),
        None => (String::new(), String::new()),
    };
    let hint = format!("it was not touched; what the run wrote: cantrip run diff {run}");
    let refusal = codes::wrong_state("file", path, state, "undoing", "what the run left");
    refusal.data(undone).data(json!({ "hint": hint })).into()
}
