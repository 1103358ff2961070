//! A part of a thread with everything that is drawn into it. What is outside of the part is not read.

use std::collections::BTreeSet;

use cantrip_canon::{CastId, TurnId};
use cantrip_loom::{DamagedTurn, Error, RecordSpan, RecordedError, ThreadSummary, TurnWindow, WindowPlace};

use super::segments::{thread_segments, turns_within};
use super::threads;
use crate::connection::DbConnection;
use crate::dialect::LIST;
use crate::events::missing_record;
use crate::failure::StoreFault;
use crate::partial_tree::PartialTree;
use crate::value::Value;
use crate::views::ENTITY_IS_KEPT;

/// Returns the part of the thread that ends with `leaf`.
pub(super) async fn window(
    link: &mut DbConnection,
    leaf: TurnId,
    place: WindowPlace,
    most: usize,
) -> Result<TurnWindow, StoreFault> {
    let segments = thread_segments(link, leaf).await?;
    let last = segments.first().map_or(0, |segment| segment.last);
    let mut window = TurnWindow { first: 1, last, ..TurnWindow::default() };
    let Some(range) = place.range(last, most) else { return Ok(window) };
    let (turns, path) = turns_within(link, &segments, (*range.start(), *range.end())).await?;
    let ids: Vec<TurnId> = turns.iter().map(|(_, turn)| *turn).collect();
    let mut gathered = PartialTree::default();
    gathered.turns(link, &ids).await?;
    for (sequence, turn) in turns {
        window.rewards.extend(gathered.tree.rewards(turn)?);
        add_turn(link, &mut gathered, &mut window, sequence, turn).await?;
    }
    let mut casts: Vec<CastId> = Vec::new();
    for turn in &window.turns {
        if !casts.contains(&turn.cast_id) {
            casts.push(turn.cast_id);
        }
    }
    for cast in casts {
        window.casts.push(gathered.render(link, |tree, bodies| tree.cast(cast, bodies)).await?);
    }
    let folds = gathered.folds(link, &path).await?;
    window.folds = gathered.render(link, |_, bodies| folds.iter().map(|fold| fold.view(bodies)).collect()).await?;
    window.branches = branches(link, &ids).await?;
    Ok(window)
}

/// Adds a turn to a window. A turn whose body is missing or altered is told apart, and the others are shown.
async fn add_turn(
    link: &mut DbConnection,
    gathered: &mut PartialTree,
    window: &mut TurnWindow,
    sequence: u64,
    turn_id: TurnId,
) -> Result<(), StoreFault> {
    let places = gathered.tree.places(turn_id);
    let span = places.and_then(|places| Some(RecordSpan { first: *places.first()?, last: *places.last()? }));
    let span = span.ok_or_else(|| missing_record(None, 0))?;
    match gathered.render(link, |tree, bodies| tree.turn(turn_id, bodies)).await {
        Ok(turn) => {
            window.turns.push(turn);
            window.spans.push(span);
            Ok(())
        }
        Err(StoreFault::Found(error @ Error::BodyAltered(_))) => {
            let error = RecordedError::new(error.code(), error.to_string());
            window.damaged.push(DamagedTurn { turn_id, sequence, error });
            Ok(())
        }
        Err(fault) => Err(fault),
    }
}

/// Returns the entities that begin at one of these turns, in the order of creation.
async fn branches(link: &mut DbConnection, turns: &[TurnId]) -> Result<Vec<ThreadSummary>, StoreFault> {
    let sql = format!("SELECT n.entity_key FROM entities n WHERE n.origin_id IN ({LIST}) AND {ENTITY_IS_KEPT}");
    let mut keys: BTreeSet<i64> = BTreeSet::new();
    for mut row in link.query_in_list(&sql, &[], turns.iter().map(|turn| Value::from(*turn))).await? {
        keys.insert(row.int()?);
    }
    threads::summaries(link, &keys.into_iter().collect::<Vec<i64>>()).await
}
