//! The options of `gepa.v1`, and the number of trials that it needs.

use cantrip::reply::{Refusal, codes};
use serde_json::{Value, json};

use crate::limits::{
    GEPA_FLOOR_ITERATIONS, GEPA_ITERATIONS, GEPA_ITERATIONS_MAX, GEPA_MERGE_EXAMPLES, GEPA_MERGES, GEPA_MERGES_MAX,
    GEPA_MINIBATCH, GEPA_MINIBATCH_MAX, GEPA_PATIENCE, GEPA_PROPOSALS, GEPA_PROPOSALS_MAX,
};
use crate::options::OptionReader;

/// The options of `gepa.v1`, with the defaults filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GepaOptions {
    /// The number of train examples on which a child is compared with its parent.
    pub minibatch: u64,
    /// The number of iterations in a row without an acceptance after which the search ends.
    pub patience: u64,
    /// The number of merges that are tried at most.
    pub merges: u64,
    pub max_iterations: u64,
    /// The number of parents that each iteration draws.
    pub proposals: u64,
}

impl Default for GepaOptions {
    fn default() -> Self {
        Self {
            minibatch: GEPA_MINIBATCH,
            patience: GEPA_PATIENCE,
            merges: GEPA_MERGES,
            max_iterations: GEPA_ITERATIONS,
            proposals: GEPA_PROPOSALS,
        }
    }
}

impl GepaOptions {
    /// Reads the options that a caller gave.
    pub fn read(reader: &mut OptionReader) -> Result<Self, Refusal> {
        let default = Self::default();
        Ok(Self {
            minibatch: reader.count("minibatch", default.minibatch, 1..=GEPA_MINIBATCH_MAX)?,
            patience: reader.count("patience", default.patience, 1..=GEPA_ITERATIONS_MAX)?,
            merges: reader.count("merges", default.merges, 0..=GEPA_MERGES_MAX)?,
            max_iterations: reader.count("max_iterations", default.max_iterations, 1..=GEPA_ITERATIONS_MAX)?,
            proposals: reader.count("proposals", default.proposals, 1..=GEPA_PROPOSALS_MAX)?,
        })
    }

    /// Returns the options that the specification of a job has.
    pub fn of_filled(options: &Value) -> Self {
        let default = Self::default();
        let number = |key: &str, default: u64| options.get(key).and_then(Value::as_u64).unwrap_or(default);
        Self {
            minibatch: number("minibatch", default.minibatch),
            patience: number("patience", default.patience),
            merges: number("merges", default.merges),
            max_iterations: number("max_iterations", default.max_iterations),
            proposals: number("proposals", default.proposals),
        }
    }

    /// Returns the number of trials at worst, without the bound on the number of calls. `holdout` and `test` are the
    /// sizes of the splits.
    pub fn trials_at_worst(self, holdout: u64, test: u64) -> u64 {
        let each = self.minibatch.saturating_mul(2).saturating_add(holdout);
        let children = self.max_iterations.saturating_mul(self.proposals).saturating_mul(each);
        let merged = self.merges.saturating_mul((GEPA_MERGE_EXAMPLES as u64).saturating_add(holdout));
        holdout.saturating_add(children).saturating_add(merged).saturating_add(test.saturating_mul(2))
    }

    /// Returns the number of reflections at worst.
    pub fn proposals_at_worst(self) -> u64 {
        self.max_iterations.saturating_mul(self.proposals)
    }

    /// Returns the least number of trials that is a search: with fewer, one lucky step would pass for one.
    pub fn floor(self, holdout: u64, test: u64) -> u64 {
        let each = self.minibatch.saturating_mul(2).saturating_add(holdout);
        let steps = GEPA_FLOOR_ITERATIONS.saturating_mul(each);
        holdout.saturating_add(steps).saturating_add(test.saturating_mul(2))
    }

    /// Refuses a bound on the number of trials that is below the floor. The refusal names the minimum.
    pub fn check_floor(self, max_calls: u64, holdout: u64, test: u64) -> Result<(), Refusal> {
        let floor = self.floor(holdout, test);
        if max_calls >= floor {
            return Ok(());
        }
        let hint = format!("give --max-calls {floor} or more, or a smaller dataset");
        let few = codes::limit("the number of trials", max_calls, floor);
        Err(few.data(json!({ "minimum": floor, "hint": hint })).into())
    }
}
