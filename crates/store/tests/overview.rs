//! Lists of runs and parts of threads: what they cost on a large store, counted in rows, and what keeps them true after
//! a restart, a migration, an import and a retention.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod support;

use cantrip_canon::{ApprovalId, LoomId, RetentionId, RunId, Timestamp, TurnId};
use cantrip_loom::{
    Actor, AppendOutcome, ApprovalRequested, CallId, CastParked, Closing, Environment, Error, Fork, IntentRecord,
    Journal, Origin, Overview, PageRequest, ParkReason, Record, RecordDraft, RecordValue, RetentionOrder,
    RetentionPolicy, RunState, Seq, Step, StepId, SummaryFilter, TruncationReason, WindowPlace,
};
use cantrip_loom_suite::{Episode, LoomWriter, at, usd};
use cantrip_reply::{ReplyType, codes};
use cantrip_store::Store;
use futures_util::TryStreamExt;
use serde_json::json;
use support::{Kit, WITHOUT_OVERVIEW};

on_both!(
    a_window_of_a_long_thread_is_read_without_the_rest,
    a_spine_reads_as_many_rows_for_a_long_thread_as_for_a_short_one,
    a_page_of_many_runs_is_read_without_the_rest,
    a_turn_writes_nothing_for_lists,
    a_run_that_another_process_goes_on_with_is_summed_up_from_where_it_rested,
    a_store_of_version_six_gets_what_lists_read,
    a_damaged_store_of_version_six_still_opens,
    a_removed_run_leaves_every_list,
    a_copied_run_is_summed_up,
    an_altered_body_leaves_out_its_turn_only,
    a_text_with_a_nul_is_kept_and_found,
);

/// The length of the long threads; the long form of the test uses more.
fn long() -> usize {
    std::env::var("CANTRIP_TURNS").map_or(600, |turns| turns.parse().unwrap())
}

/// Returns the number of rows that a query reads, and its answer.
async fn rows<T>(store: &Store, question: impl Future<Output = Result<T, Error>>) -> (u64, T) {
    let before = store.rows_read();
    let answer = question.await.unwrap();
    (store.rows_read() - before, answer)
}

async fn a_window_of_a_long_thread_is_read_without_the_rest<K: Kit>(kit: K) {
    let store = kit.store();
    let mut weaver = LoomWriter::new(store);
    let mut episode = weaver.cast("count").await;
    weaver.plain_turns(&mut episode, 60).await;
    let short = episode.leaf.unwrap();
    let (few, end) = rows(store, store.window(short, WindowPlace::End, 40)).await;
    assert_eq!((end.turns.len(), end.first, end.last), (40, 1, 60));
    weaver.plain_turns(&mut episode, long()).await;
    let leaf = episode.leaf.unwrap();
    let last = episode.sequence;
    for (place, first) in [
        (WindowPlace::End, last - 39),
        (WindowPlace::Around(last / 2), last / 2 - 20),
        (WindowPlace::After(0), 1),
        (WindowPlace::Before(last), last - 40),
    ] {
        let (read, window) = rows(store, store.window(leaf, place, 40)).await;
        assert_eq!((window.turns[0].sequence, window.turns.len(), window.last), (first, 40, last), "{place:?}");
        assert_eq!(read, few, "{place:?} reads what 40 turns of a short thread take");
    }
}

async fn a_spine_reads_as_many_rows_for_a_long_thread_as_for_a_short_one<K: Kit>(kit: K) {
    let store = kit.store();
    let mut weaver = LoomWriter::new(store);
    let mut episode = weaver.cast("count").await;
    weaver.paid(&mut episode, "read", codes::NOT_AUTHORIZED.any(), 7).await;
    weaver.plain_turns(&mut episode, 63).await;
    let (few, marks) = rows(store, store.path_buckets(episode.leaf.unwrap(), 16)).await;
    assert_eq!(marks.len(), 16);
    weaver.plain_turns(&mut episode, 64 * 7).await;
    let (same, marks) = rows(store, store.path_buckets(episode.leaf.unwrap(), 16)).await;
    assert_eq!((marks.len(), marks[0].worst, marks[0].cost_micros), (16, ReplyType::Denied, 7));
    assert_eq!((marks[15].first, marks[15].last, marks[15].worst), (481, 512, ReplyType::Success));
    assert_eq!(same, few, "the marks are read, not the turns");
}

async fn a_page_of_many_runs_is_read_without_the_rest<K: Kit>(kit: K) {
    let store = kit.store();
    let mut weaver = LoomWriter::new(store);
    let page = PageRequest { after: None, most: 20 };
    let filters = [
        SummaryFilter::default(),
        SummaryFilter { states: vec![RunState::Terminated], ..SummaryFilter::default() },
        SummaryFilter { gate: Some("done".to_owned()), ..SummaryFilter::default() },
        SummaryFilter { code: Some(codes::GATE_OK.as_str().to_owned()), ..SummaryFilter::default() },
        SummaryFilter { owner: Some(Actor::new("local").unwrap()), ..SummaryFilter::default() },
        SummaryFilter { text: Some("count".to_owned()), ..SummaryFilter::default() },
    ];
    let mut counted = Vec::new();
    for _ in 0..2 {
        for n in 0..60 {
            let mut episode = weaver.cast("count").await;
            weaver.done(&mut episode, json!(n)).await;
        }
        let mut read = Vec::new();
        for filter in &filters {
            let (rows, listed) = rows(store, store.summaries(filter.clone(), page)).await;
            assert_eq!((listed.items.len(), listed.next.is_some()), (20, true), "{filter:?}");
            read.push(rows);
        }
        counted.push(read);
    }
    assert_eq!(counted, vec![vec![21; 6]; 2], "one more than the page tells whether there are more");
}

async fn a_turn_writes_nothing_for_lists<K: Kit>(kit: K) {
    let store = kit.store();
    let mut weaver = LoomWriter::new(store);
    let mut episode = weaver.cast("count").await;
    let through = "SELECT through FROM run_summaries";
    assert_eq!(kit.number(through), 3, "it is written when the run begins");
    weaver.plain_turns(&mut episode, 4).await;
    assert_eq!(kit.number(through), 3);
    let seen = store.summary(episode.run).await.unwrap();
    assert_eq!((seen.state, seen.turns), (RunState::Running, 4), "turns are counted in the index");
    weaver.truncate(&episode, TruncationReason::MaxTurns).await;
    assert_eq!(kit.number(through), 20, "it is written when the run ends");
    assert_eq!(store.summary(episode.run).await.unwrap().tokens_prompt, 400);
    store.verify().await.unwrap();
}

async fn park(store: &Store, weaver: &mut LoomWriter<'_, Store>, episode: &Episode) {
    let reason = ParkReason::Interrupted;
    let parked =
        CastParked { cast_id: episode.cast, reason, turn_id: None, error: None, detail: None, elapsed_ms: None };
    weaver.write(episode, parked).await;
    store.release(&episode.lease).await.unwrap();
}

async fn a_run_that_another_process_goes_on_with_is_summed_up_from_where_it_rested<K: Kit>(kit: K) {
    let mut weaver = LoomWriter::new(kit.store());
    let mut episode = weaver.cast("count").await;
    weaver.paid(&mut episode, "read", codes::GATE_OK.any(), 5).await;
    park(kit.store(), &mut weaver, &episode).await;
    // These turns are in no row when the process ends.
    let mut other = weaver.cast("unrested").await;
    weaver.paid(&mut other, "search", codes::NOT_AUTHORIZED.any(), 30).await;
    let kit = kit.reopen().await.unwrap();
    let store = kit.store();
    let mut weaver = LoomWriter::seeded(store, 9);
    weaver.skip(1_000);
    weaver.paid(&mut other, "read", codes::GATE_OK.any(), 4).await;
    weaver.done(&mut other, json!("so")).await;
    let seen = store.summary(other.run).await.unwrap();
    assert_eq!((seen.turns, seen.cost, seen.tokens_prompt), (3, Some(usd(34)), 300));
    let met = SummaryFilter { gate: Some("search".to_owned()), ..SummaryFilter::default() };
    assert_eq!(store.summaries(met, PageRequest::FIRST).await.unwrap().items, [seen]);
    let spine = store.path_buckets(other.leaf.unwrap(), 9).await.unwrap();
    assert_eq!(spine.iter().map(|mark| mark.cost_micros).collect::<Vec<_>>(), [30, 4, 0]);
    assert_eq!(store.summary(episode.run).await.unwrap().waiting_for, Some(ParkReason::Interrupted));
    store.verify().await.unwrap();
}

/// Writes runs of every kind: ended ones, a fork, a later cast, one that waits and one that runs.
async fn varied(store: &Store) -> (LoomId, Vec<RunId>, Vec<TurnId>) {
    let mut weaver = LoomWriter::new(store);
    let mut one = weaver.cast("first").await;
    weaver.paid(&mut one, "read", codes::GATE_OK.any(), 11).await;
    let at = weaver.paid(&mut one, "read", codes::GATE_FAILED.any(), 22).await;
    let leaf = weaver.done(&mut one, json!({"sum": 3})).await;
    let fork = Origin::Fork(Fork { turn: at, environment: Environment::Fresh });
    let intent = weaver.intent("another way");
    let (step, mut two) = weaver.open(fork, intent, Some(at), 2);
    weaver.commit(step).await;
    let new = weaver.paid(&mut two, "read", codes::GATE_OK.any(), 33).await;
    weaver.truncate(&two, TruncationReason::MaxTurns).await;
    let mut more = weaver.send(&one, IntentRecord::Of(one.cast)).await;
    let last = weaver.done(&mut more, json!("again")).await;
    let waiting = weaver.cast("wait").await;
    let approval_id: ApprovalId = weaver.id();
    let asked = ApprovalRequested {
        approval_id,
        call_id: CallId::of_turn(weaver.id(), 1),
        cast_id: waiting.cast,
        gate: "edit".into(),
        args: RecordValue::new(json!({}), &mut Vec::new()).unwrap(),
        reasons: Vec::new(),
        expires_at: cantrip_loom_suite::at(9_000_000),
        policy: None,
    };
    weaver.write(&waiting, asked).await;
    store.release(&waiting.lease).await.unwrap();
    let mut running = weaver.cast("run").await;
    weaver.plain(&mut running).await;
    (weaver.loom, vec![one.run, two.run, more.run, waiting.run, running.run], vec![leaf, new, last])
}

async fn a_store_of_version_six_gets_what_lists_read<K: Kit>(kit: K) {
    let (loom, runs, leaves) = varied(kit.store()).await;
    let look = async |store: &Store| {
        let mut spines = Vec::new();
        for leaf in &leaves {
            spines.push(store.path_buckets(*leaf, 9).await.unwrap());
        }
        let page = PageRequest::FIRST;
        (
            store.summaries(SummaryFilter::default(), page).await.unwrap().items,
            store.run_counts(None, at(0)).await.unwrap(),
            store.threads(loom, page).await.unwrap().items,
            store.waiting_calls(page).await.unwrap().items,
            spines,
        )
    };
    let mut before = look(kit.store()).await;
    kit.by_hand(WITHOUT_OVERVIEW).unwrap();
    let kit = kit.reopen().await.unwrap();
    // The migration reads all records, so a running run is summed up to its newest one.
    let running = before.0.iter_mut().find(|run| run.run_id == runs[4]).unwrap();
    (running.tokens_prompt, running.tokens_completion, running.tokens_cached) = (100, 20, 40);
    assert_eq!(look(kit.store()).await, before);
    assert_eq!(before.3.len(), 1);
    kit.store().verify().await.unwrap();
}

async fn a_damaged_store_of_version_six_still_opens<K: Kit>(kit: K) {
    let (_, runs, _) = varied(kit.store()).await;
    let records: Vec<Record> = kit.store().read(runs[0], Seq::START).try_collect().await.unwrap();
    kit.unguard();
    let of = "run_key = (SELECT min(run_key) FROM runs)";
    let mut step = records[3..4].to_vec();
    step[0].payload = step[0].payload.replace("prompt_tokens", "prompt_tokenz").into();
    // The first turn is one step of four records; its place is taken by one that says something else.
    kit.by_hand(&support::retold::<K>(of, &[step, records[4..7].to_vec()].concat())).unwrap();
    kit.by_hand(WITHOUT_OVERVIEW).unwrap();
    let kit = kit.reopen().await.unwrap();
    let listed = kit.store().summaries(SummaryFilter::default(), PageRequest::FIRST).await.unwrap().items;
    assert_eq!(listed.len(), 5, "the others are there, and this one as far as it can be read");
    let seen = kit.store().summary(runs[0]).await.unwrap();
    assert_eq!((seen.intent.as_deref(), seen.turns, seen.answer), (Some("first"), 0, None));
    assert!(matches!(kit.store().verify().await, Err(Error::Damaged(_))));
}

fn retention() -> RetentionOrder {
    let at: Timestamp = "2126-01-01T00:00:00.000Z".parse().unwrap();
    RetentionOrder {
        retention_id: RetentionId::from_parts(at, [1; 10]),
        policy: RetentionPolicy { older_than_days: 0, kinds: None, owners: None },
        actor: Actor::new("ann").unwrap(),
        reason: "our policy".to_owned(),
        at,
    }
}

async fn a_removed_run_leaves_every_list<K: Kit>(kit: K) {
    let store = kit.store();
    let mut weaver = LoomWriter::new(store);
    let mut one = weaver.cast("a private intent").await;
    weaver.paid(&mut one, "read", codes::GATE_OK.any(), 11).await;
    weaver.done(&mut one, json!("a private answer")).await;
    let mut two = weaver.cast("kept").await;
    weaver.done(&mut two, json!(1)).await;
    store.remove(retention(), one.run).await.unwrap();
    let listed = async |filter| {
        let page = store.summaries(filter, PageRequest::FIRST).await.unwrap();
        page.items.into_iter().map(|run| run.run_id).collect::<Vec<RunId>>()
    };
    assert_eq!(listed(SummaryFilter::default()).await, [two.run]);
    let met = SummaryFilter { gate: Some("read".to_owned()), ..SummaryFilter::default() };
    assert_eq!(listed(met).await, []);
    assert!(matches!(store.summary(one.run).await, Err(Error::Pruned { .. })));
    let threads = store.threads(weaver.loom, PageRequest::FIRST).await.unwrap().items;
    assert_eq!(threads.iter().map(|thread| thread.entity_id).collect::<Vec<_>>(), [two.entity]);
    assert!(store.run_threads(one.run).await.unwrap().is_empty());
    assert_eq!(kit.number("SELECT count(*) FROM casts WHERE intent LIKE '%private%'"), 0);
    assert_eq!(kit.number("SELECT count(*) FROM run_summaries"), 1);
    store.verify().await.unwrap();
}

async fn a_copied_run_is_summed_up<K: Kit>(kit: K) {
    let source = Store::in_memory().unwrap();
    let mut weaver = LoomWriter::new(&source);
    let mut episode = weaver.cast("elsewhere").await;
    weaver.paid(&mut episode, "read", codes::GATE_OK.any(), 11).await;
    weaver.plain(&mut episode).await;
    let records: Vec<Record> = source.read(episode.run, Seq::START).try_collect().await.unwrap();
    let store = kit.store();
    for (number, part) in records.chunks(4).enumerate() {
        let id = StepId::new(format!("copy-{number}")).unwrap();
        let mut step = Step::import(id, episode.run, Seq::new(part[0].seq.get() - 1));
        for record in part {
            step = step.record(RecordDraft::copy(record).unwrap());
        }
        let appended = store.append(step).await.unwrap();
        assert!(matches!(appended, AppendOutcome::Committed(_)), "{appended:?}");
    }
    let seen = store.summary(episode.run).await.unwrap();
    assert_eq!((seen.state, seen.intent.as_deref()), (RunState::Waiting, Some("elsewhere")));
    assert_eq!((seen.turns, seen.cost, seen.tokens_prompt), (2, Some(usd(11)), 200));
    store.verify().await.unwrap();
}

async fn an_altered_body_leaves_out_its_turn_only<K: Kit>(kit: K) {
    let store = kit.store();
    let mut weaver = LoomWriter::new(store);
    let mut episode = weaver.cast("read").await;
    let first = weaver.plain(&mut episode).await;
    let bad = weaver.turn(&mut episode, "read", json!("lang ".repeat(2_000)), Closing::Open).await;
    let last = weaver.plain(&mut episode).await;
    kit.unguard();
    kit.by_hand("UPDATE bodies SET bytes = body_hash").unwrap();
    let window = store.window(last, WindowPlace::End, 9).await.unwrap();
    assert_eq!(window.turns.iter().map(|turn| turn.id).collect::<Vec<_>>(), [first, last]);
    assert_eq!(window.spans.len(), 2);
    let [damaged] = &window.damaged[..] else { panic!("one turn is damaged: {:?}", window.damaged) };
    assert_eq!((damaged.turn_id, damaged.sequence), (bad, 2));
    assert_eq!(damaged.error.mark.code, codes::RECORD_ALTERED.as_str());
}

async fn a_text_with_a_nul_is_kept_and_found<K: Kit>(kit: K) {
    let store = kit.store();
    let mut weaver = LoomWriter::new(store);
    let mut episode = weaver.cast("a\0b").await;
    weaver.paid(&mut episode, "re\0ad", codes::GATE_OK.any(), 1).await;
    weaver.done(&mut episode, json!("c\0d")).await;
    let seen = store.summary(episode.run).await.unwrap();
    assert_eq!((seen.intent.as_deref(), seen.answer.as_deref()), (Some("a\u{fffd}b"), Some("c\u{fffd}d")));
    let met = SummaryFilter { gate: Some("re\0ad".to_owned()), ..SummaryFilter::default() };
    assert_eq!(store.summaries(met, PageRequest::FIRST).await.unwrap().items, [seen]);
    store.verify().await.unwrap();
}
