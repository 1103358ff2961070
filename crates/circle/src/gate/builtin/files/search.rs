//! `search`: finds the lines that match a pattern.

use std::io::Read;
use std::ops::ControlFlow;
use std::time::Duration;

use cantrip_reply::{Refusal, ReplyDraft, Success, codes};
use globset::{Glob, GlobMatcher};
use regex::{Regex, RegexBuilder};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::list::render_list;
use super::operation::{CancelFlag, FileOperation, OperationContext, gate};
use super::root::{FileAccess, PathResolver, Root, open_file};
use super::walk::{Entry, EntryKind, Extent, Walk};
use crate::Label;
use crate::gate::{AnyGate, Purity};
use crate::limits::{
    FILE_BYTES_MAX, PATTERN_BYTES_MAX, PATTERN_COMPILED_BYTES_MAX, SEARCH_BYTES_MAX, SEARCH_LINE_CHARS, SEARCH_MATCHES,
    SEARCH_MATCHES_MAX, WALK_MS,
};

/// Makes a gate that searches text files below `root`.
pub fn search(root: Option<Root>) -> AnyGate {
    let description = "Searches text files for a regular expression, line by line: path, line number and text of each.";
    gate::<Question>("search", description, root, |promises| {
        promises.labels([Label::PrivateData]).purity(Purity::ReadOnly).time_max(Duration::from_millis(WALK_MS))
    })
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Question {
    /// A regular expression.
    pattern: String,
    /// A folder or a file; everything unless given.
    path: Option<String>,
    /// Only files whose name fits, such as *.rs.
    glob: Option<String>,
    /// Capital and small letters are the same.
    ignore_case: Option<bool>,
    /// How many matches at most.
    limit: Option<usize>,
}

impl FileOperation for Question {
    const ACCESS: FileAccess = FileAccess::Read;
    const DEFAULT_PATH: &'static str = ".";

    fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    fn run(self, seeking: &PathResolver<'_>, around: &OperationContext) -> Result<ReplyDraft<Success>, Refusal> {
        let mut searching = Searching::new(&self)?;
        let located = seeking.locate()?;
        let extent = match (&located.name, located.folder) {
            (Some(name), Some(false)) => {
                seeking.file(&located)?;
                let entry =
                    Entry { folder: &located.parent, name, path: &located.real, sort: EntryKind::File, bytes: 0 };
                searching.file(&entry, &around.cancel_flag);
                ControlFlow::Continue(Extent::Whole)
            }
            (_, _) => {
                let folder = seeking.folder(&located)?;
                let mut walk = Walk::of(seeking, &located, true, &around.cancel_flag);
                walk.visit(&folder, &located.real, 0, &mut |entry| {
                    searching.file(entry, &around.cancel_flag);
                    if searching.bytes_left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                })
            }
        };
        Ok(codes::read(seeking.written).value(render_list("matches", searching.shown, searching.total, extent)))
    }
}

struct Searching {
    pattern: Regex,
    names: Option<GlobMatcher>,
    limit: usize,
    shown: Vec<Value>,
    total: usize,
    /// The bytes left for all files together.
    bytes_left: u64,
}

impl Searching {
    fn new(question: &Question) -> Result<Self, Refusal> {
        let Question { pattern, glob, ignore_case, limit, path: _ } = question;
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(codes::limit("the pattern", pattern.len(), PATTERN_BYTES_MAX).into());
        }
        let pattern = RegexBuilder::new(pattern)
            .case_insensitive(ignore_case.unwrap_or(false))
            .size_limit(PATTERN_COMPILED_BYTES_MAX)
            .dfa_size_limit(PATTERN_COMPILED_BYTES_MAX)
            .build()
            .map_err(|fault| codes::unparsable("pattern", "/pattern", last_line(&fault.to_string())))?;
        let names = glob.as_deref().map(Glob::new).transpose();
        let names = names.map_err(|fault| codes::unparsable("pattern", "/glob", fault.kind().to_string()))?;
        let limit = limit.unwrap_or(SEARCH_MATCHES).min(SEARCH_MATCHES_MAX);
        let names = names.map(|glob| glob.compile_matcher());
        Ok(Self { pattern, names, limit, shown: Vec::new(), total: 0, bytes_left: SEARCH_BYTES_MAX })
    }

    fn file(&mut self, entry: &Entry<'_>, abandoned: &CancelFlag) {
        let named = self.names.as_ref().is_none_or(|names| names.is_match(entry.name));
        if entry.sort != EntryKind::File || !named || entry.bytes > FILE_BYTES_MAX as u64 {
            return;
        }
        let Ok(file) = open_file(entry.folder, entry.name) else { return };
        if !file.metadata().is_ok_and(|found| found.is_file()) {
            return;
        }
        let mut bytes = Vec::new();
        let taken = file.take(FILE_BYTES_MAX as u64).read_to_end(&mut bytes).is_ok();
        self.bytes_left = self.bytes_left.saturating_sub(bytes.len() as u64);
        // A binary file has no lines to show.
        let Some(text) = String::from_utf8(bytes).ok().filter(|text| taken && !text.contains('\0')) else { return };
        for (at, line) in text.lines().enumerate() {
            if abandoned.is_set() {
                return;
            }
            if self.pattern.is_match(line) {
                self.total += 1;
                if self.shown.len() < self.limit {
                    let shown: String = line.chars().take(SEARCH_LINE_CHARS).collect();
                    self.shown.push(json!({"path": entry.path, "line": at + 1, "text": shown}));
                }
            }
        }
    }
}

/// Returns a parser's message without the drawing above it.
fn last_line(text: &str) -> String {
    text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
}
