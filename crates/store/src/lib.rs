//! The only crate with SQL: SQLite and Postgres behind the traits of the journal, looms, money and contracts.
//!
//! One schema in two dialects. A step is written completely or not at all, many steps share a flush, and the epoch of
//! a lease is compared in the transaction that writes the records. Views are computed by the projection that every
//! loom shares; the other tables are only an index of where the records are.

mod commit;
mod connection;
mod contracts;
mod dialect;
mod events;
mod expected_index;
mod failure;
mod improve;
mod journal;
mod ledger;
pub mod limits;
mod location;
mod log_check;
mod overview;
mod packed;
mod partial_tree;
mod postgres;
mod prune;
mod row_check;
mod rows;
mod run_notifier;
mod schema;
mod schema_check;
mod sqlite;
mod store;
mod value;
mod verify;
mod views;
mod writer;

pub use prune::Anchor;
pub use store::{Health, SCHEMA, Store};
