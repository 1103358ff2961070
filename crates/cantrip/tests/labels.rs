//! The three risk labels that an entity must not combine by itself, and the detection of repeating loops.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]
#![allow(clippy::wildcard_enum_match_arm, reason = "a test looks for one kind of record among all")]

use crate::support;

use cantrip::{Cantrip, CantripBuilder, CastOptions, ForkOptions, HumanDecision, Runtime};
use cantrip_canon::ApprovalId;
use cantrip_circle::gate::{builtin, gate};
use cantrip_circle::{AnyGate, Label};
use cantrip_crystal::{Crystal, Request, Response};
use cantrip_loom::{Actor, AnyLoom, Event, Loom, MemoryLoom, PageRequest, Settlement, TruncationReason};
use cantrip_reply::testing::assert_code;
use cantrip_reply::{Refusal, codes};
use serde_json::{Value, json};
use support::{
    Acting, Count, Dying, Numbered, call, done, house_of, intent_of, journal, memory, requiring, said_before, script,
    stores, talking, woven,
};

/// Returns a gate that counts its calls and has these labels.
fn labelled(name: &str, count: &Count, labels: &[Label]) -> AnyGate {
    support::counting(name, count).with_labels(labels.iter().copied())
}

/// Returns a gate that fails, and whose label counts nevertheless.
fn failing(name: &str, label: Label) -> AnyGate {
    let failing =
        gate(name, "Fails.", |_: Numbered| async { Err::<u64, Refusal>(codes::gate_failed("x", "y").into()) });
    AnyGate::from(failing).with_labels([label])
}

struct Seen {
    private: Count,
    untrusted: Count,
    out: Count,
}

impl Seen {
    fn new() -> Self {
        Self { private: Count::default(), untrusted: Count::default(), out: Count::default() }
    }

    fn circle(&self, crystal: impl Crystal + 'static) -> CantripBuilder {
        Cantrip::builder()
            .crystal(crystal)
            .gate(builtin::done())
            .gate(builtin::call_agent())
            .gate(labelled("files", &self.private, &[Label::PrivateData]))
            .gate(labelled("mail", &self.untrusted, &[Label::UntrustedContent]))
            .gate(labelled("post", &self.out, &[Label::ExternalComm]))
            .gate(failing("broken", Label::PrivateData))
            .ward("max_turns", 10)
    }
}

fn n(gate: &str) -> Response {
    call(gate, json!({"n": 1}))
}

/// Returns what the entity reads about the call of this gate.
async fn read(runtime: &Runtime, cantrip: &Cantrip, gate: &str) -> (String, String) {
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    let record = turns.iter().flat_map(|turn| &turn.gate_calls).rfind(|record| record.gate == gate);
    let Settlement::Settled(settled) = &record.unwrap().settlement else { panic!("settled") };
    (settled.reply.code.clone(), settled.result.as_str().unwrap_or_default().to_owned())
}

#[tokio::test(start_paused = true)]
async fn the_call_that_joins_the_three_is_denied_with_the_line_that_labels_it() {
    let (runtime, seen) = (memory(), Seen::new());
    let crystal = script([n("files"), n("mail"), n("post"), n("files"), done("stays callable")]);
    let cantrip = seen.circle(crystal).build().unwrap();
    assert!(cantrip.wards().trifecta, "all three are there, so the ward is on");
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("stays callable")), "{:?}", cast.reply());
    assert_eq!((seen.private.get(), seen.untrusted.get(), seen.out.get()), (2, 1, 0));
    let (code, text) = read(&runtime, &cantrip, "post").await;
    assert_eq!(code, codes::TRIFECTA.any().as_str());
    assert!(text.contains(r#"gates.post.labels = ["external_comm"]"#), "{text}");
    let leaf = cast.outcome.unwrap().leaf.unwrap();
    assert_code(runtime.replay(&cantrip, leaf).await.reply(), codes::VERIFIED);
}

#[tokio::test(start_paused = true)]
async fn a_reason_lifts_it_and_a_gate_that_was_entered_counts_whatever_it_answered() {
    let (runtime, seen) = (memory(), Seen::new());
    let crystal = script([n("files"), n("mail"), n("post"), done(1)]);
    let lifted = seen.circle(crystal).ward("allow_trifecta", "all of it is ours").build().unwrap();
    assert!(!lifted.wards().trifecta);
    assert_eq!(runtime.cast(&lifted, CastOptions::on("go")).await.answer(), Some(&json!(1)));
    assert_eq!(seen.out.get(), 1);
    let root = runtime.loom().roots(lifted.loom_id()).await.unwrap().remove(0);
    assert_eq!(root.cantrip.wards["allow_trifecta"], "all of it is ours");

    let (runtime, seen) = (memory(), Seen::new());
    let cantrip = seen.circle(script([n("broken"), n("mail"), n("post"), done(1)])).build().unwrap();
    assert_eq!(runtime.cast(&cantrip, CastOptions::on("go")).await.answer(), Some(&json!(1)));
    assert_eq!((seen.untrusted.get(), seen.out.get()), (1, 0));
    assert_eq!(read(&runtime, &cantrip, "post").await.0, codes::TRIFECTA.any().as_str());

    // A refused call adds no label.
    let (runtime, seen) = (memory(), Seen::new());
    let crystal = script([call("files", json!({"n": "none"})), n("mail"), n("post"), done(1)]);
    let cantrip = seen.circle(crystal).build().unwrap();
    assert_eq!(runtime.cast(&cantrip, CastOptions::on("go")).await.answer(), Some(&json!(1)));
    assert_eq!((seen.private.get(), seen.out.get()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn where_someone_can_be_asked_the_completing_call_waits_for_them() {
    for (store, _folder) in stores() {
        let (runtime, seen) = (house_of(store, 1).with_approvals(true), Seen::new());
        let cantrip = seen.circle(script([n("files"), n("mail"), n("post"), n("post"), done(1)])).build().unwrap();
        let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
        let run = cast.run.unwrap();
        let mut next = cast;
        for posted in 0..2 {
            assert_code(next.reply(), codes::CREATED);
            assert_eq!(seen.out.get(), posted, "each time anew");
            let approval: ApprovalId = next.reply().data()["approval_id"].as_str().unwrap().parse().unwrap();
            let mut asked = journal(&runtime, run).await.into_iter().filter_map(|event| match event {
                Event::ApprovalRequested(asked) => Some(asked),
                _ => None,
            });
            let reasons = asked.next_back().unwrap().reasons;
            assert_eq!(reasons[0]["ward"], "trifecta");
            assert_eq!(reasons[0]["toml"], r#"gates.post.labels = ["external_comm"]"#);
            let approve = HumanDecision::approve(Actor::new("user:1").unwrap());
            assert_code(&runtime.decide(run, approval, approve).await.reply, codes::CHANGED);
            next = runtime.resume(&cantrip, run).await;
        }
        assert_eq!(next.answer(), Some(&json!(1)), "{:?}", next.reply());
        assert_eq!(seen.out.get(), 2);
        let leaf = next.outcome.unwrap().leaf.unwrap();
        assert_code(runtime.replay(&cantrip, leaf).await.reply(), codes::VERIFIED);
    }
}

/// Returns a cantrip whose parent reads mail and whose child reads files; then one of them tries to post.
fn family(seen: &Seen, child_posts: bool) -> Cantrip {
    let crystal = Acting(move |request: &Request| match (intent_of(request).as_str(), said_before(request)) {
        ("go", 0) => n("mail"),
        ("go", 1) => call("call_agent", json!({"intent": "child"})),
        ("go", 2) if !child_posts => n("post"),
        ("go", _) => done("parent"),
        (_, 0) => n("files"),
        (_, 1) if child_posts => n("post"),
        (_, _) => done("child"),
    });
    seen.circle(crystal).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_was_touched_goes_down_to_a_child_and_comes_back_with_its_end() {
    for child_posts in [true, false] {
        let (runtime, seen) = (memory(), Seen::new());
        let cantrip = family(&seen, child_posts);
        let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
        assert_eq!(cast.answer(), Some(&json!("parent")), "{:?}", cast.reply());
        assert_eq!((seen.private.get(), seen.untrusted.get(), seen.out.get()), (1, 1, 0), "{child_posts}");
        assert_eq!(read(&runtime, &cantrip, "post").await.0, codes::TRIFECTA.any().as_str());
        let leaf = cast.outcome.unwrap().leaf.unwrap();
        assert_code(runtime.replay(&cantrip, leaf).await.reply(), codes::VERIFIED);
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_at_any_place_the_same_call_is_denied() {
    for child_posts in [true, false] {
        let store = Dying::after(AnyLoom::new(MemoryLoom::new()), u64::MAX);
        let seen = Seen::new();
        let whole =
            house_of(AnyLoom::new(store.clone()), 1).cast(&family(&seen, child_posts), CastOptions::on("go")).await;
        assert_eq!(whole.answer(), Some(&json!("parent")));
        for dies_after in 1..store.taken() {
            let (memory, seen) = (AnyLoom::new(MemoryLoom::new()), Seen::new());
            let cantrip = family(&seen, child_posts);
            let dying = house_of(AnyLoom::new(Dying::after(memory.clone(), dies_after)), 1);
            let died = dying.cast(&cantrip, CastOptions::on("go")).await;
            let heir = house_of(memory, 2);
            let cast = heir.resume(&cantrip, died.run.unwrap()).await;
            let found = woven(&heir, cantrip.loom_id()).await;
            assert_eq!(cast.answer(), Some(&json!("parent")), "dead after {dies_after}: {found}");
            assert_eq!(seen.out.get(), 0, "dead after {dies_after}: {found}");
            assert!(found.contains(&format!("post!{}", codes::TRIFECTA.any())), "dead after {dies_after}: {found}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_fork_has_touched_what_its_turns_touched_and_no_more() {
    for (store, _folder) in stores() {
        let (runtime, seen) = (house_of(store, 1), Seen::new());
        let cantrip = family(&seen, false);
        let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
        assert_eq!(cast.answer(), Some(&json!("parent")));
        let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
        let own: Vec<_> = turns.iter().filter(|turn| Some(turn.entity_id) == cast.entity).collect();
        // Turn 1 is mail, 2 the delegation, 3 its answer: only then does the child's label count.
        for (at, posts) in [(0, true), (1, true), (2, false)] {
            let before = seen.out.get();
            let posting = cantrip.with_crystal(script([n("post"), done("forked")])).unwrap();
            let fork = runtime.fork(&posting, own[at].id, ForkOptions::on("post it")).await;
            assert_eq!(fork.answer(), Some(&json!("forked")), "{:?}", fork.reply());
            assert_eq!(seen.out.get() - before, usize::from(posts), "fork from turn {}", own[at].sequence);
            // The same holds for a fork of the fork: if it has posted, reading files would combine the three.
            let before = (seen.private.get(), seen.out.get());
            let again = cantrip.with_crystal(script([n("files"), n("post"), done("again")])).unwrap();
            let leaf = fork.outcome.unwrap().leaf.unwrap();
            let fork = runtime.fork(&again, leaf, ForkOptions::on("files first")).await;
            assert_eq!(fork.answer(), Some(&json!("again")), "{:?}", fork.reply());
            let after = (seen.private.get() - before.0, seen.out.get() - before.1);
            assert_eq!(after, if posts { (0, 1) } else { (1, 0) }, "fork from turn {}", own[at].sequence);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_an_entity_touched_lasts_over_its_sends_and_a_labelled_context_counts_from_the_start() {
    let (runtime, seen) = (memory(), Seen::new());
    let crystal = script([n("files"), done(1), n("mail"), done(2), n("post"), done(3)]);
    let cantrip = seen.circle(crystal).build().unwrap();
    let entity = runtime.summon(&cantrip, None).await.unwrap();
    assert_eq!(entity.send("one").await.answer(), Some(&json!(1)));
    assert_eq!(entity.send("two").await.answer(), Some(&json!(2)));
    // Another process loads the entity: its labels are in the loom.
    let taken = runtime.entity(&cantrip, entity.id()).await.unwrap();
    assert_eq!(taken.send("three").await.answer(), Some(&json!(3)));
    assert_eq!(seen.out.get(), 0);

    let (runtime, seen) = (memory(), Seen::new());
    let cantrip = seen.circle(script([n("mail"), n("post"), done(1)])).build().unwrap();
    let casting = CastOptions::on("go").context(json!({"salaries": [1]})).context_labels([Label::PrivateData]);
    assert_eq!(runtime.cast(&cantrip, casting).await.answer(), Some(&json!(1)));
    assert_eq!((seen.untrusted.get(), seen.out.get()), (1, 0));
}

/// Returns a gate that gives another answer for each call.
fn changing(count: &Count) -> AnyGate {
    let count = count.clone();
    gate("changing", "Changes.", move |_: Numbered| std::future::ready(Ok::<_, Refusal>(count.up()))).into()
}

fn polling() -> AnyGate {
    let same = |numbered: Numbered| std::future::ready(Ok::<_, Refusal>(numbered.n));
    gate("status", "Asks how far it is.", same).polling().into()
}

fn circling(crystal: &cantrip_crystal::ScriptedCrystal, count: &Count) -> CantripBuilder {
    talking(crystal).gate(changing(count)).gate(polling()).ward("max_turns", 12)
}

async fn ends(responses: Vec<Response>, ward: Option<Value>) -> (Option<TruncationReason>, u64) {
    let crystal = script(responses);
    let builder = circling(&crystal, &Count::default());
    let builder = match ward {
        Some(ward) => builder.ward("loop_detected", ward),
        None => builder,
    };
    let cantrip = builder.build().unwrap();
    let runtime = memory();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    if let Some(leaf) = cast.outcome.as_ref().and_then(|outcome| outcome.leaf) {
        assert_code(runtime.replay(&cantrip, leaf).await.reply(), codes::VERIFIED);
    }
    (cast.reason(), crystal.request_count())
}

#[tokio::test(start_paused = true)]
async fn circles_are_noticed_at_exactly_their_number_and_reset_by_change_and_by_polling() {
    let ward = || Some(json!({"repeats": 3, "cycles": 2}));
    let detected = Some(TruncationReason::LoopDetected);
    let same = || call("echo", json!({"text": 1}));
    let other = || call("echo", json!({"text": 2}));
    let over = || done("over");
    assert_eq!(ends(vec![same(), same(), over()], ward()).await, (None, 3));
    assert_eq!(ends(vec![same(), same(), same(), over()], ward()).await, (detected, 3));
    assert_eq!(ends(vec![same(), other(), same(), over()], ward()).await, (None, 4));
    assert_eq!(ends(vec![same(), other(), same(), other(), over()], ward()).await, (detected, 4));
    // The ward is off unless it is declared.
    assert_eq!(ends(vec![same(), same(), same(), same(), over()], None).await, (None, 5));
    // The same call with another result is not a loop; a group that only polls resets the counter.
    let changes = vec![n("changing"), n("changing"), n("changing"), n("changing"), over()];
    assert_eq!(ends(changes, ward()).await, (None, 5));
    assert_eq!(ends(vec![n("status"), n("status"), n("status"), n("status"), over()], ward()).await, (None, 5));
    assert_eq!(ends(vec![same(), same(), n("status"), same(), same(), over()], ward()).await, (None, 6));
    // Polling calls beside repeated ones are ignored.
    let beside = || same().and_call("p", "status", json!({"n": 1}));
    assert_eq!(ends(vec![beside(), beside(), beside(), over()], ward()).await, (detected, 3));
}

#[tokio::test(start_paused = true)]
async fn the_same_text_three_times_ends_a_cast_that_declares_no_ward_and_other_texts_do_not() {
    let said = |texts: &[&str]| script(texts.iter().map(|text| Response::text(*text)).chain([done("so")]));
    let runtime = memory();
    let crystal = said(&["Hm.", "I think.", " I think.\n", "I think."]);
    let cast = runtime.cast(&requiring(&crystal).build().unwrap(), CastOptions::on("go")).await;
    assert_code(cast.reply(), codes::LOOP_DETECTED);
    assert_eq!((&cast.reply().data()["pattern"], crystal.request_count()), (&json!("repeated_text"), 4));
    // Only the last request says what is missing.
    let reminded: Vec<bool> = crystal
        .requests()
        .iter()
        .map(|request| request.messages.iter().any(|message| format!("{message:?}").contains("You said the same")))
        .collect();
    assert_eq!(reminded, [false, false, false, true]);
    let crystal = said(&["I think.", "I think.", "I know.", "I think.", "I think."]);
    let cast = runtime.cast(&requiring(&crystal).build().unwrap(), CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("so")), "{:?}", cast.reply());
    // Where a text ends the cast, there is no second one.
    let crystal = said(&["I think."]);
    assert_code(
        runtime.cast(&talking(&crystal).build().unwrap(), CastOptions::on("go")).await.reply(),
        codes::TERMINATED,
    );
}

#[tokio::test(start_paused = true)]
async fn words_can_go_round_in_circles_too() {
    let runtime = memory();
    let crystal = script([Response::text("I think."), Response::text(" I think.\n"), Response::text("I think.")]);
    let cantrip = requiring(&crystal).ward("loop_detected", json!({"repeats": 3, "cycles": 3})).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_code(cast.reply(), codes::LOOP_DETECTED);
    assert_eq!(crystal.request_count(), 3);
}

#[tokio::test(start_paused = true)]
async fn circles_are_counted_over_a_crash() {
    let cantrip = || {
        let crystal = Acting(|_: &Request| call("echo", json!({"text": 1})));
        talking(&script([])).crystal(crystal).ward("loop_detected", json!({"repeats": 4, "cycles": 4})).build().unwrap()
    };
    let store = Dying::after(AnyLoom::new(MemoryLoom::new()), u64::MAX);
    let whole = house_of(AnyLoom::new(store.clone()), 1).cast(&cantrip(), CastOptions::on("go")).await;
    assert_eq!((whole.reason(), whole.outcome.unwrap().turns), (Some(TruncationReason::LoopDetected), 4));
    for dies_after in 1..store.taken() {
        let memory = AnyLoom::new(MemoryLoom::new());
        let dying = house_of(AnyLoom::new(Dying::after(memory.clone(), dies_after)), 1);
        let died = dying.cast(&cantrip(), CastOptions::on("go")).await;
        let cast = house_of(memory, 2).resume(&cantrip(), died.run.unwrap()).await;
        assert_eq!((cast.reason(), cast.outcome.unwrap().turns), (Some(TruncationReason::LoopDetected), 4));
    }
}
