//! Undoes `write` and `edit`: inspects the current state of a file and restores its former bytes.
//!
//! A change is known by the real path of its file, so no link is followed here: a link at that path means that the file
//! was replaced by something else. The caller passes the state that it expects, and nothing is changed if the state
//! differs; the change follows the check immediately.

use std::io::{self, Read as _};
use std::sync::Arc;

use cantrip_canon::{Hash, bytes_hash};
use cantrip_loom::limits::BODY_BYTES_MAX;
use cantrip_reply::{Refusal, codes};
use cap_std::fs::{Permissions, PermissionsExt};
use serde_json::Value;

use super::operation::run_blocking;
use super::path::normalize;
use super::root::{FileAccess, PathResolver, ResolvedPath, Root};
use super::write::put;
use crate::ward::Restriction;

/// The state of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileState {
    Nothing,
    /// A file with bytes of this hash.
    File(Hash),
    /// A folder, a link, or a file that is too large to have come from a gate.
    Other,
}

impl FileState {
    /// Returns true if the state is the one that a change left, or found; a `None` hash means no file.
    pub fn matches_hash(self, hash: Option<Hash>) -> bool {
        match (self, hash) {
            (Self::Nothing, None) => true,
            (Self::File(there), Some(hash)) => there == hash,
            (Self::Nothing, Some(_)) | (Self::File(_), None) | (Self::Other, _) => false,
        }
    }
}

impl Root {
    /// Returns the current state at the path of a [`FileChange`](cantrip_loom::FileChange).
    pub async fn file_state(&self, path: &str) -> Result<FileState, Refusal> {
        let (root, path) = (self.clone(), path.to_owned());
        run_blocking(move |_| Ok(look(&root, &path)?.standing)).await
    }

    /// Restores the former bytes, or removes the file if there was none, provided that the current state is `left`.
    /// Otherwise nothing is changed and the current state is returned. The file has its old bytes or its new ones,
    /// never half of them.
    pub async fn restore(
        &self,
        path: &str,
        left: Option<Hash>,
        before: Option<Arc<[u8]>>,
    ) -> Result<Result<(), FileState>, Refusal> {
        let (root, path) = (self.clone(), path.to_owned());
        run_blocking(move |_| {
            let seen = look(&root, &path)?;
            if !seen.standing.matches_hash(left) {
                return Ok(Err(seen.standing));
            }
            let failed = |error: &io::Error| codes::io_failed("restoring", &path, super::root::cause(error));
            let gone = || codes::target_unusable(&path, "the folder it lay in is not there any more");
            match (seen.located, before) {
                (None, None) => {}
                (None, Some(_)) => return Err(gone().into()),
                (Some(ResolvedPath { parent, name: Some(name), .. }), Some(bytes)) => {
                    put(&parent, &name, &bytes, seen.permissions).map_err(|error| failed(&error))?;
                }
                (Some(ResolvedPath { parent, name: Some(name), folder: Some(_), .. }), None) => {
                    parent.remove_file(&name).map_err(|error| failed(&error))?;
                }
                (Some(_), _) => {}
            }
            Ok(Ok(()))
        })
        .await
    }
}

struct InspectedFile {
    /// None if even the folder of the file does not exist.
    located: Option<ResolvedPath>,
    standing: FileState,
    permissions: Option<Permissions>,
}

fn look(root: &Root, path: &str) -> Result<InspectedFile, Refusal> {
    let anywhere = Restriction::default();
    let seeking = PathResolver { root, gate: "undo", restrict: &anywhere, access: FileAccess::Read, written: path };
    let of = |located, standing, permissions| Ok(InspectedFile { located, standing, permissions });
    let located = match seeking.locate() {
        Ok(located) => located,
        Err(refusal) if refusal.code() == codes::FILE_MISSING.any() => return of(None, FileState::Nothing, None),
        Err(refusal) if refusal.code() == codes::TARGET_UNUSABLE.any() => return of(None, FileState::Other, None),
        Err(refusal) => return Err(refusal),
    };
    if located.real != path || located.folder == Some(true) {
        return of(None, FileState::Other, None);
    }
    if located.folder.is_none() {
        return of(Some(located), FileState::Nothing, None);
    }
    let file = match seeking.file(&located) {
        Ok(file) => file,
        Err(refusal) if refusal.code() == codes::FILE_MISSING.any() => {
            return of(Some(located), FileState::Nothing, None);
        }
        Err(refusal) if refusal.code() == codes::TARGET_UNUSABLE.any() => return of(None, FileState::Other, None),
        Err(refusal) => return Err(refusal),
    };
    let mode = file.metadata().map_err(|error| seeking.failed("reading", &error))?.permissions().mode();
    let mut bytes = Vec::new();
    let taken = file.take(BODY_BYTES_MAX as u64 + 1).read_to_end(&mut bytes);
    taken.map_err(|error| seeking.failed("reading", &error))?;
    if bytes.len() > BODY_BYTES_MAX {
        return of(Some(located), FileState::Other, None);
    }
    of(Some(located), FileState::File(bytes_hash(&bytes)), Some(Permissions::from_mode(mode & 0o777)))
}

/// Returns the content that a call of `write` or `edit` left, from its arguments and the former content. None for
/// another gate, or if the arguments do not determine the content.
pub fn resulting_content(gate: &str, args: &Value, before: Option<&[u8]>) -> Option<Vec<u8>> {
    let text = |key: &str| args.get(key).and_then(Value::as_str);
    match gate {
        "write" => text("content").map(|content| content.as_bytes().to_vec()),
        "edit" => {
            let before = std::str::from_utf8(before?).ok()?;
            Some(before.replace(text("old").filter(|old| !old.is_empty())?, text("new")?).into_bytes())
        }
        _ => None,
    }
}

/// Returns the path that a call of `write` or `edit` names, normalized; links on it are not followed.
pub fn target_path(gate: &str, args: &Value) -> Option<String> {
    match gate {
        "write" | "edit" => normalize(args.get("path")?.as_str()?).map(|parts| parts.join("/")),
        _ => None,
    }
}
