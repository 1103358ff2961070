//! `cantrip trace`: what a predict did, read back.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use cantrip::loom::{AnyLoom, Contracts, PageRequest, ReceiptFilter};
use cantrip::store_refusal;
use cantrip_reply::{Call, Guard, GuardedReply, Refusal, codes};
use cantrip_service::{Service, TraceContent, TraceName};
use serde_json::{Value, json};

use crate::loom::find;
use crate::present::{DIM, Present, strip_control};
use crate::receipt;
use crate::store;
use crate::watch::{OutputMode, Viewer};

/// Read traces of predicts back: what was asked, said and used, step by step.
///
/// The hash of a trace is checked every time. Secrets are taken out again unless --no-redact is given. A trace whose retention
/// has passed says when it was deleted and by which rule.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A trace is named by its reference or by the receipt of its predict; without a name the last receipt \
                        that has a trace is meant.\n\nExamples:\n  cantrip trace show\n  \
                        cantrip trace show rcpt_8978fcad\n  cantrip trace export --all --out traces.jsonl"
)]
pub(crate) struct TraceCommand {
    #[command(subcommand)]
    action: TraceAction,

    /// Where traces are kept: sqlite:FILE, postgres://... or memory:.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE", global = true)]
    store: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
enum TraceAction {
    /// Show one trace.
    #[command(after_help = "Examples:\n  cantrip trace show\n  cantrip trace show rcpt_8978fcad --json")]
    Show {
        /// The trace: its reference, or the id of its receipt or the beginning of that id.
        #[arg(value_name = "TRACE")]
        name: Option<String>,

        /// Show it as it was stored. It was sanitised then.
        #[arg(long)]
        no_redact: bool,
    },

    /// Write traces as lines of JSON, one trace a line.
    #[command(after_help = "Examples:\n  cantrip trace export > trace.jsonl\n  \
                            cantrip trace export --run @last\n  cantrip trace export --all --out traces.jsonl")]
    Export {
        /// The trace: its reference, or the id of its receipt or the beginning of that id.
        #[arg(value_name = "TRACE")]
        name: Option<String>,

        /// All traces of this run.
        #[arg(long, value_name = "RUN", conflicts_with = "name")]
        run: Option<String>,

        /// All traces of the store.
        #[arg(long, conflicts_with_all = ["name", "run"])]
        all: bool,

        /// Write them as they were stored. They were sanitised then.
        #[arg(long)]
        no_redact: bool,

        /// Write to a new file, not to standard output.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
}

fn content(no_redact: bool) -> TraceContent {
    if no_redact { TraceContent::AsStored } else { TraceContent::Redacted }
}

impl TraceCommand {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        match self.answer(guard, present).await {
            Ok((guarded, drawn)) => present.reply(guarded, || drawn),
            Err(refusal) => {
                let guarded = guard.call(Call::surface("trace"), |rb| async { rb.refuse(refusal) }).await;
                present.reply(guarded, String::new)
            }
        }
    }

    async fn answer(&self, guard: &Guard, present: Present) -> Result<(GuardedReply, String), Refusal> {
        let here = std::env::current_dir().map_err(|error| codes::io_failed("find", ".", error.to_string()))?;
        let store = store::open_to_read(self.store.as_deref(), &here)?;
        let service = Service::new(Viewer::new(OutputMode::Nothing).runtime(&store, guard));
        match &self.action {
            TraceAction::Show { name, no_redact } => {
                let name = resolve(&store.loom, name.as_deref()).await?;
                let guarded = service.trace(&name, content(*no_redact)).await;
                let drawn = guarded.reply.value().map(draw).unwrap_or_default();
                Ok((guarded, drawn))
            }
            TraceAction::Export { name, run, all, no_redact, out } => {
                let lines = Lines::open(out.as_ref(), present.json)?;
                let wanted = match (all, run) {
                    (true, _) => Some(ReceiptFilter::default()),
                    (false, Some(run)) => {
                        let run = Some(find::run(&store.loom, Some(run)).await?);
                        Some(ReceiptFilter { run, ..ReceiptFilter::default() })
                    }
                    (false, None) => None,
                };
                export(&service, &store.loom, wanted, name.as_deref(), content(*no_redact), lines).await
            }
        }
    }
}

async fn export(
    service: &Service,
    loom: &AnyLoom,
    wanted: Option<ReceiptFilter>,
    name: Option<&str>,
    content: TraceContent,
    mut lines: Lines,
) -> Result<(GuardedReply, String), Refusal> {
    let guarded = match wanted {
        Some(wanted) => service.export_traces(wanted, content, |line| lines.write(line)).await,
        None => {
            let guarded = service.trace(&resolve(loom, name).await?, content).await;
            if let Some(value) = guarded.reply.value() {
                lines.write(&value.to_string());
            }
            guarded
        }
    };
    lines.end()?;
    Ok((guarded, String::new()))
}

/// Where the lines of an export go.
struct Lines {
    to: Box<dyn Write>,
    path: Option<PathBuf>,
    written: io::Result<()>,
}

impl Lines {
    fn open(path: Option<&PathBuf>, json: bool) -> Result<Self, Refusal> {
        let to: Box<dyn Write> = match path {
            Some(file) => {
                let shown = file.display().to_string();
                let made = File::create_new(file).map_err(|error| {
                    if error.kind() == io::ErrorKind::AlreadyExists {
                        let wanted = "a name that is free";
                        return Refusal::from(codes::wrong_state(
                            "file",
                            shown.as_str(),
                            "there already",
                            "export",
                            wanted,
                        ));
                    }
                    codes::io_failed("write", shown.as_str(), error.to_string()).into()
                })?;
                Box::new(BufWriter::new(made))
            }
            None if json => {
                let hint = "cantrip trace export --json --out traces.jsonl";
                let refused = codes::config_invalid("--json", "export", "needs --out FILE for the lines");
                return Err(refused.data(json!({ "hint": hint })).into());
            }
            None => Box::new(BufWriter::new(io::stdout().lock())),
        };
        Ok(Self { to, path: path.cloned(), written: Ok(()) })
    }

    fn write(&mut self, line: &str) {
        if self.written.is_ok() {
            self.written = writeln!(self.to, "{line}");
        }
    }

    /// Flushes. A reader of the pipe that went away wants no more lines.
    fn end(mut self) -> Result<(), Refusal> {
        match self.written.and_then(|()| self.to.flush()) {
            Ok(()) => Ok(()),
            Err(error) if self.path.is_none() && error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(error) => {
                let path = self.path.map_or_else(|| "standard output".to_owned(), |path| path.display().to_string());
                Err(codes::io_failed("write", path, error.to_string()).into())
            }
        }
    }
}

/// The trace of this name; without one, that of the last receipt that has a trace.
async fn resolve(loom: &AnyLoom, name: Option<&str>) -> Result<TraceName, Refusal> {
    match name {
        Some(reference) if reference.starts_with("trace:") => Ok(TraceName::Reference(reference.to_owned())),
        Some(receipt) if receipt != "@last" => {
            Ok(TraceName::Receipt(receipt::resolve_receipt(loom, Some(receipt)).await?))
        }
        Some(_) | None => last(loom).await,
    }
}

async fn last(loom: &AnyLoom) -> Result<TraceName, Refusal> {
    let latest = ReceiptFilter { latest_first: true, ..ReceiptFilter::default() };
    let mut page = PageRequest::FIRST;
    loop {
        let listed = loom.receipts(latest.clone(), page).await.map_err(|error| store_refusal(&error))?;
        let traced = listed.items.iter().find_map(|row| row.receipt().ok()?.trace_ref);
        match (traced, listed.next) {
            (Some(reference), _) => return Ok(TraceName::Reference(reference)),
            (None, Some(after)) => page.after = Some(after),
            (None, None) => {
                let hint = "a predict leaves one: cantrip predict SIGNATURE --trace full";
                return Err(codes::not_found("trace", "@last").data(json!({ "hint": hint })).into());
            }
        }
    }
}

/// A trace as text: what is known of it, then its content.
fn draw(value: &Value) -> String {
    let text = |key: &str| value[key].as_str().map(strip_control).unwrap_or_default();
    let mut drawn = String::new();
    let _ = writeln!(drawn, "{}  {DIM}{}{DIM:#}", text("trace_ref"), text("trace_hash"));
    let place = match value["uri"].as_str() {
        Some(uri) => format!("{} at {}", text("storage"), strip_control(uri)),
        None => text("storage"),
    };
    let _ = writeln!(drawn, "{DIM}{place}, made {}, kept until {}{DIM:#}", text("created_at"), text("expires_at"));
    let content = serde_json::to_string_pretty(&value["trace"]).unwrap_or_default();
    let _ = writeln!(drawn, "{}", strip_control(&content));
    drawn
}
