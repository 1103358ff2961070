//! `cantrip policy`: evaluates the recorded policy decisions of a run again.

use std::process::ExitCode;

use cantrip_reply::Guard;

use super::{Context, run_on_store};
use crate::args::ids;
use crate::args::store::Access;
use cantrip_terminal::present::Present;

/// Replay and verify the policy decisions of a run.
///
/// Policy decides about every call before it is made: whether this gate may be called, this model used, this amount
/// spent. The decision is recorded with the hash of all its inputs.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip policy replay\n  cantrip policy replay run_06cyf9 --json")]
pub(crate) struct PolicyCommand {
    #[command(subcommand)]
    what: PolicyAction,

    /// The store for casts: sqlite:FILE, postgres://... or memory:.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE", global = true)]
    store: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
enum PolicyAction {
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
        let PolicyAction::Replay { run } = &self.what;
        let command = async |on: Context<'_>| {
            let run = ids::run(&on.store.loom, run.as_deref()).await?;
            let guarded = on.service.replay_policy(run).await;
            let decisions = guarded.reply.data().get("decisions").cloned().unwrap_or_default();
            Ok((guarded, format!("{decisions} decisions about {run}: each has the same result again\n")))
        };
        run_on_store("policy", self.store.as_deref(), Access::Read, guard, present, command).await
    }
}
