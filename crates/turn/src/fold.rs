//! Folding: a shorter view of a long thread.
//!
//! A fold deletes nothing: the loom keeps every turn, and only the list for the crystal gets shorter. A fold is a
//! record, made before a request when the list has grown too long. So a resumed run and a replay see the same list; a
//! fork from below the fold sees plain turns. Folding without a record (dropping messages until they fit) was turned
//! down: nobody could find out afterwards what the model had read.
//!
//! There are three strategies: `window` describes the work without asking a crystal, `summary` has a crystal write the
//! text, `selective` keeps the messages and shortens their results. Each takes a [`FoldPlan`] and makes a
//! [`FoldDraft`].

mod summary;
mod text;

use cantrip_canon::{EntityId, FoldId, TurnId};
use cantrip_loom::{Body, CallId, Error, Fold, FoldSum, RecordValue, Strategy};

use crate::fault::CantripFault;
use crate::limits::{FOLD_HEAD_ROOM_TOKENS, SHRUNK_GROUPS_MAX};
use crate::list::MessageList;

pub(crate) use summary::SummaryReader;
pub(crate) use text::describe_calls;
pub use text::{RecallOptions, window_text};

/// The share of the window that kept groups may fill after a fold.
const KEPT_SHARE: f64 = 0.3;
/// The share of the window that stays free for the fold itself.
const HEAD_ROOM_SHARE: f64 = 0.1;

/// The triggers and the strategy of folding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FoldOptions {
    /// Folds when this number of closed groups is unfolded; at least 2.
    pub trigger_after_turns: Option<u64>,
    /// Folds when the estimate exceeds this share of the crystal's window. Only crystals that are scripts or programs
    /// have no window.
    pub window_share: f64,
    pub strategy: Strategy,
}

impl Default for FoldOptions {
    fn default() -> Self {
        Self { trigger_after_turns: None, window_share: 0.8, strategy: Strategy::Window }
    }
}

/// The reason for folding now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    Turns,
    Window,
    /// The crystal reported that the list is too long: everything but the last group is folded.
    TooLong,
}

/// The range of a fold: everything from the thread's first turn to turn `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoldPlan {
    pub trigger: Trigger,
    pub from: u64,
    pub to: u64,
    /// The last closed turn.
    pub after: TurnId,
    /// The number of shown groups that are folded.
    pub groups: usize,
}

impl FoldOptions {
    pub fn after_turns(turns: u64) -> Self {
        Self { trigger_after_turns: Some(turns), ..Self::default() }
    }

    /// Sets another strategy.
    #[must_use]
    pub fn with_strategy(self, strategy: Strategy) -> Self {
        Self { strategy, ..self }
    }

    /// Returns every value that no fold could work with.
    pub fn faults(&self) -> Vec<CantripFault> {
        let soon =
            self.trigger_after_turns.filter(|turns| *turns < 2).map(|turns| CantripFault::FoldsTooSoon { turns });
        let within = self.window_share > 0.0 && self.window_share <= 1.0;
        soon.into_iter().chain((!within).then_some(CantripFault::WindowShare(self.window_share))).collect()
    }

    /// Returns the trigger if the list must be folded before the next request, whose answer may have `output_cap`
    /// tokens.
    pub fn trigger(&self, view: &MessageList, output_cap: u64) -> Option<Trigger> {
        if self.trigger_after_turns.is_some_and(|turns| view.unfolded() as u64 >= turns) {
            return Some(Trigger::Turns);
        }
        self.overfull(view, view.estimate(), output_cap).then_some(Trigger::Window)
    }

    /// Returns true if the estimate exceeds the room in the window, if the window is known.
    fn overfull(&self, view: &MessageList, estimate: u64, output_cap: u64) -> bool {
        let Some(window) = view.frame().measure.window.map(|window| window as f64) else { return false };
        let head_room = (HEAD_ROOM_SHARE * window).max(FOLD_HEAD_ROOM_TOKENS as f64);
        let most = (self.window_share * window).min(window - output_cap as f64 - head_room);
        estimate as f64 > most
    }

    /// Returns the plan of a fold; none if no group can be folded.
    pub fn plan(&self, view: &MessageList, trigger: Trigger) -> Option<FoldPlan> {
        let groups = view.groups();
        let kept = match trigger {
            Trigger::Turns => usize::try_from(self.trigger_after_turns.unwrap_or(0) / 2).unwrap_or(usize::MAX).max(1),
            Trigger::Window => fitting(view),
            Trigger::TooLong => 1,
        };
        let gone = groups.len().checked_sub(kept).filter(|gone| *gone > 0)?;
        let last = groups.get(gone - 1)?;
        let from =
            view.folded().turns.map_or_else(|| groups.first().map(|group| group.from), |(from, _)| Some(from))?;
        Some(FoldPlan { trigger, from, to: last.to, after: groups.last()?.last, groups: gone })
    }

    /// Makes a fold that no crystal has to write: `selective` if it is configured and makes the list short enough, else
    /// `window`.
    pub fn make(&self, view: &MessageList, plan: FoldPlan, means: RecallOptions, output_cap: u64) -> FoldDraft {
        let shrinks = match (self.strategy, plan.trigger) {
            // It is unknown how much shorter the list must be.
            (_, Trigger::TooLong) | (Strategy::Window | Strategy::Summary, _) => false,
            (Strategy::Selective, Trigger::Turns | Trigger::Window) => {
                plan.groups > view.shrunk() && plan.groups <= SHRUNK_GROUPS_MAX
            }
        };
        if shrinks {
            let made = FoldDraft::selective(view, plan, means);
            if !self.overfull(view, made.estimate_after, output_cap) {
                return made;
            }
        }
        FoldDraft::window(view, plan.with_shrunk(view), means)
    }
}

impl FoldPlan {
    /// Extends the plan to the groups that were shortened before: a result that stays short would refer to another
    /// fold.
    fn with_shrunk(self, view: &MessageList) -> Self {
        match view.shrunk().checked_sub(1).and_then(|last| view.groups().get(last)) {
            Some(last) if view.shrunk() > self.groups => Self { to: last.to, groups: view.shrunk(), ..self },
            Some(_) | None => self,
        }
    }
}

/// Returns the number of last groups that fit; at least one stays.
fn fitting(view: &MessageList) -> usize {
    let Some(window) = view.frame().measure.window else { return 1 };
    let room = KEPT_SHARE * window as f64;
    let mut filled = 0.0;
    let fits = (0..view.groups().len()).rev().take_while(|place| {
        filled += view.tokens_with_intents(*place) * view.ratio();
        filled <= room
    });
    fits.count().max(1)
}

/// A fold that is ready to be recorded. After that, [`MessageList::fold`] applies it to the list.
#[derive(Debug, Clone, PartialEq)]
pub struct FoldDraft {
    pub plan: FoldPlan,
    pub strategy: Strategy,
    pub text: String,
    pub estimate_before: u64,
    pub estimate_after: u64,
    /// The request of the crystal that wrote the fold, or failed to.
    pub attempt: Option<CallId>,
    /// True if the requested strategy failed and a window replaces it.
    pub degraded: bool,
    /// The totals of the thread after the fold.
    pub sum: FoldSum,
}

impl FoldDraft {
    /// Makes a fold with this text.
    pub fn new(view: &MessageList, plan: FoldPlan, strategy: Strategy, text: String) -> Self {
        Self {
            plan,
            strategy,
            estimate_before: view.estimate(),
            estimate_after: view.estimate_folded(strategy, plan.to, &text),
            sum: view.sum_folded(strategy, plan.to),
            text,
            attempt: None,
            degraded: false,
        }
    }

    pub fn window(view: &MessageList, plan: FoldPlan, means: RecallOptions) -> Self {
        Self::new(view, plan, Strategy::Window, window_text(view, &plan, means))
    }

    /// Makes a selective fold: turns that an earlier fold removed stay removed and are described again; the others
    /// stay, with short results.
    pub fn selective(view: &MessageList, plan: FoldPlan, means: RecallOptions) -> Self {
        Self::new(view, plan, Strategy::Selective, text::selective(view, &plan, means))
    }

    /// Makes a fold from the text that a crystal wrote.
    pub fn summary(view: &MessageList, plan: FoldPlan, means: RecallOptions, written: &str) -> Self {
        Self::new(view, plan, Strategy::Summary, text::summary(view, &plan, means, written))
    }

    /// Makes the window fold that replaces the summary of `attempt`, if there was an attempt.
    pub fn degraded(view: &MessageList, plan: FoldPlan, means: RecallOptions, attempt: Option<CallId>) -> Self {
        Self { attempt, degraded: true, ..Self::window(view, plan, means) }
    }

    pub fn record(&self, fold_id: FoldId, entity_id: EntityId, bodies: &mut Vec<Body>) -> Result<Fold, Error> {
        Ok(Fold {
            fold_id,
            entity_id,
            after: self.plan.after,
            from: self.plan.from,
            to: self.plan.to,
            strategy: self.strategy,
            text: RecordValue::new(self.text.clone(), bodies)?,
            estimate_before: self.estimate_before,
            estimate_after: self.estimate_after,
            attempt: self.attempt,
            degraded: self.degraded,
            sum: Some(self.sum.clone()),
        })
    }

    /// Applies the fold to the list.
    pub fn apply(&self, view: &mut MessageList) {
        view.fold(self.strategy, self.plan.to, &self.text);
    }
}
