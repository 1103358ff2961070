//! A part of a thread, and its spine.

use std::collections::BTreeMap;

use cantrip_service::cantrip::canon::{EntityId, RunId, TurnId};
use cantrip_service::cantrip::loom::{
    Closing, Error, Loom, Overview, RunView, Settlement, Turn, TurnWindow, WindowPlace,
};
use cantrip_service::cantrip::reply::{Refusal, codes};
use serde_json::Value;

use crate::limits::{SPINE_MARKS, WINDOW_BYTES, WINDOW_ITEM_BYTES, WINDOW_TURNS};
use crate::redact::Redaction;
use crate::{SpineView, ThreadWindow, TurnItem, Views, stored, turn_items};

/// The estimated size of the markup around the content of a turn, and of one item.
const TURN_FRAME_BYTES: usize = 1_300;
const ITEM_FRAME_BYTES: usize = 900;

impl Views<'_> {
    /// Returns a part of the thread of an entity of the run; of its root unless `shown` is given.
    pub async fn window(
        &self,
        run: RunId,
        shown: Option<EntityId>,
        place: WindowPlace,
    ) -> Result<ThreadWindow, Refusal> {
        self.window_of(run, shown, place, WINDOW_TURNS).await
    }

    /// Returns a part of a thread with at most `most` turns.
    pub async fn window_of(
        &self,
        run: RunId,
        shown: Option<EntityId>,
        place: WindowPlace,
        most: usize,
    ) -> Result<ThreadWindow, Refusal> {
        let view = self.service.own_run(run).await?;
        // Only an entity other than the root has to be looked for among the run's entities.
        let other = shown.filter(|shown| view.entity_id != Some(*shown));
        let threads = match other {
            Some(_) => self.loom().run_threads(run).await.map_err(stored)?,
            None => Vec::new(),
        };
        let Some(entity) = self.shown_entity(&view, shown, &threads).await? else {
            return Ok(empty_window(&view));
        };
        let mut window = match self.leaf(&view, &entity).await? {
            Some(leaf) => {
                let read = self.loom().window(leaf, place, most).await.map_err(stored)?;
                self.dress(&view, fit(read, place)).await?
            }
            None => empty_window(&view),
        };
        if window.at_end && view.state.is_live() {
            window.open = self.open_turns(&view, Some(entity.entity.entity_id)).await?;
        }
        Ok(window)
    }

    /// Returns the closed turns of the group that begins with this turn: the sealed ones and their continuations.
    pub async fn group(&self, run: RunId, turn: TurnId) -> Result<ThreadWindow, Refusal> {
        let view = self.service.own_run(run).await?;
        let mut last = self.service.own_turn(turn).await?;
        if self.loom().cast(last.cast_id).await.map_err(stored)?.run_id != run {
            return Err(codes::not_found("turn", turn.to_string()).into());
        }
        let mut turns = 1;
        while let Closing::Sealed { next, .. } = last.closing {
            match self.loom().turn(next).await {
                Ok(continuation) => last = continuation,
                Err(Error::NotFound { .. }) => break,
                Err(error) => return Err(stored(error)),
            }
            turns += 1;
        }
        let read = self.loom().window(last.id, WindowPlace::End, turns).await.map_err(stored)?;
        self.dress(&view, read).await
    }

    /// Returns the spine of the path to a turn.
    pub async fn spine(&self, leaf: TurnId) -> Result<SpineView, Refusal> {
        self.service.own_turn(leaf).await?;
        let buckets = self.loom().path_buckets(leaf, SPINE_MARKS).await.map_err(stored)?;
        let first = buckets.first().map_or(0, |bucket| bucket.first);
        let last = buckets.last().map_or(0, |bucket| bucket.last);
        Ok(SpineView { buckets, first, last })
    }

    /// Adds what the turns do not hold, and takes the secrets out.
    async fn dress(&self, run: &RunView, window: TurnWindow) -> Result<ThreadWindow, Refusal> {
        let noted = self.notes(&window).await?;
        let mut redacted = BTreeMap::new();
        let mut turns = Vec::with_capacity(window.turns.len());
        for turn in window.turns {
            let mut redaction = Redaction::of(self);
            let turn = redaction.turn(turn);
            if redaction.count > 0 {
                redacted.insert(turn.id, redaction.count);
            }
            turns.push(turn);
        }
        let mut redaction = Redaction::of(self);
        let window = TurnWindow {
            turns,
            casts: window.casts.into_iter().map(|cast| redaction.cast(cast)).collect(),
            folds: window.folds.into_iter().map(|fold| redaction.fold(fold)).collect(),
            rewards: window.rewards.into_iter().map(|reward| redaction.reward(reward)).collect(),
            branches: redaction.threads(window.branches),
            ..window
        };
        Ok(ThreadWindow {
            run: run.run_id,
            notes: noted.calls,
            attempts: noted.attempts,
            open: Vec::new(),
            damaged: window.damaged.iter().map(|damaged| (damaged.turn_id, damaged.error.clone())).collect(),
            newest: run.newest.get(),
            at_end: newest_sequence(&window).is_none_or(|newest| newest >= window.last),
            redacted,
            window,
        })
    }
}

/// Returns the number of the last turn of a window, read or damaged.
pub(crate) fn newest_sequence(window: &TurnWindow) -> Option<u64> {
    let turns = window.turns.iter().map(|turn| turn.sequence);
    turns.chain(window.damaged.iter().map(|damaged| damaged.sequence)).max()
}

/// Returns the window of a thread without turns.
fn empty_window(run: &RunView) -> ThreadWindow {
    ThreadWindow {
        run: run.run_id,
        window: TurnWindow {
            turns: Vec::new(),
            spans: Vec::new(),
            damaged: Vec::new(),
            casts: Vec::new(),
            folds: Vec::new(),
            rewards: Vec::new(),
            branches: Vec::new(),
            first: 0,
            last: 0,
        },
        notes: BTreeMap::new(),
        open: Vec::new(),
        damaged: Vec::new(),
        newest: run.newest.get(),
        at_end: true,
        redacted: BTreeMap::new(),
        attempts: BTreeMap::new(),
    }
}

/// Leaves turns out at the far end of a window, so that a page of it stays within its size.
fn fit(window: TurnWindow, place: WindowPlace) -> TurnWindow {
    let sizes: Vec<usize> = window.turns.iter().map(estimate).collect();
    let kept = match place {
        WindowPlace::After(_) => 0..count_that_fits(sizes.iter()),
        WindowPlace::End | WindowPlace::Before(_) => sizes.len() - count_that_fits(sizes.iter().rev())..sizes.len(),
        WindowPlace::Around(sequence) => {
            let at = window.turns.iter().position(|turn| turn.sequence >= sequence);
            around(&sizes, at.unwrap_or(sizes.len().saturating_sub(1)))
        }
    };
    if kept.len() == sizes.len() {
        return window;
    }
    keep(window, kept)
}

/// Returns how many of these turns fit into a window; the first one always does.
fn count_that_fits<'a>(sizes: impl Iterator<Item = &'a usize>) -> usize {
    let mut sum = 0;
    let mut count = 0;
    for size in sizes {
        sum += size;
        if count > 0 && sum > WINDOW_BYTES {
            break;
        }
        count += 1;
    }
    count
}

/// Returns the turns around the one at `at` that fit, a turn on each side in turns.
fn around(sizes: &[usize], at: usize) -> std::ops::Range<usize> {
    let Some(own) = sizes.get(at) else { return 0..sizes.len() };
    let (mut start, mut end, mut sum) = (at, at + 1, *own);
    loop {
        let before =
            start.checked_sub(1).and_then(|before| sizes.get(before)).filter(|size| sum + **size <= WINDOW_BYTES);
        if let Some(size) = before {
            sum += size;
            start -= 1;
        }
        let after = sizes.get(end).filter(|size| sum + **size <= WINDOW_BYTES);
        if let Some(size) = after {
            sum += size;
            end += 1;
        }
        if before.is_none() && after.is_none() {
            return start..end;
        }
    }
}

/// Keeps these turns of a window, with what belongs to them.
fn keep(window: TurnWindow, kept: std::ops::Range<usize>) -> TurnWindow {
    let (first, count) = (kept.start, kept.len());
    let turns: Vec<Turn> = window.turns.into_iter().skip(first).take(count).collect();
    let from = turns.first().map_or(0, |turn| turn.sequence);
    let to = turns.last().map_or(0, |turn| turn.sequence);
    let is_kept = |id: TurnId| turns.iter().any(|turn| turn.id == id);
    TurnWindow {
        spans: window.spans.into_iter().skip(first).take(count).collect(),
        damaged: window.damaged.into_iter().filter(|turn| turn.sequence >= from && turn.sequence <= to).collect(),
        casts: window
            .casts
            .into_iter()
            .filter(|cast| turns.iter().any(|turn| turn.cast_id == cast.cast.cast_id))
            .collect(),
        folds: window.folds.into_iter().filter(|fold| is_kept(fold.fold.after)).collect(),
        rewards: window.rewards.into_iter().filter(|reward| is_kept(reward.turn_id)).collect(),
        branches: window
            .branches
            .into_iter()
            .filter(|branch| branch.parent_sequence.is_none_or(|at| at >= from && at <= to))
            .collect(),
        first: window.first,
        last: window.last,
        turns,
    }
}

/// Estimates the size of a turn's markup.
fn estimate(turn: &Turn) -> usize {
    let items = turn_items(turn);
    let sizes = items.iter().map(|item| ITEM_FRAME_BYTES + item_bytes(item));
    TURN_FRAME_BYTES + sizes.sum::<usize>() + turn.intent.as_ref().map_or(0, |intent| intent.text().len())
}

/// Estimates the size of an item's content. Programs are shown whole and painted; results are shown in part.
fn item_bytes(item: &TurnItem<'_>) -> usize {
    let in_part = |bytes: usize| bytes.min(WINDOW_ITEM_BYTES);
    match item {
        TurnItem::Thinking(text) => in_part(text.len()),
        TurnItem::Said(text) => text.len() + text.len() / 4,
        TurnItem::Program(program) => {
            let printed = program.output.map_or(0, |output| output.console.iter().map(String::len).sum());
            program.code.map_or(0, |code| 2 * code.len()) + in_part(printed)
        }
        TurnItem::Asked(call) => value_bytes(&call.args, WINDOW_ITEM_BYTES),
        TurnItem::Call(record) => {
            let result = match &record.settlement {
                Settlement::Delegated => 0,
                Settlement::Settled(settled) => value_bytes(&settled.result, WINDOW_ITEM_BYTES),
            };
            2 * result + value_bytes(&record.args, WINDOW_ITEM_BYTES)
        }
    }
}

/// Returns about the length of a value's text, and no more than `most`: a long one is not read to its end.
fn value_bytes(value: &Value, most: usize) -> usize {
    let mut left = most;
    count_value(value, &mut left);
    most - left
}

fn count_value(value: &Value, left: &mut usize) {
    let bytes = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 4,
        Value::String(text) => text.len() + 2,
        Value::Array(_) | Value::Object(_) => 2,
    };
    *left = left.saturating_sub(bytes);
    match value {
        Value::Array(items) => {
            for item in items {
                if *left == 0 {
                    return;
                }
                count_value(item, left);
            }
        }
        Value::Object(entries) => {
            for (key, entry) in entries {
                if *left == 0 {
                    return;
                }
                *left = left.saturating_sub(key.len() + 4);
                count_value(entry, left);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_at_least_one_turn_and_ends_at_its_size() {
        assert_eq!(count_that_fits([WINDOW_BYTES * 3, 1].iter()), 1);
        assert_eq!(count_that_fits([WINDOW_BYTES / 2, WINDOW_BYTES / 2, 1].iter()), 2);
        assert_eq!(count_that_fits([].iter()), 0);
    }

    #[test]
    fn a_window_around_a_turn_grows_on_both_sides() {
        let half = WINDOW_BYTES / 4;
        assert_eq!(around(&[half; 9], 4), 2..6);
        assert_eq!(around(&[WINDOW_BYTES * 2; 3], 1), 1..2);
        assert_eq!(around(&[1; 5], 0), 0..5);
        assert_eq!(around(&[], 0), 0..0);
    }
}
