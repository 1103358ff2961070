//! The tests of the engine in one binary.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

mod fold;
mod list;
mod machine;
mod woven;
