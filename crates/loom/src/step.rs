//! A step: everything that is written together or not at all, as data.
//!
//! With separate writes for turns, replies, money and events, a crash between two of them would leave an answer that
//! nobody paid for, or a payment without an answer. So there is one write,
//! [`Journal::append`](crate::Journal::append), and a step is its argument.

use std::collections::HashSet;
use std::time::Duration;

use cantrip_canon::{EntityId, Hash, RunId, Timestamp};
use cantrip_contract::{ContractFault, ContractRow};
use cantrip_spend::{Decision, Operation};
use serde::{Deserialize, Serialize};

use crate::limits::{STEP_BODIES_BYTES_MAX, STEP_RECORDS_MAX, STEP_ROWS_MAX};
use crate::{Body, Epoch, Error, Projection, RecordDraft, Seq, StepId, WorkerId};

/// The right to write to a run for a limited time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub run: RunId,
    pub owner: WorkerId,
    pub epoch: Epoch,
    /// From this time on another worker may take over the run. Until one does, this lease still allows writing: the
    /// epoch fences out old writers, not the clock.
    pub expires_at: Timestamp,
}

impl Lease {
    /// Returns true if both leases belong to the same holder. A renewal changes only the expiry time.
    pub fn same(&self, other: &Self) -> bool {
        self.run == other.run && self.owner == other.owner && self.epoch == other.epoch
    }

    /// Makes the lease that is written together with the run it is for: the worker that opens a run may become its
    /// first owner in the same step.
    pub fn first(run: RunId, owner: WorkerId, expires_at: Timestamp) -> Self {
        Self { run, owner, epoch: Epoch::FIRST, expires_at }
    }
}

/// The state of the leases of one run, as a store keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseState {
    /// The highest epoch that was given out or written.
    pub epoch: Epoch,
    /// None if any worker may acquire the run.
    pub holder: Option<Lease>,
}

impl Default for LeaseState {
    fn default() -> Self {
        Self { epoch: Epoch::NONE, holder: None }
    }
}

impl LeaseState {
    /// See [`Journal::acquire`](crate::Journal::acquire).
    pub fn acquire(&mut self, run: RunId, owner: WorkerId, now: Timestamp, lasts: Duration) -> Result<Lease, Error> {
        if let Some(held) = self.holder.as_ref().filter(|held| held.expires_at > now) {
            return Err(Error::LeaseHeld { run, by: held.owner.clone(), until: held.expires_at });
        }
        self.epoch = self.epoch.next();
        let lease = Lease { run, owner, epoch: self.epoch, expires_at: now.after(lasts) };
        self.holder = Some(lease.clone());
        Ok(lease)
    }

    /// See [`Journal::renew`](crate::Journal::renew).
    pub fn renew(&mut self, lease: &Lease, now: Timestamp, lasts: Duration) -> Result<Lease, Error> {
        match self.holder.as_mut().filter(|held| held.same(lease)) {
            None => Err(Error::LeaseLost { run: lease.run, held: lease.epoch, now: self.epoch }),
            Some(held) if held.expires_at <= now => Err(Error::LeaseExpired { run: lease.run, at: held.expires_at }),
            Some(held) => {
                held.expires_at = now.after(lasts);
                Ok(held.clone())
            }
        }
    }

    /// Gives the lease back. Returns true if it was held.
    pub fn release(&mut self, lease: &Lease) -> bool {
        let held = self.holder.as_ref().is_some_and(|held| held.same(lease));
        if held {
            self.holder = None;
        }
        held
    }
}

/// The run that a step writes to, and the right by which it may write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepTarget {
    /// The first step of a run. With a lease, its writer becomes the first owner of the run; without one, any worker
    /// may acquire the run.
    OpenRun { run: RunId, lease: Option<Lease> },
    /// A later step, written by the owner of the run.
    OwnedRun(Lease),
    /// Annotations, which need no lease: see [`Kind::annotates`](crate::Kind::annotates).
    Annotation(RunId),
    /// Records that were written elsewhere, with their own epochs and times. They follow record `after` of the run.
    Import { run: RunId, after: Seq },
    /// Outside every run: an authorization is given, changed or revoked, or a contract or a dataset is added. The step
    /// has no records; repeating it changes nothing. A step of bodies alone prepares a dataset whose bodies are too
    /// large for one step.
    OutsideRuns,
}

impl StepTarget {
    pub fn run(&self) -> Option<RunId> {
        match self {
            Self::OpenRun { run, .. } | Self::Annotation(run) | Self::Import { run, .. } => Some(*run),
            Self::OwnedRun(lease) => Some(lease.run),
            Self::OutsideRuns => None,
        }
    }
}

/// One write.
///
/// A store that keeps no contracts must refuse a step with `contract`, and a store without a ledger must refuse a step
/// with `money`. The store records the outcome of the money operations in records of its own, after those of the step.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// A repeated step has the same id and the same content.
    pub id: StepId,
    pub target: StepTarget,
    /// In order.
    pub records: Vec<RecordDraft>,
    /// In order; each operation sees the effect of the ones before it.
    pub money: Vec<Operation>,
    /// Signatures, artifacts, predicts, receipts, traces, changes of pointers, datasets, jobs and reports. In order;
    /// each row sees the effect of the ones before it.
    pub contract: Vec<ContractRow>,
    /// Written instead of `records` and all of `money` if a reserve is refused.
    pub if_refused: Vec<RecordDraft>,
    /// Written instead of `contract` if a reserve is refused.
    pub contract_if_refused: Vec<ContractRow>,
    /// Bodies that the records and the contract rows name by hash and that the store may not have yet.
    pub bodies: Vec<Body>,
}

impl Step {
    fn at(id: StepId, target: StepTarget) -> Self {
        let (records, money, if_refused, bodies) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (contract, contract_if_refused) = (Vec::new(), Vec::new());
        Self { id, target, records, money, contract, if_refused, contract_if_refused, bodies }
    }

    /// Makes the first step of a run. Its first record is made by [`RecordDraft::opening`].
    pub fn open_run(id: StepId, run: RunId, lease: Option<Lease>) -> Self {
        Self::at(id, StepTarget::OpenRun { run, lease })
    }

    /// Makes a step of the owner of a run.
    pub fn for_lease(id: StepId, lease: Lease) -> Self {
        Self::at(id, StepTarget::OwnedRun(lease))
    }

    /// Makes a step that annotates a run.
    pub fn annotation(id: StepId, run: RunId) -> Self {
        Self::at(id, StepTarget::Annotation(run))
    }

    /// Makes a step that imports records which were written elsewhere.
    pub fn import(id: StepId, run: RunId, after: Seq) -> Self {
        Self::at(id, StepTarget::Import { run, after })
    }

    /// Makes a step for a change outside every run.
    pub fn outside_runs(id: StepId) -> Self {
        Self::at(id, StepTarget::OutsideRuns)
    }

    #[must_use]
    pub fn record(mut self, draft: RecordDraft) -> Self {
        self.records.push(draft);
        self
    }

    #[must_use]
    pub fn records(mut self, drafts: impl IntoIterator<Item = RecordDraft>) -> Self {
        self.records.extend(drafts);
        self
    }

    #[must_use]
    pub fn money(mut self, operation: Operation) -> Self {
        self.money.push(operation);
        self
    }

    #[must_use]
    pub fn contract(mut self, row: ContractRow) -> Self {
        self.contract.push(row);
        self
    }

    #[must_use]
    pub fn if_refused(mut self, draft: RecordDraft) -> Self {
        self.if_refused.push(draft);
        self
    }

    #[must_use]
    pub fn bodies(mut self, bodies: impl IntoIterator<Item = Body>) -> Self {
        self.bodies.extend(bodies);
        self
    }

    /// Returns the run; none if the step is outside every run.
    pub fn run(&self) -> Option<RunId> {
        self.target.run()
    }

    /// Returns the epoch under which the records are written. Imported records keep their own epochs.
    pub fn epoch(&self) -> Epoch {
        match &self.target {
            StepTarget::OpenRun { lease, .. } => lease.as_ref().map_or(Epoch::NONE, |lease| lease.epoch),
            StepTarget::OwnedRun(lease) => lease.epoch,
            StepTarget::Annotation(_) | StepTarget::Import { .. } | StepTarget::OutsideRuns => Epoch::NONE,
        }
    }

    /// Returns the bodies that the records and the contract rows name and that are not part of the step. They must be
    /// stored already.
    pub fn required_bodies(&self) -> Result<Vec<Hash>, Error> {
        // A dataset may name a hundred thousand bodies.
        let mut known: HashSet<Hash> = self.bodies.iter().map(Body::hash).collect();
        let mut wanted = Vec::new();
        for draft in self.records.iter().chain(&self.if_refused) {
            wanted.extend(draft.bodies()?.into_iter().filter(|hash| known.insert(*hash)));
        }
        for row in self.contract.iter().chain(&self.contract_if_refused) {
            wanted.extend(row.bodies().into_iter().filter(|hash| known.insert(*hash)));
        }
        Ok(wanted)
    }

    /// Returns the error of a store that does not have one of the [`required_bodies`](Self::required_bodies).
    pub fn missing_body_error(&self) -> Error {
        Error::InvalidStep { run: self.run(), fault: "it names a body that is not there" }
    }

    /// Returns an error if the step is invalid whatever the store holds. Every store checks this first.
    pub fn validation_error(&self) -> Option<Error> {
        let refused = |fault| Some(Error::InvalidStep { run: self.run(), fault });
        let refused_if = |wrong: bool, fault| if wrong { refused(fault) } else { None };
        // A decision that is only noted moves no money: a run that policy refused has one and never had an owner.
        let moves = self.money.iter().any(|operation| !matches!(operation, Operation::Note(_)));
        let unowned = matches!(self.target, StepTarget::OpenRun { lease: None, .. }) && moves;
        if unowned {
            return refused("only the owner of a run moves its money");
        }
        let records = || self.records.iter().chain(&self.if_refused);
        if records().count() > STEP_RECORDS_MAX {
            let bytes = records().count() as u64;
            return Some(Error::TooLarge { what: "the records of a step", bytes, limit: STEP_RECORDS_MAX as u64 });
        }
        let bytes: u64 = self.bodies.iter().map(|body| body.bytes().len() as u64).sum();
        if bytes > STEP_BODIES_BYTES_MAX as u64 {
            return Some(Error::TooLarge { what: "the bodies of a step", bytes, limit: STEP_BODIES_BYTES_MAX as u64 });
        }
        let apart = matches!(self.target, StepTarget::OutsideRuns);
        let bodies_alone = apart && !self.bodies.is_empty();
        if self.records.is_empty() && self.money.is_empty() && self.contract.is_empty() && !bodies_alone {
            return refused("it has neither records nor money nor contracts");
        }
        let rows = || self.contract.iter().chain(&self.contract_if_refused);
        if rows().count() > STEP_ROWS_MAX {
            let bytes = rows().count() as u64;
            return Some(Error::TooLarge { what: "the contracts of a step", bytes, limit: STEP_ROWS_MAX as u64 });
        }
        if rows().any(ContractRow::is_too_large) {
            return refused("one of its contract rows is too large");
        }
        if rows().any(|row| row.is_outside_runs() != apart) {
            return refused("what belongs to a run is written in it, what belongs to none outside every run");
        }
        let opens = |records: &[RecordDraft]| records.first().is_some_and(|first| first.opening.is_some());
        let opened_late = |records: &[RecordDraft]| records.iter().skip(1).any(|draft| draft.opening.is_some());
        if opened_late(&self.records) || opened_late(&self.if_refused) {
            return refused("only the first record of a run opens it");
        }
        match &self.target {
            StepTarget::OpenRun { run, lease } => {
                if !opens(&self.records) || (!self.if_refused.is_empty() && !opens(&self.if_refused)) {
                    return refused("the first record of a run must open it");
                }
                match lease {
                    Some(lease) if lease.run != *run || lease.epoch != Epoch::FIRST => {
                        refused("a run is opened under its own first lease or under none")
                    }
                    Some(_) | None => None,
                }
            }
            StepTarget::OwnedRun(_) => {
                refused_if(opens(&self.records) || opens(&self.if_refused), "the run is open already")
            }
            StepTarget::Annotation(_) => {
                let annotates = |draft: &RecordDraft| draft.kind.annotates() && draft.opening.is_none();
                let annotation = records().all(annotates) && rows().all(ContractRow::is_annotation);
                refused_if(!annotation, "only annotations are written without a lease")
            }
            StepTarget::OutsideRuns => {
                let placed = self.money.iter().all(Operation::is_of_authorization);
                let wrong = !placed || records().next().is_some();
                refused_if(wrong, "outside every run only authorizations and contracts change")
            }
            StepTarget::Import { after, .. } => {
                if !self.money.is_empty() || !self.contract.is_empty() {
                    refused("copies move no money and make no contracts")
                } else {
                    let wrong = opens(&self.records) != (*after == Seq::START);
                    refused_if(wrong, "a copied run begins with the record that opened it")
                }
            }
        }
    }
}

/// The facts about a run by which a store checks a step.
#[derive(Debug)]
pub struct RunWriteState<'a> {
    pub newest: Seq,
    /// True if the records of the run were written elsewhere.
    pub copied: bool,
    /// The lease of the run, expired or not.
    pub holder: Option<&'a Lease>,
    /// The highest epoch that was given out or written.
    pub epoch: Epoch,
}

impl Step {
    /// Checks whether the step may be written, and returns the conflict if it may not. `standing` is the state of its
    /// run in the store (none if the run does not exist). `tree` needs to hold only the run, and which run holds the
    /// entity of the step. All stores call this one function, so that the same step gets the same answer everywhere;
    /// that is the point of having a trait.
    pub fn check_conflicts(
        &self,
        standing: Option<&RunWriteState<'_>>,
        tree: &Projection,
    ) -> Result<Option<AppendOutcome>, Error> {
        let Some(run) = self.run() else { return Ok(None) };
        let conflict = |conflict| Ok(Some(AppendOutcome::Conflict(conflict)));
        match (&self.target, standing) {
            (StepTarget::OpenRun { .. }, None) => {}
            (StepTarget::OpenRun { .. }, Some(_)) => return conflict(Conflict::RunExists { run }),
            (StepTarget::OwnedRun(_) | StepTarget::Annotation(_), None) => return Err(Error::not_found("run", run)),
            (StepTarget::OwnedRun(lease), Some(standing)) => {
                if !standing.holder.is_some_and(|holder| holder.same(lease)) {
                    return Ok(Some(AppendOutcome::Fenced { held: lease.epoch, now: standing.epoch }));
                }
            }
            (StepTarget::Annotation(_), Some(_)) | (StepTarget::OutsideRuns, _) => {}
            (StepTarget::Import { .. }, Some(standing)) if !standing.copied => {
                return conflict(Conflict::RunExists { run });
            }
            (StepTarget::Import { after, .. }, standing) => {
                let newest = standing.map_or(Seq::START, |standing| standing.newest);
                if newest != *after {
                    return conflict(Conflict::Behind { run, newest });
                }
            }
        }
        let annotates = self.annotates();
        if tree.has_ended(run) == Some(true) && !annotates {
            // An imported summon ends with its first record, and more records follow.
            let imported = matches!(self.target, StepTarget::Import { .. });
            return if imported { Ok(None) } else { conflict(Conflict::RunEnded { run }) };
        }
        match self.required_entity(tree).and_then(|entity| tree.live_run_by_entity(entity).map(|run| (entity, run))) {
            Some((entity, holder)) => conflict(Conflict::EntityBusy { entity, run: holder }),
            None => Ok(None),
        }
    }

    /// Returns the entity that must not be in use by another live run: the entity of a run that this step opens, or of
    /// a failed run that continues.
    pub fn required_entity(&self, tree: &Projection) -> Option<EntityId> {
        let opening = self.records.first().and_then(|draft| draft.opening.as_ref());
        let opened = opening.and_then(|opening| opening.entity_id);
        opened.or_else(|| self.run().and_then(|run| tree.failed_entity(run)).filter(|_| !self.annotates()))
    }

    /// Returns true if everything in the step may be written after the end of its run.
    fn annotates(&self) -> bool {
        self.records.iter().all(|draft| draft.kind.annotates())
            && self.money.iter().all(Operation::is_annotation)
            && self.contract.iter().all(ContractRow::is_annotation)
    }
}

/// The answer of a store to a step.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a step that was not committed has not happened"]
pub enum AppendOutcome {
    /// Everything is durable. Holds the position of the last record of the step, or of the newest record of the run if
    /// the step has no records.
    Committed(Seq),
    /// Policy refused a reserve. Only `if_refused` is durable.
    Refused(Decision),
    /// Only open holds of the same tree use up the budget; nothing is written. Try again when one of them settles.
    Wait,
    /// The step contradicts what is stored; nothing is written.
    Conflict(Conflict),
    /// The lease no longer owns the run; nothing is written. The worker must stop working on the run.
    Fenced { held: Epoch, now: Epoch },
}

/// The reason why a step contradicts what is stored.
#[derive(Debug, Clone, PartialEq)]
pub enum Conflict {
    /// A step with this id was committed with other content.
    Step { id: StepId },
    /// The run is open already.
    RunExists { run: RunId },
    /// The run has ended: only annotations may follow.
    RunEnded { run: RunId },
    /// The entity has another live run.
    EntityBusy { entity: EntityId, run: RunId },
    /// The newest record of the run is not the one that the import was to follow.
    Behind { run: RunId, newest: Seq },
    /// A money operation does not fit the ledger.
    Money { what: String, fault: cantrip_spend::LedgerFault },
    /// A contract row does not fit the store: the id is published with other content, someone else changed the pointer
    /// first, or the idempotency key is taken.
    Contract(Box<ContractFault>),
}
