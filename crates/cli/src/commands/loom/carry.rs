//! Export and import of a loom, as lines of JSON.

use std::path::PathBuf;

use cantrip::canon::{LoomId, RunId};
use cantrip::loom::AnyLoom;
use cantrip::loom::export::{Format, Imported, Redaction, import_journal, import_turns};
use cantrip::{loom_id_for, store_refusal};
use cantrip_canon::json;
use cantrip_reply::{Call, Guard, Refusal, codes};
use cantrip_service::Service;
use cantrip_view::{ExportFormat as RunFormat, Views};
use futures_util::TryStreamExt;
use serde_json::{Value, json};

use crate::args::input_files;
use crate::commands::CommandReply;
use crate::commands::export_lines::ExportLines;

/// Export a loom as JSON lines: turns, the whole journal, chats or trajectories.
///
/// Secrets and personal data are redacted unless --no-redact is given. Only a journal that was not redacted can be
/// imported unchanged, with its hashes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip loom export > turns.jsonl\n  \
                        cantrip loom export --format journal --no-redact --out backup.jsonl\n  \
                        cantrip loom export analyst --format chat\n  \
                        cantrip loom export --run @last --format markdown")]
pub(super) struct Export {
    /// A loom (or the name of its spell), or the id of anything in it.
    #[arg(value_name = "LOOM")]
    of: Option<String>,

    /// Export only this run with its children: its id or a prefix of it, or @last.
    #[arg(long, value_name = "RUN", conflicts_with = "of")]
    run: Option<String>,

    #[arg(long, value_enum, default_value = "turns")]
    format: ExportFormat,

    /// Do not redact secrets and personal data.
    #[arg(long)]
    no_redact: bool,

    /// Write to this new file instead of standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ExportFormat {
    /// One line per turn.
    Turns,
    /// Every record and body.
    Journal,
    /// One line per thread, with its messages.
    Chat,
    /// One line per thread, with its messages, rewards and outcome. Not with --run.
    Trajectories,
    /// The thread as a text for people. Only with --run.
    Markdown,
}

impl Export {
    pub(super) fn of(&self) -> Option<&str> {
        self.of.as_deref()
    }

    pub(super) fn run(&self) -> Option<&str> {
        self.run.as_deref()
    }

    pub(super) async fn execute_run(
        &self,
        service: &Service,
        run: RunId,
        guard: &Guard,
        json: bool,
    ) -> Result<CommandReply, Refusal> {
        let format = match self.format {
            ExportFormat::Turns => RunFormat::Turns,
            ExportFormat::Journal => RunFormat::Journal,
            ExportFormat::Chat => RunFormat::Chat,
            ExportFormat::Markdown => RunFormat::Markdown,
            ExportFormat::Trajectories => {
                return Err(codes::config_invalid("--format", "trajectories", "exports a whole loom, not a run").into());
            }
        };
        let views = Views::of(service);
        let views = if self.no_redact { views.with_secrets() } else { views };
        let mut exported = views.export(run, format).await?;
        let hint = "cantrip loom export --run @last --json --out turns.jsonl";
        let mut lines = ExportLines::open(self.out.as_deref(), json, hint)?;
        let mut count = 0_u64;
        while let Some(line) = exported.try_next().await? {
            lines.write(line.strip_suffix('\n').unwrap_or(&line));
            count += 1;
        }
        lines.end()?;
        let filled = codes::read(format!("export of {run}")).data(json!({ "lines": count }));
        Ok((guard.call(Call::surface("export"), |rb| async { rb.success(filled) }).await, String::new()))
    }

    pub(super) async fn execute(&self, service: &Service, of: LoomId, json: bool) -> Result<CommandReply, Refusal> {
        let format = match self.format {
            ExportFormat::Turns => Format::Turns,
            ExportFormat::Journal => Format::Journal,
            ExportFormat::Chat => Format::Chat,
            ExportFormat::Trajectories => Format::Trajectories,
            ExportFormat::Markdown => {
                return Err(codes::config_invalid("--format", "markdown", "exports one run: give --run RUN").into());
            }
        };
        let hint = "cantrip loom export --json --out turns.jsonl";
        let mut lines = ExportLines::open(self.out.as_deref(), json, hint)?;
        let redaction = if self.no_redact { Redaction::Off } else { Redaction::default() };
        let guarded = service.export(of, format, redaction, |line| lines.write(&line)).await;
        lines.end()?;
        Ok((guarded, String::new()))
    }
}

/// Import a file that `loom export` wrote: an unchanged journal, or turns, also those of another program.
///
/// Importing the same file twice changes nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip loom import backup.jsonl\n  cantrip loom import turns.jsonl --as analyst")]
pub(super) struct Import {
    /// The file to import.
    file: PathBuf,

    /// The loom to import turns into, by the name of its spell. Default: the name of the file. A journal names its own
    /// loom.
    #[arg(long = "as", value_name = "NAME")]
    name: Option<String>,
}

impl Import {
    pub(super) async fn execute(&self, loom: &AnyLoom, guard: &Guard) -> Result<CommandReply, Refusal> {
        let shown = self.file.display().to_string();
        let text = input_files::text_file(&self.file)?;
        let taken = if is_journal(&text) {
            import_journal(loom, text.lines()).await
        } else {
            let stem = self.file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
            import_turns(loom, loom_id_for(self.name.as_ref().unwrap_or(&stem)), text.lines()).await
        };
        let Imported { records, runs, bodies, papers } = taken.map_err(|error| store_refusal(&error))?;
        let filled = codes::created("import", shown.as_str())
            .data(json!({"state": "imported", "records": records, "runs": runs, "bodies": bodies, "papers": papers}));
        let guarded = guard.call(Call::surface("loom"), |rb| async { rb.success(filled) }).await;
        let left = match papers {
            0 => String::new(),
            papers => {
                format!("{papers} lines about its receipts stay in the file: cantrip receipt verify --export {shown}\n")
            }
        };
        Ok((guarded, format!("{shown}: {records} records, {runs} runs, {bodies} bodies\n{left}")))
    }
}

/// Returns true if the first line is the header of a journal.
fn is_journal(text: &str) -> bool {
    let heading = text.lines().next().and_then(|line| json::read(line).ok());
    heading.is_some_and(|heading| heading.get("format").is_some_and(Value::is_string))
}
