//! `cantrip policy`: lists the recorded policy decisions of a run, and evaluates them again.

use std::fmt::Write as _;
use std::process::ExitCode;

use cantrip_reply::{Guard, Refusal};
use serde_json::Value;

use super::{CommandReply, Context, run_on_store, with_text};
use crate::args::ids;
use cantrip_local::store::Access;
use cantrip_terminal::present::{BOLD, DIM, Present, strip_control};

/// List, replay and verify the policy decisions of a run.
///
/// Policy decides about every call before it is made: whether this gate may be called, this model used, this amount
/// spent. The decision is recorded with the hash of all its inputs.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip policy ls\n  cantrip policy replay run_06cyf9 --json")]
pub(crate) struct PolicyCommand {
    #[command(subcommand)]
    what: PolicyAction,

    /// The store for casts: sqlite:FILE, postgres://... or memory:.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE", global = true)]
    store: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
enum PolicyAction {
    /// List the policy decisions of a run, oldest first: the decision, what it was about, and the reason.
    #[command(after_help = "Examples:\n  cantrip policy ls\n  cantrip policy ls run_06cyf9 --json")]
    Ls {
        /// The run: its id or a prefix of it, @last, or the id of one of its entities, casts or turns.
        run: Option<String>,
    },

    /// Repeat all policy decisions of a run from the stored inputs, and report the first difference in decision or
    /// hash.
    #[command(after_help = "Examples:\n  cantrip policy replay\n  cantrip policy replay run_06cyf9")]
    Replay {
        /// The run: its id or a prefix of it, @last, or the id of one of its entities, casts or turns.
        run: Option<String>,
    },
}

impl PolicyCommand {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        let command = async |on: Context<'_>| -> Result<CommandReply, Refusal> {
            match &self.what {
                PolicyAction::Ls { run } => {
                    let run = ids::run(&on.store.loom, run.as_deref()).await?;
                    Ok(with_text(on.service.policy_decisions(run).await, draw_decisions))
                }
                PolicyAction::Replay { run } => {
                    let run = ids::run(&on.store.loom, run.as_deref()).await?;
                    let guarded = on.service.replay_policy(run).await;
                    let decisions = guarded.reply.data().get("decisions").cloned().unwrap_or_default();
                    Ok((guarded, format!("{decisions} decisions about {run}: each has the same result again\n")))
                }
            }
        };
        run_on_store("policy", self.store.as_deref(), Access::Read, guard, present, command).await
    }
}

fn draw_decisions(value: &Value) -> Option<String> {
    let decisions = value.as_array()?;
    if decisions.is_empty() {
        return Some("none\n".to_owned());
    }
    let mut text = String::new();
    for made in decisions {
        let field = |key: &str| strip_control(made[key].as_str().unwrap_or("-"));
        let (decision, subject, reason) = (field("decision"), field("subject"), field("reason_code"));
        let _ = writeln!(text, "{BOLD}{decision}{BOLD:#}  {subject}  {reason}");
        let _ = writeln!(text, "  {DIM}{} about {}{DIM:#}", field("at"), field("call_id"));
    }
    Some(text)
}
