//! `cantrip doctor`: can casts be made and kept here, and if not, how is that fixed?
//!
//! Each check does the same as a cast: it opens the store and writes to it, starts the worker and makes it compute.
//! Everything that a check writes is removed again. Keys are looked up and never shown.

mod servers;
mod wire;

use std::borrow::Cow;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use cantrip::circle::MediumKind;
use cantrip::circle::gate::builtin;
use cantrip::crystal::{Response, Script, ScriptedCrystal};
use cantrip::loom::{Error, Journal, Loom, PageRequest, RunState};
use cantrip::{Cantrip, CastOptions, Runtime, store_refusal};
use cantrip_reply::{Call, Guard, Refusal, ReplyType, codes};
use serde::Serialize;
use serde_json::json;

use crate::commands::cast::dry_run;
use crate::commands::verify::{self, CheckResult};
use crate::limits::FREE_BYTES_MIN;
use cantrip_local::process::{self, Presence};
use cantrip_local::spells;
use cantrip_local::store::{self, Access, Store, StoreTarget};
use cantrip_settings::current_folder;
use cantrip_terminal::present::{BOLD, DIM, Present, answer, colour, program, strip_control};

/// Check the installation: the store, its runs, the sandboxes, the model servers and their keys.
///
/// Nothing is changed. For each problem the output says how to fix it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip doctor\n  cantrip doctor --store postgres://cantrip@localhost/looms\n  \
                        cantrip doctor --deep")]
pub(crate) struct Doctor {
    /// Verify the whole store, as cantrip verify does: the database, the records, the ledger and the receipts.
    #[arg(long)]
    deep: bool,

    /// The store for casts: sqlite:FILE, jsonl:DIR, postgres://... or memory:.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE")]
    store: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Good,
    /// Nothing is wrong, but the user may want to know.
    Note,
    /// An optional part is not there.
    Absent,
    Bad,
}

/// The result of one check.
#[derive(Debug, Serialize)]
struct Finding {
    check: Cow<'static, str>,
    verdict: Verdict,
    said: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    /// The next step for the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    /// The server that was checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<servers::Server>,
}

impl Finding {
    fn new(check: impl Into<Cow<'static, str>>, verdict: Verdict, said: impl Into<String>) -> Self {
        Self { check: check.into(), verdict, said: said.into(), code: None, hint: None, server: None }
    }

    fn good(check: impl Into<Cow<'static, str>>, said: impl Into<String>) -> Self {
        Self::new(check, Verdict::Good, said)
    }

    fn absent(check: &str, said: impl Into<String>) -> Self {
        Self::new(check.to_owned(), Verdict::Absent, said)
    }

    fn note(check: impl Into<Cow<'static, str>>, said: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..Self::new(check, Verdict::Note, said) }
    }

    fn bad(check: impl Into<Cow<'static, str>>, said: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..Self::new(check, Verdict::Bad, said) }
    }

    fn about(self, server: servers::Server) -> Self {
        Self { server: Some(server), ..self }
    }
}

impl From<CheckResult> for Finding {
    fn from(CheckResult { check, is_sound, said, code, faults: _ }: CheckResult) -> Self {
        if is_sound {
            return Self::good(check, said);
        }
        Self { code, ..Self::bad(check, said, "cantrip verify lists what was found") }
    }
}

impl Doctor {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        let findings = self.findings(guard).await;
        if !present.json {
            answer(&draw_findings(&findings));
        }
        let bad: Vec<&Finding> = findings.iter().filter(|finding| finding.verdict == Verdict::Bad).collect();
        let guarded = match bad.first() {
            None => {
                let filled = codes::ok("doctor").data(json!({ "findings": findings }));
                guard.call(Call::surface("doctor"), |rb| async { rb.success(filled) }).await
            }
            Some(first) => {
                let cause = format!("{}: {}", first.check, first.said);
                let data = json!({ "findings": findings, "hint": first.hint });
                let filled = codes::job_failed("doctor", cause).data(data);
                guard.call(Call::surface("doctor"), |rb| async { rb.error(filled) }).await
            }
        };
        present.reply(guarded, String::new)
    }

    async fn findings(&self, guard: &Guard) -> Vec<Finding> {
        let mut findings = Vec::new();
        match self.place() {
            Ok(place) => self.look_at_store(place, guard, &mut findings).await,
            Err(refusal) => findings.push(refusal_finding("store", guard, refusal).await),
        }
        findings.push(sandbox(MediumKind::Javascript, "a sandbox computes", guard).await);
        findings.push(if cantrip_medium_python::IS_BUILT {
            sandbox(MediumKind::Python, "a worker starts and computes", guard).await
        } else {
            Finding::absent("python", "not in this build; --features full has it")
        });
        findings.push(program_in_path("bwrap", "shell", "install bubblewrap if an agent needs a shell"));
        findings.extend(unlabelled());
        findings.extend(wire::findings().await);
        findings.extend(mcp_servers(guard).await);
        findings.extend(servers::look(guard).await);
        findings
    }

    fn place(&self) -> Result<StoreTarget, Refusal> {
        store::place(self.store.as_deref(), &current_folder()?)
    }

    async fn look_at_store(&self, place: StoreTarget, guard: &Guard, findings: &mut Vec<Finding>) {
        let missing = |path: &Path, findings: &mut Vec<Finding>| {
            let there = path.exists();
            if !there {
                findings.push(could_be_made(path));
            }
            !there
        };
        let (opened, folder) = match &place {
            StoreTarget::Memory => {
                let hint = "give --store sqlite:FILE, or none, to keep casts";
                findings.push(Finding::note("store", "memory: keeps nothing", hint));
                return;
            }
            StoreTarget::Lines(folder) => {
                if missing(&folder.join("records.jsonl"), findings) {
                    return;
                }
                (None, Some(folder.clone()))
            }
            StoreTarget::Sqlite(file) => {
                if missing(file, findings) {
                    return;
                }
                (Some(cantrip_store::Store::sqlite(file)), file.parent().map(Path::to_owned))
            }
            StoreTarget::Postgres(url) => (Some(cantrip_store::Store::postgres(url)), None),
        };
        let examined = match opened {
            Some(Ok(database)) => {
                let health = database.examine().await;
                health.map(|health| {
                    let said = format!("{} can be written to; schema {}", database.name(), health.version);
                    Finding::good("store", format!("{said}, by {}", health.made_by))
                })
            }
            Some(Err(error)) => Err(error),
            None => {
                let shown = folder.as_deref().unwrap_or(Path::new(".")).display().to_string();
                let opened = folder.as_deref().map(cantrip::loom::Jsonl::open);
                match opened {
                    Some(Err(error)) => Err(error),
                    Some(Ok(_)) | None => Ok(Finding::good("store", format!("jsonl:{shown} can be written to"))),
                }
            }
        };
        match examined {
            Ok(finding) => findings.push(finding),
            Err(error) => {
                findings.push(refusal_finding("store", guard, store_refusal(&error)).await);
                return;
            }
        }
        if let Some(folder) = folder {
            findings.push(free_space(&folder));
        }
        match self.open() {
            Ok(store) => {
                findings.push(match runs(&store).await {
                    Ok(finding) => finding,
                    Err(error) => refusal_finding("runs", guard, store_refusal(&error)).await,
                });
            }
            Err(refusal) => findings.push(refusal_finding("runs", guard, refusal).await),
        }
        if self.deep {
            match verify::results(place, self.store.as_deref(), guard).await {
                Ok((_, _, results)) => findings.extend(results.into_iter().map(Finding::from)),
                Err(refusal) => findings.push(refusal_finding("records", guard, refusal).await),
            }
        }
    }

    fn open(&self) -> Result<Store, Refusal> {
        store::open_here(self.store.as_deref(), Access::Read)
    }
}

/// Returns a refusal as a finding: its message, its code and its hint.
async fn refusal_finding(check: &'static str, guard: &Guard, refusal: Refusal) -> Finding {
    let guarded = guard.call(Call::surface("doctor"), |rb| async { rb.refuse(refusal) }).await;
    let reply = &guarded.reply;
    let hint = reply.data().get("hint").and_then(|hint| hint.as_str()).map(str::to_owned);
    let advice = || reply.advice().map(|advice| advice.meaning().to_owned());
    Finding {
        code: Some(reply.code().to_string()),
        hint: hint.or_else(advice),
        ..Finding::new(check, Verdict::Bad, reply.message())
    }
}

/// Checks that a store which does not exist yet can be created.
fn could_be_made(file: &Path) -> Finding {
    let Some(nearest) = file.ancestors().skip(1).find(|folder| folder.is_dir() || folder.as_os_str().is_empty()) else {
        return Finding::bad("store", format!("{} has no folder", file.display()), "give --store sqlite:FILE");
    };
    let nearest = if nearest.as_os_str().is_empty() { PathBuf::from(".") } else { nearest.to_owned() };
    match tempfile::tempfile_in(&nearest) {
        Ok(_) => Finding::good("store", format!("{} will be created by the first cast", file.display())),
        Err(error) => {
            let said = format!("{} cannot be made: {error}", file.display());
            let hint = format!("make {} writable, or give --store sqlite:FILE", nearest.display());
            Finding::bad("store", said, hint)
        }
    }
}

fn free_space(folder: &Path) -> Finding {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let free = match rustix::fs::statvfs(folder) {
        Ok(found) => found.f_bavail.saturating_mul(found.f_frsize),
        Err(error) => return Finding::note("space", format!("unknown: {error}"), "look with df"),
    };
    let said = format!("{} MiB free", free >> 20);
    if free < FREE_BYTES_MIN {
        return Finding::bad("space", said, format!("free some space on the disk of {}", folder.display()));
    }
    Finding::good("space", said)
}

/// Counts the runs that no process works on, and those that wait.
async fn runs(store: &Store) -> Result<Finding, Error> {
    let loom = &store.loom;
    let (mut held, mut gone, mut waiting) = (0_u64, 0_u64, 0_u64);
    for state in [RunState::Running, RunState::Waiting] {
        let mut next = Some(PageRequest::FIRST);
        while let Some(page) = next {
            let listed = loom.runs_in(state, page).await?;
            for run in &listed.items {
                if state == RunState::Waiting {
                    waiting += 1;
                    continue;
                }
                let now = loom.lease_now(cantrip_canon::Clock::now(&cantrip::MachineClock::new()).wall).await?;
                match loom.holder(run.run_id).await? {
                    Some(lease) if lease.expires_at > now && process::presence(&lease.owner) != Presence::Gone => {
                        held += 1;
                    }
                    Some(_) | None => gone += 1,
                }
            }
            next = page.following(listed.next);
        }
    }
    let said = format!("{held} running, {gone} orphaned, {waiting} waiting");
    let (program, again) = (program(), &store.again);
    Ok(match (gone, waiting) {
        (0, 0) => Finding::good("runs", said),
        (0, _) => Finding::note("runs", said, format!("{program} run ls --state waiting{again}")),
        (_, _) => Finding::note("runs", said, format!("{program} run resume --all{again}")),
    })
}

/// Casts one program in memory.
async fn run_program(
    medium: MediumKind,
    served_by: Arc<dyn cantrip::circle::Medium>,
    guard: &Guard,
) -> Result<(), Refusal> {
    let script = Script::new([Response::code("done(6 * 7)")]);
    let cantrip = Cantrip::builder()
        .crystal(ScriptedCrystal::new("scripted/doctor", script))
        .gate(builtin::done())
        .ward("max_turns", 1)
        .medium(medium)
        .serve_medium(served_by)
        .build()
        .map_err(|faults| codes::contract_invalid(faults.first().to_string()))?;
    let reply = Runtime::in_memory().with_guard(guard.clone()).cast(&cantrip, CastOptions::on("6 times 7")).await;
    if reply.answer() == Some(&json!(42)) {
        return Ok(());
    }
    Err(codes::sandbox_unavailable(medium.as_str(), reply.reply().message()).into())
}

async fn sandbox(medium: MediumKind, said: &str, guard: &Guard) -> Finding {
    let computed = match spells::medium(medium) {
        Ok(Some(served_by)) => run_program(medium, served_by, guard).await,
        Ok(None) => Ok(()),
        Err(refusal) => Err(refusal),
    };
    match computed {
        Ok(()) => Finding::good(medium.as_str(), said),
        Err(refusal) => refusal_finding(medium.as_str(), guard, refusal).await,
    }
}

fn program_in_path(name: &'static str, check: &'static str, hint: &str) -> Finding {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file()) {
        Some(path) => Finding::good(check, path.display().to_string()),
        None => Finding::note(check, format!("no {name} in the PATH"), hint),
    }
}

/// Returns the gates of nearby spells that count as risky because they have no labels.
fn unlabelled() -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, spell) in spells::around() {
        for gate in spell.unlabelled_gates() {
            let said = format!("gate {gate} of {} has no labels", path.display());
            findings.push(Finding::note("labels", said, dry_run::unlabelled_gate(gate)));
        }
    }
    findings
}

/// Connects to the MCP servers of nearby spells and lists their tools.
async fn mcp_servers(guard: &Guard) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, spell) in spells::around() {
        for (name, server) in spell.servers() {
            findings.push(match server {
                Ok(server) => {
                    let tools: Vec<&str> = server.tools().iter().map(|tool| tool.name.as_str()).collect();
                    let (spell, revision) = (path.display(), server.revision());
                    let said =
                        format!("{name} of {spell}: revision {revision}, {} tools: {}", tools.len(), tools.join(", "));
                    Finding::good("mcp", said)
                }
                Err(fault) => refusal_finding("mcp", guard, fault.into()).await,
            });
        }
    }
    findings
}

fn draw_findings(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { check, verdict, said, code, hint, .. } in findings {
        let (style, word) = match verdict {
            Verdict::Good => (colour(ReplyType::Success), "ok"),
            Verdict::Note => (colour(ReplyType::Invalid), "note"),
            Verdict::Absent => (DIM, "-"),
            Verdict::Bad => (colour(ReplyType::Failure), "bad"),
        };
        let code = code.as_ref().map(|code| format!(" {DIM}{code}{DIM:#}")).unwrap_or_default();
        let _ = writeln!(text, "{style}{word:<5}{style:#} {BOLD}{check:<11}{BOLD:#} {}{code}", strip_control(said));
        if let Some(hint) = hint {
            let _ = writeln!(text, "{:<5} {:<11} {DIM}{}{DIM:#}", "", "", strip_control(hint));
        }
    }
    text
}
