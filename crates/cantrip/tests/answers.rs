//! Typed and verified answers: what `done` must contain before it ends a cast.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

use crate::support;

use std::sync::Arc;
use std::time::Duration;

use cantrip::Verdict;
use cantrip::{AnswerFault, Cantrip, CantripBuilder, CastOptions};
use cantrip_circle::MediumKind;
use cantrip_circle::gate::builtin;
use cantrip_crystal::{Answer, Crystal, EventSink, Failure, Request, Response, ScriptedCrystal};
use cantrip_loom::{AnyLoom, Loom, MemoryLoom, PageRequest, Settlement, TruncationReason, Turn};
use cantrip_medium_javascript::{Javascript, Options};
use cantrip_reply::testing::{assert_code, guarded};
use cantrip_reply::{Refusal, codes};
use serde_json::{Value, json};
use support::{Count, Dying, done, house_of, memory, script, talking, woven};

fn coding(crystal: &ScriptedCrystal) -> CantripBuilder {
    Cantrip::builder()
        .crystal(crystal.clone())
        .medium(MediumKind::Javascript)
        .serve_medium(Arc::new(Javascript::start(Options::default()).unwrap()))
        .gate(builtin::done())
        .gate(builtin::echo())
        .gate(builtin::call_agent())
        .ward("max_turns", 10)
}

/// Accepts the number 2 with a score, explains why it refuses any other, and counts its calls.
async fn two(answer: Value, looked: Count) -> Result<Verdict, Refusal> {
    looked.up();
    Ok(match answer.as_u64() {
        Some(2) => Verdict::Passed { score: Some(0.5) },
        Some(_) | None => Verdict::Failed { output: format!("{answer} is not two") },
    })
}

fn looking(
    looked: &Count,
) -> impl Fn(Value) -> futures_util::future::BoxFuture<'static, Result<Verdict, Refusal>> + Send + Sync + 'static {
    let looked = looked.clone();
    move |answer| Box::pin(two(answer, looked.clone()))
}

fn settled(turn: &Turn, at: usize) -> (String, String) {
    let Settlement::Settled(settled) = &turn.gate_calls[at].settlement else { panic!("it settled") };
    (settled.reply.code.clone(), settled.result.as_str().unwrap_or_default().to_owned())
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_fails_is_sent_back_and_the_score_of_one_that_passes_is_its_turns_reward() {
    let (runtime, looked) = (memory(), Count::default());
    // A text does not end the cast: only an answer can be verified.
    let crystal = script([Response::text("two, I think"), done(1), done(2)]);
    let cantrip = talking(&crystal).verify(looking(&looked)).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
    assert_eq!(cast.answer(), Some(&json!(2)), "{:?}", cast.reply());
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    assert_eq!(turns.iter().map(|turn| turn.reward).collect::<Vec<_>>(), [None, None, Some(0.5)]);
    let (code, text) = settled(&turns[1], 0);
    assert_eq!(code, codes::DONE_MALFORMED.any().as_str());
    assert!(text.contains("done was not accepted: 1 is not two"), "{text}");
    let reward = &runtime.loom().rewards(turns[2].id).await.unwrap()[0];
    assert_eq!((reward.reward, reward.by.as_str()), (0.5, "verifier"));
    assert_eq!(looked.get(), 2);
}

#[tokio::test]
async fn in_code_a_refused_answer_is_thrown_and_can_be_caught() {
    let (runtime, looked) = (memory(), Count::default());
    let program = "var told; try { done(1) } catch (e) { told = e.code + ' ' + e.message } console.log(told); done(2)";
    let cantrip = coding(&script([Response::code(program)])).verify(looking(&looked)).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
    assert_eq!(cast.answer(), Some(&json!(2)), "{:?}", cast.reply());
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    assert_eq!((turns.len(), turns[0].reward, looked.get()), (1, Some(0.5), 2));
    let said = turns[0].outputs[0].console.join("\n");
    assert!(said.contains("WA-VAL-I-002") && said.contains("1 is not two"), "{said}");

    // If it is not caught, it is the program's error, and the loop continues.
    let cantrip = coding(&script([Response::code("done(1)"), Response::code("done(2)")]))
        .verify(looking(&looked))
        .build()
        .unwrap();
    let runtime = memory();
    let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
    assert_eq!(cast.answer(), Some(&json!(2)), "{:?}", cast.reply());
    let found = woven(&runtime, cantrip.loom_id()).await;
    assert!(found.starts_with("A1 done!WA-VAL-I-002 GateError: "), "{found}");
}

#[tokio::test(start_paused = true)]
async fn a_verifier_that_breaks_or_cannot_look_is_an_error_and_ends_nothing() {
    let broken = |answer: Value| async move {
        match answer.as_u64() {
            Some(1) => panic!("a bug of the verifier's author"),
            Some(2) => Err(Refusal::from(codes::gate_failed("verify", "the laboratory is closed"))),
            Some(_) | None => Ok(Verdict::Passed { score: None }),
        }
    };
    let runtime = memory();
    let crystal = script([done(1), done(2), done(3)]);
    let cantrip = talking(&crystal).verify(broken).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
    assert_eq!(cast.answer(), Some(&json!(3)), "{:?}", cast.reply());
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    assert_eq!(settled(&turns[0], 0).0, codes::CRASH.any().as_str());
    assert!(!settled(&turns[0], 0).1.contains("author"), "a panic's words are the log's");
    assert_eq!(settled(&turns[1], 0).0, codes::GATE_FAILED.any().as_str());
    assert_eq!(turns[2].reward, None, "no score, no reward");
}

#[tokio::test(start_paused = true)]
async fn the_deadline_is_over_the_verifier_too() {
    let slow = |_: Value| async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        Ok(Verdict::Passed { score: Some(1.0) })
    };
    let runtime = memory();
    let cantrip = talking(&script([done(1)])).verify(slow).ward("timeout", "10s").build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
    assert_eq!(cast.reason(), Some(TruncationReason::Timeout));
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    assert_eq!((settled(&turns[0], 0).0.as_str(), turns[0].reward), (codes::WARD_REACHED.any().as_str(), None));
}

/// Gives the same answer after a crash as before it.
struct Steady(bool);

impl Crystal for Steady {
    fn name(&self) -> &str {
        "scripted/steady"
    }
    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        let answer = request.utterances + 1;
        let response = if self.0 { Response::code(format!("done({answer})")) } else { done(answer) };
        script([response]).ask(request, heard).await
    }
}

#[tokio::test]
async fn killed_while_it_looks_it_looks_again_and_the_score_comes_with_its_turn() {
    for code in [false, true] {
        let spell = |looked: &Count| {
            let builder = if code { coding(&script([])) } else { talking(&script([])) };
            builder.crystal(Steady(code)).verify(looking(looked)).build().unwrap()
        };
        let store = Dying::after(AnyLoom::new(MemoryLoom::new()), u64::MAX);
        let runtime = house_of(AnyLoom::new(store.clone()), 1);
        let cantrip = spell(&Count::default());
        let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
        assert_eq!(cast.answer(), Some(&json!(2)), "{:?}", cast.reply());
        let wanted = woven(&runtime, cantrip.loom_id()).await;
        let mut again = 0;
        for dies_after in 1..store.taken() {
            let memory = AnyLoom::new(MemoryLoom::new());
            let dying = house_of(AnyLoom::new(Dying::after(memory.clone(), dies_after)), 1);
            let looked = Count::default();
            let cantrip = spell(&looked);
            let died = dying.cast(&cantrip, CastOptions::on("count")).await;
            assert_code(died.reply(), codes::STORE_UNAVAILABLE);
            // Every recorded answer is recorded with its score.
            let turns = memory.turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
            assert!(turns.iter().all(|turn| turn.is_terminated() == turn.reward.is_some()), "dead after {dies_after}");
            let heir = house_of(memory, 2);
            let cast = heir.resume(&cantrip, died.run.unwrap()).await;
            assert_eq!(cast.answer(), Some(&json!(2)), "dead after {dies_after}: {:?}", cast.reply());
            assert_eq!(woven(&heir, cantrip.loom_id()).await, wanted, "dead after {dies_after}");
            let turns = heir.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
            assert_eq!(turns.iter().filter_map(|turn| turn.reward).collect::<Vec<_>>(), [0.5]);
            again += looked.get() - 2;
            let replay = heir.replay(&cantrip, cast.outcome.unwrap().leaf.unwrap()).await;
            assert_code(replay.reply(), codes::VERIFIED);
        }
        assert!(again >= 1, "at some place it had looked and nobody had heard it");
    }
}

#[derive(Debug, PartialEq, serde::Deserialize, serde::Serialize, schemars::JsonSchema)]
struct Report {
    /// How many there are.
    words: u64,
    longest: Word,
}

#[derive(Debug, PartialEq, serde::Deserialize, serde::Serialize, schemars::JsonSchema)]
struct Word {
    text: String,
}

#[tokio::test(start_paused = true)]
async fn an_answer_against_its_schema_is_sent_back_with_its_faults_and_the_next_is_typed() {
    let runtime = memory();
    let right = json!({"words": 3, "longest": {"text": "counting"}});
    let crystal = script([
        done(json!({"words": "three", "longest": {"text": "x"}})),
        Response::text("three"),
        done(right.clone()),
    ]);
    let cantrip = talking(&crystal).answer::<Report>().build().unwrap();
    assert!(cantrip.wards().require_done_tool);
    let shown = &crystal_definition(&cantrip)["properties"]["answer"];
    assert_eq!(shown["properties"]["words"]["description"], "How many there are.");
    let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
    assert_eq!(cast.answer_as::<Report>().unwrap(), serde_json::from_value::<Report>(right).unwrap());
    assert_eq!(cast.outcome.as_ref().unwrap().utterances, 3, "a text ends nothing");
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    let (code, text) = settled(&turns[0], 0);
    assert_eq!(code, codes::DONE_MALFORMED.any().as_str());
    assert!(text.contains("/words"), "{text}");

    // Another type than promised, and no answer at all.
    assert!(matches!(cast.answer_as::<Vec<u8>>(), Err(AnswerFault::Misshapen(_))));
    let cantrip = talking(&script([Response::text("hm")])).answer::<Report>().ward("max_turns", 1).build().unwrap();
    let cast = memory().cast(&cantrip, CastOptions::on("count")).await;
    let fault = cast.answer_as::<Report>().unwrap_err();
    assert!(fault.to_string().contains("EN-EXEC-D-001"), "{fault}");
    assert_code(cast.reply(), codes::WARD_REACHED);
}

/// Returns the parameters of `done` as the crystal sees them.
fn crystal_definition(cantrip: &Cantrip) -> Value {
    let definitions = cantrip.circle().definitions();
    definitions.into_iter().find(|definition| definition.name == "done").unwrap().parameters
}

#[tokio::test]
async fn in_code_the_schema_is_shown_with_done_and_its_refusal_can_be_caught() {
    let program = "var code; try { done({words: 'three'}) } catch (e) { code = e.code + ' ' + e.data.violations.length } \
                   console.log(code); done({words: 3, longest: {text: 'counting'}})";
    let crystal = script([Response::code(program)]);
    let cantrip = coding(&crystal).answer::<Report>().build().unwrap();
    let runtime = memory();
    let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
    assert_eq!(cast.answer_as::<Report>().unwrap().words, 3);
    let shown = crystal.requests()[0].definitions[0].description.clone();
    assert!(shown.contains("How many there are.") && shown.contains("\"longest\""), "{shown}");
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    assert!(turns[0].outputs[0].console[0].starts_with("WA-VAL-I-002 "), "{:?}", turns[0].outputs);
}

#[tokio::test(start_paused = true)]
async fn the_schema_is_asked_before_the_verifier() {
    let looked = Count::default();
    let crystal = script([done("two"), done(1), done(2)]);
    let cantrip = talking(&crystal).answer_schema(json!({"type": "integer"})).verify(looking(&looked)).build().unwrap();
    let cast = memory().cast(&cantrip, CastOptions::on("count")).await;
    assert_eq!((cast.answer(), looked.get()), (Some(&json!(2)), 2), "{:?}", cast.reply());
}

#[tokio::test(start_paused = true)]
async fn children_have_neither_schema_nor_verifier() {
    let looked = Count::default();
    let child = Response::call("c", "call_agent", json!({"intent": "look"}));
    let crystal = script([child, done("anything"), done(2)]);
    let cantrip = talking(&crystal)
        .gate(builtin::call_agent())
        .answer_schema(json!({"type": "integer"}))
        .verify(looking(&looked))
        .build()
        .unwrap();
    let runtime = memory();
    let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
    assert_eq!(cast.answer(), Some(&json!(2)), "{:?}", cast.reply());
    assert_eq!(looked.get(), 1);
    let found = woven(&runtime, cantrip.loom_id()).await;
    assert!(found.contains("B1 <A1 done=\"anything\" terminated"), "{found}");
    let tools: Vec<Value> = crystal
        .requests()
        .iter()
        .map(|input| input.definitions[0].parameters["properties"]["answer"].clone())
        .collect();
    assert_eq!(tools[0]["type"], "integer");
    assert_eq!(tools[1].get("type"), None, "the child is shown no schema");
}

#[tokio::test]
async fn a_program_that_looks_at_answers_is_bounded_in_time_and_words() {
    use cantrip::AnyVerifier;
    use cantrip::CommandVerifier;
    let folder = tempfile::tempdir().unwrap();
    let verifier = |code: &str| {
        let arguments = vec!["-c".to_owned(), code.to_owned()];
        CommandVerifier::new("sh".into(), arguments, folder.path().to_owned()).time_max(Duration::from_millis(300))
    };
    let hangs = AnyVerifier::new(verifier("sleep 60"));
    let refusal = hangs.verify(&json!(1)).await.unwrap_err();
    assert_code(&guarded(|rb| rb.refuse(refusal)).reply, codes::TIMED_OUT);
    // Output beyond the limit is dropped, and does not block the program.
    let flood =
        AnyVerifier::new(verifier("head -c 1000000 /dev/zero | tr '\\0' x; exit 3").time_max(Duration::from_secs(30)));
    let Ok(Verdict::Failed { output }) = flood.verify(&json!(1)).await else { panic!("it looked") };
    assert_eq!(output.len(), cantrip::limits::VERIFIER_OUTPUT_BYTES_MAX);
    for (said, score) in
        [("echo 0.25", Some(0.25)), ("echo '{\"score\": 1}'", Some(1.0)), ("echo fine", None), ("true", None)]
    {
        let verdict =
            AnyVerifier::new(verifier(said).time_max(Duration::from_secs(30))).verify(&json!(1)).await.unwrap();
        assert_eq!(verdict, Verdict::Passed { score }, "{said}");
    }
}
