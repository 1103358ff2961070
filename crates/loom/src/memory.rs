//! A loom in memory. It is lost when its process ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cantrip_canon::{Hash, RunId, Timestamp};
use futures_util::{Stream, StreamExt, stream};
use tokio::sync::watch;

use crate::contracts::MemoryContracts;
use crate::improve::MemoryImprovements;
use crate::ledger::MemoryLedger;
use crate::state::{StageOutcome, State};
use crate::views::loom_by_projection;
use crate::{
    AppendOutcome, Bodies, Body, Error, Journal, Lease, ListPage, PageRequest, Record, RunView, Seq, Step, WorkerId,
};

/// A loom in memory. It keeps contracts, and a ledger that holds `auth_local`.
///
/// ```
/// # use cantrip_loom::{Loom, MemoryLoom};
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let loom = MemoryLoom::new();
/// assert!(loom.looms().await.unwrap().is_empty());
/// # });
/// ```
#[derive(Debug)]
pub struct MemoryLoom {
    inner: Mutex<Inner>,
    commits: watch::Sender<u64>,
}

#[derive(Debug)]
struct Inner {
    state: State,
    bodies: BodyMap,
}

#[derive(Debug, Default)]
struct BodyMap(HashMap<Hash, Arc<[u8]>>);

impl Bodies for BodyMap {
    fn body(&self, hash: &Hash) -> Result<Arc<[u8]>, Error> {
        self.0.get(hash).cloned().ok_or(Error::BodyAltered(*hash))
    }
}

impl Default for MemoryLoom {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryLoom {
    pub fn new() -> Self {
        let inner = Inner { state: State::with_ledger(), bodies: BodyMap::default() };
        Self { inner: Mutex::new(inner), commits: watch::Sender::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic between two changes would be a bug; the state was complete before it.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, step: Step) -> Result<AppendOutcome, Error> {
        let answer = {
            let mut inner = self.lock();
            let Inner { state, bodies } = &mut *inner;
            let new = step.bodies.clone();
            match state.stage(step, |hash| bodies.0.contains_key(hash))? {
                StageOutcome::Answered(answer) => return Ok(answer),
                StageOutcome::Written(answer) => {
                    bodies.0.extend(new.into_iter().map(|body| (body.hash(), body.bytes().clone())));
                    answer
                }
            }
        };
        self.commits.send_modify(|commits| *commits += 1);
        Ok(answer)
    }
}

impl Journal for MemoryLoom {
    async fn append(&self, step: Step) -> Result<AppendOutcome, Error> {
        self.write(step)
    }

    async fn acquire(&self, run: RunId, owner: WorkerId, now: Timestamp, lasts: Duration) -> Result<Lease, Error> {
        self.lock().state.acquire(run, owner, now, lasts)
    }

    async fn renew(&self, lease: &Lease, now: Timestamp, lasts: Duration) -> Result<Lease, Error> {
        self.lock().state.renew(lease, now, lasts)
    }

    async fn release(&self, lease: &Lease) -> Result<(), Error> {
        self.lock().state.release(lease);
        Ok(())
    }

    async fn holder(&self, run: RunId) -> Result<Option<Lease>, Error> {
        self.lock().state.holder(run)
    }

    async fn orphans(&self, now: Timestamp, page: PageRequest) -> Result<ListPage<RunView>, Error> {
        self.lock().state.orphans(now, page)
    }

    async fn lease_owners(&self) -> Result<Vec<WorkerId>, Error> {
        self.lock().state.lease_owners()
    }

    async fn leases_of(&self, owner: WorkerId, page: PageRequest) -> Result<ListPage<Lease>, Error> {
        self.lock().state.leases_of(&owner, page)
    }

    fn read(&self, run: RunId, after: Seq) -> impl Stream<Item = Result<Record, Error>> + Send {
        match self.lock().state.records_of(run, after) {
            Ok(records) => stream::iter(records).map(Ok).left_stream(),
            Err(error) => stream::iter([Err(error)]).right_stream(),
        }
    }

    fn scan(&self) -> impl Stream<Item = Result<Record, Error>> + Send {
        stream::iter(self.lock().state.records()).map(Ok)
    }

    async fn wait_for_growth(&self, run: RunId, after: Seq) -> Result<Seq, Error> {
        let mut commits = self.commits.subscribe();
        loop {
            let newest = self.lock().state.newest(run)?;
            if newest > after {
                return Ok(newest);
            }
            commits.changed().await.map_err(|_| Error::Stopped)?;
        }
    }

    async fn body(&self, hash: Hash) -> Result<Body, Error> {
        let bytes = self.lock().bodies.body(&hash)?;
        Body::new(bytes)
    }
}

impl MemoryLoom {
    async fn with<T>(&self, view: impl FnOnce(&State, &dyn Bodies) -> Result<T, Error>) -> Result<T, Error> {
        let inner = self.lock();
        view(&inner.state, &inner.bodies)
    }

    pub(crate) fn with_ledger<T>(
        &self,
        view: impl FnOnce(&State, &MemoryLedger) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let inner = self.lock();
        view(&inner.state, inner.state.ledger()?)
    }

    pub(crate) fn with_contracts<T>(
        &self,
        view: impl FnOnce(&MemoryContracts) -> Result<T, Error>,
    ) -> Result<T, Error> {
        view(self.lock().state.contracts()?)
    }

    pub(crate) fn with_improvements<T>(
        &self,
        view: impl FnOnce(&MemoryImprovements) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.with_contracts(|kept| view(kept.improvements()))
    }
}

loom_by_projection!(MemoryLoom);
