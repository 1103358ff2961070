//! The tests of gates and wards in one binary, because each separate binary would link all of them.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

mod gates;
mod gates_answered;
mod gates_circle;
mod gates_command;
mod gates_fetch;
mod gates_files;
mod gates_protected;
mod gates_wards;
