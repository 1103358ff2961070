//! What a run changed, file by file.

use std::sync::Arc;
use std::time::Duration;

use cantrip::canon::{Hash, RunId, TurnId, bytes_hash};
use cantrip::circle::gate::builtin::resulting_content;
use cantrip::reply::{Call, GuardedReply, Refusal, codes};
use serde::Serialize;
use serde_json::{Value, json};
use similar::{Algorithm, TextDiff};

use super::{FileHistories, FileHistory, GateRoots};
use crate::Service;
use crate::limits::{DIFF_AROUND_LINES, DIFF_LISTED_BYTES_MAX, DIFF_MS};

/// What became of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    Created,
    Changed,
    Deleted,
}

/// One side of a difference.
#[derive(Debug, Clone, Serialize)]
struct FileVersion {
    hash: Hash,
    /// None where only the hash is on record.
    bytes: Option<usize>,
}

/// What a run made of one file, from what it found to what it left.
#[derive(Debug, Clone, Serialize)]
pub struct FileDiff {
    pub path: String,
    pub touched: ChangeKind,
    before: Option<FileVersion>,
    after: Option<FileVersion>,
    /// As `diff -u` and `patch` have it; none where one side is no text, or is not on record.
    pub unified: Option<String>,
    /// Someone else changed it between two calls of the run, and that is in the difference too.
    pub others_between: bool,
}

impl FileDiff {
    /// How large it was and is, as far as that is known.
    pub fn sizes(&self) -> (Option<usize>, Option<usize>) {
        let of = |side: &Option<FileVersion>| side.as_ref().and_then(|side| side.bytes);
        (of(&self.before), of(&self.after))
    }
}

impl Service {
    /// What a run changed in files, children included: from what it found to what it left, or since a turn of it. Each
    /// file goes to `take` whole; a reply is bounded, so in it long differences give way to their sizes.
    pub async fn diff(&self, run: RunId, since: Option<TurnId>, mut take: impl FnMut(&FileDiff)) -> GuardedReply {
        let call = Call::surface("diff").run(run);
        let answered = self.runtime().guard().call(call, |rb| async {
            let seen = async {
                self.own_run(run).await?;
                self.histories(run, since, &GateRoots::default()).await
            };
            let FileHistories { files, unknown } = match seen.await {
                Ok(seen) => seen,
                Err(refusal) => return rb.refuse(refusal),
            };
            let (mut listed, mut room, mut cut) = (Vec::new(), DIFF_LISTED_BYTES_MAX, 0_usize);
            for history in files {
                let mut file = match self.file_diff(&history).await {
                    Ok(Some(file)) => file,
                    Ok(None) => continue,
                    Err(refusal) => return rb.refuse(refusal),
                };
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
            rb.success(codes::read(format!("changes of {run}")).value(seen))
        });
        answered.await
    }

    /// None if nothing is different in the end.
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
        let before = match found {
            Some(body) => Some(self.bytes(body).await?),
            None => None,
        };
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

    /// What a call left, made again from what it found; none if that does not give what is on record.
    async fn reconstruct(
        &self,
        gate: &str,
        args: Option<&Value>,
        found: Option<cantrip::loom::BodyRef>,
        left: Hash,
    ) -> Result<Option<Vec<u8>>, Refusal> {
        let found: Option<Arc<[u8]>> = match found {
            Some(body) => Some(self.bytes(body).await?),
            None => None,
        };
        let made = args.and_then(|args| resulting_content(gate, args, found.as_deref()));
        // A call that was made again found its own work.
        let same = found.filter(|bytes| bytes_hash(bytes) == left).map(|bytes| bytes.to_vec());
        Ok(made.filter(|bytes| bytes_hash(bytes) == left).or(same))
    }
}

/// The text of a side; an absent file has the empty one.
fn text(bytes: Option<&[u8]>) -> Option<&str> {
    let bytes = bytes.unwrap_or_default();
    std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
}

fn unified_diff(path: &str, touched: ChangeKind, before: &str, after: &str) -> String {
    let side = |letter: &str, absent: bool| if absent { "/dev/null".to_owned() } else { format!("{letter}/{path}") };
    let (from, to) = (side("a", touched == ChangeKind::Created), side("b", touched == ChangeKind::Deleted));
    // Past its time a difference is longer than it need be, and still right.
    let mut diff = TextDiff::configure();
    let diff = diff.algorithm(Algorithm::Myers).timeout(Duration::from_millis(DIFF_MS)).diff_lines(before, after);
    diff.unified_diff().context_radius(DIFF_AROUND_LINES).header(&from, &to).to_string()
}
