//! The trials of one Ask: run at the same time, tried again when something between them and their answers failed, scored,
//! and written as they settle.
//!
//! A unit is one trial, or two that are scored together. Its row is written when it is settled, so the order of the rows
//! depends on timing; nothing that is computed from them does.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cantrip::canon::json::canonical;
use cantrip::loom::{AppendOutcome, Body, Event, JobScored, RecordedError};
use cantrip::reply::{AnyCode, Refusal, codes};
use cantrip::{StopLevel, Waiting};
use cantrip_contract::{ExampleResultRow, ImproveRow, ReceiptId, Unscored};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::Value;

use super::ask::Trial;
use super::drive::ActiveJob;
use super::funds::Admission;
use super::lease::JobWrites;
use super::load::trial_facts;
use super::trial::{JobStop, TrialCall, TrialEnding, TrialRun, TrialScore};
use crate::limits::{FAILURES_IN_A_ROW_MAX, FAULT_CHARS_MAX, TRIAL_TRIES_MAX, TRY_NUMBER_MAX};
use crate::predict::refuse_store_error;

/// A trial of a unit, as far as it is.
struct Slot {
    trial: Trial,
    /// The number of the next try.
    try_number: u64,
    /// The number of tries that failed through no fault of the candidate.
    failures: u64,
    settled: Option<Settled>,
}

/// A trial whose last try is over.
enum Settled {
    /// The candidate answered or failed itself, in this try.
    Ran { run: Box<TrialRun>, try_number: u64 },
    /// Every try failed. The message and the receipt are those of the last.
    Unscored { message: String, receipt_id: Option<ReceiptId>, try_number: u64 },
}

/// One trial, or two that are scored together.
pub(super) struct Unit(Vec<Slot>);

/// The outcome of a unit.
enum UnitOutcome {
    /// Its rows are written.
    Written { rows: Vec<ExampleResultRow>, took: Duration },
    /// A try failed: it is tried again after all others.
    Again(Unit),
}

/// The failures in a row of a job, through no fault of a candidate.
#[derive(Debug, Default)]
struct FailureStreak(AtomicU64);

impl FailureStreak {
    fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Counts a failure. Returns the reason to wait if there were too many in a row.
    fn add(&self, code: &str, message: &str) -> Option<JobStop> {
        let fault = match AnyCode::parse(code) {
            Ok(code) => RecordedError::new(code, message),
            Err(_) => RecordedError::new(codes::CRASH.any(), message),
        };
        let count = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        (count >= FAILURES_IN_A_ROW_MAX).then(|| JobStop::Waiting(Waiting::Crystal { fault, detail: None }))
    }
}

impl ActiveJob<'_> {
    /// Divides trials into units: a trial with its partner, if both are missing.
    fn units(&self, missing: &[Trial]) -> VecDeque<Unit> {
        let known: BTreeSet<&Trial> = missing.iter().collect();
        let mut taken = BTreeSet::new();
        let mut units = VecDeque::new();
        for trial in missing {
            if !taken.insert(trial.clone()) {
                continue;
            }
            let mut slots = vec![Slot::new(trial.clone())];
            let partner = self.parts.scorer.partner(trial);
            if let Some(partner) = partner.filter(|partner| known.contains(partner) && taken.insert(partner.clone())) {
                slots.push(Slot::new(partner));
            }
            units.push_back(Unit(slots));
        }
        units
    }

    /// Runs these trials until all are settled, or the job stops. What is under way when it stops is waited for: it holds
    /// money, and its answer counts. A person who stops the job ends or parks it through the handle of the trials.
    pub(super) async fn try_all(&mut self, missing: &[Trial], concurrency: usize) -> Result<(), JobStop> {
        let mut first = self.units(missing);
        let mut later = VecDeque::new();
        let mut stop: Option<JobStop> = None;
        let streak = FailureStreak::default();
        // The futures borrow what does not change while they run; results are added to the state when they are done.
        let this = &*self;
        let mut written = Vec::new();
        {
            let mut going = FuturesUnordered::new();
            loop {
                while stop.is_none() && going.len() < concurrency && this.context.cancel.level() == StopLevel::Continue
                {
                    let Some(unit) = first.pop_front().or_else(|| later.pop_front()) else { break };
                    match this.admit(&unit, going.is_empty()).await {
                        Ok(Admission::Begin(promise)) => {
                            let streak = &streak;
                            going.push(async move {
                                let outcome = this.run_unit(unit, streak).await;
                                drop(promise);
                                outcome
                            });
                        }
                        Ok(Admission::Wait) => {
                            first.push_front(unit);
                            break;
                        }
                        Err(why) => stop = Some(why),
                    }
                }
                match going.next().await {
                    None if stop.is_some() || (first.is_empty() && later.is_empty()) => break,
                    None if this.context.cancel.level() != StopLevel::Continue => break,
                    None => {}
                    Some(Ok(UnitOutcome::Written { rows, took })) => {
                        this.note_progress(&rows, took).await;
                        written.extend(rows);
                    }
                    Some(Ok(UnitOutcome::Again(unit))) => later.push_back(unit),
                    Some(Err(why)) => stop = Some(stronger(stop, why)),
                }
            }
        }
        for row in written {
            let facts = trial_facts(self.driver.runtime.loom(), &self.state, &row).await.map_err(JobStop::Failed)?;
            self.state.add_facts(&row, facts);
            self.state.add_result(row);
        }
        match stop {
            Some(stop) => Err(stop),
            None if self.context.cancel.level() != StopLevel::Continue => Err(JobStop::Stopped),
            None => Ok(()),
        }
    }

    /// Runs the unsettled trials of a unit one after the other, and scores and writes the unit when all are settled.
    async fn run_unit(&self, mut unit: Unit, streak: &FailureStreak) -> Result<UnitOutcome, JobStop> {
        let began = self.driver.clock.now().monotonic;
        for slot in &mut unit.0 {
            if slot.settled.is_none() {
                self.run_slot(slot, streak).await?;
            }
        }
        if unit.0.iter().any(|slot| slot.settled.is_none()) {
            return Ok(UnitOutcome::Again(unit));
        }
        let rows = self.score_unit(&unit).await?;
        let took = self.driver.clock.now().monotonic.since(began);
        Ok(UnitOutcome::Written { rows, took })
    }

    /// Runs tries of a trial until it is settled, or until a try failed just now. Tries that had ended before, when
    /// another process drove the job, are read and passed over.
    async fn run_slot(&self, slot: &mut Slot, streak: &FailureStreak) -> Result<(), JobStop> {
        while slot.try_number <= TRY_NUMBER_MAX {
            let (trial, try_number) = (&slot.trial, slot.try_number);
            let key = self.context.key(trial, try_number);
            let call = TrialCall { trial, try_number, key: &key, context: &self.context };
            let run = self.parts.trials.run(call).await.map_err(JobStop::Failed)?;
            let (replayed, receipt_id) = (run.replayed, run.receipt_id.clone());
            if run.is_settled() {
                if !replayed {
                    streak.clear();
                }
                slot.settled = Some(Settled::Ran { run: Box::new(run), try_number });
                return Ok(());
            }
            let is_going = self.context.cancel.level() == StopLevel::Continue;
            let ending = if run.ending == TrialEnding::Stopped && is_going && !replayed {
                // Somebody ended this trial alone: it is tried again.
                let code = codes::ENDED_FROM_OUTSIDE.any().as_str().to_owned();
                TrialEnding::Infrastructure { code, message: "the trial was cancelled".to_owned() }
            } else {
                run.ending
            };
            match JobStop::from_ending(ending) {
                // A try that was refused, or was stopped with the job, before is made again under the next number.
                Ok(_) if replayed => slot.try_number += 1,
                Ok(stop) => return Err(stop),
                Err(TrialEnding::Infrastructure { code, message }) => {
                    slot.failures += 1;
                    if slot.failures >= TRIAL_TRIES_MAX {
                        let message = cut(&message);
                        slot.settled = Some(Settled::Unscored { message, receipt_id, try_number });
                    } else {
                        slot.try_number += 1;
                    }
                    if !replayed && let Some(stop) = streak.add(&code, &message) {
                        return Err(stop);
                    }
                    if !replayed || slot.settled.is_some() {
                        return Ok(());
                    }
                }
                Err(_) => return Ok(()),
            }
        }
        let why = format!("a trial of {} has more than {TRY_NUMBER_MAX} tries", slot.trial.candidate_id);
        Err(JobStop::Failed(codes::contract_invalid(why).into()))
    }

    /// Scores the trials of a unit and writes their rows in the step of their records.
    async fn score_unit(&self, unit: &Unit) -> Result<Vec<ExampleResultRow>, JobStop> {
        let mut rows = Vec::with_capacity(unit.0.len());
        let mut writes = JobWrites::default();
        for (place, slot) in unit.0.iter().enumerate() {
            let other = unit.0.iter().enumerate().find(|(at, _)| *at != place).and_then(|(_, slot)| slot.run());
            let (score, receipt_id, try_number) = match &slot.settled {
                Some(Settled::Ran { run, try_number }) => {
                    let score = self.parts.scorer.score(&slot.trial, run, other, &self.context).await?;
                    (score, run.receipt_id.clone(), *try_number)
                }
                Some(Settled::Unscored { message, receipt_id, try_number }) => {
                    let score = TrialScore::unscored(Unscored::Infrastructure, message.clone());
                    (score, receipt_id.clone(), *try_number)
                }
                None => return Err(JobStop::Stopped),
            };
            let (row, feedback) = self.row(slot, score, receipt_id, try_number).map_err(JobStop::Failed)?;
            writes.events.push(scored_event(&row));
            writes.rows.push(ImproveRow::Result(Box::new(row.clone())));
            writes.bodies.push(feedback);
            rows.push(row);
        }
        match self.owned.append(writes).await.map_err(|error| JobStop::Failed(refuse_store_error(error)))? {
            AppendOutcome::Committed(_) => Ok(rows),
            AppendOutcome::Conflict(_)
            | AppendOutcome::Refused(_)
            | AppendOutcome::Wait
            | AppendOutcome::Fenced { .. } => Err(JobStop::Failed(self.driven_elsewhere())),
        }
    }

    fn row(
        &self,
        slot: &Slot,
        score: TrialScore,
        receipt_id: Option<ReceiptId>,
        try_number: u64,
    ) -> Result<(ExampleResultRow, Body), Refusal> {
        let TrialScore { score_micro, unscored, own_failure, feedback, judge_receipts } = score;
        let text =
            canonical(&Value::String(feedback)).map_err(|fault| codes::schema("feedback", "", fault.to_string()))?;
        let body = Body::new(text.into_bytes()).map_err(refuse_store_error)?;
        let row = ExampleResultRow {
            job_id: self.context.job_id,
            candidate_id: slot.trial.candidate_id.clone(),
            example_id: slot.trial.example_id.clone(),
            epoch: slot.trial.epoch,
            split: slot.trial.split,
            score_micro,
            unscored,
            own_failure,
            feedback_hash: body.hash(),
            receipt_id,
            judge_receipts,
            try_number,
            at: self.driver.clock.now().wall,
        };
        Ok((row, body))
    }
}

impl Slot {
    fn new(trial: Trial) -> Self {
        Self { trial, try_number: 1, failures: 0, settled: None }
    }

    /// Returns the run of the trial, if its candidate answered or failed itself.
    fn run(&self) -> Option<&TrialRun> {
        match &self.settled {
            Some(Settled::Ran { run, .. }) => Some(run),
            Some(Settled::Unscored { .. }) | None => None,
        }
    }
}

impl Unit {
    /// Returns the trials that have not been settled.
    pub(super) fn unsettled(&self) -> impl Iterator<Item = &Trial> {
        self.0.iter().filter(|slot| slot.settled.is_none()).map(|slot| &slot.trial)
    }
}

fn scored_event(row: &ExampleResultRow) -> Event {
    JobScored {
        candidate_id: row.candidate_id.clone(),
        example_id: row.example_id.clone(),
        epoch: row.epoch,
        try_number: row.try_number,
        score: row.score_micro,
        unscored: row.unscored,
        own_failure: row.own_failure,
        receipt_id: row.receipt_id.clone(),
    }
    .into()
}

/// Returns the reason that counts of two: a failure of the job, then its budget, then what it waits for.
fn stronger(one: Option<JobStop>, other: JobStop) -> JobStop {
    let Some(one) = one else { return other };
    let weight = |stop: &JobStop| match stop {
        JobStop::Failed(_) => 3,
        JobStop::BudgetExhausted { .. } => 2,
        JobStop::Waiting(_) => 1,
        JobStop::Stopped => 0,
    };
    if weight(&other) > weight(&one) { other } else { one }
}

fn cut(message: &str) -> String {
    message.chars().take(FAULT_CHARS_MAX).collect()
}
