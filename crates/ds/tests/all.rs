//! The tests of this crate, as one test binary.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

/// The allocator counts the memory of the Python interpreters in this process.
#[global_allocator]
static ALLOCATOR: cantrip_medium_python::CountingAllocator = cantrip_medium_python::CountingAllocator;

mod approval;
mod catalog;
mod datasets;
mod dying;
mod job_world;
mod jobs;
mod metric_programs;
mod metrics;
mod predict;
mod rlm;
mod simulations;
mod statistics;
mod support;
mod taken_over;
mod verify;
