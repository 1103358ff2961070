//! The journal trait: appending steps, and reading the records as they were written.

use std::time::Duration;

use cantrip_canon::{Hash, RunId, Timestamp, bytes_hash};
use cantrip_loom::limits::LEASE_OWNERS_MAX;
use cantrip_loom::{
    AppendOutcome, Body, Damage, Error, Journal, Lease, ListPage, Loom, PageRequest, Record, Removal, RetentionOrder,
    RetentionPlan, RetentionPolicy, RunState, RunView, Seq, Step, WorkerId,
};
use futures_util::{Stream, StreamExt, stream};

use crate::connection::DbConnection;
use crate::events::{BEFORE, COLUMNS, StoredStep};
use crate::failure::StoreFault;
use crate::limits::READ_STEPS_MAX;
use crate::rows;
use crate::store::view;
use crate::value::{Row, values};
use crate::writer::{WriteRequest, WriteResponse};
use crate::{Store, views};

/// Returns the error for a response that does not fit its request, which never happens.
fn unexpected_response(done: WriteResponse) -> Error {
    Error::Store { doing: "understand", at: format!("{done:?}"), source: "an answer to another question".into() }
}

/// Returns the error for a lease whose owner cannot be read.
fn unnamed_owner(run: Option<RunId>) -> Error {
    Error::Damaged(Damage { run, seq: None, line: None, what: "the owner of its lease has no name" })
}

impl Store {
    async fn lease(&self, ask: WriteRequest) -> Result<Lease, Error> {
        match self.submit(ask).await? {
            WriteResponse::Lease(lease) => Ok(lease),
            other @ (WriteResponse::Answer(_) | WriteResponse::Released | WriteResponse::Pruned(_)) => {
                Err(unexpected_response(other))
            }
        }
    }

    /// Removes the oldest records of a run that is over, up to the last step that ends at or before `through`, by a
    /// retention that a user requested. It leaves an anchor, from which the rest can still be verified, and a record
    /// of the removal. Turns, casts and entities in the removed records can no longer be shown or continued: they are
    /// [`Error::Pruned`].
    pub async fn prune(&self, order: &RetentionOrder, run: RunId, through: Seq) -> Result<crate::Anchor, Error> {
        match self.submit(WriteRequest::Prune { order: Box::new(order.clone()), run, through }).await? {
            WriteResponse::Pruned(anchor) => Ok(anchor),
            other @ (WriteResponse::Answer(_) | WriteResponse::Released | WriteResponse::Lease(_)) => {
                Err(unexpected_response(other))
            }
        }
    }

    /// Lists the anchors of a pruned run, oldest first.
    pub async fn anchors(&self, run: RunId) -> Result<Vec<crate::Anchor>, Error> {
        view!(self, |link| crate::prune::anchors(link, run).await)
    }
}

impl Journal for Store {
    async fn retention_plan(&self, policy: RetentionPolicy, now: Timestamp) -> Result<RetentionPlan, Error> {
        view!(self, |link| crate::prune::plan(link, &policy, now).await)
    }

    async fn remove(&self, order: RetentionOrder, run: RunId) -> Result<Removal, Error> {
        let newest = self.run(run).await?.newest;
        let anchor = self.prune(&order, run, newest).await?;
        let found =
            self.read_view(move |link| Box::pin(async move { crate::prune::removal(link, run, anchor.seq).await }));
        found.await?.ok_or_else(|| Error::not_found("run", run))
    }

    async fn removals(&self, page: PageRequest) -> Result<ListPage<Removal>, Error> {
        view!(self, |link| crate::prune::removals(link, page).await)
    }

    async fn append(&self, step: Step) -> Result<AppendOutcome, Error> {
        match self.submit(WriteRequest::Append(Box::new(step))).await? {
            WriteResponse::Answer(answer) => Ok(answer),
            other @ (WriteResponse::Lease(_) | WriteResponse::Released | WriteResponse::Pruned(_)) => {
                Err(unexpected_response(other))
            }
        }
    }

    async fn acquire(&self, run: RunId, owner: WorkerId, now: Timestamp, lasts: Duration) -> Result<Lease, Error> {
        self.lease(WriteRequest::Acquire { run, owner, now, lasts }).await
    }

    async fn renew(&self, lease: &Lease, now: Timestamp, lasts: Duration) -> Result<Lease, Error> {
        self.lease(WriteRequest::Renew { lease: lease.clone(), now, lasts }).await
    }

    async fn release(&self, lease: &Lease) -> Result<(), Error> {
        self.submit(WriteRequest::Release(lease.clone())).await.map(|_| ())
    }

    async fn holder(&self, run: RunId) -> Result<Option<Lease>, Error> {
        view!(self, |link| Ok(rows::run(link, run).await?.ok_or_else(|| Error::not_found("run", run))?.lease.holder))
    }

    async fn orphans(&self, now: Timestamp, page: PageRequest) -> Result<ListPage<RunView>, Error> {
        view!(self, |link| {
            // Live runs that do not wait for anyone. The view below checks the lease and the waiting state again.
            let narrowed = "r.phase = 'live' AND r.parked = 0 AND r.approvals IS NULL AND r.copied = 0 \
                            AND (h.expires_at IS NULL OR h.expires_at <= ?3)";
            let now_millis = values![now].to_vec();
            let wanted = [RunState::Queued, RunState::Running];
            views::runs(
                link,
                views::ListOrder::First,
                page,
                narrowed,
                now_millis,
                |lease| lease.expires_at > now,
                |view| wanted.contains(&view.state),
            )
            .await
        })
    }

    async fn lease_now(&self, now: Timestamp) -> Result<Timestamp, Error> {
        if !self.has_clock() {
            return Ok(now);
        }
        view!(self, |link| {
            let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
            let mut rows = link.query(sql, &[]).await?.into_iter();
            let mut row = rows.next().ok_or(Error::Stopped)?;
            Ok(row.time()?)
        })
    }

    async fn lease_owners(&self) -> Result<Vec<WorkerId>, Error> {
        view!(self, |link| {
            let sql = "SELECT DISTINCT h.owner FROM runs r JOIN run_leases h ON h.run_key = r.run_key \
                       WHERE r.phase = 'live' AND h.owner IS NOT NULL LIMIT ?1";
            let rows = link.query(sql, values![LEASE_OWNERS_MAX as u64]).await?;
            let owner = |mut row: Row| WorkerId::new(row.text()?).map_err(|_| unnamed_owner(None));
            Ok(rows.into_iter().map(owner).collect::<Result<Vec<WorkerId>, Error>>()?)
        })
    }

    async fn leases_of(&self, owner: WorkerId, page: PageRequest) -> Result<ListPage<Lease>, Error> {
        view!(self, |link| {
            let (after, most) = views::bounds(page);
            let sql = "SELECT r.run_key, r.run_id, h.owner, h.epoch, h.expires_at FROM runs r \
                       JOIN run_leases h ON h.run_key = r.run_key \
                       WHERE r.run_key > ?1 AND r.phase = 'live' AND h.owner = ?3 ORDER BY r.run_key LIMIT ?2";
            let mut found = Vec::new();
            for mut row in link.query(sql, values![after, most as u64 + 1, owner.as_str()]).await? {
                let (key, run) = (row.int()?, row.id()?);
                let holder = rows::read_lease_state(run, &mut row)?.holder;
                found.push((key, holder.ok_or_else(|| unnamed_owner(Some(run)))?));
            }
            Ok(views::to_page(found, most))
        })
    }

    fn read(&self, run: RunId, after: Seq) -> impl Stream<Item = Result<Record, Error>> + Send {
        // None until the end of the run is known.
        stream::unfold(Some((after, None::<Seq>)), move |at| async move {
            let (after, end) = at?;
            let page = self.read_view(move |link| Box::pin(page_of_run(link, run, after, end))).await;
            Some(match page {
                Ok(page) => {
                    let next = page.next.map(|next| (next, Some(page.end)));
                    (page.records, next)
                }
                Err(error) => (vec![Err(error)], None),
            })
        })
        .flat_map(stream::iter)
    }

    fn scan(&self) -> impl Stream<Item = Result<Record, Error>> + Send {
        stream::unfold(Some((0_i64, None::<i64>)), move |at| async move {
            let (after, end) = at?;
            let page = self.read_view(move |link| Box::pin(page_of_all(link, after, end))).await;
            Some(match page {
                Ok((records, next, end)) => (records, next.map(|next| (next, Some(end)))),
                Err(error) => (vec![Err(error)], None),
            })
        })
        .flat_map(stream::iter)
    }

    async fn wait_for_growth(&self, run: RunId, after: Seq) -> Result<Seq, Error> {
        let mut notifier = self.notifier().subscribe(run);
        loop {
            let newest = self.run(run).await?.newest;
            if newest > after {
                return Ok(newest);
            }
            notifier.changed().await.map_err(|_| Error::Stopped)?;
        }
    }

    async fn body(&self, hash: Hash) -> Result<Body, Error> {
        view!(self, |link| {
            let found = link.query_one("SELECT bytes FROM bodies WHERE body_hash = ?1", values![hash]).await?;
            let bytes = found.map(|mut row| row.blob()).transpose()?;
            match bytes.filter(|bytes| bytes_hash(bytes) == hash) {
                Some(bytes) => Ok(Body::new(bytes)?),
                None => Err(Error::BodyAltered(hash).into()),
            }
        })
    }
}

/// A page of a run's records.
struct RunPage {
    records: Vec<Result<Record, Error>>,
    /// The position after which the next page begins; none if this is the last page.
    next: Option<Seq>,
    /// The newest record at the time of the call.
    end: Seq,
}

async fn page_of_run(link: &mut DbConnection, run: RunId, after: Seq, end: Option<Seq>) -> Result<RunPage, StoreFault> {
    let (key, end) = match end {
        Some(end) => {
            let found = link.query("SELECT run_key FROM runs WHERE run_id = ?1", values![run]).await?;
            (
                found
                    .into_iter()
                    .next()
                    .map(|mut row| row.int())
                    .transpose()?
                    .ok_or_else(|| Error::not_found("run", run))?,
                end,
            )
        }
        None => {
            let row = rows::run(link, run).await?.ok_or_else(|| Error::not_found("run", run))?;
            let sql = "SELECT max(seq) FROM run_anchors WHERE run_key = ?1";
            let found = link.query_one(sql, values![row.key]).await?;
            let anchor = found.map(|mut row| row.count_or_null()).transpose()?.flatten().unwrap_or(0);
            if after.get() < anchor {
                return Err(Error::Pruned { run, through: Seq::new(anchor) }.into());
            }
            (row.key, row.part.newest)
        }
    };
    let sql = format!(
        "SELECT {COLUMNS} FROM run_events e {BEFORE} WHERE e.run_key = ?1 AND e.seq > ?2 AND e.seq <= ?3 \
         ORDER BY e.seq LIMIT ?4"
    );
    let rows = link.query(&sql, values![key, after.get(), end.get(), READ_STEPS_MAX as u64]).await?;
    let whole = rows.len() < READ_STEPS_MAX;
    let (mut records, mut expected) = (Vec::new(), after.next());
    for mut row in rows {
        match StoredStep::read(&mut row) {
            Ok(stored) => {
                for record in stored.records.into_iter().filter(|record| record.seq > after) {
                    if record.seq != expected {
                        let what = "a record is missing";
                        let damage = cantrip_loom::Damage { run: Some(run), seq: Some(expected), line: None, what };
                        records.push(Err(Error::Damaged(damage)));
                        return Ok(RunPage { records, next: None, end });
                    }
                    expected = record.seq.next();
                    records.push(Ok(record));
                }
            }
            // The records before the damage are valid; nothing after it is read.
            Err(damage) => {
                records.push(Err(damage));
                return Ok(RunPage { records, next: None, end });
            }
        }
    }
    if whole && expected <= end && expected > after {
        let damage =
            cantrip_loom::Damage { run: Some(run), seq: Some(expected), line: None, what: "a record is missing" };
        records.push(Err(Error::Damaged(damage)));
    }
    let next = (!whole).then(|| Seq::new(expected.get() - 1));
    Ok(RunPage { records, next, end })
}

async fn page_of_all(
    link: &mut DbConnection,
    after: i64,
    end: Option<i64>,
) -> Result<(Vec<Result<Record, Error>>, Option<i64>, i64), StoreFault> {
    let end = match end {
        Some(end) => end,
        None => {
            let found = link.query_one("SELECT coalesce(max(place), 0) FROM run_events", &[]).await?;
            found.map(|mut row| row.int()).transpose()?.unwrap_or(0)
        }
    };
    let sql = format!(
        "SELECT {COLUMNS} FROM run_events e {BEFORE} WHERE e.place > ?1 AND e.place <= ?2 ORDER BY e.place LIMIT ?3"
    );
    let rows = link.query(&sql, values![after, end, READ_STEPS_MAX as u64]).await?;
    let whole = rows.len() < READ_STEPS_MAX;
    let (mut records, mut last) = (Vec::new(), after);
    for mut row in rows {
        match StoredStep::read(&mut row) {
            Ok(stored) => {
                last = stored.place;
                records.extend(stored.records.into_iter().map(Ok));
            }
            Err(damage) => {
                records.push(Err(damage));
                return Ok((records, None, end));
            }
        }
    }
    Ok((records, (!whole).then_some(last), end))
}
