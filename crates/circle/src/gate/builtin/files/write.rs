//! `write`: replaces the text of a file, and records the former content.
//!
//! The text is written to a new file beside the old one, which then takes its name. So no reader ever sees half of the
//! text, and another hard link to the old file keeps the old text. The former content is recorded with the change, so
//! that a run can be undone.

use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{io, process};

use cantrip_canon::bytes_hash;
use cantrip_loom::limits::BODY_BYTES_MAX;
use cantrip_loom::{Body, FileChange};
use cantrip_reply::{Refusal, ReplyDraft, Success, codes};
use cap_std::fs::{Dir, OpenOptions, Permissions, PermissionsExt};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::operation::{FileOperation, OperationContext, gate};
use super::read::bytes;
use super::root::{FileAccess, PathResolver, ResolvedPath, Root};
use crate::approved_files;
use crate::gate::{AnyGate, Effects, Purity};
use crate::limits::FILE_BYTES_MAX;

/// Makes a gate that writes text files below `root`. It creates no folders.
pub fn write(root: Option<Root>) -> AnyGate {
    let description = "Writes a text file, replacing what was there. Its folder must exist.";
    gate::<Text>("write", description, root, |promises| promises.purity(Purity::Idempotent).brief())
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Text {
    /// From the root of the files.
    path: String,
    /// The whole new text.
    content: String,
}

impl FileOperation for Text {
    const ACCESS: FileAccess = FileAccess::Write;

    fn path(&self) -> Option<&str> {
        Some(&self.path)
    }

    fn run(self, seeking: &PathResolver<'_>, around: &OperationContext) -> Result<ReplyDraft<Success>, Refusal> {
        let located = seeking.locate()?;
        let before = match located.folder {
            None => None,
            Some(_) => Some(PreviousContent::of(seeking, &located)?),
        };
        replace(seeking, &located, before, self.content.as_bytes(), &around.effects)
    }
}

/// The content of a file before it is changed, and its permissions.
pub(super) struct PreviousContent {
    pub(super) bytes: Vec<u8>,
    permissions: Permissions,
}

impl PreviousContent {
    pub(super) fn of(seeking: &PathResolver<'_>, located: &ResolvedPath) -> Result<Self, Refusal> {
        let file = seeking.file(located)?;
        let found = file.metadata().map_err(|error| seeking.failed("reading", &error))?;
        // The set-user-id and set-group-id bits are not carried over to a new text.
        let permissions = Permissions::from_mode(found.permissions().mode() & 0o777);
        Ok(Self { bytes: bytes(seeking, file, BODY_BYTES_MAX)?, permissions })
    }
}

/// Replaces the located file by `after`, and records the change.
pub(super) fn replace(
    seeking: &PathResolver<'_>,
    located: &ResolvedPath,
    before: Option<PreviousContent>,
    after: &[u8],
    effects: &Effects,
) -> Result<ReplyDraft<Success>, Refusal> {
    let Some(name) = &located.name else { return Err(seeking.unusable("it is a folder")) };
    if after.len() > FILE_BYTES_MAX {
        return Err(codes::limit(format!("the text for {}", seeking.written), after.len(), FILE_BYTES_MAX).into());
    }
    let (before, permissions) = match before {
        Some(PreviousContent { bytes, permissions }) => (Some(bytes), Some(permissions)),
        None => (None, None),
    };
    let Ok(body) = before.map(Body::new).transpose() else {
        return Err(seeking.unusable("what is there is too large to be kept"));
    };
    if let Err(error) = put(&located.parent, name, after, permissions) {
        return Err(if error.kind() == io::ErrorKind::IsADirectory {
            seeking.unusable("it is a folder")
        } else if error.kind() == io::ErrorKind::NotFound {
            seeking.unusable("the folder it lies in does not exist")
        } else {
            seeking.failed("writing", &error)
        });
    }
    let parts: Vec<&str> = located.real.split('/').collect();
    if seeking.root.protection_reason(&parts).is_some() {
        // The write came this far only because a person approved it.
        approved_files::note(located.parent.as_fd(), name);
    }
    let reference = body.as_ref().map(Body::reference);
    let change = FileChange { path: located.real.clone(), before: reference, after: Some(bytes_hash(after)) };
    effects.record_change(change, body);
    let told = json!({"path": seeking.written, "bytes": after.len()});
    Ok(codes::written(after.len(), seeking.written).value(told))
}

pub(super) fn put(folder: &Dir, name: &str, text: &[u8], permissions: Option<Permissions>) -> io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let beside = format!(".cantrip-write-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let written = (|| {
        let mut file = folder.open_with(&beside, OpenOptions::new().write(true).create_new(true))?;
        file.write_all(text)?;
        if let Some(permissions) = permissions {
            file.set_permissions(permissions)?;
        }
        folder.rename(&beside, folder, name)
    })();
    if written.is_err() {
        // The temporary file must not stay behind. If removing it fails too, the first error is the one to return.
        let _ = folder.remove_file(&beside);
    }
    written
}
