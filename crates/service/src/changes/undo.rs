//! What a run did to files is taken back.

use cantrip::canon::{RunId, TurnId};
use cantrip::circle::gate::builtin::Standing;
use cantrip::loom::{Journal, Loom, RunState};
use cantrip::reply::{Call, Guarded, Refusal, codes};
use cantrip::store_refusal;
use serde::Serialize;
use serde_json::json;

use super::{Histories, History, Roots, found};
use crate::Service;

/// Why a file was left as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Why {
    /// It has bytes that the run did not give it.
    ChangedSince,
    DeletedSince,
    /// A folder or a link stands there now.
    Replaced,
    /// Someone else changed it between two calls of the run: going back to before the run would lose that.
    ChangedBetween,
    /// A call was begun, and nobody knows whether it changed the file, or what stood there before.
    OutcomeUnknown,
    /// The system or the store failed.
    Failed,
}

impl Why {
    const fn state(self) -> &'static str {
        match self {
            Self::ChangedSince => "changed since",
            Self::DeletedSince => "deleted since",
            Self::Replaced => "no file any more",
            Self::ChangedBetween => "changed by someone else while the run was under way",
            Self::OutcomeUnknown => "of a call whose outcome is unknown",
            Self::Failed => "not restored",
        }
    }
}

#[derive(Debug, Serialize)]
struct Left {
    path: String,
    why: Why,
    /// For a person.
    said: String,
}

/// What became of the files.
#[derive(Debug, Default, Serialize)]
struct Undone {
    /// They have their former bytes again.
    restored: Vec<String>,
    /// They did not exist before.
    deleted: Vec<String>,
    /// They were as before already.
    already: Vec<String>,
    left: Vec<Left>,
}

/// What is to be done with one file.
enum Verdict {
    Restore,
    Already,
    Leave(Why),
}

impl History {
    /// What is to be done, given what stands there now. Whatever the run itself gave the file may go, also what an
    /// earlier undoing went back to.
    fn verdict(&self, now: Standing) -> Verdict {
        let chosen = self.chosen();
        let Some(first) = self.steps.get(chosen) else { return Verdict::Already };
        let target = found(&first.change);
        if !self.known() {
            return Verdict::Leave(Why::OutcomeUnknown);
        }
        if now.is(target) {
            return Verdict::Already;
        }
        if !self.unbroken() {
            return Verdict::Leave(Why::ChangedBetween);
        }
        if self.steps[chosen..].iter().any(|step| now.is(step.change.after)) {
            return Verdict::Restore;
        }
        // Someone went back further already.
        if self.steps[..chosen].iter().any(|step| now.is(found(&step.change))) {
            return Verdict::Already;
        }
        Verdict::Leave(match now {
            Standing::Nothing => Why::DeletedSince,
            Standing::File(_) => Why::ChangedSince,
            Standing::Other => Why::Replaced,
        })
    }
}

impl Service {
    /// Takes back what a run did to files, children included, or what came after a turn of it.
    ///
    /// A file that has bytes of the run gets those from before it, and one that the run made is removed. The others are
    /// left alone and named: then the reply is Invalid, and its data has what was done and what was not. To undo twice is
    /// harmless. Nothing is recorded: a run's journal says what the run did, and it did that.
    pub async fn undo(&self, run: RunId, to: Option<TurnId>, roots: Result<Roots, Refusal>) -> Guarded {
        let answered = self.runtime().guard().call(Call::surface("undo").run(run), |rb| async {
            match self.undone(run, to, roots).await {
                Ok(undone) if undone.left.is_empty() => {
                    rb.success(codes::changed("run", run.to_string(), "undone").data(undone))
                }
                Ok(undone) => rb.refuse(refusal(run, undone)),
                Err(refusal) => rb.refuse(refusal),
            }
        });
        answered.await
    }

    async fn undone(&self, run: RunId, to: Option<TurnId>, roots: Result<Roots, Refusal>) -> Result<Undone, Refusal> {
        self.own_run(run).await?;
        self.may_be_undone(run).await?;
        let (roots, refused) = match roots {
            Ok(roots) => (roots, None),
            Err(refusal) => (Roots::default(), Some(refusal)),
        };
        let Histories { files, unknown } = self.histories(run, to, &roots).await?;
        // Where nothing was changed nobody needs to know in which folder.
        if let Some(refusal) = refused.filter(|_| !files.is_empty()) {
            return Err(refusal);
        }
        // All folders are opened before the first file is touched.
        let mut placed = Vec::with_capacity(files.len());
        for history in files {
            let Some(gate) = history.steps.first().map(|step| step.gate.clone()) else { continue };
            placed.push((roots.open(&gate)?, history));
        }
        let mut undone = Undone::default();
        for (root, history) in placed {
            let now = root.standing(&history.path).await?;
            match history.verdict(now) {
                Verdict::Already => undone.already.push(history.path),
                Verdict::Leave(why) => undone.leave(history.path, why, None),
                Verdict::Restore => {
                    let before = history.steps.get(history.chosen()).and_then(|step| step.change.before);
                    let hash = match now {
                        Standing::File(hash) => Some(hash),
                        Standing::Nothing | Standing::Other => None,
                    };
                    let put = async {
                        let bytes = match before {
                            Some(body) => Some(self.bytes(body).await?),
                            None => None,
                        };
                        root.put_back(&history.path, hash, bytes).await
                    };
                    match put.await {
                        Ok(Ok(())) if before.is_some() => undone.restored.push(history.path),
                        Ok(Ok(())) => undone.deleted.push(history.path),
                        Ok(Err(_)) => undone.leave(history.path, Why::ChangedSince, None),
                        Err(refusal) => undone.leave(history.path, Why::Failed, Some(&refusal)),
                    }
                }
            }
        }
        for path in unknown {
            undone.leave(path, Why::OutcomeUnknown, None);
        }
        Ok(undone)
    }

    async fn may_be_undone(&self, run: RunId) -> Result<(), Refusal> {
        let stored = |error| store_refusal(&error);
        let view = self.runtime().loom().run(run).await.map_err(stored)?;
        if view.copied {
            let hint = "its files lie where it was cast: undo it there";
            let refusal = codes::wrong_state("run", run.to_string(), "a copy", "undoing", "the run itself");
            return Err(refusal.data(json!({ "hint": hint })).into());
        }
        match view.state {
            RunState::Queued | RunState::Running => {}
            RunState::Waiting | RunState::Terminated | RunState::Truncated | RunState::Failed => return Ok(()),
        }
        match self.runtime().loom().holder(run).await.map_err(stored)? {
            Some(lease) if lease.expires_at > self.clock.now().wall => {
                let hint = format!("it is still at work: cantrip run cancel {run}");
                let busy = codes::busy("run", run.to_string(), lease.owner.as_str());
                Err(busy.data(json!({ "hint": hint })).into())
            }
            Some(_) | None => Ok(()),
        }
    }
}

impl Undone {
    fn leave(&mut self, path: String, why: Why, refusal: Option<&Refusal>) {
        let said = match refusal {
            Some(refusal) => format!("{} ({})", why.state(), refusal.code()),
            None => why.state().to_owned(),
        };
        self.left.push(Left { path, why, said });
    }
}

/// What is said when files were left: the first of them is in the message, all are in the data.
fn refusal(run: RunId, undone: Undone) -> Refusal {
    let failed = undone.left.iter().find(|left| left.why == Why::Failed);
    if let Some(failed) = failed {
        let (path, said) = (failed.path.clone(), failed.said.clone());
        return codes::io_failed("restoring", path, said).data(undone).into();
    }
    let (path, state) = match undone.left.first() {
        Some(left) => (left.path.clone(), left.said.clone()),
        None => (String::new(), String::new()),
    };
    let hint = format!("it was left as it is; what the run made of it: cantrip run diff {run}");
    let refusal = codes::wrong_state("file", path, state, "undoing", "what the run left");
    refusal.data(undone).data(json!({ "hint": hint })).into()
}
