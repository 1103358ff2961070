//! Signatures at work, as one test binary.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod catalog;
mod predict;
mod rlm;
mod support;
mod taken_over;
mod verify;
