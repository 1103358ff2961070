//! The money of a job: which trial may begin, and which Ask may be issued.
//!
//! The ledger holds the worst case of each request in the transaction that reads the counters, so the cap is never
//! passed, whatever is decided here. What is decided here is that a trial begins only if all of it fits, so that it is
//! not refused in the middle, and that an Ask is issued only if it will probably be paid to its end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cantrip::canon::Money;
use cantrip::loom::Ledger;
use cantrip::reply::Refusal;

use super::drive::ActiveJob;
use super::plan::CostBound;
use super::trial::JobStop;
use super::units::Unit;
use crate::limits::{ASK_COST_QUARTERS, JOB_TRIALS_MAX};
use crate::predict::refuse_store_error;

/// The worst cost of the trials under way, in micro-units.
#[derive(Debug, Default)]
pub(super) struct Promises(Arc<Mutex<i64>>);

/// The worst cost of one unit under way. If dropped, it is free again: what it spent is in the ledger.
#[derive(Debug)]
pub(super) struct Promise {
    all: Arc<Mutex<i64>>,
    amount: i64,
}

impl Promises {
    fn sum(&self) -> MutexGuard<'_, i64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, amount: i64) -> Promise {
        let mut sum = self.sum();
        *sum = sum.saturating_add(amount);
        Promise { all: Arc::clone(&self.0), amount }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let mut sum = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        *sum = sum.saturating_sub(self.amount);
    }
}

/// The answer to a unit that wants to begin.
pub(super) enum Admission {
    Begin(Promise),
    /// The units under way hold the money. It is asked again when one of them is done.
    Wait,
}

/// The counters of a job's budget, in micro-units.
#[derive(Debug, Clone, Copy)]
pub(super) struct BudgetState {
    pub limit: i64,
    pub spent: i64,
    pub reserved: i64,
}

impl ActiveJob<'_> {
    /// Returns the counters of the budget; none if the job has none.
    pub(super) async fn budget(&self) -> Result<Option<BudgetState>, Refusal> {
        let (Some(budget), Some(payer)) = (self.bounds.budget, self.context.authorization) else { return Ok(None) };
        let cap =
            self.driver.runtime.loom().cap(payer, self.context.run.to_string()).await.map_err(refuse_store_error)?;
        let counters = cap.map(|cap| cap.counters).unwrap_or_default();
        self.note_spent(Money::new(counters.spent, budget.currency()).ok());
        Ok(Some(BudgetState { limit: budget.micros(), spent: counters.spent, reserved: counters.reserved }))
    }

    /// Decides whether a unit may begin. `is_idle` is true if nothing is under way.
    pub(super) async fn admit(&self, unit: &Unit, is_idle: bool) -> Result<Admission, JobStop> {
        let Some(budget) = self.budget().await.map_err(JobStop::Failed)? else {
            return Ok(Admission::Begin(self.promises.add(0)));
        };
        let mut worst = CostBound::Free;
        for trial in unit.unsettled() {
            let run = self.parts.trials.worst(trial).await.map_err(JobStop::Failed)?;
            let score = self.parts.scorer.worst(trial).await.map_err(JobStop::Failed)?;
            worst = worst.plus(run).plus(score);
        }
        let amount = worst.money().map_or(0, Money::micros);
        // Holds of requests under way are part of what was promised to them.
        let held = budget.reserved.max(*self.promises.sum());
        let left = budget.limit.saturating_sub(budget.spent);
        if amount <= left.saturating_sub(held) {
            return Ok(Admission::Begin(self.promises.add(amount)));
        }
        if is_idle {
            let currency = self.bounds.budget.map(Money::currency);
            let money = |micros: i64| currency.and_then(|currency| Money::new(micros.max(0), currency).ok());
            let (needed, rest) = (money(amount), money(left.saturating_sub(budget.reserved)));
            let message = match (needed, rest) {
                (Some(needed), Some(rest)) => format!("the next trial may cost {needed}, and {rest} is left"),
                (Some(_) | None, _) => "the next trial does not fit the budget".to_owned(),
            };
            return Err(JobStop::BudgetExhausted { message });
        }
        Ok(Admission::Wait)
    }

    /// Checks that an Ask of this many missing trials and proposals fits the bounds.
    pub(super) async fn check_ask(&self, trials: u64, proposals: u64) -> Result<(), JobStop> {
        let done = self.state.trials();
        // A job at its bounds uses the trials that were set aside.
        let is_last = self.at_bounds.is_some();
        let reserved = if is_last { 0 } else { self.parts.source.set_aside(&self.state) };
        let wanted = done.saturating_add(trials).saturating_add(reserved);
        let most = self.bounds.max_calls.unwrap_or(JOB_TRIALS_MAX).min(JOB_TRIALS_MAX);
        if wanted > most {
            let message = format!("{wanted} trials are wanted in all, and at most {most} are allowed");
            return Err(JobStop::BudgetExhausted { message });
        }
        if let Some(most) = self.terms.max_proposals
            && self.state.proposal_count().saturating_add(proposals) > most
        {
            let message = format!("at most {most} proposals are allowed");
            return Err(JobStop::BudgetExhausted { message });
        }
        let Some(budget) = self.budget().await.map_err(JobStop::Failed)? else { return Ok(()) };
        if done == 0 || is_last {
            return Ok(());
        }
        let count = i128::from(trials.saturating_add(reserved));
        // A quarter more than that many mean costs, rounded up.
        let needed = i128::from(budget.spent) * count * i128::from(ASK_COST_QUARTERS);
        let left = i128::from(budget.limit) - i128::from(budget.spent) - i128::from(budget.reserved);
        if needed > left * 4 * i128::from(done) {
            let message = format!("{trials} more trials would probably cost more than what is left of the budget");
            return Err(JobStop::BudgetExhausted { message });
        }
        Ok(())
    }
}
