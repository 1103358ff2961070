//! The loom in memory keeps every promise of its traits, also behind the erased type.

use cantrip_loom::conformance::Fleeting;
use cantrip_loom::{AnyLoom, Memory};

cantrip_loom::conformance!(memory, Fleeting::new(Memory::new()));
cantrip_loom::conformance!(erased, Fleeting::new(AnyLoom::new(Memory::new())));
