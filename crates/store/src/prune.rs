//! Removal of old records, by a retention that a user requested.
//!
//! Only records of a run that is over are removed, only from its beginning, only up to the end of a step, and only if
//! no run that keeps its records builds on it. An anchor remains: the position and the hash from which the chain
//! continues, so the rest can still be verified. A row beside it records who removed what, when, and by which policy;
//! the database deletes no record without that row.

use std::collections::{BTreeMap, BTreeSet};

use cantrip_canon::{Hash, RunId, Timestamp};
use cantrip_loom::limits::PAGE_ITEMS_MAX;
use cantrip_loom::{
    Damage, Error, ListPage, PageRequest, Projection, RemovableRun, Removal, RemovedCounts, RetentionOrder,
    RetentionPlan, RetentionPolicy, Seq,
};

use crate::connection::DbConnection;
use crate::events;
use crate::failure::StoreFault;
use crate::rows::{self, parse_kind};
use crate::value::{Row, values};

/// The point from which the records of a pruned run continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Anchor {
    pub run: RunId,
    /// The last record that was pruned.
    pub seq: Seq,
    pub hash: Hash,
    pub at: Timestamp,
}

/// Prunes up to the last step that ends at or before `through`.
pub(crate) async fn prune(
    link: &mut DbConnection,
    order: &RetentionOrder,
    run: RunId,
    through: Seq,
) -> Result<Result<Anchor, Error>, StoreFault> {
    let refused = |fault| Ok(Err(Error::InvalidStep { run: Some(run), fault }));
    let Some(row) = rows::run(link, run).await? else { return Ok(Err(Error::not_found("run", run))) };
    let (kind, owner) = (row.part.opening.kind, row.part.opening.owner.clone());
    let ended_at = row.part.ended_at;
    let mut tree = Projection::new();
    tree.insert_run(row.part);
    if tree.has_ended(run) != Some(true) {
        return refused("only a run that has ended can be pruned");
    }
    if !ended_at.is_some_and(|ended_at| order.policy.covers(kind, owner.as_str(), ended_at, order.at)) {
        return refused("the policy of the retention does not cover it");
    }
    if is_built_on(link, row.key).await? {
        return refused("a run that keeps its records builds on it");
    }
    let sql = "SELECT seq, links FROM run_events WHERE run_key = ?1 AND seq <= ?2 ORDER BY seq DESC LIMIT 1";
    let Some(mut last) = link.query(sql, values![row.key, through.get()]).await?.pop() else {
        return refused("no step of it ends there or before");
    };
    let (seq, hashes) = (last.count()?, last.blob()?);
    let hash = events::last(&hashes).ok_or_else(|| events::missing_record(Some(run), seq))?;
    let sql = "SELECT sum(records) FROM run_events WHERE run_key = ?1 AND seq <= ?2";
    let records = one_number(link, sql, row.key, seq).await?;
    let sql = "INSERT INTO run_anchors (run_key, seq, event_hash, at) VALUES (?1, ?2, ?3, ?4)";
    link.execute(sql, values![row.key, seq, hash, order.at]).await?;
    let policy = serde_json::to_string(&order.policy).expect("numbers and texts can be written");
    let sql = "INSERT INTO retention_removals \
               (retention_id, run_key, seq, records, event_hash, policy, actor, reason, at) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
    let (actor, reason) = (order.actor.as_str().to_owned(), order.reason.clone());
    let marks = values![order.retention_id, row.key, seq, records, hash, policy, actor, reason, order.at];
    link.execute(sql, marks).await?;
    link.execute("DELETE FROM run_events WHERE run_key = ?1 AND seq <= ?2", values![row.key, seq]).await?;
    // A cantrip that was recorded there is recorded again in its loom at its next cast.
    link.execute("DELETE FROM roots WHERE run_key = ?1 AND step_seq <= ?2", values![row.key, seq]).await?;
    // The row of the run in lists was made from these records.
    for table in ["run_summaries", "run_marks", "waiting_calls"] {
        link.execute(&format!("DELETE FROM {table} WHERE run_key = ?1"), values![row.key]).await?;
    }
    let sql = "UPDATE casts SET intent = NULL WHERE run_key = ?1 AND step_seq <= ?2";
    link.execute(sql, values![row.key, seq]).await?;
    Ok(Ok(Anchor { run, seq: Seq::new(seq), hash, at: order.at }))
}

async fn one_number(link: &mut DbConnection, sql: &str, run_key: i64, seq: u64) -> Result<u64, StoreFault> {
    let sql = format!("SELECT CAST(({sql}) AS BIGINT)");
    let found = link.query_one(&sql, values![run_key, seq]).await?;
    Ok(found.map(|mut row| row.count()).transpose()?.unwrap_or(0))
}

/// Returns true if a run that has its records builds on this one: by a later cast of an entity, or by a fork.
async fn is_built_on(link: &mut DbConnection, run_key: i64) -> Result<bool, StoreFault> {
    let removed = |run: &str, seq: &str| {
        format!("EXISTS (SELECT 1 FROM run_anchors a WHERE a.run_key = {run} AND a.seq >= {seq})")
    };
    let (later, forked) = (removed("c.run_key", "c.step_seq"), removed("f.run_key", "f.step_seq"));
    let queries = [
        format!(
            "SELECT c.run_key FROM entities n JOIN casts c ON c.entity_key = n.entity_key \
             WHERE n.run_key = ?1 AND c.run_key <> ?1 AND NOT {later} LIMIT 1"
        ),
        format!(
            "SELECT c.run_key FROM casts m JOIN casts c ON c.entity_key = m.entity_key AND c.cast_key > m.cast_key \
             WHERE m.run_key = ?1 AND c.run_key <> ?1 AND NOT {later} LIMIT 1"
        ),
        format!(
            "SELECT f.run_key FROM casts c JOIN turns t ON t.cast_key = c.cast_key JOIN entities f ON f.origin_id = t.turn_id \
             WHERE c.run_key = ?1 AND f.run_key <> ?1 AND NOT {forked} LIMIT 1"
        ),
    ];
    for sql in queries {
        if !link.query(&sql, values![run_key]).await?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the runs that a policy would remove.
pub(crate) async fn plan(
    link: &mut DbConnection,
    policy: &RetentionPolicy,
    now: Timestamp,
) -> Result<RetentionPlan, StoreFault> {
    // The runs that still have records, with the number of records.
    let sql = "SELECT r.run_key, r.run_id, r.kind, r.owner, r.phase, r.ended_at, \
               CAST((SELECT sum(e.records) FROM run_events e WHERE e.run_key = r.run_key) AS BIGINT) \
               FROM runs r WHERE EXISTS (SELECT 1 FROM run_events e WHERE e.run_key = r.run_key) ORDER BY r.run_key";
    let mut removable: BTreeMap<i64, RemovableRun> = BTreeMap::new();
    let mut present: BTreeSet<i64> = BTreeSet::new();
    for mut row in link.query(sql, values![]).await? {
        let (key, run_id, kind) = (row.int()?, row.id()?, row.text()?);
        let (owner, phase, ended_at, records) = (row.text()?, row.text()?, row.time_or_null()?, row.count()?);
        present.insert(key);
        let over = !["live", "failed"].contains(&phase.as_str());
        let (Some(kind), Some(ended_at)) = (parse_kind(&kind), ended_at.filter(|_| over)) else { continue };
        // Records after an anchor show what happened to the run after the removal, so they stay.
        let sql = "SELECT run_key FROM run_anchors WHERE run_key = ?1 LIMIT 1";
        if policy.covers(kind, &owner, ended_at, now) && link.query(sql, values![key]).await?.is_empty() {
            removable.insert(key, RemovableRun { run_id, kind, owner, ended_at, records });
        }
    }
    let covered = removable.len();
    // The runs of one entity are removed together or not at all.
    let sql = "SELECT entity_key, run_key FROM casts UNION SELECT entity_key, run_key FROM entities";
    let mut of_entity: BTreeMap<i64, BTreeSet<i64>> = BTreeMap::new();
    for mut row in link.query(sql, values![]).await? {
        of_entity.entry(row.int()?).or_default().insert(row.int()?);
    }
    // A fork keeps the run from which it branched off.
    let sql = "SELECT DISTINCT c.run_key, f.run_key FROM entities f JOIN turns t ON t.turn_id = f.origin_id \
               JOIN casts c ON c.cast_key = t.cast_key WHERE f.origin = 'fork' AND f.run_key <> c.run_key";
    let mut forks: Vec<(i64, i64)> = Vec::new();
    for mut row in link.query(sql, values![]).await? {
        forks.push((row.int()?, row.int()?));
    }
    loop {
        let stays =
            |removable: &BTreeMap<i64, RemovableRun>, key: &i64| present.contains(key) && !removable.contains_key(key);
        let together = of_entity.values().filter(|runs| runs.iter().any(|key| stays(&removable, key)));
        let mut kept: BTreeSet<i64> = together.flatten().copied().collect();
        kept.extend(forks.iter().filter(|(_, fork)| stays(&removable, fork)).map(|(base, _)| *base));
        let before = removable.len();
        removable.retain(|key, _| !kept.contains(key));
        if removable.len() == before {
            break;
        }
    }
    let kept = (covered - removable.len()) as u64;
    // Newest first, because a run is always older than the runs that build on it.
    Ok(RetentionPlan { runs: removable.into_values().rev().collect(), kept })
}

/// The columns of a removal, over `retention_removals m` and `runs r`.
const REMOVAL: &str = "m.removal_key, m.retention_id, r.run_id, m.seq, m.event_hash, m.records, m.policy, m.actor, m.reason, \
     m.at";

fn read_removal(mut row: Row) -> Result<(i64, Removal), Error> {
    let (key, retention_id, run_id) = (row.int()?, row.id()?, row.id()?);
    let (through, event_hash, records) = (Seq::new(row.count()?), row.hash()?, row.count()?);
    let policy = serde_json::from_str(&row.text()?)
        .map_err(|source| Error::Misread { what: "the policy of a removal".to_owned(), source })?;
    let (actor, reason, at) = (row.text()?, row.text()?, row.time()?);
    Ok((key, Removal { retention_id, run_id, through, event_hash, records, policy, actor, reason, at }))
}

/// Returns the record of the removal that left an anchor at this position.
pub(crate) async fn removal(link: &mut DbConnection, run: RunId, seq: Seq) -> Result<Option<Removal>, StoreFault> {
    let sql = format!(
        "SELECT {REMOVAL} FROM retention_removals m JOIN runs r ON r.run_key = m.run_key \
         WHERE r.run_id = ?1 AND m.seq = ?2"
    );
    let found = link.query_one(&sql, values![run, seq.get()]).await?;
    Ok(found.map(read_removal).transpose()?.map(|(_, removal)| removal))
}

/// Lists the records of removals, oldest first.
pub(crate) async fn removals(link: &mut DbConnection, page: PageRequest) -> Result<ListPage<Removal>, StoreFault> {
    let after = page.after.map_or(0, |after| i64::try_from(after).unwrap_or(i64::MAX));
    let most = page.most.min(PAGE_ITEMS_MAX);
    let sql = format!(
        "SELECT {REMOVAL} FROM retention_removals m JOIN runs r ON r.run_key = m.run_key WHERE m.removal_key > ?1 \
         ORDER BY m.removal_key LIMIT ?2"
    );
    let rows = link.query(&sql, values![after, most as u64 + 1]).await?;
    let mut found = rows.into_iter().map(read_removal).collect::<Result<Vec<_>, Error>>()?;
    let more = found.len() > most;
    found.truncate(most);
    let next = found.last().filter(|_| more).map(|(key, _)| u64::try_from(*key).unwrap_or(0));
    Ok(ListPage { next, items: found.into_iter().map(|(_, removal)| removal).collect() })
}

/// Returns the totals of all removals of a store. A removal whose hash differs from that of its anchor is damage.
pub(crate) async fn removed(link: &mut DbConnection) -> Result<Option<RemovedCounts>, StoreFault> {
    let sql = "SELECT r.run_id, a.seq, a.event_hash, m.event_hash, m.records FROM run_anchors a \
               JOIN runs r ON r.run_key = a.run_key \
               LEFT JOIN retention_removals m ON m.run_key = a.run_key AND m.seq = a.seq ORDER BY a.run_key, a.seq";
    let mut removed = RemovedCounts { runs: 0, records: 0, unrecorded: 0 };
    let mut runs: BTreeSet<RunId> = BTreeSet::new();
    let mut unrecorded: BTreeSet<RunId> = BTreeSet::new();
    for mut row in link.query(sql, values![]).await? {
        let (run, seq, anchor): (RunId, _, _) = (row.id()?, row.count()?, row.blob()?);
        let (noted, records) = (row.blob_or_null()?, row.count_or_null()?);
        runs.insert(run);
        match noted {
            None => {
                unrecorded.insert(run);
            }
            Some(noted) if noted == anchor => removed.records += records.unwrap_or(0),
            Some(_) => {
                let what = "the record of its removal has another hash than its anchor";
                return Err(
                    Error::Damaged(Damage { run: Some(run), seq: Some(Seq::new(seq)), line: None, what }).into()
                );
            }
        }
    }
    (removed.runs, removed.unrecorded) = (runs.len() as u64, unrecorded.len() as u64);
    Ok((!runs.is_empty()).then_some(removed))
}

/// Lists the anchors of a run, oldest first.
pub(crate) async fn anchors(link: &mut DbConnection, run: RunId) -> Result<Vec<Anchor>, StoreFault> {
    let sql = "SELECT a.seq, a.event_hash, a.at FROM run_anchors a JOIN runs r ON r.run_key = a.run_key \
               WHERE r.run_id = ?1 ORDER BY a.seq";
    let rows = link.query(sql, values![run]).await?;
    let read = rows
        .into_iter()
        .map(|mut row| Ok(Anchor { run, seq: Seq::new(row.count()?), hash: row.hash()?, at: row.time()? }));
    Ok(read.collect::<Result<Vec<Anchor>, Error>>()?)
}
