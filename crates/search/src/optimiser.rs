//! Optimisers: pure functions from the state of a search to the next Ask.

use std::fmt;
use std::sync::Arc;

use cantrip::reply::{Refusal, codes};
use serde_json::Value;

use super::bootstrap::BootstrapDemos;
use super::gepa::Gepa;
use super::grid::InstructionGrid;
use super::mipro::MiproLite;
use super::path::{Ordinal, Path, Walk};
use super::space::Space;
use super::state::State;
use cantrip_ds::job::Ask;

/// The sizes of a job's splits, and its bound, for the plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    pub train: u64,
    pub holdout: u64,
    pub test: u64,
    /// The bound of the trials, if there is one.
    pub max_calls: Option<u64>,
}

/// The trials and proposals that a search makes at most. The trials of the final test are part of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effort {
    pub trials: u64,
    pub proposals: u64,
}

/// A way to search.
pub trait Optimiser: Send + Sync + fmt::Debug {
    /// The name with its version, as in `gepa.v1`.
    fn id(&self) -> &'static str;

    /// Returns the options, filled in. They are hashed into the job, with the slots and the choices of the space.
    fn options(&self, given: &Value, space: &Space) -> Result<Value, Refusal>;

    /// Returns the trials and proposals at most, for the plan.
    fn worst(&self, options: &Value, sizes: Sizes) -> Effort;

    /// Refuses bounds under which the search could not be told from luck.
    fn check_bounds(&self, options: &Value, sizes: Sizes) -> Result<(), Refusal> {
        let _ = (options, sizes);
        Ok(())
    }

    /// Follows the search and returns its winner. Ends with the Ask for the first results that are not there.
    fn search(&self, path: &mut Path<'_>) -> Result<Ordinal, Ask>;

    /// Returns the path as far as the results of the job carry it.
    fn walk(&self, state: State<'_>) -> Walk {
        let mut path = Path::new(state);
        let ended = self.search(&mut path);
        path.into_walk(ended)
    }

    /// Returns the next Ask. A pure function of the state.
    fn next(&self, state: State<'_>) -> Ask {
        self.walk(state).ask
    }
}

/// The names of earlier versions, which are still read.
const FORMER_NAMES: [(&str, &str); 3] =
    [("bootstrap_fewshot", "bootstrap_demos.v1"), ("instruction_search", "instruction_grid.v1"), ("gepa", "gepa.v1")];

/// Returns all optimisers.
pub fn optimisers() -> Vec<Arc<dyn Optimiser>> {
    vec![Arc::new(BootstrapDemos), Arc::new(InstructionGrid), Arc::new(MiproLite), Arc::new(Gepa)]
}

/// Returns the optimiser with this name, or with a name that it had before.
pub fn optimiser(name: &str) -> Result<Arc<dyn Optimiser>, Refusal> {
    let former = FORMER_NAMES.into_iter().find(|(former, _)| *former == name);
    let id = former.map_or(name, |(_, id)| id);
    let all = optimisers();
    let known: Vec<&str> = all.iter().map(|optimiser| optimiser.id()).collect();
    let rule = format!("it is not an optimiser; there are {}", known.join(", "));
    let found = all.iter().find(|optimiser| optimiser.id() == id).cloned();
    found.ok_or_else(|| codes::config_invalid("--optimiser", name, rule).into())
}
