//! `rlm_lite.v1`: programs over the input as variables, bounded in utterances and sub-calls.

use cantrip::crystal::Response;
use cantrip::loom::{AnyLoom, Contracts, Loom, Message, Page, ReceiptsWanted};
use cantrip_contract::{Receipt, SignatureId, Status, Strategy};
use cantrip_ds::{Predicting, Traces, verify};
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
    let rows = loom.receipts(ReceiptsWanted::default(), Page::FIRST).await.unwrap().items;
    assert_eq!(verify(loom, ReceiptsWanted::default()).await.unwrap().findings, []);
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
        let predictor = predictor(&loom, says(&script), Traces::inline());
        let reply = predictor.predict(&answer(), &input(), Predicting::default()).await;
        assert_code(&reply.guarded.reply, codes::PREDICTED);
        assert_eq!(reply.predicted.output.unwrap()["answer"], "Bremen");
        for sent in script.inputs() {
            let bytes: usize = sent.messages.iter().map(|message| serde_json::to_string(message).unwrap().len()).sum();
            assert!(bytes < 20_000, "the documents are not in the prompt: {bytes}");
        }
        let asked = script.inputs();
        let Some(Message::System { content }) = asked[1].messages.get(0) else { panic!("{asked:?}") };
        assert!(content.text().starts_with("Read the text you are given"), "its own system prompt");
        let receipt = told(&loom).await;
        assert_eq!((receipt.status, receipt.strategy_id), (Status::Succeeded, Some(Strategy::RlmLite)));
        assert_eq!((receipt.budget.sub_calls, receipt.budget.model_calls, receipt.budget.iterations), (1, 2, 1));
        let rows = loom.receipts(ReceiptsWanted::default(), Page::FIRST).await.unwrap().items;
        assert_eq!(rows.len(), 1, "its children have the predict's alone");
        assert_eq!(loom.runs(Page::FIRST).await.unwrap().items.len(), 1);
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
        let predictor = predictor(&loom, says(&script), Traces::inline());
        let reply = predictor.predict(&answer(), &input(), Predicting::default()).await;
        assert_code(&reply.guarded.reply, codes::PREDICTED);
        let code = codes::CALLS_SPENT.any().as_str();
        assert_eq!(reply.predicted.output.unwrap()["answer"], format!("{code},{code}"));
        assert_eq!(script.asked(), 4, "three children, and none of a batch that does not fit");
        assert_eq!(told(&loom).await.budget.sub_calls, 3);
    }
}

#[tokio::test]
async fn without_an_answer_in_the_last_iteration_there_is_none() {
    for (loom, _folder) in stores() {
        let script = scripted((0..5).map(|_| Response::code("done({answer: 'Bremen'})")));
        let predictor = predictor(&loom, says(&script), Traces::inline());
        let reply = predictor.predict(&answer(), &input(), Predicting::default()).await;
        assert_code(&reply.guarded.reply, codes::WARD_REACHED);
        assert_eq!(reply.guarded.reply.data()["reason"], "no_answer");
        assert_eq!(script.asked(), 3, "no hidden extra call");
        assert_eq!(told(&loom).await.status, Status::Failed);
        for iterations in [0, 9] {
            let how = Predicting { max_iterations: Some(iterations), ..Predicting::default() };
            let reply = predictor.predict(&answer(), &input(), how).await;
            assert_eq!(reply.guarded.reply.data()["reason"], "invalid_iteration_budget");
        }
        assert_eq!(script.asked(), 3);
    }
}
