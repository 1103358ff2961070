//! The write side of a loom: steps, leases and the records of runs.

use std::time::Duration;

use cantrip_canon::{Hash, RunId, Timestamp};
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt};

use crate::{
    AppendOutcome, Body, Error, Lease, ListPage, PageRequest, Record, Removal, RetentionOrder, RetentionPlan,
    RetentionPolicy, RunView, Seq, Step, WorkerId,
};

/// The only way to write to a loom.
///
/// * **Order.** A run is read back in the order in which its `append`s returned. The positions of its records are 1,
///   2, 3 without a gap. The records of one step are next to each other.
/// * **Durable.** [`AppendOutcome::Committed`] and [`AppendOutcome::Refused`] survive `kill -9` in every store with a
///   disk. Every other answer means that nothing was written, and so does every error except [`Error::Io`],
///   [`Error::Store`], [`Error::Unreachable`] and [`Error::Stopped`]. After one of those errors, repeat the step with
///   the same id, in any process that has the store open.
/// * **Atomic.** A step is written completely or not at all: records, bodies, money and contracts.
/// * **Idempotent.** If the run has already committed a step with the same id, the answer is the first answer if the
///   records are the same, and [`Conflict::Step`](crate::Conflict::Step) if they are not. Nothing is written.
/// * **Fenced.** Under an epoch that is not the current one of the run nothing is written, and the answer is
///   [`AppendOutcome::Fenced`]. The epoch is compared in the transaction that writes the records, so a process cannot
///   write after it lost the lease, however long it was paused.
/// * **Money.** Each operation of a step sees the ones before it and every step that was written before. Policy is
///   evaluated in the transaction that reads the counters. The result of a reserve is [`AppendOutcome::Committed`],
///   [`AppendOutcome::Refused`] or [`AppendOutcome::Wait`]; the store records the money that moved in records of its
///   own, after those of the step. A store without a ledger answers a step that moves money with [`Error::NoLedger`].
/// * **Contracts.** Each row of a step sees the ones before it and every step that was written before. A row that does
///   not fit the stored rows is [`Conflict::Contract`](crate::Conflict::Contract), and nothing is written. A change of
///   a pointer is compared with the version it was made from in the transaction that writes the pointer, and its audit
///   is written with it. The number of a receipt, the hash of the receipt before it and the sums of its reservations
///   are filled in there too. A store without contracts answers a step that has contract rows with
///   [`Error::NoContracts`].
/// * **Outside runs.** A step outside every run writes no records. Repeating it with the same content changes nothing.
/// * **Cancel-safe.** If the future is dropped, the step is either written completely or not at all; repeat it with
///   the same id. The futures of the other methods may be dropped at any time.
///
/// The time is passed in, and only leases use it.
///
/// A record is written once:
///
/// ```
/// use cantrip_canon::TurnId;
/// use cantrip_loom::{Journal, Loom, Step};
///
/// async fn write(loom: &(impl Journal + Loom), step: Step) {
///     let _ = loom.append(step).await;
/// }
/// ```
///
/// No function changes or deletes it:
///
/// ```compile_fail,E0599
/// use cantrip_canon::TurnId;
/// use cantrip_loom::{Journal, Loom, Step};
///
/// async fn delete(loom: &(impl Journal + Loom), turn: TurnId) {
///     let _ = loom.delete_turn(turn).await;
/// }
/// ```
///
/// ```compile_fail,E0599
/// use cantrip_canon::TurnId;
/// use cantrip_loom::{Journal, Loom, Step};
///
/// async fn change(loom: &(impl Journal + Loom), turn: TurnId, step: Step) {
///     let _ = loom.update_turn(turn, step).await;
/// }
/// ```
pub trait Journal: Send + Sync {
    /// Writes a step. There is no other write.
    fn append(&self, step: Step) -> impl Future<Output = Result<AppendOutcome, Error>> + Send;

    /// Acquires the lease of a run: the first lease, one that was released, or one that expired at or before `now`.
    /// The new epoch is greater than every earlier one. If several workers try at once, one wins; the others get
    /// [`Error::LeaseHeld`]. The holder itself gets this error too: it has to renew its lease.
    fn acquire(
        &self,
        run: RunId,
        owner: WorkerId,
        now: Timestamp,
        lasts: Duration,
    ) -> impl Future<Output = Result<Lease, Error>> + Send;

    /// Extends a lease to `now` + `lasts`. An expired lease cannot be renewed, only taken over
    /// ([`Error::LeaseExpired`]). A lease that was taken over or released is [`Error::LeaseLost`].
    fn renew(
        &self,
        lease: &Lease,
        now: Timestamp,
        lasts: Duration,
    ) -> impl Future<Output = Result<Lease, Error>> + Send;

    /// Releases a lease: any worker may acquire the run at once. Releasing a lease that is no longer held does
    /// nothing.
    fn release(&self, lease: &Lease) -> impl Future<Output = Result<(), Error>> + Send;

    /// Returns the lease of a run, expired or not; none if nobody holds the run.
    fn holder(&self, run: RunId) -> impl Future<Output = Result<Option<Lease>, Error>> + Send;

    /// Lists the runs that any worker may take up at `now`: live runs that do not wait for anyone and whose lease is
    /// free or expired at or before `now`. In the order in which they were opened. The list claims nothing: a worker
    /// that wants a run acquires it, and one of several wins.
    fn orphans(
        &self,
        now: Timestamp,
        page: PageRequest,
    ) -> impl Future<Output = Result<ListPage<RunView>, Error>> + Send;

    /// Returns the time by which leases are counted: `now`, the time of the caller, unless the store has a clock that
    /// all its processes share. Pass it as the `now` of [`acquire`](Self::acquire), [`renew`](Self::renew) and
    /// [`orphans`](Self::orphans), so that processes whose clocks differ agree on when a lease has expired.
    fn lease_now(&self, now: Timestamp) -> impl Future<Output = Result<Timestamp, Error>> + Send {
        std::future::ready(Ok(now))
    }

    /// Lists the owners that hold a lease of a live run, expired or not, each once; at most
    /// [`LEASE_OWNERS_MAX`](crate::limits::LEASE_OWNERS_MAX) owners.
    fn lease_owners(&self) -> impl Future<Output = Result<Vec<WorkerId>, Error>> + Send;

    /// Lists the leases of live runs that an owner holds, expired or not, in the order in which the runs were opened.
    fn leases_of(
        &self,
        owner: WorkerId,
        page: PageRequest,
    ) -> impl Future<Output = Result<ListPage<Lease>, Error>> + Send;

    /// Reads the records of a run after `after`, in order, up to the newest record at the time of the call. An unknown
    /// run is [`Error::NotFound`]. A damaged record ends the stream with [`Error::Damaged`]; nothing is skipped.
    fn read(&self, run: RunId, after: Seq) -> impl Stream<Item = Result<Record, Error>> + Send;

    /// Reads every record of the store in the order in which it was written, up to the newest record at the time of
    /// the call.
    fn scan(&self) -> impl Stream<Item = Result<Record, Error>> + Send;

    /// Waits until the run has a record after `after`, and returns the position of the newest record. A store that
    /// several processes may write to also notices the records of other processes, with some delay. A store that only
    /// one process writes to may fail to notice records that were appended elsewhere.
    fn wait_for_growth(&self, run: RunId, after: Seq) -> impl Future<Output = Result<Seq, Error>> + Send;

    /// Reads the records of a run after `after`, and then each new record as soon as it is committed and
    /// [noticed](Self::wait_for_growth): in order, each once, none left out. The stream does not end by itself, not
    /// even with its run, because annotations may follow; an error ends it. A reader that lost the stream continues
    /// after the last record that it got.
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

    /// Lists the runs that a policy would remove at `now`. A store that keeps everything returns
    /// [`Error::NoRetention`].
    fn retention_plan(
        &self,
        policy: RetentionPolicy,
        now: Timestamp,
    ) -> impl Future<Output = Result<RetentionPlan, Error>> + Send {
        let _ = (policy, now);
        async { Err(Error::NoRetention) }
    }

    /// Removes the records of a run that is over, and writes a record of the removal in the same transaction. If the
    /// policy does not cover the run, or a run that keeps its records builds on it, the result is
    /// [`Error::InvalidStep`] and nothing is removed.
    fn remove(&self, order: RetentionOrder, run: RunId) -> impl Future<Output = Result<Removal, Error>> + Send {
        let _ = (order, run);
        async { Err(Error::NoRetention) }
    }

    /// Lists the removals, oldest first.
    fn removals(&self, page: PageRequest) -> impl Future<Output = Result<ListPage<Removal>, Error>> + Send {
        let _ = page;
        async { Err(Error::NoRetention) }
    }

    /// Returns a body by its hash. The returned body has that hash; a missing or changed body is
    /// [`Error::BodyAltered`].
    fn body(&self, hash: Hash) -> impl Future<Output = Result<Body, Error>> + Send;
}
