//! The numbers above a list of runs, and what waits for a person.

use cantrip_canon::{Money, Timestamp};
use cantrip_loom::limits::COUNTED_RUNS_MAX;
use cantrip_loom::{Actor, Damage, Error, ListPage, PageRequest, RunCounts, WaitingCall};

use super::statements::read_money;
use crate::connection::DbConnection;
use crate::failure::StoreFault;
use crate::limits::LISTED_ROWS_MAX;
use crate::value::{Value, values};
use crate::views::{bounds, to_page};

/// Counts the runs of an owner, or of all.
pub(super) async fn run_counts(
    link: &mut DbConnection,
    owner: Option<&Actor>,
    since: Timestamp,
) -> Result<RunCounts, StoreFault> {
    let of_owner = |mark: &str| owner.map_or(String::new(), |_| format!(" AND s.owner = {mark}"));
    let with_owner = |first: &[Value]| -> Vec<Value> {
        first.iter().cloned().chain(owner.map(|owner| Value::from(owner.as_str()))).collect()
    };
    // The rules are those of the state of a run. A run that waits has no lease.
    let sql = format!(
        "SELECT CAST(coalesce(sum(CASE WHEN x.owner IS NULL AND x.rests = 1 THEN 1 ELSE 0 END), 0) AS BIGINT), \
           CAST(coalesce(sum(CASE WHEN x.owner IS NOT NULL OR (x.rests = 0 AND x.epoch > 0) THEN 1 ELSE 0 END), 0) \
             AS BIGINT) \
         FROM (SELECT h.owner, r.epoch, CASE WHEN r.parked = 1 OR r.copied = 1 OR r.approvals IS NOT NULL \
                 THEN 1 ELSE 0 END AS rests \
               FROM run_summaries s JOIN runs r ON r.run_key = s.run_key JOIN run_leases h ON h.run_key = s.run_key \
               WHERE s.phase = 'live'{} LIMIT ?1) x",
        of_owner("?2")
    );
    let most = COUNTED_RUNS_MAX as u64;
    let mut counts = RunCounts::default();
    if let Some(mut row) = link.query_one(&sql, &with_owner(values![LISTED_ROWS_MAX as u64])).await? {
        (counts.waiting, counts.running) = (row.count()?.min(most), row.count()?.min(most));
    }
    let sql = format!(
        "SELECT count(*) FROM (SELECT s.run_key FROM run_summaries s WHERE s.ended_at >= ?1 \
           AND s.phase IN ('truncated', 'failed', 'unsuccessful'){} LIMIT ?2) x",
        of_owner("?3")
    );
    if let Some(mut row) = link.query_one(&sql, &with_owner(values![since, most])).await? {
        counts.went_wrong = row.count()?;
    }
    let sql = format!(
        "SELECT CAST(sum(s.cost) AS BIGINT), s.currency FROM run_summaries s WHERE s.ended_at >= ?1 \
           AND s.currency IS NOT NULL{} GROUP BY s.currency ORDER BY s.currency",
        of_owner("?2")
    );
    let rows = link.query(&sql, &with_owner(values![since])).await?;
    let spent: Vec<Option<Money>> = rows.into_iter().map(|mut row| read_money(&mut row)).collect::<Result<_, _>>()?;
    counts.spent = spent.into_iter().flatten().collect();
    Ok(counts)
}

/// Lists what waits for a person, in the order of asking.
pub(super) async fn waiting_calls(
    link: &mut DbConnection,
    page: PageRequest,
) -> Result<ListPage<WaitingCall>, StoreFault> {
    let (after, most) = bounds(page);
    let sql = "SELECT w.waiting_key, r.run_id, r.owner, w.approval_id, w.asked_at, w.expires_at \
               FROM waiting_calls w JOIN runs r ON r.run_key = w.run_key \
               WHERE w.waiting_key > ?1 AND r.phase = 'live' ORDER BY w.waiting_key LIMIT ?2";
    let mut found = Vec::new();
    for mut row in link.query(sql, values![after, most as u64 + 1]).await? {
        let (key, run_id, owner) = (row.int()?, row.id()?, row.text()?);
        let (approval_id, asked_at, expires_at) = (row.id()?, row.time()?, row.time()?);
        let damage = Damage { run: Some(run_id), seq: None, line: None, what: "its owner has no name" };
        let owner = Actor::new(owner).map_err(|_| Error::Damaged(damage))?;
        found.push((key, WaitingCall { run_id, owner, approval_id, asked_at, expires_at }));
    }
    Ok(to_page(found, most))
}
