//! Runs that nobody works on.

use cantrip::canon::RunId;
use cantrip::loom::{Journal, PageRequest, RunView};
use cantrip::reply::Refusal;
use cantrip::spend::Principal;
use cantrip::{Cancel, Cantrip, CastReply, Funds, owner_of, store_refusal};
use futures_util::{StreamExt, stream};

use crate::Service;
use crate::act::reply_without_cast;
use crate::limits::PICKED_UP_TOGETHER_MAX;

impl Service {
    /// The runs that nobody works on: live ones whose owner's lease is over, and that wait for nobody.
    pub async fn orphans(&self) -> Result<Vec<RunView>, Refusal> {
        let (mut found, mut page) = (Vec::new(), PageRequest::FIRST);
        loop {
            let loom = self.runtime().loom();
            let now = loom.lease_now(self.clock.now().wall).await.map_err(|error| store_refusal(&error))?;
            let listed = loom.orphans(now, page).await.map_err(|error| store_refusal(&error))?;
            found.extend(listed.items);
            match listed.next {
                Some(after) => page.after = Some(after),
                None => return Ok(found),
            }
        }
    }

    /// Whether someone pays for a run of this agent here; a store without a ledger asks nobody.
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

    /// Marks what processes that are gone left reserved: see [`Runtime::recover`](cantrip::Runtime::recover). This is what a
    /// process does when it starts.
    pub async fn recover(&self) -> Result<u64, Refusal> {
        self.runtime().recover().await
    }

    /// Goes on with these runs, a few at once; `cantrip_of` finds what each was cast with, and `done` hears of each when
    /// it rests. One that someone else takes first, or whose cantrip cannot be found, is answered so and left alone.
    ///
    /// This is what a process that serves does when it starts, with its [`orphans`](Self::orphans).
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
                Err(refusal) => reply_without_cast(self.refusal_reply("resume", refusal).await),
            };
            (run, reply)
        });
        let mut going = std::pin::pin!(going.buffer_unordered(PICKED_UP_TOGETHER_MAX));
        while let Some((run, reply)) = going.next().await {
            done(run, reply);
        }
    }
}
