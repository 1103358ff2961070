//! The loop: a cantrip is cast on an intent, and an entity turns until it is done or a ward stops it.

pub mod limits;
pub mod list;
