//! Leases: which worker may write, and until when.

use std::time::Duration;

use cantrip_canon::RunId;
use serde_json::json;

use super::{LoomWriter, Store, Subject, at, utterance};
use cantrip_loom::{
    AppendOutcome, CastParked, Closing, Epoch, Error, Journal, Lease, PageRequest, ParkReason, WorkerId,
};

const LASTS: Duration = Duration::from_secs(30);

fn owner(name: &str) -> WorkerId {
    WorkerId::new(name).expect("a name")
}

pub(super) async fn an_old_epoch_writes_nothing_after_a_takeover<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut zombie = weaver.cast("count").await;
    let expired = zombie.lease.expires_at;
    let taken = store.acquire(zombie.run, owner("process-2"), expired, LASTS).await.expect("it has expired");
    assert_eq!(taken.epoch, Epoch::FIRST.next());
    let before = store.holder(zombie.run).await.expect("a known run");
    let opened = weaver.opened(&zombie, utterance(Some("hm"), &[]), &mut Vec::new());
    let step = weaver.step_with(&zombie, opened);
    let answer = store.append(step).await.expect("an answer");
    assert_eq!(answer, AppendOutcome::Fenced { held: Epoch::FIRST, now: taken.epoch });
    assert!(matches!(store.renew(&zombie.lease, at(1), LASTS).await, Err(Error::LeaseLost { .. })));
    store.release(&zombie.lease).await.expect("returning what is lost does nothing");
    assert_eq!(store.holder(zombie.run).await.expect("a known run"), before);
    zombie.lease = taken;
    weaver.turn(&mut zombie, "echo", json!(1), Closing::Open).await;
}

pub(super) async fn the_first_acquire_has_one_winner<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let (mut step, episode) = {
        let intent = weaver.intent("count");
        weaver.open(cantrip_loom::Origin::Root, intent, None, 0)
    };
    step.target = cantrip_loom::StepTarget::OpenRun { run: episode.run, lease: None };
    weaver.commit(step).await;
    assert_eq!(store.holder(episode.run).await.expect("a known run"), None);
    let race = (0..8).map(|n| store.acquire(episode.run, owner(&format!("process-{n}")), at(10), LASTS));
    let answers = futures_util::future::join_all(race).await;
    let won: Vec<&Lease> = answers.iter().filter_map(|answer| answer.as_ref().ok()).collect();
    assert_eq!(won.len(), 1, "{answers:?}");
    assert_eq!(won[0].epoch, Epoch::FIRST);
    let lost =
        answers.iter().filter(|answer| matches!(answer, Err(Error::LeaseHeld { by, .. }) if *by == won[0].owner));
    assert_eq!(lost.count(), 7);
}

pub(super) async fn an_expired_lease_is_taken_over_and_not_renewed<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let episode = weaver.cast("count").await;
    let expired = episode.lease.expires_at;
    let answer = store.renew(&episode.lease, expired, LASTS).await;
    assert!(matches!(answer, Err(Error::LeaseExpired { .. })), "{answer:?}");
    let again = store.acquire(episode.run, episode.lease.owner.clone(), expired, LASTS).await.expect("it has expired");
    assert_eq!(again.epoch, Epoch::FIRST.next());
    assert_eq!(again.expires_at, expired.after(LASTS));
}

pub(super) async fn a_live_lease_is_held_until_it_expires<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let episode = weaver.cast("count").await;
    let renewed = store.renew(&episode.lease, at(10_000), LASTS).await.expect("it is live");
    assert_eq!((renewed.epoch, renewed.expires_at), (episode.lease.epoch, at(40_000)));
    let early = store.acquire(episode.run, owner("process-2"), at(39_999), LASTS).await;
    assert!(matches!(early, Err(Error::LeaseHeld { until, .. }) if until == at(40_000)), "{early:?}");
    let own = store.acquire(episode.run, episode.lease.owner.clone(), at(39_999), LASTS).await;
    assert!(matches!(own, Err(Error::LeaseHeld { .. })), "{own:?}");
    assert!(store.acquire(episode.run, owner("process-2"), at(40_000), LASTS).await.is_ok());
}

pub(super) async fn a_returned_lease_is_free_at_once<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let episode = weaver.cast("count").await;
    store.release(&episode.lease).await.expect("it is held");
    assert_eq!(store.holder(episode.run).await.expect("a known run"), None);
    let opened = weaver.opened(&episode, utterance(Some("hm"), &[]), &mut Vec::new());
    let step = weaver.step_with(&episode, opened);
    let answer = store.append(step).await.expect("an answer");
    assert!(matches!(answer, AppendOutcome::Fenced { .. }), "{answer:?}");
    let lease = store.acquire(episode.run, owner("process-2"), at(20), LASTS).await.expect("it is free");
    assert_eq!(lease.epoch, Epoch::FIRST.next());
}

pub(super) async fn an_expired_lease_still_writes_until_someone_takes_over<J: Store>(
    store: &J,
    mut weaver: LoomWriter<'_, J>,
) {
    let mut episode = weaver.cast("count").await;
    let lease = store.renew(&episode.lease, at(1), Duration::from_millis(1)).await.expect("it is live");
    assert_eq!(lease.expires_at, at(2));
    // The clock of the writer is far beyond the expiry by now.
    weaver.plain(&mut episode).await;
}

pub(super) async fn epochs_survive_reopening<S: Subject>(subject: S) {
    let episode = {
        let store = subject.store();
        let episode = LoomWriter::new(store).cast("count").await;
        // Owners that took the lease and lost it without writing a record.
        for n in 0..3_u64 {
            let now = episode.lease.expires_at.after(Duration::from_hours(n));
            store.acquire(episode.run, owner("process-2"), now, LASTS).await.expect("it has expired");
        }
        episode
    };
    let Some(subject) = subject.reopen().await else { return };
    let late = episode.lease.expires_at.after(Duration::from_hours(9));
    let lease = subject.store().acquire(episode.run, owner("process-3"), late, LASTS).await.expect("it is free");
    assert_eq!(lease.epoch, Epoch::new(5));
}

pub(super) async fn orphans_are_live_runs_that_nobody_holds<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let listed = async |now| -> Vec<RunId> {
        let listed = store.orphans(now, PageRequest::FIRST).await.expect("readable");
        assert_eq!(listed.next, None);
        listed.items.iter().map(|run| run.run_id).collect()
    };
    let intent = weaver.intent("later");
    let (mut step, queued) = weaver.open(cantrip_loom::Origin::Root, intent, None, 0);
    step.target = cantrip_loom::StepTarget::OpenRun { run: queued.run, lease: None };
    weaver.commit(step).await;
    let held = weaver.cast("held").await;
    let returned = weaver.cast("returned").await;
    store.release(&returned.lease).await.expect("held");
    let mut handed_back = None;
    for reason in [ParkReason::Interrupted, ParkReason::CrystalUnavailable, ParkReason::HandedBack] {
        let parked = weaver.cast("parked").await;
        let rests =
            CastParked { cast_id: parked.cast, reason, turn_id: None, error: None, detail: None, elapsed_ms: None };
        weaver.write(&parked, rests).await;
        store.release(&parked.lease).await.expect("held");
        handed_back = Some(parked).filter(|_| !reason.needs_resume());
    }
    let mut ended = weaver.cast("ended").await;
    weaver.done(&mut ended, json!(1)).await;
    // A run that was handed back does not wait for anyone, so any worker may take it up.
    let handed_back = handed_back.expect("one of them waits for nobody");
    assert_eq!(listed(at(2_000)).await, [queued.run, returned.run, handed_back.run]);
    let long = Duration::from_hours(9);
    let taken = store.acquire(handed_back.run, owner("process-2"), at(2_000), long).await.expect("it is free");
    assert_eq!(taken.epoch, handed_back.lease.epoch.next());
    assert_eq!(listed(at(2_000)).await, [queued.run, returned.run]);
    // A lease may be taken over at the exact time of its expiry, so the run is an orphan then.
    let expired = held.lease.expires_at;
    assert_eq!(listed(expired).await, [queued.run, held.run, returned.run]);
    let page = store.orphans(expired, PageRequest { after: None, most: 2 }).await.expect("readable");
    assert_eq!(page.items.len(), 2);
    let rest = store.orphans(expired, PageRequest { after: page.next, most: 2 }).await.expect("readable");
    assert_eq!((rest.items.len(), rest.items[0].run_id, rest.next), (1, returned.run, None));
    store.acquire(held.run, owner("process-2"), expired, LASTS).await.expect("it has expired");
    assert_eq!(listed(expired).await, [queued.run, returned.run]);
}

pub(super) async fn owners_are_listed_with_the_leases_of_their_live_runs<J: Store>(
    store: &J,
    mut weaver: LoomWriter<'_, J>,
) {
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(weaver.cast("held").await);
    }
    let moved = weaver.cast("moved").await;
    let (first, second) = (moved.lease.owner.clone(), owner("process-2"));
    let taken = store.acquire(moved.run, second.clone(), moved.lease.expires_at, LASTS).await.expect("it has expired");
    let returned = weaver.cast("returned").await;
    store.release(&returned.lease).await.expect("held");
    let mut ended = weaver.cast("ended").await;
    weaver.done(&mut ended, json!(1)).await;

    let mut owners = store.lease_owners().await.expect("readable");
    owners.sort_by(|one, other| one.as_str().cmp(other.as_str()));
    let mut expected = vec![first.clone(), second.clone()];
    expected.sort_by(|one, other| one.as_str().cmp(other.as_str()));
    assert_eq!(owners, expected, "each owner once, and none of a run that is over or free");

    let listed = store.leases_of(second, PageRequest::FIRST).await.expect("readable");
    assert_eq!((listed.items, listed.next), (vec![taken], None));
    let page = store.leases_of(first.clone(), PageRequest { after: None, most: 2 }).await.expect("readable");
    let rest = store.leases_of(first, PageRequest { after: page.next, most: 2 }).await.expect("readable");
    let runs: Vec<RunId> = page.items.iter().chain(&rest.items).map(|lease| lease.run).collect();
    assert_eq!(runs, held.iter().map(|episode| episode.run).collect::<Vec<_>>());
    assert_eq!((page.items.len(), rest.next), (2, None));
    let nobody = store.leases_of(owner("process-3"), PageRequest::FIRST).await.expect("readable");
    assert_eq!(nobody.items, []);
}
