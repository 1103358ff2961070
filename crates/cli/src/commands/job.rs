//! Jobs of every kind on the command line: the models, the question about the plan, the progress, and how it ended.

mod records;

use std::path::Path;
use std::sync::Arc;

use cantrip::canon::RunId;
use cantrip::crystal::ModelName;
use cantrip::{Cancel, CastReply};
use cantrip_ds::job::JobProgressView;
use cantrip_reply::{Call, ExitStatus, Guard, Refusal, codes};
use cantrip_service::Service;
use serde_json::{Value, json};
use tokio::sync::watch;

use self::records::RecordLines;
use super::Context;
use cantrip_local::process::{self, Presence};
use cantrip_local::runtime::runtime;
use cantrip_local::spell_catalog::FileSpellCatalog;
use cantrip_local::spells;
use cantrip_local::store::{self, Access, Store};
use cantrip_settings::{choice, current_folder};
use cantrip_terminal::approve::can_prompt;
use cantrip_terminal::interrupt::with_interrupt;
use cantrip_terminal::job::{JobProgressLine, JobState, draw_backtest, draw_compile_report, draw_report};
use cantrip_terminal::present::{DIM, answer, program, say, strip_control};
use cantrip_terminal::user::confirm;
use cantrip_terminal::watch::OutputMode;

/// The variable that names the crystal of casts, predicts and jobs.
const CRYSTAL: &str = "CANTRIP_CRYSTAL";

/// Opens a store with the spells of this folder. A command that only reads creates nothing.
pub(super) fn open(url: Option<&str>, access: Access, guard: &Guard) -> Result<(Arc<Store>, Service), Refusal> {
    let store = Arc::new(store::open_here(url, access)?);
    let spells = FileSpellCatalog::new(Arc::clone(&store))?;
    let service = Service::new(runtime(&store, guard))
        .with_spells(spells)
        .with_liveness(|worker| process::presence(worker) == Presence::Gone);
    Ok((store, service))
}

/// Returns the crystal of artifacts that name none, unless the command line names it. A spell names its own.
pub(super) async fn default_crystal(named: Option<&str>) -> Result<Option<Result<ModelName, Refusal>>, Refusal> {
    let here = current_folder()?;
    Ok(match (named, std::env::var(CRYSTAL)) {
        (Some(_), _) => None,
        (None, Ok(named)) if !named.is_empty() => Some(spells::parse_crystal(&named)),
        (None, _) => Some(choice::crystal(&here, choice::Who::Predict).await),
    })
}

/// Asks the user about a plan, unless the command line agrees to it. Without an answer nothing is started.
pub(super) async fn agree(yes: bool, mode: OutputMode, what: &str, plan: Value) -> Result<(), Refusal> {
    if yes {
        return Ok(());
    }
    let asked = if can_prompt(mode) { confirm("start?").await } else { None };
    agreed(asked, what, plan)
}

/// Returns the refusal of a plan that nobody agreed to.
pub(super) fn agreed(asked: Option<bool>, what: &str, plan: Value) -> Result<(), Refusal> {
    match asked {
        Some(true) => Ok(()),
        Some(false) => Err(codes::approval_refused("the person at the terminal", what, "it was not started").into()),
        None => {
            let hint = "read the plan with --dry-run, and start it with --yes";
            Err(codes::no_decision(what, 0).data(json!({"plan": plan, "hint": hint})).into())
        }
    }
}

/// The progress or the records of a job while it runs.
pub(super) struct Following {
    mode: OutputMode,
    line: Option<Arc<JobProgressLine>>,
    run: watch::Receiver<Option<RunId>>,
}

impl Following {
    /// Returns a watcher for a job, and what shows the job as the watcher sees it.
    pub(super) fn new(
        mode: OutputMode,
        name: &'static str,
    ) -> (impl Fn(&JobProgressView) + Send + Sync + 'static, Self) {
        let line = mode.is_drawn().then(|| Arc::new(JobProgressLine::new(name)));
        let (known, run) = watch::channel(None::<RunId>);
        let drawn = line.clone();
        let watcher = move |progress: &JobProgressView| {
            known.send_replace(Some(progress.run));
            if let Some(line) = &drawn {
                line.show(JobState::of(progress));
            }
        };
        (watcher, Self { mode, line, run })
    }

    /// Does the work of the job, shows its progress or its records, and handles Ctrl-C.
    pub(super) async fn during(
        self,
        on: &Context<'_>,
        cancel: &Cancel,
        work: impl Future<Output = CastReply>,
    ) -> CastReply {
        let work = with_interrupt(cancel, self.mode.is_drawn(), work);
        let reply = if self.mode == OutputMode::Upserts {
            let mut lines = RecordLines::new(&on.store.loom, on.guard.redactor());
            let reply = lines.during(self.run, work).await;
            if let Some(run) = reply.run {
                lines.print_new(run).await;
            }
            reply
        } else {
            work.await
        };
        if let Some(line) = self.line {
            line.end();
        }
        reply
    }
}

/// The report of a job that has ended: as text, as a page, and the id that standard output gets.
struct EndedJob {
    drawn: String,
    page: Option<String>,
    answer: Option<String>,
    /// The line above the report of a job that was not run again.
    replayed: String,
}

/// Prints the end of a job: its report, or where it waits and the command that resumes it. Returns the exit status.
pub(super) async fn finish_job(
    on: &Context<'_>,
    mode: OutputMode,
    page: Option<&Path>,
    reply: CastReply,
) -> ExitStatus {
    let CastReply { guarded, waiting, run, .. } = reply;
    let data = guarded.reply.data();
    let waits = waiting.is_some() || data.get("state").and_then(Value::as_str) == Some("waiting");
    let is_replayed = data.get("replayed") == Some(&Value::Bool(true));
    let mut reason = data.get("reason").and_then(Value::as_str).map(strip_control).unwrap_or_default();
    if let Some(fault) = data.get("fault").and_then(|fault| fault["message"].as_str()) {
        reason = format!("{reason}: {}", strip_control(fault));
    }
    let ended = if waits { None } else { ended_job(on, data, page.is_some()).await };
    if let Some(ended) = &ended {
        if mode.is_drawn() {
            if is_replayed {
                say(&format!("{DIM}{}{DIM:#}", ended.replayed));
            }
            say(ended.drawn.trim_end());
        }
        if let (Some(path), Some(written)) = (page, &ended.page)
            && let Err(refusal) = write_page(path, written)
        {
            let refused = on.guard.call(Call::surface("job"), |rb| async { rb.refuse(refusal) }).await;
            return on.present.show_reply(refused, || {});
        }
    }
    let is_ended = guarded.reply.code() == codes::EVALUATED || guarded.reply.code() == codes::COMPILED;
    let printed = ended.and_then(|ended| ended.answer).filter(|_| is_ended && mode != OutputMode::Upserts);
    let status = on.present.show_reply(guarded, || {
        if let Some(printed) = printed {
            answer(&format!("{printed}\n"));
        }
    });
    if let Some(run) = run.filter(|_| waits && !on.present.json) {
        let again = on.store.label().again;
        say(&format!("{DIM}{run} waits ({reason}); resume it with: {} run resume {run}{again}{DIM:#}", program()));
    }
    status
}

/// Reads the report that the reply of a job names: of a backtest, of a compile, or else of an evaluation.
async fn ended_job(on: &Context<'_>, data: &serde_json::Map<String, Value>, wants_page: bool) -> Option<EndedJob> {
    let named = |key: &str| data.get(key).and_then(Value::as_str);
    if data.contains_key("backtest") {
        let view = on.service.backtest_view(named("run_id")?).await.ok()?;
        return Some(EndedJob {
            drawn: draw_backtest(&view),
            page: None,
            answer: Some(view.job.run_id.to_string()),
            replayed: "tested before; --rerun does it again".to_owned(),
        });
    }
    if let Some(report) = named("report_id") {
        let view = on.service.compile_view(report).await.ok()?;
        return Some(EndedJob {
            drawn: draw_compile_report(&view),
            page: wants_page.then(|| cantrip_pages::compile_page(&view)),
            answer: named("selected").map(str::to_owned),
            replayed: format!(
                "compiled before; --rerun does it again, and run continue {} goes on with larger bounds",
                view.run
            ),
        });
    }
    let eval = named("eval_id")?;
    let view = on.service.evaluation_view(eval).await.ok()?;
    Some(EndedJob {
        drawn: draw_report(&view),
        page: wants_page.then(|| cantrip_pages::evaluation_page(&view)),
        answer: Some(eval.to_owned()),
        replayed: "evaluated before; --rerun does it again".to_owned(),
    })
}

/// Writes a report as one page.
pub(super) fn write_page(path: &Path, page: &str) -> Result<(), Refusal> {
    std::fs::write(path, page)
        .map_err(|error| codes::io_failed("write", path.display().to_string(), error.to_string()).into())
}
