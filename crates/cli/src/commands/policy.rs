//! `cantrip policy`: evaluates the recorded policy decisions of a run again.

use std::process::ExitCode;

use cantrip_reply::{Call, Guard, Refusal, codes};
use cantrip_service::Service;

use crate::args::ids;
use crate::args::store;
use crate::terminal::present::Present;
use crate::terminal::watch::{OutputMode, Viewer};

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
        match self.execute(guard, present).await {
            Ok(status) => status,
            Err(refusal) => {
                let guarded = guard.call(Call::surface("policy"), |rb| async { rb.refuse(refusal) }).await;
                present.reply(guarded, String::new)
            }
        }
    }

    async fn execute(&self, guard: &Guard, present: Present) -> Result<ExitCode, Refusal> {
        let here = std::env::current_dir().map_err(|error| codes::io_failed("find", ".", error.to_string()))?;
        let store = store::open_to_read(self.store.as_deref(), &here)?;
        let PolicyAction::Replay { run } = &self.what;
        let run = ids::run(&store.loom, run.as_deref()).await?;
        let guarded = Service::new(Viewer::new(OutputMode::Nothing).runtime(&store, guard)).replay_policy(run).await;
        let decisions = guarded.reply.data().get("decisions").cloned().unwrap_or_default();
        Ok(present.reply(guarded, || format!("{decisions} decisions about {run}: each comes to the same again\n")))
    }
}
