//! Runs without a driver.

use cantrip::canon::RunId;
use cantrip::loom::{Journal, PageRequest, RunView};
use cantrip::reply::Refusal;
use cantrip::spend::Principal;
use cantrip::{Cancel, Cantrip, CastReply, Funds, owner_of, store_refusal};
use futures_util::{StreamExt, stream};

use crate::Service;
use crate::limits::PICKED_UP_TOGETHER_MAX;

impl Service {
    /// Returns the runs without a driver: live runs whose lease has expired and that do not wait for a decision.
    pub async fn orphans(&self) -> Result<Vec<RunView>, Refusal> {
        let (mut found, mut next) = (Vec::new(), Some(PageRequest::FIRST));
        while let Some(page) = next {
            let loom = self.runtime().loom();
            let now = loom.lease_now(self.clock.now().wall).await.map_err(|error| store_refusal(&error))?;
            let listed = loom.orphans(now, page).await.map_err(|error| store_refusal(&error))?;
            found.extend(listed.items);
            next = page.following(listed.next);
        }
        Ok(found)
    }

    /// Returns true if a run of this agent has funds here; always true for a store without a ledger.
    pub async fn is_funded(&self, run: &RunView, agent: Option<String>) -> Result<bool, Refusal> {
        let principal = Principal {
            owner: owner_of(&run.owner)?,
            run_id: Some(run.run_id.to_string()),
            root_run_id: Some(run.run_id.to_string()),
            thread_id: run.entity_id.map(|entity| entity.to_string()),
            autopilot_id: agent,
        };
        match self.runtime().funds(principal, None).await.map_err(|error| store_refusal(&error))? {
            Funds::NoLedger | Funds::Paid(_) => Ok(true),
            Funds::NoAuthorization => Ok(false),
        }
    }

    /// Marks the reservations that dead processes left: see [`Runtime::recover`](cantrip::Runtime::recover). A process
    /// calls this when it starts.
    pub async fn recover(&self) -> Result<u64, Refusal> {
        self.runtime().recover().await
    }

    /// Resumes these runs, a few at a time. `cantrip_of` finds the cantrip of each, and `done` gets the reply of each
    /// when it stops. A run that another process takes first, or whose cantrip cannot be found, gets a refusal and is
    /// left alone.
    ///
    /// A serving process calls this when it starts, with its [`orphans`](Self::orphans).
    pub async fn resume_runs(
        &self,
        runs: Vec<RunId>,
        cantrip_of: impl AsyncFn(RunId) -> Result<Cantrip, Refusal>,
        cancel: &Cancel,
        mut done: impl FnMut(RunId, CastReply),
    ) {
        let cantrip_of = &cantrip_of;
        let going = stream::iter(runs).map(|run| async move {
            let reply = match cantrip_of(run).await {
                Ok(cantrip) => self.resume(&cantrip, run, cancel).await,
                Err(refusal) => self.refusal_reply("resume", refusal).await.into(),
            };
            (run, reply)
        });
        let mut going = std::pin::pin!(going.buffer_unordered(PICKED_UP_TOGETHER_MAX));
        while let Some((run, reply)) = going.next().await {
            done(run, reply);
        }
    }
}
