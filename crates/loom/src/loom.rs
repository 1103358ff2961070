//! The loom: what can be asked about the tree.

use cantrip_canon::{CastId, EntityId, FoldId, LoomId, RunId, Timestamp, TurnId};
use serde::Serialize;

use crate::limits::{COUNTED_ITEMS, PAGE_ITEMS_MAX};
use crate::{
    Actor, Cantrip, CantripId, Cast, Content, Entity, Epoch, Error, Fold, Outcome, RunKind, Seq, Thread, Turn,
};

/// Which part of a list: `most` items behind the place `after`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRequest {
    /// What [`ListPage::next`] gave; none for the beginning.
    pub after: Option<u64>,
    /// At most [`PAGE_ITEMS_MAX`] are given.
    pub most: usize,
}

impl PageRequest {
    pub const FIRST: Self = Self { after: None, most: PAGE_ITEMS_MAX };
}

/// A part of a list, in the order in which its items were written.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ListPage<T> {
    pub items: Vec<T>,
    /// Where the next part begins; none if this was the last.
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

/// An entity and where it stands.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EntityView {
    pub entity: Entity,
    pub loom_id: LoomId,
    /// The run that made it.
    pub run_id: RunId,
    pub at: Timestamp,
    /// Its casts, oldest first.
    pub casts: Vec<CastId>,
    /// Its last closed turn: the name of its thread.
    pub leaf: Option<TurnId>,
}

/// A cast and how it ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CastView {
    pub cast: Cast,
    pub run_id: RunId,
    pub at: Timestamp,
    /// The intent it is about, also where an earlier cast brought it.
    pub intent: Content,
    /// Whether this cast brought it.
    pub own_intent: bool,
    /// The intents that were said before it and cancelled before an answer, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cancelled: Vec<Content>,
    /// None while it is under way.
    pub outcome: Option<Outcome>,
}

/// A reward, with who gave it and when.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RewardView {
    pub turn_id: TurnId,
    pub reward: f64,
    pub by: Actor,
    pub at: Timestamp,
    pub note: Option<String>,
}

/// A fold, with its text.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FoldView {
    pub fold: Fold,
    pub text: String,
    pub at: Timestamp,
}

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Nobody has worked on it yet.
    Queued,
    Running,
    /// For a person or a provider, with its lease free.
    Waiting,
    Terminated,
    Truncated,
    Failed,
}

impl RunState {
    /// Whether it still holds its entity.
    pub const fn is_live(self) -> bool {
        match self {
            Self::Queued | Self::Running | Self::Waiting => true,
            Self::Terminated | Self::Truncated | Self::Failed => false,
        }
    }
}

/// A run.
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
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Its records were written elsewhere: what only this process may trust, such as a snapshot, is not loaded.
    pub copied: bool,
}

/// How much a loom holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Extent {
    pub entities: u64,
    /// Closed ones.
    pub turns: u64,
    /// When the last of them was made or closed.
    pub last_activity: Option<Timestamp>,
}

/// What an id or the beginning of one names.
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

/// The tree, for reading. Only closed turns are in it; an open one is in its run's journal.
///
/// Every view is computed from records by [`Projection`](crate::Projection), so all looms answer alike. A view holds
/// all that was committed before it was asked for, and nothing that was not. Lists are in the order of writing. What
/// does not exist is [`Error::NotFound`]; a damaged store answers [`Error::Damaged`] rather than leave something out.
/// Every future may be dropped at any time.
pub trait Loom: Send + Sync {
    /// The looms of this store.
    fn looms(&self) -> impl Future<Output = Result<Vec<LoomId>, Error>> + Send;

    /// The cantrips of a loom.
    fn roots(&self, loom: LoomId) -> impl Future<Output = Result<Vec<RootView>, Error>> + Send;

    /// How much a loom holds: what its lists hold, counted.
    ///
    /// A store that has the numbers at hand answers from them; here the lists are read page by page, and no more than
    /// one page is held at a time.
    fn extent(&self, loom: LoomId) -> impl Future<Output = Result<Extent, Error>> + Send {
        count_extent(self, loom)
    }

    fn entities(
        &self,
        loom: LoomId,
        page: PageRequest,
    ) -> impl Future<Output = Result<ListPage<EntityView>, Error>> + Send;

    fn entity(&self, entity: EntityId) -> impl Future<Output = Result<EntityView, Error>> + Send;

    /// The casts of an entity, oldest first.
    fn casts(&self, entity: EntityId) -> impl Future<Output = Result<Vec<CastView>, Error>> + Send;

    fn cast(&self, cast: CastId) -> impl Future<Output = Result<CastView, Error>> + Send;

    /// The turns of a loom.
    fn turns(&self, loom: LoomId, page: PageRequest) -> impl Future<Output = Result<ListPage<Turn>, Error>> + Send;

    fn turn(&self, turn: TurnId) -> impl Future<Output = Result<Turn, Error>> + Send;

    /// The turn with all its parents, root first. Linear in its length.
    fn path(&self, turn: TurnId) -> impl Future<Output = Result<Vec<Turn>, Error>> + Send;

    /// The last `most` turns of the path, at most [`PAGE_ITEMS_MAX`], oldest first. What lies before them is not read.
    fn tail(&self, turn: TurnId, most: usize) -> impl Future<Output = Result<Vec<Turn>, Error>> + Send;

    /// The end of a thread: the last `most` turns of the path, at most [`PAGE_ITEMS_MAX`], with the casts they belong to
    /// and the folds that were made behind them. What lies before them is not read.
    fn thread_end(&self, leaf: TurnId, most: usize) -> impl Future<Output = Result<Thread, Error>> + Send;

    /// The path with its casts, folds and forks.
    fn thread(&self, leaf: TurnId) -> impl Future<Output = Result<Thread, Error>> + Send;

    /// The turns of a loom that no turn has as its parent.
    fn leaves(&self, loom: LoomId, page: PageRequest) -> impl Future<Output = Result<ListPage<TurnId>, Error>> + Send;

    /// The turns that have this one as their parent.
    fn children(&self, turn: TurnId) -> impl Future<Output = Result<Vec<TurnId>, Error>> + Send;

    /// Every reward of a turn; the last one counts.
    fn rewards(&self, turn: TurnId) -> impl Future<Output = Result<Vec<RewardView>, Error>> + Send;

    /// The folds that hold for the path to this turn, oldest first; the last one is the view.
    fn folds(&self, turn: TurnId) -> impl Future<Output = Result<Vec<FoldView>, Error>> + Send;

    /// The last of those, if there is one.
    ///
    /// A store that can looks for it from the turn upwards; here all of them are read.
    fn last_fold(&self, turn: TurnId) -> impl Future<Output = Result<Option<FoldView>, Error>> + Send {
        async move { Ok(self.folds(turn).await?.pop()) }
    }

    /// The runs of the store.
    fn runs(&self, page: PageRequest) -> impl Future<Output = Result<ListPage<RunView>, Error>> + Send;

    /// The runs that stand so. A run is [`Running`](RunState::Running) also when its owner has died: see
    /// [`orphans`](crate::Journal::orphans).
    fn runs_in(
        &self,
        state: RunState,
        page: PageRequest,
    ) -> impl Future<Output = Result<ListPage<RunView>, Error>> + Send;

    /// The runs, the one that was written last first; those that stand so, if that is said. [`ListPage::next`] leads to
    /// older ones. What is not on the page is not read.
    fn latest_runs(
        &self,
        state: Option<RunState>,
        page: PageRequest,
    ) -> impl Future<Output = Result<ListPage<RunView>, Error>> + Send;

    /// The run that was begun last by someone, and not by a call of another run. What was imported stands where it was
    /// begun: ids are in the order of time.
    fn last_run(&self) -> impl Future<Output = Result<Option<RunView>, Error>> + Send;

    fn run(&self, run: RunId) -> impl Future<Output = Result<RunView, Error>> + Send;

    /// What an id, or an unambiguous beginning of one, names; with the kind (`turn_06cy`) or without (`06cy`).
    fn resolve(&self, prefix: &str) -> impl Future<Output = Result<AnyId, Error>> + Send;
}

/// Counts the entities and turns of a loom by reading its lists; a store with an index answers faster.
pub async fn count_extent(store: &(impl Loom + ?Sized), loom: LoomId) -> Result<Extent, Error> {
    let mut extent = Extent::default();
    let mut page = PageRequest { after: None, most: COUNTED_ITEMS };
    loop {
        let listed = store.entities(loom, page).await?;
        extent.entities += listed.items.len() as u64;
        extent.last_activity = listed.items.iter().map(|entity| entity.at).chain(extent.last_activity).max();
        match listed.next {
            Some(after) => page.after = Some(after),
            None => break,
        }
    }
    page.after = None;
    loop {
        let listed = store.turns(loom, page).await?;
        extent.turns += listed.items.len() as u64;
        let closed = listed.items.iter().map(|turn| turn.metadata.timestamp);
        extent.last_activity = closed.chain(extent.last_activity).max();
        match listed.next {
            Some(after) => page.after = Some(after),
            None => return Ok(extent),
        }
    }
}
