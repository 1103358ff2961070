//! `list`: lists the entries of a folder.

use std::ops::ControlFlow;
use std::time::Duration;

use cantrip_reply::{Refusal, ReplyDraft, Success, codes};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::operation::{FileOperation, OperationContext, gate};
use super::root::{FileAccess, PathResolver, Root};
use super::walk::{Entry, EntryKind, Extent, Walk};
use crate::Label;
use crate::gate::{AnyGate, Purity};
use crate::limits::{LIST_ENTRIES_MAX, WALK_MS};

/// Makes a gate that lists folders below `root`.
pub fn list(root: Option<Root>) -> AnyGate {
    let description = "Lists a folder, by name: each entry's path, type (file, folder, link) and size.";
    gate::<Folder>("list", description, root, |promises| {
        promises.labels([Label::PrivateData]).purity(Purity::ReadOnly).time_max(Duration::from_millis(WALK_MS))
    })
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Folder {
    /// From the root of the files; the root itself unless given.
    path: Option<String>,
    /// Also what lies in the folders below.
    recursive: Option<bool>,
}

impl FileOperation for Folder {
    const ACCESS: FileAccess = FileAccess::Read;
    const DEFAULT_PATH: &'static str = ".";

    fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    fn run(self, seeking: &PathResolver<'_>, around: &OperationContext) -> Result<ReplyDraft<Success>, Refusal> {
        let located = seeking.locate()?;
        let folder = seeking.folder(&located)?;
        let mut walk = Walk::of(seeking, &located, self.recursive.unwrap_or(false), &around.cancel_flag);
        let (mut shown, mut total) = (Vec::new(), 0_usize);
        let mut each = |entry: &Entry<'_>| {
            total += 1;
            if shown.len() < LIST_ENTRIES_MAX {
                shown.push(match entry.sort {
                    EntryKind::File => json!({"path": entry.path, "type": "file", "bytes": entry.bytes}),
                    EntryKind::Folder => json!({"path": entry.path, "type": "folder"}),
                    EntryKind::Link => json!({"path": entry.path, "type": "link"}),
                    EntryKind::Other => json!({"path": entry.path, "type": "other"}),
                });
            }
            ControlFlow::Continue(())
        };
        let extent = walk.visit(&folder, &located.real, 0, &mut each);
        Ok(codes::read(seeking.written).value(render_list("entries", shown, total, extent)))
    }
}

/// Renders a list, with the number of missing entries if it is not complete.
pub(super) fn render_list(key: &str, shown: Vec<Value>, total: usize, extent: ControlFlow<(), Extent>) -> Value {
    let whole = extent == ControlFlow::Continue(Extent::Whole);
    let mut told = Map::new();
    if total > shown.len() || !whole {
        let truncated = json!({"shown": shown.len(), "total": total, "counted_all": whole});
        told.insert("truncated".to_owned(), truncated);
    }
    told.insert(key.to_owned(), Value::Array(shown));
    Value::Object(told)
}
