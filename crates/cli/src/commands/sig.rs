//! `cantrip sig`: signatures, which are published once and never changed.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use cantrip_ds::contract::SignatureOrigin;
use cantrip_reply::{Call, Guard, Refusal, codes};
use cantrip_service::Service;
use serde_json::{Value, json};

use super::{CommandReply, Context, print_reply, run_on_store, with_text};
use crate::args::signatures;
use cantrip_local::store::Access;
use cantrip_terminal::present::{BOLD, DIM, Present, strip_control};

/// Publish, list, show and check signatures (typed prompts).
///
/// A signature describes the input, the output and the instructions of a model call. Once it is published, its id never
/// changes meaning: a change is a new version.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Name a signature by its file, its id, or the last part of its id: Classify, text/Classify.v1.\n\n\
                        Examples:\n  cantrip sig ls\n  cantrip sig show Classify\n  \
                        cantrip sig check signatures/triage.toml\n  cantrip sig add signatures/triage.toml"
)]
pub(crate) struct SigCommand {
    #[command(subcommand)]
    what: SigAction,

    /// The store for signatures: sqlite:FILE, postgres://... or memory:.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE", global = true)]
    store: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
enum SigAction {
    /// List the published signatures, and those in the project's signatures folder.
    #[command(after_help = "Examples:\n  cantrip sig ls\n  cantrip sig ls --json")]
    Ls {
        /// List retired versions too.
        #[arg(long)]
        all: bool,
    },

    /// Show one signature in full: its input and output, its hashes, its artifacts, and the artifact that is live.
    #[command(
        after_help = "Examples:\n  cantrip sig show Classify\n  cantrip sig show @cantrip/text/Classify.v1 --json"
    )]
    Show {
        /// The signature: its file, its id, or the last part of its id.
        signature: String,
    },

    /// Publish signatures from their files. Publishing the same signature again changes nothing.
    #[command(after_help = "Examples:\n  cantrip sig add signatures/triage.toml")]
    Add {
        /// The files of the signatures.
        #[arg(required = true)]
        files: Vec<PathBuf>,

        /// The name of the publisher.
        #[arg(long, value_name = "NAME", default_value = "local")]
        by: String,
    },

    /// Check signature files for errors, without publishing them.
    #[command(after_help = "Examples:\n  cantrip sig check signatures/triage.toml\n  cantrip sig check")]
    Check {
        /// The files to check. Default: all files in the project's signatures folder.
        files: Vec<PathBuf>,
    },
}

impl SigCommand {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        if let SigAction::Check { files } = &self.what {
            return print_reply("sig", guard, present, check(guard, files).await).await;
        }
        // The built-in signatures are published when a store is first used.
        let command = async |on: Context<'_>| self.answer(on.service).await;
        run_on_store("sig", self.store.as_deref(), Access::Write, guard, present, command).await
    }

    async fn answer(&self, service: &Service) -> Result<CommandReply, Refusal> {
        Ok(match &self.what {
            SigAction::Ls { all } => with_text(service.signatures().await, |value| list(value, *all)),
            SigAction::Show { signature } => {
                let id = signatures::resolve_signature(&service.catalog(), signature).await?;
                with_text(service.signature(&id).await, show)
            }
            SigAction::Add { files, by } => {
                // Read all files before the first signature is published.
                let read: Vec<_> = files.iter().map(|file| signatures::read(file)).collect::<Result<_, _>>()?;
                let mut drawn = String::new();
                let mut last = None;
                for signature in &read {
                    let guarded = service.add_signature(signature, SignatureOrigin::File, by).await;
                    if !guarded.reply.reply_type().is_success() {
                        return Ok((guarded, drawn));
                    }
                    let new = guarded.reply.data().get("new") == Some(&json!(true));
                    let _ = writeln!(drawn, "{}{}", signature.id(), if new { "" } else { " was published before" });
                    last = Some(guarded);
                }
                let Some(guarded) = last else { return Err(codes::crash().into()) };
                (guarded, drawn)
            }
            SigAction::Check { .. } => return Err(codes::crash().into()),
        })
    }
}

async fn check(guard: &Guard, files: &[PathBuf]) -> Result<CommandReply, Refusal> {
    let files = if files.is_empty() { signatures::around() } else { files.to_vec() };
    if files.is_empty() {
        let hint = "name a file: cantrip sig check FILE";
        return Err(codes::not_found("signature", "signatures/*.toml").data(json!({ "hint": hint })).into());
    }
    let mut drawn = String::new();
    let mut checked = Vec::new();
    for file in &files {
        let signature = signatures::read(file)?;
        let hashes = signature.hashes();
        let _ = writeln!(drawn, "{}  {} is valid", strip_control(&file.display().to_string()), signature.id());
        checked.push(json!({
            "file": file.display().to_string(), "signature_id": signature.id(), "schema_hash": hashes.schema_hash,
            "prompt_hash": hashes.prompt_hash, "program_hash": hashes.program_hash,
            "payload_hash": signature.payload_hash(),
        }));
    }
    let filled = codes::verified("signatures", checked.len()).value(json!({ "checked": checked }));
    let guarded = guard.call(Call::surface("sig"), |rb| async { rb.success(filled) }).await;
    Ok((guarded, drawn))
}

fn field_text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn list(value: &Value, all: bool) -> String {
    let items: Vec<&Value> = value["items"].as_array().into_iter().flatten().collect();
    let listed = items.iter().filter(|row| all || row["retired_at"].is_null());
    let rows: Vec<(&str, &str, &str)> = listed
        .map(|row| (field_text(row, "signature_id"), field_text(row, "origin"), field_text(row, "description")))
        .collect();
    let columns = rows.iter().map(|(id, _, _)| id.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (id, origin, description) in &rows {
        let _ = writeln!(text, "{BOLD}{id:<columns$}{BOLD:#}  {origin:<7}  {DIM}{}{DIM:#}", strip_control(description));
    }
    for file in signatures::around() {
        let Ok(signature) = signatures::read(&file) else {
            let _ = writeln!(text, "{DIM}{} cannot be read: cantrip sig check{DIM:#}", file.display());
            continue;
        };
        let id = signature.id().to_string();
        if !items.iter().any(|row| field_text(row, "signature_id") == id) {
            let _ =
                writeln!(text, "{BOLD}{id:<columns$}{BOLD:#}  {DIM}in {}, not published yet{DIM:#}", file.display());
        }
    }
    text
}

fn show(value: &Value) -> String {
    let row = value.get("signature").cloned().unwrap_or_default();
    let body = value.get("body").cloned().unwrap_or_default();
    let mut text = format!(
        "{BOLD}{}{BOLD:#}  {}\n",
        field_text(&row, "signature_id"),
        strip_control(field_text(&row, "description"))
    );
    let _ = writeln!(text, "  program      {} {}", field_text(&body, "program_template"), body["program"]);
    let _ = writeln!(text, "  instructions {}", strip_control(field_text(&body, "instructions")));
    let _ = writeln!(text, "  input        {}", body["input_schema"]);
    let _ = writeln!(text, "  output       {}", body["output_schema"]);
    for key in ["schema_hash", "prompt_hash", "program_hash", "payload_hash"] {
        let _ = writeln!(text, "{DIM}  {key:<12} {}{DIM:#}", field_text(&row, key));
    }
    let served = match value.get("pointer") {
        Some(pointer) if !pointer.is_null() => {
            let (primary, percent) = (field_text(pointer, "primary_artifact"), &pointer["canary_percent"]);
            let canary = pointer["canary_artifact"].as_str();
            canary.map_or(primary.to_owned(), |canary| format!("{primary}, and to {percent} of 100 {canary}"))
        }
        Some(_) | None => format!("{} (as it was written)", field_text(value, "base")),
    };
    let _ = writeln!(text, "  served       {served}");
    for id in value.get("artifacts").and_then(Value::as_array).into_iter().flatten() {
        let _ = writeln!(text, "{DIM}  artifact     {}{DIM:#}", id.as_str().unwrap_or_default());
    }
    text
}
