//! Damage by manual edits, a full disk or another version is found, reported and never made worse.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod support;

use std::fs;

use cantrip_canon::{RetentionId, RunId, Timestamp, bytes_hash};
use cantrip_loom::{
    Actor, AppendOutcome, Closing, Damage, Error, Event, Journal, Loom, Origin, PageRequest, Record, RetentionOrder,
    RetentionPolicy, RunState, Seq, Step, TruncationReason,
};
use cantrip_loom_suite::{Episode, LoomWriter, Subject};
use cantrip_reply::codes;
use cantrip_store::Store;
use futures_util::TryStreamExt;
use serde_json::json;
use support::{InFile, Kit, RefusedBy, assert_refused, fresh_schema, in_postgres, postgres_url};

on_both! {
    an_edited_payload_is_named_and_nothing_behind_it_is_read,
    an_edited_link_is_named,
    a_missing_step_is_named,
    an_altered_body_is_named_with_its_record,
    an_index_that_is_not_what_the_records_say_is_found,
    a_row_that_is_not_what_its_records_or_its_hashes_say_is_found,
    what_is_written_once_cannot_be_changed_or_deleted,
    a_store_of_a_newer_version_is_refused,
    pruning_leaves_an_anchor_and_a_verifying_rest,
    a_retention_removes_what_nothing_newer_builds_on_and_records_it,
    a_fork_is_a_few_rows_and_a_body_is_stored_once,
    the_end_of_a_long_thread_is_read_without_its_beginning,
}

async fn read(store: &Store, run: RunId) -> (Vec<Record>, Option<Error>) {
    let mut records = Vec::new();
    let mut stream = std::pin::pin!(store.read(run, Seq::START));
    loop {
        match stream.try_next().await {
            Ok(Some(record)) => records.push(record),
            Ok(None) => return (records, None),
            Err(error) => return (records, Some(error)),
        }
    }
}

/// A retention that covers every run that is over.
fn asked_for(episode: &Episode) -> RetentionOrder {
    let at: Timestamp = "2126-01-01T00:00:00.000Z".parse().unwrap();
    RetentionOrder {
        retention_id: RetentionId::from_parts(at, [episode.run.to_bytes()[15]; 10]),
        policy: RetentionPolicy { older_than_days: 0, kinds: None, owners: None },
        actor: Actor::new("ann").unwrap(),
        reason: "our policy".to_owned(),
        at,
    }
}

/// Writes two runs of three turns and an end; turns 1 to 3 echo their number.
async fn two_runs(store: &Store) -> [Episode; 2] {
    let mut weaver = LoomWriter::new(store);
    let mut runs = Vec::new();
    for intent in ["one", "two"] {
        let mut episode = weaver.cast(intent).await;
        for _ in 0..3 {
            weaver.plain(&mut episode).await;
        }
        weaver.truncate(&episode, TruncationReason::MaxTurns).await;
        runs.push(episode);
    }
    assert_eq!(store.verify().await.unwrap().records, 32);
    runs.try_into().unwrap()
}

fn is_damage(error: &Error, run: RunId, seq: u64) -> bool {
    assert_eq!(error.code(), codes::RECORD_ALTERED.any(), "{error}");
    matches!(error, Error::Damaged(Damage { run: Some(of), seq: Some(at), .. }) if *of == run && *at == Seq::new(seq))
}

/// Returns the condition for the rows of a run, for manual statements.
fn of_run(kit: &impl Kit, run: usize) -> String {
    let key = kit.number(&format!("SELECT run_key FROM runs ORDER BY run_key LIMIT 1 OFFSET {run}"));
    format!("run_key = {key}")
}

async fn an_edited_payload_is_named_and_nothing_behind_it_is_read<K: Kit>(kit: K) {
    let [one, two] = two_runs(kit.store()).await;
    let (whole, _) = read(kit.store(), one.run).await;
    kit.unguard();
    let of = of_run(&kit, 0);
    // The result of the second turn: record 10 of its run, in the step that ends with record 11.
    let mut step = whole[9..11].to_vec();
    step[0].payload = step[0].payload.replace(r#""echo":2"#, r#""echo":9"#).into();
    assert_ne!(step[0], whole[9]);
    kit.by_hand(&support::retold::<K>(&of, &step)).unwrap();
    for store in [kit.store(), &kit.again().unwrap()] {
        assert!(is_damage(&store.verify().await.unwrap_err(), one.run, 10));
        let (records, end) = read(store, one.run).await;
        assert!(is_damage(&end.unwrap(), one.run, 10));
        assert_eq!(records, whole[..9], "what lies before is sound, the step itself is not half there");
        let thread = store.thread(one.leaf.unwrap()).await.unwrap_err();
        assert!(is_damage(&thread, one.run, 10));
        // The last turn does not depend on it, and neither does the other run.
        assert_eq!(store.tail(one.leaf.unwrap(), 1).await.unwrap().len(), 1);
        assert_eq!(store.thread(two.leaf.unwrap()).await.unwrap().turns.len(), 3);
    }
}

async fn an_edited_link_is_named<K: Kit>(kit: K) {
    let [one, _] = two_runs(kit.store()).await;
    kit.unguard();
    let of = of_run(&kit, 0);
    // The next step continues from the link of the last record: both would have to be edited.
    kit.by_hand(&format!(
        "UPDATE run_events SET links = (SELECT e.links FROM run_events e WHERE e.{of} AND e.seq = 9) WHERE {of} AND seq = 5"
    ))
    .unwrap();
    assert!(is_damage(&kit.store().verify().await.unwrap_err(), one.run, 4));
    assert_eq!(read(kit.store(), one.run).await.0.len(), 3);
}

async fn a_missing_step_is_named<K: Kit>(kit: K) {
    let [one, _] = two_runs(kit.store()).await;
    kit.unguard();
    kit.by_hand(&format!("DELETE FROM run_events WHERE {} AND seq = 11", of_run(&kit, 0))).unwrap();
    assert!(is_damage(&kit.store().verify().await.unwrap_err(), one.run, 11));
    let (records, end) = read(kit.store(), one.run).await;
    assert!(is_damage(&end.unwrap(), one.run, 11));
    assert_eq!(records.len(), 9);
    // The end of a run, which no record follows.
    kit.by_hand(&format!("DELETE FROM run_events WHERE {} AND seq = 15", of_run(&kit, 1))).unwrap();
    kit.by_hand(&format!("DELETE FROM run_events WHERE {} AND seq = 16", of_run(&kit, 1))).unwrap();
    let store = kit.again().unwrap();
    let leaf =
        store.entities(store.looms().await.unwrap()[0], PageRequest::FIRST).await.unwrap().items[1].leaf.unwrap();
    assert!(matches!(store.turn(leaf).await, Err(Error::Damaged(_))));
}

async fn an_altered_body_is_named_with_its_record<K: Kit>(kit: K) {
    let store = kit.store();
    let mut weaver = LoomWriter::new(store);
    let mut episode = weaver.cast("read").await;
    let turn = weaver.turn(&mut episode, "read", json!("lang ".repeat(2_000)), Closing::Open).await;
    assert_eq!(store.verify().await.unwrap().bodies, 1);
    kit.unguard();
    kit.by_hand("UPDATE bodies SET bytes = body_hash").unwrap();
    assert!(is_damage(&store.verify().await.unwrap_err(), episode.run, 6));
    assert!(matches!(store.turn(turn).await, Err(Error::BodyAltered(_))));
}

async fn an_index_that_is_not_what_the_records_say_is_found<K: Kit>(kit: K) {
    let [one, _] = two_runs(kit.store()).await;
    let places = "(SELECT t.places FROM turns t ORDER BY t.turn_key LIMIT 1)";
    let first = kit.number("SELECT min(turn_key) FROM turns");
    kit.by_hand(&format!("UPDATE turns SET places = {places} WHERE turn_key = {}", first + 1)).unwrap();
    let fault = kit.store().verify().await.unwrap_err();
    assert!(matches!(fault, Error::Damaged(Damage { run: Some(run), .. }) if run == one.run), "{fault}");
    // A view does not show the records of one turn as those of another.
    assert!(matches!(kit.store().thread(one.leaf.unwrap()).await, Err(Error::Damaged(_))));
}

async fn a_row_that_is_not_what_its_records_or_its_hashes_say_is_found<K: Kit>(kit: K) {
    let [one, _] = two_runs(kit.store()).await;
    assert_eq!(kit.store().verify_rows().await.unwrap(), Vec::<String>::new());
    for (change, back) in [
        ("UPDATE runs SET kind = 'job'", "UPDATE runs SET kind = 'cast'"),
        ("UPDATE runs SET ended_at = ended_at + 1", "UPDATE runs SET ended_at = ended_at - 1"),
        ("UPDATE entities SET at = at + 1", "UPDATE entities SET at = at - 1"),
        ("UPDATE casts SET end_seq = end_seq - 1", "UPDATE casts SET end_seq = end_seq + 1"),
        ("UPDATE turns SET first = first + 4", "UPDATE turns SET first = first - 4"),
        ("UPDATE roots SET seq = seq + 1", "UPDATE roots SET seq = seq - 1"),
        ("UPDATE run_summaries SET phase = 'live'", "UPDATE run_summaries SET phase = 'truncated'"),
        ("UPDATE run_summaries SET intent = intent || '!'", "UPDATE run_summaries SET intent = substr(intent, 1, 3)"),
        ("UPDATE run_summaries SET through = through - 1", "UPDATE run_summaries SET through = through + 1"),
        ("UPDATE run_marks SET name = name || '!'", "UPDATE run_marks SET name = substr(name, 1, length(name) - 1)"),
        ("UPDATE turns SET worst = worst + 1", "UPDATE turns SET worst = worst - 1"),
        ("UPDATE turns SET cost_sum = cost_sum + 1", "UPDATE turns SET cost_sum = cost_sum - 1"),
        ("UPDATE casts SET outcome = 'terminated'", "UPDATE casts SET outcome = 'truncated'"),
        ("UPDATE entities SET call_index = 1", "UPDATE entities SET call_index = NULL"),
    ] {
        kit.by_hand(change).unwrap();
        let fault = kit.store().verify().await.unwrap_err();
        assert!(matches!(fault, Error::Damaged(_)), "{change}: {fault:?}");
        kit.by_hand(back).unwrap();
        assert_eq!(kit.store().verify().await.unwrap().runs, 2, "{back}");
    }
    kit.by_hand(&kit.without_trigger("spend_terms", "spend_terms_stay_as_written")).unwrap();
    kit.by_hand("UPDATE spend_terms SET mode = 'deny'").unwrap();
    let found = kit.store().verify_rows().await.unwrap();
    assert_eq!(found, ["spend_terms auth_local: mode differs from the rest of the row"]);
    assert_eq!(kit.store().run(one.run).await.unwrap().state, RunState::Truncated);
}

async fn what_is_written_once_cannot_be_changed_or_deleted<K: Kit>(kit: K) {
    let store = kit.store();
    let [one, _] = two_runs(store).await;
    let mut weaver = LoomWriter::seeded(store, 9);
    let mut long = weaver.cast("read").await;
    weaver.turn(&mut long, "read", json!("lang ".repeat(2_000)), Closing::Open).await;
    store.prune(&asked_for(&one), one.run, Seq::new(5)).await.unwrap();
    for (refused, by) in [
        ("UPDATE run_events SET epoch = 9", RefusedBy::WrittenOnce),
        ("DELETE FROM run_events", RefusedBy::Kept),
        ("UPDATE bodies SET bytes = body_hash", RefusedBy::WrittenOnce),
        ("DELETE FROM bodies", RefusedBy::Kept),
        ("UPDATE run_anchors SET at = 1", RefusedBy::WrittenOnce),
        ("UPDATE retention_removals SET reason = 'another'", RefusedBy::WrittenOnce),
        ("DELETE FROM retention_removals", RefusedBy::Kept),
        // Not even up to an anchor, if no removal was recorded.
        (
            "INSERT INTO run_anchors (run_key, seq, event_hash, at) SELECT run_key, 16, event_hash, 1 FROM run_anchors; \
             DELETE FROM run_events WHERE run_key = (SELECT min(run_key) FROM run_anchors)",
            RefusedBy::Kept,
        ),
        ("DELETE FROM run_anchors", RefusedBy::Kept),
        ("DELETE FROM runs", RefusedBy::Kept),
        ("DELETE FROM run_leases WHERE false; DELETE FROM entities", RefusedBy::ForeignKey),
        ("DELETE FROM turns; DELETE FROM casts; DELETE FROM looms", RefusedBy::ForeignKey),
    ] {
        assert_refused(&kit, &format!("BEGIN; {refused}; ROLLBACK"), by);
    }
    assert_eq!(store.verify().await.unwrap().runs, 3);
}

async fn a_store_of_a_newer_version_is_refused<K: Kit>(kit: K) {
    two_runs(kit.store()).await;
    kit.by_hand("INSERT INTO schema_versions (version, made_by) VALUES (8, 'cantrip 9.0')").unwrap();
    let rows = kit.number("SELECT count(*) FROM run_events");
    let refused = kit.again().unwrap_err();
    assert!(matches!(refused, Error::NewerStore { found: 8, known: 7, .. }), "{refused}");
    assert_eq!(refused.code(), codes::STORE_FAILED.any());
    assert_eq!(kit.number("SELECT count(*) FROM run_events"), rows);
}

async fn pruning_leaves_an_anchor_and_a_verifying_rest<K: Kit>(kit: K) {
    let store = kit.store();
    let [one, two] = two_runs(store).await;
    let mut weaver = LoomWriter::seeded(store, 9);
    weaver.loom = store.looms().await.unwrap()[0];
    let mut live = weaver.cast("live").await;
    let refused = store.prune(&asked_for(&live), live.run, Seq::new(3)).await;
    assert!(matches!(refused, Err(Error::InvalidStep { .. })), "{refused:?}");
    let (whole, _) = read(store, one.run).await;
    // In the middle of a step: the pruned part ends before it.
    let anchor = store.prune(&asked_for(&one), one.run, Seq::new(8)).await.unwrap();
    assert_eq!((anchor.seq, anchor.hash), (Seq::new(7), whole[6].hash));
    assert_eq!(store.anchors(one.run).await.unwrap(), [anchor]);
    let (_, end) = read(store, one.run).await;
    assert!(matches!(end, Some(Error::Pruned { through, .. }) if through == anchor.seq));
    let rest: Vec<Record> = store.read(one.run, anchor.seq).try_collect().await.unwrap();
    assert_eq!(rest, whole[7..]);
    assert!(matches!(store.path(one.leaf.unwrap()).await, Err(Error::Pruned { .. })));
    for told_there in [store.turn(one.leaf.unwrap()).await.map(|_| ()), store.cast(one.cast).await.map(|_| ())] {
        assert!(matches!(told_there, Err(Error::Pruned { .. })), "{told_there:?}");
    }
    assert!(matches!(store.entity(one.entity).await, Err(Error::Pruned { .. })));
    assert_eq!(store.thread(two.leaf.unwrap()).await.unwrap().turns.len(), 3);
    assert_eq!(store.run(one.run).await.unwrap().newest, Seq::new(16));
    // The cantrip was first recorded there; the next cast records it in the loom again.
    weaver.cast("again").await;
    assert_eq!(store.roots(weaver.loom).await.unwrap().len(), 1);
    weaver.plain(&mut live).await;
    assert_eq!(store.verify().await.unwrap().records, 16 + 9 + 7 + 3);
    // Prune all of it: the run is still known, and an annotation can follow.
    store.prune(&asked_for(&two), two.run, Seq::new(99)).await.unwrap();
    assert_eq!(store.run(two.run).await.unwrap().state, RunState::Truncated);
    let step = Step::annotation(weaver.step_id(), two.run)
        .record(weaver.draft(Event::Other { kind: "trace.stored".into(), payload: serde_json::Map::new() }));
    assert_eq!(store.append(step).await.unwrap(), AppendOutcome::Committed(Seq::new(17)));
    assert_eq!(store.verify().await.unwrap().records, 9 + 7 + 3 + 1);
}

async fn a_retention_removes_what_nothing_newer_builds_on_and_records_it<K: Kit>(kit: K) {
    let store = kit.store();
    let [one, two] = two_runs(store).await;
    let mut weaver = LoomWriter::seeded(store, 9);
    weaver.loom = store.looms().await.unwrap()[0];
    // A fork of the first run that continues.
    let fork = cantrip_loom::Fork { turn: one.leaf.unwrap(), environment: cantrip_loom::Environment::None };
    let intent = weaver.intent("another way");
    let (step, branch) = weaver.open(Origin::Fork(fork), intent, Some(fork.turn), 3);
    weaver.commit(step).await;
    let order = asked_for(&two);
    let plan = store.retention_plan(order.policy.clone(), order.at).await.unwrap();
    let runs: Vec<RunId> = plan.runs.iter().map(|run| run.run_id).collect();
    assert_eq!((runs, plan.kept), (vec![two.run], 1), "the first is what the fork builds on");
    let refused = store.remove(order.clone(), one.run).await;
    assert!(matches!(refused, Err(Error::InvalidStep { .. })), "{refused:?}");
    let young = cantrip_loom::RetentionPolicy { older_than_days: 1_000_000, ..order.policy.clone() };
    assert_eq!(store.retention_plan(young.clone(), order.at).await.unwrap(), cantrip_loom::RetentionPlan::default());
    let uncovered = store.remove(RetentionOrder { policy: young, ..order.clone() }, two.run).await;
    assert!(matches!(uncovered, Err(Error::InvalidStep { .. })), "{uncovered:?}");
    let (whole, _) = read(store, two.run).await;
    let removal = store.remove(order.clone(), two.run).await.unwrap();
    assert_eq!((removal.through, removal.event_hash, removal.records), (Seq::new(16), whole[15].hash, 16));
    assert_eq!(store.removals(PageRequest::FIRST).await.unwrap().items, [removal]);
    let verified = store.verify().await.unwrap();
    assert_eq!(verified.removed, Some(cantrip_loom::RemovedCounts { runs: 1, records: 16, unrecorded: 0 }));
    // Lists leave out the removed run; the fork and the run it builds on are listed.
    let listed = store.entities(weaver.loom, PageRequest::FIRST).await.unwrap().items;
    let ids: Vec<_> = listed.iter().map(|view| view.entity.entity_id).collect();
    assert_eq!(ids, [one.entity, branch.entity]);
    assert_eq!(store.turns(weaver.loom, PageRequest::FIRST).await.unwrap().items.len(), 3);
    assert_eq!(store.extent(weaver.loom).await.unwrap().entities, 2);
    assert!(!store.leaves(weaver.loom, PageRequest::FIRST).await.unwrap().items.contains(&two.leaf.unwrap()));
    // A second removal is refused.
    assert!(matches!(store.remove(order, two.run).await, Err(Error::InvalidStep { .. })));
    // A removal whose hash differs from that of its anchor is damage.
    kit.by_hand(&kit.without_trigger("retention_removals", "retention_removals_stay_as_written")).unwrap();
    kit.by_hand("UPDATE retention_removals SET event_hash = retention_id").unwrap();
    assert!(is_damage(&store.verify().await.unwrap_err(), two.run, 16));
}

async fn a_fork_is_a_few_rows_and_a_body_is_stored_once<K: Kit>(kit: K) {
    let store = kit.store();
    let mut weaver = LoomWriter::new(store);
    let mut episode = weaver.cast("read").await;
    let long = json!("lang ".repeat(2_000));
    for _ in 0..40 {
        weaver.turn(&mut episode, "read", long.clone(), Closing::Open).await;
    }
    assert_eq!(kit.number("SELECT count(*) FROM bodies"), 1);
    assert_eq!(kit.number("SELECT count(*) FROM run_events"), 1 + 2 * 40);
    let tables = ["looms", "runs", "run_leases", "run_events", "roots", "entities", "casts", "turns", "bodies"];
    let rows = |kit: &K| tables.map(|table| kit.number(&format!("SELECT count(*) FROM {table}")));
    let before = rows(&kit);
    let fork = cantrip_loom::Fork { turn: episode.leaf.unwrap(), environment: cantrip_loom::Environment::None };
    let intent = weaver.intent("another way");
    let (step, _) = weaver.open(Origin::Fork(fork), intent, Some(fork.turn), 40);
    weaver.commit(step).await;
    let grown: Vec<i64> = rows(&kit).iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!(grown, [0, 1, 1, 1, 0, 1, 1, 0, 0]);
}

async fn the_end_of_a_long_thread_is_read_without_its_beginning<K: Kit>(kit: K) {
    let store = kit.store();
    let mut weaver = LoomWriter::new(store);
    let mut episode = weaver.cast("count").await;
    for _ in 0..120 {
        weaver.plain(&mut episode).await;
    }
    let leaf = episode.leaf.unwrap();
    let whole = store.path(leaf).await.unwrap();
    kit.unguard();
    // The chain starts at the step before the first one that is read; the first steps hold the records of the cast and
    // the entity.
    kit.by_hand("DELETE FROM run_events WHERE seq > 3 AND seq < 3 + 4 * 70").unwrap();
    let tail = store.tail(leaf, 49).await.unwrap();
    assert_eq!(tail, whole[120 - 49..]);
    let broken = store.path(leaf).await.unwrap_err();
    assert_eq!(broken.code(), codes::RECORD_ALTERED.any(), "{broken:?}");
}

#[test]
fn a_schema_that_is_not_what_the_migrations_make_is_found() {
    cantrip_loom_suite::run(async {
        let kit = InFile::new();
        two_runs(kit.store()).await;
        assert_eq!(kit.store().verify_schema().await.unwrap(), Vec::<String>::new());
        kit.by_hand("DROP TRIGGER bodies_are_kept; DROP INDEX runs_by_phase; CREATE TABLE notes (text TEXT)").unwrap();
        let found = kit.store().verify_schema().await.unwrap();
        let missing = ["index runs_by_phase is missing", "trigger bodies_are_kept is missing"];
        assert_eq!(found, [&missing[..], &["table notes was added"]].concat());
    });
}

#[test]
fn a_file_that_is_none_of_ours_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.db");
    let text = || fs::write(&path, "dear diary, today was a long day\n".repeat(40)).unwrap();
    let other_program = || {
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection.execute_batch("CREATE TABLE runs (distance INTEGER)").unwrap();
    };
    let header = || fs::write(&path, b"SQLite format 3\0 and then something else".repeat(60)).unwrap();
    let cases: [(&str, &dyn Fn()); 3] =
        [("a text", &text), ("another program's database", &other_program), ("a header and no more", &header)];
    for (what, make) in cases {
        let _ = fs::remove_file(&path);
        make();
        let before = fs::read(&path).unwrap();
        for opened in [Store::sqlite(&path), Store::sqlite_to_read(&path)] {
            let refused = opened.unwrap_err();
            assert!(matches!(refused, Error::NotAStore { .. } | Error::Store { .. }), "{what}: {refused:?}");
            assert_eq!(refused.code(), codes::STORE_FAILED.any(), "{what}");
        }
        assert_eq!(fs::read(&path).unwrap(), before, "{what}");
    }
    let nowhere = Store::sqlite(folder.path().join("no/such/folder/loom.db")).unwrap_err();
    assert_eq!(nowhere.code(), codes::STORE_FAILED.any());
    assert!(matches!(Store::sqlite_to_read(folder.path().join("absent.db")), Err(Error::Store { .. })));
    assert!(!folder.path().join("absent.db").exists());
    assert!(matches!(Store::open("mysql://somewhere"), Err(Error::NotAStore { .. })));
}

#[test]
fn a_damaged_file_is_an_error_or_no_record_is_touched() {
    cantrip_loom_suite::run(async {
        let kit = InFile::new();
        two_runs(kit.store()).await;
        let mut weaver = LoomWriter::seeded(kit.store(), 9);
        let mut episode = weaver.cast("more").await;
        // Enough turns that most of the file is records and not empty tables.
        for _ in 0..480 {
            weaver.plain(&mut episode).await;
        }
        let records: Vec<Record> = kit.store().scan().try_collect().await.unwrap();
        // Copy everything from the log into the file.
        kit.by_hand("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        let bytes = fs::read(kit.path()).unwrap();
        let other = tempfile::tempdir().unwrap();
        let copy = other.path().join("loom.db");
        let mut noticed = 0;
        for place in (0..bytes.len()).step_by(bytes.len() / 60) {
            let mut broken = bytes.clone();
            let end = (place + 300).min(broken.len());
            broken[place..end].iter_mut().for_each(|byte| *byte ^= 0x5a);
            fs::write(&copy, &broken).unwrap();
            let verified = match Store::sqlite(&copy) {
                Ok(store) => store.verify().await.map(|_| store),
                Err(error) => Err(error),
            };
            match verified {
                // Parts of a page are unused, and tables other than those of the records have no links.
                Ok(store) => {
                    let kept: Vec<Record> = store.scan().try_collect().await.unwrap();
                    assert_eq!(kept, records, "damage at {place} went unnoticed");
                }
                Err(error) => {
                    noticed += 1;
                    let known =
                        [codes::STORE_FAILED.any(), codes::RECORD_ALTERED.any(), codes::STORE_UNAVAILABLE.any()];
                    assert!(known.contains(&error.code()), "{error:?}");
                }
            }
            for ending in ["db-wal", "db-shm"] {
                let _ = fs::remove_file(copy.with_extension(ending));
            }
        }
        assert!(noticed > 20, "{noticed} of 60 noticed");
    });
}

#[test]
fn a_full_disk_is_an_error_and_what_was_acknowledged_stays() {
    cantrip_loom_suite::run(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("loom.db");
        let store = Store::sqlite_within(&path, 4_000 << 10).unwrap();
        let mut weaver = LoomWriter::new(&store);
        let mut episode = weaver.cast("fill").await;
        let mut kept = Vec::new();
        let (step, error) = loop {
            let turn = weaver.plain(&mut episode).await;
            kept.push(turn);
            // Bodies that all differ.
            let body = cantrip_loom::Body::new(bytes_hash(&kept.len().to_le_bytes()).as_bytes().repeat(4_000)).unwrap();
            let odd = Event::Other { kind: "trace.stored".into(), payload: serde_json::Map::new() };
            let step =
                Step::for_lease(weaver.step_id(), episode.lease.clone()).record(weaver.draft(odd)).bodies([body]);
            match store.append(step.clone()).await {
                Ok(answer) => assert!(matches!(answer, AppendOutcome::Committed(_)), "{answer:?}"),
                Err(error) => break (step, error),
            }
        };
        assert!(matches!(error, Error::Full { .. }), "{error:?}");
        assert_eq!(error.code(), codes::STORE_FAILED.any());
        assert!(kept.len() > 5);
        let (records, end) = read(&store, episode.run).await;
        assert!(end.is_none());
        // The second try is also an error, and again nothing is written.
        assert!(matches!(store.append(step.clone()).await, Err(Error::Full { .. })));
        assert_eq!(read(&store, episode.run).await.0, records);
        let path_kept: Vec<_> = store.path(episode.leaf.unwrap()).await.unwrap().iter().map(|turn| turn.id).collect();
        assert_eq!(path_kept, kept);
        store.verify().await.unwrap();
        drop(store);
        // With enough space the same step is written, once, and the run continues.
        let store = Store::sqlite(&path).unwrap();
        for _ in 0..2 {
            let seq = Seq::new(records.len() as u64 + 1);
            assert_eq!(store.append(step.clone()).await.unwrap(), AppendOutcome::Committed(seq));
        }
        let later = Step { id: cantrip_loom::StepId::new("later").unwrap(), ..step };
        assert_eq!(store.append(later).await.unwrap(), AppendOutcome::Committed(Seq::new(records.len() as u64 + 2)));
        store.verify().await.unwrap();
    });
}

#[test]
fn a_file_that_was_moved_away_takes_no_more_and_goes_on_when_it_is_back() {
    cantrip_loom_suite::run(async {
        let folder = tempfile::tempdir().unwrap();
        let (kept, away) = (folder.path().join("kept"), folder.path().join("away"));
        std::fs::create_dir(&kept).unwrap();
        let store = Store::sqlite(kept.join("loom.db")).unwrap();
        let mut weaver = LoomWriter::new(&store);
        let mut episode = weaver.cast("count").await;
        weaver.plain(&mut episode).await;
        std::fs::rename(&kept, &away).unwrap();
        let odd = || Event::Other { kind: "weather.changed".into(), payload: serde_json::Map::new() };
        let step = Step::for_lease(weaver.step_id(), episode.lease.clone()).record(weaver.draft(odd()));
        let lost = store.append(step.clone()).await.unwrap_err();
        assert_eq!(lost.code(), codes::STORE_FAILED.any());
        assert!(format!("{lost:?}").contains("moved"), "{lost:?}");
        // Another file at the same path is refused.
        std::fs::create_dir(&kept).unwrap();
        std::fs::write(kept.join("loom.db"), "").unwrap();
        let other = store.append(step.clone()).await.unwrap_err();
        assert_eq!(other.code(), codes::STORE_FAILED.any());
        assert!(format!("{other:?}").contains("moved"), "{other:?}");
        std::fs::remove_dir_all(&kept).unwrap();
        std::fs::rename(&away, &kept).unwrap();
        assert_eq!(store.append(step).await.unwrap(), AppendOutcome::Committed(Seq::new(8)));
        store.verify().await.unwrap();
    });
}

#[test]
fn a_wrong_password_is_said_and_not_repeated() {
    let url = support::postgres_with_password("the right one");
    Store::postgres(&url.replace("PASSWORD", "the%20right%20one")).unwrap();
    for given in ["wr0ng", ""] {
        let refused = Store::postgres(&url.replace("PASSWORD", given)).unwrap_err();
        assert!(matches!(refused, Error::AccessDenied { .. }), "{refused:?}");
        assert_eq!(refused.code(), codes::CONFIG_INVALID.any());
        assert!(!format!("{refused:?} {refused}").contains("wr0ng"), "{refused:?}");
    }
}

#[test]
fn a_server_that_is_not_there_or_does_not_know_us_is_said() {
    let url = postgres_url();
    let (_, server) = url.split_once('@').unwrap();
    let stranger = format!("postgres://somebody_else@{server}");
    for unknown in [format!("{url}_which_is_not_there"), stranger] {
        let unwelcome = Store::postgres(&unknown).unwrap_err();
        assert!(matches!(unwelcome, Error::AccessDenied { .. }), "{unwelcome:?}");
        assert_eq!(unwelcome.code(), codes::CONFIG_INVALID.any());
    }
    let away = Store::postgres("postgres://cantrip:s3cret@127.0.0.1:1/cantrip").unwrap_err();
    assert!(matches!(away, Error::Unreachable { .. }), "{away:?}");
    assert_eq!(away.code(), codes::STORE_UNAVAILABLE.any());
    assert!(!format!("{away:?} {away}").contains("s3cret"));
    for url in ["postgres://cantrip:s3cret@host:notaport/x", "postgres://?what=1"] {
        let unread = Store::postgres(url).unwrap_err();
        assert!(matches!(unread, Error::AccessDenied { .. }), "{unread:?}");
        assert!(!format!("{unread:?} {unread}").contains("s3cret"), "{unread:?}");
    }
    let odd = Store::postgres_in(&url, "Robert'); DROP TABLE runs; --").unwrap_err();
    assert!(matches!(odd, Error::AccessDenied { .. }), "{odd:?}");
}

#[test]
fn a_lost_connection_is_an_error_or_unnoticed_and_nothing_is_written_twice() {
    cantrip_loom_suite::run(async {
        let (url, schema) = (postgres_url(), fresh_schema());
        let store = Store::postgres_in(&url, &schema).unwrap();
        let mut weaver = LoomWriter::new(&store);
        let mut episode = weaver.cast("count").await;
        weaver.plain(&mut episode).await;
        for n in 0..12 {
            let odd = Event::Other { kind: "weather.changed".into(), payload: serde_json::Map::new() };
            let step = Step::for_lease(weaver.step_id(), episode.lease.clone()).record(weaver.draft(odd));
            let ended = format!(
                // If there is no connection to end, the division by zero makes this test fail.
                "SELECT 1 / count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                 WHERE application_name = 'cantrip {schema}'"
            );
            in_postgres(&url, &ended).unwrap();
            let expected = AppendOutcome::Committed(Seq::new(8 + n));
            match store.append(step.clone()).await {
                Ok(answer) => assert_eq!(answer, expected),
                Err(error) => {
                    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
                    assert_eq!(store.append(step.clone()).await.unwrap(), expected, "the next one connects anew");
                }
            }
            assert_eq!(store.append(step).await.unwrap(), expected);
        }
        assert_eq!(read(&store, episode.run).await.0.len(), 7 + 12);
        store.verify().await.unwrap();
    });
}
