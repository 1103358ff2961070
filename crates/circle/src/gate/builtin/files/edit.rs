//! `edit`: replaces a text inside a file, if it occurs as often as expected.

use cantrip_reply::{Refusal, ReplyDraft, Success, codes};
use schemars::JsonSchema;
use serde::Deserialize;

use super::operation::{FileOperation, OperationContext, gate};
use super::root::{FileAccess, PathResolver, Root};
use super::write::{PreviousContent, replace};
use crate::gate::{AnyGate, GateSpec};

/// Makes a gate that edits text files below `root`.
pub fn edit(root: Option<Root>) -> AnyGate {
    let description =
        "Replaces `old` by `new` in a text file. `old` must occur exactly `count` times, once unless said.";
    gate::<Replacement>("edit", description, root, GateSpec::brief)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Replacement {
    /// From the root of the files.
    path: String,
    /// The text to be replaced, with its line breaks.
    #[schemars(length(min = 1))]
    old: String,
    /// The text that takes its place.
    new: String,
    /// How often it must occur.
    #[schemars(range(min = 1))]
    count: Option<usize>,
}

impl FileOperation for Replacement {
    const ACCESS: FileAccess = FileAccess::Write;

    fn path(&self) -> Option<&str> {
        Some(&self.path)
    }

    fn run(self, seeking: &PathResolver<'_>, around: &OperationContext) -> Result<ReplyDraft<Success>, Refusal> {
        let located = seeking.locate()?;
        let before = PreviousContent::of(seeking, &located)?;
        let Ok(text) = std::str::from_utf8(&before.bytes) else {
            return Err(seeking.unusable("it is not text in UTF-8"));
        };
        let (found, wanted) = (text.matches(&self.old).count(), self.count.unwrap_or(1));
        if found != wanted {
            return Err(codes::edit_mismatch(found, seeking.written, wanted).into());
        }
        let after = text.replace(&self.old, &self.new);
        replace(seeking, &located, Some(before), after.as_bytes(), &around.effects)
    }
}
