//! The loom in a folder keeps every guarantee of its traits, and damage by a crash or by manual edits is found.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::fs;
use std::path::{Path, PathBuf};

use cantrip_loom::{
    Closing, Damage, Error, Journal, Jsonl, Loom, Overview, PageRequest, Record, RunState, Seq, TruncationReason,
    WindowPlace,
};
use cantrip_loom_suite::{LoomWriter, Subject};
use futures_util::TryStreamExt;
use proptest::prelude::*;
use serde_json::json;
use tempfile::TempDir;

struct InFolder {
    loom: Jsonl,
    folder: TempDir,
}

impl InFolder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { loom: Jsonl::open(folder.path()).unwrap(), folder }
    }
}

impl Subject for InFolder {
    type Store = Jsonl;

    fn store(&self) -> &Jsonl {
        &self.loom
    }

    async fn reopen(self) -> Option<Self> {
        let Self { loom, folder } = self;
        drop(loom);
        Some(Self { loom: Jsonl::open(folder.path()).unwrap(), folder })
    }

    fn keeps_ledger(&self) -> bool {
        false
    }
}

cantrip_loom_suite::conformance!(jsonl, InFolder::new());

fn records_file(folder: &Path) -> PathBuf {
    folder.join("records.jsonl")
}

async fn scan(loom: &Jsonl) -> Vec<Record> {
    loom.scan().try_collect().await.unwrap()
}

/// Writes a folder with two runs, and returns the text of its records.
async fn written(folder: &Path) -> (Vec<Record>, String) {
    let loom = Jsonl::open(folder).unwrap();
    let mut weaver = LoomWriter::new(&loom);
    let mut one = weaver.cast("one").await;
    weaver.plain(&mut one).await;
    weaver.done(&mut one, json!({"sum": 3})).await;
    let mut two = weaver.cast("two").await;
    weaver.plain(&mut two).await;
    weaver.truncate(&two, TruncationReason::MaxTurns).await;
    let records = scan(&loom).await;
    drop(loom);
    (records, fs::read_to_string(records_file(folder)).unwrap())
}

#[tokio::test]
async fn a_torn_end_is_cut_off_at_every_byte_and_nothing_else_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let (records, text) = written(folder.path()).await;
    let path = records_file(folder.path());
    // The last step is one line; the step before it has two lines.
    let lines: Vec<usize> = text.match_indices('\n').map(|(at, _)| at + 1).collect();
    let (start, last) = (lines[lines.len() - 4], lines[lines.len() - 2]);
    for end in (start..last).step_by(7).chain(last - 2..text.len()) {
        fs::write(&path, &text[..end]).unwrap();
        let (whole, kept) = match end {
            end if end == text.len() - 1 => (text.len(), records.len()),
            end if end >= last - 1 => (last, records.len() - 1),
            _ => (start, records.len() - 3),
        };
        {
            let loom = Jsonl::open(folder.path()).unwrap();
            assert_eq!(loom.torn_bytes(), end.saturating_sub(whole) as u64, "cut at {end}");
            assert_eq!(scan(&loom).await, records[..kept], "cut at {end}");
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), text[..whole], "cut at {end}");
    }
}

#[tokio::test]
async fn a_loom_with_a_torn_end_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (records, text) = written(folder.path()).await;
    fs::write(records_file(folder.path()), format!("{text}{{\"at\":\"2026-")).unwrap();
    let loom = Jsonl::open(folder.path()).unwrap();
    assert_eq!(loom.torn_bytes(), 12);
    let mut weaver = LoomWriter::seeded(&loom, 9);
    let mut three = weaver.cast("three").await;
    weaver.done(&mut three, json!(1)).await;
    assert_eq!(loom.verify().unwrap().records, records.len() as u64 + 8);
    assert_eq!(loom.verify().unwrap().runs, 3);
}

#[tokio::test]
async fn a_damaged_record_in_the_middle_is_named_and_nothing_behind_it_is_read_or_written() {
    let folder = tempfile::tempdir().unwrap();
    let (records, text) = written(folder.path()).await;
    let lines: Vec<&str> = text.lines().collect();
    let broken = text.replacen(lines[5], &lines[5].replace("\"echo\":1", "\"echo\":2"), 1);
    assert_ne!(broken, text);
    fs::write(records_file(folder.path()), &broken).unwrap();
    let loom = Jsonl::open(folder.path()).unwrap();
    let expected = |error: &Error| {
        matches!(error, Error::Damaged(Damage { run: Some(run), seq: Some(seq), line: Some(6), .. })
            if *run == records[5].run && *seq == records[5].seq)
    };
    assert!(expected(&loom.verify().unwrap_err()));
    let mut read = Vec::new();
    let mut stream = std::pin::pin!(loom.scan());
    let end = loop {
        match stream.try_next().await {
            Ok(Some(record)) => read.push(record),
            Ok(None) => panic!("the damage was skipped"),
            Err(error) => break error,
        }
    };
    assert!(expected(&end));
    // The step of the damaged record is not shown in part.
    assert_eq!(read, records[..5]);
    assert!(expected(&loom.runs(PageRequest::FIRST).await.unwrap_err()));
    let hidden: Result<Vec<Record>, Error> = loom.read(records[12].run, Seq::START).try_collect().await;
    assert!(expected(&hidden.unwrap_err()));
    let mut weaver = LoomWriter::seeded(&loom, 9);
    let intent = weaver.intent("on");
    let (step, _) = weaver.open(cantrip_loom::Origin::Root, intent, None, 0);
    assert!(expected(&loom.append(step).await.unwrap_err()));
    assert_eq!(fs::read_to_string(records_file(folder.path())).unwrap(), broken);
}

#[tokio::test]
async fn an_altered_body_is_named_with_its_record() {
    let folder = tempfile::tempdir().unwrap();
    let loom = Jsonl::open(folder.path()).unwrap();
    let mut weaver = LoomWriter::new(&loom);
    let mut episode = weaver.cast("read").await;
    let turn = weaver.turn(&mut episode, "read", json!("lang ".repeat(2_000)), cantrip_loom::Closing::Open).await;
    assert_eq!(loom.verify().unwrap().bodies, 1);
    let body = walk(&folder.path().join("bodies"));
    fs::write(&body, "other").unwrap();
    let fault = loom.verify().unwrap_err();
    assert!(matches!(fault, Error::Damaged(Damage { seq: Some(seq), .. }) if seq == Seq::new(6)), "{fault}");
    assert!(matches!(loom.turn(turn).await, Err(Error::BodyAltered(_))));
}

fn walk(folder: &Path) -> PathBuf {
    let entry = fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    if entry.is_dir() { walk(&entry) } else { entry }
}

#[tokio::test]
async fn one_process_writes_and_others_read_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let loom = Jsonl::open(folder.path()).unwrap();
    assert!(matches!(Jsonl::open(folder.path()), Err(Error::Locked { .. })));
    let reader = Jsonl::open_to_read(folder.path()).unwrap();
    assert_eq!(scan(&reader).await, []);
    let mut weaver = LoomWriter::new(&loom);
    let mut episode = weaver.cast("count").await;
    weaver.plain(&mut episode).await;
    assert_eq!(scan(&reader).await, scan(&loom).await);
    let turn = weaver.done(&mut episode, json!(3)).await;
    assert_eq!(reader.thread(turn).await.unwrap(), loom.thread(turn).await.unwrap());
    assert_eq!(reader.run(episode.run).await.unwrap().state, RunState::Terminated);
    let step =
        cantrip_loom::Step::annotation(weaver.step_id(), episode.run).record(weaver.draft(cantrip_loom::Reward {
            turn_id: turn,
            reward: 1.0,
            by: cantrip_loom::Actor::new("user:1").unwrap(),
            note: None,
        }));
    assert!(matches!(reader.append(step).await, Err(Error::ReadOnly)));
    // An unfinished step is not read, and not cut off either.
    let path = records_file(folder.path());
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{text}{{\"at\"")).unwrap();
    assert_eq!(scan(&reader).await.len(), 3 + 4 + 5);
    assert!(fs::read_to_string(&path).unwrap().ends_with("{\"at\""));
    drop(loom);
    assert!(Jsonl::open(folder.path()).is_ok());
}

#[tokio::test]
async fn a_writer_that_is_dropped_has_done_what_was_ordered() {
    let folder = tempfile::tempdir().unwrap();
    let loom = Jsonl::open(folder.path()).unwrap();
    let mut weaver = LoomWriter::new(&loom);
    let episode = weaver.cast("count").await;
    let step = cantrip_loom::Step::for_lease(weaver.step_id(), episode.lease.clone()).record(
        weaver.draft(cantrip_loom::Event::Other { kind: "weather.changed".into(), payload: serde_json::Map::new() }),
    );
    drop(futures_util::FutureExt::now_or_never(loom.append(step)));
    drop(loom);
    let loom = Jsonl::open(folder.path()).unwrap();
    assert_eq!(scan(&loom).await.len(), 4);
}

#[tokio::test]
async fn a_line_of_a_later_version_is_not_taken_for_damage() {
    let folder = tempfile::tempdir().unwrap();
    let (_, text) = written(folder.path()).await;
    let newer = text.strip_suffix("1}\n").unwrap().to_owned() + "2}\n";
    fs::write(records_file(folder.path()), newer).unwrap();
    let answer = Jsonl::open(folder.path());
    assert!(matches!(answer, Err(Error::UnsupportedVersion { version: 2, .. })), "{answer:?}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_full_disk_is_an_error_and_nothing_is_taken_for_written() {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/dev/full", records_file(folder.path())).unwrap();
    let loom = Jsonl::open(folder.path()).unwrap();
    let mut weaver = LoomWriter::new(&loom);
    let intent = weaver.intent("count");
    let (step, episode) = weaver.open(cantrip_loom::Origin::Root, intent, None, 0);
    let answer = loom.append(step.clone()).await;
    assert!(matches!(answer, Err(Error::Io { .. })), "{answer:?}");
    assert!(matches!(loom.run(episode.run).await, Err(Error::NotFound { .. })));
    assert_eq!(scan(&loom).await, []);
    // The failed write could not be undone, so nothing is written after it.
    let again = loom.append(step).await;
    assert!(matches!(again, Err(Error::Stopped)), "{again:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// A change of any byte of a finished record is found, and not later than in that record.
    #[test]
    fn tampering_is_found_at_its_record(at in 0.0..1.0_f64, flip in 1_u8..=255) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (records, text) = runtime.block_on(written(folder.path()));
        let mut bytes = text.into_bytes();
        let place = ((bytes.len() as f64 * at) as usize).min(bytes.len() - 2);
        let line = bytes[..place].iter().filter(|byte| **byte == b'\n').count();
        let before = bytes[place];
        bytes[place] ^= flip;
        // The id of a step and the epoch are not part of the chain; a line feed in place of another byte is.
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let shown = text.lines().nth(line).unwrap_or_default().to_owned();
        fs::write(records_file(folder.path()), &bytes).unwrap();
        match Jsonl::verify_folder(folder.path()) {
            Err(Error::Damaged(damage)) => {
                prop_assert!(damage.line.unwrap() <= line as u64 + 2, "{damage} at line {line}, was {before}");
                if let (Some(run), Some(seq)) = (damage.run, damage.seq) {
                    let known = records.iter().any(|record| record.run == run && record.seq == seq);
                    prop_assert!(known || damage.line == Some(line as u64 + 1), "{damage}");
                }
            }
            Err(Error::UnsupportedVersion { .. }) => prop_assert!(shown.contains("\"v\":")),
            Err(other) => prop_assert!(false, "{other}"),
            Ok(_) => prop_assert!(
                shown.contains("\"step\":") || shown.contains("\"epoch\":"), "unnoticed in {shown}"
            ),
        }
    }
}

#[tokio::test]
async fn a_turn_whose_body_is_gone_is_named_and_the_others_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let loom = Jsonl::open(folder.path()).unwrap();
    let mut weaver = LoomWriter::new(&loom);
    let mut episode = weaver.cast("long").await;
    let first = weaver.plain(&mut episode).await;
    let lost = weaver.turn(&mut episode, "read", json!("long ".repeat(2_000)), Closing::Open).await;
    let last = weaver.plain(&mut episode).await;
    let whole = loom.window(last, WindowPlace::End, 9).await.unwrap();
    assert_eq!((whole.turns.len(), whole.damaged.len()), (3, 0));
    fs::remove_dir_all(folder.path().join("bodies")).unwrap();
    let window = loom.window(last, WindowPlace::End, 9).await.unwrap();
    assert_eq!(window.turns.iter().map(|turn| turn.id).collect::<Vec<_>>(), [first, last]);
    assert_eq!(window.spans, [whole.spans[0], whole.spans[2]]);
    let [damaged] = &window.damaged[..] else { panic!("one is damaged: {:?}", window.damaged) };
    assert_eq!((damaged.turn_id, damaged.sequence), (lost, 2));
    assert_eq!(damaged.error.mark.code, cantrip_reply::codes::RECORD_ALTERED.as_str());
    assert_eq!(loom.path_buckets(last, 9).await.unwrap().len(), 3);
    assert_eq!(loom.summary(episode.run).await.unwrap().turns, 3);
}
