//! Several processes on one store: who may write, which records they see of each other, and that no work is lost.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use cantrip_loom::{
    Actor, AppendOutcome, Conflict, Error, Event, Journal, Loom, Origin, PageRequest, Record, Reward, Seq, Step,
    WorkerId,
};
use cantrip_loom_suite::{Episode, LoomWriter, Subject, at, utterance};
use cantrip_store::Store;
use futures_util::future::{join, join_all, join4};
use futures_util::{FutureExt, StreamExt, TryStreamExt};
use serde_json::json;
use support::{InFile, InPostgres, Kit};

on_both!(
    a_zombie_writes_nothing_after_another_process_took_over,
    what_another_process_wrote_beside_a_run_is_no_gap,
    a_run_is_taken_over_in_the_middle_of_a_turn,
    an_entity_is_cast_by_one_process_at_a_time,
    a_run_that_failed_in_one_process_is_given_up_in_all,
    a_reader_in_another_process_is_woken,
    a_run_is_followed_from_any_place_while_another_process_writes_it,
    two_stores_at_once_lose_nothing,
    more_than_the_queue_holds_is_written_in_order,
);

const LASTS: Duration = Duration::from_secs(30);

fn odd() -> Event {
    Event::Other { kind: "weather.changed".into(), payload: serde_json::Map::new() }
}

async fn records(store: &Store, episode: &Episode) -> Vec<Record> {
    store.read(episode.run, Seq::START).try_collect().await.unwrap()
}

async fn a_zombie_writes_nothing_after_another_process_took_over<K: Kit>(kit: K) {
    let (one, two) = (kit.store(), kit.again().unwrap());
    let mut weaver = LoomWriter::new(one);
    let mut zombie = weaver.cast("count").await;
    weaver.plain(&mut zombie).await;
    // The zombie has its answer ready, and its lease has expired.
    let opened = weaver.opened(&zombie, utterance(Some("hm"), &[]), &mut Vec::new());
    let answer = Step::for_lease(weaver.step_id(), zombie.lease.clone()).record(weaver.draft(opened));
    let lease =
        two.acquire(zombie.run, WorkerId::new("process-2").unwrap(), zombie.lease.expires_at, LASTS).await.unwrap();
    let fenced = AppendOutcome::Fenced { held: zombie.lease.epoch, now: lease.epoch };
    assert_eq!(one.append(answer.clone()).await.unwrap(), fenced);
    assert!(matches!(one.renew(&zombie.lease, at(9), LASTS).await, Err(Error::LeaseLost { .. })));
    one.release(&zombie.lease).await.unwrap();
    assert_eq!(one.holder(zombie.run).await.unwrap(), Some(lease.clone()));
    assert_eq!(records(one, &zombie).await.len(), 7);
    // The new owner continues in place of the zombie, and the zombie still cannot write.
    let mut weaver = LoomWriter::seeded(&two, 9);
    let mut owner = Episode { lease, ..zombie.clone() };
    let said = weaver.opened(&owner, utterance(Some("I am here"), &[]), &mut Vec::new());
    let turn = said.turn_id;
    let step = Step::for_lease(cantrip_loom::StepId::new("2.1").unwrap(), owner.lease.clone())
        .record(weaver.draft(said))
        .record(weaver.draft(cantrip_loom_suite::closed(turn, cantrip_loom::Closing::Open)));
    weaver.commit(step).await;
    owner.leaf = Some(turn);
    assert_eq!(one.append(answer).await.unwrap(), fenced);
    assert_eq!(records(one, &zombie).await.len(), 9);
    let path: Vec<_> = one.path(turn).await.unwrap().iter().map(|turn| turn.utterance_text()).collect();
    assert_eq!(path[1..], ["I am here"]);
    one.verify().await.unwrap();
}

async fn what_another_process_wrote_beside_a_run_is_no_gap<K: Kit>(kit: K) {
    let (one, two) = (kit.store(), kit.again().unwrap());
    let mut weaver = LoomWriter::new(one);
    let mut beside = LoomWriter::seeded(&two, 9);
    let mut episode = weaver.cast("count").await;
    for n in 0..4_u64 {
        let turn = weaver.plain(&mut episode).await;
        let reward = Reward { turn_id: turn, reward: 0.5, by: Actor::new("user:1").unwrap(), note: None };
        let id = cantrip_loom::StepId::new(format!("reward-{n}")).unwrap();
        let step = Step::annotation(id, episode.run).record(beside.draft(reward));
        beside.commit(step).await;
    }
    let kinds: Vec<String> = records(one, &episode).await.iter().map(|record| record.kind.to_string()).collect();
    assert_eq!(kinds.iter().filter(|kind| *kind == "reward").count(), 4);
    assert_eq!(kinds.len(), 3 + 4 * 5);
    assert_eq!(two.turn(episode.leaf.unwrap()).await.unwrap().reward, Some(0.5));
    one.verify().await.unwrap();
}

async fn a_run_is_taken_over_in_the_middle_of_a_turn<K: Kit>(kit: K) {
    let stores = [kit.again().unwrap(), kit.again().unwrap()];
    let mut weaver = LoomWriter::new(&stores[0]);
    let mut episode = weaver.cast("count").await;
    // A different process, under a new epoch, writes each step of each turn.
    for n in 0..6_usize {
        let said = utterance(None, &[("echo", json!({"n": n}))]);
        let opened = weaver.opened(&episode, said, &mut Vec::new());
        let (turn, call) = (opened.turn_id, cantrip_loom::CallId::of_turn(opened.turn_id, 1));
        let started = cantrip_loom_suite::started(call, cantrip_loom::CallWork::Gate, None);
        let settled = cantrip_loom_suite::settled(call, json!(n), &mut Vec::new());
        let closed = cantrip_loom_suite::closed(turn, cantrip_loom::Closing::Open);
        let steps = [
            vec![weaver.draft(opened)],
            vec![weaver.draft(started)],
            vec![weaver.draft(settled)],
            vec![weaver.draft(closed)],
        ];
        for (at, drafts) in steps.into_iter().enumerate() {
            let store = &stores[(n + at) % 2];
            let owner = WorkerId::new(format!("process-{}", (n + at) % 2)).unwrap();
            episode.lease = store.acquire(episode.run, owner, episode.lease.expires_at, LASTS).await.unwrap();
            let step = Step::for_lease(weaver.step_id(), episode.lease.clone()).records(drafts);
            assert!(matches!(store.append(step).await.unwrap(), AppendOutcome::Committed(_)));
        }
        (episode.leaf, episode.sequence) = (Some(turn), episode.sequence + 1);
    }
    let path = stores[0].path(episode.leaf.unwrap()).await.unwrap();
    assert_eq!(path.len(), 6);
    assert!(path.iter().all(|turn| turn.gate_calls.len() == 1));
    stores[1].verify().await.unwrap();
}

async fn an_entity_is_cast_by_one_process_at_a_time<K: Kit>(kit: K) {
    let stores = [kit.again().unwrap(), kit.again().unwrap()];
    let mut weaver = LoomWriter::new(&stores[0]);
    let mut episode = weaver.cast("first").await;
    weaver.done(&mut episode, json!(1)).await;
    for round in 0..8 {
        let steps: Vec<Step> = (0..2)
            .map(|_| {
                let intent = weaver.intent("next");
                let cast = weaver.cast_of(episode.entity, intent);
                let opening = weaver.opening(cantrip_loom::RunKind::Cast, episode.entity);
                let first = cantrip_loom::RecordDraft::opening(weaver.now(), opening, cast).unwrap();
                Step::open_run(weaver.step_id(), weaver.id(), None).record(first)
            })
            .collect();
        let (one, two) = join(stores[0].append(steps[0].clone()), stores[1].append(steps[1].clone())).await;
        let answers = [one.unwrap(), two.unwrap()];
        let won = answers.iter().position(|answer| *answer == AppendOutcome::Committed(Seq::new(1))).unwrap();
        let busy = Conflict::EntityBusy { entity: episode.entity, run: steps[won].run().unwrap() };
        assert_eq!(answers[1 - won], AppendOutcome::Conflict(busy), "round {round}");
        // The winner ends its cast, so that the entity is free in the next round.
        let run = steps[won].run().unwrap();
        let lease = stores[won].acquire(run, WorkerId::new("p").unwrap(), at(1), LASTS).await.unwrap();
        let view = stores[won].entity(episode.entity).await.unwrap();
        let cast = *view.casts.last().unwrap();
        let over = Episode { run, lease, cast, turns: 0, ..episode.clone() };
        let end = weaver.end_of(
            &over,
            cantrip_loom::Ending::Truncated {
                reason: cantrip_loom::TruncationReason::Cancelled,
                error: None,
                summary: "cut".into(),
            },
        );
        let step = Step::for_lease(weaver.step_id(), over.lease.clone()).record(weaver.draft(end));
        assert!(matches!(stores[won].append(step).await.unwrap(), AppendOutcome::Committed(_)));
    }
    stores[0].verify().await.unwrap();
}

async fn a_run_that_failed_in_one_process_is_given_up_in_all<K: Kit>(kit: K) {
    let (one, two) = (kit.store(), kit.again().unwrap());
    let mut weaver = LoomWriter::new(one);
    let mut episode = weaver.cast("count").await;
    weaver.plain(&mut episode).await;
    let opened = weaver.opened(&episode, utterance(Some("I was about to"), &[]), &mut Vec::new());
    let turn = opened.turn_id;
    let error = cantrip_loom::RecordedError::new(cantrip_reply::codes::CRASH.any(), "unexpected failure");
    let step = Step::for_lease(weaver.step_id(), episode.lease.clone())
        .record(weaver.draft(opened))
        .record(weaver.draft(cantrip_loom::RunFailed { error }));
    weaver.commit(step).await;
    let mut other = LoomWriter::seeded(&two, 9);
    other.loom = weaver.loom;
    let intent = other.intent("again");
    other.send(&episode, intent).await;
    // The first process still has its old lease and does not know about the failure.
    let late = Step::for_lease(weaver.step_id(), episode.lease.clone())
        .record(weaver.draft(cantrip_loom_suite::closed(turn, cantrip_loom::Closing::Open)));
    let answer = one.append(late).await;
    assert!(
        matches!(answer, Err(Error::Incoherent { .. }) | Ok(AppendOutcome::Conflict(Conflict::EntityBusy { .. }))),
        "{answer:?}"
    );
    one.verify().await.unwrap();
}

async fn a_reader_in_another_process_is_woken<K: Kit>(kit: K) {
    let (one, two) = (kit.store(), kit.again().unwrap());
    let mut weaver = LoomWriter::new(one);
    let episode = weaver.cast("count").await;
    for n in 0..3 {
        let after = Seq::new(3 + n);
        let mut grown = std::pin::pin!(two.wait_for_growth(episode.run, after));
        assert!((&mut grown).now_or_never().is_none());
        let step = Step::for_lease(weaver.step_id(), episode.lease.clone()).record(weaver.draft(odd()));
        weaver.commit(step).await;
        assert_eq!(grown.await.unwrap(), after.next());
    }
}

async fn a_run_is_followed_from_any_place_while_another_process_writes_it<K: Kit>(kit: K) {
    let (one, two) = (kit.store(), kit.again().unwrap());
    let mut weaver = LoomWriter::new(one);
    let episode = weaver.cast("count").await;
    let write = async {
        for _ in 0..20 {
            let step = Step::for_lease(weaver.step_id(), episode.lease.clone()).record(weaver.draft(odd()));
            weaver.commit(step).await;
        }
    };
    // The cast has three records. A cursor is the position after which the reader continues.
    let followed = |after: u64| {
        let records = two.follow(episode.run, Seq::new(after)).take(usize::try_from(23 - after).unwrap());
        records.try_collect::<Vec<Record>>()
    };
    let (all, late, newest, ()) = join4(followed(0), followed(10), followed(22), write).await;
    let written = records(one, &episode).await;
    assert_eq!(all.unwrap(), written);
    assert_eq!((late.unwrap(), newest.unwrap()), (written[10..].to_vec(), written[22..].to_vec()));
    // A lost stream continues where it ended, and a read from there ends with the newest record.
    let rest: Vec<Record> = two.read(episode.run, Seq::new(20)).try_collect().await.unwrap();
    assert_eq!(rest, written[20..]);
    let none: Vec<Record> = two.read(episode.run, Seq::new(23)).try_collect().await.unwrap();
    assert!(none.is_empty());
}

/// Ends the connections that listen for notifications, so that notifications sent now are lost.
fn deafen(kit: &InPostgres) -> i64 {
    let sql = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'LISTEN%{}%'",
        kit.schema
    );
    kit.number(&sql)
}

#[test]
fn a_lost_notification_loses_no_record() {
    cantrip_loom_suite::run(async {
        let kit = InPostgres::fresh();
        let (one, two) = (kit.store(), kit.again().unwrap());
        let mut weaver = LoomWriter::new(one);
        let episode = weaver.cast("count").await;
        let mut followed = std::pin::pin!(two.follow(episode.run, Seq::new(3)));
        let mut deafened = 0;
        for n in 0..5 {
            // The reader is waiting now, and then gets no notification.
            assert!(followed.next().now_or_never().is_none());
            deafened += deafen(&kit);
            let step = Step::for_lease(weaver.step_id(), episode.lease.clone()).record(weaver.draft(odd()));
            weaver.commit(step).await;
            assert_eq!(followed.next().await.unwrap().unwrap().seq, Seq::new(4 + n));
        }
        assert!(deafened > 0, "someone listened");
    });
}

async fn two_stores_at_once_lose_nothing<K: Kit>(kit: K) {
    let stores = [kit.again().unwrap(), kit.again().unwrap()];
    let work = stores.iter().enumerate().flat_map(|(at, store)| {
        (0..8).map(move |n| async move {
            let mut weaver = LoomWriter::seeded(store, 100 * (at as u64 + 1) + n);
            // One loom for all; each writer adds the same cantrip.
            weaver.loom = cantrip_canon::LoomId::from_bytes([1; 16]);
            let mut turns = Vec::new();
            for _ in 0..3 {
                let mut episode = weaver.cast("count").await;
                turns.push(weaver.plain(&mut episode).await);
                turns.push(weaver.done(&mut episode, json!(n)).await);
            }
            turns
        })
    });
    let told: Vec<_> = join_all(work).await.into_iter().flatten().collect();
    let store = kit.store();
    let loom = store.looms().await.unwrap();
    assert_eq!(loom.len(), 1);
    let kept = store.turns(loom[0], PageRequest::FIRST).await.unwrap().items;
    assert_eq!((told.len(), kept.len()), (96, 96));
    assert_eq!(kept.iter().map(|turn| turn.id).collect::<BTreeSet<_>>(), told.into_iter().collect());
    assert_eq!(store.roots(loom[0]).await.unwrap().len(), 1);
    assert_eq!(store.verify().await.unwrap().runs, 48);
}

async fn more_than_the_queue_holds_is_written_in_order<K: Kit>(kit: K) {
    let store = kit.store();
    let mut weaver = LoomWriter::new(store);
    let episode = weaver.cast("count").await;
    let count = cantrip_store::limits::QUEUE_ORDERS_MAX + cantrip_store::limits::GROUP_ORDERS_MAX + 100;
    let steps: Vec<Step> = (0..count)
        .map(|_| Step::for_lease(weaver.step_id(), episode.lease.clone()).record(weaver.draft(odd())))
        .collect();
    // All are requested before one of them can be answered; requests that do not fit into the queue wait for their
    // turn.
    let mut asked: Vec<_> = steps.into_iter().map(|step| Box::pin(store.append(step))).collect();
    let early: Vec<_> = asked.iter_mut().map(|append| append.now_or_never()).collect();
    assert!(early.iter().any(Option::is_none), "nothing had to wait");
    let mut places = Vec::new();
    for (append, early) in asked.into_iter().zip(early) {
        let answer = match early {
            Some(answer) => answer,
            None => append.await,
        };
        match answer.unwrap() {
            AppendOutcome::Committed(seq) => places.push(seq.get()),
            other @ (AppendOutcome::Refused(_)
            | AppendOutcome::Wait
            | AppendOutcome::Conflict(_)
            | AppendOutcome::Fenced { .. }) => {
                panic!("{other:?}")
            }
        }
    }
    assert!(places.is_sorted(), "in the order in which they were asked for");
    assert_eq!(records(store, &episode).await.len(), 3 + count);
}

#[test]
fn a_step_waits_for_another_process_that_writes() {
    let kit = InFile::new();
    let mut weaver = LoomWriter::new(cantrip_loom_suite::Subject::store(&kit));
    let intent = weaver.intent("count");
    let (step, _) = weaver.open(Origin::Root, intent, None, 0);
    let blocker = rusqlite::Connection::open(kit.path()).unwrap();
    blocker.execute_batch("BEGIN IMMEDIATE").unwrap();
    let store = cantrip_loom_suite::Subject::store(&kit);
    let mut append = Box::pin(store.append(step));
    assert!(append.as_mut().now_or_never().is_none());
    blocker.execute_batch("ROLLBACK").unwrap();
    cantrip_loom_suite::run(async {
        assert_eq!(append.await.unwrap(), AppendOutcome::Committed(Seq::new(3)));
    });
}
