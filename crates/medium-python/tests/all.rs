//! The tests of the Python medium, in one binary with the counting allocator.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

use cantrip_medium_python::CountingAllocator;

mod attacks;
mod determinism;
mod done;
mod language;
mod limits;
mod support;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
