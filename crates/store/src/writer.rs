//! The one who writes: it takes what is waiting, writes it in one transaction, flushes once, and answers all.
//!
//! Nobody waits for company: a group is what came in while the last one was being flushed. A step that was taken is
//! finished even if whoever asked is gone.

use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::{RunId, Timestamp};
use cantrip_loom::{AppendOutcome, Error, Lease, RetentionOrder, Seq, Step, WorkerId};
use tokio::sync::oneshot;

use crate::commit::{CheckLevel, CommitCache};
use crate::connection::{DbConnection, TransactionKind};
use crate::contracts;
use crate::failure::{Failure, FailureKind, StoreFault};
use crate::ledger;
use crate::limits::STEP_TRIES_MAX;
use crate::location::StoreLocation;
use crate::prune::{self, Anchor};
use crate::run_notifier::RunNotifier;

/// What the writer is asked to do.
#[derive(Debug)]
pub(crate) enum WriteRequest {
    Append(Box<Step>),
    Acquire { run: RunId, owner: WorkerId, now: Timestamp, lasts: Duration },
    Renew { lease: Lease, now: Timestamp, lasts: Duration },
    Release(Lease),
    Prune { order: Box<RetentionOrder>, run: RunId, through: Seq },
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum WriteResponse {
    Answer(AppendOutcome),
    Lease(Lease),
    Released,
    Pruned(Anchor),
}

/// What was asked, and who wants to know.
#[derive(Debug)]
pub(crate) struct QueuedWrite {
    pub ask: WriteRequest,
    pub reply: oneshot::Sender<Result<WriteResponse, Error>>,
}

impl WriteRequest {
    /// The step that it has written.
    fn step(&self) -> Option<&Step> {
        match self {
            Self::Append(step) => Some(step),
            Self::Acquire { .. } | Self::Renew { .. } | Self::Release(_) | Self::Prune { .. } => None,
        }
    }

    /// None: it is outside every run.
    fn run(&self) -> Option<RunId> {
        match self {
            Self::Append(step) => step.run(),
            Self::Acquire { run, .. } | Self::Prune { run, .. } => Some(*run),
            Self::Renew { lease, .. } | Self::Release(lease) => Some(lease.run),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Writer {
    source: StoreLocation,
    /// None: the connection was lost, and is made anew for the next group.
    link: Option<DbConnection>,
    cache: CommitCache,
    notifier: Arc<RunNotifier>,
}

/// The answers of a group, in the order in which they were asked for.
type Answers = Vec<Result<WriteResponse, Error>>;

impl Writer {
    pub(crate) fn new(source: StoreLocation, link: DbConnection, notifier: Arc<RunNotifier>) -> Self {
        Self { source, link: Some(link), cache: CommitCache::default(), notifier: notifier }
    }

    pub(crate) fn link(&mut self) -> Option<&mut DbConnection> {
        self.link.as_mut()
    }

    /// Carries out a group.
    pub(crate) async fn serve(&mut self, orders: Vec<QueuedWrite>) {
        let (asks, replies): (Vec<WriteRequest>, Vec<_>) =
            orders.into_iter().map(|order| (order.ask, order.reply)).unzip();
        let answers = match self.commit_batch(&asks).await {
            Ok(answers) => answers,
            Err(failure) => {
                let at = self.source.display_name();
                let cause = failure.cause.to_string();
                let again = |kind| Failure { kind, cause: cause.clone().into() };
                asks.iter().map(|_| Err(again(failure.kind).into_error("write to", &at))).collect()
            }
        };
        self.notifier.notify(asks.iter().filter_map(WriteRequest::run));
        for (reply, answer) in replies.into_iter().zip(answers) {
            // Who asked may be gone; what was written stands all the same.
            let _ = reply.send(answer);
        }
    }

    async fn commit_batch(&mut self, asks: &[WriteRequest]) -> Result<Answers, Failure> {
        let mut link = match self.link.take().filter(DbConnection::is_open) {
            Some(link) => link,
            None if self.source.is_persistent() => {
                self.cache.forget();
                self.source.connect().await?
            }
            None => {
                let cause = "its only connection was given up, and what it held is gone".into();
                return Err(Failure { kind: FailureKind::Unreachable, cause });
            }
        };
        let together = self.commit_together(&mut link, asks).await;
        let answered = match together {
            Ok(answers) => Ok(answers),
            Err(fault) => {
                self.cache.forget();
                link.roll_back().await?;
                match fault {
                    StoreFault::Database(failure) if failure.kind != FailureKind::Conflict => Err(failure),
                    // Something about one of them: which one is found out one by one.
                    StoreFault::Database(_) | StoreFault::Found(_) => self.commit_each(&mut link, asks).await,
                }
            }
        };
        if answered.is_err() {
            self.cache.forget();
            link.roll_back().await?;
        }
        self.link = Some(link);
        answered
    }

    /// All in one go.
    async fn commit_together(&mut self, link: &mut DbConnection, asks: &[WriteRequest]) -> Result<Answers, StoreFault> {
        link.begin(TransactionKind::Write).await?;
        self.cache.begin(link, asks.iter().filter_map(WriteRequest::run).collect()).await?;
        ledger::lock(link, asks.iter().filter_map(WriteRequest::step)).await?;
        contracts::lock(link, asks.iter().filter_map(WriteRequest::step)).await?;
        let mut answers = Vec::with_capacity(asks.len());
        for ask in asks {
            answers.push(self.execute(link, ask, CheckLevel::Optimistic).await?);
        }
        self.finish(link).await?;
        Ok(answers)
    }

    async fn finish(&mut self, link: &mut DbConnection) -> Result<(), StoreFault> {
        if let Some(channel) = self.source.channel().filter(|_| self.cache.has_written()) {
            // Postgres tells the other processes when, and only if, this is committed.
            self.cache.push("SELECT pg_notify(?1, '')", vec![channel.into()]);
        }
        self.cache.commit(link).await
    }

    /// Each in a savepoint of its own, so that what goes wrong with one is taken back with it and harms no other.
    async fn commit_each(&mut self, link: &mut DbConnection, asks: &[WriteRequest]) -> Result<Answers, Failure> {
        link.begin(TransactionKind::Write).await?;
        let locked = match ledger::lock(link, asks.iter().filter_map(WriteRequest::step)).await {
            Ok(()) => contracts::lock(link, asks.iter().filter_map(WriteRequest::step)).await,
            Err(fault) => Err(fault),
        };
        match locked {
            Ok(()) => {}
            Err(StoreFault::Database(failure)) => return Err(failure),
            Err(StoreFault::Found(error)) => return Err(Failure { kind: FailureKind::Other, cause: error.into() }),
        }
        let mut answers = Vec::with_capacity(asks.len());
        for ask in asks {
            let mut tries = 0;
            let answer = loop {
                tries += 1;
                link.batch("SAVEPOINT one").await?;
                let done = match self.cache.begin(link, ask.run().into_iter().collect()).await {
                    Ok(()) => self.execute(link, ask, CheckLevel::Full).await,
                    Err(fault) => Err(fault),
                };
                let done = match done {
                    Ok(done) => self.cache.flush(link).await.map(|()| done),
                    Err(fault) => Err(fault),
                };
                match done {
                    Ok(answer) => {
                        link.batch("RELEASE SAVEPOINT one").await?;
                        break answer;
                    }
                    Err(StoreFault::Database(failure)) if failure.kind != FailureKind::Conflict => return Err(failure),
                    Err(fault) => {
                        self.cache.forget();
                        link.batch("ROLLBACK TO SAVEPOINT one; RELEASE SAVEPOINT one").await?;
                        match fault {
                            // Another process was first: now it can be seen.
                            StoreFault::Database(_) if tries < STEP_TRIES_MAX => {}
                            StoreFault::Database(_) | StoreFault::Found(_) => {
                                break Err(fault.into_error("write to", &self.source.display_name()));
                            }
                        }
                    }
                }
            };
            answers.push(answer);
        }
        match self.finish(link).await {
            Ok(()) => Ok(answers),
            Err(StoreFault::Database(failure)) => Err(failure),
            Err(StoreFault::Found(error)) => Err(Failure { kind: FailureKind::Other, cause: error.into() }),
        }
    }

    async fn execute(
        &mut self,
        link: &mut DbConnection,
        ask: &WriteRequest,
        care: CheckLevel,
    ) -> Result<Result<WriteResponse, Error>, StoreFault> {
        match ask {
            WriteRequest::Append(step) => Ok(self.cache.append(link, step, care).await?.map(WriteResponse::Answer)),
            WriteRequest::Acquire { run, owner, now, lasts } => {
                let Some((key, mut tenure)) = self.cache.lease_state(link, *run).await? else {
                    return Ok(Err(run_not_found(*run)));
                };
                let acquired = tenure.acquire(*run, owner.clone(), *now, *lasts);
                if acquired.is_ok() {
                    self.cache.set_lease_state(*run, key, tenure);
                }
                Ok(acquired.map(WriteResponse::Lease))
            }
            WriteRequest::Renew { lease, now, lasts } => {
                let Some((key, mut tenure)) = self.cache.lease_state(link, lease.run).await? else {
                    return Ok(Err(run_not_found(lease.run)));
                };
                let renewed = tenure.renew(lease, *now, *lasts);
                if renewed.is_ok() {
                    self.cache.set_lease_state(lease.run, key, tenure);
                }
                Ok(renewed.map(WriteResponse::Lease))
            }
            WriteRequest::Release(lease) => {
                if let Some((key, mut tenure)) = self.cache.lease_state(link, lease.run).await?
                    && tenure.release(lease)
                {
                    self.cache.set_lease_state(lease.run, key, tenure);
                }
                Ok(Ok(WriteResponse::Released))
            }
            WriteRequest::Prune { order, run, through } => {
                // What is remembered of cantrips may rest on what goes.
                self.cache.flush(link).await?;
                self.cache.forget();
                Ok(prune::prune(link, order, *run, *through).await?.map(WriteResponse::Pruned))
            }
        }
    }
}

pub(crate) fn run_not_found(run: RunId) -> Error {
    Error::NotFound { kind: "run", id: run.to_string() }
}
