//! The tests of the loop in one binary: separate binaries would each link everything the loop needs.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

mod answers;
mod approval;
mod asking;
mod building;
mod code;
mod composition;
mod costs;
mod ending;
mod examples;
mod failing;
mod fenced;
mod folding;
mod forks;
mod images;
mod labels;
mod library;
mod lineage;
mod living;
mod r#loop;
mod money;
mod own_thread;
mod parking;
mod programs;
mod settling;
mod shell;
mod simulation;
mod support;
mod taken_over;
mod tokens;
mod watching;
