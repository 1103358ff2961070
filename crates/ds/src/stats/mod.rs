//! Is the difference between two artifacts larger than chance?
//!
//! Everything here is a pure function of scores and a label. Scores are whole millionths, sums are exact, and the
//! random numbers come from a generator that a label seeds: who has the rows of an evaluation computes the same
//! bounds on any machine, so a report can be made again and compared byte for byte. Floating point is used by the
//! Wilson interval and the detectable difference alone, in a fixed order of operations.
//!
//! The usual alternative, a t-test over floating-point means, was turned down: scores are often 0 or 1, their
//! differences are far from normal, and its results depend on the order of the sum.

mod agreement;
mod interval;
mod look;
mod random;
mod significance;
mod unit;

pub use agreement::{Agreement, JudgeCounts};
pub use interval::{Bounds, Resampled, score_interval, wilson};
pub use look::{Comparison, bound_index, compare, detectable, is_spent, level_ppm, verdict};
pub use random::{Random, seed_of, shuffle};
pub use significance::{flip_exceedances, flip_p_ppm, sign_p_ppm};
pub use unit::{Observation, Unit, mean, mean_of_epochs, rounded_quotient, units};
