//! The queries about the tree: they select the rows of a view, and the projection computes the view from them.

use cantrip_canon::{CastId, EntityId, Id, Kind, LoomId, RunId, TurnId};
use cantrip_loom::limits::PAGE_ITEMS_MAX;
use cantrip_loom::{
    AnyId, CastView, EntityView, Error, Extent, FoldView, IdPrefix, Lease, ListPage, Loom, PageRequest, RewardView,
    RootView, RunState, RunView, Thread, Turn,
};

use crate::Store;
use crate::connection::DbConnection;
use crate::failure::StoreFault;
use crate::partial_tree::PartialTree;
use crate::rows::{self, RUN_COLUMNS, RUN_TABLES, RunRow};
use crate::store::view;
use crate::value::{Value, values};

/// A condition on `entities n`: the record that made the entity was not removed by a retention. Lists leave out
/// removed entities.
pub(crate) const ENTITY_IS_KEPT: &str =
    "NOT EXISTS (SELECT 1 FROM run_anchors a WHERE a.run_key = n.run_key AND a.seq >= n.step_seq)";
/// The same condition on `turns t`, by the beginning of the cast.
const TURN_IS_KEPT: &str = "NOT EXISTS (SELECT 1 FROM casts c JOIN run_anchors a ON a.run_key = c.run_key \
     WHERE c.cast_key = t.cast_key AND a.seq >= c.step_seq)";

/// Returns the key after which a page begins, and the number of its rows. A query reads one more row to detect the
/// last page.
pub(crate) fn bounds(page: PageRequest) -> (i64, usize) {
    let after = page.after.map_or(0, |after| i64::try_from(after).unwrap_or(i64::MAX));
    (after, page.most.min(PAGE_ITEMS_MAX))
}

/// Makes a page from rows with their keys. The query read one more row than the page holds.
pub(crate) fn to_page<T>(mut rows: Vec<(i64, T)>, most: usize) -> ListPage<T> {
    let more = rows.len() > most;
    rows.truncate(most);
    let next = rows.last().filter(|_| more).map(|(key, _)| u64::try_from(*key).unwrap_or(0));
    // A page with no items has no next page.
    ListPage { next, items: rows.into_iter().map(|(_, item)| item).collect() }
}

pub(crate) async fn loom_key(link: &mut DbConnection, loom: LoomId) -> Result<i64, StoreFault> {
    let found = link.query_one("SELECT loom_key FROM looms WHERE loom_id = ?1", values![loom]).await?;
    let key = found.map(|mut row| row.int()).transpose()?;
    Ok(key.ok_or_else(|| Error::not_found("loom", loom))?)
}

/// Returns a page of ids. The last two parameters of the query are the start of the page and its length.
async fn ids<K: Kind>(
    link: &mut DbConnection,
    sql: &str,
    first: &[Value],
    page: PageRequest,
) -> Result<ListPage<Id<K>>, StoreFault> {
    let (after, most) = bounds(page);
    let marks: Vec<Value> = first.iter().cloned().chain([after.into(), (most as u64 + 1).into()]).collect();
    let rows = link.query(sql, &marks).await?;
    let read: Result<Vec<(i64, Id<K>)>, Error> = rows.into_iter().map(|mut row| Ok((row.int()?, row.id()?))).collect();
    Ok(to_page(read?, most))
}

/// The end from which runs are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListOrder {
    First,
    Last,
}

/// Returns a page of runs. `narrowed` is the condition that the database can check, with parameters from `?3` on;
/// `kept` is the condition that only the view can check.
pub(crate) async fn runs(
    link: &mut DbConnection,
    from: ListOrder,
    page: PageRequest,
    narrowed: &str,
    marks: Vec<Value>,
    alive: impl Fn(&Lease) -> bool,
    kept: impl Fn(&RunView) -> bool,
) -> Result<ListPage<RunView>, StoreFault> {
    let (mut after, most) = bounds(page);
    let (beyond, order) = match from {
        ListOrder::First => (">", ""),
        ListOrder::Last => ("<", "DESC"),
    };
    if from == ListOrder::Last && page.after.is_none() {
        after = i64::MAX;
    }
    let sql = format!(
        "SELECT {RUN_COLUMNS} FROM {RUN_TABLES} WHERE r.run_key {beyond} ?1 AND {narrowed} \
         ORDER BY r.run_key {order} LIMIT ?2"
    );
    let mut found = Vec::new();
    // Runs that the view rejects leave gaps on the page, which the next rows fill.
    loop {
        let asked = most + 1 - found.len();
        let values: Vec<Value> = values![after, asked as u64].iter().chain(&marks).cloned().collect();
        let rows = link.query(&sql, &values).await?;
        let last = rows.len() < asked;
        for mut row in rows {
            let row = RunRow::read(&mut row)?;
            after = row.key;
            let view = row.view(&alive)?;
            if kept(&view) {
                found.push((row.key, view));
            }
        }
        if last || found.len() > most {
            return Ok(to_page(found, most));
        }
    }
}

/// Returns the turns of a path, root first, and their segments.
async fn path(
    link: &mut DbConnection,
    gathered: &mut PartialTree,
    turn: TurnId,
    most: usize,
) -> Result<(Vec<TurnId>, Vec<rows::PathSegment>), StoreFault> {
    let stretches = rows::path(link, turn, most).await?.ok_or_else(|| Error::not_found("turn", turn))?;
    let turns: Vec<TurnId> = stretches.iter().flat_map(|stretch| &stretch.turns).rev().copied().collect();
    gathered.turns(link, &turns).await?;
    Ok((turns, stretches))
}

async fn render_turns(
    link: &mut DbConnection,
    gathered: &mut PartialTree,
    ids: &[TurnId],
) -> Result<Vec<Turn>, StoreFault> {
    gathered.render(link, |tree, bodies| ids.iter().map(|id| tree.turn(*id, bodies)).collect()).await
}

impl Loom for Store {
    async fn looms(&self) -> Result<Vec<LoomId>, Error> {
        view!(self, |link| {
            let rows = link.query("SELECT loom_id FROM looms ORDER BY loom_key", &[]).await?;
            Ok(rows.into_iter().map(|mut row| row.id()).collect::<Result<Vec<LoomId>, Error>>()?)
        })
    }

    async fn roots(&self, loom: LoomId) -> Result<Vec<RootView>, Error> {
        view!(self, |link| {
            loom_key(link, loom).await?;
            let mut gathered = PartialTree::default();
            gathered.roots(link, loom, None).await?;
            if gathered.tree.looms().is_empty() {
                return Ok(Vec::new());
            }
            gathered.render(link, |tree, bodies| tree.roots(loom, bodies)).await
        })
    }

    async fn extent(&self, loom: LoomId) -> Result<Extent, Error> {
        view!(self, |link| {
            let key = loom_key(link, loom).await?;
            let sql = format!(
                "SELECT count(*), max(n.at) FROM entities n WHERE n.loom_key = ?1 AND {ENTITY_IS_KEPT} \
                 UNION ALL SELECT count(*), max(t.at) FROM turns t WHERE t.loom_key = ?1 AND {TURN_IS_KEPT}"
            );
            let mut counted = Vec::new();
            for mut row in link.query(&sql, values![key]).await? {
                counted.push((row.count()?, row.time_or_null()?));
            }
            let [(entities, made), (turns, closed)] = counted[..] else {
                return Err(Error::not_found("loom", loom).into());
            };
            Ok(Extent { entities, turns, last_activity: made.max(closed) })
        })
    }

    async fn entities(&self, loom: LoomId, page: PageRequest) -> Result<ListPage<EntityView>, Error> {
        view!(self, |link| {
            let key = loom_key(link, loom).await?;
            let sql = format!(
                "SELECT n.entity_key, n.entity_id FROM entities n WHERE n.loom_key = ?1 AND n.entity_key > ?2 \
                 AND {ENTITY_IS_KEPT} ORDER BY n.entity_key LIMIT ?3"
            );
            let ListPage { items, next } = ids(link, &sql, values![key], page).await?;
            let mut gathered = PartialTree::default();
            gathered.entities(link, &items).await?;
            let views: Result<Vec<EntityView>, Error> =
                items.into_iter().map(|entity| gathered.tree.entity(entity)).collect();
            Ok(ListPage { items: views?, next })
        })
    }

    async fn entity(&self, entity: EntityId) -> Result<EntityView, Error> {
        view!(self, |link| {
            let mut gathered = PartialTree::default();
            gathered.entities(link, &[entity]).await?;
            Ok(gathered.tree.entity(entity)?)
        })
    }

    async fn casts(&self, entity: EntityId) -> Result<Vec<CastView>, Error> {
        view!(self, |link| {
            let mut gathered = PartialTree::default();
            gathered.entities(link, &[entity]).await?;
            let casts = gathered.tree.entity(entity)?.casts;
            gathered.casts(link, &casts).await?;
            gathered.render(link, |tree, bodies| tree.casts(entity, bodies)).await
        })
    }

    async fn cast(&self, cast: CastId) -> Result<CastView, Error> {
        view!(self, |link| {
            let mut gathered = PartialTree::default();
            gathered.casts(link, &[cast]).await?;
            gathered.entities_of_casts(link, &[cast]).await?;
            gathered.render(link, |tree, bodies| tree.cast(cast, bodies)).await
        })
    }

    async fn turns(&self, loom: LoomId, page: PageRequest) -> Result<ListPage<Turn>, Error> {
        view!(self, |link| {
            let key = loom_key(link, loom).await?;
            let sql = format!(
                "SELECT t.turn_key, t.turn_id FROM turns t WHERE t.loom_key = ?1 AND t.turn_key > ?2 \
                 AND {TURN_IS_KEPT} ORDER BY t.turn_key LIMIT ?3"
            );
            let ListPage { items, next } = ids(link, &sql, values![key], page).await?;
            let mut gathered = PartialTree::default();
            gathered.turns(link, &items).await?;
            Ok(ListPage { items: render_turns(link, &mut gathered, &items).await?, next })
        })
    }

    async fn turn(&self, turn: TurnId) -> Result<Turn, Error> {
        view!(self, |link| {
            let mut gathered = PartialTree::default();
            gathered.turns(link, &[turn]).await?;
            gathered.render(link, |tree, bodies| tree.turn(turn, bodies)).await
        })
    }

    async fn path(&self, turn: TurnId) -> Result<Vec<Turn>, Error> {
        view!(self, |link| {
            let mut gathered = PartialTree::default();
            let (turns, _) = path(link, &mut gathered, turn, usize::MAX).await?;
            render_turns(link, &mut gathered, &turns).await
        })
    }

    async fn tail(&self, turn: TurnId, most: usize) -> Result<Vec<Turn>, Error> {
        view!(self, |link| {
            let mut gathered = PartialTree::default();
            let (turns, _) = path(link, &mut gathered, turn, most.min(PAGE_ITEMS_MAX)).await?;
            render_turns(link, &mut gathered, &turns).await
        })
    }

    async fn thread(&self, leaf: TurnId) -> Result<Thread, Error> {
        view!(self, |link| {
            let mut gathered = PartialTree::default();
            let (_, stretches) = path(link, &mut gathered, leaf, usize::MAX).await?;
            for fold in gathered.folds(link, &stretches).await? {
                gathered.tree.insert_fold(fold);
            }
            gathered.render(link, |tree, bodies| tree.thread(leaf, bodies)).await
        })
    }

    async fn thread_end(&self, leaf: TurnId, most: usize) -> Result<Thread, Error> {
        view!(self, |link| {
            let mut gathered = PartialTree::default();
            let most = most.clamp(1, PAGE_ITEMS_MAX);
            let (_, stretches) = path(link, &mut gathered, leaf, most).await?;
            for fold in gathered.folds(link, &stretches).await? {
                gathered.tree.insert_fold(fold);
            }
            gathered.render(link, move |tree, bodies| tree.thread_end(leaf, most, bodies)).await
        })
    }

    async fn leaves(&self, loom: LoomId, page: PageRequest) -> Result<ListPage<TurnId>, Error> {
        view!(self, |link| {
            let key = loom_key(link, loom).await?;
            // The last turn of each entity, unless a fork or a child of this turn has a turn itself.
            let sql = format!(
                "SELECT t.turn_key, t.turn_id FROM turns t WHERE t.loom_key = ?1 AND t.turn_key > ?2 \
                 AND NOT EXISTS (SELECT 1 FROM turns x \
                                 WHERE x.entity_key = t.entity_key AND x.sequence = t.sequence + 1) \
                 AND NOT EXISTS (SELECT 1 FROM entities n JOIN turns y ON y.entity_key = n.entity_key \
                                 WHERE n.origin_id = t.turn_id) \
                 AND {TURN_IS_KEPT} ORDER BY t.turn_key LIMIT ?3"
            );
            ids(link, &sql, values![key], page).await
        })
    }

    async fn children(&self, turn: TurnId) -> Result<Vec<TurnId>, Error> {
        view!(self, |link| {
            let sql = "SELECT entity_key, sequence FROM turns WHERE turn_id = ?1";
            let found = link.query_one(sql, values![turn]).await?;
            let mut row = found.ok_or_else(|| Error::not_found("turn", turn))?;
            let (entity, next) = (row.int()?, row.int()? + 1);
            // The next turn of the same entity, and the first turn of each entity that began here.
            let sql = "SELECT t.turn_key, t.turn_id FROM turns t WHERE t.entity_key = ?1 AND t.sequence = ?2 \
               UNION ALL SELECT t.turn_key, t.turn_id FROM entities n JOIN turns t ON t.entity_key = n.entity_key \
                 WHERE n.origin_id = ?3 \
                 AND t.sequence = (SELECT min(x.sequence) FROM turns x WHERE x.entity_key = n.entity_key) \
               ORDER BY 1";
            let rows = link.query(sql, values![entity, next, turn]).await?;
            let read = rows.into_iter().map(|mut row| row.int().and_then(|_| row.id()));
            Ok(read.collect::<Result<Vec<TurnId>, Error>>()?)
        })
    }

    async fn rewards(&self, turn: TurnId) -> Result<Vec<RewardView>, Error> {
        view!(self, |link| {
            let known = link.query("SELECT turn_key FROM turns WHERE turn_id = ?1", values![turn]).await?;
            if known.is_empty() {
                return Err(Error::not_found("turn", turn).into());
            }
            let mut found = PartialTree::default().rewards(link, [turn].into_iter()).await?;
            Ok(found.remove(&turn).unwrap_or_default())
        })
    }

    async fn folds(&self, turn: TurnId) -> Result<Vec<FoldView>, Error> {
        view!(self, |link| {
            let stretches = rows::path(link, turn, usize::MAX).await?.ok_or_else(|| Error::not_found("turn", turn))?;
            let mut gathered = PartialTree::default();
            let folds = gathered.folds(link, &stretches).await?;
            gathered.render(link, |_, bodies| folds.iter().map(|fold| fold.view(bodies)).collect()).await
        })
    }

    async fn last_fold(&self, turn: TurnId) -> Result<Option<FoldView>, Error> {
        view!(self, |link| {
            let mut gathered = PartialTree::default();
            let Some(fold) = gathered.last_fold(link, turn).await? else { return Ok(None) };
            gathered.render(link, |_, bodies| fold.view(bodies)).await.map(Some)
        })
    }

    async fn runs(&self, page: PageRequest) -> Result<ListPage<RunView>, Error> {
        self.runs_by_state(None, ListOrder::First, page).await
    }

    async fn runs_in(&self, state: RunState, page: PageRequest) -> Result<ListPage<RunView>, Error> {
        self.runs_by_state(Some(state), ListOrder::First, page).await
    }

    async fn latest_runs(&self, state: Option<RunState>, page: PageRequest) -> Result<ListPage<RunView>, Error> {
        self.runs_by_state(state, ListOrder::Last, page).await
    }

    async fn last_run(&self) -> Result<Option<RunView>, Error> {
        view!(self, |link| {
            // Ids sort by time and have an index.
            let sql = format!(
                "SELECT {RUN_COLUMNS} FROM {RUN_TABLES} WHERE r.root_run_id IS NULL OR r.root_run_id = r.run_id \
                 ORDER BY r.run_id DESC LIMIT 1"
            );
            let found = link.query_one(&sql, &[]).await?;
            let row = found.map(|mut row| RunRow::read(&mut row)).transpose()?;
            Ok(row.map(|row| row.view(|_| true)).transpose()?)
        })
    }

    async fn run(&self, run: RunId) -> Result<RunView, Error> {
        view!(self, |link| {
            let row = rows::run(link, run).await?.ok_or_else(|| Error::not_found("run", run))?;
            Ok(row.view(|_| true)?)
        })
    }

    async fn resolve(&self, prefix: &str) -> Result<AnyId, Error> {
        let prefix = prefix.to_owned();
        view!(self, |link| {
            let beginning = IdPrefix::parse(&prefix);
            let mut found = Vec::new();
            collect_matches(link, &beginning, "loom_id", "looms", AnyId::Loom, &mut found).await?;
            collect_matches(link, &beginning, "run_id", "runs", AnyId::Run, &mut found).await?;
            collect_matches(link, &beginning, "entity_id", "entities", AnyId::Entity, &mut found).await?;
            collect_matches(link, &beginning, "cast_id", "casts", AnyId::Cast, &mut found).await?;
            collect_matches(link, &beginning, "fold_id", "folds", AnyId::Fold, &mut found).await?;
            collect_matches(link, &beginning, "turn_id", "turns", AnyId::Turn, &mut found).await?;
            Ok(beginning.require_unique(&found)?)
        })
    }
}

impl Store {
    async fn runs_by_state(
        &self,
        state: Option<RunState>,
        from: ListOrder,
        page: PageRequest,
    ) -> Result<ListPage<RunView>, Error> {
        // The view decides whether a live run is queued, running or waiting.
        let narrowed = match state {
            None => "true",
            Some(RunState::Queued | RunState::Running | RunState::Waiting) => "r.phase = 'live'",
            Some(RunState::Terminated) => "r.phase = 'terminated'",
            Some(RunState::Truncated) => "r.phase = 'truncated'",
            Some(RunState::Failed) => "r.phase IN ('failed', 'unsuccessful')",
        };
        let kept = move |view: &RunView| state.is_none_or(|state| view.state == state);
        view!(self, |link| runs(link, from, page, narrowed, Vec::new(), |_| true, kept).await)
    }
}

/// Adds the first two ids of a table with this prefix.
async fn collect_matches<K: Kind>(
    link: &mut DbConnection,
    beginning: &IdPrefix<'_>,
    column: &'static str,
    table: &'static str,
    named: fn(Id<K>) -> AnyId,
    found: &mut Vec<AnyId>,
) -> Result<(), StoreFault> {
    let Some((first, last)) = beginning.range::<K>() else { return Ok(()) };
    let sql = format!("SELECT {column} FROM {table} WHERE {column} >= ?1 AND {column} <= ?2 ORDER BY {column} LIMIT 2");
    for mut row in link.query(&sql, values![first, last]).await? {
        found.push(named(row.id()?));
    }
    Ok(())
}
