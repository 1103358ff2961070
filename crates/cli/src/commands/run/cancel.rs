//! Ends a run: through the worker that holds it, or in this process if no worker does.

use std::time::Duration;

use cantrip::canon::RunId;
use cantrip::loom::{Actor, Journal, Loom, RunKind, RunState, RunView};
use cantrip::{Cancel, store_refusal};
use cantrip_ds::contract::JobStatus;
use cantrip_reply::{Call, Refusal, codes};
use cantrip_service::Service;
use serde_json::json;

use crate::args::ids;
use crate::commands::{CommandReply, Context};
use crate::limits::CANCEL_WAIT_MS;
use cantrip_local::process;
use cantrip_terminal::present::program;

#[derive(Debug, clap::Args)]
pub(super) struct Cancelling {
    /// The run: its id or a prefix of it, @last, or the id of one of its entities, casts or turns.
    run: Option<String>,

    /// The spell that the run was cast from, if it cannot be found.
    #[arg(long, value_name = "SPELL")]
    spell: Option<String>,
}

impl Cancelling {
    pub(super) async fn reply(&self, on: &Context<'_>, url: Option<&str>) -> Result<CommandReply, Refusal> {
        let Context { store, service, guard, .. } = *on;
        let run = ids::run(&store.loom, self.run.as_deref()).await?;
        let asked = service.cancel(run, &Actor::new("local").expect("a short name")).await;
        if !asked.reply.reply_type().is_success() {
            return Ok((asked, String::new()));
        }
        let ended = self.wait_for_end(on, url, run).await?;
        let ended = ended.map(|()| codes::changed("run", run.to_string(), "cancelled"));
        let guarded = guard.call(Call::surface("cancel").run(run), |rb| async { rb.answer(ended) }).await;
        Ok((guarded, format!("{run} is cancelled\n")))
    }

    /// Waits until the worker has ended the run, or ends the run here if no worker holds it. The inner error says why
    /// the run is not cancelled.
    async fn wait_for_end(
        &self,
        on: &Context<'_>,
        url: Option<&str>,
        run: RunId,
    ) -> Result<Result<(), Refusal>, Refusal> {
        let Context { store, service, .. } = *on;
        let stored = |error| store_refusal(&error);
        let loom = &store.loom;
        let until = tokio::time::Instant::now() + Duration::from_millis(CANCEL_WAIT_MS);
        loop {
            let view = loom.run(run).await.map_err(stored)?;
            match view.state {
                RunState::Truncated => return Ok(Ok(())),
                RunState::Failed if is_cancelled_job(service, &view).await => return Ok(Ok(())),
                // The run ended by itself first.
                RunState::Terminated | RunState::Failed => {
                    let state = if view.state == RunState::Failed { "failed" } else { "terminated" };
                    let refusal = codes::wrong_state("run", run.to_string(), state, "ending it", "a live run");
                    return Ok(Err(refusal.into()));
                }
                RunState::Queued | RunState::Running | RunState::Waiting => {}
            }
            process::release_run(loom, run).await?;
            match loom.holder(run).await.map_err(stored)? {
                None if view.kind == RunKind::Job => super::job::end(on, url, run).await?,
                None => {
                    let found = super::cast_from(store, run, self.spell.as_deref()).await?;
                    let cancel = Cancel::new();
                    cancel.cancel();
                    let reply = service.resume(&found.cantrip, run, &cancel).await;
                    if reply.outcome.is_none() {
                        // Another process took the run first, or the store is not available; the next iteration finds
                        // out.
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
                Some(lease) if tokio::time::Instant::now() >= until => {
                    let hint = format!(
                        "the process that holds it was asked to end the run and has not answered; its lease ends at \
                         {}, then: {} run cancel {run}{}",
                        lease.expires_at,
                        program(),
                        store.again
                    );
                    let busy = codes::busy("run", run.to_string(), lease.owner.as_str());
                    return Ok(Err(busy.data(json!({ "hint": hint })).into()));
                }
                Some(_) => {
                    // The holder checks for a cancellation from time to time, and any record that it writes wakes us.
                    let grown = loom.wait_for_growth(run, view.newest);
                    let _ = tokio::time::timeout(Duration::from_millis(250), grown).await;
                }
            }
            if tokio::time::Instant::now() >= until + Duration::from_millis(CANCEL_WAIT_MS) {
                return Ok(Err(codes::busy("run", run.to_string(), "another process").into()));
            }
        }
    }
}

/// Returns true if the run is a job that ended because it was cancelled.
async fn is_cancelled_job(service: &Service, view: &RunView) -> bool {
    let job = if view.kind == RunKind::Job { service.job_of_run(view.run_id).await.ok() } else { None };
    job.is_some_and(|job| job.status == JobStatus::Cancelled)
}
