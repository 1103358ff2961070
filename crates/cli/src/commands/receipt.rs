//! `cantrip receipt`: lists, shows and verifies the receipts of predicts and casts.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cantrip::loom::{AnyLoom, Contracts, PageRequest, ReceiptFilter};
use cantrip::{Runtime, store_refusal};
use cantrip_reply::{Guard, GuardedReply, Refusal, codes};
use cantrip_service::Service;
use serde_json::{Value, json};

use super::{CommandReply, Context, print_reply, run_on_store, with_text};
use crate::args::{ids, input_files, signatures};
use crate::limits::RECEIPTS_LISTED_MAX;
use cantrip_local::store::Access;
use cantrip_terminal::present::{BOLD, DIM, Present, strip_control};

/// List, show and verify receipts (the audit records of predicts and casts).
///
/// Every predict and every cast leaves a receipt: the artifact that ran, the policy decisions, the cost, and hashes of
/// the input and output. The receipts of a run form a hash chain.
#[derive(Debug, clap::Args)]
#[command(after_help = "Ids may be shortened to a unique prefix. Without an id, the latest receipt is used.\n\n\
                        Examples:\n  cantrip receipt ls\n  cantrip receipt show\n  cantrip receipt verify --all\n  \
                        cantrip receipt verify --run @last\n  cantrip receipt verify --export journal.jsonl")]
pub(crate) struct ReceiptCommand {
    #[command(subcommand)]
    what: ReceiptAction,

    /// The store for receipts: sqlite:FILE, postgres://... or memory:.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE", global = true)]
    store: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
enum ReceiptAction {
    /// List receipts, newest first.
    Ls(Narrowed),

    /// Show one receipt in full.
    Show {
        /// The receipt: its id or a prefix of it. Default: the latest receipt.
        receipt: Option<String>,
    },

    /// Verify receipts and report the first thing that was changed.
    ///
    /// A receipt is compared with its own bytes, with its chain, and with the input, output, artifact, trace, decisions
    /// and money that it names.
    Verify {
        /// The receipt: its id or a prefix of it. Default: the latest receipt.
        receipt: Option<String>,

        /// Verify the receipts of this run.
        #[arg(long, value_name = "RUN", conflicts_with = "receipt")]
        run: Option<String>,

        /// Verify all receipts.
        #[arg(long, conflicts_with_all = ["receipt", "run"])]
        all: bool,

        /// Verify all receipts in a journal that was exported with --no-redact. Needs neither the store nor a network.
        #[arg(long, value_name = "FILE", conflicts_with_all = ["receipt", "run", "all"])]
        export: Option<PathBuf>,
    },
}

#[derive(Debug, clap::Args)]
struct Narrowed {
    /// List only receipts of this run.
    #[arg(long, value_name = "RUN")]
    run: Option<String>,

    /// List only receipts of this signature.
    #[arg(long, value_name = "SIGNATURE")]
    signature: Option<String>,

    /// List only receipts of this artifact.
    #[arg(long, value_name = "ARTIFACT")]
    artifact: Option<String>,

    /// The maximum number of receipts to list.
    #[arg(long, value_name = "NUMBER", default_value_t = 50)]
    most: usize,
}

impl ReceiptCommand {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        if let ReceiptAction::Verify { export: Some(file), .. } = &self.what {
            return print_reply("receipt", guard, present, verify_export(file, guard).await).await;
        }
        let command = async |on: Context<'_>| self.answer(&on.store.loom, on.service).await;
        run_on_store("receipt", self.store.as_deref(), Access::Read, guard, present, command).await
    }

    async fn answer(&self, loom: &AnyLoom, service: &Service) -> Result<CommandReply, Refusal> {
        Ok(match &self.what {
            ReceiptAction::Ls(narrowed) => {
                let wanted = narrowed.wanted(loom, service).await?;
                let page = PageRequest { after: None, most: narrowed.most.min(RECEIPTS_LISTED_MAX) };
                with_text(service.receipts(wanted, page).await, list)
            }
            ReceiptAction::Show { receipt } => {
                let id = ids::receipt(loom, receipt.as_deref()).await?;
                with_text(service.receipt(&id).await, show)
            }
            ReceiptAction::Verify { receipt, run, all, export: _ } => {
                let run = match (all, run, receipt) {
                    (true, _, _) => None,
                    (false, Some(run), _) => Some(ids::run(loom, Some(run)).await?),
                    // A receipt is verified together with the chain of its run.
                    (false, None, asked) => {
                        let id = ids::receipt(loom, asked.as_deref()).await?;
                        let row = loom.receipt(id).await.map_err(|error| store_refusal(&error))?;
                        match row.receipt() {
                            Ok(receipt) => Some(receipt.run_id),
                            Err(fault) => {
                                let id = row.receipt_id.to_string();
                                return Err(codes::record_altered("receipt", id, fault.field).into());
                            }
                        }
                    }
                };
                let wanted = ReceiptFilter { run, ..ReceiptFilter::default() };
                with_verified_text(service.verify_receipts(wanted).await)
            }
        })
    }
}

/// Returns the reply with the number of verified receipts.
fn with_verified_text(guarded: GuardedReply) -> CommandReply {
    let count = |key: &str| guarded.reply.value().and_then(|value| value.get(key)?.as_u64()).unwrap_or(0);
    let text = format!("{} receipts of {} runs: all as they were written\n", count("receipts"), count("runs"));
    (guarded, text)
}

/// Verifies the receipts of an exported journal; only the file is needed.
async fn verify_export(file: &Path, guard: &Guard) -> Result<CommandReply, Refusal> {
    let text = input_files::text_file(file)?;
    let service = Service::new(Runtime::in_memory().with_guard(guard.clone()));
    Ok(with_verified_text(service.verify_export(text.lines()).await))
}

impl Narrowed {
    async fn wanted(&self, loom: &AnyLoom, service: &Service) -> Result<ReceiptFilter, Refusal> {
        let run = ids::optional(self.run.as_deref().map(|asked| ids::run(loom, Some(asked)))).await?;
        let signature = match &self.signature {
            Some(asked) => match asked.parse() {
                Ok(id) => Some(id),
                Err(_) => Some(signatures::resolve_signature(&service.catalog(), asked).await?),
            },
            None => None,
        };
        let artifact = ids::optional(self.artifact.as_ref().map(|asked| ids::artifact(loom, asked))).await?;
        Ok(ReceiptFilter { run, signature, artifact, latest_first: true })
    }
}

fn field_text(value: &Value, key: &str) -> String {
    match value.get(key) {
        Some(Value::String(text)) => strip_control(text),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    }
}

/// Renders the cost of a receipt.
fn cost(receipt: &Value) -> String {
    let budget = &receipt["budget"];
    let micros = budget["captured"].as_i64().unwrap_or(0);
    match (field_text(budget, "currency").parse(), micros) {
        (_, 0) => "nothing".to_owned(),
        (Ok(currency), micros) => {
            cantrip::canon::Money::new(micros, currency).map_or_else(|_| micros.to_string(), |money| money.to_string())
        }
        (Err(_), micros) => micros.to_string(),
    }
}

fn list(value: &Value) -> String {
    let mut text = String::new();
    for receipt in value.get("items").and_then(Value::as_array).into_iter().flatten() {
        let of = match field_text(receipt, "signature_id") {
            id if id.is_empty() => "cast".to_owned(),
            id => id,
        };
        let _ = writeln!(
            text,
            "{BOLD}{}{BOLD:#}  {:<9}  {of}  {} ms, {}  {DIM}{}{DIM:#}",
            field_text(receipt, "receipt_id"),
            if receipt["altered"] == json!(true) { "ALTERED".to_owned() } else { field_text(receipt, "status") },
            field_text(&receipt["timing"], "latency_ms"),
            cost(receipt),
            field_text(&receipt["timing"], "completed_at"),
        );
    }
    if !value.get("next").is_none_or(Value::is_null) {
        let _ = writeln!(text, "{DIM}there are more: raise --most{DIM:#}");
    }
    text
}

fn show(receipt: &Value) -> String {
    let mut text = format!("{BOLD}{}{BOLD:#}  {}\n", field_text(receipt, "receipt_id"), field_text(receipt, "status"));
    let mut line = |name: &str, value: String| {
        if !value.is_empty() {
            let _ = writeln!(text, "  {name:<10} {value}");
        }
    };
    line("of", field_text(receipt, "receipt_kind"));
    line("error", field_text(receipt, "error_code"));
    line("signature", field_text(receipt, "signature_id"));
    line("artifact", field_text(receipt, "compiled_id"));
    line("strategy", field_text(receipt, "strategy_id"));
    line("run", format!("{}, receipt {}", field_text(receipt, "run_id"), field_text(receipt, "seq")));
    line("thread", field_text(receipt, "thread_id"));
    line("last turn", field_text(receipt, "last_turn_id"));
    let model = &receipt["model"];
    line("model", format!("{} {}", field_text(model, "name"), field_text(model, "structured_mode")).trim().to_owned());
    let policy = &receipt["policy"];
    line(
        "policy",
        format!("{} {}", field_text(policy, "decision"), field_text(policy, "reason_code")).trim().to_owned(),
    );
    line("paid by", field_text(policy, "authorization_id"));
    line("variant", field_text(policy, "artifact_variant"));
    line("cost", cost(receipt));
    let budget = &receipt["budget"];
    line(
        "used",
        format!(
            "{} in, {} out, {} calls, {} repairs",
            field_text(budget, "input_tokens"),
            field_text(budget, "output_tokens"),
            field_text(budget, "model_calls"),
            field_text(budget, "repairs")
        ),
    );
    line("took", format!("{} ms", field_text(&receipt["timing"], "latency_ms")));
    line("input", field_text(receipt, "params_hash"));
    line("output", field_text(receipt, "output_hash"));
    line("trace", field_text(receipt, "trace_ref"));
    line("before", field_text(receipt, "prev_hash"));
    line("hash", field_text(receipt, "receipt_hash"));
    text
}
