//! A part of the tree, loaded from rows.
//!
//! To check a step or to show a view, the code loads the things it is about: index rows, the steps that they name, and
//! the bodies that those steps name. The projection of the loom does the rest.

mod folds;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use cantrip_canon::{CastId, EntityId, Hash, LoomId, RunId, Timestamp, TurnId, bytes_hash};
use cantrip_loom::{
    Bodies, CantripId, Cast, CastPart, Damage, Dependency, EntityPart, Error, Event, IntentRecord, Projection, Record,
    RecordedEvent, RewardView, RootPart, TurnPart,
};

use crate::connection::DbConnection;
use crate::dialect::LIST;
use crate::events::{BEFORE, COLUMNS, StoredStep, decode_places};
use crate::failure::StoreFault;
use crate::rows::{FIRST_OF_CAST, FIRST_OF_ENTITY, RunRow, TurnRow, check_not_pruned, place, records, run, steps};
use crate::value::{Value, values};

/// The loaded part of the tree.
#[derive(Debug, Default)]
pub(crate) struct PartialTree {
    pub tree: Projection,
    pub entity_keys: HashMap<EntityId, i64>,
    pub cast_keys: HashMap<CastId, i64>,
    bodies: HashMap<Hash, Arc<[u8]>>,
    wanted: BTreeSet<Hash>,
}

impl Bodies for PartialTree {
    fn body(&self, hash: &Hash) -> Result<Arc<[u8]>, Error> {
        self.bodies.get(hash).cloned().ok_or(Error::BodyAltered(*hash))
    }
}

/// A placeholder, because only a cantrip is looked up by its loom.
const ANY_LOOM: LoomId = LoomId::from_bytes([0; 16]);

impl PartialTree {
    fn read_event(&mut self, record: &Record) -> Result<RecordedEvent, Error> {
        let told = RecordedEvent::read(record)?;
        self.wanted.extend(told.event.body_hashes());
        Ok(told)
    }

    /// Reads a record that the index names, with its run and its time.
    fn read_record<T: TryFrom<Event>>(
        &mut self,
        stored: &StoredStep,
        seq: u64,
    ) -> Result<(RunId, Timestamp, T), Error> {
        let record = stored.record(seq)?;
        let RecordedEvent { seq, at, event } = self.read_event(record)?;
        let what = "the index names a record of another kind";
        let damage = Damage { run: Some(record.run), seq: Some(seq), line: None, what };
        Ok((record.run, at, T::try_from(event).map_err(|_| Error::Damaged(damage))?))
    }

    /// Loads a dependency of a record of a live run.
    pub(crate) async fn load_dependency(
        &mut self,
        link: &mut DbConnection,
        loom: LoomId,
        needed: Dependency,
    ) -> Result<(), StoreFault> {
        match needed {
            Dependency::Cantrip(cantrip) => self.roots(link, loom, Some(cantrip)).await,
            Dependency::Turn(turn) => self.turns(link, &[turn]).await,
            Dependency::Cast(cast) => {
                self.casts(link, &[cast]).await?;
                self.entities_of_casts(link, &[cast]).await
            }
            Dependency::Entity(entity) => self.entities(link, &[entity]).await,
        }?;
        self.runs_of_live_casts(link, needed).await
    }

    /// Loads the run of the live cast. Its state decides whether the entity may be cast again.
    async fn runs_of_live_casts(&mut self, link: &mut DbConnection, needed: Dependency) -> Result<(), StoreFault> {
        let live = match needed {
            Dependency::Entity(entity) => self.tree.entity(entity).ok().and_then(|view| view.casts.last().copied()),
            Dependency::Cast(cast) => Some(cast),
            Dependency::Cantrip(_) | Dependency::Turn(_) => None,
        };
        let Some(live) = live else { return Ok(()) };
        self.casts(link, &[live]).await?;
        let sql = "SELECT r.run_id FROM casts c JOIN runs r ON r.run_key = c.run_key WHERE c.cast_id = ?1";
        for mut row in link.query(sql, values![live]).await? {
            let id = row.id()?;
            if self.tree.run_part(id).is_none()
                && let Some(row) = run(link, id).await?
            {
                self.tree.insert_run(row.part);
            }
        }
        Ok(())
    }

    pub(crate) async fn entities_of_casts(
        &mut self,
        link: &mut DbConnection,
        casts: &[CastId],
    ) -> Result<(), StoreFault> {
        let sql = format!(
            "SELECT n.entity_id FROM casts c JOIN entities n ON n.entity_key = c.entity_key WHERE c.cast_id IN ({LIST})"
        );
        let rows = link.query_in_list(&sql, &[], casts.iter().map(|cast| Value::from(*cast))).await?;
        let ids: Result<Vec<EntityId>, Error> = rows.into_iter().map(|mut row| row.id()).collect();
        self.entities(link, &ids?).await
    }

    /// Loads the cantrips of a loom, or one of them.
    pub(crate) async fn roots(
        &mut self,
        link: &mut DbConnection,
        loom: LoomId,
        only: Option<CantripId>,
    ) -> Result<(), StoreFault> {
        let sql = format!(
            "SELECT o.seq, {COLUMNS} FROM roots o JOIN looms l ON l.loom_key = o.loom_key \
             JOIN run_events e ON e.run_key = o.run_key AND e.seq = o.step_seq {BEFORE} \
             WHERE l.loom_id = ?1 AND o.cantrip_id = coalesce(?2, o.cantrip_id) ORDER BY o.root_key"
        );
        for mut row in link.query(&sql, values![loom, only.map(|cantrip| cantrip.to_string())]).await? {
            let seq = row.count()?;
            let stored = StoredStep::read(&mut row)?;
            let (_, at, root) = self.read_record(&stored, seq)?;
            self.tree.insert_root(RootPart { loom_id: loom, root: Arc::new(root), at });
        }
        Ok(())
    }

    /// Loads entities, with the ids of their casts.
    pub(crate) async fn entities(&mut self, link: &mut DbConnection, ids: &[EntityId]) -> Result<(), StoreFault> {
        let news = ids.iter().filter(|id| !self.tree.contains(ANY_LOOM, Dependency::Entity(**id)));
        let list: Vec<Value> = news.map(|id| Value::from(*id)).collect();
        let sql = format!(
            "SELECT n.entity_key, l.loom_id, n.seq, f.sequence, n.origin, t.turn_id, t.sequence, {COLUMNS} \
             FROM entities n JOIN looms l ON l.loom_key = n.loom_key \
             JOIN run_events e ON e.run_key = n.run_key AND e.seq = n.step_seq {BEFORE} \
             LEFT JOIN turns f ON f.turn_id = n.origin_id \
             LEFT JOIN turns t ON t.entity_key = n.entity_key \
               AND t.sequence = (SELECT max(x.sequence) FROM turns x WHERE x.entity_key = n.entity_key) \
             WHERE n.entity_id IN ({LIST})"
        );
        let mut parts: BTreeMap<i64, EntityPart> = BTreeMap::new();
        for mut row in link.query_in_list(&sql, &[], list.clone()).await? {
            let (key, loom_id, seq, above) = (row.int()?, row.id()?, row.count()?, row.count_or_null()?);
            let (origin, leaf, sequence) = (row.text()?, row.id_or_null()?, row.count_or_null()?);
            let stored = StoredStep::read(&mut row)?;
            let (run_id, at, entity) = self.read_record(&stored, seq)?;
            let from = above.filter(|_| origin == "fork").unwrap_or(0);
            let part = EntityPart {
                entity: Arc::new(entity),
                loom_id,
                run_id,
                at,
                casts: Vec::new(),
                leaf,
                sequence: sequence.unwrap_or(from),
                open: None,
                live_cast: None,
                folds_before: place(&stored),
            };
            parts.insert(key, part);
        }
        if parts.len() < list.len() {
            let found: BTreeSet<EntityId> = parts.values().map(|part| part.entity.entity_id).collect();
            check_not_pruned(link, ["entities", "entity_id", "step_seq"], list, |id| !found.contains(&id)).await?;
        }
        let sql = format!(
            "SELECT entity_key, cast_key, cast_id, end_seq, given_up FROM casts WHERE entity_key IN ({LIST}) \
             ORDER BY cast_key"
        );
        for mut row in link.query_in_list(&sql, &[], parts.keys().map(|key| Value::from(*key))).await? {
            let (of, key, cast): (_, _, CastId) = (row.int()?, row.int()?, row.id()?);
            let (ended, given_up) = (row.int_or_null()?.is_some(), row.flag()?);
            self.cast_keys.insert(cast, key);
            if let Some(part) = parts.get_mut(&of) {
                part.casts.push(cast);
                part.live_cast = (!ended && !given_up).then_some(cast);
            }
        }
        for (key, part) in parts {
            self.entity_keys.insert(part.entity.entity_id, key);
            self.tree.insert_entity(part);
        }
        Ok(())
    }

    /// Loads casts, with the casts whose intents they continue.
    pub(crate) async fn casts(&mut self, link: &mut DbConnection, ids: &[CastId]) -> Result<(), StoreFault> {
        let mut asked: Vec<CastId> = ids.to_vec();
        loop {
            asked.retain(|id| !self.tree.contains(ANY_LOOM, Dependency::Cast(*id)));
            if asked.is_empty() {
                return Ok(());
            }
            let wanted = asked.clone();
            let list: Vec<Value> = asked.iter().map(|id| Value::from(*id)).collect();
            let sql = format!(
                "SELECT c.cast_id, c.end_seq, {COLUMNS} FROM casts c \
                 JOIN run_events e ON e.run_key = c.run_key AND e.seq = c.end_step_seq {BEFORE} WHERE c.cast_id IN ({LIST})"
            );
            let mut ends = HashMap::new();
            for mut row in link.query_in_list(&sql, &[], list.clone()).await? {
                let (cast, seq): (CastId, _) = (row.id()?, row.count()?);
                let stored = StoredStep::read(&mut row)?;
                let (_, _, end) = self.read_record(&stored, seq)?;
                ends.insert(cast, Arc::new(end));
            }
            let sql = format!(
                "SELECT c.cast_key, c.seq, c.end_seq, c.given_up, t.turn_id, {COLUMNS} FROM casts c \
                 JOIN run_events e ON e.run_key = c.run_key AND e.seq = c.step_seq {BEFORE} \
                 LEFT JOIN turns t ON t.entity_key = c.entity_key AND t.cast_key = c.cast_key \
                   AND t.sequence = (SELECT max(x.sequence) FROM turns x WHERE x.entity_key = c.entity_key) \
                 WHERE c.cast_id IN ({LIST})"
            );
            asked.clear();
            for mut row in link.query_in_list(&sql, &[], list.clone()).await? {
                let (key, seq, ended) = (row.int()?, row.count()?, row.int_or_null()?.is_some());
                let (given_up, last_turn) = (row.flag()?, row.id_or_null()?);
                let stored = StoredStep::read(&mut row)?;
                let (run_id, at, cast): (_, _, Cast) = self.read_record(&stored, seq)?;
                if let IntentRecord::Of(earlier) = &cast.intent {
                    asked.push(*earlier);
                }
                let end = ends.remove(&cast.cast_id);
                if ended != end.is_some() {
                    let index = ["casts", "cast_id", "end_step_seq"];
                    check_not_pruned(link, index, vec![cast.cast_id.into()], |_: CastId| true).await?;
                }
                self.cast_keys.insert(cast.cast_id, key);
                let cast = Arc::new(cast);
                self.tree.insert_cast(CastPart { run_id, at, last_turn, end, given_up, cast });
            }
            let (tree, held) = (&self.tree, |tree: &Projection, id| tree.contains(ANY_LOOM, Dependency::Cast(id)));
            if !wanted.iter().all(|id| held(tree, *id)) {
                check_not_pruned(link, ["casts", "cast_id", "step_seq"], list, |id| !held(tree, id)).await?;
            }
        }
    }

    /// Loads closed turns, with their entities and casts. Turns that do not exist are left out.
    pub(crate) async fn turns(&mut self, link: &mut DbConnection, ids: &[TurnId]) -> Result<(), StoreFault> {
        let mut rows: Vec<TurnRow> = Vec::new();
        let mut asked: Vec<TurnId> = ids.to_vec();
        // A continuation shows the utterance of the first turn of its group.
        while !asked.is_empty() {
            let sql = format!(
                "SELECT t.turn_key, t.turn_id, t.sequence, t.holder_id, t.first, t.places, l.loom_id, n.entity_id, \
                   n.origin_id, c.cast_id, c.run_key, p.turn_id \
                 FROM turns t JOIN looms l ON l.loom_key = t.loom_key JOIN entities n ON n.entity_key = t.entity_key \
                 JOIN casts c ON c.cast_key = t.cast_key \
                 LEFT JOIN turns p ON p.entity_key = t.entity_key AND p.sequence = t.sequence - 1 \
                 WHERE t.turn_id IN ({LIST})"
            );
            let found = link.query_in_list(&sql, &[], asked.drain(..).map(Value::from)).await?;
            let mut holders = BTreeSet::new();
            for row in found {
                let row = TurnRow::read(row)?;
                holders.extend(row.holder);
                rows.push(row);
            }
            let known: BTreeSet<TurnId> = rows.iter().map(|row| row.id).collect();
            asked.extend(holders.difference(&known).copied());
        }
        let mut places: BTreeMap<i64, BTreeSet<u64>> = BTreeMap::new();
        for row in &rows {
            places.entry(row.run_key).or_default().extend(row.places.iter().map(|place| place.0));
        }
        let steps = steps(link, &places).await?;
        let mut rewards = self.rewards(link, rows.iter().map(|row| row.id)).await?;
        let entities: BTreeSet<EntityId> = rows.iter().map(|row| row.entity_id).collect();
        let casts: BTreeSet<CastId> = rows.iter().map(|row| row.cast_id).collect();
        self.entities(link, &entities.into_iter().collect::<Vec<_>>()).await?;
        self.casts(link, &casts.into_iter().collect::<Vec<_>>()).await?;
        for row in rows {
            let mut told = Vec::with_capacity(row.places.len());
            for place in &row.places {
                told.push(self.read_event(records(&steps, row.run_key, *place)?)?);
            }
            self.tree.insert_turn(TurnPart {
                id: row.id,
                parent: row.parent,
                loom_id: row.loom_id,
                entity_id: row.entity_id,
                cast_id: row.cast_id,
                sequence: row.sequence,
                holder: row.holder.unwrap_or(row.id),
                first_of_cast: row.first & FIRST_OF_CAST != 0,
                first_of_entity: row.first & FIRST_OF_ENTITY != 0,
                events: told,
                rewards: rewards.remove(&row.id).unwrap_or_default(),
                place: u64::try_from(row.key).unwrap_or(0),
            })?;
        }
        Ok(())
    }

    /// Loads the rewards of turns, oldest first.
    pub(crate) async fn rewards(
        &mut self,
        link: &mut DbConnection,
        turns: impl Iterator<Item = TurnId>,
    ) -> Result<HashMap<TurnId, Vec<RewardView>>, StoreFault> {
        let sql = format!(
            "SELECT w.turn_id, w.seq, {COLUMNS} FROM rewards w \
             JOIN run_events e ON e.run_key = w.run_key AND e.seq = w.step_seq {BEFORE} \
             WHERE w.turn_id IN ({LIST}) ORDER BY w.reward_key"
        );
        let mut found: HashMap<TurnId, Vec<RewardView>> = HashMap::new();
        for mut row in link.query_in_list(&sql, &[], turns.map(Value::from)).await? {
            let (turn, seq): (TurnId, _) = (row.id()?, row.count()?);
            let stored = StoredStep::read(&mut row)?;
            let (_, at, reward) = self.read_record(&stored, seq)?;
            found.entry(turn).or_default().push(RewardView::new(reward, at));
        }
        Ok(found)
    }

    /// Drops everything that is over, and its keys.
    pub(crate) fn trim(&mut self) {
        self.tree.trim();
        let Self { tree, entity_keys, cast_keys, .. } = self;
        entity_keys.retain(|entity, _| tree.contains(ANY_LOOM, Dependency::Entity(*entity)));
        cast_keys.retain(|cast, _| tree.contains(ANY_LOOM, Dependency::Cast(*cast)));
        self.bodies.clear();
        self.wanted.clear();
    }

    /// Computes a view of the loaded part. Bodies that are known to be needed are read together. A body that the view
    /// turns out to need is read on demand, and is reported as altered only if it is missing or does not match its
    /// hash.
    pub(crate) async fn render<T>(
        &mut self,
        link: &mut DbConnection,
        view: impl Fn(&Projection, &dyn Bodies) -> Result<T, Error>,
    ) -> Result<T, StoreFault> {
        let mut looked_for = BTreeSet::new();
        loop {
            self.load_bodies(link).await?;
            match view(&self.tree, self) {
                Err(Error::BodyAltered(hash)) if looked_for.insert(hash) => {
                    self.wanted.insert(hash);
                }
                shown => return Ok(shown?),
            }
        }
    }

    async fn load_bodies(&mut self, link: &mut DbConnection) -> Result<(), StoreFault> {
        let wanted = std::mem::take(&mut self.wanted);
        let list = wanted.into_iter().filter(|hash| !self.bodies.contains_key(hash)).map(Value::from);
        let list: Vec<Value> = list.collect();
        let sql = format!("SELECT body_hash, bytes FROM bodies WHERE body_hash IN ({LIST})");
        for mut row in link.query_in_list(&sql, &[], list).await? {
            let (hash, bytes) = (row.hash()?, row.blob()?);
            if bytes_hash(&bytes) == hash {
                self.bodies.insert(hash, bytes.into());
            }
        }
        Ok(())
    }

    /// Loads the open work of a run: its live casts with their entities, and their open turns. Returns the rows that
    /// hold it.
    pub(crate) async fn load_open_turns(
        &mut self,
        link: &mut DbConnection,
        row: &RunRow,
    ) -> Result<BTreeSet<u64>, StoreFault> {
        self.tree.insert_run(row.part.clone());
        let sql = "SELECT c.cast_id, c.step_seq, n.entity_id, n.entity_key FROM casts c \
                   JOIN entities n ON n.entity_key = c.entity_key \
                   WHERE c.run_key = ?1 AND c.end_seq IS NULL AND c.given_up = 0 ORDER BY c.cast_key";
        let mut live = Vec::new();
        for mut found in link.query(sql, values![row.key]).await? {
            let at: (CastId, u64, EntityId, i64) = (found.id()?, found.count()?, found.id()?, found.int()?);
            live.push(at);
        }
        let casts: Vec<CastId> = live.iter().map(|at| at.0).collect();
        let entities: Vec<EntityId> = live.iter().map(|at| at.2).collect();
        self.casts(link, &casts).await?;
        self.entities(link, &entities).await?;
        let leaves: Vec<TurnId> =
            entities.iter().filter_map(|entity| self.tree.entity(*entity).ok().and_then(|view| view.leaf)).collect();
        self.turns(link, &leaves).await?;
        // The rows of groups that continue after a sealed turn, and the first row after the closed turns.
        let mut kept: BTreeSet<u64> = BTreeSet::new();
        let mut from: Option<u64> = None;
        for (cast, begun, entity, key) in live {
            let leaf = self.tree.entity(entity).ok().and_then(|view| view.leaf);
            let own = leaf.and_then(|leaf| self.tree.turn_part(leaf)).filter(|part| part.cast_id == cast);
            let start = match own {
                None => begun,
                Some(leaf) => {
                    let sql = "SELECT t.places, t.turn_id FROM turns t WHERE t.entity_key = ?1 AND t.sequence >= \
                               (SELECT h.sequence FROM turns h WHERE h.turn_id = ?2)";
                    for mut found in link.query(sql, values![key, leaf.holder]).await? {
                        kept.extend(decode_places(&found.text()?)?.into_iter().map(|place| place.0));
                    }
                    self.tree.reopen_sealed(entity);
                    self.tree.places(leaf.id).and_then(|places| places.last()).map_or(begun, |last| last.get())
                }
            };
            from = Some(from.map_or(start, |from| from.min(start)));
        }
        let Some(from) = from else { return Ok(BTreeSet::new()) };
        let sql =
            format!("SELECT {COLUMNS} FROM run_events e {BEFORE} WHERE e.run_key = ?1 AND e.seq >= ?2 ORDER BY e.seq");
        let mut behind = Vec::new();
        for mut found in link.query(&sql, values![row.key, from]).await? {
            let stored = StoredStep::read(&mut found)?;
            kept.remove(&stored.seq.get());
            behind.push(stored);
        }
        let earlier = steps(link, &BTreeMap::from([(row.key, kept)])).await?;
        let mut all: Vec<&StoredStep> = earlier.values().chain(&behind).collect();
        all.sort_by_key(|stored| stored.seq);
        for stored in &all {
            for record in &stored.records {
                self.tree.restore_open(record)?;
            }
        }
        Ok(all.iter().map(|stored| stored.seq.get()).collect())
    }
}
