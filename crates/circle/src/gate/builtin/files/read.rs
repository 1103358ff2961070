//! `read`: returns the text of a file, or some lines of it.

use std::io::Read;

use cantrip_reply::{Refusal, ReplyDraft, Success, codes};
use cap_std::fs::File;
use schemars::JsonSchema;
use serde::Deserialize;

use super::operation::{FileOperation, OperationContext, gate};
use super::root::{FileAccess, PathResolver, Root};
use crate::Label;
use crate::gate::{AnyGate, Purity};
use crate::limits::{FILE_BYTES_MAX, READ_BYTES_MAX};

/// Makes a gate that reads text files below `root`. Without a root every call is refused with the reason.
pub fn read(root: Option<Root>) -> AnyGate {
    let description = "Reads a text file. `offset` and `limit` choose lines, counted from 1.";
    gate::<Lines>("read", description, root, |promises| promises.labels([Label::PrivateData]).purity(Purity::ReadOnly))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Lines {
    /// From the root of the files.
    path: String,
    /// The first line wanted.
    #[schemars(range(min = 1))]
    offset: Option<usize>,
    /// How many lines at most.
    limit: Option<usize>,
}

impl FileOperation for Lines {
    const ACCESS: FileAccess = FileAccess::Read;

    fn path(&self) -> Option<&str> {
        Some(&self.path)
    }

    fn run(self, seeking: &PathResolver<'_>, _: &OperationContext) -> Result<ReplyDraft<Success>, Refusal> {
        let written = seeking.written;
        let located = seeking.locate()?;
        let text = text(seeking, seeking.file(&located)?)?;
        let text = cut(seeking, text, &self)?;
        if text.len() > READ_BYTES_MAX {
            return Err(codes::limit(format!("the text of {written}"), text.len(), READ_BYTES_MAX).into());
        }
        Ok(codes::read(written).value(text))
    }
}

/// Reads a whole file that is text and not too large.
pub(super) fn text(seeking: &PathResolver<'_>, file: File) -> Result<String, Refusal> {
    let bytes = bytes(seeking, file, FILE_BYTES_MAX)?;
    String::from_utf8(bytes).map_err(|_| seeking.unusable("it is not text in UTF-8"))
}

/// Reads a whole file that is not too large.
pub(super) fn bytes(seeking: &PathResolver<'_>, file: File, limit: usize) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    // One more byte than allowed detects a file that is too large or that grows while it is read.
    let taken = file.take(limit as u64 + 1).read_to_end(&mut bytes);
    taken.map_err(|error| seeking.failed("reading", &error))?;
    if bytes.len() > limit {
        let what = format!("the size of {}", seeking.written);
        return Err(codes::limit(what, format!("more than {limit}"), limit).into());
    }
    Ok(bytes)
}

fn cut(seeking: &PathResolver<'_>, text: String, lines: &Lines) -> Result<String, Refusal> {
    if lines.offset.is_none() && lines.limit.is_none() {
        return Ok(text);
    }
    let first = lines.offset.unwrap_or(1).saturating_sub(1);
    let total = text.split_inclusive('\n').count();
    if first > 0 && first >= total {
        return Err(seeking.unusable(&format!("it has {total} lines, and line {} is past its end", first + 1)));
    }
    Ok(text.split_inclusive('\n').skip(first).take(lines.limit.unwrap_or(usize::MAX)).collect())
}
