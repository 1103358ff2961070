//! A store in Postgres keeps every guarantee of its traits.

mod support;

use support::InPostgres;

cantrip_loom_suite::conformance!(postgres, InPostgres::new());
