//! `cantrip conformance`: runs case files against this runtime and prints a line for each case.

use std::path::PathBuf;
use std::process::ExitCode;

use cantrip::{MachineClock, MachineEntropy};
use cantrip_canon::{Clock, IdSource};
use cantrip_circle::MediumKind;
use cantrip_conformance::{Case, Suite, Verdict, read_files, unreadable};
use cantrip_loom::{AnyLoom, Jsonl};
use cantrip_reply::{Call, Guard, Refusal, codes};
use serde_json::{Value, json};

use cantrip_local::spells;
use cantrip_terminal::present::{Present, answer};

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

/// Opens the loom of all cases; None if each case gets its own in memory.
fn open_loom(url: &str) -> Result<Option<AnyLoom>, Refusal> {
    let opened = match url.split_once(':') {
        Some(("memory", "")) => return Ok(None),
        Some(("jsonl", folder)) if !folder.is_empty() => Jsonl::open(folder).map(AnyLoom::new),
        Some(("sqlite" | "postgres" | "postgresql", _)) => cantrip_store::Store::open(url).map(AnyLoom::new),
        Some(_) | None => {
            let rule = "not a store; use memory:, jsonl:DIR, sqlite:FILE or postgres://...";
            return Err(codes::config_invalid("--store", url, rule).into());
        }
    };
    opened.map(Some).map_err(|error| cantrip::store_refusal(&error))
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
        let has_python = cases.iter().any(|(_, case)| case.acts_in(MediumKind::Python));
        let kinds = [Some(MediumKind::Javascript), has_python.then_some(MediumKind::Python)];
        let mediums = kinds.into_iter().flatten().filter_map(|kind| spells::medium(kind).transpose());
        let mediums = mediums.collect::<Result<Vec<_>, _>>()?;
        let suite = Suite { loom: open_loom(&self.store)?, mediums };
        let (ids, clock) = (IdSource::new(MachineEntropy), MachineClock::new());
        let mut tally = Tally::default();
        for (number, case) in cases {
            let name = format!("conformance-{number}-{:032x}", ids.next_bits(clock.now().wall));
            let verdict = suite.judge(&case, name).await;
            tally.take(number, &case, verdict, present);
        }
        tally.close(present);
        Ok(tally)
    }

    fn cases(&self, present: Present) -> Result<Vec<Case>, Refusal> {
        read_files(&self.files).map_err(|faults| {
            if !present.json {
                for fault in &faults {
                    eprintln!("{}:{}: {}", fault.file, fault.issue.line, fault.issue.rule);
                }
            }
            unreadable(&faults).into()
        })
    }
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
