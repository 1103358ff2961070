//! A store in Postgres keeps every promise of its traits.

mod support;

use support::InPostgres;

cantrip_loom_suite::conformance!(postgres, InPostgres::new());
