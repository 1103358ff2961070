//! How is a step checked and written, and how do many steps share a transaction?
//!
//! A step is checked in memory, by the rules that every loom shares, against the open turns of its run; then its
//! changes are written. So a refused step has written nothing, and the other steps of the group are not affected. Two
//! things cannot be checked in memory: whether an id is new in the whole store, and whether another process was first.
//! These are left to the unique indexes. If an index reports a conflict, the group is rolled back and its steps are
//! tried again one by one, each in its own savepoint and with all checks done before the write. That is slow and
//! almost never happens. Doing all checks first each time would charge every step of every run for what now only a
//! conflict costs.
//!
//! The rows that an accepted step writes are in `accepted_rows`, those for lists in `digest`, the begin and the end of a
//! group in `group`; the rest stays together, since every part of it reads or drops the same cached runs.

mod accepted_rows;
mod digest;
mod group;

use std::collections::{BTreeSet, HashMap};

use cantrip_canon::{EntityId, Hash, LoomId, RunId};
use cantrip_contract::ContractUpsert;
use cantrip_loom::{
    AppendOutcome, CantripId, Conflict, Dependency, Epoch, Error, Event, LeaseState, MoneyOutcome, Phase, Projection,
    Record, RecordDraft, RootPart, RunPart, RunWriteState, Seq, Step, StepTarget,
};

use cantrip_spend::Changes;

use crate::connection::{DbConnection, SqlStatement};
use crate::contracts;
use crate::dialect::LIST;
use crate::events::{self, StoredStep};
use crate::failure::StoreFault;
use crate::ledger::{self, LedgerCache};
use crate::overview::{CostSum, LoadedDigest};
use crate::partial_tree::PartialTree;
use crate::rows::RunRow;
use crate::value::{Value, values};

use self::accepted_rows::AcceptedStep;
use self::group::lock_run;

/// A run that is being written to.
#[derive(Debug)]
struct LiveRun {
    key: i64,
    loom_key: i64,
    partial: PartialTree,
    /// The state of the run as in its row, except for the newest record.
    part: RunPart,
    head: Option<Hash>,
    lease: LeaseState,
    /// The `seq` of the rows that open turns depend on.
    rows: BTreeSet<u64>,
    /// The fold of its records for lists. None until something needs it, for a run that another process began.
    digest: Option<LoadedDigest>,
    /// The known cost of the turns of each entity that closed one.
    sums: HashMap<EntityId, CostSum>,
    /// The number of the last group that wrote to this run.
    used: u64,
}

impl LiveRun {
    fn write_state(&self) -> RunWriteState<'_> {
        RunWriteState {
            newest: self.part.newest,
            copied: self.part.copied,
            holder: self.lease.holder.as_ref(),
            epoch: self.lease.epoch,
        }
    }
}

/// The checks to do before something is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CheckLevel {
    /// Leave the checks of the unique indexes to the database.
    Optimistic,
    /// Do all checks.
    Full,
}

/// The state that the writer keeps between groups. It may be dropped at any time, because the rows have everything.
#[derive(Debug, Default)]
pub(crate) struct CommitCache {
    runs: HashMap<RunId, LiveRun>,
    looms: HashMap<LoomId, i64>,
    roots: HashMap<(LoomId, CantripId), RootPart>,
    /// The ledger rows that were read in this group.
    ledger: LedgerCache,
    /// Statements that have not been executed yet.
    pending: Vec<SqlStatement>,
    /// True if this group has statements to execute.
    wrote: bool,
    /// The data version of SQLite at the end of the last group.
    version: Option<i64>,
    groups: u64,
}

impl CommitCache {
    /// Drops all cached state, because it may differ from the store.
    pub(crate) fn forget(&mut self) {
        *self = Self { groups: self.groups, ..Self::default() };
    }

    /// Returns true if this group adds anything to the store.
    pub(crate) fn has_written(&self) -> bool {
        self.wrote
    }

    pub(crate) fn push(&mut self, sql: &'static str, values: Vec<Value>) {
        self.wrote = true;
        self.pending.push(SqlStatement { sql, values });
    }

    /// Checks a step and writes its changes. After an error of the store itself the state of the transaction is
    /// unknown.
    pub(crate) async fn append(
        &mut self,
        link: &mut DbConnection,
        step: &Step,
        care: CheckLevel,
    ) -> Result<Result<AppendOutcome, Error>, StoreFault> {
        if let Some(broken) = step.validation_error() {
            return Ok(Err(broken));
        }
        let Some(run) = step.run() else { return self.append_outside_runs(link, step).await };
        self.load_run(link, run).await?;
        if care == CheckLevel::Full
            && let Some(answer) = self.earlier_outcome(link, step, run).await?
        {
            return Ok(Ok(answer));
        }
        let mut judged = self.decide(link, step, run, care).await?;
        if matches!(judged, StepDecision::Refused(_)) {
            // Another process may have written between two of these queries; a second try sees its writes.
            self.runs.remove(&run);
            self.load_run(link, run).await?;
            judged = self.decide(link, step, run, care).await?;
        }
        let hindered = match judged {
            StepDecision::Accepted(accepted) => {
                let answer = match &accepted.refused {
                    Some(decision) => AppendOutcome::Refused(decision.clone()),
                    None => AppendOutcome::Committed(self.runs.get(&run).map_or(Seq::START, |live| {
                        accepted.records.last().map_or(live.part.newest, |record| record.seq)
                    })),
                };
                self.write(link, step, run, accepted).await?;
                return Ok(Ok(answer));
            }
            StepDecision::Answered(answer) => Ok(answer),
            StepDecision::Refused(error) => {
                // The tree has applied the first part of the step.
                self.runs.remove(&run);
                Err(error)
            }
        };
        // A step that was written before gets the same answer again, whatever the conflict is now.
        if care == CheckLevel::Optimistic
            && let Some(answer) = self.earlier_outcome(link, step, run).await?
        {
            return Ok(Ok(answer));
        }
        Ok(hindered)
    }

    /// Writes a step outside every run, which changes authorizations and contracts.
    async fn append_outside_runs(
        &mut self,
        link: &mut DbConnection,
        step: &Step,
    ) -> Result<Result<AppendOutcome, Error>, StoreFault> {
        self.flush(link).await?;
        match self.has_required_bodies(link, step).await? {
            Ok(true) => {}
            Ok(false) => return Ok(Err(step.missing_body_error())),
            Err(error) => return Ok(Err(error)),
        }
        Ok(match self.ledger.apply_money(link, step, None, &Projection::new()).await? {
            Ok(MoneyOutcome::Answered(answer)) => Ok(answer),
            Ok(MoneyOutcome::Refused { decision, .. }) => Ok(AppendOutcome::Refused(decision)),
            Ok(MoneyOutcome::Moved { changes, .. }) => {
                match self.contract_upserts(link, step, &changes, false).await? {
                    Ok(written) => {
                        self.write_bodies(step);
                        self.write_ledger(&changes)?;
                        self.write_contracts(&written)?;
                        Ok(AppendOutcome::Committed(Seq::START))
                    }
                    Err(conflict) => Ok(AppendOutcome::Conflict(conflict)),
                }
            }
            Err(error) => Err(error),
        })
    }

    /// Writes the changes of the ledger.
    fn write_ledger(&mut self, changes: &Changes) -> Result<(), StoreFault> {
        self.ledger.apply_changes(changes);
        for SqlStatement { sql, values } in ledger::writes(changes)? {
            self.push(sql, values);
        }
        Ok(())
    }

    /// Computes the contract changes of a step, given the changes of its money.
    async fn contract_upserts(
        &mut self,
        link: &mut DbConnection,
        step: &Step,
        changes: &Changes,
        refused: bool,
    ) -> Result<Result<Vec<ContractUpsert>, Conflict>, StoreFault> {
        let rows = step.rows(refused);
        if rows.is_empty() {
            return Ok(Ok(Vec::new()));
        }
        self.flush(link).await?;
        let shelf = contracts::load_cache(link, rows).await?;
        let accounts = self.ledger.accounts(link, step, changes, refused).await?;
        Ok(step.apply_contracts(refused, shelf, &accounts))
    }

    /// Writes the contract changes.
    fn write_contracts(&mut self, written: &[ContractUpsert]) -> Result<(), StoreFault> {
        for each in written {
            let SqlStatement { sql, values } = contracts::statement_for(each)?;
            self.push(sql, values);
        }
        Ok(())
    }

    /// Applies the money operations of a step; without any there is nothing to check.
    async fn apply_money(
        &mut self,
        link: &mut DbConnection,
        step: &Step,
        run: RunId,
    ) -> Result<Result<MoneyOutcome, Error>, StoreFault> {
        if step.money.is_empty() {
            return Ok(Ok(MoneyOutcome::Moved { changes: Box::default(), told: Vec::new() }));
        }
        self.flush(link).await?;
        let nothing = Projection::new();
        match self.runs.get(&run) {
            Some(live) => {
                let standing = live.write_state();
                self.ledger.apply_money(link, step, Some(&standing), &live.partial.tree).await
            }
            None => self.ledger.apply_money(link, step, None, &nothing).await,
        }
    }

    /// Loads a run that exists and is not cached.
    async fn load_run(&mut self, link: &mut DbConnection, run: RunId) -> Result<(), StoreFault> {
        if self.runs.contains_key(&run) {
            return Ok(());
        }
        self.flush(link).await?;
        let Some(row) = lock_run(link, run).await? else { return Ok(()) };
        let mut gathered = PartialTree::default();
        let rows = gathered.load_open_turns(link, &row).await?;
        let sql = "SELECT links FROM run_events WHERE run_key = ?1 AND seq = ?2 \
                   UNION ALL SELECT event_hash FROM run_anchors WHERE run_key = ?1 AND seq = ?2";
        let newest = row.part.newest;
        let mut ends = link.query(sql, values![row.key, newest.get()]).await?;
        let head = ends.pop().map(|mut end| end.blob()).transpose()?.and_then(|hashes| events::last(&hashes));
        let head = Some(head.ok_or_else(|| events::missing_record(Some(run), newest.get()))?);
        let RunRow { key, loom_key, part, lease: tenure } = row;
        let tenure = LeaseState { epoch: tenure.epoch.max(part.epoch), ..tenure };
        let live = LiveRun {
            key,
            loom_key,
            partial: gathered,
            part,
            head,
            lease: tenure,
            rows,
            digest: None,
            sums: HashMap::new(),
            used: self.groups,
        };
        self.runs.insert(run, live);
        Ok(())
    }

    /// Returns the earlier answer if the run has committed this step already.
    async fn earlier_outcome(
        &mut self,
        link: &mut DbConnection,
        step: &Step,
        run: RunId,
    ) -> Result<Option<AppendOutcome>, StoreFault> {
        self.flush(link).await?;
        let sql = format!(
            "SELECT {} FROM run_events e {} WHERE r.run_id = ?1 AND e.step_id = ?2",
            events::COLUMNS,
            events::BEFORE
        );
        let Some(mut row) = link.query_one(&sql, values![run, step.id.as_str()]).await? else { return Ok(None) };
        let stored = StoredStep::read(&mut row)?;
        let other = || AppendOutcome::Conflict(Conflict::Step { id: step.id.clone() });
        Ok(Some(step.earlier_outcome(&stored.records)?.unwrap_or_else(other)))
    }

    async fn decide(
        &mut self,
        link: &mut DbConnection,
        step: &Step,
        run: RunId,
        care: CheckLevel,
    ) -> Result<StepDecision, StoreFault> {
        let nothing = Projection::new();
        let wanted = step.required_entity(self.runs.get(&run).map_or(&nothing, |live| &live.partial.tree));
        let made_here =
            |draft: &RecordDraft| matches!(draft.event(), Event::Entity(made) if Some(made.entity_id) == wanted);
        let busy = match wanted {
            // An entity that this step creates cannot be in use yet.
            Some(_) if care == CheckLevel::Optimistic && step.records.iter().any(made_here) => None,
            Some(entity) => {
                self.flush(link).await?;
                let sql = "SELECT run_id FROM runs WHERE entity_id = ?1 AND phase = 'live'";
                let found = link.query_one(sql, values![entity]).await?;
                found.map(|mut row| row.id()).transpose()?.map(|run| (entity, run))
            }
            None => None,
        };
        let known = self.runs.get_mut(&run);
        let mut opened = PartialTree::default();
        let tree = match known {
            Some(live) => &mut live.partial.tree,
            None => &mut opened.tree,
        };
        if let Some((entity, holder)) = busy {
            tree.insert_busy(entity, holder);
        }
        let standing = self.runs.get(&run).map(LiveRun::write_state);
        let tree = self.runs.get(&run).map_or(&opened.tree, |live| &live.partial.tree);
        match step.check_conflicts(standing.as_ref(), tree) {
            Ok(None) => {}
            Ok(Some(answer)) => return Ok(StepDecision::Answered(answer)),
            Err(error) => return Ok(StepDecision::Refused(error)),
        }
        match self.has_required_bodies(link, step).await? {
            Ok(true) => {}
            Ok(false) => return Ok(StepDecision::Refused(step.missing_body_error())),
            Err(error) => return Ok(StepDecision::Refused(error)),
        }
        let Some(loom) = self.loom_of(step, run) else {
            return Ok(StepDecision::Refused(Error::not_found("run", run)));
        };
        let (drafts, changes, refused) = match self.apply_money(link, step, run).await? {
            Ok(MoneyOutcome::Moved { changes, told }) => {
                (step.records.iter().cloned().chain(told).collect::<Vec<RecordDraft>>(), changes, None)
            }
            Ok(MoneyOutcome::Refused { changes, decision, told }) => {
                // A run that is not open cannot record the refusal either.
                if step.if_refused.is_empty() && !self.runs.contains_key(&run) {
                    return Ok(StepDecision::Answered(AppendOutcome::Refused(decision)));
                }
                (step.if_refused.iter().cloned().chain([*told]).collect(), changes, Some(decision))
            }
            Ok(MoneyOutcome::Answered(answer)) => return Ok(StepDecision::Answered(answer)),
            Err(error) => return Ok(StepDecision::Refused(error)),
        };
        let written = match self.contract_upserts(link, step, &changes, refused.is_some()).await? {
            Ok(written) => written,
            Err(conflict) => return Ok(StepDecision::Answered(AppendOutcome::Conflict(conflict))),
        };
        let mut live = match self.runs.remove(&run) {
            Some(live) => live,
            None => LiveRun {
                // Set when the row is written.
                key: 0,
                loom_key: 0,
                partial: opened,
                part: RunPart {
                    run_id: run,
                    opening: drafts[0].run_opening().cloned().expect("a step that opens a run begins so"),
                    created_at: drafts[0].at(),
                    newest: Seq::START,
                    epoch: Epoch::NONE,
                    phase: Phase::Live,
                    ended_at: None,
                    parked: false,
                    approvals: BTreeSet::new(),
                    copied: false,
                },
                head: None,
                lease: LeaseState::default(),
                rows: BTreeSet::new(),
                digest: Some(LoadedDigest::default()),
                sums: HashMap::new(),
                used: self.groups,
            },
        };
        let taken = self.apply_records(link, &mut live, loom, step, &drafts, care).await;
        self.runs.insert(run, live);
        Ok(match taken? {
            Ok(records) => StepDecision::Accepted(AcceptedStep { drafts, records, changes, written, refused }),
            Err(error) => StepDecision::Refused(error),
        })
    }

    /// Returns the loom of the run of a step.
    fn loom_of(&self, step: &Step, run: RunId) -> Option<LoomId> {
        let opening = step.records.first().and_then(|draft| draft.run_opening());
        let known = || self.runs.get(&run).map(|live| live.part.opening.loom_id);
        opening.map(|opening| opening.loom_id).or_else(known)
    }

    async fn has_required_bodies(
        &mut self,
        link: &mut DbConnection,
        step: &Step,
    ) -> Result<Result<bool, Error>, StoreFault> {
        let wanted = match step.required_bodies() {
            Ok(wanted) => wanted,
            Err(error) => return Ok(Err(error)),
        };
        if wanted.is_empty() {
            return Ok(Ok(true));
        }
        self.flush(link).await?;
        let sql = format!("SELECT body_hash FROM bodies WHERE body_hash IN ({LIST})");
        let mut found = BTreeSet::new();
        for mut row in link.query_in_list(&sql, &[], wanted.iter().map(|hash| Value::from(*hash))).await? {
            found.insert(row.hash()?);
        }
        Ok(Ok(wanted.iter().all(|hash| found.contains(hash))))
    }

    /// Applies the records of a step to the tree of its run.
    async fn apply_records(
        &mut self,
        link: &mut DbConnection,
        live: &mut LiveRun,
        loom: LoomId,
        step: &Step,
        drafts: &[RecordDraft],
        care: CheckLevel,
    ) -> Result<Result<Vec<Record>, Error>, StoreFault> {
        let mut records = Vec::with_capacity(drafts.len());
        let (mut seq, mut head) = (live.part.newest, live.head);
        for draft in drafts {
            let brought = if care == CheckLevel::Full { created_item(draft.event()) } else { None };
            for needed in draft.event().dependencies().into_iter().chain(brought) {
                if live.partial.tree.contains(loom, needed) {
                    continue;
                }
                match needed {
                    Dependency::Cantrip(cantrip) if self.roots.contains_key(&(loom, cantrip)) => {
                        live.partial.tree.insert_root(self.roots[&(loom, cantrip)].clone());
                    }
                    Dependency::Cantrip(_) | Dependency::Entity(_) | Dependency::Cast(_) | Dependency::Turn(_) => {
                        self.flush(link).await?;
                        live.partial.load_dependency(link, loom, needed).await?;
                    }
                }
            }
            seq = seq.next();
            let epoch = draft.epoch().unwrap_or_else(|| step.epoch());
            let record = Record::from_draft(draft, live.part.run_id, seq, epoch, head.as_ref());
            if let Err(error) = live.partial.tree.apply_draft(&record, draft.clone()) {
                return Ok(Err(error));
            }
            head = Some(record.hash);
            records.push(record);
        }
        if let StepTarget::Import { run, .. } = step.target {
            live.partial.tree.mark_copied(run);
        }
        live.head = head;
        Ok(Ok(records))
    }
}

/// The decision about a step before it is written.
enum StepDecision {
    Accepted(AcceptedStep),
    Answered(AppendOutcome),
    Refused(Error),
}

/// Returns the thing that a record creates. It must not exist yet.
fn created_item(event: &Event) -> Option<Dependency> {
    if let Event::Entity(entity) = event {
        Some(Dependency::Entity(entity.entity_id))
    } else if let Event::Cast(cast) = event {
        Some(Dependency::Cast(cast.cast_id))
    } else {
        event.as_opened().map(|opened| Dependency::Turn(opened.turn_id))
    }
}
