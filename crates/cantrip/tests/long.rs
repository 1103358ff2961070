//! A long thread: nothing of its task is lost, no turn costs more than the first, and a replay is identical. These
//! tests count work and bytes; time is measured by `cantrip-bench -- fold`.
//!
//! `CANTRIP_TURNS=10000` sets the intended length, which `./test.sh --long` does.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

mod support;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use cantrip::fold::FoldOptions;
use cantrip::list::MessageList;
use cantrip::{Call, Cantrip, CastOptions, ForkOptions, ReplayOutcome, Runtime};
use cantrip_circle::gate::builtin;
use cantrip_crystal::{Answer, Crystal, EventSink, Failure, Messages, ProfileRow, Request, Response};
use cantrip_loom::{Caller, Journal, Loom, Message, Record, Seq, Strategy, Thread};
use futures_util::TryStreamExt;
use serde_json::json;
use support::{call, done, memory, script};

const PROMPT: &str = "You count words, and you never lose count.";
const INTENT: &str = "count to the end, then say the number";

/// Works for this number of turns, and keeps every request that it received.
#[derive(Clone)]
struct Worker {
    turns: u64,
    asked: Arc<Mutex<Vec<Messages>>>,
}

impl Crystal for Worker {
    fn name(&self) -> &str {
        "scripted/worker"
    }
    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        let response = match request.caller.request.caller() {
            Caller::Fold(_) => Response::text("it counts on"),
            Caller::Turn(_) => {
                self.asked.lock().unwrap().push(request.messages.clone());
                match request.utterances {
                    said if said < self.turns => call("echo", json!({ "text": format!("word {said:06}") })),
                    _ => done("over"),
                }
            }
        };
        script([response]).ask(request, heard).await
    }
}

/// Casts a thread of this many turns, in a window that holds about a dozen of them.
async fn worked(turns: u64, folding: FoldOptions) -> (Runtime, Cantrip, Worker, Thread) {
    let worker = Worker { turns: turns - 1, asked: Arc::default() };
    let cantrip = Cantrip::builder()
        .crystal(worker.clone())
        .gate(builtin::done())
        .gate(builtin::echo())
        .call(Call::new().system_prompt(PROMPT))
        .profile(ProfileRow { window: Some(8_000), ..ProfileRow::default() })
        .folding(folding)
        .ward("max_turns", turns + 1)
        .build()
        .unwrap();
    let runtime = memory();
    let cast = runtime.cast(&cantrip, CastOptions::on(INTENT)).await;
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
    let thread = runtime.loom().thread(cast.outcome.unwrap().leaf.unwrap()).await.unwrap();
    assert_eq!(thread.turns.len() as u64, turns);
    (runtime, cantrip, worker, thread)
}

fn said(message: &Message) -> String {
    match message {
        Message::System { content } | Message::User { content } | Message::Tool { content, .. } => content.text(),
        Message::Assistant { .. } => String::new(),
    }
}

/// Checks what every request of the thread must contain, whatever was folded.
fn nothing_is_lost(asked: &[Messages]) {
    for (at, messages) in asked.iter().enumerate() {
        assert!(matches!(messages.get(0), Some(Message::System { .. })) && said(messages.get(0).unwrap()) == PROMPT);
        let told: Vec<String> = messages.iter().skip(1).map(said).collect();
        assert_eq!(told.iter().filter(|text| *text == INTENT).count(), 1, "request {at}");
        // Each turn before adds an utterance and a result; where some are absent, one fold stands for them.
        let marks = told.iter().filter(|text| text.starts_with("[Folded: turns ")).count();
        assert_eq!(marks, usize::from(told.len() < 1 + 2 * at), "request {at} of {} messages", told.len());
        if at > 0 {
            assert_eq!(told.last(), Some(&format!("word {:06}", at - 1)), "the newest turn is in request {at}");
        }
        assert!(messages.len() <= 600, "request {at} has {} messages", messages.len());
    }
}

async fn journal(runtime: &Runtime, thread: &Thread) -> Vec<Record> {
    let run = thread.casts[0].run_id;
    runtime.loom().read(run, Seq::START).try_collect().await.unwrap()
}

fn bytes(records: &[Record]) -> usize {
    records.iter().map(|record| serde_json::to_string(&record.payload).unwrap().len()).sum()
}

#[tokio::test(start_paused = true)]
async fn thousands_of_turns_lose_nothing_cost_the_same_and_replay_identically() {
    let given = std::env::var("CANTRIP_TURNS").ok();
    let turns: u64 = given.map_or(1_000, |given| given.parse().expect("a number of turns"));
    let (runtime, cantrip, worker, thread) = worked(turns, FoldOptions::after_turns(20)).await;
    let asked = std::mem::take(&mut *worker.asked.lock().unwrap());
    assert_eq!(asked.len() as u64, turns, "nobody was asked but for a turn");
    nothing_is_lost(&asked);

    // Work: the hashed and estimated messages grow with the turns and not with their square.
    let casts = thread.casts.iter().map(|cast| (cast.cast.cast_id, cast)).collect();
    let taken = |turns: usize| {
        MessageList::along(cantrip.frame(None), &thread.turns[..turns], &casts, &thread.folds)
            .unwrap()
            .measured_messages()
    };
    let (all, tenth) = (thread.turns.len(), thread.turns.len() / 10);
    let (first, last) = (taken(tenth), taken(all) - taken(all - tenth));
    assert!(last <= first + first / 10, "the first tenth of the turns took {first} messages, the last {last}");

    // Memory: every recorded request is a prefix of a list that it shares, and lists share messages.
    let mut messages = HashSet::new();
    let mut places = 0;
    for list in asked.chunk_by(|one, next| Arc::ptr_eq(one.list().get(0).unwrap(), next.list().get(0).unwrap())) {
        let longest = list.last().unwrap();
        places += longest.list().len();
        messages.extend((0..longest.list().len()).map(|at| Arc::as_ptr(longest.list().get(at).unwrap())));
    }
    assert!(messages.len() as u64 <= 3 * turns, "{} messages for {turns} turns", messages.len());
    assert!(places as u64 <= 8 * turns, "{places} places for {turns} turns");

    // Bytes: the last turns take as much as the first.
    let records = journal(&runtime, &thread).await;
    let tenth = records.len() / 10;
    let (first, last) = (bytes(&records[..tenth]), bytes(&records[records.len() - tenth..]));
    assert!(last <= first + first / 10, "the first tenth of the records has {first} bytes, the last {last}");

    let replay = runtime.replay(&cantrip, thread.leaf).await;
    assert_eq!(replay.replayed, Some(ReplayOutcome::Identical { turns, calls: turns }));

    // A fork at the end begins with the list of the last turn.
    let tape = script([done("forked")]);
    let at = thread.turns[thread.turns.len() - 2].id;
    let fork = runtime.fork(&cantrip.with_crystal(tape.clone()).unwrap(), at, ForkOptions::new()).await;
    assert_eq!(fork.answer(), Some(&json!("forked")), "{:?}", fork.reply());
    let (forked, last) = (tape.requests()[0].messages.clone(), asked.last().unwrap());
    assert!(forked.iter().eq(last.iter()), "it shares the list");
}

#[tokio::test(start_paused = true)]
async fn no_strategy_loses_anything_in_hundreds_of_turns() {
    for strategy in [Strategy::Window, Strategy::Summary, Strategy::Selective] {
        let (runtime, cantrip, worker, thread) = worked(500, FoldOptions::default().with_strategy(strategy)).await;
        let asked = std::mem::take(&mut *worker.asked.lock().unwrap());
        nothing_is_lost(&asked);
        assert!(thread.folds.len() > 1, "the window folds by itself");
        let longest = asked.iter().map(Messages::len).max();
        assert!(longest < Some(600), "{strategy:?}: {longest:?} messages");
        let view = MessageList::of(cantrip.frame(None), &thread).unwrap();
        assert!(
            view.measured_messages() < 20 * 500,
            "{strategy:?}: {} messages were looked at",
            view.measured_messages()
        );
        let replay = runtime.replay(&cantrip, thread.leaf).await;
        assert_eq!(replay.replayed, Some(ReplayOutcome::Identical { turns: 500, calls: 500 }), "{strategy:?}");
    }
}
