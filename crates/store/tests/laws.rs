//! A store shows the same views as the loom in memory for any records, also if it was reopened in between.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::time::Duration;

use cantrip_canon::TurnId;
use cantrip_loom::{
    Actor, CallId, CallWork, CastParked, Closing, EndedBy, Ending, Environment, Error, Fold, Fork, IntentRecord,
    Journal, ListPage, Loom, MemoryLoom, Origin, PageRequest, ParkReason, Record, RecordDraft, RecordValue, Reward,
    RunState, Spawn, Step, Strategy as Folding, TruncationReason, WorkerId,
};
use cantrip_loom_suite::{Episode, LoomWriter, at, closed, settled, started, utterance};
use cantrip_store::Store;
use futures_util::TryStreamExt;
use proptest::prelude::*;
use serde_json::json;

/// One action; the numbers select among the existing items.
#[derive(Debug, Clone)]
enum Act {
    Cast,
    /// A turn with a result of this many bytes.
    Turn(usize, usize),
    /// A turn that delegates once, to a child that is done at once.
    Delegate(usize),
    Fork(usize),
    Done(usize),
    Truncate(usize),
    Park(usize),
    Send(usize),
    Reward(usize, f64),
    Fold(usize),
    TakeOver(usize),
    Reopen,
}

fn act() -> impl Strategy<Value = Act> {
    let any = any::<usize>;
    prop_oneof![
        2 => Just(Act::Cast),
        8 => (any(), prop_oneof![3 => 0_usize..300, 1 => 4_000_usize..9_000]).prop_map(|(n, bytes)| Act::Turn(n, bytes)),
        3 => any().prop_map(Act::Delegate),
        2 => any().prop_map(Act::Fork),
        1 => any().prop_map(Act::Done),
        1 => any().prop_map(Act::Truncate),
        1 => any().prop_map(Act::Park),
        2 => any().prop_map(Act::Send),
        1 => (any(), -1.0..1.0_f64).prop_map(|(n, reward)| Act::Reward(n, reward)),
        1 => any().prop_map(Act::Fold),
        1 => any().prop_map(Act::TakeOver),
        1 => Just(Act::Reopen),
    ]
}

/// Two stores with the same records.
struct Both {
    memory: MemoryLoom,
    store: Option<Store>,
    folder: tempfile::TempDir,
    live: Vec<Episode>,
    over: Vec<Episode>,
    turns: Vec<(TurnId, u64, Episode)>,
    /// The number of ids, times and steps that were used.
    script: u64,
}

impl Both {
    fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    /// Runs an action on both stores, with the same ids and times, which no other action uses.
    async fn on_both<T>(&mut self, act: impl AsyncFn(&mut LoomWriter<'_, dyn_journal::AnyJournal<'_>>) -> T) -> T {
        self.script += 1;
        let seed = self.script;
        let memory = dyn_journal::AnyJournal::Memory(&self.memory);
        let mut weaver = LoomWriter::seeded(&memory, seed);
        weaver.loom = cantrip_canon::LoomId::from_bytes([1; 16]);
        weaver.skip(seed * 1_000);
        act(&mut weaver).await;
        let store = dyn_journal::AnyJournal::Store(self.store.as_ref().unwrap());
        let mut weaver = LoomWriter::seeded(&store, seed);
        weaver.loom = cantrip_canon::LoomId::from_bytes([1; 16]);
        weaver.skip(seed * 1_000);
        act(&mut weaver).await
    }
}

/// One type for both journals, so that one closure works for both.
mod dyn_journal {
    use super::*;
    use cantrip_canon::{Hash, RunId, Timestamp};
    use cantrip_loom::{AppendOutcome, Body, Lease, RunView, Seq};
    use futures_util::{Stream, StreamExt};

    #[derive(Debug)]
    pub(crate) enum AnyJournal<'a> {
        Memory(&'a MemoryLoom),
        Store(&'a Store),
    }

    macro_rules! passed {
        ($self:ident, $journal:ident => $call:expr) => {
            match $self {
                Self::Memory($journal) => $call,
                Self::Store($journal) => $call,
            }
        };
    }

    impl Journal for AnyJournal<'_> {
        async fn append(&self, step: Step) -> Result<AppendOutcome, Error> {
            passed!(self, journal => journal.append(step).await)
        }
        async fn acquire(&self, run: RunId, owner: WorkerId, now: Timestamp, lasts: Duration) -> Result<Lease, Error> {
            passed!(self, journal => journal.acquire(run, owner, now, lasts).await)
        }
        async fn renew(&self, lease: &Lease, now: Timestamp, lasts: Duration) -> Result<Lease, Error> {
            passed!(self, journal => journal.renew(lease, now, lasts).await)
        }
        async fn release(&self, lease: &Lease) -> Result<(), Error> {
            passed!(self, journal => journal.release(lease).await)
        }
        async fn holder(&self, run: RunId) -> Result<Option<Lease>, Error> {
            passed!(self, journal => journal.holder(run).await)
        }
        async fn orphans(&self, now: Timestamp, page: PageRequest) -> Result<ListPage<RunView>, Error> {
            passed!(self, journal => journal.orphans(now, page).await)
        }
        async fn lease_owners(&self) -> Result<Vec<WorkerId>, Error> {
            passed!(self, journal => journal.lease_owners().await)
        }
        async fn leases_of(&self, owner: WorkerId, page: PageRequest) -> Result<ListPage<Lease>, Error> {
            passed!(self, journal => journal.leases_of(owner, page).await)
        }
        fn read(&self, run: RunId, after: Seq) -> impl Stream<Item = Result<Record, Error>> + Send {
            passed!(self, journal => journal.read(run, after).boxed())
        }
        fn scan(&self) -> impl Stream<Item = Result<Record, Error>> + Send {
            passed!(self, journal => journal.scan().boxed())
        }
        async fn wait_for_growth(&self, run: RunId, after: Seq) -> Result<Seq, Error> {
            passed!(self, journal => journal.wait_for_growth(run, after).await)
        }
        async fn body(&self, hash: Hash) -> Result<Body, Error> {
            passed!(self, journal => journal.body(hash).await)
        }
    }
}

fn chosen<T>(from: &[T], number: usize) -> Option<usize> {
    (!from.is_empty()).then(|| number % from.len())
}

async fn happen(both: &mut Both, act: Act) {
    match act {
        Act::Cast => {
            let episode = both.on_both(async |weaver| weaver.cast("count").await).await;
            both.live.push(episode);
        }
        Act::Turn(n, bytes) => {
            let Some(at) = chosen(&both.live, n) else { return };
            let before = both.live[at].clone();
            let after = both
                .on_both(async |weaver| {
                    let mut episode = before.clone();
                    weaver.turn(&mut episode, "echo", json!("é".repeat(bytes / 2)), Closing::Open).await;
                    episode
                })
                .await;
            both.turns.push((after.leaf.unwrap(), after.sequence, after.clone()));
            both.live[at] = after;
        }
        Act::Delegate(n) => {
            let Some(at) = chosen(&both.live, n) else { return };
            let before = both.live[at].clone();
            let (after, child) = both.on_both(async |weaver| delegated(weaver, &before).await).await;
            both.turns.push((after.leaf.unwrap(), after.sequence, after.clone()));
            both.turns.push((child, 1, after.clone()));
            both.live[at] = after;
        }
        Act::Fork(n) => {
            let Some(at) = chosen(&both.turns, n) else { return };
            let (turn, sequence, _) = both.turns[at].clone();
            let episode = both
                .on_both(async |weaver| {
                    let intent = weaver.intent("another way");
                    let origin = Origin::Fork(Fork { turn, environment: Environment::None });
                    let (step, episode) = weaver.open(origin, intent, Some(turn), sequence);
                    weaver.commit(step).await;
                    episode
                })
                .await;
            both.live.push(episode);
        }
        Act::Done(n) => {
            let Some(at) = chosen(&both.live, n) else { return };
            let before = both.live.remove(at);
            let after = both
                .on_both(async |weaver| {
                    let mut episode = before.clone();
                    weaver.done(&mut episode, json!("x".repeat(n % 5_000))).await;
                    episode
                })
                .await;
            both.turns.push((after.leaf.unwrap(), after.sequence, after.clone()));
            both.over.push(after);
        }
        Act::Truncate(n) => {
            let Some(at) = chosen(&both.live, n) else { return };
            let episode = both.live.remove(at);
            both.on_both(async |weaver| weaver.truncate(&episode, TruncationReason::MaxTurns).await).await;
            both.over.push(episode);
        }
        Act::Park(n) => {
            let Some(at) = chosen(&both.live, n) else { return };
            let episode = both.live[at].clone();
            both.on_both(async |weaver| {
                let cast_id = episode.cast;
                let parked = CastParked {
                    cast_id,
                    reason: ParkReason::Interrupted,
                    turn_id: None,
                    error: None,
                    detail: None,
                    elapsed_ms: None,
                };
                let step = Step::for_lease(weaver.step_id(), episode.lease.clone()).record(weaver.draft(parked));
                weaver.commit(step).await;
            })
            .await;
        }
        Act::Send(n) => {
            let Some(at) = chosen(&both.over, n) else { return };
            let before = both.over.remove(at);
            let after = both
                .on_both(async |weaver| {
                    let intent = if n % 3 == 0 { IntentRecord::Of(before.cast) } else { weaver.intent("and now?") };
                    weaver.send(&before, intent).await
                })
                .await;
            both.live.push(after);
        }
        Act::Reward(n, reward) => {
            let Some(at) = chosen(&both.turns, n) else { return };
            let (turn, _, episode) = both.turns[at].clone();
            both.on_both(async |weaver| {
                let reward = Reward { turn_id: turn, reward, by: Actor::new("user:1").unwrap(), note: None };
                let step = Step::annotation(weaver.step_id(), episode.run).record(weaver.draft(reward));
                weaver.commit(step).await;
            })
            .await;
        }
        Act::Fold(n) => {
            let Some(at) = chosen(&both.live, n) else { return };
            let episode = both.live[at].clone();
            let Some(after) = episode.leaf.filter(|_| episode.turns > 0) else { return };
            both.on_both(async |weaver| {
                let mut bodies = Vec::new();
                let fold = Fold {
                    fold_id: weaver.id(),
                    entity_id: episode.entity,
                    after,
                    from: 1,
                    to: episode.sequence,
                    strategy: Folding::Window,
                    text: RecordValue::new("[Folded] ".repeat(n % 900), &mut bodies).unwrap(),
                    estimate_before: 900,
                    estimate_after: 300,
                    attempt: None,
                    degraded: false,
                    sum: None,
                };
                let step = Step::for_lease(weaver.step_id(), episode.lease.clone()).record(weaver.draft(fold));
                weaver.commit(step.bodies(bodies)).await;
            })
            .await;
        }
        Act::TakeOver(n) => {
            let Some(at) = chosen(&both.live, n) else { return };
            let episode = both.live[at].clone();
            let owner = WorkerId::new(format!("process-{n}")).unwrap();
            let now = episode.lease.expires_at;
            let lasts = Duration::from_hours(1);
            let one = both.memory.acquire(episode.run, owner.clone(), now, lasts).await.unwrap();
            let two = both.store().acquire(episode.run, owner, now, lasts).await.unwrap();
            assert_eq!(one, two);
            both.live[at].lease = one;
        }
        Act::Reopen => {
            drop(both.store.take());
            both.store = Some(Store::sqlite(both.folder.path().join("loom.db")).unwrap());
        }
    }
}

/// Writes an utterance that delegates once to a child that is done at once. Returns the episode after it, and the turn
/// of the child.
async fn delegated<J: Journal>(weaver: &mut LoomWriter<'_, J>, before: &Episode) -> (Episode, TurnId) {
    let opened = weaver.opened(before, utterance(None, &[("call_agent", json!({"intent": "part"}))]), &mut Vec::new());
    let (holder, next): (TurnId, TurnId) = (opened.turn_id, weaver.id());
    let call = CallId::of_turn(holder, 1);
    let child = call.child(0);
    let intent = weaver.intent("part");
    let cast = weaver.cast_of(child, intent);
    let cast_id = cast.cast_id;
    let origin = Origin::Child { parent: holder, spawned_by: Spawn { call_id: call, index: 0 } };
    let entity = weaver.entity(child, origin);
    let step = Step::for_lease(weaver.step_id(), before.lease.clone())
        .record(weaver.draft(opened))
        .record(weaver.draft(started(call, CallWork::Delegation { children: vec![child] }, None)))
        .record(weaver.draft(closed(holder, Closing::Sealed { call, next })))
        .record(weaver.draft(entity))
        .record(weaver.draft(cast));
    weaver.commit(step).await;
    let at = Episode { entity: child, cast: cast_id, leaf: Some(holder), sequence: 0, turns: 0, ..before.clone() };
    let said = weaver.opened(&at, utterance(Some("answer"), &[]), &mut Vec::new());
    let turn = said.turn_id;
    let ended_by = EndedBy::Text;
    let result = RecordValue::new(json!("answer"), &mut Vec::new()).unwrap();
    let end = weaver.end_of(&Episode { leaf: Some(turn), turns: 1, ..at }, Ending::Terminated { ended_by, result });
    let over = settled(call, json!("answer"), &mut Vec::new());
    let step = Step::for_lease(weaver.step_id(), before.lease.clone())
        .record(weaver.draft(said))
        .record(weaver.draft(closed(turn, Closing::Terminated { ended_by })))
        .record(weaver.draft(end))
        .record(weaver.draft(over))
        .record(weaver.draft(closed(next, Closing::Open)));
    weaver.commit(step).await;
    (Episode { leaf: Some(next), sequence: before.sequence + 2, turns: before.turns + 2, ..before.clone() }, turn)
}

/// Returns the items of all pages of a list. Each store may end its pages at other places.
async fn whole<T>(mut list: impl AsyncFnMut(PageRequest) -> Result<ListPage<T>, Error>) -> Vec<T> {
    let (mut all, mut page) = (Vec::new(), PageRequest { after: None, most: 3 });
    loop {
        let listed = list(page).await.unwrap();
        assert!(listed.items.len() <= 3);
        all.extend(listed.items);
        match listed.next {
            Some(after) => page.after = Some(after),
            None => return all,
        }
    }
}

async fn assert_alike(both: &Both) {
    let (memory, store) = (&both.memory, both.store());
    let records: Vec<Record> = memory.scan().try_collect().await.unwrap();
    assert_eq!(store.scan().try_collect::<Vec<Record>>().await.unwrap(), records);
    assert_eq!(store.verify().await.unwrap().records, records.len() as u64);
    let looms = memory.looms().await.unwrap();
    assert_eq!(store.looms().await.unwrap(), looms);
    for loom in looms {
        assert_eq!(store.roots(loom).await.unwrap(), memory.roots(loom).await.unwrap());
        assert_eq!(store.extent(loom).await.unwrap(), memory.extent(loom).await.unwrap());
        let entities = whole(async |page| memory.entities(loom, page).await).await;
        assert_eq!(whole(async |page| store.entities(loom, page).await).await, entities);
        for entity in entities {
            let id = entity.entity.entity_id;
            assert_eq!(store.casts(id).await.unwrap(), memory.casts(id).await.unwrap());
        }
        let turns = whole(async |page| memory.turns(loom, page).await).await;
        assert_eq!(whole(async |page| store.turns(loom, page).await).await, turns);
        let leaves = whole(async |page| memory.leaves(loom, page).await).await;
        assert_eq!(whole(async |page| store.leaves(loom, page).await).await, leaves);
        for leaf in leaves {
            assert_eq!(store.thread(leaf).await.unwrap(), memory.thread(leaf).await.unwrap());
            assert_eq!(store.folds(leaf).await.unwrap(), memory.folds(leaf).await.unwrap());
            let last = memory.folds(leaf).await.unwrap().pop();
            assert_eq!(memory.last_fold(leaf).await.unwrap(), last);
            assert_eq!(store.last_fold(leaf).await.unwrap(), last);
        }
        for turn in turns {
            assert_eq!(store.children(turn.id).await.unwrap(), memory.children(turn.id).await.unwrap());
            assert_eq!(store.rewards(turn.id).await.unwrap(), memory.rewards(turn.id).await.unwrap());
            assert_eq!(store.tail(turn.id, 2).await.unwrap(), memory.tail(turn.id, 2).await.unwrap());
            for most in [1, 3] {
                let end = memory.thread_end(turn.id, most).await.unwrap();
                assert_eq!(store.thread_end(turn.id, most).await.unwrap(), end);
                let shown = |fold: &cantrip_loom::FoldView| end.turns.iter().any(|turn| turn.id == fold.fold.after);
                let folds = memory.folds(turn.id).await.unwrap().into_iter().filter(shown);
                assert_eq!(end.folds, folds.collect::<Vec<_>>());
            }
        }
    }
    let runs = whole(async |page| memory.runs(page).await).await;
    assert_eq!(whole(async |page| store.runs(page).await).await, runs);
    assert_eq!(store.last_run().await.unwrap(), memory.last_run().await.unwrap());
    let latest: Vec<_> = runs.iter().rev().cloned().collect();
    assert_eq!(whole(async |page| store.latest_runs(None, page).await).await, latest);
    for state in [RunState::Running, RunState::Waiting, RunState::Terminated] {
        let expected: Vec<_> = runs.iter().filter(|run| run.state == state).cloned().collect();
        assert_eq!(whole(async |page| store.runs_in(state, page).await).await, expected);
    }
    let late = at(3_600_000 * 30);
    let orphans = whole(async |page| memory.orphans(late, page).await).await;
    assert_eq!(whole(async |page| store.orphans(late, page).await).await, orphans);
    for run in runs {
        let all: Vec<Record> = memory.read(run.run_id, cantrip_loom::Seq::new(2)).try_collect().await.unwrap();
        assert_eq!(store.read(run.run_id, cantrip_loom::Seq::new(2)).try_collect::<Vec<_>>().await.unwrap(), all);
        assert_eq!(store.holder(run.run_id).await.unwrap(), memory.holder(run.run_id).await.unwrap());
    }
}

/// Each case fills a file and reads all of it, so there are few cases unless more are requested.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse::<u32>().ok()).map_or(24, |cases| cases / 20 + 24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn a_store_shows_what_the_loom_in_memory_shows(acts in prop::collection::vec(act(), 1..60)) {
        cantrip_loom_suite::run(async {
            let folder = tempfile::tempdir().unwrap();
            let store = Store::sqlite(folder.path().join("loom.db")).unwrap();
            let mut both = Both {
                memory: MemoryLoom::new(), store: Some(store), folder,
                live: Vec::new(), over: Vec::new(), turns: Vec::new(), script: 0,
            };
            for act in acts {
                happen(&mut both, act).await;
            }
            assert_alike(&both).await;
        });
    }
}

#[test]
fn a_copy_of_a_journal_is_shown_as_the_original() {
    cantrip_loom_suite::run(async {
        let memory = MemoryLoom::new();
        let mut weaver = LoomWriter::new(&memory);
        let mut episode = weaver.cast("count").await;
        weaver.plain(&mut episode).await;
        let (after, _) = delegated(&mut weaver, &episode).await;
        weaver.truncate(&after, TruncationReason::MaxTurns).await;
        let records: Vec<Record> = memory.scan().try_collect().await.unwrap();
        let store = Store::in_memory().unwrap();
        // Record by record, so that every step is at another position than in the original.
        for record in &records {
            let after = cantrip_loom::Seq::new(record.seq.get() - 1);
            let id = cantrip_loom::StepId::new(format!("copy-{}", record.seq)).unwrap();
            let step = Step::import(id, record.run, after).record(RecordDraft::copy(record).unwrap());
            assert!(matches!(store.append(step).await.unwrap(), cantrip_loom::AppendOutcome::Committed(_)));
        }
        assert_eq!(store.scan().try_collect::<Vec<Record>>().await.unwrap(), records);
        let loom = weaver.loom;
        let turns = memory.turns(loom, PageRequest::FIRST).await.unwrap().items;
        assert_eq!(store.turns(loom, PageRequest::FIRST).await.unwrap().items, turns);
        store.verify().await.unwrap();
    });
}
