//! The tests of the Python medium, in one binary with the counting allocator.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

use cantrip_circle::python::CountingAllocator;

mod python_attacks;
mod python_determinism;
mod python_done;
mod python_language;
mod python_limits;
mod python_support;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
