//! `search`: which lines match a pattern.

use std::io::Read;
use std::ops::ControlFlow;
use std::time::Duration;

use cantrip_reply::{Filled, Refusal, Success, codes};
use globset::{Glob, GlobMatcher};
use regex::{Regex, RegexBuilder};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::list::told;
use super::read::rooted;
use super::root::{Root, Seeking, Wish, open_file};
use super::walk::{Entry, Extent, Sort, Walk};
use super::{Abandoned, off_thread, reach, reads};
use crate::Label;
use crate::gate::function::{parameters, read as arguments};
use crate::gate::{AnyGate, Call, Gate, Promises, Purity};
use crate::limits::{
    FILE_BYTES_MAX, PATTERN_BYTES_MAX, PATTERN_COMPILED_BYTES_MAX, SEARCH_BYTES_MAX, SEARCH_LINE_CHARS, SEARCH_MATCHES,
    SEARCH_MATCHES_MAX, WALK_MS,
};
use crate::ward::Reach;

/// A gate that searches text files below `root`.
pub fn search(root: Option<Root>) -> AnyGate {
    let description = "Searches text files for a regular expression, line by line: path, line number and text of each.";
    let promises = Promises::new("search", description, parameters::<Question>());
    let promises = promises.labels([Label::PrivateData]).purity(Purity::ReadOnly);
    AnyGate::from(SearchGate { promises: promises.time_max(Duration::from_millis(WALK_MS)), root })
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

struct SearchGate {
    promises: Promises,
    root: Option<Root>,
}

impl Gate for SearchGate {
    fn promises(&self) -> &Promises {
        &self.promises
    }

    fn reaches(&self, arguments: &Map<String, Value>) -> Vec<Reach> {
        reach(arguments, ".", reads)
    }

    async fn call(&self, call: Call) -> Result<Filled<Success>, Refusal> {
        let gate = self.promises.name.clone();
        let question: Question = arguments(&gate, call.arguments)?;
        let path = question.path.clone().unwrap_or_else(|| ".".to_owned());
        let mut searching = Searching::new(&question)?;
        let root = rooted(self.root.as_ref(), &path)?;
        let restrict = call.restrict;
        off_thread(move |abandoned| {
            let seeking = Seeking { root: &root, gate: &gate, restrict: &restrict, wish: Wish::Read, written: &path };
            let located = seeking.locate()?;
            let extent = match (&located.name, located.folder) {
                (Some(name), Some(false)) => {
                    seeking.file(&located)?;
                    let entry =
                        Entry { folder: &located.parent, name, path: &located.real, sort: Sort::File, bytes: 0 };
                    searching.file(&entry, abandoned);
                    ControlFlow::Continue(Extent::Whole)
                }
                (_, _) => {
                    let folder = seeking.folder(&located)?;
                    let mut walk = Walk::new(&restrict, true, root.gitignore, abandoned);
                    walk.above(&root.dir(), &located.real);
                    walk.visit(&folder, &located.real, 0, &mut |entry| {
                        searching.file(entry, abandoned);
                        if searching.bytes_left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                    })
                }
            };
            Ok(codes::read(&path).value(told("matches", searching.shown, searching.total, extent)))
        })
        .await
    }
}

struct Searching {
    pattern: Regex,
    names: Option<GlobMatcher>,
    limit: usize,
    shown: Vec<Value>,
    total: usize,
    /// Of all files together.
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

    fn file(&mut self, entry: &Entry<'_>, abandoned: &Abandoned) {
        let named = self.names.as_ref().is_none_or(|names| names.is_match(entry.name));
        if entry.sort != Sort::File || !named || entry.bytes > FILE_BYTES_MAX as u64 {
            return;
        }
        let Ok(file) = open_file(entry.folder, entry.name) else { return };
        if !file.metadata().is_ok_and(|found| found.is_file()) {
            return;
        }
        let mut bytes = Vec::new();
        let taken = file.take(FILE_BYTES_MAX as u64).read_to_end(&mut bytes).is_ok();
        self.bytes_left = self.bytes_left.saturating_sub(bytes.len() as u64);
        // What is no text has no lines to show.
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

/// A parser's complaint without the drawing above it.
fn last_line(text: &str) -> String {
    text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
}
