//! Properties of every tree: paths, leaves, forks, and that everything follows from the records.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::collections::HashMap;

use cantrip_canon::TurnId;
use cantrip_loom::{
    Actor, Closing, Environment, Fork, IntentRecord, Journal, Jsonl, Loom, MemoryLoom, Origin, PageRequest, Projection,
    Record, Reward, Step, TruncationReason, Turn,
};
use cantrip_loom_suite::{Episode, LoomWriter};
use futures_util::TryStreamExt;
use proptest::prelude::*;
use serde_json::{Value, json};

/// One action; the numbers select among the existing items.
#[derive(Debug, Clone)]
enum Act {
    Cast(String),
    Turn(usize, Value),
    Fork(usize),
    Done(usize, Value),
    Truncate(usize),
    Continue(usize),
    Reward(usize, f64),
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-9_007_199_254_740_991_i64..9_007_199_254_740_991).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        (0_usize..9_000).prop_map(|length| Value::from("é\n\u{1}".repeat(length / 4))),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        1 => "\\PC{1,40}".prop_map(Act::Cast),
        6 => (any::<usize>(), value()).prop_map(|(n, value)| Act::Turn(n, value)),
        2 => any::<usize>().prop_map(Act::Fork),
        1 => (any::<usize>(), value()).prop_map(|(n, value)| Act::Done(n, value)),
        1 => any::<usize>().prop_map(Act::Truncate),
        1 => any::<usize>().prop_map(Act::Continue),
        1 => (any::<usize>(), -1.0..1.0_f64).prop_map(|(n, reward)| Act::Reward(n, reward)),
    ]
}

/// A separate model of the expected tree.
#[derive(Default)]
struct Model {
    parents: HashMap<TurnId, Option<TurnId>>,
    order: Vec<(TurnId, u64)>,
    rewards: HashMap<TurnId, f64>,
}

impl Model {
    fn add(&mut self, turn: TurnId, parent: Option<TurnId>, sequence: u64) {
        self.parents.insert(turn, parent);
        self.order.push((turn, sequence));
    }

    fn path(&self, turn: TurnId) -> Vec<TurnId> {
        let mut path = vec![turn];
        while let Some(Some(parent)) = self.parents.get(path.last().unwrap()) {
            path.push(*parent);
        }
        path.reverse();
        path
    }

    fn leaves(&self) -> Vec<TurnId> {
        let has_child = |turn: &TurnId| self.parents.values().any(|parent| parent.as_ref() == Some(turn));
        self.order.iter().map(|(turn, _)| *turn).filter(|turn| !has_child(turn)).collect()
    }
}

async fn play<S: Journal + Loom>(store: &S, acts: Vec<Act>) -> (Model, Vec<(TurnId, Turn)>, cantrip_canon::LoomId) {
    let mut weaver = LoomWriter::new(store);
    let mut model = Model::default();
    let mut seen = Vec::new();
    let mut live: Vec<Episode> = vec![weaver.cast("begin").await];
    let mut cut: Vec<Episode> = Vec::new();
    for act in acts {
        match act {
            Act::Cast(intent) => live.push(weaver.cast(&format!("{intent}.")).await),
            Act::Turn(n, value) => {
                if live.is_empty() {
                    continue;
                }
                let at = n % live.len();
                let (parent, sequence) = (live[at].leaf, live[at].sequence + 1);
                let turn = weaver.turn(&mut live[at], "read", value, Closing::Open).await;
                model.add(turn, parent, sequence);
                seen.push((turn, store.turn(turn).await.unwrap()));
            }
            Act::Fork(n) => {
                if model.order.is_empty() {
                    continue;
                }
                let (turn, sequence) = model.order[n % model.order.len()];
                let intent = weaver.intent("another way");
                let origin = Origin::Fork(Fork { turn, environment: Environment::Fresh });
                let (step, episode) = weaver.open(origin, intent, Some(turn), sequence);
                weaver.commit(step).await;
                live.push(episode);
            }
            Act::Done(n, value) => {
                if live.is_empty() {
                    continue;
                }
                let mut episode = live.swap_remove(n % live.len());
                // The answer must be stored inline here, so it has to be short.
                let value = if value.to_string().len() < 2_000 { value } else { Value::Null };
                let (parent, sequence) = (episode.leaf, episode.sequence + 1);
                let turn = weaver.done(&mut episode, value).await;
                model.add(turn, parent, sequence);
            }
            Act::Truncate(n) => {
                if live.is_empty() {
                    continue;
                }
                let episode = live.swap_remove(n % live.len());
                weaver.truncate(&episode, TruncationReason::Timeout).await;
                cut.push(episode);
            }
            Act::Continue(n) => {
                if cut.is_empty() {
                    continue;
                }
                let episode = cut.swap_remove(n % cut.len());
                live.push(weaver.send(&episode, IntentRecord::Of(episode.cast)).await);
            }
            Act::Reward(n, reward) => {
                if model.order.is_empty() {
                    continue;
                }
                let (turn, _) = model.order[n % model.order.len()];
                let cast = store.turn(turn).await.unwrap().cast_id;
                let run = store.cast(cast).await.unwrap().run_id;
                let by = Actor::new("user:1").unwrap();
                let reward = Reward { turn_id: turn, reward, by, note: None };
                model.rewards.insert(turn, reward.reward);
                let step = Step::annotation(weaver.step_id(), run).record(weaver.draft(reward));
                weaver.commit(step).await;
            }
        }
    }
    (model, seen, weaver.loom)
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn paths_and_leaves_follow_from_parents_whatever_is_written(acts in prop::collection::vec(act(), 0..40)) {
        run(async {
            let store = MemoryLoom::new();
            let (model, seen, loom) = play(&store, acts).await;
            for (turn, sequence) in &model.order {
                let path = store.path(*turn).await.unwrap();
                prop_assert_eq!(path.iter().map(|turn| turn.id).collect::<Vec<_>>(), model.path(*turn));
                let turn = path.last().unwrap();
                prop_assert_eq!(turn.sequence, *sequence);
                prop_assert_eq!(turn.reward, model.rewards.get(&turn.id).copied());
            }
            prop_assert_eq!(store.leaves(loom, PageRequest::FIRST).await.unwrap().items, model.leaves());
            // Later records did not change a turn, except for its reward and the end of its cast.
            for (id, before) in seen {
                let after = store.turn(id).await.unwrap();
                let (reward, closing) = (before.reward, before.closing.clone());
                prop_assert_eq!(Turn { reward, closing, ..after }, before);
            }
            Ok(())
        })?;
    }

    #[test]
    fn the_records_are_all_there_is(acts in prop::collection::vec(act(), 0..15)) {
        run(async {
            let folder = tempfile::tempdir().unwrap();
            let store = Jsonl::open(folder.path()).unwrap();
            let (model, _, loom) = play(&store, acts).await;
            let records: Vec<Record> = store.scan().try_collect().await.unwrap();
            let turns = store.turns(loom, PageRequest::FIRST).await.unwrap();
            let runs = store.runs(PageRequest::FIRST).await.unwrap();
            drop(store);
            let store = Jsonl::open(folder.path()).unwrap();
            prop_assert_eq!(store.torn_bytes(), 0);
            prop_assert_eq!(store.scan().try_collect::<Vec<Record>>().await.unwrap(), records.clone());
            prop_assert_eq!(store.turns(loom, PageRequest::FIRST).await.unwrap(), turns);
            // The leases of a process are gone with it; everything else is unchanged.
            let again = store.runs(PageRequest::FIRST).await.unwrap();
            prop_assert_eq!(again.items.iter().map(|run| run.newest).collect::<Vec<_>>(),
                runs.items.iter().map(|run| run.newest).collect::<Vec<_>>());
            prop_assert_eq!(store.verify().unwrap().records, records.len() as u64);
            let mut projection = Projection::new();
            for record in &records {
                projection.apply(record).unwrap();
            }
            prop_assert_eq!(projection.leaves(loom, PageRequest::FIRST).unwrap().items, model.leaves());
            Ok(())
        })?;
    }
}

#[test]
fn a_thread_of_ten_thousand_turns_costs_the_same_per_turn_and_a_fork_two_records() {
    run(async {
        const TURNS: usize = 10_000;
        let store = MemoryLoom::new();
        let mut weaver = LoomWriter::new(&store);
        let mut episode = weaver.cast("count").await;
        for _ in 0..TURNS {
            weaver.plain(&mut episode).await;
        }
        let leaf = episode.leaf.unwrap();
        let path = store.path(leaf).await.unwrap();
        assert_eq!(path.len(), TURNS);
        assert!(path.iter().zip(1..).all(|(turn, sequence)| turn.sequence == sequence));
        let records: Vec<Record> = store.scan().try_collect().await.unwrap();
        let bytes = |records: &[Record]| records.iter().map(|record| record.payload.len()).sum::<usize>();
        let (first, last) = (bytes(&records[3..4_003]), bytes(&records[records.len() - 4_000..]));
        assert!(last * 10 < first * 11, "the last thousand turns have {last} bytes, the first {first}");
        let intent = weaver.intent("another way");
        let origin = Origin::Fork(Fork { turn: leaf, environment: Environment::None });
        let (mut step, mut branch) = weaver.open(origin, intent, Some(leaf), episode.sequence);
        let opening = weaver.opening(cantrip_loom::RunKind::Cast, branch.entity);
        step.records.remove(0);
        let entity = weaver.entity(branch.entity, origin);
        step.records[0] = cantrip_loom::RecordDraft::opening(weaver.now(), opening, entity).unwrap();
        weaver.commit(step).await;
        assert_eq!(store.scan().try_collect::<Vec<Record>>().await.unwrap().len(), records.len() + 2);
        let turn = weaver.plain(&mut branch).await;
        assert_eq!(store.path(turn).await.unwrap().len(), TURNS + 1);
    });
}
