//! `rlm_lite.v1`: programs over the input as variables, bounded in utterances and sub-calls.

use std::sync::Arc;

use cantrip::canon::{IdSource, Timestamp};
use cantrip::circle::Medium;
use cantrip::crystal::{AnyCrystal, Response};
use cantrip::loom::{AnyLoom, Contracts, Loom, MemoryLoom, Message, PageRequest, ReceiptFilter};
use cantrip::reply::Refusal;
use cantrip::{MachineClock, MachineEntropy, Runtime};
use cantrip_contract::{
    ChangeAuthor, ContractRow, NoFiles, OriginRow, PointerChange, PointerOperation, Provenance, Receipt, Signature,
    SignatureId, SignatureOrigin, Status, Strategy,
};
use cantrip_ds::{CrystalSource, PredictOptions, Predictor, TraceArchive, verify};
use cantrip_medium_python::{Options, Python};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use serde_json::{Value, json};

use crate::support::{done, predictor, says, scripted, stores};

fn answer() -> SignatureId {
    "@cantrip/long/Answer.v1".parse().unwrap()
}

fn input() -> Value {
    let text = format!("{} the parcel lies in Bremen {}", "word ".repeat(20_000), "word ".repeat(20_000));
    json!({"question": "Where is it?", "documents": [{"id": "a", "text": text}]})
}

async fn told(loom: &AnyLoom) -> Receipt {
    let rows = loom.receipts(ReceiptFilter::default(), PageRequest::FIRST).await.unwrap().items;
    assert_eq!(verify(loom, ReceiptFilter::default()).await.unwrap().findings, []);
    rows.last().unwrap().receipt().unwrap()
}

const GOOD: &str = "{answer: 'Bremen', citations: [{id: 'a', quote: 'the parcel lies in Bremen'}], confidence: 1}";

#[tokio::test]
async fn inputs_are_variables_and_a_child_answers() {
    for (loom, _folder) in stores() {
        let program = format!(
            "var at = documents[0].text.indexOf('Bremen');\n\
             var said = call_agent('which town?', documents[0].text.slice(at - 30, at + 30));\n\
             if (inputs.documents.length !== 1 || output_schema.type !== 'object') throw new Error('no variables');\n\
             done(Object.assign({GOOD}, {{answer: said}}))"
        );
        let script = scripted([Response::code(program), done(json!("Bremen"))]);
        let predictor = predictor(&loom, says(&script), TraceArchive::inline());
        let reply = predictor.predict(&answer(), &input(), PredictOptions::default()).await;
        assert_code(&reply.guarded.reply, codes::PREDICTED);
        assert_eq!(reply.predicted.output.unwrap()["answer"], "Bremen");
        for sent in script.requests() {
            let bytes: usize = sent.messages.iter().map(|message| serde_json::to_string(message).unwrap().len()).sum();
            assert!(bytes < 20_000, "the documents are not in the prompt: {bytes}");
        }
        let asked = script.requests();
        let Some(Message::System { content }) = asked[1].messages.get(0) else { panic!("{asked:?}") };
        assert!(content.text().starts_with("Read the text you are given"), "its own system prompt");
        let receipt = told(&loom).await;
        assert_eq!((receipt.status, receipt.strategy_id), (Status::Succeeded, Some(Strategy::RlmLite)));
        assert_eq!((receipt.budget.sub_calls, receipt.budget.model_calls, receipt.budget.iterations), (1, 2, 1));
        let rows = loom.receipts(ReceiptFilter::default(), PageRequest::FIRST).await.unwrap().items;
        assert_eq!(rows.len(), 1, "its children have the predict's alone");
        assert_eq!(loom.runs(PageRequest::FIRST).await.unwrap().items.len(), 1);
    }
}

#[tokio::test]
async fn one_sub_call_too_many_is_denied_and_the_cast_lives_on() {
    for (loom, _folder) in stores() {
        let program = format!(
            "var met = [];\n\
             for (var i = 0; i < 4; i++) {{ try {{ call_agent('n' + i) }} catch (fault) {{ met.push(fault.code) }} }}\n\
             try {{ call_agent_batch(['a', 'b']) }} catch (fault) {{ met.push(fault.code) }}\n\
             done(Object.assign({GOOD}, {{answer: met.join()}}))"
        );
        let script = scripted([Response::code(program)].into_iter().chain((0..3).map(|_| done(json!("yes")))));
        let predictor = predictor(&loom, says(&script), TraceArchive::inline());
        let reply = predictor.predict(&answer(), &input(), PredictOptions::default()).await;
        assert_code(&reply.guarded.reply, codes::PREDICTED);
        let code = codes::CALLS_SPENT.any().as_str();
        assert_eq!(reply.predicted.output.unwrap()["answer"], format!("{code},{code}"));
        assert_eq!(script.request_count(), 4, "three children, and none of a batch that does not fit");
        assert_eq!(told(&loom).await.budget.sub_calls, 3);
    }
}

#[tokio::test]
async fn without_an_answer_in_the_last_iteration_there_is_none() {
    for (loom, _folder) in stores() {
        let script = scripted((0..5).map(|_| Response::code("done({answer: 'Bremen'})")));
        let predictor = predictor(&loom, says(&script), TraceArchive::inline());
        let reply = predictor.predict(&answer(), &input(), PredictOptions::default()).await;
        assert_code(&reply.guarded.reply, codes::WARD_REACHED);
        assert_eq!(reply.guarded.reply.data()["reason"], "no_answer");
        assert_eq!(script.request_count(), 3, "no hidden extra call");
        assert_eq!(told(&loom).await.status, Status::Failed);
        for iterations in [0, 9] {
            let how = PredictOptions { max_iterations: Some(iterations), ..PredictOptions::default() };
            let reply = predictor.predict(&answer(), &input(), how).await;
            assert_eq!(reply.guarded.reply.data()["reason"], "invalid_iteration_budget");
        }
        assert_eq!(script.request_count(), 3);
    }
}

fn texts(sent: &cantrip::crystal::RecordedRequest) -> Vec<String> {
    let text = |message: &Message| match message {
        Message::System { content } | Message::User { content } | Message::Tool { content, .. } => content.text(),
        Message::Assistant { .. } => String::new(),
    };
    sent.messages.iter().map(text).collect()
}

#[tokio::test]
async fn what_a_program_comes_to_says_how_many_are_left_and_a_malformed_answer_costs_one() {
    for (loom, _folder) in stores() {
        let programs = ["1 + 1".to_owned(), "done({answer: 'Bremen'})".to_owned(), format!("done({GOOD})")];
        let script = scripted(programs.map(Response::code));
        let predictor = predictor(&loom, says(&script), TraceArchive::inline());
        let reply = predictor.predict(&answer(), &input(), PredictOptions::default()).await;
        assert_code(&reply.guarded.reply, codes::PREDICTED);
        let seen: Vec<String> = script.requests().iter().map(|sent| texts(sent).pop().unwrap()).collect();
        assert!(!seen[0].contains("iterations left"), "{seen:?}");
        assert!(seen[1].ends_with("=> 2\n[iterations left: 2]"), "{seen:?}");
        assert!(seen[2].ends_with("[iterations left: 1]"), "{seen:?}");
        // The loom has the same counts.
        let thread = loom.thread(told(&loom).await.last_turn_id.unwrap()).await.unwrap();
        let left: Vec<Option<u64>> =
            thread.turns.iter().map(|turn| turn.outputs.first().and_then(|output| output.left)).collect();
        assert_eq!(left[..2], [Some(2), Some(1)]);
    }
}

/// A signature in Python, with the user's own limits.
const COUNT: &str = r#"
namespace = "@me/long"
name = "Count"
version = 1
program_template = "rlm_lite.v1"
instructions = "Count the words."
program = { medium = "python", max_iterations = 2 }
prompt_template.system = "{{ instructions }}"
prompt_template.user = "How many?"
[input_schema]
type = "object"
required = ["text"]
properties.text = { type = "string" }
properties.class = { type = "string" }
properties.now = { type = "string" }
[output_schema]
type = "object"
required = ["words"]
additionalProperties = false
properties.words = { type = "integer" }
"#;

struct InPython(AnyCrystal);

impl CrystalSource for InPython {
    fn crystal(&self, _: Option<&str>) -> Result<AnyCrystal, Refusal> {
        Ok(self.0.clone())
    }

    fn python(&self) -> Result<Arc<dyn Medium>, Refusal> {
        Ok(Arc::new(Python::start(Options::in_process())?))
    }
}

#[tokio::test]
async fn programs_in_python_find_the_same() {
    let count = Signature::parse(COUNT, &NoFiles).unwrap();
    for (loom, _folder) in stores() {
        let script = scripted([
            Response::code("said = call_agent('which?')\nlen(inputs['class']) + len(inputs['now'])"),
            done(json!("all of them")),
            Response::code(
                "assert said == 'all of them' and output_schema['type'] == 'object'\n\
                 assert text == inputs['text'] and now() > 0\n\
                 done({'words': len(text.split())})",
            ),
        ]);
        let (clock, ids) = (Arc::new(MachineClock::new()), Arc::new(IdSource::new(MachineEntropy)));
        let runtime = Runtime::from_parts(loom.clone(), clock.clone(), Arc::clone(&ids));
        let crystals = InPython(AnyCrystal::new(says(&script)));
        let predictor = Predictor::new(runtime, crystals, TraceArchive::inline(), clock, ids);
        predictor.catalog().add(&count, SignatureOrigin::Api, "ann").await.unwrap();
        let input = json!({"text": "word ".repeat(20_000), "class": "abc", "now": "then"});
        let reply = predictor.predict(count.id(), &input, PredictOptions::default()).await;
        assert_code(&reply.guarded.reply, codes::PREDICTED);
        assert_eq!(reply.predicted.output, Some(json!({"words": 20_000})));
        let last = texts(&script.requests()[2]).pop().unwrap();
        assert!(last.ends_with("=> 7\n[iterations left: 1]"), "{last}");
        assert_eq!((told(&loom).await.budget.sub_calls, told(&loom).await.status), (1, Status::Succeeded));
    }
    // Without an interpreter the predict is refused, and nothing is begun.
    let (loom, script) = (AnyLoom::new(MemoryLoom::new()), scripted([]));
    let predictor = predictor(&loom, says(&script), TraceArchive::inline());
    predictor.catalog().add(&count, SignatureOrigin::Api, "ann").await.unwrap();
    let reply = predictor.predict(count.id(), &json!({"text": "a b"}), PredictOptions::default()).await;
    assert_code(&reply.guarded.reply, codes::SANDBOX_UNAVAILABLE);
    assert!(loom.runs(PageRequest::FIRST).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn the_newest_calls_of_the_calling_thread_are_its_history_and_the_rest_are_counted() {
    for (loom, _folder) in stores() {
        let calls = (0..23).map(|n| Response::call("c", "echo", json!({ "text": format!("call {n}") })));
        let talk = scripted(calls.chain([Response::call("c", "done", json!({"answer": "over"}))]));
        let cantrip = cantrip::Cantrip::builder()
            .crystal(talk)
            .gate(cantrip::gates::done())
            .gate(cantrip::gates::echo())
            .ward("max_turns", 30)
            .build()
            .unwrap();
        let cast = Runtime::new(loom.clone()).cast(&cantrip, cantrip::CastOptions::on("talk")).await;
        assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
        let program = format!(
            "var calls = history.calls;\n\
             var told = [calls.length, history.dropped, calls[0].result, calls[19].gate, calls[0].succeeded].join();\n\
             done(Object.assign({GOOD}, {{answer: told}}))"
        );
        let without = format!("done(Object.assign({GOOD}, {{answer: typeof history}}))");
        let script = scripted([program, without].map(Response::code));
        let predictor = predictor(&loom, says(&script), TraceArchive::inline());
        let how = PredictOptions { thread: cast.entity, history: true, ..PredictOptions::default() };
        let reply = predictor.predict(&answer(), &input(), how).await;
        assert_code(&reply.guarded.reply, codes::PREDICTED);
        assert_eq!(reply.predicted.output.unwrap()["answer"], "20,4,call 4,done,true");
        assert!(texts(&script.requests()[0])[0].contains("- history: object with 2"));
        let reply = predictor.predict(&answer(), &input(), PredictOptions::default()).await;
        assert_eq!(reply.predicted.output.unwrap()["answer"], "undefined");
        assert_eq!(verify(&loom, ReceiptFilter::default()).await.unwrap().findings, []);
    }
}

#[tokio::test]
async fn a_pointer_to_an_artifact_of_programs_runs_programs() {
    for (loom, _folder) in stores() {
        let script = scripted([Response::code(format!("done({GOOD})"))]);
        let predictor = predictor(&loom, says(&script), TraceArchive::inline());
        let signature = predictor.catalog().signature(&answer()).await.unwrap();
        let at: Timestamp = "2026-02-19T01:00:00.000Z".parse().unwrap();
        let origin = |id| OriginRow::new(id, Provenance::Manual, "ann", at);
        let given = json!({"instructions": "Look closely.", "sub_instructions": "Read."});
        let other = predictor.catalog().add_artifact(&given, &signature, origin).await.unwrap();
        assert_eq!(other.strategy(), Strategy::RlmLite);
        let change = PointerOperation::Set { artifact: other.id(), seed: None, metadata: None };
        let by = ChangeAuthor { audit_id: IdSource::seeded(3).next(at), actor: "ann".to_owned(), reason: None, at };
        let asked = PointerChange { signature_id: answer(), expected_version: 0, change, by };
        predictor.catalog().write_rows(vec![ContractRow::Pointer(Box::new(asked))]).await.unwrap();
        let reply = predictor.predict(&answer(), &input(), PredictOptions::default()).await;
        assert_code(&reply.guarded.reply, codes::PREDICTED);
        let receipt = told(&loom).await;
        assert_eq!((receipt.strategy_id, receipt.compiled_id), (Some(Strategy::RlmLite), Some(other.id())));
        assert!(texts(&script.requests()[0])[0].starts_with("Look closely."));
    }
}
