//! The one way into a loom.

use std::time::Duration;

use cantrip_canon::{Hash, RunId, Timestamp};
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt};

use crate::{
    AppendOutcome, Body, Error, Lease, ListPage, PageRequest, Record, Removal, RetentionOrder, RetentionPlan,
    RetentionPolicy, RunView, Seq, Step, WorkerId,
};

/// The one way into a loom.
///
/// * **Order.** A run reads back in the order in which its `append`s returned; the places of its records are 1, 2, 3
///   without a gap. Records of one step lie next to each other.
/// * **Durable.** [`AppendOutcome::Committed`] and [`AppendOutcome::Refused`] survive `kill -9` in every store with a disk; every
///   other answer means that nothing was written, and so does every error but [`Error::Io`], [`Error::Store`],
///   [`Error::Unreachable`] and [`Error::Stopped`]. After those ask again, with the same step id, whoever has the store
///   open.
/// * **Whole.** All of a step is written or none of it: records, bodies, money and contracts.
/// * **Idempotent.** A step whose id its run has already committed is answered as it was the first time if its records
///   are the same, and with [`Conflict::Step`](crate::Conflict::Step) if they are not. Nothing is written.
/// * **Fenced.** Under an epoch that is not the run's nothing is written and the answer is [`AppendOutcome::Fenced`]. The
///   epoch is compared where the records are written, so no pause of a process is long enough to let it write.
/// * **Money.** Each operation of a step sees the ones before it and every step that was written before, and policy is
///   asked where the counters are read. What a reserve comes to is [`AppendOutcome::Committed`], [`AppendOutcome::Refused`] or
///   [`AppendOutcome::Wait`]; records of the store's own, behind the step's, tell of what moved. A store without a ledger answers
///   a step that moves money with [`Error::NoLedger`].
/// * **Contracts.** Each row of a step sees the ones before it and every step that was written before; one that does not
///   fit what is there is [`Conflict::Contract`](crate::Conflict::Contract), and nothing is written. A change of a pointer
///   is compared with the version it was made from where the pointer is written, and its audit is written with it. The
///   number of a receipt, the hash of the one before it and what its reservations came to are filled in there too. A store
///   without contracts answers a step that has any with [`Error::NoContracts`].
/// * **Apart.** A step outside every run writes no records: asked for again with the same words it changes nothing.
/// * **Cancel-safe.** A dropped future leaves the step wholly in or wholly out; ask again with the same id. The other
///   methods may be dropped at any time.
///
/// Time is passed in, and only leases look at it.
pub trait Journal: Send + Sync {
    /// Writes a step. The only write there is.
    fn append(&self, step: Step) -> impl Future<Output = Result<AppendOutcome, Error>> + Send;

    /// Takes the lease of a run: the first, a returned one, or one that expired at or before `now`, with an epoch
    /// greater than every one before it. Of several at once one wins; the others get [`Error::LeaseHeld`], and so does
    /// the holder itself: who holds a lease renews it.
    fn acquire(
        &self,
        run: RunId,
        owner: WorkerId,
        now: Timestamp,
        lasts: Duration,
    ) -> impl Future<Output = Result<Lease, Error>> + Send;

    /// Prolongs a lease to `now` + `lasts`. An expired one cannot be renewed, only taken over
    /// ([`Error::LeaseExpired`]); one that was taken over or returned is [`Error::LeaseLost`].
    fn renew(
        &self,
        lease: &Lease,
        now: Timestamp,
        lasts: Duration,
    ) -> impl Future<Output = Result<Lease, Error>> + Send;

    /// Returns a lease: anyone may acquire the run at once. Returning one that is not held any more does nothing.
    fn release(&self, lease: &Lease) -> impl Future<Output = Result<(), Error>> + Send;

    /// Who holds a run, expired or not; none if nobody does.
    fn holder(&self, run: RunId) -> impl Future<Output = Result<Option<Lease>, Error>> + Send;

    /// The runs that anyone may take up at `now`: live ones that wait for nobody, and whose lease is free or expired at or
    /// before `now`. In the order of their opening. A list and not a claim: who wants one acquires it, and one of several
    /// wins.
    fn orphans(
        &self,
        now: Timestamp,
        page: PageRequest,
    ) -> impl Future<Output = Result<ListPage<RunView>, Error>> + Send;

    /// Returns the time by which leases are counted: `now`, the caller's own time, unless the store has a clock that every
    /// process on it shares. Pass it as the `now` of [`acquire`](Self::acquire), [`renew`](Self::renew) and
    /// [`orphans`](Self::orphans), so that processes whose clocks differ agree on when a lease has run out.
    fn lease_now(&self, now: Timestamp) -> impl Future<Output = Result<Timestamp, Error>> + Send {
        std::future::ready(Ok(now))
    }

    /// Lists the owners that hold a lease of a live run, expired or not, each once; at most
    /// [`LEASE_OWNERS_MAX`](crate::limits::LEASE_OWNERS_MAX) of them.
    fn lease_owners(&self) -> impl Future<Output = Result<Vec<WorkerId>, Error>> + Send;

    /// Lists the leases of live runs that an owner holds, expired or not, in the order of the runs' opening.
    fn leases_of(
        &self,
        owner: WorkerId,
        page: PageRequest,
    ) -> impl Future<Output = Result<ListPage<Lease>, Error>> + Send;

    /// The records of a run after `after`, in order, up to the newest when it was asked. An unknown run is
    /// [`Error::NotFound`]. A damaged record ends it with [`Error::Damaged`]; nothing is skipped.
    fn read(&self, run: RunId, after: Seq) -> impl Stream<Item = Result<Record, Error>> + Send;

    /// Every record of the store in the order in which it was written, up to the newest when it was asked.
    fn scan(&self) -> impl Stream<Item = Result<Record, Error>> + Send;

    /// Waits until the run has a record after `after`, and says which is the newest. A store that several processes may
    /// write to notices those of others too, if later than its own; one that a single process writes to may leave what
    /// was appended elsewhere unnoticed.
    fn wait_for_growth(&self, run: RunId, after: Seq) -> impl Future<Output = Result<Seq, Error>> + Send;

    /// The records of a run after `after`, and then each new one as soon as it is committed and [noticed](Self::wait_for_growth):
    /// in order, each once, none left out. It does not end by itself, not even with its run, which annotations may
    /// follow; an error ends it. Who lost it goes on behind the last record it got.
    fn follow(&self, run: RunId, after: Seq) -> impl Stream<Item = Result<Record, Error>> + Send {
        enum At<'a> {
            Waiting,
            Reading(BoxStream<'a, Result<Record, Error>>),
            Over,
        }
        stream::unfold((At::Waiting, after), move |(mut at, mut after)| async move {
            loop {
                at = match at {
                    At::Over => return None,
                    At::Waiting => match self.wait_for_growth(run, after).await {
                        Ok(_) => At::Reading(self.read(run, after).boxed()),
                        Err(error) => return Some((Err(error), (At::Over, after))),
                    },
                    At::Reading(mut records) => match records.next().await {
                        Some(Ok(record)) => {
                            after = record.seq;
                            return Some((Ok(record), (At::Reading(records), after)));
                        }
                        Some(Err(error)) => return Some((Err(error), (At::Over, after))),
                        None => At::Waiting,
                    },
                };
            }
        })
    }

    /// What a policy would remove at `now`. A store that keeps everything answers [`Error::NoRetention`].
    fn retention_plan(
        &self,
        policy: RetentionPolicy,
        now: Timestamp,
    ) -> impl Future<Output = Result<RetentionPlan, Error>> + Send {
        let _ = (policy, now);
        async { Err(Error::NoRetention) }
    }

    /// Removes the records of a run that is over, and writes the record of it in the same transaction. A run that the policy
    /// does not cover, or that a run which keeps its records builds on, is [`Error::InvalidStep`], and nothing is removed.
    fn remove(&self, order: RetentionOrder, run: RunId) -> impl Future<Output = Result<Removal, Error>> + Send {
        let _ = (order, run);
        async { Err(Error::NoRetention) }
    }

    /// What was removed, oldest first.
    fn removals(&self, page: PageRequest) -> impl Future<Output = Result<ListPage<Removal>, Error>> + Send {
        let _ = page;
        async { Err(Error::NoRetention) }
    }

    /// A body, by its hash. What comes back has that hash; what is missing or altered is [`Error::BodyAltered`].
    fn body(&self, hash: Hash) -> impl Future<Output = Result<Body, Error>> + Send;
}
