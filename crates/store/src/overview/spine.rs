//! A whole thread in a few hundred marks.
//!
//! Each turn has the cost of its entity up to it, so the cost of a mark is the difference of two rows, and turns with a
//! fault have an index of their own. The number of rows that are read depends on the marks, not on the turns. A table of
//! marks was rejected: it would be one more thing to write and to verify, and forks can still come to any old turn.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cantrip_canon::TurnId;
use cantrip_loom::{PathBucket, bucket_width};
use cantrip_reply::ReplyType;

use super::segments::{ThreadSegment, thread_segments};
use super::statements::reply_at;
use crate::connection::DbConnection;
use crate::dialect::LIST;
use crate::events::missing_record;
use crate::failure::StoreFault;
use crate::value::{Value, values};

/// Returns the thread that ends with `leaf` in at most `buckets` marks.
pub(super) async fn path_buckets(
    link: &mut DbConnection,
    leaf: TurnId,
    buckets: usize,
) -> Result<Vec<PathBucket>, StoreFault> {
    let segments = thread_segments(link, leaf).await?;
    let last = segments.first().map_or(0, |segment| segment.last);
    let width = bucket_width(last, buckets);
    let mut marks: BTreeMap<u64, PathBucket> = BTreeMap::new();
    // The oldest stretch first, because a mark can reach over the end of a stretch.
    for segment in segments.iter().rev() {
        let faults = faults(link, segment, width).await?;
        let turns = turns_at(link, segment, width, &faults).await?;
        for number in bucket_of(segment.first, width)..=bucket_of(segment.last, width) {
            let part = stretch_of(segment, number, width, &faults, &turns)?;
            match marks.get_mut(&number) {
                Some(mark) => mark.absorb(&part),
                None => {
                    marks.insert(number, part);
                }
            }
        }
    }
    add_branches(link, &segments, width, &mut marks).await?;
    add_folds(link, &segments, width, &mut marks).await?;
    Ok(marks.into_values().collect())
}

/// Returns the number of the bucket that a turn is in.
fn bucket_of(sequence: u64, width: u64) -> u64 {
    sequence.saturating_sub(1) / width.max(1)
}

/// Returns the sequences of a bucket within a stretch.
fn ends(segment: &ThreadSegment, number: u64, width: u64) -> (u64, u64) {
    let first = number * width + 1;
    (first.max(segment.first), (first + width - 1).min(segment.last))
}

/// The worst reply of each bucket of a stretch, and the sequence of the first turn that has it.
type Faults = BTreeMap<u64, (ReplyType, u64)>;

async fn faults(link: &mut DbConnection, segment: &ThreadSegment, width: u64) -> Result<Faults, StoreFault> {
    let sql = "SELECT (sequence - 1) / ?2, worst, min(sequence) FROM turns \
               WHERE entity_key = ?1 AND worst > 0 AND sequence >= ?3 AND sequence <= ?4 GROUP BY 1, 2";
    let mut found = Faults::new();
    for mut row in link.query(sql, values![segment.entity_key, width, segment.first, segment.last]).await? {
        let (number, worst, sequence) = (row.count()?, reply_at(row.int()?), row.count()?);
        let known = found.entry(number).or_insert((worst, sequence));
        if worst > known.0 {
            *known = (worst, sequence);
        }
    }
    Ok(found)
}

/// Turns by their sequence, each with the cost of its entity up to it.
type Turns = HashMap<u64, (TurnId, i64)>;

/// Reads the turns at the ends of the buckets of a stretch, and those with a fault.
async fn turns_at(
    link: &mut DbConnection,
    segment: &ThreadSegment,
    width: u64,
    faults: &Faults,
) -> Result<Turns, StoreFault> {
    let mut wanted: BTreeSet<u64> = faults.values().map(|(_, sequence)| *sequence).collect();
    for number in bucket_of(segment.first, width)..=bucket_of(segment.last, width) {
        let (first, last) = ends(segment, number, width);
        wanted.extend([first, last]);
    }
    let sql = format!("SELECT sequence, turn_id, cost_sum FROM turns WHERE entity_key = ?1 AND sequence IN ({LIST})");
    let mut found = Turns::new();
    let list = wanted.into_iter().map(Value::from);
    for mut row in link.query_in_list(&sql, values![segment.entity_key], list).await? {
        found.insert(row.count()?, (row.id()?, row.int()?));
    }
    Ok(found)
}

/// Returns the part of a bucket that lies in a stretch.
fn stretch_of(
    segment: &ThreadSegment,
    number: u64,
    width: u64,
    faults: &Faults,
    turns: &Turns,
) -> Result<PathBucket, StoreFault> {
    let (first, last) = ends(segment, number, width);
    let turn_at = |sequence: u64| turns.get(&sequence).copied().ok_or_else(|| missing_record(None, 0));
    // The buckets before are in the same stretch, so their last turn was read too.
    let before = if first > segment.first { turn_at(first - 1)?.1 } else { 0 };
    let (worst, told) = faults.get(&number).copied().unwrap_or((ReplyType::Success, first));
    Ok(PathBucket {
        first,
        last,
        turn_id: turn_at(told)?.0,
        worst,
        cost_micros: turn_at(last)?.1.saturating_sub(before),
        forks: 0,
        children: 0,
        folds: 0,
    })
}

/// Counts the entities that begin at turns of the thread.
async fn add_branches(
    link: &mut DbConnection,
    segments: &[ThreadSegment],
    width: u64,
    marks: &mut BTreeMap<u64, PathBucket>,
) -> Result<(), StoreFault> {
    let sql = "SELECT (n.parent_sequence - 1) / ?2, n.origin, count(*) FROM entities n \
               WHERE n.parent_key = ?1 AND n.parent_sequence >= ?3 AND n.parent_sequence <= ?4 GROUP BY 1, 2";
    for segment in segments {
        for mut row in link.query(sql, values![segment.entity_key, width, segment.first, segment.last]).await? {
            let (number, origin, count) = (row.count()?, row.text()?, row.count()?);
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            if let Some(mark) = marks.get_mut(&number) {
                let counted = if origin == "fork" { &mut mark.forks } else { &mut mark.children };
                *counted = counted.saturating_add(count);
            }
        }
    }
    Ok(())
}

/// Counts the folds that are valid for the thread. A fold that an entity made after another one branched off from it is
/// not valid for that other one.
async fn add_folds(
    link: &mut DbConnection,
    segments: &[ThreadSegment],
    width: u64,
    marks: &mut BTreeMap<u64, PathBucket>,
) -> Result<(), StoreFault> {
    let sql = "SELECT w.entity_key, w.sequence, e.place FROM folds f JOIN turns w ON w.turn_id = f.after_id \
               JOIN run_events e ON e.run_key = f.run_key AND e.seq = f.step_seq WHERE f.entity_key = ?1";
    let on_thread = |entity_key: i64, sequence: u64| {
        segments
            .iter()
            .any(|segment| segment.entity_key == entity_key && (segment.first..=segment.last).contains(&sequence))
    };
    let mut until = u64::MAX;
    for segment in segments {
        for mut row in link.query(sql, values![segment.entity_key]).await? {
            let (entity_key, sequence, place) = (row.int()?, row.count()?, row.count()?);
            if place >= until || !on_thread(entity_key, sequence) {
                continue;
            }
            if let Some(mark) = marks.get_mut(&bucket_of(sequence, width)) {
                mark.folds = mark.folds.saturating_add(1);
            }
        }
        until = until.min(segment.made);
    }
    Ok(())
}
