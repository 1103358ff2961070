//! Retention: which old runs may be removed, and the record of each removal.
//!
//! A loom is append-only. The only exception is a retention that a user requested, by a policy, with a name and a
//! reason. It removes the records of whole runs that ended long enough ago and that nothing newer builds on. Each
//! removal is a row that is written once, in the same transaction; a store refuses to delete a record without such a
//! row.

use cantrip_canon::{Hash, RetentionId, RunId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{Actor, RunKind, Seq};

/// Milliseconds of a day.
const DAY_MILLIS: i64 = 24 * 60 * 60 * 1_000;

/// Selects the runs that a retention removes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetentionPolicy {
    /// Runs that ended at least this many days ago.
    pub older_than_days: u64,
    /// Only runs of these kinds; runs of every kind if it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinds: Option<Vec<RunKind>>,
    /// Only runs of these owners; runs of every owner if it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owners: Option<Vec<String>>,
}

impl RetentionPolicy {
    /// Returns the time at or before which a run must have ended.
    pub fn cutoff(&self, now: Timestamp) -> Timestamp {
        let days = i64::try_from(self.older_than_days).unwrap_or(i64::MAX);
        let millis = now.unix_millis().saturating_sub(days.saturating_mul(DAY_MILLIS));
        Timestamp::from_unix_millis(millis).unwrap_or(Timestamp::EPOCH)
    }

    /// Returns true if the policy covers a run that ended at `ended_at`.
    pub fn covers(&self, kind: RunKind, owner: &str, ended_at: Timestamp, now: Timestamp) -> bool {
        ended_at <= self.cutoff(now)
            && self.kinds.as_ref().is_none_or(|kinds| kinds.contains(&kind))
            && self.owners.as_ref().is_none_or(|owners| owners.iter().any(|wanted| wanted == owner))
    }
}

/// A retention that a user requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetentionOrder {
    pub retention_id: RetentionId,
    pub policy: RetentionPolicy,
    pub actor: Actor,
    pub reason: String,
    pub at: Timestamp,
}

/// A run whose records a policy would remove.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RemovableRun {
    pub run_id: RunId,
    pub kind: RunKind,
    pub owner: String,
    pub ended_at: Timestamp,
    pub records: u64,
}

/// The runs that a policy would remove.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RetentionPlan {
    /// In the order of removal: runs that others build on come last.
    pub runs: Vec<RemovableRun>,
    /// The number of runs that the policy covers and that stay, because a run that stays builds on them: a later cast
    /// of the same entity, or a fork.
    pub kept: u64,
}

/// The record of the removal of one run. Written once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    pub retention_id: RetentionId,
    pub run_id: RunId,
    /// The position of the last record that was removed.
    pub through: Seq,
    /// The hash of that record, from which the chain continues.
    pub event_hash: Hash,
    pub records: u64,
    pub policy: RetentionPolicy,
    pub actor: String,
    pub reason: String,
    pub at: Timestamp,
}
