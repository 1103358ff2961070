//! The loom in memory keeps every guarantee of its traits, also behind the erased type.

use cantrip_loom::{AnyLoom, MemoryLoom};
use cantrip_loom_suite::Ephemeral;

cantrip_loom_suite::conformance!(memory, Ephemeral::new(MemoryLoom::new()));
cantrip_loom_suite::conformance!(erased, Ephemeral::new(AnyLoom::new(MemoryLoom::new())));
