//! The tests of this crate, as one test binary.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

/// The allocator counts the memory of the Python interpreters in this process.
#[global_allocator]
static ALLOCATOR: cantrip_medium_python::CountingAllocator = cantrip_medium_python::CountingAllocator;

mod backtests;
mod compile_budgets;
mod compile_jobs;
mod compile_kills;
mod compile_world;
#[path = "../../ds/tests/dying.rs"]
mod dying;
mod evals;
mod flywheel;
mod gepa;
mod gepa_jobs;
mod gepa_parts;
mod guard;
mod guard_simulations;
mod landscape;
mod optimiser_properties;
mod optimisers;
mod reflecting;
mod spaces;
#[allow(dead_code, reason = "the tests of the crate below share it, and need more of it")]
#[path = "../../ds/tests/support.rs"]
mod support;
mod variants;
