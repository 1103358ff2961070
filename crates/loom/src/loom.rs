//! The loom: the read side of the tree of turns.

use cantrip_canon::{CastId, EntityId, FoldId, LoomId, RunId, Timestamp, TurnId};
use serde::Serialize;

use crate::limits::{COUNTED_ITEMS, PAGE_ITEMS_MAX};
use crate::{
    Actor, Cantrip, CantripId, Cast, Content, Entity, Epoch, Error, Fold, Outcome, Overview, Reward, RunKind, Seq,
    Thread, Turn,
};

/// Selects a part of a list: at most `most` items after the position `after`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRequest {
    /// The value of [`ListPage::next`] of the page before; none for the first page.
    pub after: Option<u64>,
    /// The largest number of items to return; at most [`PAGE_ITEMS_MAX`].
    pub most: usize,
}

impl PageRequest {
    pub const FIRST: Self = Self { after: None, most: PAGE_ITEMS_MAX };

    /// Returns the request for the page after one with this [`ListPage::next`]; none after the last page.
    pub fn following(self, next: Option<u64>) -> Option<Self> {
        next.map(|after| Self { after: Some(after), ..self })
    }
}

/// A page of a list. Items are in the order in which they were written.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ListPage<T> {
    pub items: Vec<T>,
    /// The position at which the next page begins; none if this is the last page.
    pub next: Option<u64>,
}

/// A cantrip in a loom.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RootView {
    pub cantrip_id: CantripId,
    pub loom_id: LoomId,
    pub at: Timestamp,
    pub cantrip: Cantrip,
}

/// An entity with its casts and its newest turn.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EntityView {
    pub entity: Entity,
    pub loom_id: LoomId,
    /// The run that created the entity.
    pub run_id: RunId,
    pub at: Timestamp,
    /// The casts of the entity, oldest first.
    pub casts: Vec<CastId>,
    /// The last closed turn of the entity. Its id names the thread of the entity.
    pub leaf: Option<TurnId>,
}

/// A cast and its outcome.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CastView {
    pub cast: Cast,
    pub run_id: RunId,
    pub at: Timestamp,
    /// The intent of the cast, also if an earlier cast recorded it.
    pub intent: Content,
    /// True if this cast recorded the intent.
    pub own_intent: bool,
    /// Intents that were given before this one and cancelled before an answer, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cancelled: Vec<Content>,
    /// None while the cast is running.
    pub outcome: Option<Outcome>,
}

/// A reward, with the actor who gave it and the time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RewardView {
    pub turn_id: TurnId,
    pub reward: f64,
    pub by: Actor,
    pub at: Timestamp,
    pub note: Option<String>,
}

impl RewardView {
    pub fn new(Reward { turn_id, reward, by, note }: Reward, at: Timestamp) -> Self {
        Self { turn_id, reward, by, at, note }
    }
}

/// A fold with its text.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FoldView {
    pub fold: Fold,
    pub text: String,
    pub at: Timestamp,
}

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// No worker has started the run yet.
    Queued,
    Running,
    /// The run waits for a person or a provider. Its lease is free.
    Waiting,
    Terminated,
    Truncated,
    Failed,
}

impl RunState {
    /// Returns true if the run is not over. A live run holds its entity, so that no other run can use it.
    pub const fn is_live(self) -> bool {
        match self {
            Self::Queued | Self::Running | Self::Waiting => true,
            Self::Terminated | Self::Truncated | Self::Failed => false,
        }
    }
}

/// A run with its owner, its state and its newest record.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunView {
    pub run_id: RunId,
    pub kind: RunKind,
    pub loom_id: LoomId,
    pub owner: Actor,
    pub entity_id: Option<EntityId>,
    pub root_run_id: Option<RunId>,
    pub state: RunState,
    pub newest: Seq,
    pub epoch: Epoch,
    pub created_at: Timestamp,
    /// The time at which the run ended.
    pub ended_at: Option<Timestamp>,
    /// True if the records were written elsewhere. Data that only the process which wrote it may trust, such as a
    /// snapshot, is then not loaded.
    pub copied: bool,
}

/// The number of entities and turns in a loom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Extent {
    pub entities: u64,
    /// Closed turns only.
    pub turns: u64,
    /// The time at which the newest entity was created or the newest turn was closed.
    pub last_activity: Option<Timestamp>,
}

/// The thing that an id, or a prefix of an id, names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AnyId {
    Loom(LoomId),
    Run(RunId),
    Entity(EntityId),
    Cast(CastId),
    Turn(TurnId),
    Fold(FoldId),
}

/// The tree, for reading. It holds only closed turns; an open turn is in the journal of its run.
///
/// Every view is computed from records by [`Projection`](crate::Projection), so all looms return the same answers. A
/// view holds everything that was committed before the call, and nothing that was not committed. Lists are in the
/// order of writing. An unknown id is [`Error::NotFound`]; a damaged store returns [`Error::Damaged`] and never leaves
/// something out. Every future may be dropped at any time. Lists and parts for a person who looks are in [`Overview`].
pub trait Loom: Overview {
    /// Lists the looms of this store.
    fn looms(&self) -> impl Future<Output = Result<Vec<LoomId>, Error>> + Send;

    /// Lists the cantrips of a loom.
    fn roots(&self, loom: LoomId) -> impl Future<Output = Result<Vec<RootView>, Error>> + Send;

    /// Counts the entities and turns of a loom.
    ///
    /// A store that has the numbers in an index returns them from there. This default reads the lists page by page and
    /// holds at most one page at a time.
    fn extent(&self, loom: LoomId) -> impl Future<Output = Result<Extent, Error>> + Send {
        count_extent(self, loom)
    }

    fn entities(
        &self,
        loom: LoomId,
        page: PageRequest,
    ) -> impl Future<Output = Result<ListPage<EntityView>, Error>> + Send;

    fn entity(&self, entity: EntityId) -> impl Future<Output = Result<EntityView, Error>> + Send;

    /// Lists the casts of an entity, oldest first.
    fn casts(&self, entity: EntityId) -> impl Future<Output = Result<Vec<CastView>, Error>> + Send;

    fn cast(&self, cast: CastId) -> impl Future<Output = Result<CastView, Error>> + Send;

    /// Lists the turns of a loom.
    fn turns(&self, loom: LoomId, page: PageRequest) -> impl Future<Output = Result<ListPage<Turn>, Error>> + Send;

    fn turn(&self, turn: TurnId) -> impl Future<Output = Result<Turn, Error>> + Send;

    /// Returns the turn with all its ancestors, root first. The cost is linear in the length of the path.
    fn path(&self, turn: TurnId) -> impl Future<Output = Result<Vec<Turn>, Error>> + Send;

    /// Returns the last `most` turns of the path, at most [`PAGE_ITEMS_MAX`], oldest first. Earlier turns are not
    /// read.
    fn tail(&self, turn: TurnId, most: usize) -> impl Future<Output = Result<Vec<Turn>, Error>> + Send;

    /// Returns the end of a thread: the last `most` turns of the path, at most [`PAGE_ITEMS_MAX`], with their casts
    /// and the folds that were made after one of these turns. Earlier turns are not read.
    fn thread_end(&self, leaf: TurnId, most: usize) -> impl Future<Output = Result<Thread, Error>> + Send;

    /// Returns the path with its casts, folds and forks.
    fn thread(&self, leaf: TurnId) -> impl Future<Output = Result<Thread, Error>> + Send;

    /// Lists the turns of a loom that have no child turn.
    fn leaves(&self, loom: LoomId, page: PageRequest) -> impl Future<Output = Result<ListPage<TurnId>, Error>> + Send;

    /// Lists the turns whose parent is this turn.
    fn children(&self, turn: TurnId) -> impl Future<Output = Result<Vec<TurnId>, Error>> + Send;

    /// Lists every reward of a turn, oldest first. The last one is in effect.
    fn rewards(&self, turn: TurnId) -> impl Future<Output = Result<Vec<RewardView>, Error>> + Send;

    /// Lists the folds that are valid for the path to this turn, oldest first. The last one is in effect.
    fn folds(&self, turn: TurnId) -> impl Future<Output = Result<Vec<FoldView>, Error>> + Send;

    /// Returns the last fold that is valid for the path to this turn.
    ///
    /// A store that can do so searches from the turn upwards. This default reads all folds.
    fn last_fold(&self, turn: TurnId) -> impl Future<Output = Result<Option<FoldView>, Error>> + Send {
        async move { Ok(self.folds(turn).await?.pop()) }
    }

    /// Lists the runs of the store.
    fn runs(&self, page: PageRequest) -> impl Future<Output = Result<ListPage<RunView>, Error>> + Send;

    /// Lists the runs in a state. A run whose worker has died is still [`Running`](RunState::Running): see
    /// [`orphans`](crate::Journal::orphans).
    fn runs_in(
        &self,
        state: RunState,
        page: PageRequest,
    ) -> impl Future<Output = Result<ListPage<RunView>, Error>> + Send;

    /// Lists the runs, the most recently written one first; only those in `state` if it is given. [`ListPage::next`]
    /// leads to older runs. Runs that are not on the page are not read.
    fn latest_runs(
        &self,
        state: Option<RunState>,
        page: PageRequest,
    ) -> impl Future<Output = Result<ListPage<RunView>, Error>> + Send;

    /// Returns the newest run that is not below another run. An imported run counts from the time at which it began,
    /// because run ids sort by time.
    fn last_run(&self) -> impl Future<Output = Result<Option<RunView>, Error>> + Send;

    fn run(&self, run: RunId) -> impl Future<Output = Result<RunView, Error>> + Send;

    /// Finds the thing that an id, or an unambiguous prefix of an id, names. The prefix may include the kind
    /// (`turn_06cy`) or not (`06cy`).
    fn resolve(&self, prefix: &str) -> impl Future<Output = Result<AnyId, Error>> + Send;
}

/// Counts the entities and turns of a loom by reading its lists. A store with an index is faster.
pub async fn count_extent(store: &(impl Loom + ?Sized), loom: LoomId) -> Result<Extent, Error> {
    let mut extent = Extent::default();
    let first = Some(PageRequest { after: None, most: COUNTED_ITEMS });
    let mut next = first;
    while let Some(page) = next {
        let listed = store.entities(loom, page).await?;
        extent.entities += listed.items.len() as u64;
        extent.last_activity = listed.items.iter().map(|entity| entity.at).chain(extent.last_activity).max();
        next = page.following(listed.next);
    }
    next = first;
    while let Some(page) = next {
        let listed = store.turns(loom, page).await?;
        extent.turns += listed.items.len() as u64;
        let closed = listed.items.iter().map(|turn| turn.metadata.timestamp);
        extent.last_activity = closed.chain(extent.last_activity).max();
        next = page.following(listed.next);
    }
    Ok(extent)
}
