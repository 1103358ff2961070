//! The changes of a run, file by file.

use std::time::Duration;

use cantrip::canon::{Hash, RunId, TurnId, bytes_hash};
use cantrip::circle::gate::builtin::resulting_content;
use cantrip::reply::{Call, GuardedReply, Refusal, codes};
use futures_util::future::OptionFuture;
use serde::Serialize;
use serde_json::{Value, json};
use similar::{Algorithm, TextDiff};

use super::{FileHistories, FileHistory, GateRoots};
use crate::Service;
use crate::limits::{DIFF_AROUND_LINES, DIFF_LISTED_BYTES_MAX, DIFF_MS};

/// The kind of a file change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    Created,
    Changed,
    Deleted,
}

/// One side of a diff.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileVersion {
    pub hash: Hash,
    /// None if only the hash is on record.
    pub bytes: Option<usize>,
}

/// The change of one file by a run, from the bytes that it found to the bytes that it left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileDiff {
    pub path: String,
    pub touched: ChangeKind,
    pub before: Option<FileVersion>,
    pub after: Option<FileVersion>,
    /// The diff in the format of `diff -u` and `patch`; none if one side is not text, or is not on record.
    pub unified: Option<String>,
    /// True if someone else changed the file between two calls of the run; that change is in the diff too.
    pub others_between: bool,
}

impl FileDiff {
    /// Returns the change from one text to another; none stands for a file that does not exist.
    pub fn of_texts(path: &str, before: Option<&str>, after: Option<&str>) -> Self {
        let touched = match (before, after) {
            (None, Some(_)) => ChangeKind::Created,
            (Some(_), None) => ChangeKind::Deleted,
            (Some(_), Some(_)) | (None, None) => ChangeKind::Changed,
        };
        let version = |text: &str| FileVersion { hash: bytes_hash(text.as_bytes()), bytes: Some(text.len()) };
        Self {
            path: path.to_owned(),
            touched,
            before: before.map(version),
            after: after.map(version),
            unified: Some(unified_diff(path, touched, before.unwrap_or_default(), after.unwrap_or_default())),
            others_between: false,
        }
    }

    /// Returns the size before and after, if known.
    pub fn sizes(&self) -> (Option<usize>, Option<usize>) {
        let of = |side: &Option<FileVersion>| side.as_ref().and_then(|side| side.bytes);
        (of(&self.before), of(&self.after))
    }
}

/// The file changes of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileDiffs {
    pub files: Vec<FileDiff>,
    /// The paths of calls that were begun and may or may not have changed the file.
    pub unknown: Vec<String>,
}

impl Service {
    /// Returns the file changes of a run as values: all of them, or those after one of its turns.
    pub async fn file_diffs(&self, run: RunId, since: Option<TurnId>) -> Result<FileDiffs, Refusal> {
        self.own_run(run).await?;
        let FileHistories { files, unknown } = self.histories(run, since, &GateRoots::default()).await?;
        let mut diffs = Vec::with_capacity(files.len());
        for history in files {
            diffs.extend(self.file_diff(&history).await?);
        }
        Ok(FileDiffs { files: diffs, unknown })
    }

    /// Reports the file changes of a run, children included: from the bytes that it found to those that it left, or
    /// since one of its turns. `take` gets each diff in full; the reply is bounded, so it has only the sizes of long
    /// diffs.
    pub async fn diff(
        &self,
        run: RunId,
        since: Option<TurnId>,
        mut take: impl FnMut(&FileDiff) + Send,
    ) -> GuardedReply {
        let seen = async {
            self.own_run(run).await?;
            let FileHistories { files, unknown } = self.histories(run, since, &GateRoots::default()).await?;
            let (mut listed, mut room, mut cut) = (Vec::new(), DIFF_LISTED_BYTES_MAX, 0_usize);
            for history in files {
                let Some(mut file) = self.file_diff(&history).await? else { continue };
                take(&file);
                let bytes = file.unified.as_ref().map_or(0, String::len);
                if bytes > room {
                    file.unified = None;
                    cut += 1;
                } else {
                    room -= bytes;
                }
                listed.push(file);
            }
            let mut seen = json!({"run_id": run, "files": listed, "unknown": unknown});
            if cut > 0 {
                seen["truncated"] = json!({"files": cut});
            }
            Ok(codes::read(format!("changes of {run}")).value(seen))
        };
        self.runtime().guard().call(Call::surface("diff").run(run), |rb| async { rb.answer(seen.await) }).await
    }

    /// Returns none if the file is unchanged in the end.
    async fn file_diff(&self, history: &FileHistory) -> Result<Option<FileDiff>, Refusal> {
        let Some((first, last)) = history.steps.get(history.first_selected()).zip(history.steps.last()) else {
            return Ok(None);
        };
        let (found, left) = (first.change.before, last.change.after);
        let touched = match (found, left) {
            (None, None) => return Ok(None),
            (Some(found), Some(left)) if found.hash == left => return Ok(None),
            (None, Some(_)) => ChangeKind::Created,
            (Some(_), None) => ChangeKind::Deleted,
            (Some(_), Some(_)) => ChangeKind::Changed,
        };
        let before = OptionFuture::from(found.map(|body| self.bytes(body))).await.transpose()?;
        let after = match left {
            Some(hash) => self.reconstruct(&last.gate, last.args.as_ref(), last.change.before, hash).await?,
            None => None,
        };
        let unknown = left.is_some() && after.is_none();
        let path = history.path.clone();
        let unified = match (text(before.as_deref()), text(after.as_deref())) {
            (Some(before), Some(after)) if !unknown => Some(unified_diff(&path, touched, before, after)),
            _ => None,
        };
        Ok(Some(FileDiff {
            path,
            touched,
            before: found.map(|body| FileVersion { hash: body.hash, bytes: usize::try_from(body.bytes).ok() }),
            after: left.map(|hash| FileVersion { hash, bytes: after.as_ref().map(Vec::len) }),
            unified,
            others_between: !history.is_unbroken(),
        }))
    }

    /// Reconstructs the bytes that a call left from those that it found. Returns none if the result does not match the
    /// record.
    pub(super) async fn reconstruct(
        &self,
        gate: &str,
        args: Option<&Value>,
        found: Option<cantrip::loom::BodyRef>,
        left: Hash,
    ) -> Result<Option<Vec<u8>>, Refusal> {
        let found = OptionFuture::from(found.map(|body| self.bytes(body))).await.transpose()?;
        let made = args.and_then(|args| resulting_content(gate, args, found.as_deref()));
        // A call that was repeated found its own result.
        let same = found.filter(|bytes| bytes_hash(bytes) == left).map(|bytes| bytes.to_vec());
        Ok(made.filter(|bytes| bytes_hash(bytes) == left).or(same))
    }
}

/// Returns the text of a side; a missing file counts as empty text.
pub(super) fn text(bytes: Option<&[u8]>) -> Option<&str> {
    let bytes = bytes.unwrap_or_default();
    std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
}

/// Returns the difference between two texts of a file, in the format of `diff -u`. `path` is relative.
pub fn unified_diff(path: &str, touched: ChangeKind, before: &str, after: &str) -> String {
    let side = |letter: &str, absent: bool| if absent { "/dev/null".to_owned() } else { format!("{letter}/{path}") };
    let (from, to) = (side("a", touched == ChangeKind::Created), side("b", touched == ChangeKind::Deleted));
    // After the timeout the diff is longer than necessary, but still correct.
    let mut diff = TextDiff::configure();
    let diff = diff.algorithm(Algorithm::Myers).timeout(Duration::from_millis(DIFF_MS)).diff_lines(before, after);
    diff.unified_diff().context_radius(DIFF_AROUND_LINES).header(&from, &to).to_string()
}
