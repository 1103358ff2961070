//! The progress of a job, for people who wait for it.

use std::collections::VecDeque;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use cantrip::canon::{Instant, Money, RunId};
use cantrip::loom::{AppendOutcome, JobProgress};
use cantrip_contract::{CandidateId, ExampleResultRow};

use super::ask::{JobStanding, JobState};
use super::drive::ActiveJob;
use super::lease::JobWrites;
use crate::limits::{JOB_PROGRESS_MS, TIMED_TRIALS, TIMED_TRIALS_MIN};

/// The progress of a job after one of its trials. `done` never goes back, and a job that did everything ends at `whole`.
#[derive(Debug, Clone, PartialEq)]
pub struct JobProgressView {
    pub run: RunId,
    /// The number of trials that were scored or finally left unscored.
    pub done: u64,
    /// The number of trials at worst.
    pub whole: u64,
    pub proposals: u64,
    pub unscored: u64,
    pub own_failures: u64,
    /// The running mean of the scores of the watched candidate, or of all, without an interval.
    pub mean_micro: Option<u64>,
    /// The optimiser of a compile job; none for an evaluation.
    pub optimiser: Option<String>,
    /// The standing of the search, after its last Ask; none for an evaluation.
    pub standing: Option<JobStanding>,
    pub spent: Option<Money>,
    pub budget: Option<Money>,
    /// The estimated time left, after ten trials.
    pub left_ms: Option<u64>,
}

/// Watches the progress of a job. It must return at once.
pub trait JobWatcher: Send + Sync {
    fn on_progress(&self, progress: &JobProgressView);
}

impl<F: Fn(&JobProgressView) + Send + Sync> JobWatcher for F {
    fn on_progress(&self, progress: &JobProgressView) {
        self(progress);
    }
}

/// The counts of a job while it runs.
#[derive(Debug)]
pub(super) struct ProgressTracker {
    watched: Option<CandidateId>,
    done: u64,
    whole: u64,
    unscored: u64,
    own_failures: u64,
    /// The sum and the number of the watched scores.
    scores: (u128, u64),
    spent: Option<Money>,
    /// The times of the last units, each divided by its trials.
    times: VecDeque<Duration>,
    timed: usize,
    recorded_at: Instant,
}

impl ProgressTracker {
    /// Starts with the results that a job has.
    pub(super) fn new(state: &JobState, watched: Option<&CandidateId>, whole: u64, now: Instant) -> Self {
        let mut tracker = Self {
            watched: watched.cloned(),
            done: 0,
            whole,
            unscored: 0,
            own_failures: 0,
            scores: (0, 0),
            spent: None,
            times: VecDeque::new(),
            timed: 0,
            recorded_at: now,
        };
        state.results().for_each(|row| tracker.count(row));
        tracker
    }

    fn count(&mut self, row: &ExampleResultRow) {
        self.done += 1;
        self.unscored += u64::from(row.unscored.is_some());
        self.own_failures += u64::from(row.own_failure);
        let is_watched = self.watched.as_ref().is_none_or(|watched| row.candidate_id == *watched);
        if let Some(score) = row.score_micro.filter(|_| is_watched) {
            self.scores = (self.scores.0 + u128::from(score), self.scores.1 + 1);
        }
    }

    fn time(&mut self, took: Duration, trials: usize) {
        let share = took / u32::try_from(trials.max(1)).unwrap_or(1);
        self.times.push_back(share);
        self.timed += 1;
        if self.times.len() > TIMED_TRIALS {
            self.times.pop_front();
        }
    }

    /// Returns the median time of the last trials for each trial that is left, divided among those that run together.
    fn left_ms(&self, concurrency: usize) -> Option<u64> {
        if self.timed < TIMED_TRIALS_MIN {
            return None;
        }
        let mut sorted: Vec<Duration> = self.times.iter().copied().collect();
        sorted.sort_unstable();
        let median = sorted.get(sorted.len() / 2)?.as_millis();
        let left = u128::from(self.whole.saturating_sub(self.done));
        u64::try_from(median * left / (concurrency.max(1) as u128)).ok()
    }

    fn mean(&self) -> Option<u64> {
        let (sum, count) = self.scores;
        let count = u128::from(count);
        // Rounded to the nearest, as every mean of scores.
        let mean = (2 * sum + count).checked_div(2 * count)?;
        u64::try_from(mean).ok()
    }
}

impl ActiveJob<'_> {
    fn tracker(&self) -> MutexGuard<'_, ProgressTracker> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what the ledger said about the money that the job has spent.
    pub(super) fn note_spent(&self, spent: Option<Money>) {
        self.tracker().spent = spent;
    }

    /// Notes that the job did everything: a search often needs less than its worst case.
    pub(super) fn end_progress(&self) {
        let mut tracker = self.tracker();
        tracker.whole = tracker.done;
    }

    fn view(&self) -> JobProgressView {
        let tracker = self.tracker();
        JobProgressView {
            run: self.context.run,
            done: tracker.done,
            whole: tracker.whole.max(tracker.done),
            proposals: self.state.proposal_count(),
            unscored: tracker.unscored,
            own_failures: tracker.own_failures,
            mean_micro: tracker.mean(),
            optimiser: self.state.spec.optimiser.as_ref().map(|optimiser| optimiser.id.clone()),
            standing: self.standing,
            spent: tracker.spent,
            budget: self.bounds.budget,
            left_ms: tracker.left_ms(self.concurrency),
        }
    }

    /// Tells the watcher how far the job is.
    pub(super) fn tell_progress(&self) {
        if let Some(watcher) = &self.driver.watcher {
            watcher.on_progress(&self.view());
        }
    }

    /// Counts rows that were written, tells the watcher, and records the progress from time to time. A record that cannot
    /// be written is not missed: the next write of the job says why.
    pub(super) async fn note_progress(&self, rows: &[ExampleResultRow], took: Duration) {
        let now = self.driver.clock.now().monotonic;
        let due = {
            let mut tracker = self.tracker();
            rows.iter().for_each(|row| tracker.count(row));
            for _ in rows {
                tracker.time(took, rows.len());
            }
            let due = now.since(tracker.recorded_at) >= Duration::from_millis(JOB_PROGRESS_MS);
            if due {
                tracker.recorded_at = now;
            }
            due
        };
        self.tell_progress();
        if !due {
            return;
        }
        let JobProgressView { done, whole, proposals, mean_micro, standing, spent, .. } = self.view();
        // A search shows its best candidate on holdout; an evaluation the running mean.
        let best = standing.map_or(mean_micro, |standing| standing.best_micro);
        let progress = JobProgress { trials: done, of: whole, proposals, best, spent };
        let writes = JobWrites { events: vec![progress.into()], ..JobWrites::default() };
        match self.owned.append(writes).await {
            Ok(AppendOutcome::Committed(_)) => {}
            Ok(_) | Err(_) => tracing::warn!(run = %self.context.run, "the progress of a job could not be recorded"),
        }
    }
}
