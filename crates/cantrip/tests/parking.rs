//! A cast that is asked to pause: nothing new begins, no finished work is lost, and it continues at the same place.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

use crate::support;

use std::time::Duration;

use cantrip::{Cancel, Cantrip, CastOptions, CastReply, Runtime};
use cantrip_canon::Timestamp;
use cantrip_circle::gate::builtin;
use cantrip_crystal::Response;
use cantrip_loom::{Journal, Loom, PageRequest, RunState, TruncationReason};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use serde_json::json;
use support::{Count, Overlap, call, counting, done, memory, script, slow, talking, woven};

/// Casts, and asks the cast to pause after `after` milliseconds.
async fn rested(runtime: &Runtime, cantrip: &Cantrip, after: u64) -> CastReply {
    let cancel = Cancel::new();
    let casting = CastOptions::on("go").cancelled_by(&cancel);
    let asked = async {
        tokio::time::sleep(Duration::from_millis(after)).await;
        cancel.park();
        // A second request has no further effect.
        cancel.park();
    };
    let (cast, ()) = tokio::join!(runtime.cast(cantrip, casting), asked);
    cast
}

async fn assert_waits(runtime: &Runtime, cast: &CastReply) {
    assert_code(cast.reply(), codes::CREATED);
    assert_eq!(cast.reply().data()["state"], "waiting");
    assert_eq!(cast.reply().data()["reason"], "interrupted");
    assert!(cast.outcome.is_none());
    let run = cast.run.unwrap();
    assert_eq!(runtime.loom().run(run).await.unwrap().state, RunState::Waiting);
    assert!(runtime.loom().holder(run).await.unwrap().is_none(), "its lease is free");
}

fn thinking(response: Response) -> Response {
    Response { delay: Duration::from_secs(60), ..response }
}

#[tokio::test(start_paused = true)]
async fn a_crystal_that_thinks_is_not_waited_for_and_is_asked_again() {
    let runtime = memory();
    let crystal = script([call("echo", json!({"text": 1})), thinking(done("never heard")), done("heard")]);
    let cantrip = talking(&crystal).build().unwrap();
    let start = tokio::time::Instant::now();
    let cast = rested(&runtime, &cantrip, 500).await;
    assert_eq!(start.elapsed().as_millis(), 500);
    assert_waits(&runtime, &cast).await;
    assert_eq!(woven(&runtime, cantrip.loom_id()).await, "A1 echo=1");
    let resumed = runtime.resume(&cantrip, cast.run.unwrap()).await;
    assert_eq!(resumed.answer(), Some(&json!("heard")), "{:?}", resumed.reply());
    assert_eq!(woven(&runtime, cantrip.loom_id()).await, "A1 echo=1\nA2 <A1 done=\"heard\" terminated");
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_runs_is_waited_for_and_the_call_behind_it_is_not_begun() {
    let (runtime, overlap, count) = (memory(), Overlap::default(), Count::default());
    let said = call("slow", json!({"ms": 1_000})).and_call("c2", "count", json!({"n": 2}));
    let cantrip = talking(&script([said, done("over")]))
        .gate(slow("slow", &overlap))
        .gate(counting("count", &count))
        .build()
        .unwrap();
    let cast = rested(&runtime, &cantrip, 100).await;
    assert_waits(&runtime, &cast).await;
    assert_eq!((overlap.ended(), count.get()), (vec![1_000], 0));
    let resumed = runtime.resume(&cantrip, cast.run.unwrap()).await;
    assert_eq!(resumed.answer(), Some(&json!("over")), "{:?}", resumed.reply());
    assert_eq!((overlap.ended(), count.get()), (vec![1_000], 1), "each call was made once");
    let found = woven(&runtime, cantrip.loom_id()).await;
    assert_eq!(found, "A1 slow=1000 count=2\nA2 <A1 done=\"over\" terminated");
}

#[tokio::test(start_paused = true)]
async fn children_rest_with_their_parent_and_none_is_cast_twice() {
    let runtime = memory();
    let batch =
        call("call_agent_batch", json!({"requests": ["a", "b"]})).and_call("d", "done", json!({"answer": "on"}));
    let crystal = script([batch, done("A"), thinking(done("never heard")), done("B")]);
    let cantrip = talking(&crystal).gate(builtin::call_agent_batch()).build().unwrap();
    let cast = rested(&runtime, &cantrip, 500).await;
    assert_waits(&runtime, &cast).await;
    let resumed = runtime.resume(&cantrip, cast.run.unwrap()).await;
    assert_eq!(resumed.answer(), Some(&json!("on")), "{:?}", resumed.reply());
    assert_eq!(
        woven(&runtime, cantrip.loom_id()).await,
        "A1 call_agent_batch.. sealed\n  B1 <A1 done=\"A\" terminated\n  C1 <A1 done=\"B\" terminated\n\
         A2 <A1 continues call_agent_batch=[\"A\",\"B\"] done=\"on\" terminated"
    );
}

#[tokio::test(start_paused = true)]
async fn a_cast_that_rests_can_still_be_ended() {
    let (runtime, overlap) = (memory(), Overlap::default());
    let cantrip =
        talking(&script([call("slow", json!({"ms": 60_000})), done(1)])).gate(slow("slow", &overlap)).build().unwrap();
    let cancel = Cancel::new();
    let asked = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        cancel.park();
        tokio::time::sleep(Duration::from_millis(100)).await;
        cancel.cancel();
        // A cast that was ended cannot be asked to pause.
        cancel.park();
    };
    let start = tokio::time::Instant::now();
    let (cast, ()) = tokio::join!(runtime.cast(&cantrip, CastOptions::on("go").cancelled_by(&cancel)), asked);
    assert_code(cast.reply(), codes::ENDED_FROM_OUTSIDE);
    assert_eq!((cast.reason(), start.elapsed().as_millis()), (Some(TruncationReason::Cancelled), 200));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_rests_is_ended_by_who_takes_it_up_only_to_cancel_it() {
    let runtime = memory();
    let cantrip = talking(&script([thinking(done("never heard")), done("heard")])).build().unwrap();
    let entity = runtime.summon(&cantrip, None).await.unwrap();
    let cancel = Cancel::new();
    let asked = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        cancel.park();
    };
    let (cast, ()) = tokio::join!(entity.send_with("go", &cancel), asked);
    assert_waits(&runtime, &cast).await;
    let ended = Cancel::new();
    ended.cancel();
    let over = runtime.resume_with(&cantrip, cast.run.unwrap(), &ended).await;
    assert_eq!(over.reason(), Some(TruncationReason::Cancelled), "{:?}", over.reply());
    let again = runtime.entity(&cantrip, entity.id()).await.unwrap();
    assert_eq!(again.send("another").await.answer(), Some(&json!("heard")));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_its_process_hands_back_waits_for_nobody_and_goes_on_where_it_stood() {
    let (runtime, count) = (memory(), Count::default());
    let crystal = script([call("count", json!({"n": 1})), thinking(done("never heard")), done("heard")]);
    let cantrip = talking(&crystal).gate(counting("count", &count)).build().unwrap();
    let cancel = Cancel::new();
    let asked = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        cancel.hand_back();
    };
    let (cast, ()) = tokio::join!(runtime.cast(&cantrip, CastOptions::on("go").cancelled_by(&cancel)), asked);
    assert_code(cast.reply(), codes::CREATED);
    assert_eq!(cast.reply().data()["reason"], "handed_back");
    let run = cast.run.unwrap();
    assert!(runtime.loom().holder(run).await.unwrap().is_none(), "its lease is free");
    let orphans = runtime.loom().orphans(Timestamp::EPOCH, PageRequest::FIRST).await.unwrap();
    assert_eq!(orphans.items.iter().map(|view| view.run_id).collect::<Vec<_>>(), [run]);
    let resumed = runtime.resume(&cantrip, run).await;
    assert_eq!(resumed.answer(), Some(&json!("heard")), "{:?}", resumed.reply());
    assert_eq!(count.get(), 1, "what was done is not done again");
    assert_eq!(woven(&runtime, cantrip.loom_id()).await, "A1 count=1\nA2 <A1 done=\"heard\" terminated");
}

#[tokio::test(start_paused = true)]
async fn who_was_asked_to_rest_by_a_person_waits_for_one_though_its_process_ends() {
    let runtime = memory();
    let cantrip = talking(&script([thinking(done("never heard")), done("heard")])).build().unwrap();
    let cancel = Cancel::new();
    let asked = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        cancel.park();
        cancel.hand_back();
    };
    let (cast, ()) = tokio::join!(runtime.cast(&cantrip, CastOptions::on("go").cancelled_by(&cancel)), asked);
    assert_waits(&runtime, &cast).await;
}
