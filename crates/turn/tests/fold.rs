//! Folding: when it happens, what it removes, and what it must never lose.

use crate::woven;

use cantrip_canon::FoldId;
use cantrip_loom::{Environment, Message, Strategy as By};
use cantrip_turn::fold::{FoldDraft, FoldOptions, RecallOptions, Trigger, window_text};
use cantrip_turn::list::{Frame, PairingCheck, TokenEstimator};
use proptest::prelude::*;
use serde_json::json;
use woven::{Says, TEXT, Woven, delegated, refused, said, settled, shown, text};

fn read(n: u64) -> Says {
    let id = format!("c{n}");
    Says::calls(&[(&id, "read", json!({ "n": n }))]).record(settled(&id, "read", json!(format!("text {n}"))))
}

/// Folds if a fold is due, as the loop does before a request.
fn fold_if_due(woven: &mut Woven, folding: FoldOptions, output_cap: u64) -> Option<FoldDraft> {
    let trigger = folding.trigger(&woven.live, output_cap)?;
    let plan = folding.plan(&woven.live, trigger)?;
    let made = match folding.strategy {
        By::Summary => FoldDraft::summary(&woven.live, plan, RecallOptions::default(), "notes"),
        By::Window | By::Selective => folding.make(&woven.live, plan, RecallOptions::default(), output_cap),
    };
    woven.fold(&made);
    assert_eq!(woven.live.estimate(), made.estimate_after, "what was foreseen is what is there");
    Some(made)
}

#[test]
fn with_three_the_fourth_request_carries_a_fold() {
    let folding = FoldOptions::after_turns(3);
    let mut woven = Woven::conversation();
    woven.cast("look");
    for n in 1..=3 {
        assert_eq!(fold_if_due(&mut woven, folding, 0), None);
        woven.turn(read(n));
    }
    let made = fold_if_due(&mut woven, folding, 0).expect("three groups stand unfolded");
    assert_eq!((made.plan.trigger, made.plan.from, made.plan.to), (Trigger::Turns, 1, 2));
    assert_eq!(
        woven.list(),
        "system: You count.\nuser: look\nuser: [Folded: turns 1-2] 2 turns are not shown. Gates: read x2.\n\
         assistant:  read#c3{\"n\":3}\ntool c3: text 3"
    );
    assert_eq!(fold_if_due(&mut woven, folding, 0), None);
}

#[test]
fn a_second_fold_takes_the_first_into_itself() {
    let folding = FoldOptions::after_turns(4);
    let mut woven = Woven::conversation();
    woven.cast("look");
    for n in 1..=7 {
        fold_if_due(&mut woven, folding, 0);
        woven.turn(if n == 2 {
            Says::calls(&[("c2", "read", json!({}))]).record(refused("c2", "read", "Invalid ..."))
        } else {
            read(n)
        });
    }
    fold_if_due(&mut woven, folding, 0);
    let list = woven.list();
    assert_eq!(list.matches("[Folded:").count(), 1, "{list}");
    assert!(list.contains("[Folded: turns 1-4] 4 turns are not shown. Gates: read x4 (1 failed)."), "{list}");
}

#[test]
fn the_window_text_says_what_was_done_and_what_can_be_done() {
    let mut woven = Woven::conversation();
    woven.cast("count the \"words\"");
    woven.turn(Says::text("I begin.\nNow."));
    woven.turn(read(2).closing(TEXT));
    woven.cast("and the lines");
    woven.turn(Says::calls(&[("c3", "write", json!({}))]).record(refused("c3", "write", "no")));
    woven.turn(read(4));
    let plan = FoldOptions::default().plan(&woven.live, Trigger::TooLong).expect("three groups can go");
    let text = window_text(&woven.live, &plan, RecallOptions { loom: true, variables: true });
    assert_eq!(
        text,
        "[Folded: turns 1-3] 3 turns are not shown. Earlier intents: \"count the \\\"words\\\"\". \
         Gates: read x1, write x1 (1 failed). Last said: \"I begin.\\nNow.\" Call loom to read them. \
         Variables are unchanged."
    );
    woven.folded(plan.to, &text);
    let list = woven.list();
    assert!(list.starts_with("system: You count.\nuser: and the lines\nuser: [Folded: turns 1-3]"), "{list}");
    assert!(list.ends_with("tool c4: text 4"));
}

#[test]
fn the_intent_of_a_cast_that_begins_after_a_fold_stays_where_it_is() {
    let mut woven = Woven::conversation();
    woven.cast("first");
    woven.turn(read(1));
    woven.turn(read(2).closing(TEXT));
    woven.cast("second");
    let plan = FoldOptions::default().plan(&woven.live, Trigger::TooLong).expect("one group can go");
    assert_eq!((plan.from, plan.to), (1, 1));
    let text = window_text(&woven.live, &plan, RecallOptions::default());
    woven.folded(plan.to, &text);
    let list = woven.list();
    assert!(
        list.starts_with("system: You count.\nuser: first\nuser: [Folded: turns 1-1] 1 turn is not shown."),
        "{list}"
    );
    assert!(list.ends_with("tool c2: text 2\nuser: second"), "{list}");
    // A cast without a turn is removed, folded or not.
    woven.cast("third");
    assert!(woven.list().ends_with("tool c2: text 2\nuser: third"));
}

fn windowed(window: u64) -> Woven {
    let measure = TokenEstimator { window: Some(window), ..TokenEstimator::default() };
    let mut woven = Woven::new(Frame::new("scripted/test", "conversation").measured(measure));
    woven.cast("look");
    woven
}

#[test]
fn the_window_folds_when_the_estimate_passes_its_share_or_leaves_no_room_to_answer() {
    for (tokens, output_cap, folds) in [
        (79_999, 1_000, false),
        (80_001, 1_000, true),
        // 100,000 - 30,000 for the answer - 10,000 of headroom.
        (59_999, 30_000, false),
        (60_001, 30_000, true),
    ] {
        let mut woven = windowed(100_000);
        woven.turn(read(1));
        // The answer itself is counted; the result after it is estimated at 4 + 6 / 3.3.
        woven.turn(read(2).tokens(tokens - 6, 0));
        let triggered = FoldOptions::default().trigger(&woven.live, output_cap);
        assert_eq!(triggered, folds.then_some(Trigger::Window), "{tokens} {output_cap}: {}", woven.live.estimate());
    }
    let mut unknown = Woven::conversation();
    unknown.cast("look");
    unknown.turn(read(1).tokens(9_000_000, 0));
    assert_eq!(FoldOptions::default().trigger(&unknown.live, 0), None);
}

#[test]
fn the_window_keeps_as_many_groups_as_fit_and_at_least_one() {
    let mut woven = windowed(10_000);
    for n in 1..=9 {
        let id = format!("c{n}");
        let long = "x".repeat(3_300 - 12);
        woven.turn(Says::calls(&[(&id, "read", json!({}))]).record(settled(&id, "read", json!(long))));
    }
    // About 1,010 tokens per group: two fit into 3,000.
    let plan = FoldOptions::default().plan(&woven.live, Trigger::Window).expect("most can go");
    assert_eq!((plan.to, plan.groups), (7, 7));
    let made = FoldDraft::window(&woven.live, plan, RecallOptions::default());
    assert!(made.estimate_before > 9_000 && made.estimate_after < 2_200, "{made:?}");

    let mut huge = windowed(1_000);
    huge.turn(read(1));
    huge.turn(Says::calls(&[("c2", "read", json!({}))]).record(settled("c2", "read", json!("x".repeat(60_000)))));
    assert_eq!(FoldOptions::default().plan(&huge.live, Trigger::Window).expect("one can go").to, 1);
    let mut single = windowed(1_000);
    single.turn(read(1));
    assert_eq!(FoldOptions::default().plan(&single.live, Trigger::Window), None);
}

#[test]
fn long_intents_count_in_what_is_kept_and_are_quoted_as_far_as_the_window_has_room() {
    let mut woven = windowed(1_000);
    woven.turn(Says::text("so be it").closing(TEXT));
    for n in 2..=6 {
        woven.cast(&format!("{n} {}", "x".repeat(660)));
        woven.turn(Says::text("so be it").closing(TEXT));
    }
    woven.cast("now");
    // About 210 tokens per intent: with its answer, one group fits into 300.
    let plan = FoldOptions::default().plan(&woven.live, Trigger::Window).expect("most can go");
    assert_eq!((plan.to, plan.groups), (5, 5));
    let made = FoldDraft::window(&woven.live, plan, RecallOptions::default());
    assert!(made.estimate_before > 1_000 && made.estimate_after < 500, "{made:?}");
    assert!(made.text.contains("\"look\", \"2 xxx") && !made.text.contains(&"x".repeat(100)), "{}", made.text);
    // A large window has room for all of them.
    let mut wide = windowed(100_000);
    wide.turn(Says::text("so be it").closing(TEXT));
    wide.cast(&"x".repeat(660));
    wide.turn(Says::text("so be it").closing(TEXT));
    wide.cast("now");
    wide.turn(Says::text("so be it").closing(TEXT));
    let plan = FoldOptions::default().plan(&wide.live, Trigger::TooLong).expect("two can go");
    assert!(window_text(&wide.live, &plan, RecallOptions::default()).contains(&"x".repeat(660)));
}

#[test]
fn selective_folding_shortens_results_again_and_again_and_ends_in_a_window() {
    let folding = FoldOptions::after_turns(4).with_strategy(By::Selective);
    let mut woven = Woven::new(Frame::new("scripted/test", "conversation").windowed(Some(6_000)));
    woven.cast("look");
    let mut strategies = Vec::new();
    for n in 1..=60_u64 {
        let id = format!("c{n}");
        let says = Says::of(said(Some(&format!("I look at {n}.")), &[(&id, "read", json!({}))]));
        woven.turn(says.record(settled(&id, "read", json!(format!("{n} {}", "word ".repeat(50))))));
        if let Some(made) = fold_if_due(&mut woven, folding, 500) {
            strategies.push(made.strategy);
            let list = woven.list();
            let marks = list.matches(&format!("[Folded: turns 1-{}] ", made.plan.to)).count();
            match made.strategy {
                // One mark for every visible folded result, and one for the text about removed results, if there are
                // any.
                By::Selective => {
                    let gone = woven.live.folded().turns.map_or(0, |(_, to)| to);
                    assert_eq!(marks as u64, made.plan.to - gone + u64::from(gone > 0), "{list}");
                    assert!(list.contains(&format!("assistant: I look at {}.", gone + 1)), "{list}");
                }
                By::Window | By::Summary => assert_eq!(marks, 1, "{list}"),
            }
        }
        assert!(woven.live.estimate() < 4_000, "{n}: {}", woven.live.estimate());
    }
    // Results are shortened until the utterances themselves fill the window; then those are folded too, and it starts
    // again.
    assert_eq!(strategies[0], By::Selective);
    let windows = strategies.iter().filter(|strategy| **strategy == By::Window).count();
    assert!((1..=6).contains(&windows), "{strategies:?}");
    let shrunk_after = strategies.iter().rposition(|strategy| *strategy == By::Selective);
    assert!(shrunk_after > strategies.iter().position(|strategy| *strategy == By::Window), "{strategies:?}");
}

#[test]
fn short_results_are_not_made_longer_by_being_shortened() {
    let mut woven = Woven::conversation();
    woven.cast("look");
    for n in 1..=3 {
        woven.turn(read(n));
    }
    let plan = FoldOptions::after_turns(3).plan(&woven.live, Trigger::Turns).expect("due");
    let made = FoldDraft::selective(&woven.live, plan, RecallOptions::default());
    assert_eq!(made.estimate_after, made.estimate_before);
    woven.fold(&made);
    assert!(woven.list().ends_with("tool c2: text 2\nassistant:  read#c3{\"n\":3}\ntool c3: text 3"));
    assert_eq!((woven.live.shrunk(), woven.live.unfolded()), (2, 1));
}

#[test]
fn a_fold_is_recorded_with_what_it_stands_for() {
    let mut woven = Woven::conversation();
    woven.cast("look");
    for n in 1..=3 {
        woven.turn(read(n));
    }
    let plan = FoldOptions::after_turns(3).plan(&woven.live, Trigger::Turns).expect("due");
    let made = FoldDraft::window(&woven.live, plan, RecallOptions::default());
    let id: FoldId = woven.id();
    let record = made.record(id, woven.entity, &mut Vec::new()).expect("it is short");
    assert_eq!(
        (record.from, record.to, record.strategy, record.degraded),
        (1, 2, cantrip_loom::Strategy::Window, false)
    );
    assert_eq!(Some(record.after), woven.turns.last().map(|turn| turn.id));
    assert!(record.estimate_before > 0 && record.attempt.is_none());
}

#[test]
fn a_fork_from_before_a_fold_sees_plain_turns() {
    let mut woven = Woven::conversation();
    woven.cast("look");
    for n in 1..=4 {
        woven.turn(read(n));
    }
    woven.folded(3, "[Folded: turns 1-3] ...");
    let casts = woven.casts.iter().map(|cast| (cast.cast.cast_id, cast)).collect();
    let frame = Frame::new("scripted/test", "conversation").prompted("You count.");
    let before = cantrip_turn::list::MessageList::along(frame, &woven.turns[..3], &casts, &woven.folds);
    let before = shown(&before.expect("whole").request().expect("fits"));
    assert!(!before.contains("Folded") && before.contains("text 1") && before.ends_with("text 3"), "{before}");
}

#[test]
fn a_fork_notice_of_a_kept_group_stays_before_it() {
    let mut woven = Woven::conversation();
    woven.cast("look");
    woven.turn(read(1));
    woven.fork(Environment::Fresh);
    woven.cast("again");
    woven.turn(read(2));
    woven.folded(1, "[Folded: turns 1-1] ...");
    assert_eq!(
        woven.list(),
        "system: You count.\nuser: again\nuser: [Folded: turns 1-1] ...\n\
         user: [environment: fresh; earlier variables are gone]\nassistant:  read#c2{\"n\":2}\ntool c2: text 2"
    );
}

/// Returns a result that is long enough to be shortened.
fn result(id: &str) -> String {
    format!("{id} {}", "word ".repeat(60))
}

#[derive(Debug, Clone)]
enum Move {
    Cast,
    GoOn,
    Text,
    Calls(u8),
    Delegate(u8),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        1 => Just(Move::Cast),
        1 => Just(Move::GoOn),
        3 => Just(Move::Text),
        6 => (1_u8..4).prop_map(Move::Calls),
        2 => (1_u8..4).prop_map(Move::Delegate),
    ];
    proptest::collection::vec(one, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_fold_loses_what_an_entity_needs(
        steps in moves(),
        after in proptest::option::of(2_u64..6),
        strategy in prop_oneof![Just(By::Window), Just(By::Summary), Just(By::Selective)],
        window in proptest::option::of(4_000_u64..9_000),
    ) {
        let folding = FoldOptions { trigger_after_turns: after, ..FoldOptions::default() }.with_strategy(strategy);
        let frame = Frame::new("scripted/test", "conversation").prompted("You count.").fenced("You may.");
        let mut woven = Woven::new(frame.windowed(window));
        let (mut casts, mut taken) = (1, 0);
        woven.cast("intent 1");
        let mut before = String::new();
        for (at, step) in steps.iter().enumerate() {
            match step {
                Move::Cast => {
                    casts += 1;
                    woven.cast(&format!("intent {casts}"));
                    before = String::new();
                }
                Move::GoOn => {
                    woven.go_on();
                }
                Move::Text => {
                    woven.turn(Says::text(&format!("words {at}")));
                }
                Move::Calls(calls) => {
                    let ids: Vec<String> = (0..*calls).map(|n| format!("c{at}_{n}")).collect();
                    let asked: Vec<_> = ids.iter().map(|id| (id.as_str(), "read", json!({}))).collect();
                    let turn = ids.iter().fold(Says::calls(&asked), |turn, id| {
                        turn.record(settled(id, "read", json!(result(id))))
                    });
                    // Some answers have a token count and some do not.
                    let tokens = if at % 3 == 0 { (0, 0) } else { (woven.live.estimate() + at as u64, 3) };
                    woven.turn(turn.tokens(tokens.0, tokens.1));
                }
                Move::Delegate(parts) => {
                    woven.turn(
                        Says::calls(&[("c", "call_agent", json!({"at": at}))]).record(delegated("c", "call_agent")).sealed(),
                    );
                    for _ in 1..*parts {
                        woven.turn(Says::continued().record(delegated("c", "call_agent")).sealed());
                    }
                    woven.turn(Says::continued().record(settled("c", "call_agent", json!(at))));
                }
            }
            let folded = fold_if_due(&mut woven, folding, 0).is_some();
            let list = woven.list();
            let messages = woven.live.request().expect("fits");
            // The system prompt and the capabilities come first, verbatim, and there are no other system messages.
            let system: Vec<String> =
                messages.iter().filter(|message| matches!(message, Message::System { .. })).map(text).collect();
            prop_assert_eq!(system, ["system: You count.", "system: You may."]);
            // The current intent is there exactly once, and at most one fold; a selective fold marks every place that
            // it cut.
            prop_assert_eq!(list.lines().filter(|line| *line == format!("user: intent {casts}")).count(), 1, "{}", list);
            let mut marks: Vec<&str> =
                list.split("[Folded: turns ").skip(1).map(|rest| rest.split(']').next().unwrap_or_default()).collect();
            prop_assert!(strategy == By::Selective || marks.len() <= 1, "{list}");
            marks.sort();
            marks.dedup();
            prop_assert!(marks.len() <= 1, "{marks:?}: {list}");
            prop_assert!(PairingCheck::check(messages.iter()).is_ok());
            // The newest message is there in full.
            match step {
                Move::Cast | Move::GoOn => {}
                Move::Text => {
                    let last = format!("assistant: words {at}\n");
                    prop_assert!(list.contains(&last), "{}", list);
                }
                Move::Calls(calls) => {
                    for n in 0..*calls {
                        let last = format!("tool c{at}_{n}: {}", result(&format!("c{at}_{n}")));
                        prop_assert!(list.contains(&last), "{}", list);
                    }
                }
                Move::Delegate(_) => {
                    let last = format!("tool c: {at}");
                    prop_assert!(list.ends_with(&last), "{}", list);
                }
            }
            if !folded {
                prop_assert!(list.starts_with(&before), "{before}\n---\n{list}");
            }
            // Only new messages are hashed and measured, and after a fold the remaining ones.
            let stayed = if folded { messages.len() as u64 } else { 0 };
            let new = std::mem::replace(&mut taken, woven.live.measured_messages()).abs_diff(taken);
            prop_assert!(new <= 10 + stayed, "{new} messages were looked at");
            before = list;
        }
    }
}
