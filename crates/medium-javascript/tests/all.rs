//! The tests of the JavaScript medium in one binary, because each separate binary would link the engine.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

mod attacks;
mod determinism;
mod done;
mod garbled;
mod kill;
mod language;
mod limits;
mod support;
