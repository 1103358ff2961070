//! `cantrip receipt`: lists, shows and verifies the receipts of predicts and casts.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cantrip::loom::{AnyLoom, Contracts, PageRequest, ReceiptFilter};
use cantrip::{Runtime, store_refusal};
use cantrip_canon::json;
use cantrip_ds::contract::limits::EXAMPLE_BYTES_MAX;
use cantrip_reply::{Call, Guard, GuardedReply, Refusal, codes};
use cantrip_service::{Service, VerdictRequest};
use serde_json::json;

use super::{CommandReply, Context, print_reply, run_on_store, with_text};
use crate::args::{ids, input_files, signatures};
use crate::limits::RECEIPTS_LISTED_MAX;
use cantrip_local::store::Access;
use cantrip_terminal::present::Present;
use cantrip_terminal::receipts::{list, show};
use cantrip_terminal::review;

/// List, show, judge and verify receipts (the audit records of predicts and casts).
///
/// Every predict and every cast leaves a receipt: the artifact that ran, the policy decisions, the cost, and hashes of
/// the input and output. The receipts of a run form a hash chain.
#[derive(Debug, clap::Args)]
#[command(after_help = "Ids may be shortened to a unique prefix. Without an id, the latest receipt is used.\n\n\
                        Examples:\n  cantrip receipt ls\n  cantrip receipt show\n  cantrip receipt verify --all\n  \
                        cantrip receipt verify --run @last\n  cantrip receipt verify --export journal.jsonl\n  \
                        cantrip receipt verdict @last good")]
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

    Verdict(Box<Judging>),
}

/// Say whether the output of a receipt is good or bad, and what it should have been.
///
/// The latest verdict counts. cantrip dataset export makes examples of receipts and their verdicts.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip receipt verdict rcpt_81c1fe0d good\n  \
                        cantrip receipt verdict @last bad --expected right.json --because 'it is a refund'\n  \
                        cantrip receipt verdict --next Triage")]
struct Judging {
    /// The receipt: its id or a prefix of it, or @last.
    #[arg(required_unless_present = "next")]
    receipt: Option<String>,

    /// The verdict.
    #[arg(required_unless_present = "next")]
    verdict: Option<Judgement>,

    /// A JSON file with the right output. - reads it from standard input.
    #[arg(long, value_name = "FILE")]
    expected: Option<PathBuf>,

    /// A label of the example that is made of it. Repeat the option for several.
    #[arg(long = "label", value_name = "LABEL")]
    labels: Vec<String>,

    /// The reason for the verdict.
    #[arg(long, value_name = "TEXT")]
    because: Option<String>,

    /// Judge the receipts of this signature that nobody has judged, one after the other: failed ones first, then
    /// repaired ones. Answers are lines: good, bad, bad JSON, skip or quit.
    #[arg(long, value_name = "SIGNATURE", conflicts_with_all = ["receipt", "expected", "labels", "because"])]
    next: Option<String>,

    /// The name of the person who judges.
    #[arg(long, value_name = "NAME", default_value = "local")]
    by: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Judgement {
    Good,
    Bad,
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
        let access = match &self.what {
            ReceiptAction::Verdict(_) => Access::Write,
            ReceiptAction::Ls(_) | ReceiptAction::Show { .. } | ReceiptAction::Verify { .. } => Access::Read,
        };
        let command = async |on: Context<'_>| self.answer(&on.store.loom, on.service, on.guard).await;
        run_on_store("receipt", self.store.as_deref(), access, guard, present, command).await
    }

    async fn answer(&self, loom: &AnyLoom, service: &Service, guard: &Guard) -> Result<CommandReply, Refusal> {
        Ok(match &self.what {
            ReceiptAction::Verdict(judging) => judging.answer(loom, service, guard).await?,
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

impl Judging {
    async fn answer(&self, loom: &AnyLoom, service: &Service, guard: &Guard) -> Result<CommandReply, Refusal> {
        if let Some(asked) = &self.next {
            return self.walk(asked, service, guard).await;
        }
        let expected = match &self.expected {
            None => None,
            Some(path) => {
                let text = input_files::bounded_text(path, EXAMPLE_BYTES_MAX)?;
                let unread = |fault: json::ReadFault| {
                    let position = format!("line {}, column {}", fault.at.line, fault.at.column);
                    codes::unparsable(path.display().to_string(), position, fault.rule.to_string())
                };
                Some(json::read(&text).map_err(unread)?)
            }
        };
        let request = VerdictRequest {
            receipt: ids::receipt(loom, self.receipt.as_deref()).await?,
            good: self.verdict == Some(Judgement::Good),
            expected,
            labels: self.labels.clone(),
            note: self.because.clone(),
            by: self.by.clone(),
        };
        let word = if request.good { "good" } else { "bad" };
        let text = format!("{}  {word}\n", request.receipt);
        Ok((service.add_verdict(request).await, text))
    }

    async fn walk(&self, asked: &str, service: &Service, guard: &Guard) -> Result<CommandReply, Refusal> {
        let signature = signatures::resolve_signature(&service.catalog(), asked).await?;
        let open = service.open_receipts(&signature).await?;
        let counts = review::review(service, &open, &self.by, &mut std::io::stdin().lock()).await?;
        let value = json!({ "judged": counts.judged, "skipped": counts.skipped, "left": counts.left });
        let text = format!("{} judged, {} skipped, {} left\n", counts.judged, counts.skipped, counts.left);
        let filled = codes::read(format!("receipts of {signature}")).value(value);
        Ok((guard.call(Call::surface("receipt"), |rb| async { rb.success(filled) }).await, text))
    }
}
