//! Folds in the loop: which crystal writes them, how that can fail, and what an entity still has after them.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

use crate::support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cantrip::OwnThreadReader;
use cantrip::events::Channel;
use cantrip::fold::FoldOptions;
use cantrip::list::MessageList;
use cantrip::{Call, Cantrip, CantripBuilder, CastOptions, ForkOptions, Runtime};
use cantrip_canon::{RunId, TurnId};
use cantrip_circle::MediumKind;
use cantrip_circle::gate::builtin;
use cantrip_crystal::{
    Answer, Crystal, EventSink, Failure, Messages, Profile, ProfileRow, RecordedRequest, Request, Response,
    RetryPolicy, ScriptedCrystal, ScriptedError,
};
use cantrip_loom::{
    AnyLoom, Attempt, CallSettled, Caller, Event, FoldView, Journal, Loom, MemoryLoom, Message, Seq, Strategy, Thread,
    TruncationReason, Usage,
};
use cantrip_medium_javascript::{Javascript, Options};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use futures_util::TryStreamExt;
use serde_json::json;
use support::{Count, Dying, call, counting_again, done, house_of, memory, script, talking, woven};

fn echo(n: u64) -> Response {
    call("echo", json!({ "text": format!("text {n}") })).with_usage(usage(100, 10))
}

fn usage(prompt_tokens: u64, completion_tokens: u64) -> Usage {
    Usage { prompt_tokens, completion_tokens, ..Usage::default() }
}

fn summary(after: u64) -> FoldOptions {
    FoldOptions::after_turns(after).with_strategy(Strategy::Summary)
}

fn text(message: &Message) -> String {
    match message {
        Message::System { content } | Message::User { content } | Message::Tool { content, .. } => content.text(),
        Message::Assistant { content, calls, .. } => {
            let said = content.as_ref().map(|content| content.text()).unwrap_or_default();
            said + &calls.iter().map(|call| format!("{}{}", call.gate, call.args)).collect::<String>()
        }
    }
}

fn texts(messages: &Messages) -> Vec<String> {
    messages.iter().map(text).collect()
}

fn fold_shown(input: &RecordedRequest) -> Option<String> {
    texts(&input.messages).into_iter().find(|text| text.starts_with("[Folded: turns "))
}

async fn folds(runtime: &Runtime, leaf: TurnId) -> Vec<FoldView> {
    runtime.loom().folds(leaf).await.unwrap()
}

/// Returns the requests for folds of a run, and their outcomes.
async fn asked_for_folds(runtime: &Runtime, run: RunId) -> (Vec<Attempt>, Vec<CallSettled>) {
    let records: Vec<cantrip_loom::Record> = runtime.loom().read(run, Seq::START).try_collect().await.unwrap();
    let (mut attempts, mut settled) = (Vec::new(), Vec::new());
    let of_fold = |call: cantrip_loom::CallId| matches!(call.caller(), Caller::Fold(_));
    for event in records.iter().map(|record| record.event().unwrap()) {
        if let Event::Attempt(attempt) = event {
            attempts.extend(Some(attempt).filter(|attempt| of_fold(attempt.call_id)));
        } else if let Event::Settled(call) = event {
            settled.extend(Some(call).filter(|call| of_fold(call.call_id)));
        }
    }
    (attempts, settled)
}

#[tokio::test(start_paused = true)]
async fn a_crystal_of_its_own_writes_the_fold_and_no_turn_pays_for_it() {
    let crystal = script((1..=5).map(echo).chain([done("over").with_usage(usage(100, 10))]));
    let notes = script([
        Response::text("the words are counted").with_usage(usage(1_000, 50)),
        Response::text("and the lines").with_usage(usage(2_000, 60)),
    ]);
    let (channel, mut seen) = Channel::new();
    let runtime = memory().with_watcher(channel);
    let cantrip = talking(&crystal).folding(summary(3)).folding_crystal(notes.clone()).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
    let outcome = cast.outcome.as_ref().unwrap();

    let shown: Vec<_> = crystal.requests().iter().map(fold_shown).collect();
    let first = "[Folded: turns 1-2] the words are counted".to_owned();
    let second = "[Folded: turns 1-4] and the lines".to_owned();
    assert_eq!(shown, [None, None, None, Some(first.clone()), Some(first.clone()), Some(second)]);
    let made = folds(&runtime, outcome.leaf.unwrap()).await;
    let of: Vec<_> = made.iter().map(|made| (made.fold.strategy, made.fold.degraded, made.fold.to)).collect();
    assert_eq!(of, [(Strategy::Summary, false, 2), (Strategy::Summary, false, 4)]);

    // Each fold had its own attempt, recorded before and after; the fold names it.
    let (attempts, settled) = asked_for_folds(&runtime, cast.run.unwrap()).await;
    let ids: Vec<String> = attempts.iter().map(|attempt| attempt.call_id.to_string()).collect();
    assert_eq!(ids, made.iter().map(|made| format!("{}:1", made.fold.fold_id)).collect::<Vec<_>>());
    assert_eq!(
        made.iter().map(|made| made.fold.attempt).collect::<Vec<_>>(),
        [Some(attempts[0].call_id), Some(attempts[1].call_id)]
    );
    assert!(settled.iter().all(|call| call.reply.is_success() && call.usage.is_some()));

    // The cast paid for the folds, and no turn did.
    assert_eq!((outcome.usage.prompt_tokens, outcome.usage.completion_tokens), (6 * 100 + 3_000, 6 * 10 + 110));
    let thread = runtime.loom().thread(outcome.leaf.unwrap()).await.unwrap();
    assert!(thread.turns.iter().all(|turn| (turn.metadata.tokens_prompt, turn.metadata.attempts) == (100, 1)));
    assert_eq!(outcome.turns, 6);

    // The writer read the folded turns, and the text of the earlier fold.
    let read: Vec<String> = notes.requests().iter().map(|input| texts(&input.messages).join("\n")).collect();
    assert!(
        read[0].contains("The task: count") && read[0].contains("text 1") && read[0].contains("text 2"),
        "{}",
        read[0]
    );
    assert!(!read[0].contains("text 3"), "{}", read[0]);
    assert!(read[1].contains(&first) && read[1].contains("text 3") && !read[1].contains("text 1"), "{}", read[1]);
    assert!(notes.requests().iter().all(|input| input.definitions.is_empty()));

    // No watcher was shown the summary.
    while let Ok(event) = seen.try_recv() {
        let event = serde_json::to_string(&event).unwrap();
        assert!(!event.contains("the words are counted") && !event.contains("fold_"), "{event}");
    }
    assert_code(runtime.replay(&cantrip, outcome.leaf.unwrap()).await.reply(), codes::VERIFIED);
    assert_eq!(notes.remaining(), 0, "a replay asks nobody");
}

#[tokio::test(start_paused = true)]
async fn the_own_crystal_writes_folds_where_no_other_is_named() {
    let crystal = script([echo(1), echo(2), Response::text("notes"), done("over")]);
    let runtime = memory();
    let cantrip = talking(&crystal).folding(summary(2)).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
    let made = folds(&runtime, cast.outcome.unwrap().leaf.unwrap()).await;
    assert_eq!((made.len(), made[0].text.as_str()), (1, "[Folded: turns 1-1] notes"));
}

/// A script with a window of this many tokens.
struct Narrow(ScriptedCrystal, u64);

impl Crystal for Narrow {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn profile(&self) -> Profile {
        Profile { window: Some(self.1), ..Profile::default() }
    }
    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        self.0.ask(request, heard).await
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_longer_than_the_writers_window_is_read_in_pieces() {
    let words = |n: u64| format!("<{n}> {} </{n}>", "word ".repeat(800));
    let crystal = script((1..=3).map(|n| call("echo", json!({ "text": words(n) }))).chain([done("over")]));
    let notes = script((1..=9).map(|n| Response::text(format!("notes {n}")).with_usage(usage(10, 1))));
    let runtime = memory();
    let cantrip = talking(&crystal).folding(summary(3)).folding_crystal(Narrow(notes.clone(), 4_000)).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
    let outcome = cast.outcome.as_ref().unwrap();
    let inputs = notes.requests();
    assert!(inputs.len() >= 2, "{}", inputs.len());
    let made = folds(&runtime, outcome.leaf.unwrap()).await;
    assert_eq!(made[0].text, format!("[Folded: turns 1-2] notes {}", inputs.len()));
    let mut record = String::new();
    for (at, input) in inputs.iter().enumerate() {
        let read = texts(&input.messages).join("\n");
        assert!(read.len() < 4_000 * 3, "{} bytes do not fit 4,000 tokens", read.len());
        // Each piece is read together with the summary of the earlier pieces.
        assert_eq!(read.contains(&format!("notes {at}")), at > 0);
        let (_, piece) = read.split_once("<turns>\n").unwrap();
        record.push_str(piece.split_once("</turns>").unwrap().0);
    }
    assert!(
        record.contains(&words(1)) && record.contains(&words(2)) && !record.contains("<3>"),
        "nothing is lost between pieces"
    );
    let (attempts, settled) = asked_for_folds(&runtime, cast.run.unwrap()).await;
    let numbers: Vec<u32> = attempts.iter().map(|attempt| attempt.call_id.number()).collect();
    assert_eq!(numbers, (1..=u32::try_from(inputs.len()).unwrap()).collect::<Vec<_>>());
    assert_eq!(settled.len(), inputs.len());
    assert_eq!(outcome.usage.prompt_tokens, 10 * inputs.len() as u64);
}

fn failing(error: ScriptedError) -> Response {
    Response { error: Some(error), usage: Some(usage(700, 0)), ..Response::default() }
}

#[tokio::test(start_paused = true)]
async fn whatever_goes_wrong_with_a_summary_a_window_takes_its_place() {
    let too_long = ScriptedError::ContextTooLong { tokens: None, window: None };
    for (name, said) in [
        ("rejected", failing(ScriptedError::Status { status: 400, message: "no".into(), retry_after: None })),
        ("refused", failing(ScriptedError::Refused { message: "no".into() })),
        ("too long", failing(too_long)),
        ("blank", Response::text(" \n").with_usage(usage(700, 0))),
        ("a call", call("echo", json!({"text": "?"})).with_usage(usage(700, 0))),
    ] {
        let crystal = script((1..=3).map(echo).chain([done("over")]));
        let runtime = memory();
        let cantrip = talking(&crystal).folding(summary(3)).folding_crystal(script([said])).build().unwrap();
        let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
        assert_eq!(cast.answer(), Some(&json!("over")), "{name}: {:?}", cast.reply());
        let outcome = cast.outcome.as_ref().unwrap();
        let made = folds(&runtime, outcome.leaf.unwrap()).await;
        let (attempts, settled) = asked_for_folds(&runtime, cast.run.unwrap()).await;
        assert_eq!((made.len(), attempts.len(), settled.len()), (1, 1, 1), "{name}");
        let fold = &made[0].fold;
        assert_eq!((fold.strategy, fold.degraded, fold.attempt), (Strategy::Window, true, Some(attempts[0].call_id)));
        assert!(made[0].text.starts_with("[Folded: turns 1-2] 2 turns are not shown. Gates: echo x2."), "{name}");
        assert!(!settled[0].reply.is_success(), "{name}");
        // Reported usage is paid for, even if the summary failed.
        assert_eq!(
            outcome.usage.prompt_tokens,
            300 + settled[0].usage.map_or(0, |usage| usage.prompt_tokens),
            "{name}"
        );
        assert_code(runtime.replay(&cantrip, outcome.leaf.unwrap()).await.reply(), codes::VERIFIED);
    }
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_is_down_for_a_moment_is_asked_again() {
    let crystal = script((1..=3).map(echo).chain([done("over")]));
    let runtime = memory();
    let down = || Response::error(503, "down");
    let notes = script([down(), Response::text("notes")]);
    let cantrip = talking(&crystal).folding(summary(3)).folding_crystal(notes).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
    let made = folds(&runtime, cast.outcome.as_ref().unwrap().leaf.unwrap()).await;
    assert_eq!((made[0].fold.degraded, made[0].text.as_str()), (false, "[Folded: turns 1-2] notes"));
    let (attempts, _) = asked_for_folds(&runtime, cast.run.unwrap()).await;
    assert_eq!(attempts.iter().map(|attempt| attempt.number).collect::<Vec<_>>(), [1, 2]);

    // A writer that stays unavailable does not park the run.
    let crystal = script((1..=3).map(echo).chain([done("over")]));
    let retry = RetryPolicy { max_retries: 1, ..RetryPolicy::default() };
    let cantrip =
        talking(&crystal).retry(retry).folding(summary(3)).folding_crystal(script([down(), down()])).build().unwrap();
    let runtime = memory();
    let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
    assert!(folds(&runtime, cast.outcome.unwrap().leaf.unwrap()).await[0].fold.degraded);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_a_cast_whose_fold_is_being_written() {
    let crystal = script((1..=3).map(echo).chain([done("over")]));
    let slow = Response { delay: Duration::from_secs(60), ..Response::text("too late") };
    let cantrip =
        talking(&crystal).folding(summary(3)).folding_crystal(script([slow])).ward("timeout", "10s").build().unwrap();
    let runtime = memory();
    let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
    assert_eq!(cast.reason(), Some(TruncationReason::Timeout));
    let (attempts, settled) = asked_for_folds(&runtime, cast.run.unwrap()).await;
    assert_eq!((attempts.len(), settled.len()), (1, 1), "what was given up is settled");
    assert_eq!(settled[0].reply.code, codes::WARD_REACHED.any().as_str());
    assert_eq!(folds(&runtime, cast.outcome.unwrap().leaf.unwrap()).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_tokens_that_has_no_room_for_a_summary_folds_without_one() {
    let crystal = script((1..=3).map(echo).chain([done("over")]));
    let notes = script([Response::text("notes")]);
    let cantrip = talking(&crystal)
        .call(Call::new().max_tokens(50))
        .folding(summary(3))
        .folding_crystal(notes.clone())
        .ward("max_tokens", 1_000)
        .build()
        .unwrap();
    let runtime = memory();
    let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
    let made = folds(&runtime, cast.outcome.unwrap().leaf.unwrap()).await;
    assert_eq!((made[0].fold.degraded, made[0].fold.attempt, notes.request_count()), (true, None, 0));
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_too_long_is_summarised_to_its_last_group_in_the_same_turn() {
    let too_long = || failing(ScriptedError::ContextTooLong { tokens: Some(9_000), window: Some(8_000) });
    let crystal = script([echo(1), echo(2), echo(3), too_long(), done("shorter")]);
    let runtime = memory();
    let folding = FoldOptions::default().with_strategy(Strategy::Summary);
    let notes = script([Response::text("notes")]);
    let cantrip = talking(&crystal).folding(folding).folding_crystal(notes).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
    assert_eq!(cast.answer(), Some(&json!("shorter")), "{:?}", cast.reply());
    let outcome = cast.outcome.unwrap();
    let thread = runtime.loom().thread(outcome.leaf.unwrap()).await.unwrap();
    assert_eq!((thread.turns.len(), thread.turns[3].metadata.attempts), (4, 2));
    assert_eq!((thread.folds.len(), thread.folds[0].text.as_str()), (1, "[Folded: turns 1-2] notes"));
    assert_eq!(fold_shown(crystal.requests().last().unwrap()).as_deref(), Some("[Folded: turns 1-2] notes"));
    assert_code(runtime.replay(&cantrip, thread.leaf).await.reply(), codes::VERIFIED);

    // Folding for length happens once per turn: the second time ends the cast, and the earlier turns are kept.
    let crystal = script([echo(1), echo(2), too_long(), too_long()]);
    let cantrip = talking(&crystal).build().unwrap();
    let runtime = memory();
    let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
    assert_code(cast.reply(), codes::CONTEXT_TOO_LONG);
    assert_eq!(cast.outcome.unwrap().turns, 2);
    // With nothing to fold there is no second attempt.
    let crystal = script([echo(1), too_long(), done("never")]);
    let cantrip = talking(&crystal).build().unwrap();
    assert_code(memory().cast(&cantrip, CastOptions::on("count")).await.reply(), codes::CONTEXT_TOO_LONG);
    assert_eq!(crystal.remaining(), 1);
}

fn windowed(window: u64) -> ProfileRow {
    ProfileRow { window: Some(window), ..ProfileRow::default() }
}

#[tokio::test(start_paused = true)]
async fn a_known_window_folds_before_it_is_full() {
    let long = "word ".repeat(400);
    let says = |n: u64| call("echo", json!({ "text": format!("{n} {long}") }));
    let crystal = script((1..=9).map(says).chain([done("over")]));
    let runtime = memory();
    let cantrip = talking(&crystal).profile(windowed(8_000)).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
    let made = folds(&runtime, cast.outcome.as_ref().unwrap().leaf.unwrap()).await;
    assert!(!made.is_empty());
    for input in crystal.requests() {
        let bytes: usize = texts(&input.messages).iter().map(String::len).sum();
        assert!(bytes as f64 / 3.3 < 0.8 * 8_000.0, "{bytes} bytes are too long for 8,000 tokens and an answer");
    }
    // The window that an entity was created with is recorded, and stays valid for it whatever is known later.
    let thread = runtime.loom().thread(cast.outcome.unwrap().leaf.unwrap()).await.unwrap();
    assert_eq!(thread.entity.entity.window, Some(8_000));
    let wider = talking(&crystal).profile(windowed(64_000)).build().unwrap();
    assert_eq!(wider.id(), cantrip.id());
    assert_code(runtime.replay(&wider, thread.leaf).await.reply(), codes::VERIFIED);
}

#[tokio::test(start_paused = true)]
async fn a_last_result_longer_than_the_window_is_cut_in_view_and_whole_in_the_loom() {
    let long = "0123456789".repeat(2_000);
    let short = || json!({"text": "short"});
    let both = Response::call("a", "echo", json!({ "text": long })).and_call("b", "echo", short());
    let crystal = script([both, done("over")]);
    let runtime = memory();
    let cantrip = talking(&crystal).profile(windowed(4_000)).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
    let inputs = crystal.requests();
    let shown = texts(&inputs[1].messages);
    let (cut, whole) = (&shown[shown.len() - 2], &shown[shown.len() - 1]);
    // 4,000 bytes for both; the short result leaves 3,995.
    assert!(cut.starts_with("0123456789") && cut.ends_with("\n[cut: 3995 of 20000 bytes are shown]"), "{cut}");
    assert_eq!(whole, "short");
    let thread = runtime.loom().thread(cast.outcome.unwrap().leaf.unwrap()).await.unwrap();
    let record = serde_json::to_value(&thread.turns[0].gate_calls[0].args).unwrap();
    assert_eq!(record["text"], json!(long));
    assert_code(runtime.replay(&cantrip, thread.leaf).await.reply(), codes::VERIFIED);
}

#[tokio::test(start_paused = true)]
async fn selective_folding_leaves_what_was_said_and_shortens_what_came_back() {
    let long = "word ".repeat(100);
    let says = |n: u64| Response {
        content: Some(format!("I look at {n}.")),
        ..call("echo", json!({ "text": format!("{n} {long}") }))
    };
    let crystal = script((1..=8).map(says).chain([done("over")]));
    let runtime = memory();
    let folding = FoldOptions::after_turns(4).with_strategy(Strategy::Selective);
    let cantrip = talking(&crystal).folding(folding).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
    let inputs = crystal.requests();
    let last = texts(&inputs.last().unwrap().messages);
    for n in 1..=8 {
        assert!(last.iter().any(|text| text.starts_with(&format!("I look at {n}."))), "{last:?}");
    }
    let shrunk: Vec<&String> =
        last.iter().filter(|text| text.starts_with("[Folded: turns 1-6] echo: 502 bytes, starts \"")).collect();
    assert_eq!(shrunk.len(), 6, "{last:?}");
    assert!(shrunk[2].contains("starts \"3 word word"));
    assert_eq!(last.iter().filter(|text| text.contains("[Folded: turns 1-4]")).count(), 0, "one fold stands");
    let thread = runtime.loom().thread(cast.outcome.unwrap().leaf.unwrap()).await.unwrap();
    assert!(thread.folds.iter().all(|made| made.fold.strategy == Strategy::Selective && !made.fold.degraded));
    assert_code(runtime.replay(&cantrip, thread.leaf).await.reply(), codes::VERIFIED);
}

/// Gives the same answer at the same place of a thread, like a model after a crash. Its summaries depend on the folded
/// text.
struct Steady {
    turns: u64,
    inputs: Mutex<Vec<Messages>>,
}

impl Crystal for Steady {
    fn name(&self) -> &str {
        "scripted/steady"
    }
    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        let response = match request.caller.request.caller() {
            Caller::Fold(_) => {
                let read = texts(&request.messages).join("\n");
                Response::text(format!("notes on {} bytes", read.len()))
            }
            Caller::Turn(_) => {
                self.inputs.lock().unwrap().push(request.messages.clone());
                match request.utterances {
                    said if said < self.turns => call("count", json!({ "n": said })),
                    _ => done("over"),
                }
            }
        };
        script([response.with_usage(usage(50, 5))]).ask(request, heard).await
    }
}

fn steady(turns: u64, count: &Count) -> CantripBuilder {
    let crystal = Steady { turns, inputs: Mutex::default() };
    talking(&script([])).crystal(crystal).gate(counting_again("count", count)).ward("max_turns", 20)
}

#[tokio::test(start_paused = true)]
async fn a_run_killed_at_any_place_of_a_fold_folds_again_and_comes_to_the_same_end() {
    for strategy in [Strategy::Summary, Strategy::Selective, Strategy::Window] {
        let spell = || {
            steady(5, &Count::default()).folding(FoldOptions::after_turns(3).with_strategy(strategy)).build().unwrap()
        };
        let store = Dying::after(AnyLoom::new(MemoryLoom::new()), u64::MAX);
        let runtime = house_of(AnyLoom::new(store.clone()), 1);
        let cantrip = spell();
        let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
        assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
        let wanted = woven(&runtime, cantrip.loom_id()).await;
        let outcome = cast.outcome.unwrap();
        let texts_of = |made: &[FoldView]| made.iter().map(|made| made.text.clone()).collect::<Vec<_>>();
        let folded = texts_of(&folds(&runtime, outcome.leaf.unwrap()).await);
        assert!(folded.len() >= 2);
        for dies_after in 1..store.taken() {
            let memory = AnyLoom::new(MemoryLoom::new());
            let dying = house_of(AnyLoom::new(Dying::after(memory.clone(), dies_after)), 1);
            let cantrip = spell();
            let died = dying.cast(&cantrip, CastOptions::on("count")).await;
            assert_code(died.reply(), codes::STORE_UNAVAILABLE);
            tokio::time::sleep(Duration::from_secs(60)).await;
            let heir = house_of(memory, 2);
            let cast = heir.resume(&cantrip, died.run.unwrap()).await;
            let place = format!("{strategy:?}, dead after {dies_after}");
            assert_eq!(cast.answer(), Some(&json!("over")), "{place}: {:?}", cast.reply());
            assert_eq!(woven(&heir, cantrip.loom_id()).await, wanted, "{place}");
            let outcome = cast.outcome.unwrap();
            let leaf = outcome.leaf.unwrap();
            assert_eq!(texts_of(&folds(&heir, leaf).await), folded, "{place}");
            // A worker that was killed during a request may have been charged; reported usage is counted once.
            let (attempts, settled) = asked_for_folds(&heir, died.run.unwrap()).await;
            assert!(attempts.len() - settled.len() <= 1, "{place}");
            let opened = 6 * 55;
            assert_eq!(outcome.usage.total_tokens(), opened + 55 * settled.len() as u64, "{place}");
            assert_code(heir.replay(&cantrip, leaf).await.reply(), codes::VERIFIED);
        }
    }
}

fn coding(crystal: &ScriptedCrystal) -> CantripBuilder {
    Cantrip::builder()
        .crystal(crystal.clone())
        .medium(MediumKind::Javascript)
        .serve_medium(Arc::new(Javascript::start(Options::default()).unwrap()))
        .gate(builtin::done())
        .gate(builtin::echo())
        .ward("max_turns", 20)
}

#[tokio::test]
async fn after_folds_in_code_variables_are_there_and_the_loom_reads_what_is_folded() {
    let store = AnyLoom::new(MemoryLoom::new());
    let runtime = house_of(store.clone(), 3);
    let crystal = script([
        Response::code("var secret = echo('first')"),
        Response::code("var n = 1"),
        Response::code("n += 1"),
        Response::code("n += 1"),
        Response::code("var seen = loom({turn: 1}); [secret, n, loom().total, seen.calls[0].result]"),
        Response::code("done([secret, n, seen.said])"),
        Response::code("done([secret, n])"),
    ]);
    let cantrip = coding(&crystal)
        .gate(builtin::loom(OwnThreadReader::new(store)))
        .folding(FoldOptions::after_turns(3))
        .build()
        .unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
    let answer = cast.answer().unwrap_or_else(|| panic!("{:?}", cast.reply())).clone();
    assert_eq!((&answer[0], &answer[1]), (&json!("first"), &json!(3)));
    assert!(answer[2].as_str().unwrap().contains("var secret"), "{answer}");
    let inputs = crystal.requests();
    let shown = fold_shown(&inputs[4]).expect("folded");
    assert!(shown.contains("Call loom to read them.") && shown.ends_with("Variables are unchanged."), "{shown}");
    assert!(!texts(&inputs[4].messages).join("\n").contains("first"));
    let observed = texts(&inputs[5].messages).join("\n");
    assert!(observed.contains(r#"=> ["first",3,4,"first"]"#) || observed.contains("first"), "{observed}");

    // A fork from before the fold sees plain turns, and has the variables of that turn.
    let thread = runtime.loom().thread(cast.outcome.unwrap().leaf.unwrap()).await.unwrap();
    let before = thread.turns[1].id;
    let fork = runtime.fork(&cantrip, before, ForkOptions::on("another way")).await;
    assert_eq!(fork.answer(), Some(&json!(["first", 1])), "{:?}", fork.reply());
    let list = crystal.requests().last().unwrap().messages.clone();
    assert_eq!(fold_shown(&RecordedRequest { messages: list.clone(), ..inputs[0].clone() }), None);
    assert!(texts(&list).join("\n").contains("var secret = echo('first')"));
    assert_code(runtime.replay(&cantrip, thread.leaf).await.reply(), codes::VERIFIED);
}

#[tokio::test]
async fn capabilities_are_in_every_request_also_after_a_fold_and_a_missing_prompt_adds_nothing() {
    for code in [false, true] {
        let says =
            |n: u64| if code { Response::code(format!("echo({n})")) } else { call("echo", json!({ "text": n })) };
        let ends = if code { Response::code("done(1)") } else { done(1) };
        let crystal = script((1..=5).map(says).chain([ends]));
        let builder = if code { coding(&crystal) } else { talking(&crystal) };
        let cantrip = builder.folding(FoldOptions::after_turns(2)).build().unwrap();
        let cast = memory().cast(&cantrip, CastOptions::on("count")).await;
        assert_eq!(cast.answer(), Some(&json!(1)), "{:?}", cast.reply());
        let inputs = crystal.requests();
        assert!(inputs.iter().filter(|input| fold_shown(input).is_some()).count() >= 3);
        for input in &inputs {
            let messages: Vec<&Message> = input.messages.iter().collect();
            let told: Vec<String> = texts(&input.messages);
            assert!(told.iter().all(|text| !text.is_empty()), "{told:?}");
            let system = messages.iter().filter(|message| matches!(message, Message::System { .. })).count();
            let names: Vec<&str> = input.definitions.iter().map(|definition| definition.name.as_str()).collect();
            if code {
                assert_eq!((system, names), (0, vec!["javascript"]));
                assert!(input.definitions[0].description.contains("echo"));
            } else {
                assert_eq!((system, names), (0, vec!["done", "echo"]));
            }
            assert!(told.iter().any(|text| text == "count"), "the intent is in every request");
        }
    }
}

/// Answers every entity by the number of its earlier answers: some turns, a child now and then, and the end.
struct Family;

impl Crystal for Family {
    fn name(&self) -> &str {
        "scripted/family"
    }
    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        let child = request.caller.spawned_by.is_some();
        let response = match (child, request.utterances) {
            (true, 0) | (false, 0 | 2 | 3) => call("echo", json!({ "text": request.utterances })),
            (false, 1) => call("call_agent", json!({"intent": "look closer"})),
            (_, said) => done(said),
        };
        script([response]).ask(request, heard).await
    }
}

fn without_turn(digest_of: &Thread) -> String {
    serde_json::to_string(&json!({
        "turns": digest_of.turns.iter().map(|turn| (turn.id, turn.utterance_text(), turn.gate_calls.len())).collect::<Vec<_>>(),
        "folds": digest_of.folds.iter().map(|fold| (&fold.text, fold.fold.to)).collect::<Vec<_>>(),
        "casts": digest_of.casts.iter().map(|cast| cast.cast.cast_id).collect::<Vec<_>>(),
    }))
    .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_fork_at_any_turn_begins_with_the_list_of_that_turn_and_leaves_the_original_alone() {
    let runtime = memory();
    let family = || talking(&script([])).gate(builtin::call_agent());
    let cantrip = family().crystal(Family).folding(FoldOptions::after_turns(3)).build().unwrap();
    let entity = runtime.summon(&cantrip, None).await.unwrap();
    let mut leaf = None;
    for intent in ["first", "second", "third"] {
        let cast = entity.send(intent).await;
        assert_eq!(cast.answer(), Some(&json!(4)), "{:?}", cast.reply());
        leaf = cast.outcome.unwrap().leaf;
    }
    let thread = runtime.loom().thread(leaf.unwrap()).await.unwrap();
    assert_eq!((thread.turns.len(), thread.casts.len()), (18, 3));
    assert!(thread.folds.len() >= 4);
    let original = without_turn(&thread);
    for turn in &thread.turns {
        let shared = runtime.loom().thread(turn.id).await.unwrap();
        let mut wanted = MessageList::of(cantrip.frame(None), &shared).unwrap();
        let tape = script([done("forked")]);
        // The fork does not fold before its first request.
        let other = family().crystal(tape.clone()).build().unwrap();
        let fork = runtime.fork(&other, turn.id, ForkOptions::on("another way")).await;
        assert_eq!(fork.answer(), Some(&json!("forked")), "turn {}: {:?}", turn.sequence, fork.reply());
        let shown = texts(&tape.requests()[0].messages);
        let mut expected = texts(&wanted.request().unwrap());
        // The nudge to continue belongs to the earlier cast.
        expected.retain(|text| !text.starts_with("Continue. "));
        expected.push("another way".to_owned());
        assert_eq!(shown, expected, "turn {}", turn.sequence);
        // Nothing of the later turns is shown, and at most one fold.
        assert!(shown.iter().filter(|text| text.starts_with("[Folded: ")).count() <= 1);
        let folded = thread.folds.iter().filter(|made| made.fold.after > turn.id).map(|made| &made.text);
        assert!(
            folded.into_iter().all(|later| !shown.contains(later) || shared.folds.iter().any(|own| own.text == *later))
        );
        let leaf = fork.outcome.unwrap().leaf.unwrap();
        assert_code(runtime.replay(&other, leaf).await.reply(), codes::VERIFIED);
        assert_eq!(
            without_turn(&runtime.loom().thread(thread.leaf).await.unwrap()),
            original,
            "the original stays as it was"
        );
    }
    assert_code(runtime.replay(&cantrip, thread.leaf).await.reply(), codes::VERIFIED);
}

#[tokio::test(start_paused = true)]
async fn a_cast_that_goes_on_without_an_intent_begins_with_the_list_it_was_cut_off_from() {
    let runtime = memory();
    let tape = script((1..=7).map(echo));
    let cantrip = talking(&tape).ward("max_turns", 5).folding(FoldOptions::after_turns(3)).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
    assert_eq!(cast.reason(), Some(TruncationReason::MaxTurns));
    let leaf = cast.outcome.unwrap().leaf.unwrap();
    let thread = runtime.loom().thread(leaf).await.unwrap();
    let asked: Vec<Vec<String>> = tape.requests().iter().map(|input| texts(&input.messages)).collect();
    for (at, turn) in thread.turns.iter().enumerate().take(4) {
        let other = script([done("forked")]);
        let fork = runtime.fork(&cantrip.with_crystal(other.clone()).unwrap(), turn.id, ForkOptions::new()).await;
        assert_eq!(fork.answer(), Some(&json!("forked")), "{:?}", fork.reply());
        assert_eq!(
            texts(&other.requests()[0].messages),
            asked[at + 1],
            "a fork from turn {} goes on as it did",
            at + 1
        );
    }
}
