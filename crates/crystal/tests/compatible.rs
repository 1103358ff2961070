//! The OpenAI-compatible protocol, over real HTTP.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]
#![cfg(feature = "http")]

use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::{Hash, Secret};
use cantrip_crystal::conformance::{RecordingSink, check_events, sample_request};
use cantrip_crystal::{
    Answer, Cause, Charge, Crystal, Failure, Hosted, MessageLog, NullSink, Request, RetryPolicy, Sampling, ToolChoice,
    contract,
};
use cantrip_loom::{Bodies, Body, Content, Finish, GateCall, Maker, Message, Part, ProviderParts};
use cantrip_reply::testing::{assert_code, guarded};
use cantrip_reply::{Code, ReplyType, codes};
use cantrip_tests::garble;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::server;

use server::{Log, Served, chunks, serve, stream};

fn delta(delta: Value) -> Value {
    json!({"id": "x", "model": "small-v2", "choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
}

fn end(reason: &str) -> Value {
    json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
}

async fn endpoint(responses: impl IntoIterator<Item = Served>) -> (Hosted, Arc<Log>) {
    let (url, log) = serve(responses).await;
    (Hosted::compatible("small", &url, None).expect("an address"), log)
}

/// Sends one request, and checks the promises for its outcome.
async fn ask(served: Served) -> Result<Answer, Failure> {
    let (crystal, _) = endpoint([served]).await;
    asked(&crystal).await
}

async fn asked(crystal: &Hosted) -> Result<Answer, Failure> {
    let heard = RecordingSink::default();
    let outcome = crystal.ask(&sample_request(1), &heard).await;
    assert_eq!(check_events(&heard.events(), &outcome), Ok(()));
    outcome
}

#[track_caller]
fn ends_in(failure: &Failure, code: Code<cantrip_reply::Failure>) {
    assert_code(&guarded(|rb| rb.error(failure.to_reply(1))).reply, code);
}

#[tokio::test]
async fn text_reasoning_usage_and_the_answering_model_are_read() {
    let usage = json!({"choices": [], "usage": {
        "prompt_tokens": 20, "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 16}, "completion_tokens_details": {"reasoning_tokens": 3},
    }});
    let text = [delta(json!({"role": "assistant", "content": ""})), delta(json!({"reasoning_content": "hm"}))];
    let more = [delta(json!({"content": "naïve "})), delta(json!({"content": "日本"})), end("stop"), usage];
    let answer = ask(stream(&[&text[..], &more[..]].concat())).await.unwrap();
    assert_eq!(answer.utterance.content.as_deref(), Some("naïve 日本"));
    assert_eq!(answer.utterance.thinking.as_deref(), Some("hm"));
    assert_eq!((&*answer.utterance.model, &answer.utterance.finish), ("small-v2", &Finish::Stop));
    let usage = answer.usage.unwrap();
    assert_eq!((usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens), (20, 7, 16));
    assert_eq!(usage.reasoning_tokens, Some(3));
}

#[tokio::test]
async fn calls_are_kept_apart_by_their_index() {
    let call = |index: u64, id: Option<&str>, name: Option<&str>, arguments: &str| {
        let mut call = json!({"index": index, "function": {"arguments": arguments}});
        if let (Some(id), Some(name)) = (id, name) {
            call["id"] = id.into();
            call["function"]["name"] = name.into();
        }
        delta(json!({"tool_calls": [call]}))
    };
    let events = [
        call(0, Some("c1"), Some("read"), "{\"pa"),
        call(4_294_967_295, Some("c2"), Some("done"), ""),
        call(0, None, None, "th\": \"a\"}"),
        end("tool_calls"),
    ];
    let said = ask(stream(&events)).await.unwrap().utterance;
    let calls: Vec<_> = said.calls.iter().map(|call| (&*call.tool_call_id, &*call.gate, call.args.clone())).collect();
    assert_eq!(calls, [("c1", "read", json!({"path": "a"})), ("c2", "done", json!({}))]);
    assert_eq!(said.finish, Finish::Calls);
}

#[tokio::test]
async fn doubled_ids_are_renamed_where_the_order_is_clear_and_missing_ones_are_made() {
    let call =
        |index: u64, id: Value| json!({"index": index, "id": id, "function": {"name": "read", "arguments": "{}"}});
    let doubled = delta(json!({"tool_calls": [call(0, "c".into()), call(1, "c".into())]}));
    let said = ask(stream(&[doubled, end("tool_calls")])).await.unwrap().utterance;
    assert_eq!((said.calls.len(), contract::find_violation(&said)), (2, None));
    assert_eq!(said.calls[0].tool_call_id, "c", "the first one keeps its id");
    // Without an index the second piece may continue the first one.
    let unnumbered = || json!({"id": "c", "function": {"name": "read", "arguments": "{}"}});
    let unclear = delta(json!({"tool_calls": [unnumbered(), unnumbered()]}));
    let said = ask(stream(&[unclear, end("tool_calls")])).await.unwrap().utterance;
    assert!(matches!(contract::find_violation(&said), Some(contract::ContractViolation::DuplicateCall { .. })));
    let missing = delta(json!({"tool_calls": [call(0, Value::Null), call(1, Value::Null)]}));
    let said = ask(stream(&[missing, end("tool_calls")])).await.unwrap().utterance;
    assert_eq!((said.calls.len(), contract::find_violation(&said)), (2, None));
    let unnumbered = json!({"tool_calls": [
        {"id": "a", "function": {"name": "read", "arguments": {"path": "a"}}},
        {"id": "b", "function": {"name": "read", "arguments": "{\"path\": \"b\"}"}},
    ]});
    let said = ask(stream(&[delta(unnumbered), end("stop")])).await.unwrap().utterance;
    let paths: Vec<_> = said.calls.iter().map(|call| call.args["path"].as_str()).collect();
    assert_eq!(paths, [Some("a"), Some("b")]);
}

#[tokio::test]
async fn an_empty_list_of_calls_is_none() {
    let whole = json!({
        "model": "small", "usage": {"prompt_tokens": 10, "completion_tokens": 5},
        "choices": [{"message": {"role": "assistant", "content": "Hello", "tool_calls": []}, "finish_reason": "stop"}],
    });
    let streamed = stream(&[delta(json!({"content": "Hello", "tool_calls": []})), end("tool_calls")]);
    let plain = Served::Whole(200, "content-type: application/json; charset=utf-8\r\n", whole.to_string());
    for served in [streamed, plain] {
        let said = ask(served).await.unwrap().utterance;
        assert_eq!((said.content.as_deref(), said.calls.len(), said.finish), (Some("Hello"), 0, Finish::Stop));
    }
}

#[tokio::test]
async fn each_status_fails_as_what_it_is_and_costs_nothing() {
    let error = |status, headers| {
        ask(Served::Whole(status, headers, json!({"error": {"message": "told why", "type": "t"}}).to_string()))
    };
    let retryable = |failure: &Failure| RetryPolicy::default().is_retryable(failure);

    let bad = error(400, "").await.unwrap_err();
    assert!(!retryable(&bad) && bad.to_string().contains("told why"), "{bad}");
    assert_eq!(bad.charge, Charge::Nothing);
    ends_in(&bad, codes::CRYSTAL_REJECTED);

    let unauthorised = error(401, "").await.unwrap_err();
    assert!(!retryable(&unauthorised));
    ends_in(&unauthorised, codes::AUTH_FAILED);

    let limited = error(429, "retry-after: 7\r\n").await.unwrap_err();
    assert_eq!((retryable(&limited), limited.retry_after()), (true, Some(Duration::from_secs(7))));
    ends_in(&limited, codes::RATE_LIMITED);

    let down = error(500, "retry-after-ms: 250\r\n").await.unwrap_err();
    assert_eq!((retryable(&down), down.retry_after()), (true, Some(Duration::from_millis(250))));
    ends_in(&down, codes::UNREACHABLE);

    let dated = "date: Wed, 21 Oct 2026 07:28:00 GMT\r\nretry-after: Wed, 21 Oct 2026 07:28:30 GMT\r\n";
    assert_eq!(error(503, dated).await.unwrap_err().retry_after(), Some(Duration::from_secs(30)));

    let moved = error(302, "location: http://127.0.0.1:1/\r\n").await.unwrap_err();
    assert_eq!(moved.status(), Some(302));
}

#[tokio::test]
async fn a_list_that_is_too_long_is_told_apart_from_other_bad_requests() {
    for error in [
        json!({"code": "context_length_exceeded", "message": "too long"}),
        json!({"type": "exceed_context_size_error", "n_prompt_tokens": 9000, "n_ctx": 8192, "message": "too long"}),
        json!({"message": "This model's maximum context length is 8192 tokens."}),
    ] {
        let failure = ask(Served::Whole(400, "", json!({"error": error}).to_string())).await.unwrap_err();
        assert!(failure.is_context_too_long(), "{error}");
        ends_in(&failure, codes::CONTEXT_TOO_LONG);
    }
}

#[tokio::test]
async fn a_stream_without_its_end_mark_or_its_reason_is_broken() {
    let text = delta(json!({"content": "half a"}));
    let cut = ask(Served::Stream(chunks(&[text.clone(), end("stop")]))).await.unwrap_err();
    assert_eq!(cut.charge, Charge::Unknown);
    assert!(RetryPolicy::default().is_retryable(&cut));
    ends_in(&cut, codes::STREAM_BROKEN);
    let unreasoned = ask(stream(std::slice::from_ref(&text))).await.unwrap_err();
    assert!(matches!(unreasoned.cause, Cause::Broken { .. }));
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 1}});
    let counted = ask(Served::Stream(chunks(&[text, usage]))).await.unwrap_err();
    assert_eq!(counted.charge.usage().map(|usage| usage.prompt_tokens), Some(4));
    let garbage = ask(Served::Stream(b"data: {\"choices\": [\n\ndata: [DONE]\n\n".to_vec())).await.unwrap_err();
    assert!(matches!(garbage.cause, Cause::Broken { .. }));
    let unterminated =
        Served::Stream([chunks(&[delta(json!({"content": "a"})), end("stop")]), b"data: [DONE]".to_vec()].concat());
    assert!(ask(unterminated).await.is_ok(), "an end mark without a line end is one");
}

#[tokio::test]
async fn an_error_inside_a_stream_fails_the_attempt() {
    let text = delta(json!({"content": "half a"}));
    let gateway = json!({"error": {"code": 502, "message": "upstream"}, "choices": [{"delta": {}}]});
    let failure = ask(stream(&[text.clone(), gateway])).await.unwrap_err();
    assert_eq!((failure.status(), failure.charge), (Some(502), Charge::Unknown));
    let plain = ask(stream(&[text, json!({"error": "it fell over"})])).await.unwrap_err();
    assert!(matches!(plain.cause, Cause::Broken { .. }));
}

#[tokio::test]
async fn a_refusal_and_a_filter_are_refusals() {
    let refusal = stream(&[delta(json!({"refusal": "I cannot."})), end("stop")]);
    let filtered = stream(&[delta(json!({"content": "Well"})), end("content_filter")]);
    let rejected = Served::Whole(400, "", json!({"error": {"code": "content_filter", "message": "no"}}).to_string());
    for served in [refusal, filtered, rejected] {
        ends_in(&ask(served).await.unwrap_err(), codes::CRYSTAL_REFUSED);
    }
}

#[tokio::test]
async fn nobody_there_is_unreachable_and_costs_nothing() {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    drop(listener);
    let failure =
        Hosted::compatible("small", &url, None).unwrap().ask(&sample_request(1), &NullSink).await.unwrap_err();
    assert_eq!(failure.charge, Charge::Nothing);
    assert!(RetryPolicy::default().is_retryable(&failure));
    ends_in(&failure, codes::UNREACHABLE);
}

#[tokio::test]
async fn dropping_a_request_closes_its_connection() {
    let (crystal, log) = endpoint([Served::Stuck(chunks(&[delta(json!({"content": "half a"}))]))]).await;
    let (heard, request) = (RecordingSink::default(), sample_request(1));
    tokio::select! { biased;
        outcome = crystal.ask(&request, &heard) => panic!("{outcome:?}"),
        () = heard.wait_for_delta() => {}
    }
    log.hung_up.notified().await;
}

struct OneBody(Body);

impl Bodies for OneBody {
    fn body(&self, _hash: &Hash) -> Result<Arc<[u8]>, cantrip_loom::Error> {
        Ok(Arc::clone(self.0.bytes()))
    }
}

#[tokio::test]
async fn the_whole_request_goes_out_in_the_wires_words() {
    let (url, log) = serve([stream(&[delta(json!({"content": "a"})), end("stop")])]).await;
    let key = Secret::new("sk-planted-key".to_owned());
    let crystal = Hosted::compatible("small", &url, Some(&key)).unwrap();
    assert!(!format!("{crystal:?}").contains("planted"));

    let image = Body::new(vec![1, 2, 3]).unwrap();
    let part = Part::Image { media_type: "image/png".into(), image: image.reference() };
    let call = |id: &str, args| GateCall { tool_call_id: id.into(), gate: "read".into(), args };
    let parts = |provider: &str| {
        let parts = json!({"reasoning_details": [{"type": "reasoning.encrypted"}]});
        Some(ProviderParts { maker: Maker::new(provider), parts })
    };
    let list = MessageLog::new();
    list.push(Message::System { content: "You count.".into() });
    list.push(Message::User { content: Content::Parts(vec![Part::Text { text: "what is it?".into() }, part]) });
    list.push(Message::Assistant {
        content: None,
        calls: vec![call("c1", json!({"path": "a"})), call("c2", json!("{\"pa"))],
        parts: parts(crystal.name()),
    });
    list.push(Message::Tool { tool_call_id: "c1".into(), gate: "read".into(), content: "text".into() });
    list.push(Message::Tool { tool_call_id: "c2".into(), gate: "read".into(), content: "Invalid".into() });
    list.push(Message::Assistant { content: Some("Hm.".into()), calls: vec![], parts: parts("anthropic") });
    let request = Request {
        messages: list.all(),
        choice: ToolChoice::Required,
        output_tokens_max: 99,
        sampling: Sampling { temperature: Some(0.5), seed: Some(7), stop: vec!["END".into()], top_p: None },
        bodies: Arc::new(OneBody(image)),
        ..sample_request(1)
    };
    crystal.ask(&request, &NullSink).await.unwrap();

    let [asked] = &log.asked()[..] else { panic!() };
    assert_eq!(asked.path, "/v1/chat/completions");
    assert!(asked.head.contains("authorization: Bearer sk-planted-key"));
    let details = json!([{"type": "reasoning.encrypted"}]);
    let function = |name: &str, arguments: &str| json!({"name": name, "arguments": arguments});
    let expected = json!({
        "model": "small",
        "messages": [
            {"role": "system", "content": "You count."},
            {"role": "user", "content": [
                {"type": "text", "text": "what is it?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AQID"}},
            ]},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "c1", "type": "function", "function": function("read", "{\"path\":\"a\"}")},
                {"id": "c2", "type": "function", "function": function("read", "{\"pa")},
            ], "reasoning_details": details},
            {"role": "tool", "tool_call_id": "c1", "content": "text"},
            {"role": "tool", "tool_call_id": "c2", "content": "Invalid"},
            {"role": "assistant", "content": "Hm."},
        ],
        "stream": true,
        "stream_options": {"include_usage": true},
        "max_tokens": 99,
        "temperature": 0.5,
        "seed": 7,
        "stop": ["END"],
        "tools": [{"type": "function", "function": {
            "name": "javascript",
            "description": "Runs a program.",
            "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
        }}],
        "tool_choice": "required",
    });
    assert_eq!(asked.body, expected);
}

#[tokio::test]
async fn parts_of_the_endpoints_own_are_kept_for_it() {
    let detail = json!({"type": "reasoning.text", "signature": "s"});
    let (crystal, _) =
        endpoint([stream(&[delta(json!({"content": "a", "reasoning_details": [detail]})), end("stop")])]).await;
    let parts = crystal.ask(&sample_request(1), &NullSink).await.unwrap().utterance.parts.unwrap();
    assert_eq!((parts.maker.crystal(), &parts.parts["reasoning_details"][0]), (crystal.name(), &detail));
}

fn anything() -> impl Strategy<Value = Value> {
    let word =
        prop_oneof![Just(""), Just("a"), Just("{\"p\":"), Just("1}"), Just("read"), Just("tool_calls"), Just("stop")];
    let leaf = prop_oneof![
        Just(json!(null)),
        Just(json!(0)),
        Just(json!(u64::MAX)),
        Just(json!(-1.5)),
        word.prop_map(Value::from),
    ];
    let key = prop_oneof![
        Just("content"),
        Just("tool_calls"),
        Just("index"),
        Just("id"),
        Just("function"),
        Just("name"),
        Just("arguments"),
        Just("reasoning"),
        Just("refusal"),
        Just("reasoning_details"),
    ];
    leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            proptest::collection::vec((key.clone(), inner), 0..4)
                .prop_map(|entries| entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ]
    })
}

/// A stream with every kind of content.
const STREAM: &str = r#"data: {"id":"x","model":"small","choices":[{"index":0,"delta":{"role":"assistant","content":"Hel"}}]}

data: {"choices":[{"index":0,"delta":{"content":"lo","reasoning_content":"hm"}}]}

: a comment
data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","function":{"name":"read","arguments":"{\"p\":"}}]}}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]},"finish_reason":"tool_calls"}]}

data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}}

data: [DONE]

"#;

/// Text that has a meaning in a stream, or nearly.
const WORDS: &[&str] = &[
    "data:",
    "data: ",
    "\n\n",
    "\r\n\r\n",
    "\r",
    "event: error\n",
    "id: 1\n",
    "retry: 5\n",
    ": ",
    "[DONE]",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\",
    ",",
    "null",
    "true",
    "-1",
    "1e999",
    "99999999999999999999",
    "\"error\":{\"message\":\"no\"},",
    "\"index\":7,",
    "\"choices\":[],",
    "\"delta\":null,",
    "\"finish_reason\":\"content_filter\",",
    "\"tool_calls\":[{}],",
    "\\ud800",
    "\u{0}",
    "\u{feff}",
    "<html>",
];

proptest! {
    #![proptest_config(garble::samples(48))]

    /// Asking holds each outcome to the promises; a whole answer and a stream are read by different code.
    #[test]
    fn a_server_that_is_almost_right_is_understood_or_a_failure_with_its_code(
        streamed in garble::garbled(&[STREAM], WORDS),
        whole in garble::garbled_text(&[WHOLE], WORDS),
    ) {
        let json = "content-type: application/json\r\n";
        let served = [Served::Stream(streamed), Served::Whole(200, json, whole.clone()), Served::Whole(500, json, whole)];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let outcomes = runtime.block_on(async {
            let (crystal, _) = endpoint(served).await;
            [asked(&crystal).await, asked(&crystal).await, asked(&crystal).await]
        });
        for failure in outcomes.into_iter().filter_map(Result::err) {
            let reply = guarded(|rb| rb.error(failure.to_reply(1))).reply;
            prop_assert_eq!(reply.reply_type(), ReplyType::Failure);
        }
    }
}

const WHOLE: &str = r#"{"id": "x", "model": "small", "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {
    "role": "assistant", "content": "Hello", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{\"p\": 1}"}}]}}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2}}"#;

proptest! {
    #![proptest_config(garble::samples(64))]

    /// `ask` holds each outcome to the promises.
    #[test]
    fn whatever_a_server_says_the_promises_hold(deltas in proptest::collection::vec(anything(), 0..6), cut: usize) {
        let mut events: Vec<_> = deltas.into_iter().map(delta).collect();
        events.push(end("stop"));
        let mut bytes = chunks(&events);
        bytes.extend_from_slice(b"data: [DONE]\n\n");
        let whole = cut % 2 == 0;
        // The end mark needs no line end.
        bytes.truncate(if whole { bytes.len() } else { cut % (bytes.len() - 2) });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let outcome = runtime.block_on(ask(Served::Stream(bytes)));
        prop_assert!(whole || outcome.is_err());
    }
}

#[tokio::test]
async fn an_answer_beyond_its_bound_is_not_asked_for_again() {
    let long = "a".repeat(cantrip_crystal::limits::ANSWER_BYTES_MAX + 1);
    let body = json!({"choices": [{"message": {"content": long}, "finish_reason": "stop"}]}).to_string();
    let failure = ask(Served::Whole(200, "content-type: application/json\r\n", body)).await.unwrap_err();
    assert!(matches!(failure.cause, Cause::TooLarge { .. }) && !RetryPolicy::default().is_retryable(&failure));
}
