//! Reflection: a model reads cases of a candidate and proposes a better text for one of its slots.
//!
//! The optimiser names the cases by their ids, so that its Ask stays small and depends on nothing but the state of the
//! job. The runner reads what the candidate answered and how it was scored from the store, removes secrets and personal
//! data, cuts each case to its bound, and asks `Reflect.v1` by a predict with a receipt under the run of the job.
//!
//! A reflection sees cases of the train split alone. The runner refuses any other example, whichever optimiser asks.

mod cases;
mod contract;
mod cost;
mod runner;

pub use cases::{CaseBody, ReflectCases};
pub use contract::{ReflectTask, SlotRules};
pub use cost::worst_reflection;
pub use runner::ReflectProposals;

/// The signature that proposes texts.
pub const REFLECT_SIGNATURE: &str = "@cantrip/compile/Reflect.v1";
