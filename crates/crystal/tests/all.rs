//! The tests of crystals in one binary: each by itself would link the whole HTTP stack.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

mod assembler;
mod compatible;
mod conformance;
mod contract;
mod families;
mod family;
mod list;
mod names;
mod profiles;
mod replay_and_program;
mod retry;
mod script_format;
mod scripted;
mod server;
mod suite;
mod thread;
