//! The tests of the binary, but for those that take long or are called by name.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

mod acp;
mod aimock;
mod alike;
mod approvals;
mod bad_input;
mod canary;
mod cast;
mod command_arguments;
mod commands;
mod conformance;
mod denials;
mod doctor;
mod endpoints;
mod examples;
mod faults;
mod feeds;
mod first_hour;
mod fork;
mod hands;
mod known_secrets;
mod loom;
mod mcp;
mod mcp_suite;
mod models;
mod pointers;
mod programs;
mod protected_files;
mod providers;
mod retention;
mod runs;
mod serve;
mod servers;
mod signatures;
mod spend;
mod stores;
mod strict;
mod summon;
mod support;
mod telemetry;
mod terminal;
mod trace_reading;
mod traces;
mod undo;
mod windows;
