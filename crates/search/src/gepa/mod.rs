//! `gepa.v1`: reflective evolution.
//!
//! A pool of candidates begins with the base. Each iteration draws a parent from the front, tries it on a few train
//! examples, and changes one of its slots: a model reads the cases and proposes a text, or an example is swapped in. A
//! child that does better than its parent on the same examples is tried on all of holdout and joins the pool. After an
//! acceptance, two candidates that improved different slots may be merged.
//!
//! Taking the best mean as the only parent was turned down: it ends in the first local optimum, and what a specialist
//! has learned is lost.

mod batch;
mod evolution;
mod front;
mod merge;
mod options;

use cantrip::reply::Refusal;
use cantrip_ds::job::Ask;
use serde_json::Value;

pub use batch::{Minibatches, epoch_order};
pub use front::{FrontMember, ScoreRow, draw_parent, front};
pub use merge::{MergePair, MergeSide, merge_examples, merge_pairs, merge_side};
pub use options::GepaOptions;

use super::optimiser::{Effort, Optimiser, Sizes};
use super::options::OptionReader;
use super::path::{Ordinal, Path};
use super::space::Space;
use crate::limits::GEPA_CALLS;
use evolution::Evolution;

/// The name of the optimiser with its version.
const ID: &str = "gepa.v1";

/// The optimiser `gepa.v1`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Gepa;

impl Optimiser for Gepa {
    fn id(&self) -> &'static str {
        ID
    }

    fn options(&self, given: &Value, space: &Space) -> Result<Value, Refusal> {
        let mut reader = OptionReader::new(ID, given)?;
        GepaOptions::read(&mut reader)?;
        reader.finish(space)
    }

    fn worst(&self, options: &Value, sizes: Sizes) -> Effort {
        let options = GepaOptions::of_filled(options);
        let bound = sizes.max_calls.unwrap_or(GEPA_CALLS);
        let trials = options.trials_at_worst(sizes.holdout, sizes.test).min(bound);
        Effort { trials, proposals: options.proposals_at_worst() }
    }

    fn check_bounds(&self, options: &Value, sizes: Sizes) -> Result<(), Refusal> {
        let bound = sizes.max_calls.unwrap_or(GEPA_CALLS);
        GepaOptions::of_filled(options).check_floor(bound, sizes.holdout, sizes.test)
    }

    fn search(&self, path: &mut Path<'_>) -> Result<Ordinal, Ask> {
        Evolution::new(path).run()
    }
}
