//! A loom in a folder: one file with one record per line, and the bodies as files beside it.
//!
//! ```text
//! records.jsonl   every record of every run, in the order of writing; the last one of a step has its id
//! leases.jsonl    every epoch that was given out
//! bodies/ab/...   long values, under their hash
//! writer.lock     held by the one process that may write
//! ```
//!
//! A line is flushed to the disk before its step is answered, and steps that wait together share a flush. A process
//! that dies leaves at most an unfinished step at the end, for which nobody got an answer. It is cut off when the
//! folder is opened the next time, and the number of removed bytes is reported. Any other difference from what was
//! written is damage: it is reported with its place, and nothing after it is read or written. Silent repair was
//! rejected, because detecting such changes is the only purpose of the hash chain.
//!
//! The views are computed from the records in memory, so a folder is only for looms that fit in memory.

mod bodies;
mod line;
mod open;
mod verify;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::{Hash, RunId, Timestamp};
use futures_util::{Stream, StreamExt, stream};
use tokio::sync::{RwLock, RwLockReadGuard, watch};

use crate::state::State;
use crate::views::loom_by_projection;
use crate::{
    AppendOutcome, Bodies, Body, Damage, Error, Journal, Lease, ListPage, PageRequest, Record, RunView, Seq, Step,
    WorkerId,
};

use bodies::Folder;
use writer::{WriteRequest, Writer};

pub use verify::{RemovedCounts, VerifyReport};

const RECORDS: &str = "records.jsonl";
const LEASES: &str = "leases.jsonl";
const BODIES: &str = "bodies";
const LOCK: &str = "writer.lock";

/// A loom in a folder. It keeps no ledger: counters in a file of lines cannot be shared between processes, and sharing
/// is the purpose of a budget.
#[derive(Debug)]
pub struct Jsonl {
    folder: PathBuf,
    shared: Arc<Shared>,
    /// None if the folder is opened for reading.
    writer: Option<Writer>,
    torn_bytes: u64,
}

/// The state that the writer thread and the readers share.
#[derive(Debug)]
struct Shared {
    held: RwLock<FolderState>,
    bodies: Folder,
    commits: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct FolderState {
    state: State,
    /// The number of bytes of the records file that have been read.
    length: u64,
    lines: u64,
    /// The first damage. Nothing after it is known.
    damage: Option<Damage>,
}

impl FolderState {
    fn check_undamaged(&self) -> Result<(), Error> {
        match &self.damage {
            Some(damage) => Err(Error::Damaged(damage.clone())),
            None => Ok(()),
        }
    }
}

impl Jsonl {
    /// Opens a folder for writing and reading, and creates it if it does not exist. Only one process may do so; a
    /// second one gets [`Error::Locked`].
    ///
    /// An unfinished step at the end is cut off: see [`torn_bytes`](Self::torn_bytes). A damaged folder opens, so that
    /// the records before the damage can be read and [`verify`](Self::verify) can report the damage; views and appends
    /// are refused.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, Error> {
        let folder = folder.into();
        let (lock, held, torn_bytes) = open::for_writing(&folder)?;
        let shared = Arc::new(Shared {
            held: RwLock::new(held),
            bodies: Folder::new(folder.join(BODIES)),
            commits: watch::Sender::new(0),
        });
        let writer = Writer::start(&folder, lock, shared.clone())?;
        Ok(Self { folder, shared, writer: Some(writer), torn_bytes })
    }

    /// Opens a folder for reading, also while another process writes to it. Each read takes in the steps that were
    /// finished since the last one; an unfinished end is left alone.
    pub fn open_to_read(folder: impl Into<PathBuf>) -> Result<Self, Error> {
        let folder = folder.into();
        let mut held = FolderState::default();
        open::catch_up(&folder.join(RECORDS), &mut held)?;
        let bodies = Folder::new(folder.join(BODIES));
        let shared = Arc::new(Shared { held: RwLock::new(held), bodies, commits: watch::Sender::new(0) });
        Ok(Self { folder, shared, writer: None, torn_bytes: 0 })
    }

    /// Returns the number of bytes of an unfinished step that were cut off when the folder was opened.
    pub fn torn_bytes(&self) -> u64 {
        self.torn_bytes
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Reads everything from the disk again. Checks every hash, the chain of every run, every body that is named, and
    /// that each record follows from those before it. The first fault is an [`Error::Damaged`] with its run and
    /// position.
    pub fn verify(&self) -> Result<VerifyReport, Error> {
        verify::folder(&self.folder)
    }

    /// Verifies a folder without opening it.
    pub fn verify_folder(folder: &Path) -> Result<VerifyReport, Error> {
        verify::folder(folder)
    }

    async fn folder_state(&self) -> Result<RwLockReadGuard<'_, FolderState>, Error> {
        if self.writer.is_none() {
            let mut held = self.shared.held.write().await;
            if held.damage.is_none() {
                open::catch_up(&self.folder.join(RECORDS), &mut held)?;
            }
            return Ok(held.downgrade());
        }
        Ok(self.shared.held.read().await)
    }

    async fn with<T>(&self, view: impl FnOnce(&State, &dyn Bodies) -> Result<T, Error>) -> Result<T, Error> {
        let held = self.folder_state().await?;
        held.check_undamaged()?;
        view(&held.state, &self.shared.bodies)
    }

    async fn order<T>(&self, make: impl FnOnce(writer::Reply<T>) -> WriteRequest) -> Result<T, Error> {
        match &self.writer {
            Some(writer) => writer.order(make).await,
            None => Err(Error::ReadOnly),
        }
    }

    /// Returns records, and the error that cut them short, if any.
    async fn records(&self, chosen: impl FnOnce(&State) -> Result<Vec<Record>, Error>) -> (Vec<Record>, Option<Error>) {
        let held = match self.folder_state().await {
            Ok(held) => held,
            Err(error) => return (Vec::new(), Some(error)),
        };
        match (chosen(&held.state), held.check_undamaged()) {
            (Ok(records), Ok(())) => (records, None),
            (Ok(records), Err(damage)) => (records, Some(damage)),
            (Err(error), Ok(())) => (Vec::new(), Some(error)),
            // An unknown run may be stored after the damage.
            (Err(_), Err(damage)) => (Vec::new(), Some(damage)),
        }
    }
}

fn record_stream(
    found: impl Future<Output = (Vec<Record>, Option<Error>)> + Send,
) -> impl Stream<Item = Result<Record, Error>> + Send {
    stream::once(found).flat_map(|(records, error)| stream::iter(records).map(Ok).chain(stream::iter(error.map(Err))))
}

impl Journal for Jsonl {
    async fn append(&self, step: Step) -> Result<AppendOutcome, Error> {
        self.order(|reply| WriteRequest::Append(Box::new(step), reply)).await
    }

    async fn acquire(&self, run: RunId, owner: WorkerId, now: Timestamp, lasts: Duration) -> Result<Lease, Error> {
        self.order(|reply| WriteRequest::Acquire { run, owner, now, lasts, reply }).await
    }

    async fn renew(&self, lease: &Lease, now: Timestamp, lasts: Duration) -> Result<Lease, Error> {
        self.order(|reply| WriteRequest::Renew { lease: lease.clone(), now, lasts, reply }).await
    }

    async fn release(&self, lease: &Lease) -> Result<(), Error> {
        self.order(|reply| WriteRequest::Release(lease.clone(), reply)).await
    }

    async fn holder(&self, run: RunId) -> Result<Option<Lease>, Error> {
        self.with(|state, _| state.holder(run)).await
    }

    async fn orphans(&self, now: Timestamp, page: PageRequest) -> Result<ListPage<RunView>, Error> {
        self.with(|state, _| state.orphans(now, page)).await
    }

    async fn lease_owners(&self) -> Result<Vec<WorkerId>, Error> {
        self.with(|state, _| state.lease_owners()).await
    }

    async fn leases_of(&self, owner: WorkerId, page: PageRequest) -> Result<ListPage<Lease>, Error> {
        self.with(|state, _| state.leases_of(&owner, page)).await
    }

    fn read(&self, run: RunId, after: Seq) -> impl Stream<Item = Result<Record, Error>> + Send {
        record_stream(self.records(move |state| state.records_of(run, after)))
    }

    fn scan(&self) -> impl Stream<Item = Result<Record, Error>> + Send {
        record_stream(self.records(|state| Ok(state.records())))
    }

    async fn wait_for_growth(&self, run: RunId, after: Seq) -> Result<Seq, Error> {
        let mut commits = self.shared.commits.subscribe();
        loop {
            let newest = self.with(|state, _| state.newest(run)).await?;
            if newest > after {
                return Ok(newest);
            }
            commits.changed().await.map_err(|_| Error::Stopped)?;
        }
    }

    async fn body(&self, hash: Hash) -> Result<Body, Error> {
        Body::new(self.shared.bodies.body(&hash)?)
    }
}

loom_by_projection!(Jsonl);

impl crate::Ledger for Jsonl {}

/// A folder keeps no contracts: every method returns [`Error::NoContracts`].
impl crate::Contracts for Jsonl {}

/// Neither does it keep datasets, jobs and reports.
impl crate::Improvements for Jsonl {}
