//! The conformance runner: runs the cases of a file and compares what happens with what they expect.
//!
//! A case is data: what is built, what is done, and what must then be true. This runner builds with the public builder,
//! acts through the service and checks only public results: the reply, the loom, and the requests that a scripted
//! crystal received. It repairs nothing and writes no record. It answers by itself only a request that the public API
//! cannot express: to change a call or to delete a turn. A case that needs a missing feature fails and says so. Each file
//! is read whole before any case runs, because a key that is ignored would be an expectation that is never checked.
//!
//! The caller chooses the loom and starts the mediums, and it draws the verdicts: this crate knows neither a store nor a
//! terminal. No release needs it.

mod absent;
mod acp;
mod act;
mod action;
mod case;
mod check;
mod environment;
mod expect;
mod gates;
mod issues;
pub mod limits;
mod loopback;
mod medium;
mod pattern;
mod requests;
mod setup;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, fs};

use cantrip_circle::{Medium, MediumKind};
use cantrip_crystal::tree::Issue;
use cantrip_loom::{AnyLoom, MemoryLoom};
use cantrip_reply::{Invalid, ReplyDraft, codes};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tracing::level_filters::LevelFilter;

pub use self::case::{Case, read};

use self::act::{CaseResults, LogBuffer};
use self::case::{Body, Runs};
use self::check::Checker;
use self::environment::CaseEnvironment;
use self::expect::Expectation;
use self::limits::{CASE_MS_MAX, CASES_BYTES_MAX, ISSUES_LISTED_MAX};

/// The parts that all cases share.
pub struct Suite {
    /// The loom of all cases. If it is None, each case gets a new loom in memory.
    pub loom: Option<AnyLoom>,
    /// The mediums that need a running interpreter.
    pub mediums: Vec<Arc<dyn Medium>>,
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Suite").field("loom", &self.loom).finish_non_exhaustive()
    }
}

/// The result of one case.
#[derive(Debug)]
pub enum Verdict {
    Passed(Duration),
    Failed(String),
    Skipped(String),
}

/// A fault of a case file.
#[derive(Debug)]
pub struct FileIssue {
    pub file: String,
    pub issue: Issue,
}

/// Returns the cases of all files, or everything that is wrong with any of them.
pub fn read_files(paths: &[PathBuf]) -> Result<Vec<Case>, Vec<FileIssue>> {
    let (mut cases, mut faults) = (Vec::new(), Vec::new());
    for path in paths {
        let file = path.display().to_string();
        match read_bounded(path).map_err(|rule| vec![Issue::new(1, rule)]).and_then(|text| read(&text)) {
            Ok(read) => cases.extend(read),
            Err(issues) => faults.extend(issues.into_iter().map(|issue| FileIssue { file: file.clone(), issue })),
        }
    }
    if faults.is_empty() { Ok(cases) } else { Err(faults) }
}

fn read_bounded(path: &Path) -> Result<String, String> {
    let size = fs::metadata(path).map_err(|error| error.to_string())?.len();
    if size > CASES_BYTES_MAX as u64 {
        return Err(format!("the file has {size} bytes, the limit is {CASES_BYTES_MAX}"));
    }
    fs::read_to_string(path).map_err(|error| error.to_string())
}

/// Returns a refusal with the first fault in the message and the others in the data.
pub fn unreadable(faults: &[FileIssue]) -> ReplyDraft<Invalid> {
    let (file, position, detail) = match faults.first() {
        Some(FileIssue { file, issue }) => (file.as_str(), format!("line {}", issue.line), issue.rule.as_str()),
        None => ("the file", "its beginning".to_owned(), "unknown"),
    };
    let issues: Vec<Value> = faults
        .iter()
        .take(ISSUES_LISTED_MAX)
        .map(|FileIssue { file, issue }| json!({"file": file, "line": issue.line, "rule": issue.rule}))
        .collect();
    codes::unparsable(file, position, detail).data(json!({"issues": issues, "count": faults.len()}))
}

impl Suite {
    fn serves(&self, kind: MediumKind) -> bool {
        kind == MediumKind::Conversation || self.mediums.iter().any(|medium| medium.kind() == kind)
    }

    /// Runs one case. `name` is the name of its loom, so it must be unique in the store.
    pub async fn judge(&self, case: &Case, name: String) -> Verdict {
        let runs = match &case.body {
            Body::Skipped(why) => return Verdict::Skipped((*why).to_owned()),
            Body::Runs(runs) => runs,
        };
        if let Some(medium) = case.medium.filter(|medium| !self.serves(*medium)) {
            return Verdict::Skipped(format!("nothing serves {} here", medium.as_str()));
        }
        let begun = Instant::now();
        let limit = Duration::from_millis(CASE_MS_MAX);
        let judged: BoxFuture<'_, Vec<String>> = Box::pin(faults(runs, self, name));
        match tokio::time::timeout(limit, judged).await {
            Ok(faults) if faults.is_empty() => Verdict::Passed(begun.elapsed()),
            Ok(faults) => Verdict::Failed(faults.join("; ")),
            Err(_) => Verdict::Failed(format!("not finished within {CASE_MS_MAX} ms")),
        }
    }
}

/// Returns every difference between a case's results and its expectations.
async fn faults(runs: &Runs, suite: &Suite, name: String) -> Vec<String> {
    match run_case(runs, suite, name).await {
        Ok(faults) => faults,
        Err(fault) => vec![fault],
    }
}

async fn run_case(runs: &Runs, suite: &Suite, name: String) -> Result<Vec<String>, String> {
    let Runs { setup, action, expect } = runs;
    let logged = expect.iter().any(|wanted| matches!(wanted, Expectation::LogsExclude(_))).then(LogBuffer::default);
    // The executor runs on this thread only, so the logs of its tasks also go to this buffer.
    let _listening = logged.clone().map(|logged| {
        let to = tracing_subscriber::fmt().with_ansi(false).with_max_level(LevelFilter::TRACE);
        tracing::subscriber::set_default(to.with_writer(move || logged.clone()).finish())
    });
    let loom = suite.loom.clone().unwrap_or_else(|| AnyLoom::new(MemoryLoom::new()));
    let mut world = CaseEnvironment::new(setup, loom, &suite.mediums, name).await?;
    let mut seen = CaseResults::default();
    let wants_error = expect.iter().any(|wanted| matches!(wanted, Expectation::Error(_)));
    for (at, step) in (1..).zip(&action.steps) {
        let taken = world.step(step, &mut seen).await?;
        let expected = wants_error && at == action.steps.len();
        if let Some(refusal) = taken.refused.filter(|_| !expected) {
            return Err(format!("step {at} was refused: {refusal}"));
        }
    }
    let checker = Checker::new(&world, &seen, logged.map(|logged| logged.text())).await?;
    let mut faults = Vec::new();
    for wanted in expect {
        faults.extend(checker.check(wanted).await?);
    }
    Ok(faults)
}
