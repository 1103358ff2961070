//! A store in a file, and one in memory, keep every promise of their traits.

mod support;

use cantrip_loom::AnyLoom;
use cantrip_loom::conformance::Fleeting;
use cantrip_store::Store;
use support::InFile;

cantrip_loom::conformance!(file, InFile::new());
cantrip_loom::conformance!(memory, Fleeting::new(Store::in_memory().expect("memory is there")));
cantrip_loom::conformance!(erased, Fleeting::new(AnyLoom::new(Store::in_memory().expect("memory is there"))));
