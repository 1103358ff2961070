//! The in-memory state of a loom, and its decisions about steps. The in-memory loom and the JSONL loom share it.
//!
//! Deciding and storing are separate: [`State::stage`] decides about a step and applies it. A loom with a disk then
//! writes the staged records, and calls [`State::roll_back`] if the write fails.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use cantrip_canon::{Hash, RunId, Timestamp};
use cantrip_contract::ContractUpsert;
use cantrip_spend::Changes;

use crate::contracts;
use crate::ledger::MemoryLedger;
use crate::limits::LEASE_OWNERS_MAX;
use crate::money::MoneyOutcome;
use crate::overview::Digests;
use crate::{
    AppendOutcome, Conflict, Epoch, Error, Event, Lease, LeaseState, ListPage, PageRequest, Projection, Record,
    RecordDraft, RunOpening, RunState, RunView, RunWriteState, Seq, Step, StepId, StepTarget, WorkerId,
};

/// A record with the facts that the store adds to it.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub record: Record,
    /// Set on the last record of a step.
    pub step: Option<StepId>,
    /// True if the record was written elsewhere.
    pub copied: bool,
}

#[derive(Debug, Default)]
struct RunLog {
    /// The positions of the run's records in the log.
    places: Vec<usize>,
    head: Option<Hash>,
    /// The first and the last position of each step, within the run.
    steps: HashMap<StepId, (usize, usize)>,
    step_from: usize,
    copied: bool,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// None if the loom keeps no ledger.
    ledger: Option<MemoryLedger>,
    contracts: Option<contracts::MemoryContracts>,
    projection: Projection,
    #[expect(clippy::vec_box, reason = "a log of a million records must not be copied to grow by one")]
    log: Vec<Box<Stored>>,
    runs: HashMap<RunId, RunLog>,
    leases: HashMap<RunId, LeaseState>,
    /// Computed from the log by readers, when they need it.
    folded: Mutex<Digests>,
}

/// The outcome of a staged step.
#[derive(Debug)]
pub(crate) enum StageOutcome {
    /// Nothing has to be written.
    Answered(AppendOutcome),
    /// The step added records to the log. The answer is valid once they are durable.
    Written(AppendOutcome),
}

impl State {
    /// Makes a state with contracts and a ledger that holds `auth_local`.
    pub(crate) fn with_ledger() -> Self {
        let contracts = Some(contracts::MemoryContracts::default());
        Self { ledger: Some(MemoryLedger::with_local()), contracts, ..Self::default() }
    }

    pub(crate) fn contracts(&self) -> Result<&contracts::MemoryContracts, Error> {
        self.contracts.as_ref().ok_or(Error::NoContracts)
    }

    pub(crate) fn ledger(&self) -> Result<&MemoryLedger, Error> {
        self.ledger.as_ref().ok_or(Error::NoLedger)
    }

    /// Returns the highest epoch of a run, and the time at which its lease expires.
    pub(crate) fn lease_of(&self, run: RunId) -> (Epoch, Option<Timestamp>) {
        let holder = self.leases.get(&run).and_then(|tenure| tenure.holder.as_ref());
        (self.epoch(run), holder.map(|lease| lease.expires_at))
    }

    pub(crate) fn projection(&self) -> &Projection {
        &self.projection
    }

    pub(crate) fn len(&self) -> usize {
        self.log.len()
    }

    pub(crate) fn stored(&self, from: usize) -> &[Box<Stored>] {
        &self.log[from..]
    }

    pub(crate) fn records(&self) -> Vec<Record> {
        self.log.iter().map(|stored| stored.record.clone()).collect()
    }

    pub(crate) fn records_of(&self, run: RunId, after: Seq) -> Result<Vec<Record>, Error> {
        Ok(self.placed_records_of(run, after)?.map(|(_, record)| record.clone()).collect())
    }

    /// Returns the records of a run after this one, each with its position in the log.
    pub(crate) fn placed_records_of(
        &self,
        run: RunId,
        after: Seq,
    ) -> Result<impl Iterator<Item = (u64, &Record)>, Error> {
        let log = self.runs.get(&run).ok_or_else(|| Error::not_found("run", run))?;
        let from = usize::try_from(after.get()).unwrap_or(usize::MAX).min(log.places.len());
        Ok(log.places[from..].iter().map(|place| (*place as u64, &self.log[*place].record)))
    }

    pub(crate) fn folded(&self) -> &Mutex<Digests> {
        &self.folded
    }

    pub(crate) fn newest(&self, run: RunId) -> Result<Seq, Error> {
        self.runs.get(&run).map(|log| Seq::new(log.places.len() as u64)).ok_or_else(|| Error::not_found("run", run))
    }

    /// Returns the hash of the newest record of a run.
    pub(crate) fn head(&self, run: RunId) -> Option<Hash> {
        self.runs.get(&run).and_then(|log| log.head)
    }

    /// Decides about a step and applies it. `has_body` returns true for the bodies that are stored.
    pub(crate) fn stage(&mut self, step: Step, has_body: impl Fn(&Hash) -> bool) -> Result<StageOutcome, Error> {
        if let Some(broken) = step.validation_error() {
            return Err(broken);
        }
        let plain = step.contract.is_empty() && step.contract_if_refused.is_empty();
        if !step.money.is_empty() {
            self.ledger()?;
        }
        let bodies_alone = step.run().is_none() && !step.bodies.is_empty();
        if !plain || bodies_alone {
            self.contracts()?;
        }
        let Some(run) = step.run() else {
            if step.required_bodies()?.iter().any(|hash| !has_body(hash)) {
                return Err(step.missing_body_error());
            }
            return self.pay(step, None);
        };
        if let Some(answer) = self.earlier_outcome(&step, run)? {
            return Ok(StageOutcome::Answered(answer));
        }
        if let Some(answer) = self.check_conflicts(&step, run)? {
            return Ok(StageOutcome::Answered(answer));
        }
        if step.required_bodies()?.iter().any(|hash| !has_body(hash)) {
            return Err(step.missing_body_error());
        }
        if step.money.is_empty() && plain {
            return Ok(StageOutcome::Written(AppendOutcome::Committed(self.write(step, run, Vec::new())?)));
        }
        self.pay(step, Some(run))
    }

    /// Computes the contract changes of a step, given the changes of its money.
    fn file(
        &self,
        step: &Step,
        changes: &Changes,
        refused: bool,
    ) -> Result<Result<Vec<ContractUpsert>, Conflict>, Error> {
        if step.rows(refused).is_empty() {
            return Ok(Ok(Vec::new()));
        }
        let accounts = self.ledger()?.accounts(&step.receipt_reservations(refused), changes, refused);
        Ok(step.apply_contracts(refused, self.contracts()?.shelf(step.rows(refused)), &accounts))
    }

    /// Writes a step that moves money or makes contracts. If policy refuses the step, writes its records for that
    /// case.
    fn pay(&mut self, mut step: Step, run: Option<RunId>) -> Result<StageOutcome, Error> {
        let standing = run.and_then(|run| self.write_state(run));
        let (answer, changes, written) = match step
            .apply_money(self.ledger()?.book(), standing.as_ref(), &|call| self.projection.has_reply(call))?
        {
            MoneyOutcome::Answered(answer) => return Ok(StageOutcome::Answered(answer)),
            MoneyOutcome::Moved { changes, told } => {
                let written = match self.file(&step, &changes, false)? {
                    Ok(written) => written,
                    Err(conflict) => return Ok(StageOutcome::Answered(AppendOutcome::Conflict(conflict))),
                };
                let answer = match run {
                    Some(run) => AppendOutcome::Committed(self.write(step, run, told)?),
                    None => AppendOutcome::Committed(Seq::START),
                };
                (answer, changes, written)
            }
            MoneyOutcome::Refused { changes, decision, told } => {
                let written = match self.file(&step, &changes, true)? {
                    Ok(written) => written,
                    Err(conflict) => return Ok(StageOutcome::Answered(AppendOutcome::Conflict(conflict))),
                };
                step.records = std::mem::take(&mut step.if_refused);
                let answer = AppendOutcome::Refused(decision);
                match run {
                    // A run that is not open cannot record the refusal either.
                    Some(run) if !step.records.is_empty() || self.runs.contains_key(&run) => {
                        self.write(step, run, vec![*told])?;
                    }
                    Some(_) | None => return Ok(StageOutcome::Answered(answer)),
                }
                (answer, changes, written)
            }
        };
        if let Some(ledger) = &mut self.ledger {
            ledger.take(*changes);
        }
        if let Some(contracts) = &mut self.contracts {
            contracts.take(written);
        }
        Ok(StageOutcome::Written(answer))
    }

    /// Returns the earlier answer if the run has committed this step already.
    fn earlier_outcome(&self, step: &Step, run: RunId) -> Result<Option<AppendOutcome>, Error> {
        let log = self.runs.get(&run);
        let Some((log, (first, last))) = log.and_then(|log| Some((log, *log.steps.get(&step.id)?))) else {
            return Ok(None);
        };
        let stored: Vec<Record> =
            log.places[first..=last].iter().map(|place| self.log[*place].record.clone()).collect();
        let other = || AppendOutcome::Conflict(Conflict::Step { id: step.id.clone() });
        Ok(Some(step.earlier_outcome(&stored)?.unwrap_or_else(other)))
    }

    /// Returns the conflict of a new step, if there is one.
    fn check_conflicts(&self, step: &Step, run: RunId) -> Result<Option<AppendOutcome>, Error> {
        step.check_conflicts(self.write_state(run).as_ref(), &self.projection)
    }

    fn write_state(&self, run: RunId) -> Option<RunWriteState<'_>> {
        self.runs.get(&run).map(|log| RunWriteState {
            newest: Seq::new(log.places.len() as u64),
            copied: log.copied,
            holder: self.leases.get(&run).and_then(|row| row.holder.as_ref()),
            epoch: self.epoch(run),
        })
    }

    /// Writes the records of a step, followed by the records about its money.
    fn write(&mut self, step: Step, run: RunId, told: Vec<RecordDraft>) -> Result<Seq, Error> {
        let before = self.log.len();
        let epoch = step.epoch();
        let copied = matches!(step.target, StepTarget::Import { .. });
        let count = step.records.len() + told.len();
        let mut seq = Seq::new(self.runs.get(&run).map_or(0, |log| log.places.len() as u64));
        for (at, draft) in step.records.into_iter().chain(told).enumerate() {
            seq = seq.next();
            let head = self.head(run);
            let record = Record::from_draft(&draft, run, seq, draft.epoch.unwrap_or(epoch), head.as_ref());
            let stored = Stored { record, step: (at + 1 == count).then(|| step.id.clone()), copied };
            let RecordDraft { event, opening, .. } = draft;
            if let Err(error) = self.push_record(stored, event, opening) {
                self.roll_back(before);
                return Err(error);
            }
        }
        if let StepTarget::OpenRun { lease: Some(lease), .. } = step.target {
            self.leases.insert(run, LeaseState { epoch: lease.epoch, holder: Some(lease) });
        }
        Ok(seq)
    }

    fn push_record(&mut self, stored: Stored, event: Event, opening: Option<RunOpening>) -> Result<(), Error> {
        self.projection.apply_event(&stored.record, event, opening)?;
        if stored.copied {
            self.projection.mark_copied(stored.record.run);
        }
        let log = self.runs.entry(stored.record.run).or_default();
        log.places.push(self.log.len());
        log.head = Some(stored.record.hash);
        log.copied |= stored.copied;
        if let Some(step) = &stored.step {
            log.steps.insert(step.clone(), (log.step_from, log.places.len() - 1));
            log.step_from = log.places.len();
        }
        self.log.push(Box::new(stored));
        Ok(())
    }

    /// Adds a record that was read back.
    pub(crate) fn restore(&mut self, stored: Stored) -> Result<(), Error> {
        let (event, opening) = stored.record.read()?;
        self.push_record(stored, event, opening)
    }

    /// Removes all records after the first `length`. Used only after a failure, because it rebuilds the rest of the
    /// state.
    pub(crate) fn roll_back(&mut self, length: usize) {
        let mut log = std::mem::take(&mut self.log);
        log.truncate(length);
        let leases = std::mem::take(&mut self.leases);
        let (ledger, contracts) = (self.ledger.take(), self.contracts.take());
        *self = Self { leases, ledger, contracts, ..Self::default() };
        for stored in log {
            self.restore(*stored).expect("what was taken in once is taken in again");
        }
    }

    fn epoch(&self, run: RunId) -> Epoch {
        let written = self.projection.run(run, false).map_or(Epoch::NONE, |view| view.epoch);
        self.leases.get(&run).map_or(written, |row| row.epoch.max(written))
    }

    pub(crate) fn acquire(
        &mut self,
        run: RunId,
        owner: WorkerId,
        now: Timestamp,
        lasts: Duration,
    ) -> Result<Lease, Error> {
        self.newest(run)?;
        let mut tenure = LeaseState { epoch: self.epoch(run), ..self.leases.get(&run).cloned().unwrap_or_default() };
        let lease = tenure.acquire(run, owner, now, lasts)?;
        self.leases.insert(run, tenure);
        Ok(lease)
    }

    pub(crate) fn renew(&mut self, lease: &Lease, now: Timestamp, lasts: Duration) -> Result<Lease, Error> {
        let epoch = self.epoch(lease.run);
        self.leases.entry(lease.run).or_insert(LeaseState { epoch, holder: None }).renew(lease, now, lasts)
    }

    pub(crate) fn release(&mut self, lease: &Lease) {
        if let Some(tenure) = self.leases.get_mut(&lease.run) {
            tenure.release(lease);
        }
    }

    pub(crate) fn holder(&self, run: RunId) -> Result<Option<Lease>, Error> {
        self.newest(run)?;
        Ok(self.leases.get(&run).and_then(|row| row.holder.clone()))
    }

    /// Records an epoch that was given out earlier and that nobody holds any more.
    pub(crate) fn remember_epoch(&mut self, run: RunId, epoch: Epoch) {
        let row = self.leases.entry(run).or_insert(LeaseState { epoch, holder: None });
        row.epoch = row.epoch.max(epoch);
    }

    pub(crate) fn is_held(&self, run: RunId) -> bool {
        self.leases.get(&run).is_some_and(|row| row.holder.is_some())
    }

    /// Lists the runs that any worker may take up.
    pub(crate) fn orphans(&self, now: Timestamp, page: PageRequest) -> Result<ListPage<RunView>, Error> {
        let held = |run: &RunId| self.leases.get(run).and_then(|row| row.holder.as_ref());
        let alive = |run: RunId| held(&run).is_some_and(|lease| lease.expires_at > now);
        let free = |view: &RunView| matches!(view.state, RunState::Queued | RunState::Running) && !alive(view.run_id);
        self.with_epochs(self.projection.runs_where(page, alive, free)?)
    }

    /// Lists the owners that hold a lease of a live run.
    pub(crate) fn lease_owners(&self) -> Result<Vec<WorkerId>, Error> {
        let mut owners: Vec<WorkerId> = Vec::new();
        for lease in self.leases.values().filter_map(|row| row.holder.as_ref()) {
            if !owners.contains(&lease.owner) && self.run(lease.run)?.state.is_live() {
                owners.push(lease.owner.clone());
            }
        }
        owners.truncate(LEASE_OWNERS_MAX);
        Ok(owners)
    }

    /// Lists the leases of live runs that an owner holds.
    pub(crate) fn leases_of(&self, owner: &WorkerId, page: PageRequest) -> Result<ListPage<Lease>, Error> {
        let held = |run: RunId| self.leases.get(&run).and_then(|row| row.holder.as_ref());
        let is_owned = |run: RunId| held(run).is_some_and(|lease| lease.owner == *owner);
        let listed = self.runs(page, |view| view.state.is_live() && is_owned(view.run_id))?;
        let items = listed.items.iter().filter_map(|view| held(view.run_id).cloned()).collect();
        Ok(ListPage { items, next: listed.next })
    }

    /// Lists the runs for which `kept` returns true.
    pub(crate) fn runs(&self, page: PageRequest, kept: impl Fn(&RunView) -> bool) -> Result<ListPage<RunView>, Error> {
        self.with_epochs(self.projection.runs_where(page, |run| self.is_held(run), kept)?)
    }

    /// Lists the runs for which `kept` returns true, the newest first.
    pub(crate) fn latest_runs(
        &self,
        page: PageRequest,
        kept: impl Fn(&RunView) -> bool,
    ) -> Result<ListPage<RunView>, Error> {
        self.with_epochs(self.projection.latest_runs_where(page, |run| self.is_held(run), kept)?)
    }

    pub(crate) fn last_run(&self) -> Result<Option<RunView>, Error> {
        self.projection.last_run().map(|run| self.run(run)).transpose()
    }

    /// Sets the epochs of the listed runs. An epoch counts from the time at which it is given out, also before
    /// something is written under it.
    fn with_epochs(&self, mut listed: ListPage<RunView>) -> Result<ListPage<RunView>, Error> {
        for view in &mut listed.items {
            view.epoch = self.epoch(view.run_id);
        }
        Ok(listed)
    }

    pub(crate) fn run(&self, run: RunId) -> Result<RunView, Error> {
        let mut view = self.projection.run(run, self.is_held(run))?;
        view.epoch = self.epoch(run);
        Ok(view)
    }
}
