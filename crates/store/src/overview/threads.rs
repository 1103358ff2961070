//! The entities of a loom or of a run as lines of a drawing. No record is read for them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cantrip_canon::{EntityId, LoomId, RunId, TurnId};
use cantrip_loom::limits::RUN_THREADS_MAX;
use cantrip_loom::{
    CostTotal, Damage, Error, Fork, ListPage, Origin, PageRequest, RunState, Spawn, ThreadSummary, TruncationReason,
};

use super::entity_bytes;
use super::statements::{CostSum, variant_named};
use crate::connection::DbConnection;
use crate::dialect::LIST;
use crate::failure::StoreFault;
use crate::rows;
use crate::value::{Row, Value, values};
use crate::views::{ENTITY_IS_KEPT, bounds, loom_key, to_page};

/// Lists the entities of a loom in the order of creation.
pub(super) async fn of_loom(
    link: &mut DbConnection,
    loom: LoomId,
    page: PageRequest,
) -> Result<ListPage<ThreadSummary>, StoreFault> {
    let (after, most) = bounds(page);
    let key = loom_key(link, loom).await?;
    let sql = format!(
        "SELECT n.entity_key FROM entities n WHERE n.loom_key = ?1 AND n.entity_key > ?2 AND {ENTITY_IS_KEPT} \
         ORDER BY n.entity_key LIMIT ?3"
    );
    let mut found: Vec<(i64, i64)> = Vec::new();
    for mut row in link.query(&sql, values![key, after, most as u64 + 1]).await? {
        let key = row.int()?;
        found.push((key, key));
    }
    let ListPage { items, next } = to_page(found, most);
    Ok(ListPage { items: summaries(link, &items).await?, next })
}

/// Lists the entities of a run: its own first, then those that it made.
pub(super) async fn of_run(link: &mut DbConnection, run: RunId) -> Result<Vec<ThreadSummary>, StoreFault> {
    let row = rows::run(link, run).await?.ok_or_else(|| Error::not_found("run", run))?;
    let root = entity_bytes(row.part.opening.entity_id);
    let sql = format!("SELECT n.entity_key FROM entities n WHERE n.entity_id = ?1 AND {ENTITY_IS_KEPT}");
    let mut keys = Vec::new();
    for mut row in link.query(&sql, values![root.clone()]).await? {
        keys.push(row.int()?);
    }
    let sql = format!(
        "SELECT n.entity_key FROM entities n WHERE n.run_key = ?1 AND n.entity_id <> ?2 AND {ENTITY_IS_KEPT} \
         ORDER BY n.entity_key LIMIT ?3"
    );
    let left = RUN_THREADS_MAX - keys.len();
    for mut row in link.query(&sql, values![row.key, root, left as u64]).await? {
        keys.push(row.int()?);
    }
    summaries(link, &keys).await
}

/// The row of an entity, before its costs and the state of its run are known.
#[derive(Debug)]
struct EntityRow {
    key: i64,
    summary: ThreadSummary,
    /// The run of its newest cast, if that has not ended; otherwise the run that made it.
    run: RunId,
    /// None if only the run can tell.
    state: Option<RunState>,
}

/// The columns of [`EntityRow::read`]. The first turn, the last turn and the newest cast are found by their indexes.
const COLUMNS: &str = "n.entity_key, n.entity_id, r.run_id, n.origin, n.origin_id, n.call_id, n.call_index, \
     n.environment, n.at, o.crystal, p.entity_id, n.parent_sequence, \
     (SELECT min(x.sequence) FROM turns x WHERE x.entity_key = n.entity_key), t.sequence, t.turn_id, t.cost_sum, \
     t.currency, c.cast_key, c.intent, c.outcome, c.reason, c.given_up, q.run_id";

const TABLES: &str = "entities n JOIN runs r ON r.run_key = n.run_key \
     LEFT JOIN roots o ON o.loom_key = n.loom_key AND o.cantrip_id = n.cantrip_id \
     LEFT JOIN entities p ON p.entity_key = n.parent_key \
     LEFT JOIN turns t ON t.entity_key = n.entity_key \
       AND t.sequence = (SELECT max(x.sequence) FROM turns x WHERE x.entity_key = n.entity_key) \
     LEFT JOIN casts c ON c.cast_key = (SELECT max(y.cast_key) FROM casts y WHERE y.entity_key = n.entity_key) \
     LEFT JOIN runs q ON q.run_key = c.run_key";

fn damaged(run: RunId, what: &'static str) -> Error {
    Error::Damaged(Damage { run: Some(run), seq: None, line: None, what })
}

impl EntityRow {
    fn read(row: &mut Row) -> Result<Self, Error> {
        let (key, entity_id, run_id): (_, EntityId, RunId) = (row.int()?, row.id()?, row.id()?);
        let origin = read_origin(row, run_id)?;
        let (at, crystal, parent) = (row.time()?, row.text_or_null()?, row.id_or_null()?);
        let parent_sequence = row.count_or_null()?;
        let (first, last, leaf) = (row.count_or_null()?, row.count_or_null()?, row.id_or_null()?);
        let own_cost = CostSum::read(row)?.cost();
        let cast = row.int_or_null()?;
        let (intent, outcome, reason) = (row.text_or_null()?, row.text_or_null()?, row.text_or_null()?);
        let (given_up, cast_run) = (row.int_or_null()? == Some(1), row.id_or_null()?);
        let reason: Option<TruncationReason> = reason.as_deref().and_then(variant_named);
        let state = match outcome.as_deref() {
            Some("terminated") => Some(RunState::Terminated),
            Some("truncated") => Some(RunState::Truncated),
            Some(_) => return Err(damaged(run_id, "the outcome of a cast is unknown")),
            None if given_up => Some(RunState::Failed),
            None => None,
        };
        let (fork, call_id) = match origin {
            Origin::Root => (None, None),
            Origin::Child { spawned_by, .. } => (None, Some(spawned_by.call_id)),
            Origin::Fork(fork) => (Some(fork), None),
        };
        let turns = first.zip(last).map_or(0, |(first, last)| (last + 1).saturating_sub(first));
        let summary = ThreadSummary {
            entity_id,
            run_id,
            origin,
            parent,
            parent_sequence,
            fork,
            call_id,
            first,
            last,
            leaf,
            state: state.unwrap_or(RunState::Running),
            reason,
            intent,
            crystal,
            own_cost,
            cost: own_cost,
            turns,
            at,
        };
        Ok(Self { key, summary, run: cast_run.filter(|_| cast.is_some()).unwrap_or(run_id), state })
    }
}

/// Reads the columns of the origin of an entity.
fn read_origin(row: &mut Row, run: RunId) -> Result<Origin, Error> {
    let (kind, turn): (_, Option<TurnId>) = (row.text()?, row.id_or_null()?);
    let (call_id, index, environment) = (row.text_or_null()?, row.count_or_null()?, row.text_or_null()?);
    let found = match kind.as_str() {
        "root" => Some(Origin::Root),
        "child" => turn.zip(call_id.and_then(|call| call.parse().ok())).map(|(parent, call_id)| {
            let index = index.and_then(|index| u32::try_from(index).ok()).unwrap_or(0);
            Origin::Child { parent, spawned_by: Spawn { call_id, index } }
        }),
        "fork" => turn
            .zip(environment.as_deref().and_then(variant_named))
            .map(|(turn, environment)| Origin::Fork(Fork { turn, environment })),
        _ => None,
    };
    found.ok_or_else(|| damaged(run, "the origin of an entity cannot be read"))
}

/// Returns the summaries of these entities, in their order.
pub(super) async fn summaries(link: &mut DbConnection, keys: &[i64]) -> Result<Vec<ThreadSummary>, StoreFault> {
    let sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE n.entity_key IN ({LIST})");
    let mut found: HashMap<i64, EntityRow> = HashMap::new();
    for mut row in link.query_in_list(&sql, &[], keys.iter().map(|key| Value::from(*key))).await? {
        let row = EntityRow::read(&mut row)?;
        found.insert(row.key, row);
    }
    let open: BTreeSet<RunId> = found.values().filter(|row| row.state.is_none()).map(|row| row.run).collect();
    let states = run_states(link, &open).await?;
    let own: HashMap<i64, CostSum> =
        found.iter().map(|(key, row)| (*key, CostSum::known(row.summary.own_cost))).collect();
    let below = Below::of(link, keys, own).await?;
    let mut summaries = Vec::with_capacity(keys.len());
    for key in keys {
        let Some(EntityRow { key, mut summary, run, state }) = found.remove(key) else { continue };
        if let Some(state) = state.or_else(|| states.get(&run).copied()) {
            summary.state = state;
        }
        summary.cost = below.cost(key);
        summaries.push(summary);
    }
    Ok(summaries)
}

async fn run_states(link: &mut DbConnection, runs: &BTreeSet<RunId>) -> Result<HashMap<RunId, RunState>, StoreFault> {
    let sql = format!("SELECT {} FROM {} WHERE r.run_id IN ({LIST})", rows::RUN_COLUMNS, rows::RUN_TABLES);
    let mut states = HashMap::new();
    for mut row in link.query_in_list(&sql, &[], runs.iter().map(|run| Value::from(*run))).await? {
        let view = rows::RunRow::read(&mut row)?.view(|_| true)?;
        states.insert(view.run_id, view.state);
    }
    Ok(states)
}

/// The children below some entities, level by level.
#[derive(Debug)]
struct Below {
    children: BTreeMap<i64, Vec<i64>>,
    own: HashMap<i64, CostSum>,
}

impl Below {
    async fn of(link: &mut DbConnection, keys: &[i64], own: HashMap<i64, CostSum>) -> Result<Self, StoreFault> {
        let sql = format!(
            "SELECT n.parent_key, n.entity_key, t.cost_sum, t.currency FROM entities n \
             LEFT JOIN turns t ON t.entity_key = n.entity_key \
               AND t.sequence = (SELECT max(x.sequence) FROM turns x WHERE x.entity_key = n.entity_key) \
             WHERE n.origin = 'child' AND n.parent_key IN ({LIST})"
        );
        let mut below = Self { children: BTreeMap::new(), own };
        let mut asked: BTreeSet<i64> = keys.iter().copied().collect();
        let mut level: Vec<i64> = keys.to_vec();
        while !level.is_empty() {
            let mut next = Vec::new();
            for mut row in link.query_in_list(&sql, &[], level.drain(..).map(Value::from)).await? {
                let (parent, child) = (row.int()?, row.int()?);
                let spent = CostSum::read(&mut row)?;
                below.children.entry(parent).or_default().push(child);
                below.own.insert(child, spent);
                if asked.insert(child) {
                    next.push(child);
                }
            }
            level = next;
        }
        Ok(below)
    }

    /// Returns the known cost of an entity with all children below it.
    fn cost(&self, key: i64) -> Option<cantrip_canon::Money> {
        let mut total = CostTotal::default();
        let mut open = vec![key];
        while let Some(key) = open.pop() {
            if let Some(cost) = self.own.get(&key).and_then(|spent| spent.cost()) {
                total.add(Some(cost));
            }
            open.extend(self.children.get(&key).into_iter().flatten());
        }
        total.cost()
    }
}
