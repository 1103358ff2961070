//! The reads of a person who looks: lists of runs, a part of a long thread, the threads of a loom, what waits.
//!
//! Every answer is bounded, however long the run is. A store keeps what it needs for them when a run begins, rests and
//! ends, so that a turn costs no further write; a loom in memory computes the same answers from its records.

mod held;
mod run_digest;

use std::ops::RangeInclusive;

use cantrip_canon::{ApprovalId, CastId, EntityId, LoomId, Money, RunId, Timestamp, TurnId};
use cantrip_reply::ReplyType;
use serde::Serialize;

use crate::limits::{PATH_BUCKETS_MAX, SUMMARY_TEXT_CHARS, WINDOW_TURNS_MAX};
use crate::{
    Actor, CallId, CastView, FoldView, Fork, ListPage, Origin, PageRequest, ParkReason, RecordedError, RewardView,
    RunKind, RunState, Seq, TruncationReason, Turn,
};

pub(crate) use held::{Digests, HeldOverview};
pub use run_digest::{ClosedTurn, RunDigest};

/// The conditions of a list of runs. Every condition that is set must hold.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SummaryFilter {
    /// Any of these states; empty for all.
    pub states: Vec<RunState>,
    /// The name of the spell, whole, as [`RunSummary::spell`] has it.
    pub spell: Option<String>,
    /// The loom of the run. All casts of a spell are in one loom, also if no record names the spell.
    pub loom: Option<LoomId>,
    pub owner: Option<Actor>,
    /// The name of the crystal, whole.
    pub crystal: Option<String>,
    /// A gate that the run, or a child in it, called.
    pub gate: Option<String>,
    /// A reply code that a request, a call or a program of the run or of a child in it, or the end of the run, had.
    pub code: Option<String>,
    /// The least cost in micro-units of any currency. An unknown cost counts as none.
    pub cost_micros_min: Option<i64>,
    /// Runs that began at this time or later.
    pub since: Option<Timestamp>,
    /// Words, each of which the beginning of the intent or of the answer contains, without regard to the case of ASCII
    /// letters.
    pub text: Option<String>,
    /// True to leave out runs of predicts and jobs, which are not below a person's cast.
    pub casts_only: bool,
}

impl SummaryFilter {
    /// Returns the words of the text, in small letters as far as they are ASCII.
    pub fn words(&self) -> Vec<String> {
        let text = self.text.as_deref().unwrap_or_default();
        text.split_whitespace().map(str::to_ascii_lowercase).collect()
    }

    /// Returns true if a run meets every condition, except those about the gates and codes that it met.
    pub fn matches(&self, run: &RunSummary) -> bool {
        let is = |wanted: &Option<String>, found: &Option<String>| wanted.is_none() || wanted == found;
        let texts = [&run.intent, &run.answer].map(|text| text.as_deref().unwrap_or_default().to_ascii_lowercase());
        (self.states.is_empty() || self.states.contains(&run.state))
            && is(&self.spell, &run.spell)
            && is(&self.crystal, &run.crystal)
            && self.loom.is_none_or(|loom| loom == run.loom_id)
            && self.owner.as_ref().is_none_or(|owner| *owner == run.owner)
            && self.cost_micros_min.is_none_or(|least| run.cost.map_or(0, Money::micros) >= least)
            && self.since.is_none_or(|since| run.created_at >= since)
            && !(self.casts_only && matches!(run.kind, RunKind::Predict | RunKind::Job))
            && self.words().iter().all(|word| texts.iter().any(|text| text.contains(word)))
    }
}

/// Returns the beginning of a text, as long as a list shows it. NUL, which Postgres does not store, is replaced.
pub fn summary_text(text: &str) -> String {
    text.chars()
        .take(SUMMARY_TEXT_CHARS)
        .map(|letter| if letter == '\0' { char::REPLACEMENT_CHARACTER } else { letter })
        .collect()
}

/// A run as one line of a list. Texts are cut at [`SUMMARY_TEXT_CHARS`](crate::limits::SUMMARY_TEXT_CHARS) characters.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunSummary {
    pub run_id: RunId,
    pub kind: RunKind,
    pub loom_id: LoomId,
    pub owner: Actor,
    pub entity_id: Option<EntityId>,
    pub cast_id: Option<CastId>,
    /// The name of the spell, if the records of the run name one: a job does, and a call that policy allowed for free.
    pub spell: Option<String>,
    pub crystal: Option<String>,
    pub intent: Option<String>,
    /// The answer once there is one; a value that is not a text as compact JSON.
    pub answer: Option<String>,
    pub state: RunState,
    pub reason: Option<TruncationReason>,
    /// The code of the error that ended or parked the run. A truncated run without an error has the code of its reason.
    pub code: Option<String>,
    /// Why the run is parked, while it is.
    pub waiting_for: Option<ParkReason>,
    /// The closed turns of the root entity in this run, and of all its children.
    pub turns: u64,
    pub child_turns: u64,
    /// The number of entities that were spawned in the run.
    pub children: u64,
    /// The usage of every request that reported it, of all entities. Of a running run, the tokens, the money, the spell
    /// and the gates and codes by which it is found may be those of the last time at which it began, waited, failed or
    /// ended; the turns and the children are always counted.
    pub tokens_prompt: u64,
    pub tokens_completion: u64,
    pub tokens_cached: u64,
    /// The known cost of all requests and calls of the root entity, and of all entities; none while none is known.
    pub own_cost: Option<Money>,
    pub cost: Option<Money>,
    /// The limit of the cast, if it has one.
    pub budget: Option<Money>,
    pub created_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    /// The newest record: a change of the run changes it.
    pub newest: Seq,
}

/// How many runs of a list there are in each group that the head of the list shows. Counting stops at
/// [`COUNTED_RUNS_MAX`](crate::limits::COUNTED_RUNS_MAX).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct RunCounts {
    pub waiting: u64,
    pub running: u64,
    /// Truncated or failed, and ended since the time that was asked for.
    pub went_wrong: u64,
    /// The known cost of the runs that ended since then, by currency.
    pub spent: Vec<Money>,
}

/// Which part of the path to a turn is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowPlace {
    /// The last turns of the path.
    End,
    /// The turns around the one with this sequence number, which is in the window.
    Around(u64),
    /// The turns after the one with this sequence number.
    After(u64),
    /// The turns before the one with this sequence number.
    Before(u64),
}

impl WindowPlace {
    /// Returns the sequence numbers of the turns to show of a path whose turns have the numbers 1 to `last`; none if
    /// there is no turn in that place.
    pub fn range(self, last: u64, most: usize) -> Option<RangeInclusive<u64>> {
        let most = most.clamp(1, WINDOW_TURNS_MAX) as u64;
        let until = |end: u64| end.saturating_sub(most - 1).max(1)..=end;
        let range = match self {
            Self::End => until(last),
            Self::Around(sequence) => {
                let first = sequence.min(last).saturating_sub(most / 2).max(1);
                until(first.saturating_add(most - 1).min(last))
            }
            Self::After(sequence) => sequence.saturating_add(1)..=sequence.saturating_add(most).min(last),
            Self::Before(sequence) => until(sequence.saturating_sub(1).min(last)),
        };
        (!range.is_empty() && *range.end() > 0).then_some(range)
    }
}

/// The positions of the first and the last record that tell of a turn, in the run of its cast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RecordSpan {
    pub first: Seq,
    pub last: Seq,
}

/// A turn of a window whose content could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DamagedTurn {
    pub turn_id: TurnId,
    pub sequence: u64,
    pub error: RecordedError,
}

/// A part of a path: at most [`WINDOW_TURNS_MAX`](crate::limits::WINDOW_TURNS_MAX) turns in their order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TurnWindow {
    pub turns: Vec<Turn>,
    /// For each of `turns`, at the same index, where its records are.
    pub spans: Vec<RecordSpan>,
    /// Turns of the window that have a missing or altered body; they are not in `turns`. Any other fault of the store
    /// is an error of the whole read.
    pub damaged: Vec<DamagedTurn>,
    /// The casts of these turns, in the order of their first turn here.
    pub casts: Vec<CastView>,
    /// The folds that are valid for the path and were made after one of these turns, oldest first.
    pub folds: Vec<FoldView>,
    /// The rewards of these turns, in the order of the turns; of each turn the oldest first.
    pub rewards: Vec<RewardView>,
    /// The entities that begin at one of these turns, in the order of creation: forks, also the one that the path goes
    /// on in, and children of their calls.
    pub branches: Vec<ThreadSummary>,
    /// The sequence numbers of the first and the last turn of the whole path.
    pub first: u64,
    pub last: u64,
}

/// A stretch of a path as one mark of its spine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PathBucket {
    /// The sequence numbers of its first and last turn.
    pub first: u64,
    pub last: u64,
    /// The turn of the worst reply, otherwise the first turn.
    pub turn_id: TurnId,
    /// The worst reply of its calls and programs.
    pub worst: ReplyType,
    pub cost_micros: i64,
    /// The entities that branched off or were spawned at one of its turns.
    pub forks: u32,
    pub children: u32,
    /// The folds that are valid for the path and were made after one of its turns.
    pub folds: u32,
}

impl PathBucket {
    /// Adds a bucket that begins where this one ends.
    pub fn absorb(&mut self, later: &Self) {
        self.last = later.last;
        if later.worst > self.worst {
            (self.worst, self.turn_id) = (later.worst, later.turn_id);
        }
        self.cost_micros = self.cost_micros.saturating_add(later.cost_micros);
        self.forks = self.forks.saturating_add(later.forks);
        self.children = self.children.saturating_add(later.children);
        self.folds = self.folds.saturating_add(later.folds);
    }

    /// Joins the buckets of single turns, in order from sequence 1, to buckets of `width` turns.
    pub fn join(turns: impl IntoIterator<Item = Self>, width: u64) -> Vec<Self> {
        let mut joined: Vec<Self> = Vec::new();
        for turn in turns {
            let begins = turn.first.saturating_sub(1).is_multiple_of(width.max(1));
            if let Some(bucket) = joined.last_mut().filter(|_| !begins) {
                bucket.absorb(&turn);
            } else {
                joined.push(turn);
            }
        }
        joined
    }
}

/// Returns the number of turns in each bucket of a path of `turns` turns: the least power of two that gives at most
/// `buckets` of them. So the buckets of a growing path stay the same until their number is reached, and then join in
/// pairs; a full bucket never changes by further turns.
pub fn bucket_width(turns: u64, buckets: usize) -> u64 {
    let most = buckets.clamp(1, PATH_BUCKETS_MAX) as u64;
    turns.div_ceil(most).max(1).next_power_of_two()
}

/// An entity of a loom as one line of a drawing: its own turns, without those before it branched off.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ThreadSummary {
    pub entity_id: EntityId,
    pub run_id: RunId,
    pub origin: Origin,
    /// The entity and the sequence number of the turn at which it branched off or whose call spawned it.
    pub parent: Option<EntityId>,
    pub parent_sequence: Option<u64>,
    /// Set for a fork.
    pub fork: Option<Fork>,
    /// Set for a child: the call that spawned it.
    pub call_id: Option<CallId>,
    /// The sequence numbers of its own first and last turn; none before its first turn.
    pub first: Option<u64>,
    pub last: Option<u64>,
    pub leaf: Option<TurnId>,
    /// The state of its newest cast; of an entity without one, the state of the run that created it.
    pub state: RunState,
    pub reason: Option<TruncationReason>,
    /// The beginning of its newest intent, also if an earlier entity recorded it.
    pub intent: Option<String>,
    pub crystal: Option<String>,
    /// The known cost of its own closed turns, and of these with the turns of all children below it. A fork is not
    /// below.
    pub own_cost: Option<Money>,
    pub cost: Option<Money>,
    pub turns: u64,
    pub at: Timestamp,
}

/// A call of a run that waits for the decision of a person.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WaitingCall {
    pub run_id: RunId,
    pub owner: Actor,
    pub approval_id: ApprovalId,
    pub asked_at: Timestamp,
    /// The deadline of the decision. A call that is past it may still be listed until its run goes on.
    pub expires_at: Timestamp,
}

crate::views::reads! {
    /// The reads of a person who looks. The promises of [`Loom`](crate::Loom) hold here too.
    ///
    /// A path is here the thread of an entity: it leads from a turn back to sequence 1 and ends there, also below a call
    /// that spawned the entity. So every sequence number up to that of the turn is on it once.
    pub trait Overview;

    /// Lists the runs that are not below another run, the newest first by the time at which they began; of two that
    /// began at the same time, the one that was written later. [`ListPage::next`] leads to older runs.
    fn summaries(filter: SummaryFilter, page: PageRequest) -> ListPage<RunSummary>;
    /// Returns the summary of any run, also of one that is below another.
    fn summary(run: RunId) -> RunSummary;
    /// Counts the runs that [`summaries`](Self::summaries) lists of an owner, or of all; `since` bounds what went wrong
    /// and was spent.
    fn run_counts(owner: Option<Actor>, since: Timestamp) -> RunCounts;
    /// Returns a part of the path to a turn. [`WindowPlace::range`] says which turns are in it; `most` is the largest
    /// number of turns. A group of a sealed turn and its continuations may be cut. Turns outside of the window are not
    /// read.
    fn window(leaf: TurnId, place: WindowPlace, most: usize) -> TurnWindow;
    /// Returns the path to a turn in buckets of [`bucket_width`] turns: at most `buckets` of them, at most
    /// [`PATH_BUCKETS_MAX`].
    fn path_buckets(leaf: TurnId, buckets: usize) -> Vec<PathBucket>;
    /// Lists the entities of a loom in the order in which they were created.
    fn threads(loom: LoomId, page: PageRequest) -> ListPage<ThreadSummary>;
    /// Lists the entities of a run: its own first, then the others that it created, in the order of creation; at most
    /// [`RUN_THREADS_MAX`](crate::limits::RUN_THREADS_MAX).
    fn run_threads(run: RunId) -> Vec<ThreadSummary>;
    /// Lists the undecided approvals of live runs, the oldest first.
    fn waiting_calls(page: PageRequest) -> ListPage<WaitingCall>;
}
