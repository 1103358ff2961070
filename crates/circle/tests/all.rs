//! The tests of gates, wards and the JavaScript medium in one binary, because each separate binary would link all of
//! them.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

mod gates;
mod gates_circle;
mod gates_command;
mod gates_fetch;
mod gates_files;
mod gates_protected;
mod gates_wards;
mod javascript_attacks;
mod javascript_determinism;
mod javascript_done;
mod javascript_garbled;
mod javascript_kill;
mod javascript_language;
mod javascript_limits;
mod mcp;
mod mcp_reference;
mod shell;
mod shell_privileges;
mod shell_protected;
mod support;
