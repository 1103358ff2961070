//! `cantrip trace`: shows and exports the traces of predicts.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use cantrip::loom::{AnyLoom, Contracts, PageRequest, ReceiptFilter};
use cantrip::store_refusal;
use cantrip_reply::{Guard, Refusal, codes};
use cantrip_service::{Service, TraceContent, TraceName};
use serde_json::{Value, json};

use super::export_lines::ExportLines;
use super::{CommandReply, Context, run_on_store, with_text};
use crate::args::ids;
use cantrip_local::store::Access;
use cantrip_terminal::present::{DIM, Present, strip_control};

/// Show and export the traces of predicts: requests, answers and usage, step by step.
///
/// The hash of a trace is verified on every read. Secrets are redacted again unless --no-redact is given. For a trace
/// whose retention has passed, the output says when it was deleted and by which rule.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Name a trace by its reference or by the receipt of its predict. Without a name, the latest receipt \
                        that has a trace is used.\n\nExamples:\n  cantrip trace show\n  \
                        cantrip trace show rcpt_8978fcad\n  cantrip trace export --all --out traces.jsonl"
)]
pub(crate) struct TraceCommand {
    #[command(subcommand)]
    action: TraceAction,

    /// The store for traces: sqlite:FILE, postgres://... or memory:.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE", global = true)]
    store: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
enum TraceAction {
    /// Show one trace.
    #[command(after_help = "Examples:\n  cantrip trace show\n  cantrip trace show rcpt_8978fcad --json")]
    Show {
        /// The trace: its reference, or the id of its receipt or a prefix of that id.
        #[arg(value_name = "TRACE")]
        name: Option<String>,

        /// Show the trace as it was stored. It was redacted before that.
        #[arg(long)]
        no_redact: bool,
    },

    /// Export traces as JSON lines, one trace per line.
    #[command(after_help = "Examples:\n  cantrip trace export > trace.jsonl\n  \
                            cantrip trace export --run @last\n  cantrip trace export --all --out traces.jsonl")]
    Export {
        /// The trace: its reference, or the id of its receipt or a prefix of that id.
        #[arg(value_name = "TRACE")]
        name: Option<String>,

        /// Export all traces of this run.
        #[arg(long, value_name = "RUN", conflicts_with = "name")]
        run: Option<String>,

        /// Export all traces in the store.
        #[arg(long, conflicts_with_all = ["name", "run"])]
        all: bool,

        /// Export the traces as they were stored. They were redacted before that.
        #[arg(long)]
        no_redact: bool,

        /// Write to this new file instead of standard output.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
}

fn content(no_redact: bool) -> TraceContent {
    if no_redact { TraceContent::AsStored } else { TraceContent::Redacted }
}

impl TraceCommand {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        let command = async |on: Context<'_>| self.answer(&on.store.loom, on.service, present).await;
        run_on_store("trace", self.store.as_deref(), Access::Read, guard, present, command).await
    }

    async fn answer(&self, loom: &AnyLoom, service: &Service, present: Present) -> Result<CommandReply, Refusal> {
        match &self.action {
            TraceAction::Show { name, no_redact } => {
                let name = resolve(loom, name.as_deref()).await?;
                Ok(with_text(service.trace(&name, content(*no_redact)).await, draw))
            }
            TraceAction::Export { name, run, all, no_redact, out } => {
                let hint = "cantrip trace export --json --out traces.jsonl";
                let lines = ExportLines::open(out.as_deref(), present.json, hint)?;
                let wanted = match (all, run) {
                    (true, _) => Some(ReceiptFilter::default()),
                    (false, Some(run)) => {
                        let run = Some(ids::run(loom, Some(run)).await?);
                        Some(ReceiptFilter { run, ..ReceiptFilter::default() })
                    }
                    (false, None) => None,
                };
                export(service, loom, wanted, name.as_deref(), content(*no_redact), lines).await
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
    mut lines: ExportLines<'_>,
) -> Result<CommandReply, Refusal> {
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

/// Returns the trace of this name; without a name, the trace of the last receipt that has one.
async fn resolve(loom: &AnyLoom, name: Option<&str>) -> Result<TraceName, Refusal> {
    match name {
        Some(reference) if reference.starts_with("trace:") => Ok(TraceName::Reference(reference.to_owned())),
        Some(receipt) if receipt != "@last" => Ok(TraceName::Receipt(ids::receipt(loom, Some(receipt)).await?)),
        Some(_) | None => last(loom).await,
    }
}

async fn last(loom: &AnyLoom) -> Result<TraceName, Refusal> {
    let latest = ReceiptFilter { latest_first: true, ..ReceiptFilter::default() };
    let mut next = Some(PageRequest::FIRST);
    while let Some(page) = next {
        let listed = loom.receipts(latest.clone(), page).await.map_err(|error| store_refusal(&error))?;
        if let Some(reference) = listed.items.iter().find_map(|row| row.receipt().ok()?.trace_ref) {
            return Ok(TraceName::Reference(reference));
        }
        next = page.following(listed.next);
    }
    let hint = "a predict leaves one: cantrip predict SIGNATURE --trace full";
    Err(codes::not_found("trace", "@last").data(json!({ "hint": hint })).into())
}

/// Renders a trace: its metadata, then its content.
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
