//! `list`: what is in a folder.

use std::ops::ControlFlow;
use std::time::Duration;

use cantrip_reply::{Filled, Refusal, Success, codes};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::read::rooted;
use super::root::{Root, Seeking, Wish};
use super::walk::{Extent, Sort, Walk};
use super::{off_thread, reach, reads};
use crate::Label;
use crate::gate::function::{parameters, read as arguments};
use crate::gate::{AnyGate, Call, Gate, Promises, Purity};
use crate::limits::{LIST_ENTRIES_MAX, WALK_MS};
use crate::ward::Reach;

/// A gate that lists folders below `root`.
pub fn list(root: Option<Root>) -> AnyGate {
    let description = "Lists a folder, by name: each entry's path, type (file, folder, link) and size.";
    let promises = Promises::new("list", description, parameters::<Folder>());
    let promises = promises.labels([Label::PrivateData]).purity(Purity::ReadOnly);
    AnyGate::from(ListGate { promises: promises.time_max(Duration::from_millis(WALK_MS)), root })
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Folder {
    /// From the root of the files; the root itself unless given.
    path: Option<String>,
    /// Also what lies in the folders below.
    recursive: Option<bool>,
}

struct ListGate {
    promises: Promises,
    root: Option<Root>,
}

impl Gate for ListGate {
    fn promises(&self) -> &Promises {
        &self.promises
    }

    fn reaches(&self, arguments: &Map<String, Value>) -> Vec<Reach> {
        reach(arguments, ".", reads)
    }

    async fn call(&self, call: Call) -> Result<Filled<Success>, Refusal> {
        let gate = self.promises.name.clone();
        let Folder { path, recursive } = arguments(&gate, call.arguments)?;
        let path = path.unwrap_or_else(|| ".".to_owned());
        let root = rooted(self.root.as_ref(), &path)?;
        let restrict = call.restrict;
        off_thread(move |abandoned| {
            let seeking = Seeking { root: &root, gate: &gate, restrict: &restrict, wish: Wish::Read, written: &path };
            let located = seeking.locate()?;
            let folder = seeking.folder(&located)?;
            let mut walk = Walk::new(&restrict, recursive.unwrap_or(false), root.gitignore, abandoned);
            walk.above(&root.dir(), &located.real);
            let (mut shown, mut total) = (Vec::new(), 0_usize);
            let mut each = |entry: &super::walk::Entry<'_>| {
                total += 1;
                if shown.len() < LIST_ENTRIES_MAX {
                    shown.push(match entry.sort {
                        Sort::File => json!({"path": entry.path, "type": "file", "bytes": entry.bytes}),
                        Sort::Folder => json!({"path": entry.path, "type": "folder"}),
                        Sort::Link => json!({"path": entry.path, "type": "link"}),
                        Sort::Other => json!({"path": entry.path, "type": "other"}),
                    });
                }
                ControlFlow::Continue(())
            };
            let extent = walk.visit(&folder, &located.real, 0, &mut each);
            Ok(codes::read(&path).value(told("entries", shown, total, extent)))
        })
        .await
    }
}

/// A list, and how much of it is missing where something is.
pub(super) fn told(key: &str, shown: Vec<Value>, total: usize, extent: ControlFlow<(), Extent>) -> Value {
    let whole = extent == ControlFlow::Continue(Extent::Whole);
    let mut told = Map::new();
    if total > shown.len() || !whole {
        let truncated = json!({"shown": shown.len(), "total": total, "counted_all": whole});
        told.insert("truncated".to_owned(), truncated);
    }
    told.insert(key.to_owned(), Value::Array(shown));
    Value::Object(told)
}
