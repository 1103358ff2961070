//! The list from its last fold on: the turns before it are not read.
//!
//! A fold record contains the totals of the turns before it. So resuming an entity with ten thousand turns, or forking
//! from its end, costs only the turns that are shown. Properties over random threads check that the list is the same as
//! if all turns had been read.

use std::collections::HashMap;
use std::sync::Arc;

use cantrip_canon::CastId;
use cantrip_loom::{CastView, Environment, FoldSum, FoldView, IntentRecord, Message, Strategy, Turn};

use super::{CloseFault, CurrentCast, FRESH, FoldTotals, Frame, MessageList};

/// The part of a folded thread that is read.
#[derive(Debug, Clone, Copy)]
pub struct ThreadSinceFold<'a> {
    /// The last fold of the path.
    pub fold: &'a FoldView,
    /// The turns behind the last removed turn, in the order of the path.
    pub turns: &'a [Turn],
    /// The casts of the path that have a turn on it, oldest first.
    pub casts: &'a [CastView],
}

impl ThreadSinceFold<'_> {
    /// Returns the last turn that need not be read, if this fold has the totals of the turns up to it.
    pub fn last_folded_turn(fold: &FoldView) -> Option<(u64, &FoldSum)> {
        let sum = fold.fold.sum.as_ref()?;
        Some((sum.gone?, sum))
    }
}

impl MessageList {
    /// Builds the list of a thread from its last fold on; none if the fold does not have enough data.
    pub fn from_fold(frame: Frame, since: ThreadSinceFold<'_>) -> Result<Option<Self>, CloseFault> {
        let ThreadSinceFold { fold, turns, casts } = since;
        let (Some((gone, sum)), Some(first)) = (ThreadSinceFold::last_folded_turn(fold), turns.first()) else {
            return Ok(None);
        };
        let mut view = Self::new(frame);
        let Some(intent) = view.add_casts(casts, first.cast_id) else {
            return Err(CloseFault::CastUnknown { cast: first.cast_id });
        };
        view.folded =
            FoldTotals { turns: Some((fold.fold.from, gone)), deeds: sum.deeds.clone(), said: sum.said.clone() };
        let told = Arc::clone(&view.intents[intent]);
        view.push(told);
        view.fold_at = Some(view.list.len());
        view.push(Message::User { content: fold.text.as_str().into() }.into());
        if first.forked_from.is_some_and(|fork| fork.environment == Environment::Fresh) {
            view.push(Message::User { content: FRESH.into() }.into());
        }
        view.current = Some(CurrentCast { cast: first.cast_id, intent, told_from: intent, began: None, own: false });
        let by_id: HashMap<CastId, &CastView> = casts.iter().map(|cast| (cast.cast.cast_id, cast)).collect();
        for turn in turns {
            view.add_turn(turn, &by_id)?;
            if turn.id == fold.fold.after {
                view.restore_fold(fold, sum);
            }
        }
        Ok(Some(view))
    }

    /// Adds the intents up to the intent of the cast `until`, and returns the index of that intent.
    fn add_casts(&mut self, casts: &[CastView], until: CastId) -> Option<usize> {
        for cast in casts {
            let known = match &cast.cast.intent {
                IntentRecord::New(_) => None,
                IntentRecord::Of(earlier) => {
                    self.casts.get(earlier).copied().or_else(|| self.matching_last_intent(&cast.intent))
                }
            };
            let index = known.unwrap_or_else(|| {
                for intent in &cast.cancelled {
                    self.intents.push(Arc::new(Message::User { content: intent.clone() }));
                }
                self.intents.push(Arc::new(Message::User { content: cast.intent.clone() }));
                self.intents.len() - 1
            });
            self.casts.insert(cast.cast.cast_id, index);
            if cast.cast.cast_id == until {
                return Some(index);
            }
        }
        None
    }

    /// Restores the state at the fold: the counts are those of its record, and from here on everything is estimated
    /// again.
    fn restore_fold(&mut self, fold: &FoldView, sum: &FoldSum) {
        if fold.fold.strategy == Strategy::Selective {
            self.fold(fold.fold.strategy, fold.fold.to, &fold.text);
        }
        self.anchor = None;
        self.counted = (sum.counted, sum.estimated);
    }
}
