//! `edit`: replaces a text inside a file, if it is there as often as was thought.

use cantrip_reply::{Filled, Refusal, Success, codes};
use schemars::JsonSchema;
use serde::Deserialize;

use super::errand::{Around, Errand, gate};
use super::root::{Root, Seeking, Wish};
use super::write::{Before, replace};
use crate::gate::{AnyGate, Promises};

/// A gate that edits text files below `root`.
pub fn edit(root: Option<Root>) -> AnyGate {
    let description =
        "Replaces `old` by `new` in a text file. `old` must occur exactly `count` times, once unless said.";
    gate::<Replacement>("edit", description, root, Promises::brief)
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

impl Errand for Replacement {
    const WISH: Wish = Wish::Write;
    const USUAL: &'static str = "";

    fn path(&self) -> Option<&str> {
        Some(&self.path)
    }

    fn run(self, seeking: &Seeking<'_>, around: &Around) -> Result<Filled<Success>, Refusal> {
        let located = seeking.locate()?;
        let before = Before::of(seeking, &located)?;
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
