//! The thread of a turn as a few stretches: one for each entity that it passes through.
//!
//! The own turns of an entity have consecutive sequence numbers, so a stretch is known by its two ends. A thread of any
//! length is found with one row for each entity on it.

use cantrip_canon::TurnId;
use cantrip_loom::Error;

use crate::connection::DbConnection;
use crate::events::missing_record;
use crate::failure::StoreFault;
use crate::rows::{EntityAt, PathSegment, entity_at};
use crate::value::values;

/// A stretch of a thread: the turns `first` to `last` of an entity, which are its own.
#[derive(Debug)]
pub(super) struct ThreadSegment {
    pub entity_key: i64,
    pub first: u64,
    pub last: u64,
    /// True if the entity is a fork.
    pub forked: bool,
    /// The position of the step that created the entity, among all steps of the store.
    pub made: u64,
}

/// Returns the stretches of the thread that ends with a turn, the newest first. It goes back through forks to sequence
/// 1; the turns above a child belong to another thread, whose numbers begin again.
pub(super) async fn thread_segments(link: &mut DbConnection, leaf: TurnId) -> Result<Vec<ThreadSegment>, StoreFault> {
    let mut segments: Vec<ThreadSegment> = Vec::new();
    let mut next = Some(leaf);
    while let Some(turn) = next {
        let Some(EntityAt { entity_key, sequence, forked_from, made, .. }) = entity_at(link, turn).await? else {
            let unknown = if segments.is_empty() { Error::not_found("turn", turn) } else { missing_record(None, 0) };
            return Err(unknown.into());
        };
        // The own turns of a fork begin after the turn at which it branched off.
        if let Some(below) = segments.last_mut() {
            below.first = sequence + 1;
        }
        segments.push(ThreadSegment { entity_key, first: 1, last: sequence, forked: forked_from.is_some(), made });
        next = forked_from;
    }
    Ok(segments)
}

/// Returns the turns of a thread within these sequence numbers, oldest first, and the stretches with only these turns.
pub(super) async fn turns_within(
    link: &mut DbConnection,
    segments: &[ThreadSegment],
    (from, to): (u64, u64),
) -> Result<(Vec<(u64, TurnId)>, Vec<PathSegment>), StoreFault> {
    let sql = "SELECT sequence, turn_id FROM turns WHERE entity_key = ?1 AND sequence >= ?2 AND sequence <= ?3 \
               ORDER BY sequence DESC";
    let (mut all, mut path) = (Vec::new(), Vec::new());
    for segment in segments {
        let (first, last) = (segment.first.max(from), segment.last.min(to));
        let mut turns: Vec<TurnId> = Vec::new();
        if first <= last {
            for mut row in link.query(sql, values![segment.entity_key, first, last]).await? {
                let (sequence, turn) = (row.count()?, row.id()?);
                turns.push(turn);
                all.push((sequence, turn));
            }
        }
        let ThreadSegment { entity_key, forked, made, .. } = *segment;
        // A stretch without a turn here still decides which folds are valid.
        path.push(PathSegment { entity_key, turns, from: first, forked, made });
    }
    all.reverse();
    Ok((all, path))
}
