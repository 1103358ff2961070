//! A process that is killed while it writes loses nothing that was acknowledged.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use cantrip_loom::{Jsonl, Loom, PageRequest};
use cantrip_loom_suite::LoomWriter;

const FOLDER: &str = "CANTRIP_LOOM_TEST_FOLDER";

/// The process that is killed: it writes turns without end and prints each turn when it is written. Without the
/// environment variable it does nothing.
#[test]
fn a_process_that_writes_for_ever() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let loom = Jsonl::open(folder).unwrap();
        let mut weaver = LoomWriter::new(&loom);
        let mut episode = weaver.cast("count").await;
        loop {
            let turn = weaver.plain(&mut episode).await;
            println!("written {turn}");
        }
    });
}

#[test]
fn a_killed_writer_loses_no_acknowledged_turn() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_process_that_writes_for_ever", "--nocapture"])
        .env(FOLDER, folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let told: Vec<String> = BufReader::new(writer.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .filter_map(|line| line.split_once("written ").map(|(_, turn)| turn.to_owned()))
        .take(40)
        .collect();
    writer.kill().unwrap();
    writer.wait().unwrap();
    assert_eq!(told.len(), 40);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let loom = Jsonl::open(folder.path()).unwrap();
        loom.verify().unwrap();
        let id = loom.looms().await.unwrap()[0];
        let kept = loom.turns(id, PageRequest::FIRST).await.unwrap().items;
        let kept: Vec<String> = kept.iter().map(|turn| turn.id.to_string()).collect();
        assert_eq!(kept[..told.len()], told, "in the order in which they were told");
    });
}
