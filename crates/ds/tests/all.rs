//! Signatures at work, as one test binary.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

/// Python interpreters of this process count what they take.
#[global_allocator]
static ALLOCATOR: cantrip::circle::python::CountingAllocator = cantrip::circle::python::CountingAllocator;

mod approval;
mod catalog;
mod predict;
mod rlm;
mod support;
mod taken_over;
mod verify;
