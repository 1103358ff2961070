//! The cost of a query on a large store depends on the result, not on the size of the store. Counted in rows, not in
//! time.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod support;

use cantrip_canon::{FoldId, TurnId};
use cantrip_loom::{AppendOutcome, Closing, Fold, Journal, Loom, PageRequest, RecordValue, RunState, Step, Strategy};
use cantrip_loom_suite::{Episode, LoomWriter};
use cantrip_store::Store;
use serde_json::json;
use support::Kit;

on_both!(
    the_end_of_a_long_thread_is_read_without_the_rest,
    the_latest_of_many_runs_are_read_without_the_rest,
    a_fork_of_a_long_thread_is_one_row,
);

/// The length of the long threads; the long form of the test uses more.
fn long() -> usize {
    std::env::var("CANTRIP_TURNS").map_or(400, |turns| turns.parse().unwrap())
}

/// Returns the number of rows that a query reads.
async fn rows<T>(store: &Store, question: impl Future<Output = T>) -> (u64, T) {
    let before = store.rows_read();
    let answer = question.await;
    (store.rows_read() - before, answer)
}

async fn grow(weaver: &mut LoomWriter<'_, Store>, episode: &mut Episode, turns: usize) -> TurnId {
    let mut last = None;
    for n in 0..turns {
        // Every tenth result is a separate body, and a fold follows every hundredth turn.
        let result = if n % 10 == 9 { "long ".repeat(1_000) + &n.to_string() } else { n.to_string() };
        let turn = weaver.turn(episode, "echo", json!(result), Closing::Open).await;
        if n % 100 == 99 {
            let fold_id: FoldId = weaver.id();
            let fold = Fold {
                fold_id,
                entity_id: episode.entity,
                after: turn,
                from: 1,
                to: n as u64,
                strategy: Strategy::Window,
                text: RecordValue::new("[Folded]".to_owned(), &mut Vec::new()).unwrap(),
                estimate_before: 9,
                estimate_after: 3,
                attempt: None,
                degraded: false,
                sum: None,
            };
            let step = Step::for_lease(weaver.step_id(), episode.lease.clone()).record(weaver.draft(fold));
            weaver.commit(step).await;
        }
        last = Some(turn);
    }
    last.unwrap()
}

async fn the_end_of_a_long_thread_is_read_without_the_rest<K: Kit>(kit: K) {
    let store = kit.store();
    let mut weaver = LoomWriter::new(store);
    let mut episode = weaver.cast("count").await;
    let early = grow(&mut weaver, &mut episode, 100).await;
    let (few, end) = rows(store, store.thread_end(early, 50)).await;
    assert_eq!((end.unwrap().turns.len(), few > 50), (50, true));
    let late = grow(&mut weaver, &mut episode, long()).await;
    let (same, end) = rows(store, store.thread_end(late, 50)).await;
    let end = end.unwrap();
    assert_eq!((end.turns.len(), end.turns[49].id, end.folds.len()), (50, late, 1));
    assert_eq!(same, few, "what lies before the last 50 turns is not read");
    assert_eq!(rows(store, store.tail(late, 50)).await.0, rows(store, store.tail(early, 50)).await.0);
    let (last, fold) = rows(store, store.last_fold(late)).await;
    assert_eq!(fold.unwrap().map(|fold| fold.fold.to), Some(long() as u64 - 1));
    assert_eq!(last, rows(store, store.last_fold(early)).await.0);
    assert_eq!(rows(store, store.turn(late)).await.0, rows(store, store.turn(early)).await.0);
    let (all, _) = rows(store, store.thread(late)).await;
    assert!(all > long() as u64, "the whole of it takes {all} rows");
}

async fn the_latest_of_many_runs_are_read_without_the_rest<K: Kit>(kit: K) {
    let store = kit.store();
    let mut weaver = LoomWriter::new(store);
    let page = PageRequest { after: None, most: 20 };
    let mut counted = Vec::new();
    for _ in 0..2 {
        for n in 0..long() / 5 {
            let mut episode = weaver.cast("count").await;
            if n % 3 == 0 {
                weaver.done(&mut episode, json!(n)).await;
            }
        }
        let (last, found) = rows(store, store.last_run()).await;
        assert!(found.unwrap().is_some());
        let (latest, listed) = rows(store, store.latest_runs(None, page)).await;
        assert_eq!(listed.unwrap().items.len(), 20);
        let (ended, listed) = rows(store, store.latest_runs(Some(RunState::Terminated), page)).await;
        assert_eq!(listed.unwrap().items.len(), 20);
        counted.push([last, latest, ended]);
    }
    assert_eq!(counted, [[1, 21, 21]; 2], "one more than the page tells whether there are more");
}

const ALL: &str = "SELECT (SELECT count(*) FROM run_events) + (SELECT count(*) FROM turns) + \
                   (SELECT count(*) FROM bodies)";

async fn a_fork_of_a_long_thread_is_one_row<K: Kit>(kit: K) {
    let store = kit.store();
    let mut weaver = LoomWriter::new(store);
    let mut episode = weaver.cast("count").await;
    let leaf = grow(&mut weaver, &mut episode, long()).await;
    let before = kit.number(ALL);
    let origin =
        cantrip_loom::Origin::Fork(cantrip_loom::Fork { turn: leaf, environment: cantrip_loom::Environment::None });
    let intent = weaver.intent("another way");
    let (step, forked) = weaver.open(origin, intent, Some(leaf), long() as u64);
    assert!(matches!(store.append(step).await.unwrap(), AppendOutcome::Committed(_)));
    let after = kit.number(ALL);
    assert_eq!(after - before, 1, "one step, and no turn or body of the original again");
    assert_eq!(store.entity(forked.entity).await.unwrap().leaf, None);
}
