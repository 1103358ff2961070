//! Reading typed rows: runs with their leases, paths, turns of the index, steps.
//!
//! This module queries rows and checks that they fit together. [`crate::partial_tree`] builds the tree from them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cantrip_canon::{ApprovalId, CastId, EntityId, LoomId, RunId, TurnId};
use cantrip_loom::{
    Damage, Epoch, Error, Lease, LeaseState, Phase, Projection, Record, RunKind, RunOpening, RunPart, RunState,
    RunView, Seq, WorkerId,
};

use crate::connection::DbConnection;
use crate::dialect::LIST;
use crate::events::{BEFORE, COLUMNS, StoredStep, decode_places, missing_record};
use crate::failure::StoreFault;
use crate::value::{Row, Value, values};

/// The row of a run, with its lease.
#[derive(Debug, Clone)]
pub(crate) struct RunRow {
    pub key: i64,
    pub loom_key: i64,
    pub part: RunPart,
    pub lease: LeaseState,
}

/// The columns of [`RunRow::read`], over `runs r`, `looms l` and `run_leases h`.
pub(crate) const RUN_COLUMNS: &str = "r.run_key, r.run_id, r.loom_key, l.loom_id, r.kind, r.owner, r.entity_id, \
     r.root_run_id, r.phase, r.parked, r.approvals, r.copied, r.epoch, r.created_at, r.ended_at, \
     coalesce((SELECT max(e.seq) FROM run_events e WHERE e.run_key = r.run_key), \
              (SELECT max(a.seq) FROM run_anchors a WHERE a.run_key = r.run_key), 0), h.owner, h.epoch, h.expires_at";
pub(crate) const RUN_TABLES: &str =
    "runs r JOIN looms l ON l.loom_key = r.loom_key JOIN run_leases h ON h.run_key = r.run_key";

fn damaged_run(run: RunId, what: &'static str) -> Error {
    Error::Damaged(Damage { run: Some(run), seq: None, line: None, what })
}

/// Reads a lease from a row: its owner, epoch and expiry.
pub(crate) fn read_lease_state(run: RunId, row: &mut Row) -> Result<LeaseState, Error> {
    let (owner, epoch, expires_at) = (row.text_or_null()?, Epoch::new(row.count()?), row.time_or_null()?);
    let holder = match owner.zip(expires_at) {
        None => None,
        Some((owner, expires_at)) => {
            let owner = WorkerId::new(owner).map_err(|_| damaged_run(run, "the owner of its lease has no name"))?;
            Some(Lease { run, owner, epoch, expires_at })
        }
    };
    Ok(LeaseState { epoch, holder })
}

pub(crate) fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Live | Phase::Ended(RunState::Queued | RunState::Running | RunState::Waiting) => "live",
        Phase::Failed => "failed",
        Phase::Ended(RunState::Terminated) => "terminated",
        Phase::Ended(RunState::Truncated) => "truncated",
        Phase::Ended(RunState::Failed) => "unsuccessful",
    }
}

fn parse_phase(text: &str) -> Option<Phase> {
    Some(match text {
        "live" => Phase::Live,
        "failed" => Phase::Failed,
        "terminated" => Phase::Ended(RunState::Terminated),
        "truncated" => Phase::Ended(RunState::Truncated),
        "unsuccessful" => Phase::Ended(RunState::Failed),
        _ => return None,
    })
}

pub(crate) fn kind_name(kind: RunKind) -> &'static str {
    match kind {
        RunKind::Cast => "cast",
        RunKind::Summon => "summon",
        RunKind::Predict => "predict",
        RunKind::Job => "job",
    }
}

pub(crate) fn parse_kind(text: &str) -> Option<RunKind> {
    Some(match text {
        "cast" => RunKind::Cast,
        "summon" => RunKind::Summon,
        "predict" => RunKind::Predict,
        "job" => RunKind::Job,
        _ => return None,
    })
}

pub(crate) fn approvals_json(approvals: &BTreeSet<ApprovalId>) -> Option<String> {
    (!approvals.is_empty()).then(|| serde_json::to_string(approvals).expect("texts can be written"))
}

impl RunRow {
    pub(crate) fn read(row: &mut Row) -> Result<Self, Error> {
        let (key, run_id, loom_key, loom_id): (_, RunId, _, LoomId) = (row.int()?, row.id()?, row.int()?, row.id()?);
        let (kind, owner) = (row.text()?, row.text()?);
        let (entity_id, root_run_id) = (row.id_or_null()?, row.id_or_null()?);
        let phase = row.text()?;
        let (parked, approvals, copied) = (row.flag()?, row.text_or_null()?, row.flag()?);
        let (epoch, created_at, ended_at) = (Epoch::new(row.count()?), row.time()?, row.time_or_null()?);
        let newest = Seq::new(row.count()?);
        let kind = parse_kind(&kind).ok_or_else(|| damaged_run(run_id, "its kind is unknown"))?;
        let owner = cantrip_loom::Actor::new(owner).map_err(|_| damaged_run(run_id, "its owner has no name"))?;
        let approvals = match approvals {
            None => BTreeSet::new(),
            Some(text) => {
                serde_json::from_str(&text).map_err(|_| damaged_run(run_id, "its approvals cannot be read"))?
            }
        };
        let part = RunPart {
            run_id,
            opening: RunOpening { kind, loom_id, owner, entity_id, root_run_id },
            created_at,
            newest,
            epoch,
            phase: parse_phase(&phase).ok_or_else(|| damaged_run(run_id, "its phase is unknown"))?,
            ended_at,
            parked,
            approvals,
            copied,
        };
        Ok(Self { key, loom_key, part, lease: read_lease_state(run_id, row)? })
    }

    /// Returns the view of the run. The lease counts as held only if `alive` returns true.
    pub(crate) fn view(&self, alive: impl Fn(&Lease) -> bool) -> Result<RunView, Error> {
        let mut tree = Projection::new();
        tree.insert_run(self.part.clone());
        let held = self.lease.holder.as_ref().is_some_and(alive);
        let mut view = tree.run(self.part.run_id, held)?;
        view.epoch = self.lease.epoch.max(self.part.epoch);
        Ok(view)
    }
}

/// Returns the row of a run, if it exists.
pub(crate) async fn run(link: &mut DbConnection, run: RunId) -> Result<Option<RunRow>, StoreFault> {
    let sql = format!("SELECT {RUN_COLUMNS} FROM {RUN_TABLES} WHERE r.run_id = ?1");
    Ok(link.query_one(&sql, values![run]).await?.map(|mut row| RunRow::read(&mut row)).transpose()?)
}

/// One segment of a path: turns of one entity, newest first.
#[derive(Debug)]
pub(crate) struct PathSegment {
    pub entity_key: i64,
    pub turns: Vec<TurnId>,
    /// The sequence of the oldest of these turns.
    pub from: u64,
    /// True if the entity is a fork of the turn before the segment; false if it is a child of it.
    pub forked: bool,
    /// The position of the step that created the entity, among all steps of the store.
    pub made: u64,
}

/// The entity of a turn.
pub(crate) struct EntityAt {
    pub entity_key: i64,
    /// The sequence of the turn.
    pub sequence: u64,
    /// The turn below which the entity was created.
    pub origin: Option<TurnId>,
    /// The same turn, if the entity is a fork of it and not a child.
    pub forked_from: Option<TurnId>,
    /// The position of the step that created the entity, among all steps of the store.
    pub made: u64,
}

pub(crate) async fn entity_at(link: &mut DbConnection, turn: TurnId) -> Result<Option<EntityAt>, StoreFault> {
    let sql = "SELECT t.sequence, n.entity_key, n.origin, n.origin_id, e.place FROM turns t \
               JOIN entities n ON n.entity_key = t.entity_key \
               LEFT JOIN run_events e ON e.run_key = n.run_key AND e.seq = n.step_seq WHERE t.turn_id = ?1";
    let Some(mut row) = link.query_one(sql, values![turn]).await? else { return Ok(None) };
    let (sequence, entity_key, kind) = (row.count()?, row.int()?, row.text()?);
    let origin = row.id_or_null()?;
    let forked_from = origin.filter(|_| kind == "fork");
    Ok(Some(EntityAt { entity_key, sequence, origin, forked_from, made: row.count_or_null()?.unwrap_or(0) }))
}

/// Returns the path to a turn, newest segment first, with at most `most` turns; none if the turn does not exist.
pub(crate) async fn path(
    link: &mut DbConnection,
    turn: TurnId,
    most: usize,
) -> Result<Option<Vec<PathSegment>>, StoreFault> {
    let mut stretches: Vec<PathSegment> = Vec::new();
    let mut left = most;
    let mut next = Some(turn);
    while let Some(turn) = next {
        let Some(EntityAt { entity_key, sequence, origin, forked_from, made }) = entity_at(link, turn).await? else {
            return if stretches.is_empty() { Ok(None) } else { Err(missing_record(None, 0).into()) };
        };
        next = origin;
        let sql = "SELECT turn_id FROM turns WHERE entity_key = ?1 AND sequence <= ?2 ORDER BY sequence DESC LIMIT ?3";
        let rows = link.query(sql, values![entity_key, sequence, left as u64]).await?;
        let turns: Result<Vec<TurnId>, Error> = rows.into_iter().map(|mut row| row.id()).collect();
        let turns = turns?;
        left -= turns.len();
        let from = (sequence + 1).saturating_sub(turns.len() as u64);
        stretches.push(PathSegment { entity_key, turns, from, forked: forked_from.is_some(), made });
        if left == 0 {
            break;
        }
    }
    Ok(Some(stretches))
}

/// The row of a turn.
pub(crate) struct TurnRow {
    pub key: i64,
    pub id: TurnId,
    pub parent: Option<TurnId>,
    pub loom_id: LoomId,
    pub entity_id: EntityId,
    pub cast_id: CastId,
    pub run_key: i64,
    pub sequence: u64,
    pub holder: Option<TurnId>,
    pub first: i64,
    /// The row and the record of each position.
    pub places: Vec<(u64, u64)>,
}

/// The flags of [`TurnRow::first`].
pub(crate) const FIRST_OF_CAST: i64 = 1;
pub(crate) const FIRST_OF_ENTITY: i64 = 2;

impl TurnRow {
    pub(crate) fn read(mut row: Row) -> Result<Self, Error> {
        let (key, id, sequence, holder, first) = (row.int()?, row.id()?, row.count()?, row.id_or_null()?, row.int()?);
        let (places, loom_id, entity_id, origin, cast_id) =
            (row.text()?, row.id()?, row.id()?, row.id_or_null()?, row.id()?);
        let (run_key, before) = (row.int()?, row.id_or_null()?);
        let places = decode_places(&places)?;
        let parent = before.or(origin);
        Ok(Self { key, id, parent, loom_id, entity_id, cast_id, run_key, sequence, holder, first, places })
    }
}

/// Steps that were read, by run and position.
pub(crate) type Steps = HashMap<(i64, u64), StoredStep>;

/// Returns the steps at these positions. A missing step is an error: it was pruned, or it is lost.
pub(crate) async fn steps(link: &mut DbConnection, wanted: &BTreeMap<i64, BTreeSet<u64>>) -> Result<Steps, StoreFault> {
    let mut found = Steps::new();
    let sql = format!("SELECT {COLUMNS} FROM run_events e {BEFORE} WHERE e.run_key = ?1 AND e.seq IN ({LIST})");
    for (run, places) in wanted {
        let list = places.iter().map(|seq| Value::from(*seq));
        for mut row in link.query_in_list(&sql, values![*run], list).await? {
            let stored = StoredStep::read(&mut row)?;
            found.insert((stored.run_key, stored.seq.get()), stored);
        }
        if let Some(missing) = places.iter().find(|seq| !found.contains_key(&(*run, **seq))) {
            return Err(missing_step_error(link, *run, *missing).await?.into());
        }
    }
    Ok(found)
}

/// Returns the error for a step that the index names and that does not exist.
pub(crate) async fn missing_step_error(link: &mut DbConnection, run_key: i64, seq: u64) -> Result<Error, StoreFault> {
    let sql = "SELECT r.run_id, (SELECT max(a.seq) FROM run_anchors a WHERE a.run_key = r.run_key) FROM runs r \
               WHERE r.run_key = ?1";
    let Some(mut row) = link.query_one(sql, values![run_key]).await? else {
        return Ok(missing_record(None, seq));
    };
    let (run, anchor) = (row.id()?, row.count_or_null()?);
    Ok(match anchor {
        Some(anchor) if seq <= anchor => Error::Pruned { run, through: Seq::new(anchor) },
        Some(_) | None => missing_record(Some(run), seq),
    })
}

/// Fails for the first id that the index has and whose record was not found: it was pruned, or it is lost. The index is
/// a table with the columns of the ids and of the steps.
pub(crate) async fn check_not_pruned<K: cantrip_canon::Kind>(
    link: &mut DbConnection,
    [table, id, seq]: [&str; 3],
    list: Vec<Value>,
    missing: impl Fn(cantrip_canon::Id<K>) -> bool,
) -> Result<(), StoreFault> {
    let sql = format!("SELECT {id}, run_key, {seq} FROM {table} WHERE {id} IN ({LIST})");
    for mut row in link.query_in_list(&sql, &[], list).await? {
        let (id, run_key, seq) = (row.id()?, row.int()?, row.count()?);
        if missing(id) {
            return Err(missing_step_error(link, run_key, seq).await?.into());
        }
    }
    Ok(())
}

pub(crate) fn records(steps: &Steps, run_key: i64, place: (u64, u64)) -> Result<&Record, Error> {
    steps.get(&(run_key, place.0)).ok_or_else(|| missing_record(None, place.1))?.record(place.1)
}

/// Returns the position of a step among all steps of the store.
pub(crate) fn place(stored: &StoredStep) -> u64 {
    u64::try_from(stored.place).unwrap_or(0)
}
