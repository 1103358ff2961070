//! The only writer: it takes all waiting requests, writes them in one transaction, flushes once, and answers all.
//!
//! The writer never delays a request to fill a group: a group is whatever queued during the last flush. A step that
//! was taken from the queue is finished even if its caller is gone.

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

/// A request to the writer.
#[derive(Debug)]
pub(crate) enum WriteRequest {
    Append(Box<Step>),
    Acquire { run: RunId, owner: WorkerId, now: Timestamp, lasts: Duration },
    Renew { lease: Lease, now: Timestamp, lasts: Duration },
    Release(Lease),
    Prune { order: Box<RetentionOrder>, run: RunId, through: Seq },
}

/// The response of the writer.
#[derive(Debug)]
pub(crate) enum WriteResponse {
    Answer(AppendOutcome),
    Lease(Lease),
    Released,
    Pruned(Anchor),
}

/// A request with the channel for its response.
#[derive(Debug)]
pub(crate) struct QueuedWrite {
    pub ask: WriteRequest,
    pub reply: oneshot::Sender<Result<WriteResponse, Error>>,
}

impl WriteRequest {
    /// Returns the step of an append.
    fn step(&self) -> Option<&Step> {
        match self {
            Self::Append(step) => Some(step),
            Self::Acquire { .. } | Self::Renew { .. } | Self::Release(_) | Self::Prune { .. } => None,
        }
    }

    /// Returns the run; none if the request is outside every run.
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
    /// None if the connection was lost. The next group opens a new one.
    link: Option<DbConnection>,
    cache: CommitCache,
    notifier: Arc<RunNotifier>,
}

/// The answers of a group, in the order of its requests.
type Answers = Vec<Result<WriteResponse, Error>>;

impl Writer {
    pub(crate) fn new(source: StoreLocation, link: DbConnection, notifier: Arc<RunNotifier>) -> Self {
        Self { source, link: Some(link), cache: CommitCache::default(), notifier }
    }

    pub(crate) fn link(&mut self) -> Option<&mut DbConnection> {
        self.link.as_mut()
    }

    /// Executes a group.
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
            // The caller may be gone; the result is committed anyway.
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
                    // One of the requests is at fault; they are tried one by one to find it.
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

    /// Writes all requests in one transaction.
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
            // Postgres notifies the other processes when, and only if, this transaction is committed.
            self.cache.push("SELECT pg_notify(?1, '')", vec![channel.into()]);
        }
        self.cache.commit(link).await
    }

    /// Writes each request in its own savepoint, so that a failure rolls back only that request.
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
                            // Another process was first; its writes are visible now.
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
                    return Ok(Err(Error::not_found("run", *run)));
                };
                let acquired = tenure.acquire(*run, owner.clone(), *now, *lasts);
                if acquired.is_ok() {
                    self.cache.set_lease_state(*run, key, tenure);
                }
                Ok(acquired.map(WriteResponse::Lease))
            }
            WriteRequest::Renew { lease, now, lasts } => {
                let Some((key, mut tenure)) = self.cache.lease_state(link, lease.run).await? else {
                    return Ok(Err(Error::not_found("run", lease.run)));
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
                // Cached cantrips may depend on the records that are removed.
                self.cache.flush(link).await?;
                self.cache.forget();
                Ok(prune::prune(link, order, *run, *through).await?.map(WriteResponse::Pruned))
            }
        }
    }
}
