//! Order, atomicity, idempotency, bodies.

use cantrip_canon::{RunId, bytes_hash};
use cantrip_spend::Operation;
use futures_util::{FutureExt, StreamExt, TryStreamExt};
use serde_json::json;

use super::fixtures::{append, committed, odd};
use super::{LoomWriter, Store, Subject, utterance};
use cantrip_loom::{
    Actor, AppendOutcome, Body, Closing, Conflict, Epoch, Error, Journal, Loom, Origin, PageRequest, Record,
    RecordDraft, RecordValue, Reward, RunState, Seq, Step, StepTarget, TruncationReason,
};

async fn all<J: Journal>(store: &J, run: RunId) -> Vec<Record> {
    store.read(run, Seq::START).try_collect().await.expect("the run is readable")
}

async fn everything<J: Journal>(store: &J) -> Vec<Record> {
    store.scan().try_collect().await.expect("the store is readable")
}

pub(super) async fn a_run_reads_back_in_the_order_it_was_written<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut episode = weaver.cast("count").await;
    for _ in 0..3 {
        weaver.plain(&mut episode).await;
    }
    let records = all(store, episode.run).await;
    let kinds: Vec<&str> = records.iter().map(|record| record.kind.as_str()).collect();
    let turn = ["opened", "started", "settled", "turn"];
    assert_eq!(kinds, [&["root", "entity", "cast"][..], &turn, &turn, &turn].concat());
    let places: Vec<u64> = records.iter().map(|record| record.seq.get()).collect();
    assert_eq!(places, (1..=15).collect::<Vec<u64>>());
    let rest: Vec<Record> = store.read(episode.run, Seq::new(11)).try_collect().await.expect("readable");
    assert_eq!(rest, records[11..]);
    let none: Vec<Record> = store.read(episode.run, Seq::new(99)).try_collect().await.expect("readable");
    assert_eq!(none, []);
}

pub(super) async fn every_record_is_chained_to_the_one_before_it<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut episode = weaver.cast("count").await;
    weaver.done(&mut episode, json!(3)).await;
    let mut previous = None;
    for record in all(store, episode.run).await {
        assert_eq!(record.hash, record.expected_hash(previous.as_ref()), "record {}", record.seq);
        previous = Some(record.hash);
    }
}

pub(super) async fn appends_at_once_leave_no_gap<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let episode = weaver.cast("count").await;
    let steps: Vec<Step> = (0..20).map(|n| weaver.step_with(&episode, odd(n))).collect();
    let answers = futures_util::future::join_all(steps.into_iter().map(|step| store.append(step))).await;
    let mut places: Vec<u64> = answers.into_iter().map(|answer| committed(&answer.expect("written")).get()).collect();
    places.sort_unstable();
    assert_eq!(places, (4..=23).collect::<Vec<u64>>());
    assert_eq!(all(store, episode.run).await.len(), 23);
}

pub(super) async fn a_refused_step_harms_no_other<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut steps = Vec::new();
    let mut expected = Vec::new();
    for n in 0..8 {
        let good = weaver.cast("count").await;
        let next = weaver.step_with(&good, odd(n));
        expected.push((good.run, 5));
        let last = weaver.step_with(&good, odd(n));
        let mut stale = good.lease.clone();
        stale.epoch = Epoch::new(9);
        let fenced = Step::for_lease(weaver.step_id(), stale).record(weaver.draft(odd(n)));
        let late = weaver.opened(&good, utterance(Some("hm"), &[]), &mut Vec::new());
        let incoherent = weaver.step_with(&good, super::closed(late.turn_id, Closing::Open));
        let twice = Step { id: next.id.clone(), ..last.clone() };
        steps.extend([(next, true), (fenced, false), (incoherent, false), (twice, false), (last, true)]);
    }
    let answers = futures_util::future::join_all(steps.iter().map(|(step, _)| store.append(step.clone()))).await;
    for ((step, good), answer) in steps.iter().zip(answers) {
        let committed = matches!(answer, Ok(AppendOutcome::Committed(_)));
        assert_eq!(committed, *good, "{:?}: {answer:?}", step.id);
    }
    for (run, newest) in expected {
        let places: Vec<u64> = all(store, run).await.iter().map(|record| record.seq.get()).collect();
        assert_eq!(places, (1..=newest).collect::<Vec<u64>>());
    }
}

pub(super) async fn a_step_is_written_whole_or_not_at_all<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut episode = weaver.cast("count").await;
    let opened = weaver.opened(&episode, utterance(Some("hm"), &[]), &mut Vec::new());
    let turn = opened.turn_id;
    let again = opened.clone();
    let step = weaver
        .step_with(&episode, opened)
        .record(weaver.draft(super::closed(turn, Closing::Open)))
        .record(weaver.draft(again));
    let answer = store.append(step).await;
    assert!(matches!(answer, Err(Error::Incoherent { .. })), "{answer:?}");
    assert_eq!(all(store, episode.run).await.len(), 3);
    assert!(matches!(store.turn(turn).await, Err(Error::NotFound { .. })));
    weaver.plain(&mut episode).await;
}

pub(super) async fn a_step_asked_for_again_is_written_once<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let intent = weaver.intent("count");
    let (opens, episode) = weaver.open(Origin::Root, intent, None, 0);
    for _ in 0..3 {
        assert_eq!(append(store, opens.clone()).await, AppendOutcome::Committed(Seq::new(3)));
    }
    let step = weaver.step_with(&episode, odd(1));
    let first = append(store, step.clone()).await;
    assert_eq!(first, AppendOutcome::Committed(Seq::new(4)));
    weaver.truncate(&episode, TruncationReason::Cancelled).await;
    // The answer is also the same when the run has moved on and the lease is gone.
    assert_eq!(append(store, step).await, first);
    assert_eq!(all(store, episode.run).await.len(), 5);
}

pub(super) async fn a_step_id_with_other_content_is_a_conflict<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let episode = weaver.cast("count").await;
    let id = weaver.step_id();
    let first = Step::for_lease(id.clone(), episode.lease.clone()).record(weaver.draft(odd(1)));
    weaver.commit(first).await;
    let other = Step::for_lease(id.clone(), episode.lease.clone()).record(weaver.draft(odd(2)));
    let answer = append(store, other).await;
    assert_eq!(answer, AppendOutcome::Conflict(Conflict::Step { id }));
    assert_eq!(all(store, episode.run).await.len(), 4);
}

pub(super) async fn money_is_never_dropped<S: Subject>(subject: S) {
    if subject.keeps_ledger() {
        return;
    }
    let store = subject.store();
    let mut weaver = LoomWriter::new(store);
    let episode = weaver.cast("count").await;
    let turn = weaver.id();
    let reserve = super::reserve(&mut weaver, &episode, turn, 1, 20_000);
    let step = weaver.step_with(&episode, odd(1)).money(Operation::Reserve(Box::new(reserve)));
    let answer = store.append(step).await;
    assert!(matches!(answer, Err(Error::NoLedger)), "{answer:?}");
    assert_eq!(all(store, episode.run).await.len(), 3);
}

pub(super) async fn a_run_is_opened_once<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let episode = weaver.cast("count").await;
    let intent = weaver.intent("count again");
    let (mut second, _) = weaver.open(Origin::Root, intent, None, 0);
    second.target = StepTarget::OpenRun { run: episode.run, lease: None };
    let answer = append(store, second).await;
    assert_eq!(answer, AppendOutcome::Conflict(Conflict::RunExists { run: episode.run }));
}

pub(super) async fn an_entity_has_one_live_run<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut episode = weaver.cast("count").await;
    let run = weaver.id();
    let intent = weaver.intent("and now?");
    let cast = weaver.cast_of(episode.entity, intent);
    let opening = weaver.opening(cantrip_loom::RunKind::Cast, episode.entity);
    let first = RecordDraft::opening(weaver.now(), opening, cast).expect("a small record");
    let step = Step::open_run(weaver.step_id(), run, None).record(first);
    let answer = append(store, step.clone()).await;
    let busy = Conflict::EntityBusy { entity: episode.entity, run: episode.run };
    assert_eq!(answer, AppendOutcome::Conflict(busy));
    weaver.done(&mut episode, json!(1)).await;
    assert_eq!(append(store, step).await, AppendOutcome::Committed(Seq::new(1)));
}

fn reward(turn: cantrip_canon::TurnId, reward: f64) -> Reward {
    Reward { turn_id: turn, reward, by: Actor::new("user:42").expect("a name"), note: None }
}

pub(super) async fn an_ended_run_takes_annotations_only<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut episode = weaver.cast("count").await;
    let turn = weaver.plain(&mut episode).await;
    let end = weaver.end_of(
        &episode,
        cantrip_loom::Ending::Truncated { reason: TruncationReason::MaxTurns, error: None, summary: "cut".into() },
    );
    weaver.write(&episode, end).await;
    let late = weaver.step_with(&episode, odd(1));
    let answer = append(store, late).await;
    assert_eq!(answer, AppendOutcome::Conflict(Conflict::RunEnded { run: episode.run }));
    let rewarded = Step::annotation(weaver.step_id(), episode.run).record(weaver.draft(reward(turn, 0.5)));
    weaver.commit(rewarded).await;
    assert_eq!(store.run(episode.run).await.expect("known").state, RunState::Truncated);
}

pub(super) async fn without_a_lease_only_annotations_are_written<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut episode = weaver.cast("count").await;
    let turn = weaver.plain(&mut episode).await;
    let opened = weaver.opened(&episode, utterance(Some("hm"), &[]), &mut Vec::new());
    let step = Step::annotation(weaver.step_id(), episode.run).record(weaver.draft(opened));
    let answer = store.append(step).await;
    assert!(matches!(answer, Err(Error::InvalidStep { .. })), "{answer:?}");
    let step = Step::annotation(weaver.step_id(), episode.run).record(weaver.draft(reward(turn, 1.0)));
    weaver.commit(step).await;
    let last = all(store, episode.run).await.pop().expect("records");
    assert_eq!((last.kind.as_str(), last.epoch), ("reward", Epoch::NONE));
}

pub(super) async fn an_unknown_run_is_not_found<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let run: RunId = weaver.id();
    let read: Result<Vec<Record>, Error> = store.read(run, Seq::START).try_collect().await;
    assert!(matches!(read, Err(Error::NotFound { kind: "run", .. })), "{read:?}");
    assert!(matches!(store.run(run).await, Err(Error::NotFound { .. })));
    assert!(matches!(store.holder(run).await, Err(Error::NotFound { .. })));
    let lease = weaver.lease(run);
    let step = Step::for_lease(weaver.step_id(), lease).record(weaver.draft(odd(1)));
    let answer = store.append(step).await;
    assert!(matches!(answer, Err(Error::NotFound { .. })), "{answer:?}");
}

pub(super) async fn a_reader_is_woken_by_the_next_record<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let episode = weaver.cast("count").await;
    assert_eq!(store.wait_for_growth(episode.run, Seq::START).await.expect("known"), Seq::new(3));
    let step = weaver.step_with(&episode, odd(1));
    let (woken, ()) = futures_util::future::join(store.wait_for_growth(episode.run, Seq::new(3)), async {
        assert!(
            store.wait_for_growth(episode.run, Seq::new(3)).now_or_never().is_none(),
            "nothing has been written yet"
        );
        weaver.commit(step).await;
    })
    .await;
    assert_eq!(woken.expect("known"), Seq::new(4));
}

pub(super) async fn a_follower_gets_every_record_once<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut episode = weaver.cast("count").await;
    let mut following = std::pin::pin!(store.follow(episode.run, Seq::new(1)));
    let mut got = Vec::new();
    for _ in 0..2 {
        got.push(following.try_next().await.expect("readable").expect("it is there").seq.get());
    }
    assert!(following.next().now_or_never().is_none(), "nothing has been written yet");
    // One write and one read at a time, then several writes before the next read.
    for turns in [1, 1, 3] {
        for _ in 0..turns {
            weaver.plain(&mut episode).await;
        }
        for _ in 0..turns * 4 {
            got.push(following.try_next().await.expect("readable").expect("it was written").seq.get());
        }
    }
    assert_eq!(got, (2..=23).collect::<Vec<u64>>());
    let run: RunId = weaver.id();
    let lost = std::pin::pin!(store.follow(run, Seq::START)).try_next().await;
    assert!(matches!(lost, Err(Error::NotFound { .. })), "{lost:?}");
}

pub(super) async fn an_unknown_kind_passes_through_unchanged<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let episode = weaver.cast("count").await;
    weaver.write(&episode, odd(1)).await;
    let record = all(store, episode.run).await.pop().expect("records");
    assert_eq!(&*record.payload, r#"{"later":{"field":[1,2.5,"x"]},"n":1,"v":9}"#);
    assert_eq!(record.event().expect("readable"), odd(1));
}

pub(super) async fn a_long_value_is_a_body_and_reads_back<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut episode = weaver.cast("count").await;
    let long = json!({"text": "lang ".repeat(10_000)});
    let turns = [
        weaver.turn(&mut episode, "read", long.clone(), Closing::Open).await,
        weaver.turn(&mut episode, "read", long.clone(), Closing::Open).await,
    ];
    for turn in turns {
        let turn = store.turn(turn).await.expect("closed");
        match &turn.gate_calls[0].settlement {
            cantrip_loom::Settlement::Settled(settled) => assert_eq!(settled.result, long),
            cantrip_loom::Settlement::Delegated => panic!("it was settled"),
        }
    }
    let records = all(store, episode.run).await;
    assert!(records.iter().all(|record| record.payload.len() < 5_000), "no record holds it");
    let mut bodies = Vec::new();
    let held = RecordValue::new(long, &mut bodies).expect("it has a canonical form");
    let hash = held.reference().expect("it is long").hash;
    assert_eq!(store.body(hash).await.expect("stored"), bodies[0]);
}

pub(super) async fn a_record_cannot_name_a_body_that_is_not_there<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let episode = weaver.cast("count").await;
    let long = "lang ".repeat(10_000);
    let opened = weaver.opened(&episode, utterance(Some(&long), &[]), &mut Vec::new());
    let step = weaver.step_with(&episode, opened);
    let answer = store.append(step).await;
    assert!(matches!(answer, Err(Error::InvalidStep { .. })), "{answer:?}");
    // User data may look like a body reference and is not one.
    let mut bodies = Vec::new();
    let lookalike = json!({"body": bytes_hash(b"nowhere").to_string(), "bytes": 7});
    let opened = weaver.opened(&episode, utterance(None, &[("echo", lookalike)]), &mut bodies);
    let step = weaver.step_with(&episode, opened).bodies(bodies);
    weaver.commit(step).await;
}

pub(super) async fn a_missing_body_is_an_error<S: Subject>(subject: S) {
    let hash = bytes_hash(b"nowhere");
    let answer = subject.store().body(hash).await;
    assert!(matches!(answer, Err(Error::BodyAltered(missing)) if missing == hash), "{answer:?}");
}

pub(super) async fn a_dropped_append_is_wholly_in_or_out<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let episode = weaver.cast("count").await;
    let body = Body::new(vec![7_u8; 9_000]).expect("a small body");
    let step = weaver.step_with(&episode, odd(1)).record(weaver.draft(odd(2))).bodies([body.clone()]);
    drop(store.append(step.clone()).now_or_never());
    assert_eq!(append(store, step).await, AppendOutcome::Committed(Seq::new(5)));
    assert_eq!(all(store, episode.run).await.len(), 5);
    assert_eq!(store.body(body.hash()).await.expect("stored"), body);
}

pub(super) async fn a_scan_gives_every_run_in_the_order_of_writing<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut one = weaver.cast("one").await;
    let mut two = weaver.cast("two").await;
    weaver.plain(&mut one).await;
    weaver.plain(&mut two).await;
    weaver.plain(&mut one).await;
    let runs: Vec<RunId> = everything(store).await.iter().map(|record| record.run).collect();
    let expected = [(one.run, 3), (two.run, 3), (one.run, 4), (two.run, 4), (one.run, 4)];
    let expected: Vec<RunId> = expected.iter().flat_map(|(run, count)| std::iter::repeat_n(*run, *count)).collect();
    assert_eq!(runs, expected);
}

pub(super) async fn copies_keep_place_time_and_epoch<S: Subject>(subject: S) {
    let source = cantrip_loom::MemoryLoom::new();
    let mut weaver = LoomWriter::new(&source);
    let mut episode = weaver.cast("count").await;
    weaver.done(&mut episode, json!(3)).await;
    let records = everything(&source).await;
    let drafts: Vec<RecordDraft> = records.iter().map(|record| RecordDraft::copy(record).expect("readable")).collect();
    let store = subject.store();
    let (first, rest) = drafts.split_at(4);
    let step = Step::import(weaver.step_id(), episode.run, Seq::START).records(first.to_vec());
    assert_eq!(append(store, step).await, AppendOutcome::Committed(Seq::new(4)));
    let gap = Step::import(weaver.step_id(), episode.run, Seq::new(9)).records(rest.to_vec());
    let behind = Conflict::Behind { run: episode.run, newest: Seq::new(4) };
    assert_eq!(append(store, gap).await, AppendOutcome::Conflict(behind));
    let step = Step::import(weaver.step_id(), episode.run, Seq::new(4)).records(rest.to_vec());
    assert_eq!(append(store, step).await, AppendOutcome::Committed(Seq::new(8)));
    assert_eq!(everything(store).await, records);
    let view = store.run(episode.run).await.expect("known");
    assert_eq!((view.state, view.copied), (RunState::Terminated, true));
}

pub(super) async fn what_was_committed_survives_reopening<S: Subject>(subject: S) {
    let (records, turns, loom, runs) = {
        let store = subject.store();
        let mut weaver = LoomWriter::new(store);
        let mut one = weaver.cast("one").await;
        let turn = weaver.turn(&mut one, "read", json!("lang ".repeat(5_000)), Closing::Open).await;
        weaver.done(&mut one, json!({"sum": 3})).await;
        let step = Step::annotation(weaver.step_id(), one.run).record(weaver.draft(reward(turn, 0.25)));
        weaver.commit(step).await;
        let mut two = weaver.cast("two").await;
        weaver.plain(&mut two).await;
        weaver.truncate(&two, TruncationReason::MaxTurns).await;
        let turns = store.turns(weaver.loom, PageRequest::FIRST).await.expect("readable");
        let runs = store.runs(PageRequest::FIRST).await.expect("readable");
        (everything(store).await, turns, weaver.loom, runs)
    };
    let Some(subject) = subject.reopen().await else { return };
    let store = subject.store();
    assert_eq!(everything(store).await, records);
    assert_eq!(store.turns(loom, PageRequest::FIRST).await.expect("readable"), turns);
    assert_eq!(store.runs(PageRequest::FIRST).await.expect("readable"), runs);
    let mut weaver = LoomWriter::seeded(store, 8);
    weaver.loom = loom;
    let mut three = weaver.cast("three").await;
    weaver.done(&mut three, json!(1)).await;
}
