//! `cantrip retention`: removes the records of old runs by a policy, and lists what was removed.

use std::fmt::Write as _;
use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use cantrip::loom::{PageRequest, Removal, RetentionPolicy};
use cantrip_reply::{Guard, Refusal, codes};
use cantrip_service::{ChangeReason, Service};
use clap::ArgGroup;
use serde_json::{Value, json};

use super::{CommandReply, Context, run_on_store, with_text};
use crate::args::{ids, input_files};
use cantrip_local::store::Access;
use cantrip_terminal::present::{DIM, Present, say, strip_control};

/// Delete the records of old runs, and list past deletions.
///
/// This is the only command that deletes history. It deletes the records of whole runs that have ended, and keeps every
/// run that a newer run depends on. It keeps receipts, spending records, signatures and the hash from which each chain
/// continues. It also keeps bodies, because several runs may share them.
#[derive(Debug, clap::Args)]
#[command(after_help = "A policy file is TOML: older_than_days = 90, and optionally kinds = [\"predict\"], \
                        owners = [\"user:42\"].\n\nExamples:\n  \
                        cantrip retention apply --older-than 90d --dry-run\n  \
                        cantrip retention apply --older-than 90d --because 'our policy' --yes\n  \
                        cantrip retention apply --policy retention.toml --because 'our policy'\n  cantrip retention ls")]
pub(crate) struct RetentionCommand {
    #[command(subcommand)]
    action: RetentionAction,

    /// The store for casts: sqlite:FILE or postgres://...
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE", global = true)]
    store: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
enum RetentionAction {
    /// Show what a policy would delete, ask for confirmation, and delete it.
    #[command(after_help = "Examples:\n  cantrip retention apply --older-than 90d --dry-run\n  \
                            cantrip retention apply --older-than 90d --because 'our policy' --yes\n  \
                            cantrip retention apply --policy retention.toml --because 'our policy'")]
    Apply(Apply),

    /// List past deletions: when, by whom, by which policy, and the hash from which each chain continues.
    #[command(after_help = "Examples:\n  cantrip retention ls\n  cantrip retention ls --json")]
    Ls {
        /// List only entries after this cursor.
        #[arg(long, value_name = "CURSOR")]
        after: Option<u64>,
    },
}

#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("covered").required(true).args(["older_than", "policy"])))]
#[command(group(ArgGroup::new("reason").required(true).multiple(true).args(["because", "dry_run"])))]
struct Apply {
    /// Delete runs that ended at least this many days ago, for example 90d.
    #[arg(long, value_name = "DAYS")]
    older_than: Option<String>,

    /// The file with the retention policy.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,

    /// Only show what would be deleted.
    #[arg(long)]
    dry_run: bool,

    /// Delete without asking for confirmation.
    #[arg(long)]
    yes: bool,

    /// The reason, which is stored in the record of the deletion.
    #[arg(long, value_name = "REASON")]
    because: Option<String>,

    /// The name of the person who deletes.
    #[arg(long, value_name = "NAME", default_value = "local")]
    by: String,
}

impl Apply {
    fn policy(&self) -> Result<RetentionPolicy, Refusal> {
        if let Some(file) = &self.policy {
            let (shown, text) = (file.display().to_string(), input_files::text_file(file)?);
            return toml::from_str(&text).map_err(|fault| {
                let at = fault.span().map_or(0, |span| text[..span.start.min(text.len())].lines().count().max(1));
                codes::unparsable(shown.as_str(), format!("line {at}"), fault.message()).into()
            });
        }
        let given = self.older_than.as_deref().unwrap_or_default();
        let days = given.trim().strip_suffix('d').and_then(|days| days.trim().parse().ok());
        let rule = "it is a number of days, as in 90d";
        let older_than_days = days.ok_or_else(|| Refusal::from(codes::config_invalid("--older-than", given, rule)))?;
        Ok(RetentionPolicy { older_than_days, kinds: None, owners: None })
    }

    async fn answer(&self, service: &Service, present: Present) -> Result<CommandReply, Refusal> {
        let policy = self.policy()?;
        let plan = service.retention_plan(&policy).await;
        if self.dry_run || !plan.reply.reply_type().is_success() {
            return Ok(with_text(plan, draw_plan));
        }
        let value = plan.reply.value().cloned().unwrap_or_default();
        if !self.yes && !confirm(&value, present)? {
            let filled = codes::wrong_state("retention", "plan", "not confirmed", "removing", "a yes");
            return Err(filled.data(json!({"hint": "nothing was removed"})).into());
        }
        let because = ChangeReason { actor: ids::actor(&self.by)?, reason: self.because.clone().unwrap_or_default() };
        let applied = service.apply_retention(&policy, because).await;
        let drawn = draw_applied(applied.reply.data());
        Ok((applied, drawn))
    }
}

/// Asks the user at the terminal. If no terminal is attached, `--yes` is required.
fn confirm(plan: &Value, present: Present) -> Result<bool, Refusal> {
    if present.json || !std::io::stdin().is_terminal() {
        let hint = "check with --dry-run first, then give --yes";
        let refused = codes::config_invalid(
            "--yes",
            "retention apply",
            "there is no terminal to confirm on, and removed records cannot be restored",
        );
        return Err(refused.data(json!({ "hint": hint })).into());
    }
    say(draw_plan(plan).trim_end());
    let _ = write!(std::io::stderr(), "Delete these records? This cannot be undone. [y/N] ");
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    Ok(read.is_ok() && ["y", "yes"].contains(&line.trim().to_lowercase().as_str()))
}

impl RetentionCommand {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        let access = match &self.action {
            RetentionAction::Apply(apply) if !apply.dry_run => Access::Write,
            RetentionAction::Apply(_) | RetentionAction::Ls { .. } => Access::Read,
        };
        let command = async |on: Context<'_>| self.answer(on.service, present).await;
        run_on_store("retention", self.store.as_deref(), access, guard, present, command).await
    }

    async fn answer(&self, service: &Service, present: Present) -> Result<CommandReply, Refusal> {
        match &self.action {
            RetentionAction::Apply(apply) => apply.answer(service, present).await,
            RetentionAction::Ls { after } => {
                let page = PageRequest { after: *after, ..PageRequest::FIRST };
                Ok(with_text(service.removals(page).await, draw_removals))
            }
        }
    }
}

fn text(value: &Value, key: &str) -> String {
    let value = &value[key];
    value.as_str().map_or_else(|| value.to_string(), strip_control)
}

fn draw_plan(plan: &Value) -> String {
    let runs = plan["runs"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut drawn = String::new();
    for run in runs {
        let (id, kind, owner) = (text(run, "run_id"), text(run, "kind"), text(run, "owner"));
        let (records, ended) = (&run["records"], text(run, "ended_at"));
        let _ = writeln!(drawn, "{id}  {kind} of {owner}, {records} records  {DIM}{ended}{DIM:#}");
    }
    let _ = writeln!(drawn, "{} records of {} runs would be removed", plan["records"], runs.len());
    if plan["kept"] != json!(0) {
        let _ = writeln!(drawn, "{DIM}{} runs are kept because newer ones depend on them{DIM:#}", plan["kept"]);
    }
    drawn
}

fn draw_applied(data: &serde_json::Map<String, Value>) -> String {
    let number = |key: &str| data.get(key).and_then(Value::as_u64).unwrap_or_default();
    let mut drawn = format!("removed {} records of {} runs\n", number("records"), number("runs"));
    if number("kept") + number("skipped") > 0 {
        let kept = number("kept") + number("skipped");
        let _ = writeln!(drawn, "{DIM}{kept} runs are kept because newer ones depend on them{DIM:#}");
    }
    let _ = writeln!(drawn, "{DIM}cantrip retention ls lists past deletions{DIM:#}");
    drawn
}

fn draw_removals(value: &Value) -> String {
    let items: Vec<Removal> = serde_json::from_value(value["items"].clone()).unwrap_or_default();
    let mut drawn = String::new();
    for removal in &items {
        let policy = serde_json::to_string(&removal.policy).unwrap_or_default();
        let (actor, reason) = (strip_control(&removal.actor), strip_control(&removal.reason));
        let _ = writeln!(drawn, "{}  {} records of {}", removal.retention_id, removal.records, removal.run_id);
        let _ = writeln!(drawn, "  {DIM}{} by {actor}: {reason}; policy {policy}{DIM:#}", removal.at);
        let _ = writeln!(drawn, "  {DIM}through {} with hash {}{DIM:#}", removal.through, removal.event_hash);
    }
    if items.is_empty() {
        let _ = writeln!(drawn, "{DIM}nothing was removed{DIM:#}");
    }
    if let Some(next) = value["next"].as_u64() {
        let _ = writeln!(drawn, "{DIM}there are more: --after {next}{DIM:#}");
    }
    drawn
}
