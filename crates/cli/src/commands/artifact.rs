//! `cantrip artifact`: compiled versions of a signature, each named by the hash of its content.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use cantrip::loom::PageRequest;
use cantrip_reply::{Guard, Refusal};
use cantrip_service::{ArtifactUpload, Service};
use serde_json::Value;

use super::{CommandReply, Context, run_on_store, with_text};
use crate::args::{ids, input_files, signatures};
use cantrip_local::store::{Access, Store};
use cantrip_terminal::present::{BOLD, DIM, Present, strip_control};

/// Add, list and show artifacts (compiled versions of a signature: instructions, examples, parameters).
///
/// The id of an artifact is derived from its content. So the same content is always the same artifact, and an artifact
/// never changes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip artifact ls Classify\n  cantrip artifact show art_fa314739\n  \
                        cantrip artifact add Classify better.json\n  \
                        echo '{\"instructions\": \"Pick one.\"}' | cantrip artifact add Classify -")]
pub(crate) struct ArtifactCommand {
    #[command(subcommand)]
    what: ArtifactAction,

    /// The store for artifacts: sqlite:FILE, postgres://... or memory:.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE", global = true)]
    store: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
enum ArtifactAction {
    /// List artifacts, oldest first.
    Ls {
        /// List only artifacts of this signature.
        signature: Option<String>,
    },

    /// Show one artifact in full: its content and its origin.
    Show {
        /// The artifact: its id or a prefix of it.
        artifact: String,
    },

    /// Add an artifact to a signature. If the file has any of the three hashes, it must have all of them, and they must
    /// match.
    Add {
        /// The signature: its file, its id, or the last part of its id.
        signature: String,

        /// A JSON file with instructions, and optionally sub_instructions, demos and params. - reads it from standard
        /// input.
        file: PathBuf,

        /// The artifact that this one was made from.
        #[arg(long, value_name = "ARTIFACT")]
        parent: Option<String>,

        /// A note that is stored with the artifact.
        #[arg(long, value_name = "TEXT")]
        note: Option<String>,

        /// The name of the author.
        #[arg(long, value_name = "NAME", default_value = "local")]
        by: String,
    },
}

impl ArtifactCommand {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        let command = async |on: Context<'_>| self.answer(on.store, on.service).await;
        run_on_store("artifact", self.store.as_deref(), Access::Write, guard, present, command).await
    }

    async fn answer(&self, store: &Store, service: &Service) -> Result<CommandReply, Refusal> {
        Ok(match &self.what {
            ArtifactAction::Ls { signature } => {
                let catalog = service.catalog();
                let of = signature.as_ref().map(|asked| signatures::resolve_signature(&catalog, asked));
                with_text(service.artifacts(ids::optional(of).await?, PageRequest::FIRST).await, list)
            }
            ArtifactAction::Show { artifact } => {
                let id = ids::artifact(&store.loom, artifact).await?;
                with_text(service.artifact(&id).await, show)
            }
            ArtifactAction::Add { signature, file, parent, note, by } => {
                let signature = signatures::resolve_signature(&service.catalog(), signature).await?;
                let artifact = match file.to_str() {
                    Some("-") => input_files::context(input_files::standard_input(false)?),
                    Some(_) | None => input_files::context_file(file)?,
                };
                let parent = ids::optional(parent.as_ref().map(|asked| ids::artifact(&store.loom, asked))).await?;
                let artifact = artifact.unwrap_or(Value::Null);
                let giving = ArtifactUpload { signature, artifact, parent, note: note.clone(), by: by.clone() };
                let guarded = service.add_artifact(giving).await;
                let id = guarded.reply.data().get("compiled_id").and_then(Value::as_str).unwrap_or_default();
                let text = format!("{id}\n");
                (guarded, text)
            }
        })
    }
}

fn list(value: &Value) -> String {
    let mut text = String::new();
    for row in value["items"].as_array().into_iter().flatten() {
        let told = |key: &str| row.get(key).and_then(Value::as_str).unwrap_or_default();
        let _ = writeln!(
            text,
            "{BOLD}{}{BOLD:#}  {}  {}  {DIM}{}{DIM:#}",
            told("compiled_id"),
            told("signature_id"),
            told("strategy"),
            told("created_at")
        );
    }
    text
}

fn show(value: &Value) -> String {
    let content = value.get("artifact").cloned().unwrap_or_default();
    let told = |value: &Value, key: &str| strip_control(value.get(key).and_then(Value::as_str).unwrap_or_default());
    let mut text = format!("{BOLD}{}{BOLD:#}  {}\n", told(value, "compiled_id"), told(&content, "signature_id"));
    let _ = writeln!(text, "  strategy     {}", told(&content, "strategy"));
    let _ = writeln!(text, "  instructions {}", told(&content, "instructions"));
    if content["sub_instructions"].is_string() {
        let _ = writeln!(text, "  sub-calls    {}", told(&content, "sub_instructions"));
    }
    let _ = writeln!(text, "  demos        {}", content["demos"].as_array().map_or(0, Vec::len));
    let _ = writeln!(text, "  params       {}", content["params"]);
    for origin in value.get("origins").and_then(Value::as_array).into_iter().flatten() {
        let _ = writeln!(
            text,
            "{DIM}  {} by {}, {}  {}{DIM:#}",
            told(origin, "kind"),
            told(origin, "actor"),
            told(origin, "at"),
            told(origin, "note")
        );
    }
    text
}
