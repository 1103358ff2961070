//! The tests of the shell in one binary.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

#[path = "../../circle/tests/gates/mod.rs"]
mod gates;
mod privileges;
mod protected;
mod shell;
