//! The plan of an undo: what it would do to each file, without touching one.

use cantrip::canon::{RunId, TurnId};
use cantrip::reply::Refusal;
use futures_util::future::OptionFuture;

use super::diff::{text, unified_diff};
use super::undo::UndoDecision;
use super::{ChangeKind, DiskFile, FileHistories, FileHistory, GateRoots};
use crate::Service;
use crate::limits::PLANNED_FILE_BYTES_MAX;

/// The change that an undo would make to one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePlan {
    pub path: String,
    /// The effect of the undo: the file gets its former bytes, is removed, or is made again.
    pub touched: ChangeKind,
    /// The difference from the file as it is now to its former bytes; none if one of them is no text or unknown.
    pub unified: Option<String>,
    /// The reason why the undo would leave the file as it is.
    pub kept: Option<String>,
}

impl Service {
    /// Reports what [`Service::undo`] would do to each file. Files that already have their former bytes are left out.
    pub async fn undo_plan(
        &self,
        run: RunId,
        to: Option<TurnId>,
        roots: Result<GateRoots, Refusal>,
    ) -> Result<Vec<FilePlan>, Refusal> {
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
        let mut plans = Vec::with_capacity(files.len());
        for history in files {
            plans.extend(self.plan_file(&history, &roots).await?);
        }
        let lost = unknown.into_iter().map(|path| FilePlan {
            path,
            touched: ChangeKind::Changed,
            unified: None,
            kept: Some("of a call whose outcome is unknown".to_owned()),
        });
        plans.extend(lost);
        Ok(plans)
    }

    async fn plan_file(&self, history: &FileHistory, roots: &GateRoots) -> Result<Option<FilePlan>, Refusal> {
        let Some(gate) = history.steps.first().map(|step| step.gate.as_str()) else { return Ok(None) };
        let state = roots.open(gate)?.file_state(&history.path).await?;
        let kept = match history.verdict(state) {
            UndoDecision::Already => return Ok(None),
            UndoDecision::Restore => None,
            UndoDecision::Leave(why) => Some(why.state().to_owned()),
        };
        let former = history.steps.get(history.first_selected()).and_then(|step| step.change.before);
        let former = OptionFuture::from(former.map(|body| self.bytes(body))).await.transpose()?;
        let (now, hidden) = match roots.file(gate, &history.path, PLANNED_FILE_BYTES_MAX) {
            Some(DiskFile::File { bytes, .. }) => (Some(bytes), false),
            Some(DiskFile::Nothing) => (None, false),
            Some(DiskFile::Hidden) | None => (None, true),
        };
        let touched = match (now.is_some() || hidden, former.is_some()) {
            (true, false) => ChangeKind::Deleted,
            (false, true) => ChangeKind::Created,
            (true, true) | (false, false) => ChangeKind::Changed,
        };
        let path = history.path.clone();
        let unified = match (text(now.as_deref()), text(former.as_deref())) {
            (Some(now), Some(former)) if !hidden => Some(unified_diff(&path, touched, now, former)),
            (Some(_) | None, Some(_) | None) => None,
        };
        Ok(Some(FilePlan { path, touched, unified, kept }))
    }

    /// Returns the bytes that a run left in a file of this gate with its last change. None if the run did not change
    /// the file, or if the bytes cannot be reconstructed from the record.
    pub async fn content_left(
        &self,
        run: RunId,
        roots: &GateRoots,
        gate: &str,
        path: &str,
    ) -> Result<Option<Vec<u8>>, Refusal> {
        self.own_run(run).await?;
        let folder = roots.by_gate.get(gate);
        let FileHistories { files, .. } = self.histories(run, None, roots).await?;
        let same_file = |history: &&FileHistory| {
            history.path == path && history.steps.iter().any(|step| roots.by_gate.get(&step.gate) == folder)
        };
        let Some(last) = files.iter().find(same_file).and_then(|history| history.steps.last()) else { return Ok(None) };
        let Some(left) = last.change.after else { return Ok(None) };
        self.reconstruct(&last.gate, last.args.as_ref(), last.change.before, left).await
    }
}
