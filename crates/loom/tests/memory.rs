//! The loom in memory keeps every promise of its traits, also behind the erased type.

use cantrip_loom::{AnyLoom, Memory};
use cantrip_loom_suite::Fleeting;

cantrip_loom_suite::conformance!(memory, Fleeting::new(Memory::new()));
cantrip_loom_suite::conformance!(erased, Fleeting::new(AnyLoom::new(Memory::new())));
