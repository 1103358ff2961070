//! What a loom holds in memory, and how it decides about a step: shared by the in-memory and the JSONL loom.
//!
//! Deciding and storing are apart: [`State::stage`] says what a step comes to and takes it in; whoever has a disk
//! writes what was staged, and calls [`State::roll_back`] if that fails.

use std::collections::HashMap;
use std::time::Duration;

use cantrip_canon::{Hash, RunId, Timestamp};

use crate::{
    Answer, Conflict, Draft, Epoch, Error, Event, Lease, Opening, Owner, Place, Projection, Record, RunView, Seq, Step,
    StepId, refs,
};

/// A record with what the store knows about it.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub record: Record,
    /// On the last record of a step.
    pub step: Option<StepId>,
    /// Written elsewhere.
    pub copied: bool,
}

#[derive(Debug, Default)]
struct RunLog {
    /// Where its records lie in the log.
    places: Vec<usize>,
    head: Option<Hash>,
    /// First and last place of each step, in the run.
    steps: HashMap<StepId, (usize, usize)>,
    step_from: usize,
    copied: bool,
}

#[derive(Debug, Clone)]
struct LeaseRow {
    epoch: Epoch,
    holder: Option<Lease>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    projection: Projection,
    log: Vec<Stored>,
    runs: HashMap<RunId, RunLog>,
    leases: HashMap<RunId, LeaseRow>,
}

/// What a step comes to.
#[derive(Debug)]
pub(crate) enum Staged {
    /// Nothing is to be written.
    Answered(Answer),
    /// The log has grown by these; the answer holds once they are durable.
    Written(Answer),
}

impl State {
    pub(crate) fn projection(&self) -> &Projection {
        &self.projection
    }

    pub(crate) fn len(&self) -> usize {
        self.log.len()
    }

    pub(crate) fn stored(&self, from: usize) -> &[Stored] {
        &self.log[from..]
    }

    pub(crate) fn records(&self) -> Vec<Record> {
        self.log.iter().map(|stored| stored.record.clone()).collect()
    }

    pub(crate) fn records_of(&self, run: RunId, after: Seq) -> Result<Vec<Record>, Error> {
        let log = self.runs.get(&run).ok_or_else(|| unknown(run))?;
        let from = usize::try_from(after.get()).unwrap_or(usize::MAX).min(log.places.len());
        Ok(log.places[from..].iter().map(|place| self.log[*place].record.clone()).collect())
    }

    pub(crate) fn newest(&self, run: RunId) -> Result<Seq, Error> {
        self.runs.get(&run).map(|log| Seq::new(log.places.len() as u64)).ok_or_else(|| unknown(run))
    }

    /// The hash of a run's newest record.
    pub(crate) fn head(&self, run: RunId) -> Option<Hash> {
        self.runs.get(&run).and_then(|log| log.head)
    }

    /// Decides about a step. `has_body` tells which bodies are stored.
    pub(crate) fn stage(&mut self, step: Step, has_body: impl Fn(&Hash) -> bool) -> Result<Staged, Error> {
        if let Some(broken) = step.broken() {
            return Err(broken);
        }
        if !step.money.is_empty() {
            return Err(Error::NoLedger { run: step.run() });
        }
        if let Some(answer) = self.repeated(&step) {
            return Ok(Staged::Answered(answer));
        }
        if let Some(answer) = self.hindered(&step)? {
            return Ok(Staged::Answered(answer));
        }
        for draft in &step.records {
            let missing = |hash: &Hash| !has_body(hash) && !step.bodies.iter().any(|body| body.hash() == *hash);
            if refs::named(&draft.payload, false)?.iter().any(missing) {
                return Err(Error::Misplaced { run: step.run(), fault: "it names a body that is not there" });
            }
        }
        self.write(step)
    }

    /// The answer to a step that its run has seen before.
    fn repeated(&self, step: &Step) -> Option<Answer> {
        let log = self.runs.get(&step.run())?;
        let (first, last) = *log.steps.get(&step.id)?;
        let same = step.records.len() == last + 1 - first
            && step.records.iter().zip(&log.places[first..=last]).all(|(draft, place)| {
                let record = &self.log[*place].record;
                draft.kind == record.kind && draft.at == record.at && draft.payload == record.payload
            });
        Some(if same {
            Answer::Committed(Seq::new(last as u64 + 1))
        } else {
            Answer::Conflict(Conflict::Step { id: step.id.clone() })
        })
    }

    /// What stands in the way of a new step.
    fn hindered(&self, step: &Step) -> Result<Option<Answer>, Error> {
        let run = step.run();
        let known = self.runs.get(&run);
        let conflict = |conflict| Ok(Some(Answer::Conflict(conflict)));
        match &step.place {
            Place::Opens { .. } => {
                if known.is_some() {
                    return conflict(Conflict::RunExists { run });
                }
            }
            Place::Holds(lease) => {
                if known.is_none() {
                    return Err(unknown(run));
                }
                if !self.holds(lease) {
                    let now = self.epoch(run);
                    return Ok(Some(Answer::Fenced { held: lease.epoch, now }));
                }
            }
            Place::Beside(_) => {
                if known.is_none() {
                    return Err(unknown(run));
                }
            }
            Place::Copies { after, .. } => match known {
                Some(log) if !log.copied => return conflict(Conflict::RunExists { run }),
                Some(log) if Seq::new(log.places.len() as u64) != *after => {
                    return conflict(Conflict::Behind { run, newest: Seq::new(log.places.len() as u64) });
                }
                None if *after != Seq::START => return conflict(Conflict::Behind { run, newest: Seq::START }),
                Some(_) | None => {}
            },
        }
        let annotates = step.records.iter().all(|draft| draft.kind.annotates());
        if self.projection.ended(run) == Some(true) && !annotates {
            return match step.place {
                // A copied summons ends with its first record and goes on.
                Place::Copies { .. } => Ok(None),
                Place::Opens { .. } | Place::Holds(_) | Place::Beside(_) => conflict(Conflict::RunEnded { run }),
            };
        }
        let opening = step.records.first().and_then(|draft| draft.opening.as_ref());
        let wanted = opening.and_then(|opening| opening.entity_id);
        let wanted = wanted.or_else(|| self.projection.failed_entity(run).filter(|_| !annotates));
        match wanted.and_then(|entity| self.projection.busy(entity).map(|run| (entity, run))) {
            Some((entity, holder)) => conflict(Conflict::EntityBusy { entity, run: holder }),
            None => Ok(None),
        }
    }

    fn write(&mut self, step: Step) -> Result<Staged, Error> {
        let before = self.log.len();
        let run = step.run();
        let epoch = step.epoch();
        let copied = match &step.place {
            Place::Copies { .. } => true,
            Place::Opens { .. } | Place::Holds(_) | Place::Beside(_) => false,
        };
        let count = step.records.len();
        let mut seq = Seq::new(self.runs.get(&run).map_or(0, |log| log.places.len() as u64));
        for (at, draft) in step.records.into_iter().enumerate() {
            seq = seq.next();
            let head = self.head(run);
            let record = Record::written(&draft, run, seq, draft.epoch.unwrap_or(epoch), head.as_ref());
            let stored = Stored { record, step: (at + 1 == count).then(|| step.id.clone()), copied };
            let Draft { event, opening, .. } = draft;
            if let Err(error) = self.take(stored, event, opening) {
                self.roll_back(before);
                return Err(error);
            }
        }
        if let Place::Opens { lease: Some(lease), .. } = step.place {
            self.leases.insert(run, LeaseRow { epoch: lease.epoch, holder: Some(lease) });
        }
        Ok(Staged::Written(Answer::Committed(seq)))
    }

    fn take(&mut self, stored: Stored, event: Event, opening: Option<Opening>) -> Result<(), Error> {
        self.projection.take(&stored.record, event, opening)?;
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
        self.log.push(stored);
        Ok(())
    }

    /// Takes in a record that was read back.
    pub(crate) fn restore(&mut self, stored: Stored) -> Result<(), Error> {
        let (event, opening) = stored.record.read()?;
        self.take(stored, event, opening)
    }

    /// Forgets everything behind the first `length` records. Only after a failure: it builds the rest anew.
    pub(crate) fn roll_back(&mut self, length: usize) {
        let mut log = std::mem::take(&mut self.log);
        log.truncate(length);
        let leases = std::mem::take(&mut self.leases);
        *self = Self { leases, ..Self::default() };
        for stored in log {
            self.restore(stored).expect("what was taken in once is taken in again");
        }
    }

    fn epoch(&self, run: RunId) -> Epoch {
        let written = self.projection.run(run, false).map_or(Epoch::NONE, |view| view.epoch);
        self.leases.get(&run).map_or(written, |row| row.epoch.max(written))
    }

    fn holds(&self, lease: &Lease) -> bool {
        let holder = self.leases.get(&lease.run).and_then(|row| row.holder.as_ref());
        holder.is_some_and(|holder| holder.epoch == lease.epoch && holder.owner == lease.owner)
    }

    pub(crate) fn acquire(
        &mut self,
        run: RunId,
        owner: Owner,
        now: Timestamp,
        lasts: Duration,
    ) -> Result<Lease, Error> {
        self.newest(run)?;
        if let Some(held) = self.leases.get(&run).and_then(|row| row.holder.as_ref())
            && held.expires_at > now
        {
            return Err(Error::LeaseHeld { run, by: held.owner.clone(), until: held.expires_at });
        }
        let epoch = self.epoch(run).next();
        let lease = Lease { run, owner, epoch, expires_at: now.after(lasts) };
        self.leases.insert(run, LeaseRow { epoch, holder: Some(lease.clone()) });
        Ok(lease)
    }

    pub(crate) fn renew(&mut self, lease: &Lease, now: Timestamp, lasts: Duration) -> Result<Lease, Error> {
        let lost = Error::LeaseLost { run: lease.run, held: lease.epoch, now: self.epoch(lease.run) };
        if !self.holds(lease) {
            return Err(lost);
        }
        match self.leases.get_mut(&lease.run).and_then(|row| row.holder.as_mut()) {
            Some(held) if held.expires_at <= now => Err(Error::LeaseExpired { run: lease.run, at: held.expires_at }),
            Some(held) => {
                held.expires_at = now.after(lasts);
                Ok(held.clone())
            }
            None => Err(lost),
        }
    }

    pub(crate) fn release(&mut self, lease: &Lease) {
        if self.holds(lease)
            && let Some(row) = self.leases.get_mut(&lease.run)
        {
            row.holder = None;
        }
    }

    pub(crate) fn holder(&self, run: RunId) -> Result<Option<Lease>, Error> {
        self.newest(run)?;
        Ok(self.leases.get(&run).and_then(|row| row.holder.clone()))
    }

    /// Remembers an epoch that was given out before; nobody holds it any more.
    pub(crate) fn remember_epoch(&mut self, run: RunId, epoch: Epoch) {
        let row = self.leases.entry(run).or_insert(LeaseRow { epoch, holder: None });
        row.epoch = row.epoch.max(epoch);
    }

    pub(crate) fn is_held(&self, run: RunId) -> bool {
        self.leases.get(&run).is_some_and(|row| row.holder.is_some())
    }

    pub(crate) fn run(&self, run: RunId) -> Result<RunView, Error> {
        let mut view = self.projection.run(run, self.is_held(run))?;
        view.epoch = self.epoch(run);
        Ok(view)
    }
}

fn unknown(run: RunId) -> Error {
    Error::NotFound { kind: "run", id: run.to_string() }
}
