//! The store: SQLite and Postgres behind the journal, loom, ledger and contract traits, and the only room that knows SQL.
//!
//! One schema in two dialects. A step is written whole, many steps share a flush, and
//! the epoch of a lease is compared where the records are written. What can be seen is computed by the projection that
//! every loom shares; the tables beside the records only say where they lie.

mod commit;
mod connection;
mod contracts;
mod dialect;
mod events;
mod failure;
mod journal;
mod ledger;
pub mod limits;
mod location;
mod packed;
mod partial_tree;
mod postgres;
mod prune;
mod rows;
mod run_notifier;
mod schema;
mod sqlite;
mod store;
mod value;
mod verify;
mod views;
mod writer;

pub use prune::Anchor;
pub use store::{Health, SCHEMA, Store};
