//! The message list of a request: its rules one by one, and the same bytes whichever way it was built.

use crate::woven;

use std::collections::HashMap;

use cantrip_loom::{Closing, Environment, Maker, Message, ProgramError, ProviderParts, TruncationReason, render};
use cantrip_reply::{codes, testing};
use cantrip_turn::list::{Frame, MessageList, PairingCheck};
use proptest::prelude::*;
use serde_json::json;
use woven::{DONE, OUT_OF_TURNS, Says, TEXT, Woven, delegated, output, refused, said, settled, shown};

#[test]
fn the_prompt_stands_alone_in_front_and_a_null_one_adds_no_message() {
    let mut with = Woven::conversation();
    with.cast("how many?");
    assert_eq!(with.list(), "system: You count.\nuser: how many?");

    for medium in ["conversation", "javascript", "python", "shell", "browser", "human"] {
        let mut without = Woven::new(Frame::new("scripted/test", medium));
        without.cast("how many?");
        assert_eq!(without.list(), "user: how many?", "{medium}");
        let mut fenced = Woven::new(Frame::new("scripted/test", medium).fenced("You may read."));
        fenced.cast("how many?");
        assert_eq!(fenced.list(), "system: You may read.\nuser: how many?", "{medium}");
    }
}

#[test]
fn capabilities_in_words_stay_in_front_through_a_fold() {
    let frame = Frame::new("scripted/test", "javascript").prompted("You count.").fenced("Write javascript.");
    let mut woven = Woven::new(frame);
    woven.cast("how many?");
    woven.turn(Says::text("one"));
    woven.turn(Says::text("two"));
    woven.folded(1, "[Folded: turns 1-1] ...");
    assert_eq!(
        woven.list(),
        "system: You count.\nsystem: Write javascript.\nuser: how many?\nuser: [Folded: turns 1-1] ...\n\
         assistant: two\nuser: Continue. Call done with your answer when the task is finished."
    );
}

#[test]
fn a_text_that_ends_nothing_is_followed_by_a_nudge_that_no_record_holds() {
    let mut woven = Woven::conversation();
    woven.cast("how many?");
    woven.turn(Says::text("I think."));
    woven.turn(Says::text("I still think."));
    let nudge = "user: Continue. Call done with your answer when the task is finished.";
    assert_eq!(
        woven.list(),
        format!(
            "system: You count.\nuser: how many?\nassistant: I think.\n{nudge}\nassistant: I still think.\n{nudge}"
        )
    );
    woven.turn(
        Says::calls(&[("c1", "done", json!({"answer": 3}))]).record(settled("c1", "done", json!(3))).closing(DONE),
    );
    assert_eq!(woven.turns.len(), 3);
    assert!(woven.turns.iter().all(|turn| turn.gate_calls.len() <= 1 && turn.outputs.is_empty()));
}

#[test]
fn a_text_that_ended_its_cast_is_followed_by_the_next_intent_alone() {
    let mut woven = Woven::conversation();
    woven.cast("how many?");
    woven.turn(Says::text("three").closing(TEXT));
    woven.cast("and now?");
    woven.turn(Says::text("four").closing(TEXT));
    woven.cast("and then?");
    assert_eq!(
        woven.list(),
        "system: You count.\nuser: how many?\nassistant: three\nuser: and now?\nassistant: four\nuser: and then?"
    );
}

#[test]
fn a_cast_that_goes_on_adds_no_intent_and_nudges_a_text() {
    let mut woven = Woven::conversation();
    woven.cast("how many?");
    woven.turn(Says::text("I think.").closing(OUT_OF_TURNS));
    woven.go_on();
    let list = woven.list();
    assert!(
        list.ends_with("assistant: I think.\nuser: Continue. Call done with your answer when the task is finished.")
    );
    assert_eq!(list.matches("how many?").count(), 1);
    woven.turn(Says::text("three").closing(TEXT));
    woven.list();
}

#[test]
fn results_stand_behind_their_calls_in_call_order_and_read_as_they_were_settled() {
    let mut woven = Woven::conversation();
    woven.cast("look");
    let asked = Says::calls(&[
        ("c1", "read", json!({"path": "a"})),
        ("c2", "list", json!({})),
        ("c3", "read", json!({"path": "b"})),
        ("c4", "fetch", json!({})),
    ]);
    let mut hidden = settled("c4", "fetch", json!("secret page"));
    hidden.ephemeral = true;
    // Settled in another order than they were requested.
    let turn = asked
        .record(refused("c3", "read", "Invalid WA-READ-I-001: b does not exist. Fix the arguments and retry."))
        .record(hidden)
        .record(settled("c1", "read", json!("text of a")))
        .record(settled("c2", "list", json!({"b": 1, "a": [true]})));
    woven.turn(turn);
    assert_eq!(
        woven.list(),
        "system: You count.\nuser: look\n\
         assistant:  read#c1{\"path\":\"a\"} list#c2{} read#c3{\"path\":\"b\"} fetch#c4{}\n\
         tool c1: text of a\ntool c2: {\"a\":[true],\"b\":1}\n\
         tool c3: Invalid WA-READ-I-001: b does not exist. Fix the arguments and retry.\ntool c4: [ephemeral:fetch]"
    );
}

#[test]
fn calls_that_never_ran_say_why() {
    let calls = [("c1", "done", json!({"answer": 1})), ("c2", "read", json!({}))];
    for (closing, wanted) in [
        (DONE, "[skipped: done was called]"),
        (OUT_OF_TURNS, "[not run: max_turns]"),
        (Closing::Truncated { reason: TruncationReason::Cancelled, error: None }, "[not run: cancelled]"),
    ] {
        let mut woven = Woven::conversation();
        woven.cast("look");
        woven.turn(Says::calls(&calls).record(settled("c1", "done", json!(1))).closing(closing));
        woven.cast("again");
        assert!(woven.list().contains(&format!("tool c1: 1\ntool c2: {wanted}\nuser: again")));
    }
}

#[test]
fn a_result_beyond_64_kib_is_cut_in_view_and_says_so() {
    let mut woven = Woven::conversation();
    woven.cast("look");
    let long = "é".repeat(60_000);
    woven.turn(Says::calls(&[("c1", "read", json!({}))]).record(settled("c1", "read", json!(long))));
    let list = woven.list();
    assert!(list.ends_with("[cut: 65536 of 120000 bytes are shown]"));
    assert!(list.len() < 66_000);
}

fn program(code: &str) -> Says {
    Says::calls(&[("p1", "javascript", json!({ "code": code }))])
}

fn in_code() -> Woven {
    let mut woven = Woven::new(Frame::new("scripted/test", "javascript"));
    woven.cast("count");
    woven
}

#[test]
fn the_outputs_of_a_program_are_joined_over_the_turns_it_ran_in() {
    let mut woven = in_code();
    woven
        .turn(program("...").output(output(Some("p1"), &["one"], None)).record(delegated("p1", "call_agent")).sealed());
    woven.turn(
        Says::continued()
            .record(settled("p1", "call_agent", json!("A")))
            .record(delegated("p1", "call_agent"))
            .output(output(Some("p1"), &[], None))
            .sealed(),
    );
    woven.turn(Says::continued().record(settled("p1", "call_agent", json!("B"))).output(output(
        Some("p1"),
        &["two"],
        Some("7"),
    )));
    assert_eq!(woven.list(), "user: count\nassistant:  javascript#p1{\"code\":\"...\"}\ntool p1: one\ntwo\n=> 7");
}

#[test]
fn a_program_reads_as_its_lines_then_its_value_or_its_error_then_notes() {
    let error = ProgramError { name: "TypeError".into(), message: "no".into(), line: Some(2), column: Some(5) };
    let mut failed = output(Some("p1"), &["look"], None);
    (failed.error, failed.cut, failed.rolled_back) = (Some(error), 12, true);
    for (output, wanted) in [
        (output(Some("p1"), &[], None), "(no output)"),
        (output(Some("p1"), &[], Some("3")), "=> 3"),
        (output(Some("p1"), &["a", "b"], None), "a\nb"),
        (
            failed,
            "look\nTypeError: no (turn-1.js:2:5)\n[12 bytes of output are not shown]\n\
             [variables are as before this program; calls already made stand]",
        ),
    ] {
        let mut woven = in_code();
        woven.turn(program("x").record(settled("p1", "read", json!("never shown"))).output(output));
        assert_eq!(
            woven.list(),
            format!("user: count\nassistant:  javascript#p1{{\"code\":\"x\"}}\ntool p1: {wanted}")
        );
    }
}

#[test]
fn a_gate_called_beside_the_program_reads_as_its_own_refusal() {
    let mut woven = in_code();
    woven.turn(
        Says::calls(&[("p1", "javascript", json!({"code": "1"})), ("c2", "read", json!({}))])
            .output(output(Some("p1"), &[], Some("1")))
            .record(refused("c2", "read", "call it in code")),
    );
    assert!(woven.list().ends_with("tool p1: => 1\ntool c2: call it in code"));
}

#[test]
fn a_program_in_the_text_is_answered_in_the_next_message() {
    let mut woven = Woven::new(Frame::new("scripted/test", "javascript").fenced("Write javascript."));
    woven.cast("count");
    woven.turn(Says::text("```javascript\n1 + 2\n```").output(output(None, &[], Some("3"))));
    assert!(woven.list().ends_with("assistant: ```javascript\n1 + 2\n```\nuser: => 3"));
}

#[test]
fn a_fork_inside_a_group_drops_the_rest_of_its_utterance() {
    let mut talk = Woven::conversation();
    talk.cast("look");
    talk.turn(
        Says::calls(&[("c1", "read", json!({})), ("c2", "call_agent", json!({})), ("c3", "read", json!({}))])
            .record(settled("c1", "read", json!("text")))
            .record(delegated("c2", "call_agent"))
            .sealed(),
    );
    talk.fork(Environment::None);
    talk.cast("look elsewhere");
    assert!(talk.list().ends_with(
        "tool c1: text\ntool c2: [not run: forked here]\ntool c3: [not run: forked here]\nuser: look elsewhere"
    ));
    talk.turn(Says::text("there").closing(TEXT));
    talk.list();

    let mut code = in_code();
    code.turn(program("...").output(output(Some("p1"), &["one"], None)).record(delegated("p1", "call_agent")).sealed());
    code.fork(Environment::Replay);
    code.go_on();
    assert!(code.list().ends_with("tool p1: one\n[not run: forked here]"));
}

#[test]
fn a_fork_without_its_variables_is_told_before_its_intent() {
    let mut woven = in_code();
    woven.turn(program("x = 1").output(output(Some("p1"), &[], Some("1"))));
    woven.fork(Environment::Fresh);
    woven.cast("again");
    let told = "tool p1: => 1\nuser: [environment: fresh; earlier variables are gone]\nuser: again";
    assert!(woven.list().ends_with(told));
    woven.turn(program("y").output(output(Some("p1"), &[], Some("2"))));
    assert!(woven.list().contains(told));
}

#[test]
fn a_childs_list_begins_at_its_own_first_turn() {
    let mut woven = Woven::conversation();
    woven.cast("the parent's intent");
    woven.turn(Says::calls(&[("c1", "call_agent", json!({}))]).record(delegated("c1", "call_agent")).sealed());
    woven.spawn();
    woven.cast("the child's intent");
    woven.turn(Says::text("hello"));
    let list = woven.list();
    assert!(list.starts_with("system: You count.\nuser: the child's intent\nassistant: hello"), "{list}");
    assert!(!list.contains("parent"));
}

#[test]
fn a_cast_without_a_turn_leaves_no_trace_unless_another_goes_on_under_it() {
    let mut woven = Woven::conversation();
    woven.cast("first");
    woven.turn(Says::text("I think.").closing(OUT_OF_TURNS));
    woven.cast("never answered");
    assert!(woven.list().ends_with("assistant: I think.\nuser: never answered"));
    woven.cast("second");
    assert!(woven.list().ends_with("assistant: I think.\nuser: second"));
    woven.go_on();
    assert!(woven.list().ends_with("assistant: I think.\nuser: second"));
    woven.turn(Says::text("so").closing(TEXT));
    assert!(!woven.list().contains("never answered"));
}

#[test]
fn an_intent_that_was_cancelled_before_an_answer_stays_with_a_marker_and_roles_take_turns() {
    let mut woven = Woven::conversation();
    woven.cast("first");
    woven.cancel();
    woven.cast("second");
    let cancelled = "user: first\nassistant: [cancelled before an answer]\nuser: second";
    assert_eq!(woven.list(), format!("system: You count.\n{cancelled}"));
    woven.turn(Says::text("two").closing(TEXT));
    woven.cast("third");
    assert!(woven.list().ends_with("user: third"), "an answer to it needs no marker");
    woven.cancel();
    woven.cast("fourth");
    woven.cancel();
    // A cast that continues under the cancelled intent removes the marker.
    woven.go_on();
    woven.turn(Says::text("four").closing(TEXT));
    woven.cast("fifth");
    let list = woven.list();
    let later = "user: third\nassistant: [cancelled before an answer]\nuser: fourth\nassistant: four\nuser: fifth";
    assert_eq!(list, format!("system: You count.\n{cancelled}\nassistant: two\n{later}"));
    // A fold removes the cancelled intents together with the groups before it, and no unanswered message follows the
    // intent.
    woven.cancel();
    woven.cast("sixth");
    woven.turn(Says::text("six"));
    woven.folded(2, "[Folded: turns 1-2]");
    let list = woven.list();
    assert!(list.starts_with("system: You count.\nuser: sixth\nuser: [Folded: turns 1-2]\nassistant: six"), "{list}");
}

#[test]
fn a_nudge_that_nobody_answered_is_gone_with_the_next_intent() {
    let mut woven = Woven::conversation();
    woven.cast("first");
    woven.turn(Says::text("I think."));
    assert!(woven.list().ends_with("when the task is finished."));
    woven.cast("second");
    assert!(woven.list().ends_with("assistant: I think.\nuser: second"));
    woven.turn(Says::text("so").closing(TEXT));
    woven.list();
}

#[test]
fn what_another_provider_made_is_not_returned_to_this_one() {
    let parts = |maker: &str| Some(ProviderParts { maker: Maker::new(maker), parts: json!(["signed"]) });
    // As the wire formats write it, and as older records have it.
    let makers = [
        ("anthropic/claude-sonnet-4-5", true),
        ("anthropic", true),
        ("openai/gpt-5", false),
        ("gemini/gemini-3.8-flash", true),
        ("openrouter/anthropic/claude", false),
    ];
    for (provider, own) in makers {
        let frame = Frame::new("anthropic/claude-opus-5", "conversation").falling_back_on(["gemini/gemini-2.5-pro"]);
        let mut woven = Woven::new(frame);
        woven.cast("look");
        let mut utterance = said(None, &[("toolu_1", "read", json!({})), ("toolu_2", "read", json!({}))]);
        utterance.parts = parts(provider);
        let both = Says::of(utterance).record(settled("toolu_1", "read", json!("a"))).record(settled(
            "toolu_2",
            "read",
            json!("b"),
        ));
        let turn = woven.turn(both);
        let list = woven.list();
        if own {
            assert!(list.contains("read#toolu_1{} read#toolu_2{} +parts\ntool toolu_1: a\ntool toolu_2: b"), "{list}");
        } else {
            let ids = (format!("{turn}_1"), format!("{turn}_2"));
            assert!(
                list.ends_with(&format!(
                    "assistant:  read#{0}{{}} read#{1}{{}}\ntool {0}: a\ntool {1}: b",
                    ids.0, ids.1
                ))
            );
        }
    }
}

#[test]
fn the_digest_of_lists_that_were_sent_without_what_was_signed_is_still_known() {
    // A list for another provider now is what this provider was sent then: without the parts, with our own ids.
    let [mut given, mut withheld] = ["anthropic/claude-opus-5", "openai/gpt-5"].map(|crystal| {
        let mut woven = Woven::new(Frame::new(crystal, "conversation"));
        woven.cast("look");
        woven.turn(Says::calls(&[("c0", "read", json!({}))]).record(settled("c0", "read", json!("before"))));
        let mut utterance = said(Some("I look."), &[("toolu_1", "read", json!({}))]);
        let maker = Maker::new("anthropic/claude-sonnet-4-5");
        utterance.parts = Some(ProviderParts { maker, parts: json!(["signed"]) });
        woven.turn(Says::of(utterance).record(settled("toolu_1", "read", json!("a"))));
        woven.turn(Says::calls(&[("c2", "read", json!({}))]).record(settled("c2", "read", json!("after"))));
        woven.read_back()
    });
    given.request().expect("calls and results fit");
    withheld.request().expect("calls and results fit");
    assert_ne!(given.digest(), withheld.digest());
    assert_eq!((given.former_digest(), withheld.former_digest()), (Some(withheld.digest()), None));
}

#[test]
fn a_result_without_its_call_is_refused_before_it_is_sent() {
    let call = |ids: &[&str]| {
        let calls: Vec<_> = ids.iter().map(|id| (*id, "read", json!({}))).collect();
        let utterance = said(None, &calls);
        Message::Assistant { content: None, calls: utterance.calls, parts: None }
    };
    let result = |id: &str| Message::Tool { tool_call_id: id.into(), gate: "read".into(), content: "x".into() };
    let user = || Message::User { content: "go on".into() };
    for fits in [vec![], vec![call(&["a", "b"]), result("a"), result("b"), user()], vec![user(), user()]] {
        assert_eq!(PairingCheck::check(&fits), Ok(()));
    }
    for broken in [
        vec![result("a")],
        vec![call(&["a"]), user(), result("a")],
        vec![call(&["a", "b"]), result("b"), result("a")],
        vec![call(&["a"]), result("a"), result("a")],
        vec![call(&["a", "b"]), result("a")],
        vec![call(&["a", "a"]), result("a"), result("a")],
    ] {
        let unpaired = PairingCheck::check(&broken).expect_err("it does not fit");
        assert!(unpaired.to_string().starts_with("tool result without matching tool call"));
        let guarded = testing::guarded(|rb| rb.error(unpaired.filled("scripted/test")));
        testing::assert_code(&guarded.reply, codes::CRYSTAL_REJECTED);
    }
}

#[test]
fn requests_share_their_messages() {
    let mut woven = Woven::conversation();
    woven.cast("look");
    let before = woven.live.request().expect("fits");
    woven.turn(Says::text("I think."));
    let after = woven.live.request().expect("fits");
    for at in 0..before.len() {
        assert!(std::ptr::eq(before.get(at).expect("there"), after.get(at).expect("there")));
    }
}

#[test]
fn the_digest_changes_with_every_message_and_with_nothing_else() {
    let (mut one, mut same, mut other) = (Woven::conversation(), Woven::conversation(), Woven::conversation());
    for (woven, intent) in [(&mut one, "look"), (&mut same, "look"), (&mut other, "look!")] {
        woven.cast(intent);
        woven.list();
    }
    assert_eq!(one.live.digest(), same.live.digest());
    assert_ne!(one.live.digest(), other.live.digest());
    let before = one.live.digest();
    one.turn(Says::text("I think."));
    assert_ne!(one.live.digest(), before);
    assert_eq!(one.live.branch().digest(), one.live.digest());
}

#[test]
fn the_estimate_goes_on_from_what_the_provider_counted() {
    let mut woven = Woven::conversation();
    woven.cast("look");
    // "You count." and "look": 4 + 10 / 3.3 and 4 + 4 / 3.3.
    assert_eq!(woven.live.estimate(), (4.0 + 10.0 / 3.3 + 4.0 + 4.0_f64 / 3.3).ceil() as u64);
    let long = "x".repeat(330);
    woven.turn(Says::calls(&[("c1", "read", json!({}))]).record(settled("c1", "read", json!(long))).tokens(1_000, 50));
    assert_eq!(woven.live.estimate(), 1_000 + 50 + 4 + 100);
    let plain = woven.live.estimate();
    woven.folded(0, "nothing is folded");
    assert!(woven.live.estimate() < plain, "after a fold all is estimated, times the ratio so far, at most 4");
}

/// One step of a random thread.
#[derive(Debug, Clone)]
enum Move {
    Cast(u8),
    GoOn,
    Text(bool),
    Calls(u8, bool),
    Seal(u8),
    /// A program that delegates this number of times.
    Program(u8),
    Fork(bool),
    /// The cast is cancelled, if it has no turn yet.
    Cancel,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        any::<u8>().prop_map(Move::Cast),
        Just(Move::GoOn),
        any::<bool>().prop_map(Move::Text),
        (1_u8..4, any::<bool>()).prop_map(|(calls, ends)| Move::Calls(calls, ends)),
        (1_u8..3).prop_map(Move::Seal),
        (0_u8..3).prop_map(Move::Program),
        any::<bool>().prop_map(Move::Fork),
        Just(Move::Cancel),
    ];
    proptest::collection::vec(one, 1..24)
}

fn act(woven: &mut Woven, step: &Move) {
    let truncated = |ends: bool| if ends { OUT_OF_TURNS } else { Closing::Open };
    match step {
        Move::Cast(n) => {
            woven.cast(&format!("intent {n}"));
        }
        Move::GoOn => {
            woven.go_on();
        }
        Move::Text(ends) => {
            woven.turn(Says::text("I think.").closing(truncated(*ends)));
        }
        Move::Calls(calls, ends) => {
            let ids: Vec<String> = (0..*calls).map(|n| format!("c{n}")).collect();
            let asked: Vec<_> = ids.iter().map(|id| (id.as_str(), "read", json!({}))).collect();
            let turn = Says::calls(&asked).closing(truncated(*ends)).tokens(100 + u64::from(*calls), 7);
            woven.turn(ids.iter().fold(turn, |turn, id| turn.record(settled(id, "read", json!(id)))));
        }
        Move::Seal(parts) => {
            let asked = Says::calls(&[("c1", "call_agent", json!({}))]);
            woven.turn(asked.record(delegated("c1", "call_agent")).sealed());
            for _ in 1..*parts {
                woven.turn(Says::continued().record(delegated("c1", "call_agent")).sealed());
            }
            woven.turn(Says::continued().record(settled("c1", "call_agent", json!("A"))));
        }
        Move::Program(delegations) => {
            let mut turn = Says::calls(&[("p1", "javascript", json!({"code": "go()"}))]);
            for n in 0..*delegations {
                let so_far = turn.output(output(Some("p1"), &[&format!("line {n}")], None));
                woven.turn(so_far.record(delegated("p1", "call_agent")).sealed());
                turn = Says::continued().record(settled("p1", "call_agent", json!("A")));
            }
            woven.turn(turn.output(output(Some("p1"), &[], Some("7"))));
        }
        Move::Fork(_) if woven.turns.is_empty() => {}
        Move::Fork(fresh) => {
            woven.fork(if *fresh { Environment::Fresh } else { Environment::Replay });
            woven.cast("another way");
            woven.turn(Says::text("I take it."));
        }
        Move::Cancel => {
            let answered = woven.turns.last().is_some_and(|turn| Some(turn.cast_id) == woven.last_cast());
            if !answered {
                woven.cancel();
                woven.cast("instead");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn each_request_begins_with_the_one_before_and_reads_back_the_same(steps in moves()) {
        let mut woven = Woven::conversation();
        woven.cast("the first intent");
        let mut before = String::new();
        for step in &steps {
            let begins = matches!(step, Move::Cast(_) | Move::GoOn | Move::Fork(_) | Move::Cancel);
            act(&mut woven, step);
            let list = woven.list();
            // The messages of a cast without a turn are removed when the next cast begins.
            if !begins {
                prop_assert!(list.starts_with(&before), "{before}\n---\n{list}");
            }
            before = list;
        }
    }

    #[test]
    fn what_is_exported_to_train_on_is_what_the_crystal_was_sent(steps in moves(), code in any::<bool>()) {
        let medium = if code { "javascript" } else { "conversation" };
        let mut woven = Woven::new(Frame::new("scripted/test", medium).prompted("You count."));
        woven.cast("the first intent");
        for step in &steps {
            act(&mut woven, step);
        }
        prop_assume!(woven.turns.last().is_some_and(|turn| Some(turn.cast_id) == woven.last_cast()));
        let told = render::messages(&woven.thread(), Some("You count."));
        let told: Vec<String> = told.iter().map(|(message, _)| woven::text(message)).collect();
        let told = told.join("\n");
        let sent = woven.list();
        // A text that waits for the next request has no nudge in the export yet.
        prop_assert!(sent == told || sent == format!("{told}\nuser: {}", render::NUDGE), "{sent}\n---\n{told}");
    }

    #[test]
    fn a_fork_from_any_turn_sees_what_was_there_then_and_its_intent(steps in moves()) {
        let mut woven = Woven::conversation();
        woven.cast("the first intent");
        let mut lists = Vec::new();
        for step in &steps {
            act(&mut woven, step);
            if woven.turns.len() > lists.len() {
                // Inside a group there is no list: the fork has its own messages there.
                lists.resize(woven.turns.len() - 1, None);
                lists.push(Some(shown(&woven.live.branch().request().expect("fits"))));
            }
        }
        let original = woven.live.digest();
        let casts: HashMap<_, _> = woven.casts.iter().map(|cast| (cast.cast.cast_id, cast)).collect();
        for (at, list) in lists.iter().enumerate() {
            let frame = Frame::new("scripted/test", "conversation").prompted("You count.");
            let mut fork = MessageList::along(frame, &woven.turns[..=at], &casts, &[]).expect("whole");
            let forked = shown(&fork.request().expect("fits"));
            match list {
                Some(list) => prop_assert_eq!(list, &forked),
                None => prop_assert!(forked.ends_with("[not run: forked here]")),
            }
        }
        prop_assert_eq!(woven.live.digest(), original);
    }
}
