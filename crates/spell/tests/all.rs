//! The tests of spells in one binary.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

mod change;
mod servers;
mod spell;
mod trial;
