//! `cantrip conformance`: does this runtime follow the rules, as a file of cases states them?
//!
//! A case is data: what is built, what is done, and what must then be true. This runner builds with the public builder,
//! acts through the service and checks only public results: the reply, the loom, and the requests that a scripted
//! crystal received. It has no special code for any rule, repairs nothing and writes no record. A case that needs a
//! missing feature fails and says so. Each file is read whole before any case runs, because a key that is ignored would
//! be an expectation that is never checked.

mod acp;
mod act;
mod action;
mod case;
mod check;
mod environment;
mod expect;
mod gates;
mod issues;
mod loopback;
mod medium;
mod pattern;
mod requests;
mod setup;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cantrip::{MachineClock, MachineEntropy};
use cantrip_canon::{Clock, IdSource};
use cantrip_circle::{Medium, MediumKind};
use cantrip_crystal::tree::Issue;
use cantrip_loom::{AnyLoom, Jsonl, MemoryLoom};
use cantrip_medium_javascript::{Javascript, Options};
use cantrip_reply::{Call, Guard, Invalid, Refusal, ReplyDraft, codes};
use serde_json::{Value, json};
use tracing::level_filters::LevelFilter;

use self::act::{CaseResults, LogBuffer};
use self::case::{Body, Case, Runs};
use self::check::Checker;
use self::environment::CaseEnvironment;
use self::expect::Expectation;
use crate::limits::{CASE_MS_MAX, CASES_BYTES_MAX, FAULTS_LISTED_MAX};
use crate::present::{Present, answer};
use crate::worker;

/// Run conformance tests from case files against this runtime.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip conformance tests/conformance/loop.yaml\n  \
                        cantrip conformance tests/conformance/*.yaml --filter LOOM\n\n\
                        Exit status: 0 if no case failed, 2 if a file cannot be read, 4 if a case failed.")]
pub(crate) struct Conformance {
    /// The YAML files with the cases.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// The store for the looms of the cases: `memory:`, `jsonl:DIR`, `sqlite:FILE` or `postgres://...`.
    #[arg(long, value_name = "URL", default_value = "memory:")]
    store: String,

    /// Run only the cases whose rule or name contains this text.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
}

/// The store of the looms.
enum Store {
    /// A new loom for each case.
    Memory,
    One(AnyLoom),
}

/// The parts that all cases share.
struct SuiteContext {
    store: Store,
    /// The mediums that need a running interpreter.
    mediums: Vec<Arc<dyn Medium>>,
}

impl SuiteContext {
    fn serves(&self, kind: MediumKind) -> bool {
        kind == MediumKind::Conversation || self.mediums.iter().any(|medium| medium.kind() == kind)
    }
}

impl Store {
    fn open(url: &str) -> Result<Self, Refusal> {
        match url.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("jsonl", folder)) if !folder.is_empty() => match Jsonl::open(folder) {
                Ok(store) => Ok(Self::One(AnyLoom::new(store))),
                Err(error) => Err(cantrip::store_refusal(&error)),
            },
            Some(("sqlite" | "postgres" | "postgresql", _)) => match cantrip_store::Store::open(url) {
                Ok(store) => Ok(Self::One(AnyLoom::new(store))),
                Err(error) => Err(cantrip::store_refusal(&error)),
            },
            Some(_) | None => {
                let rule = "it is none of memory:, jsonl:DIR, sqlite:FILE and postgres://...";
                Err(codes::config_invalid("--store", url, rule).into())
            }
        }
    }

    fn loom(&self) -> AnyLoom {
        match self {
            Self::Memory => AnyLoom::new(MemoryLoom::new()),
            Self::One(store) => store.clone(),
        }
    }
}

/// The result of one case.
enum Verdict {
    Passed(Duration),
    Failed(String),
    Skipped(String),
}

#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
    skipped: usize,
    cases: Vec<Value>,
}

impl Conformance {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        let guarded = guard
            .call(Call::surface("conformance"), |rb| async {
                match self.run_cases(present).await {
                    Ok(tally) if tally.failed == 0 => rb.success(codes::ok("conformance").data(tally.data())),
                    Ok(tally) => {
                        let cause = format!("{} of {} cases failed", tally.failed, tally.passed + tally.failed);
                        rb.error(codes::job_failed("conformance", cause).data(tally.data()))
                    }
                    Err(refusal) => rb.refuse(refusal),
                }
            })
            .await;
        present.reply(guarded, String::new)
    }

    async fn run_cases(&self, present: Present) -> Result<Tally, Refusal> {
        let cases = self.cases(present)?;
        let wanted = |case: &Case| match &self.filter {
            Some(filter) => case.rule.contains(filter.as_str()) || case.name.contains(filter.as_str()),
            None => true,
        };
        let cases: Vec<(usize, Case)> = (1..).zip(cases).filter(|(_, case)| wanted(case)).collect();
        if let (true, Some(filter)) = (cases.is_empty(), &self.filter) {
            return Err(codes::not_found("case", filter).into());
        }
        let javascript = Javascript::start(Options::default())
            .map_err(|error| codes::sandbox_unavailable("javascript", error.to_string()))?;
        let mut mediums: Vec<Arc<dyn Medium>> = vec![Arc::new(javascript)];
        if cases.iter().any(|(_, case)| case.acts_in(MediumKind::Python)) {
            mediums.push(Arc::new(worker::python()?));
        }
        let suite = SuiteContext { store: Store::open(&self.store)?, mediums };
        let (ids, clock) = (IdSource::new(MachineEntropy), MachineClock::new());
        let mut tally = Tally::default();
        for (number, case) in &cases {
            let name = format!("conformance-{number}-{:032x}", ids.next_bits(clock.now().wall));
            let verdict = judge(case, &suite, name).await;
            tally.take(*number, case, verdict, present);
        }
        tally.close(present);
        Ok(tally)
    }

    /// Returns the cases of all files, or everything that is wrong with any of them.
    fn cases(&self, present: Present) -> Result<Vec<Case>, Refusal> {
        let (mut cases, mut faults) = (Vec::new(), Vec::new());
        for path in &self.files {
            let file = path.display().to_string();
            let read = read_bounded(path).map_err(|rule| vec![Issue::new(1, rule)]).and_then(|text| case::read(&text));
            match read {
                Ok(read) => cases.extend(read),
                Err(issues) => faults.extend(issues.into_iter().map(|issue| (file.clone(), issue))),
            }
        }
        if faults.is_empty() {
            return Ok(cases);
        }
        if !present.json {
            for (file, issue) in &faults {
                eprintln!("{file}:{}: {}", issue.line, issue.rule);
            }
        }
        Err(unreadable(&faults).into())
    }
}

fn read_bounded(path: &std::path::Path) -> Result<String, String> {
    let size = fs::metadata(path).map_err(|error| error.to_string())?.len();
    if size > CASES_BYTES_MAX as u64 {
        return Err(format!("the file has {size} bytes, the limit is {CASES_BYTES_MAX}"));
    }
    fs::read_to_string(path).map_err(|error| error.to_string())
}

/// Returns a refusal with the first fault in the message and the others in the data.
fn unreadable(faults: &[(String, Issue)]) -> ReplyDraft<Invalid> {
    let (file, position, detail) = match faults.first() {
        Some((file, issue)) => (file.as_str(), format!("line {}", issue.line), issue.rule.as_str()),
        None => ("the file", "its beginning".to_owned(), "unknown"),
    };
    let listed = faults.iter().take(FAULTS_LISTED_MAX);
    let issues: Vec<Value> =
        listed.map(|(file, issue)| json!({"file": file, "line": issue.line, "rule": issue.rule})).collect();
    codes::unparsable(file, position, detail).data(json!({"issues": issues, "count": faults.len()}))
}

async fn judge(case: &Case, suite: &SuiteContext, name: String) -> Verdict {
    let runs = match &case.body {
        Body::Skipped(why) => return Verdict::Skipped((*why).to_owned()),
        Body::Runs(runs) => runs,
    };
    if let Some(medium) = case.medium.filter(|medium| !suite.serves(*medium)) {
        return Verdict::Skipped(format!("nothing serves {} here", medium.as_str()));
    }
    let begun = Instant::now();
    let limit = Duration::from_millis(CASE_MS_MAX);
    match tokio::time::timeout(limit, faults(runs, suite, name)).await {
        Ok(faults) if faults.is_empty() => Verdict::Passed(begun.elapsed()),
        Ok(faults) => Verdict::Failed(faults.join("; ")),
        Err(_) => Verdict::Failed(format!("not finished within {CASE_MS_MAX} ms")),
    }
}

/// Returns every difference between a case's results and its expectations.
async fn faults(runs: &Runs, suite: &SuiteContext, name: String) -> Vec<String> {
    match run_case(runs, suite, name).await {
        Ok(faults) => faults,
        Err(fault) => vec![fault],
    }
}

async fn run_case(runs: &Runs, suite: &SuiteContext, name: String) -> Result<Vec<String>, String> {
    let Runs { setup, action, expect } = runs;
    let logged = expect.iter().any(|wanted| matches!(wanted, Expectation::LogsExclude(_))).then(LogBuffer::default);
    // The executor runs on this thread only, so the logs of its tasks also go to this buffer.
    let _listening = logged.clone().map(|logged| {
        let to = tracing_subscriber::fmt().with_ansi(false).with_max_level(LevelFilter::TRACE);
        tracing::subscriber::set_default(to.with_writer(move || logged.clone()).finish())
    });
    let mut world = CaseEnvironment::new(setup, suite.store.loom(), &suite.mediums, name).await?;
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

impl Tally {
    fn take(&mut self, number: usize, case: &Case, verdict: Verdict, present: Present) {
        let Case { rule, name, .. } = case;
        let (word, line, detail) = match verdict {
            Verdict::Passed(took) => {
                self.passed += 1;
                ("ok", format!("{rule} {name} ({} ms)", took.as_millis()), json!({"ms": took.as_millis() as u64}))
            }
            Verdict::Failed(why) => {
                self.failed += 1;
                ("FAIL", format!("{rule} {name}: {why}"), json!({"why": why}))
            }
            Verdict::Skipped(why) => {
                self.skipped += 1;
                ("skip", format!("{rule} {name}: {why}"), json!({"why": why}))
            }
        };
        if !present.json {
            answer(&format!("{word:<4}{number:>4} {line}\n"));
        }
        let mut row = json!({"number": number, "rule": rule, "name": name, "verdict": word.to_lowercase()});
        if let (Value::Object(row), Value::Object(detail)) = (&mut row, detail) {
            row.extend(detail);
        }
        self.cases.push(row);
    }

    fn close(&self, present: Present) {
        if !present.json {
            answer(&format!("{} passed, {} failed, {} skipped\n", self.passed, self.failed, self.skipped));
        }
    }

    fn data(&self) -> Value {
        json!({"passed": self.passed, "failed": self.failed, "skipped": self.skipped, "cases": self.cases})
    }
}
