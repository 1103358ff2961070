//! Taking over the runs that another process left behind.
//!
//! A server scans repeatedly: a process that holds a run may be killed at any moment, and the others get no notice. A
//! run whose process is dead on this machine is taken over at once. Any other run is taken over when its lease has
//! expired by the store's own clock. The scan only proposes: the process that acquires the lease first drives the run,
//! and the epoch that is checked in every write keeps all others out.
//!
//! A run may itself be what ends its process, and then all other runs of that process are left with it. So runs that
//! were taken over repeatedly without progress are driven one at a time until they make progress: the run that ends its
//! process is then the only one without progress. It is parked after a number of attempts, and a user who resumes it
//! starts a new series of attempts.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cantrip_service::cantrip::canon::RunId;
use cantrip_service::cantrip::loom::{Journal, Loom, PageRequest, RunKind, RunView, WorkerId};
use cantrip_service::cantrip::reply::Refusal;
use cantrip_service::cantrip::{Cancel, store_refusal};
use cantrip_service::limits::PICKED_UP_TOGETHER_MAX;
use futures_util::{StreamExt, stream};
use tokio::time::Instant;

use crate::limits::{
    TAKE_UPS_TOGETHER_MAX, TAKE_UPS_WITHOUT_PROGRESS_MAX, TAKEOVER_AGAIN_MAX_MS, TAKEOVER_AGAIN_MS, TAKEOVER_JITTER_MS,
    TAKEOVER_LOOK_MS, TAKEOVER_PLACES_MAX,
};
use crate::spell_host::SpellHost;

/// Finds the runs that other processes left behind and resumes them here.
pub struct Takeover {
    host: SpellHost,
    /// Returns true if the lease's owner was a process of this machine that has ended.
    is_gone: Arc<dyn Fn(&WorkerId) -> bool + Send + Sync>,
    attempts: Arc<Mutex<HashMap<RunId, Attempts>>>,
    /// The run that is driven alone here, because it made no progress before, while similar runs wait.
    isolated_run: Arc<Mutex<Option<RunId>>>,
    /// Gets each run that is taken over, when it starts.
    listener: Option<TakeoverListener>,
}

type TakeoverListener = Arc<dyn Fn(&RunView) + Send + Sync>;

impl std::fmt::Debug for Takeover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Takeover").field("host", &self.host).finish_non_exhaustive()
    }
}

/// The number of attempts for a run here, and the time of the next one.
#[derive(Debug, Clone, Copy)]
struct Attempts {
    count: u32,
    due: Instant,
}

impl Attempts {
    /// Doubles the wait with each attempt, so that a run whose spell is missing here, or that has no funds, costs
    /// little.
    fn after(before: Option<Self>, now: Instant) -> Self {
        let count = before.map_or(0, |attempts| attempts.count) + 1;
        let wait_ms = TAKEOVER_AGAIN_MS.saturating_mul(1 << (count - 1).min(16)).min(TAKEOVER_AGAIN_MAX_MS);
        Self { count, due: now + Duration::from_millis(wait_ms) }
    }
}

impl Takeover {
    /// `is_gone` must return true only for a process that has certainly ended. A process of another machine or another
    /// PID namespace cannot be looked up, and its lease has to expire.
    pub fn new(host: SpellHost, is_gone: impl Fn(&WorkerId) -> bool + Send + Sync + 'static) -> Self {
        let (attempts, isolated_run) = (Arc::default(), Arc::default());
        Self { host, is_gone: Arc::new(is_gone), attempts, isolated_run, listener: None }
    }

    /// Adds a listener that gets each run that is taken over, when it starts.
    #[must_use]
    pub fn with_listener(self, listener: impl Fn(&RunView) + Send + Sync + 'static) -> Self {
        Self { listener: Some(Arc::new(listener)), ..self }
    }

    /// Scans for as long as it is polled. A failed scan is logged, and the next one tries again.
    pub async fn run(&self) {
        loop {
            if let Err(refusal) = self.scan_once().await {
                tracing::warn!(code = %refusal.code(), "orphaned runs cannot be read");
            }
            tokio::time::sleep(Duration::from_millis(TAKEOVER_LOOK_MS) + jitter()).await;
        }
    }

    /// Scans once: releases the leases of dead processes, and starts to drive the runs without a driver. Returns the
    /// number of runs that were started; they continue after it has returned.
    pub async fn scan_once(&self) -> Result<usize, Refusal> {
        self.release_dead_leases().await?;
        let found = self.host.local_service().orphans().await?;
        self.attempts().retain(|run, _| found.iter().any(|orphan| orphan.run_id == *run));
        let free_places = TAKEOVER_PLACES_MAX.saturating_sub(self.host.local_service().active_runs());
        let mut due = self.choose_runs(found.into_iter().filter(|run| self.is_due(run)).collect()).await;
        due.truncate(free_places);
        let begun = stream::iter(due).map(|run| self.take_up(run)).buffer_unordered(PICKED_UP_TOGETHER_MAX);
        Ok(begun.filter(|begun| std::future::ready(*begun)).count().await)
    }

    /// Releases the leases that dead processes of this machine held, and marks the money that they left reserved in
    /// runs that were taken over since.
    pub async fn release_dead_leases(&self) -> Result<(), Refusal> {
        let stored = |error| store_refusal(&error);
        let loom = self.host.runtime().loom();
        for owner in loom.lease_owners().await.map_err(stored)? {
            if !(self.is_gone)(&owner) {
                continue;
            }
            let mut next = Some(PageRequest::FIRST);
            while let Some(page) = next {
                let listed = loom.leases_of(owner.clone(), page).await.map_err(stored)?;
                for lease in &listed.items {
                    // A lease that another process has acquired meanwhile stays with its new owner.
                    loom.release(lease).await.map_err(stored)?;
                    tracing::info!(run = %lease.run, owner = owner.as_str(), "released the lease of a process that is gone");
                }
                next = page.following(listed.next);
            }
        }
        Ok(())
    }

    fn attempts(&self) -> MutexGuard<'_, HashMap<RunId, Attempts>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_due(&self, run: &RunView) -> bool {
        let is_kind = match run.kind {
            // A trial goes on with its job, which finds it under its key.
            RunKind::Cast | RunKind::Predict => run.root_run_id.is_none(),
            RunKind::Job => true,
            RunKind::Summon => false,
        };
        let is_waiting = self.attempts().get(&run.run_id).is_some_and(|attempts| attempts.due > Instant::now());
        is_kind && !is_waiting && !self.host.runtime().is_driving(run.run_id)
    }

    /// Returns the runs to take over now: all except those that repeatedly made no progress, and one of these if none
    /// of them is active here.
    async fn choose_runs(&self, due: Vec<RunView>) -> Vec<RunView> {
        let (mut chosen, mut without_progress) = (Vec::new(), Vec::new());
        for run in due {
            match self.take_ups_without_progress(&run).await {
                // A run beyond the limit is not driven: it will be parked.
                times if !(TAKE_UPS_TOGETHER_MAX..TAKE_UPS_WITHOUT_PROGRESS_MAX).contains(&times) => chosen.push(run),
                times => without_progress.push((times, run)),
            }
        }
        without_progress.sort_by_key(|(times, _)| *times);
        if let Some((_, run)) = without_progress.into_iter().next()
            && self.is_isolated_run_done().await
        {
            *self.isolated_run() = Some(run.run_id);
            chosen.insert(0, run);
        }
        chosen
    }

    fn isolated_run(&self) -> MutexGuard<'_, Option<RunId>> {
        self.isolated_run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the run that was driven alone has stopped, or has made progress.
    async fn is_isolated_run_done(&self) -> bool {
        let Some(isolated) = *self.isolated_run() else { return true };
        if !self.host.runtime().is_driving(isolated) {
            return true;
        }
        match self.host.runtime().loom().run(isolated).await {
            Ok(run) => self.take_ups_without_progress(&run).await == 0,
            Err(error) => {
                tracing::warn!(run = %isolated, %error, "a resumed run cannot be read");
                false
            }
        }
    }

    /// Returns the number of takeovers of a run since its last progress. A run whose records cannot be read fails when
    /// it is taken over.
    async fn take_ups_without_progress(&self, run: &RunView) -> u64 {
        // A run with so few takeovers need not be read.
        if run.epoch.get() <= TAKE_UPS_TOGETHER_MAX {
            return 0;
        }
        match self.host.runtime().take_ups_without_progress(run).await {
            Ok(times) => times,
            Err(refusal) => {
                tracing::warn!(run = %run.run_id, code = %refusal.code(), "the progress of a run cannot be read");
                0
            }
        }
    }

    /// Starts to drive a run. Returns true if it was started. Its end is logged.
    async fn take_up(&self, run: RunView) -> bool {
        let id = run.run_id;
        {
            let mut attempts = self.attempts();
            let next = Attempts::after(attempts.get(&id).copied(), Instant::now());
            attempts.insert(id, next);
        }
        let refused = |refusal: Refusal| {
            tracing::warn!(run = %id, code = %refusal.code(), "an orphaned run cannot be resumed");
            false
        };
        match self.host.runtime().loom().run(id).await {
            Ok(now) if now.state.is_live() => {}
            Ok(_) => {
                tracing::info!(run = %id, "another process has ended this run since it was listed: it is skipped");
                return false;
            }
            Err(error) => return refused(store_refusal(&error)),
        }
        match self.is_funded(&run).await {
            Ok(true) => {}
            Ok(false) => {
                tracing::info!(run = %id, owner = run.owner.as_str(), "no authorization pays for this run here: it is skipped");
                return false;
            }
            Err(refusal) => return refused(refusal),
        }
        match self.host.runtime().park_without_progress(id, TAKE_UPS_WITHOUT_PROGRESS_MAX).await {
            Ok(None) => {}
            Ok(Some(fault)) => {
                let (code, message) = (&fault.mark.code, &fault.message);
                tracing::warn!(run = %id, %code, "{message}: it waits for a person, `cantrip run resume {id}` tries again");
                return false;
            }
            Err(refusal) => return refused(refusal),
        }
        let begun = self.host.local_service().begin_resume(id, Cancel::new()).await;
        let is_begun = begun.run.is_some();
        if is_begun && let Some(listener) = &self.listener {
            listener(&run);
        }
        tokio::spawn(async move {
            let reply = begun.reply().await;
            tracing::info!(run = %id, code = %reply.reply().code(), "a resumed run stopped");
        });
        is_begun
    }

    /// Returns true if the run has funds here. A run without funds would end as soon as it is resumed; elsewhere, or
    /// later, it can continue.
    async fn is_funded(&self, run: &RunView) -> Result<bool, Refusal> {
        let agent = match (run.kind, run.entity_id) {
            (RunKind::Cast, Some(entity)) => {
                self.host.local_service().spells().cantrip_of_entity(entity).await?.name().map(str::to_owned)
            }
            (RunKind::Job, _) => Some(self.host.local_service().job_agent(run.run_id).await?),
            (RunKind::Cast | RunKind::Summon | RunKind::Predict, _) => None,
        };
        self.host.local_service().is_funded(run, agent).await
    }
}

/// Returns a random part of the jitter, so that servers that started together do not scan together.
fn jitter() -> Duration {
    let drawn = RandomState::new().build_hasher().finish();
    Duration::from_millis(drawn % (TAKEOVER_JITTER_MS + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_between_attempts_doubles_up_to_its_limit() {
        let now = Instant::now();
        let (mut attempts, mut waits) = (None, Vec::new());
        for _ in 0..20 {
            let next = Attempts::after(attempts, now);
            waits.push((next.due - now).as_millis());
            attempts = Some(next);
        }
        let (first, most) = (u128::from(TAKEOVER_AGAIN_MS), u128::from(TAKEOVER_AGAIN_MAX_MS));
        assert_eq!(waits[..3], [first, 2 * first, 4 * first]);
        assert!(waits.windows(2).all(|pair| pair[0] <= pair[1]) && waits.last() == Some(&most), "{waits:?}");
    }
}
