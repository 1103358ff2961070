//! `bootstrap_demos.v1`: several drawn sets of demos, compared on holdout.
//!
//! The teacher's answers that scored well and the examples with an expected output are the pools. One set is a lottery,
//! so several are drawn, and the best on holdout wins.

use cantrip::reply::Refusal;
use cantrip_contract::Demo;
use serde_json::Value;

use super::optimiser::{Effort, Optimiser, Sizes};
use super::options::OptionReader;
use super::path::{BASE, Ordinal, Origin, Path};
use super::pool::{DemoOptions, Pools};
use super::slot::Slot;
use super::space::Space;
use crate::limits::{BOOTSTRAP_CANDIDATES, COMPILE_CANDIDATES_MAX};
use cantrip_ds::job::Ask;

/// The optimiser.
#[derive(Debug, Clone, Copy, Default)]
pub struct BootstrapDemos;

/// The name of the optimiser.
const ID: &str = "bootstrap_demos.v1";

impl Optimiser for BootstrapDemos {
    fn id(&self) -> &'static str {
        ID
    }

    fn options(&self, given: &Value, space: &Space) -> Result<Value, Refusal> {
        let mut reader = OptionReader::new(ID, given)?;
        if !space.has(&Slot::Demos) {
            return Err(reader.refuse("slots", "it searches demos, and the space has none"));
        }
        // The base and a teacher are candidates too.
        reader.count("candidates", BOOTSTRAP_CANDIDATES, 1..=COMPILE_CANDIDATES_MAX as u64 - 2)?;
        DemoOptions::read(&mut reader)?;
        reader.finish(space)
    }

    fn worst(&self, options: &Value, sizes: Sizes) -> Effort {
        let candidates = options.get("candidates").and_then(Value::as_u64).unwrap_or(0);
        let teaching = DemoOptions::of(options).teaching_at_worst(sizes.train);
        Effort { trials: pass_at_worst(candidates, teaching, sizes) + 2 * sizes.test, proposals: 0 }
    }

    fn search(&self, path: &mut Path<'_>) -> Result<Ordinal, Ask> {
        let state = path.state();
        let demos = DemoOptions::of(state.options());
        bootstrap(path, &demos, state.count("candidates"))?;
        Ok(path.best())
    }
}

/// Returns the trials of a pass at most, without the final test.
pub(super) fn pass_at_worst(candidates: u64, teaching: u64, sizes: Sizes) -> u64 {
    teaching + candidates.saturating_add(1).saturating_mul(sizes.holdout)
}

/// Tries the base and so many sets on holdout, one candidate after the other, so that a budget that ends in between
/// leaves something to choose from.
pub(super) fn bootstrap(path: &mut Path<'_>, options: &DemoOptions, candidates: u64) -> Result<(), Ask> {
    path.complete(BASE)?;
    let pools = Pools::fill(path, options, candidates)?;
    for demos in sets(path, options, &pools, candidates) {
        let content = path.content(BASE).with_demos(demos);
        // A set that does not fit its signature, or is equal to another, is passed over.
        if let Ok(added) = path.add(content, set_origin()) {
            path.complete(added.ordinal)?;
        }
    }
    Ok(())
}

/// Returns the sets of demos that are not empty.
pub(super) fn sets(path: &Path<'_>, options: &DemoOptions, pools: &Pools, count: u64) -> Vec<Vec<Demo>> {
    let sets = (1..=count).map(|number| pools.set(path.state(), options, number));
    sets.filter(|demos| !demos.is_empty()).collect()
}

fn set_origin() -> Origin {
    Origin { op: "demos", component: Some(Slot::Demos.to_string()), parents: vec![BASE], proposal: None }
}
