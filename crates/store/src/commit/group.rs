//! How does a group of steps begin and end, and which leases does it lock?

use std::collections::BTreeSet;

use cantrip_canon::RunId;
use cantrip_loom::LeaseState;

use super::CommitCache;
use crate::connection::{DbConnection, SqlStatement};
use crate::failure::StoreFault;
use crate::ledger::LedgerCache;
use crate::limits::RUNS_HELD_MAX;
use crate::rows::{self, RunRow};
use crate::value::{Value, values};

impl CommitCache {
    /// Begins a group within a transaction. Compares the cached state of these runs with their rows, unless no other
    /// process can have written. From here to the end of the transaction those rows do not change.
    pub(crate) async fn begin(&mut self, link: &mut DbConnection, runs: BTreeSet<RunId>) -> Result<(), StoreFault> {
        self.groups += 1;
        self.ledger = LedgerCache::default();
        debug_assert!(self.pending.is_empty());
        if let DbConnection::Sqlite(link) = link {
            let version = link.version_of_data()?;
            if self.version.replace(version) == Some(version) {
                return Ok(());
            }
        }
        let mut held: Vec<(i64, RunId)> =
            runs.into_iter().filter_map(|run| self.runs.get(&run).map(|live| (live.key, run))).collect();
        // All processes lock the rows in the same order, so there is no deadlock.
        held.sort_unstable();
        let asked: Vec<SqlStatement> = held.iter().flat_map(|(key, _)| [lease_of(*key), newest_of(*key)]).collect();
        let mut found = link.query_all(&asked).await?.into_iter();
        for (_, run) in held {
            let (mut lease, mut newest) = (found.next().unwrap_or_default(), found.next().unwrap_or_default());
            let newest = newest.pop().map(|mut row| row.count_or_null()).transpose()?.flatten();
            let tenure = lease.pop().map(|mut row| rows::read_lease_state(run, &mut row)).transpose()?;
            let unchanged = self.runs.get_mut(&run).zip(tenure).is_some_and(|(live, tenure)| {
                live.lease = tenure;
                newest == Some(live.part.newest.get())
            });
            if !unchanged {
                self.runs.remove(&run);
            }
        }
        Ok(())
    }

    /// Executes the pending statements, so that the next query sees their effect.
    pub(crate) async fn flush(&mut self, link: &mut DbConnection) -> Result<(), StoreFault> {
        let pending = std::mem::take(&mut self.pending);
        Ok(link.write_all(&pending).await?)
    }

    /// Executes the pending statements and commits the transaction.
    pub(crate) async fn commit(&mut self, link: &mut DbConnection) -> Result<(), StoreFault> {
        let pending = std::mem::take(&mut self.pending);
        link.commit_with(&pending).await?;
        self.wrote = false;
        if self.runs.len() > RUNS_HELD_MAX {
            // Keep the most recently used half. Sorting at every step to find the single oldest entry would cost more
            // than it saves.
            let mut used: Vec<u64> = self.runs.values().map(|live| live.used).collect();
            used.sort_unstable();
            let since = used[used.len() / 2];
            self.runs.retain(|_, live| live.used >= since);
        }
        Ok(())
    }

    /// Returns the lease of a run, locked until the transaction ends; none if the run does not exist.
    pub(crate) async fn lease_state(
        &mut self,
        link: &mut DbConnection,
        run: RunId,
    ) -> Result<Option<(i64, LeaseState)>, StoreFault> {
        if let Some(live) = self.runs.get(&run) {
            return Ok(Some((live.key, live.lease.clone())));
        }
        self.flush(link).await?;
        let Some(row) = lock_run(link, run).await? else { return Ok(None) };
        // An imported record may have an epoch that was given out elsewhere.
        let epoch = row.lease.epoch.max(row.part.epoch);
        Ok(Some((row.key, LeaseState { epoch, ..row.lease })))
    }

    /// Records the new lease state of a run.
    pub(crate) fn set_lease_state(&mut self, run: RunId, key: i64, tenure: LeaseState) {
        let (owner, expires_at) = match &tenure.holder {
            Some(lease) => (Value::from(lease.owner.as_str()), Value::from(lease.expires_at)),
            None => (Value::Null, Value::Null),
        };
        self.push(
            "UPDATE run_leases SET owner = ?2, epoch = ?3, expires_at = ?4 WHERE run_key = ?1",
            vec![key.into(), owner, tenure.epoch.get().into(), expires_at],
        );
        if let Some(live) = self.runs.get_mut(&run) {
            live.lease = tenure;
        }
    }
}

fn lease_of(key: i64) -> SqlStatement {
    let sql = "SELECT owner, epoch, expires_at FROM run_leases WHERE run_key = ?1 {locked}";
    SqlStatement { sql, values: vec![key.into()] }
}

fn newest_of(key: i64) -> SqlStatement {
    SqlStatement { sql: "SELECT max(seq) FROM run_events WHERE run_key = ?1", values: vec![key.into()] }
}

/// Returns the row of a run, with its lease locked until the transaction ends. The lock protects the whole run: every
/// process that writes to the run or takes it over holds the lock, so the rows that are read after it do not change.
pub(super) async fn lock_run(link: &mut DbConnection, run: RunId) -> Result<Option<RunRow>, StoreFault> {
    let sql = "SELECT h.epoch FROM run_leases h WHERE h.run_key = (SELECT r.run_key FROM runs r WHERE r.run_id = ?1) \
               {locked}";
    link.query(sql, values![run]).await?;
    rows::run(link, run).await
}
