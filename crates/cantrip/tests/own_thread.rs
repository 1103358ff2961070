//! The gate `loom`: an entity reads its own turns, and no others.

use cantrip::OwnThreadReader;
use cantrip_canon::TurnId;
use cantrip_circle::gate::Identity;
use cantrip_circle::gate::builtin::{OwnThread, ThreadQuery, ThreadReadError, TurnName};
use cantrip_loom::{AnyLoom, CallId, CallWork, Closing, Environment, Fork, MemoryLoom, Origin, Step};
use cantrip_loom_suite::{Episode, LoomWriter, closed, settled, started, utterance};
use serde_json::{Value, json};

fn identity(of: &Episode) -> Identity {
    let turn = of.leaf.expect("a turn");
    let call_id = CallId::of_turn(turn, 1);
    Identity { run_id: of.run, entity_id: of.entity, turn_id: turn, call_id, tool_call_id: None }
}

async fn read(thread: &OwnThreadReader, of: &Episode, turn: Option<TurnName>) -> Result<Value, ThreadReadError> {
    thread.read(&identity(of), ThreadQuery { turn, from: None, limit: None }).await
}

/// Adds a turn that calls a gate with these arguments; its result is kept out of the context if it is hidden.
async fn turn(
    weaver: &mut LoomWriter<'_, AnyLoom>,
    episode: &mut Episode,
    (gate, args): (&str, Value),
    result: Value,
    hidden: bool,
) -> TurnId {
    let opened = weaver.opened(episode, utterance(Some("I look."), &[(gate, args)]), &mut Vec::new());
    let id = opened.turn_id;
    let call = CallId::of_turn(id, 1);
    let mut over = settled(call, result, &mut Vec::new());
    over.ephemeral = hidden;
    let step = Step::for_lease(weaver.step_id(), episode.lease.clone())
        .record(weaver.draft(opened))
        .record(weaver.draft(started(call, CallWork::Gate, None)))
        .record(weaver.draft(over))
        .record(weaver.draft(closed(id, Closing::Open)));
    weaver.commit(step).await;
    episode.leaf = Some(id);
    episode.sequence += 1;
    episode.turns += 1;
    id
}

#[tokio::test]
async fn the_own_turns_are_listed_and_read_in_full() {
    let store = AnyLoom::new(MemoryLoom::default());
    let mut weaver = LoomWriter::new(&store);
    let mut episode = weaver.cast("look").await;
    for n in 1..=3 {
        turn(&mut weaver, &mut episode, ("read", json!({"n": n})), json!(format!("text {n}")), false).await;
    }
    let thread = OwnThreadReader::new(store.clone());
    let listed = read(&thread, &episode, None).await.expect("its own");
    assert_eq!(listed["total"], 3);
    assert_eq!(listed["turns"][1]["turn"], 2);
    assert_eq!(listed["turns"][1]["gates"], json!(["read"]));
    let page = ThreadQuery { turn: None, from: Some(2), limit: Some(1) };
    let page = thread.read(&identity(&episode), page).await.expect("its own");
    assert_eq!((page["turns"].as_array().map(Vec::len), &page["turns"][0]["turn"]), (Some(1), &json!(2)));
    let second = read(&thread, &episode, Some(TurnName::Number(2))).await.expect("its own");
    assert_eq!((&second["said"], &second["calls"][0]["result"]), (&json!("I look."), &json!("text 2")));
    assert_eq!(read(&thread, &episode, Some(TurnName::Number(9))).await, Err(ThreadReadError::NotFound));
}

#[tokio::test]
async fn a_turn_of_another_path_is_not_shown() {
    let store = AnyLoom::new(MemoryLoom::default());
    let mut weaver = LoomWriter::new(&store);
    let mut mine = weaver.cast("look").await;
    let shared = turn(&mut weaver, &mut mine, ("read", json!({})), json!("mine"), false).await;
    let later = turn(&mut weaver, &mut mine, ("read", json!({})), json!("later"), false).await;
    let intent = weaver.intent("look elsewhere");
    let origin = Origin::Fork(Fork { turn: shared, environment: Environment::None });
    let (step, mut fork) = weaver.open(origin, intent, Some(shared), 1);
    weaver.commit(step).await;
    let thread = OwnThreadReader::new(store.clone());
    // A fork has the shared turns before it has a turn of its own.
    assert_eq!(read(&thread, &fork, None).await.expect("shared")["total"], 1);
    turn(&mut weaver, &mut fork, ("read", json!({})), json!("forked"), false).await;
    assert_eq!(read(&thread, &fork, None).await.expect("its own")["total"], 2);
    assert_eq!(read(&thread, &fork, Some(TurnName::Id(later.to_string()))).await, Err(ThreadReadError::NotOwn));
    assert_eq!(read(&thread, &fork, Some(TurnName::Id("nonsense".into()))).await, Err(ThreadReadError::NotOwn));
}

#[tokio::test]
async fn a_hidden_result_shows_in_the_first_answer_that_reads_it() {
    let store = AnyLoom::new(MemoryLoom::default());
    let mut weaver = LoomWriter::new(&store);
    let mut episode = weaver.cast("look").await;
    turn(&mut weaver, &mut episode, ("fetch", json!({})), json!("a page"), true).await;
    let thread = OwnThreadReader::new(store.clone());
    let first = read(&thread, &episode, Some(TurnName::Number(1))).await.expect("its own");
    assert_eq!(first["calls"][0]["result"], "a page");
    turn(&mut weaver, &mut episode, ("loom", json!({"turn": 1})), first, false).await;
    let second = read(&thread, &episode, Some(TurnName::Number(1))).await.expect("its own");
    assert_eq!(second["calls"][0]["result"], "[ephemeral:fetch]");
}
