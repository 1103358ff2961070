//! A store in Postgres keeps every promise of its traits.

mod support;

use support::InPostgres;

cantrip_loom::conformance!(postgres, InPostgres::new());
