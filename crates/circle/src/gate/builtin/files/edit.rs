//! `edit`: replaces a text inside a file, if it is there as often as was thought.

use cantrip_reply::{Filled, Refusal, Success, codes};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::read::rooted;
use super::root::{Root, Seeking, Wish};
use super::write::{Before, replace};
use super::{off_thread, reach, writes};
use crate::gate::function::{parameters, read as arguments};
use crate::gate::{AnyGate, Call, Gate, Promises};
use crate::ward::Reach;

/// A gate that edits text files below `root`.
pub fn edit(root: Option<Root>) -> AnyGate {
    let description =
        "Replaces `old` by `new` in a text file. `old` must occur exactly `count` times, once unless said.";
    AnyGate::from(EditGate { promises: Promises::new("edit", description, parameters::<Replacement>()).brief(), root })
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

struct EditGate {
    promises: Promises,
    root: Option<Root>,
}

impl Gate for EditGate {
    fn promises(&self) -> &Promises {
        &self.promises
    }

    fn reaches(&self, arguments: &Map<String, Value>) -> Vec<Reach> {
        reach(arguments, "", writes)
    }

    async fn call(&self, call: Call) -> Result<Filled<Success>, Refusal> {
        let gate = self.promises.name.clone();
        let Replacement { path, old, new, count } = arguments(&gate, call.arguments)?;
        let root = rooted(self.root.as_ref(), &path)?;
        let (restrict, effects) = (call.restrict, call.effects);
        off_thread(move |_| {
            let seeking = Seeking { root: &root, gate: &gate, restrict: &restrict, wish: Wish::Write, written: &path };
            let located = seeking.locate()?;
            let before = Before::of(&seeking, &located)?;
            let Ok(text) = std::str::from_utf8(&before.bytes) else {
                return Err(seeking.unusable("it is not text in UTF-8"));
            };
            let (found, wanted) = (text.matches(&old).count(), count.unwrap_or(1));
            if found != wanted {
                return Err(codes::edit_mismatch(found, path.as_str(), wanted).into());
            }
            let after = text.replace(&old, &new);
            replace(&seeking, &located, Some(before), after.as_bytes(), &effects)
        })
        .await
    }
}
