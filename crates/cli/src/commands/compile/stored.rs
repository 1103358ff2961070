//! Stored compiles: list, show, replay.

use std::path::PathBuf;
use std::process::ExitCode;

use cantrip::loom::PageRequest;
use cantrip_reply::{Refusal, codes};
use cantrip_service::CompileFilter;
use serde_json::{Value, json};

use super::super::job::write_page;
use super::super::{Context, Outcome, with_text};
use crate::args::{ids, signatures};
use crate::limits::RECEIPTS_LISTED_MAX;
use cantrip_terminal::job::{draw_changes, draw_compile_report, draw_compile_reports};
use cantrip_terminal::present::{answer, answer_of_entity};

#[derive(Debug, clap::Subcommand)]
pub(super) enum CompileAction {
    /// List compiles, newest first.
    #[command(after_help = "Examples:\n  cantrip compile ls\n  cantrip compile ls --signature Triage --json")]
    Ls(Listing),

    /// Show the report of a compile with what the winner changed.
    #[command(after_help = "Examples:\n  cantrip compile show\n  cantrip compile show cmp_7ff6 --html report.html\n  \
                            cantrip compile show cmp_7ff6 --rows > candidates.jsonl\n  \
                            cantrip compile show cmp_7ff6 --patch | patch -p1")]
    Show(Showing),

    /// Run the search of a compile again over its recorded results, without network, and compare the two.
    #[command(after_help = "Examples:\n  cantrip compile replay\n  cantrip compile replay cmp_7ff6")]
    Replay {
        /// The compile: the id of its report, or its run. Default: the latest one.
        compile: Option<String>,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct Listing {
    /// List only compiles of this signature.
    #[arg(long, value_name = "SIGNATURE", conflicts_with = "spell")]
    signature: Option<String>,

    /// List only compiles of this spell.
    #[arg(long, value_name = "SPELL")]
    spell: Option<String>,

    /// The maximum number of compiles to list.
    #[arg(long, value_name = "NUMBER", default_value_t = 50)]
    most: usize,
}

#[derive(Debug, clap::Args)]
pub(super) struct Showing {
    /// The compile: the id of its report, or its run. Default: the latest one.
    compile: Option<String>,

    /// Write the report as one page to this file, and print nothing else.
    #[arg(long, value_name = "FILE", conflicts_with = "rows")]
    html: Option<PathBuf>,

    /// Print the candidates and the proposals, each as one line of JSON, redacted.
    #[arg(long)]
    rows: bool,

    /// Print the winner of a spell's compile as a diff of the spell's file.
    #[arg(long, conflicts_with_all = ["html", "rows"])]
    patch: bool,
}

impl CompileAction {
    pub(super) async fn execute(&self, on: &Context<'_>) -> Result<Outcome, Refusal> {
        match self {
            Self::Ls(listing) => listing.list(on).await,
            Self::Show(showing) => showing.show(on).await,
            Self::Replay { compile } => {
                let compile = latest(on, compile.as_deref()).await?;
                let guarded = on.service.replay_compile(&compile).await;
                let text = guarded.reply.value().map(draw_replay).unwrap_or_default();
                Ok((guarded, text).into())
            }
        }
    }
}

fn draw_replay(value: &Value) -> String {
    let job = value["job_id"].as_str().unwrap_or_default();
    let (asks, results, candidates) = (&value["asks"], &value["results"], &value["candidates"]);
    format!("identical  {job}  {asks} asks, {results} results, {candidates} candidates\n")
}

/// Returns the named compile, or the id of the latest report.
async fn latest(on: &Context<'_>, compile: Option<&str>) -> Result<String, Refusal> {
    if let Some(compile) = compile.filter(|compile| *compile != ids::LAST) {
        return Ok(compile.to_owned());
    }
    let listed = on.service.compile_reports(CompileFilter::default(), PageRequest { after: None, most: 1 }).await;
    let first = listed.reply.value().and_then(|value| value["items"][0]["report_id"].as_str().map(str::to_owned));
    first.ok_or_else(|| {
        let hint = "cantrip compile SIGNATURE --dataset DATASET --metric METRIC --optimiser OPTIMISER makes one";
        codes::contract_unknown("compile report", ids::LAST).data(json!({ "hint": hint })).into()
    })
}

impl Listing {
    async fn list(&self, on: &Context<'_>) -> Result<Outcome, Refusal> {
        let subject = match (&self.signature, &self.spell) {
            (Some(asked), _) => Some(signatures::resolve_signature(&on.service.catalog(), asked).await?.to_string()),
            (None, Some(spell)) => Some(format!("spell:{spell}")),
            (None, None) => None,
        };
        let page = PageRequest { after: None, most: self.most.min(RECEIPTS_LISTED_MAX) };
        let listed = on.service.compile_reports(CompileFilter { subject }, page).await;
        Ok(with_text(listed, draw_compile_reports).into())
    }
}

impl Showing {
    async fn show(&self, on: &Context<'_>) -> Result<Outcome, Refusal> {
        let compile = latest(on, self.compile.as_deref()).await?;
        if self.patch {
            let patch = on.service.compile_patch(&compile).await?;
            // A pipe gets the diff byte for byte, as `patch` needs it.
            answer_of_entity(&patch.diff);
            return Ok(Outcome::Printed(ExitCode::SUCCESS));
        }
        if self.rows {
            let view = on.service.compile_view(&compile).await?;
            for candidate in &view.candidates {
                answer(&format!("{}\n", json!({"kind": "candidate", "candidate": candidate})));
            }
            for proposal in &view.proposals {
                answer(&format!("{}\n", json!({"kind": "proposal", "proposal": proposal})));
            }
            return Ok(Outcome::Printed(ExitCode::SUCCESS));
        }
        let guarded = on.service.compile_report(&compile).await;
        if !guarded.reply.reply_type().is_success() {
            return Ok((guarded, String::new()).into());
        }
        let view = on.service.compile_view(&compile).await?;
        let text = match &self.html {
            Some(path) => {
                write_page(path, &cantrip_pages::compile_page(&view))?;
                format!("{}\n", path.display())
            }
            None => format!("{}{}", draw_compile_report(&view), draw_changes(&view)),
        };
        Ok((guarded, text).into())
    }
}
