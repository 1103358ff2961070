//! A store in a file, and a store in memory, keep every guarantee of their traits.

mod support;

use cantrip_loom::{AnyLoom, Closing, Loom};
use cantrip_loom_suite::{Ephemeral, LoomWriter};
use cantrip_store::Store;
use serde_json::json;
use support::InFile;

cantrip_loom_suite::conformance!(file, InFile::new());
cantrip_loom_suite::conformance!(memory, Ephemeral::new(Store::in_memory().expect("memory is there")));
cantrip_loom_suite::conformance!(erased, Ephemeral::new(AnyLoom::new(Store::in_memory().expect("memory is there"))));

/// The file of a closed store is complete: it can be copied, and there are no other files beside it.
#[tokio::test]
async fn a_store_that_is_closed_is_one_file() {
    let folder = tempfile::tempdir().expect("a folder to write in");
    let path = folder.path().join("kept.db");
    let store = Store::sqlite(&path).expect("a store");
    let mut weaver = LoomWriter::new(&store);
    let mut episode = weaver.cast("count").await;
    let turn = weaver.turn(&mut episode, "echo", json!(1), Closing::Open).await;
    // Read, so that a reader has the file open too.
    assert_eq!(store.thread(turn).await.expect("readable").turns.len(), 1);
    let beside = || std::fs::read_dir(folder.path()).expect("a folder").count();
    assert!(beside() > 1, "what is written lies in its log first");
    drop(store);
    assert_eq!(beside(), 1);
    let again = Store::sqlite_to_read(&path).expect("a store");
    assert_eq!(again.thread(turn).await.expect("readable").turns.len(), 1);
}
