//! The one who writes: it takes what is waiting, writes it in one transaction, flushes once, and answers all.
//!
//! Nobody waits for company: a group is what came in while the last one was being flushed. A step that was taken is
//! finished even if whoever asked is gone.

use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::{RunId, Timestamp};
use cantrip_loom::{Answer, Error, Lease, Owner, RetentionOrder, Seq, Step};
use tokio::sync::oneshot;

use crate::commit::{Care, Desk};
use crate::contracts;
use crate::failure::{Failure, FailureKind, Fault};
use crate::ledger;
use crate::limits::STEP_TRIES_MAX;
use crate::link::{Link, Purpose};
use crate::prune::{self, Anchor};
use crate::source::Source;
use crate::tidings::Tidings;

/// What the writer is asked to do.
#[derive(Debug)]
pub(crate) enum Ask {
    Append(Box<Step>),
    Acquire { run: RunId, owner: Owner, now: Timestamp, lasts: Duration },
    Renew { lease: Lease, now: Timestamp, lasts: Duration },
    Release(Lease),
    Prune { order: Box<RetentionOrder>, run: RunId, through: Seq },
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum Done {
    Answer(Answer),
    Lease(Lease),
    Released,
    Pruned(Anchor),
}

/// What was asked, and who wants to know.
#[derive(Debug)]
pub(crate) struct Order {
    pub ask: Ask,
    pub reply: oneshot::Sender<Result<Done, Error>>,
}

impl Ask {
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
    source: Source,
    /// None: the connection was lost, and is made anew for the next group.
    link: Option<Link>,
    desk: Desk,
    tidings: Arc<Tidings>,
}

/// The answers of a group, in the order in which they were asked for.
type Answers = Vec<Result<Done, Error>>;

impl Writer {
    pub(crate) fn new(source: Source, link: Link, tidings: Arc<Tidings>) -> Self {
        Self { source, link: Some(link), desk: Desk::default(), tidings }
    }

    pub(crate) fn link(&mut self) -> Option<&mut Link> {
        self.link.as_mut()
    }

    /// Carries out a group.
    pub(crate) async fn serve(&mut self, orders: Vec<Order>) {
        let (asks, replies): (Vec<Ask>, Vec<_>) = orders.into_iter().map(|order| (order.ask, order.reply)).unzip();
        let answers = match self.answers(&asks).await {
            Ok(answers) => answers,
            Err(failure) => {
                let at = self.source.shown();
                let cause = failure.cause.to_string();
                let again = |kind| Failure { kind, cause: cause.clone().into() };
                asks.iter().map(|_| Err(again(failure.kind).told("write to", &at))).collect()
            }
        };
        self.tidings.grown(asks.iter().filter_map(Ask::run));
        for (reply, answer) in replies.into_iter().zip(answers) {
            // Who asked may be gone; what was written stands all the same.
            let _ = reply.send(answer);
        }
    }

    async fn answers(&mut self, asks: &[Ask]) -> Result<Answers, Failure> {
        let mut link = match self.link.take().filter(Link::is_open) {
            Some(link) => link,
            None if self.source.outlives_its_connection() => {
                self.desk.forget();
                self.source.connect().await?
            }
            None => {
                let cause = "its only connection was given up, and what it held is gone".into();
                return Err(Failure { kind: FailureKind::Unreachable, cause });
            }
        };
        let together = self.together(&mut link, asks).await;
        let answered = match together {
            Ok(answers) => Ok(answers),
            Err(fault) => {
                self.desk.forget();
                link.roll_back().await?;
                match fault {
                    Fault::Database(failure) if failure.kind != FailureKind::Contradicted => Err(failure),
                    // Something about one of them: which one is found out one by one.
                    Fault::Database(_) | Fault::Found(_) => self.one_by_one(&mut link, asks).await,
                }
            }
        };
        if answered.is_err() {
            self.desk.forget();
            link.roll_back().await?;
        }
        self.link = Some(link);
        answered
    }

    /// All in one go.
    async fn together(&mut self, link: &mut Link, asks: &[Ask]) -> Result<Answers, Fault> {
        link.begin(Purpose::Write).await?;
        self.desk.begin(link, asks.iter().filter_map(Ask::run).collect()).await?;
        ledger::lock(link, asks.iter().filter_map(Ask::step)).await?;
        contracts::lock(link, asks.iter().filter_map(Ask::step)).await?;
        let mut answers = Vec::with_capacity(asks.len());
        for ask in asks {
            answers.push(self.one(link, ask, Care::Swift).await?);
        }
        self.finish(link).await?;
        Ok(answers)
    }

    async fn finish(&mut self, link: &mut Link) -> Result<(), Fault> {
        if let Some(channel) = self.source.channel().filter(|_| self.desk.has_written()) {
            // Postgres tells the other processes when, and only if, this is committed.
            self.desk.push("SELECT pg_notify(?1, '')", vec![channel.into()]);
        }
        self.desk.commit(link).await
    }

    /// Each in a savepoint of its own, so that what goes wrong with one is taken back with it and harms no other.
    async fn one_by_one(&mut self, link: &mut Link, asks: &[Ask]) -> Result<Answers, Failure> {
        link.begin(Purpose::Write).await?;
        let locked = match ledger::lock(link, asks.iter().filter_map(Ask::step)).await {
            Ok(()) => contracts::lock(link, asks.iter().filter_map(Ask::step)).await,
            Err(fault) => Err(fault),
        };
        match locked {
            Ok(()) => {}
            Err(Fault::Database(failure)) => return Err(failure),
            Err(Fault::Found(error)) => return Err(Failure { kind: FailureKind::Other, cause: error.into() }),
        }
        let mut answers = Vec::with_capacity(asks.len());
        for ask in asks {
            let mut tries = 0;
            let answer = loop {
                tries += 1;
                link.batch("SAVEPOINT one").await?;
                let done = match self.desk.begin(link, ask.run().into_iter().collect()).await {
                    Ok(()) => self.one(link, ask, Care::Thorough).await,
                    Err(fault) => Err(fault),
                };
                let done = match done {
                    Ok(done) => self.desk.flush(link).await.map(|()| done),
                    Err(fault) => Err(fault),
                };
                match done {
                    Ok(answer) => {
                        link.batch("RELEASE SAVEPOINT one").await?;
                        break answer;
                    }
                    Err(Fault::Database(failure)) if failure.kind != FailureKind::Contradicted => return Err(failure),
                    Err(fault) => {
                        self.desk.forget();
                        link.batch("ROLLBACK TO SAVEPOINT one; RELEASE SAVEPOINT one").await?;
                        match fault {
                            // Another process was first: now it can be seen.
                            Fault::Database(_) if tries < STEP_TRIES_MAX => {}
                            Fault::Database(_) | Fault::Found(_) => {
                                break Err(fault.told("write to", &self.source.shown()));
                            }
                        }
                    }
                }
            };
            answers.push(answer);
        }
        match self.finish(link).await {
            Ok(()) => Ok(answers),
            Err(Fault::Database(failure)) => Err(failure),
            Err(Fault::Found(error)) => Err(Failure { kind: FailureKind::Other, cause: error.into() }),
        }
    }

    async fn one(&mut self, link: &mut Link, ask: &Ask, care: Care) -> Result<Result<Done, Error>, Fault> {
        match ask {
            Ask::Append(step) => Ok(self.desk.append(link, step, care).await?.map(Done::Answer)),
            Ask::Acquire { run, owner, now, lasts } => {
                let Some((key, mut tenure)) = self.desk.tenure(link, *run).await? else {
                    return Ok(Err(unknown(*run)));
                };
                let acquired = tenure.acquire(*run, owner.clone(), *now, *lasts);
                if acquired.is_ok() {
                    self.desk.set_tenure(*run, key, tenure);
                }
                Ok(acquired.map(Done::Lease))
            }
            Ask::Renew { lease, now, lasts } => {
                let Some((key, mut tenure)) = self.desk.tenure(link, lease.run).await? else {
                    return Ok(Err(unknown(lease.run)));
                };
                let renewed = tenure.renew(lease, *now, *lasts);
                if renewed.is_ok() {
                    self.desk.set_tenure(lease.run, key, tenure);
                }
                Ok(renewed.map(Done::Lease))
            }
            Ask::Release(lease) => {
                if let Some((key, mut tenure)) = self.desk.tenure(link, lease.run).await?
                    && tenure.release(lease)
                {
                    self.desk.set_tenure(lease.run, key, tenure);
                }
                Ok(Ok(Done::Released))
            }
            Ask::Prune { order, run, through } => {
                // What is remembered of cantrips may rest on what goes.
                self.desk.flush(link).await?;
                self.desk.forget();
                Ok(prune::prune(link, order, *run, *through).await?.map(Done::Pruned))
            }
        }
    }
}

pub(crate) fn unknown(run: RunId) -> Error {
    Error::NotFound { kind: "run", id: run.to_string() }
}
