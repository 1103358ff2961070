//! The progress of a job, for people who wait for it.

use cantrip::canon::{Money, RunId};

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
    /// The running mean of all scores of the watched candidate, without an interval.
    pub mean_micro: Option<u64>,
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
