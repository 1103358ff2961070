//! Every family of providers over real HTTP: the same answer gives the same result, whichever family sent it.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]
#![cfg(feature = "http")]

use std::io::Write;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::Hash;
use cantrip_crystal::conformance::{RecordingSink, check_events, sample_request};
use cantrip_crystal::{
    Access, Answer, Cause, Charge, Crystal, Effort, Failure, Hosted, MessageLog, NullSink, OutputFormat, Profiles,
    Provider, Request, RetryPolicy, Sampling, Thinking, ToolChoice, ToolDefinition, Wire, contract,
};
use cantrip_loom::{Bodies, Body, Content, Finish, GateCall, Message, Part, Utterance};
use cantrip_reply::testing::{assert_code, guarded};
use cantrip_reply::{Code, codes};
use cantrip_tests::garble;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::family;
use crate::server;

use family::{COUNTED, End, Family, Piece, Said};
use server::{Log, Served, serve};

/// Sends one request, and checks the promises for its outcome.
async fn ask(family: Family, served: Served) -> Result<Answer, Failure> {
    let (url, _) = serve([served]).await;
    let heard = RecordingSink::default();
    let outcome = family.crystal(&url, None).ask(&sample_request(1), &heard).await;
    assert_eq!(check_events(&heard.events(), &outcome), Ok(()), "{family:?}");
    outcome
}

#[track_caller]
fn ends_in(failure: &Failure, code: Code<cantrip_reply::Failure>) {
    assert_code(&guarded(|rb| rb.error(failure.to_reply(1))).reply, code);
}

fn said(pieces: impl Into<Vec<Piece>>, end: End) -> Said {
    Said { pieces: pieces.into(), end }
}

/// Thinking, text and two parallel calls.
fn everything() -> Said {
    let read = Piece::Call("call_1", "read", r#"{"path": "naïve.txt"}"#);
    let write = Piece::Call("call_2", "write", r#"{"path": "b", "text": "日本"}"#);
    said([Piece::Thought("hm, two", "signed-1"), Piece::Text(&["I lo", "ok. "]), read, write], End::Calls)
}

#[tokio::test]
async fn the_same_answer_is_the_same_utterance_and_the_same_usage_streamed_or_whole() {
    for family in Family::ALL {
        for served in [family.streamed(&everything()), family.whole(&everything())] {
            let answer = ask(family, served).await.unwrap();
            let Utterance { content, calls, thinking, model, finish, .. } = answer.utterance;
            assert_eq!((content.as_deref(), thinking.as_deref()), (Some("I look. "), Some("hm, two")), "{family:?}");
            let calls: Vec<_> = calls.iter().map(|call| (&*call.tool_call_id, &*call.gate, &call.args)).collect();
            let (read, write) = (json!({"path": "naïve.txt"}), json!({"path": "b", "text": "日本"}));
            assert_eq!(calls, [("call_1", "read", &read), ("call_2", "write", &write)], "{family:?}");
            assert_eq!((&*model, finish), ("m-2", Finish::Calls), "{family:?}");
            let usage = answer.usage.unwrap();
            assert_eq!(
                (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens),
                family.counted(),
                "{family:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_text_is_heard_while_it_is_said() {
    for family in Family::ALL {
        let (url, _) = serve([family.streamed(&said([Piece::Text(&["one ", "two ", "three"])], End::Stop))]).await;
        let heard = RecordingSink::default();
        let answer = family.crystal(&url, None).ask(&sample_request(1), &heard).await.unwrap();
        assert_eq!(answer.utterance.content.as_deref(), Some("one two three"));
        // Nothing has to be sent back, except the id and the status of a message that has them.
        assert_eq!(answer.utterance.parts.is_some(), family == Family::Responses);
        let deltas =
            heard.events().iter().filter(|event| matches!(event, cantrip_crystal::ItemEvent::Delta(_))).count();
        assert_eq!(deltas, 3, "{family:?}");
    }
}

/// Returns the messages after this answer, with its tool results.
fn after(answer: &Utterance) -> MessageLog {
    let list = MessageLog::new();
    list.push(Message::System { content: "You read.".into() });
    list.push(Message::User { content: "go".into() });
    let Utterance { content, calls, parts, .. } = answer.clone();
    let results: Vec<_> = calls.iter().map(|call| (call.tool_call_id.clone(), call.gate.clone())).collect();
    list.push(Message::Assistant { content: content.map(Content::from), calls, parts });
    for (tool_call_id, gate) in results {
        list.push(Message::Tool { content: format!("result of {tool_call_id}").into(), tool_call_id, gate });
    }
    list
}

/// Returns the body that is sent for this request.
async fn body_of(family: Family, request: Request) -> Value {
    let (url, log) = serve([family.streamed(&said([Piece::Text(&["a"])], End::Stop))]).await;
    family.crystal(&url, None).ask(&request, &NullSink).await.unwrap();
    log.asked().pop().unwrap().body
}

async fn listed(family: Family, list: &MessageLog) -> Value {
    body_of(family, Request { messages: list.all(), ..sample_request(1) }).await
}

#[tokio::test]
async fn what_only_its_provider_can_read_is_given_back_to_it_in_order_and_to_nobody_else() {
    for family in Family::ALL {
        let answer = ask(family, family.streamed(&everything())).await.unwrap().utterance;
        let body = listed(family, &after(&answer)).await;
        let given = match family {
            Family::Anthropic => body["messages"][1]["content"].clone(),
            Family::Responses => body["input"].clone(),
            Family::Chat | Family::Ollama => body["messages"][2].clone(),
            Family::Gemini => body["contents"][1]["parts"].clone(),
        };
        let (read, write) = (json!({"path": "naïve.txt"}), json!({"path": "b", "text": "日本"}));
        match family {
            Family::Anthropic => {
                let expected = json!([
                    {"type": "thinking", "thinking": "hm, two", "signature": "signed-1"},
                    {"type": "text", "text": "I look. "},
                    {"type": "tool_use", "id": "call_1", "name": "read", "input": read},
                    {"type": "tool_use", "id": "call_2", "name": "write", "input": write},
                ]);
                assert_eq!(given, expected);
            }
            Family::Responses => {
                let kinds: Vec<_> = given.as_array().unwrap().iter().map(|item| item["type"].as_str()).collect();
                let calls = [Some("function_call"); 2];
                let results = [Some("function_call_output"); 2];
                assert_eq!(kinds, [&[None, None, Some("reasoning"), Some("message")], &calls[..], &results].concat());
                let summary = json!([{"type": "summary_text", "text": "hm, two"}]);
                let reasoning =
                    json!({"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "signed-1"});
                assert_eq!(given[2], reasoning);
            }
            Family::Chat => {
                assert_eq!(given["reasoning_details"], json!([{"type": "reasoning.encrypted", "data": "signed-1"}]));
            }
            // Ollama signs nothing, and wants its thinking back.
            Family::Ollama => {
                let calls = json!([
                    {"function": {"name": "read", "arguments": read}},
                    {"function": {"name": "write", "arguments": write}},
                ]);
                let said =
                    json!({"role": "assistant", "content": "I look. ", "thinking": "hm, two", "tool_calls": calls});
                assert_eq!(given, said);
            }
            Family::Gemini => {
                let expected = json!([
                    {"text": "", "thoughtSignature": "signed-1"},
                    {"text": "I look. "},
                    {"functionCall": {"id": "call_1", "name": "read", "args": read}, "thoughtSignature": "signs_call_1"},
                    {"functionCall": {"id": "call_2", "name": "write", "args": write}, "thoughtSignature": "signs_call_2"},
                ]);
                assert_eq!(given, expected);
            }
        }
        for other in Family::ALL.into_iter().filter(|other| *other != family) {
            let body = listed(other, &after(&answer)).await.to_string();
            assert!(!body.contains("signed-1") && !body.contains("signs_call_1"), "{family:?} to {other:?}: {body}");
            assert!(body.contains("I look. ") && body.contains("naïve.txt") && body.contains("result of call_2"));
        }
    }
}

#[tokio::test]
async fn results_of_calls_made_together_go_back_together() {
    let answer = ask(Family::Chat, Family::Chat.streamed(&everything())).await.unwrap().utterance;
    let body = listed(Family::Anthropic, &after(&answer)).await;
    let results = &body["messages"][2]["content"];
    assert_eq!(body["messages"].as_array().unwrap().len(), 3, "{body}");
    assert_eq!((&results[0]["tool_use_id"], &results[1]["tool_use_id"]), (&json!("call_1"), &json!("call_2")));
    let body = listed(Family::Gemini, &after(&answer)).await;
    let results = &body["contents"][2]["parts"];
    let response = json!({"id": "call_2", "name": "write", "response": {"result": "result of call_2"}});
    assert_eq!(results[1], json!({ "functionResponse": response }));
}

#[tokio::test]
async fn how_an_answer_ends_is_told_in_our_words() {
    for family in Family::ALL {
        let cut = ask(family, family.streamed(&said([Piece::Text(&["half a"])], End::Length))).await.unwrap();
        assert_eq!(cut.utterance.finish, Finish::Length, "{family:?}");
        if !family.refuses() {
            continue;
        }
        let refused = ask(family, family.streamed(&said([Piece::Text(&["I cannot."])], End::Refusal))).await;
        let refused = refused.unwrap_err();
        assert!(!RetryPolicy::default().is_retryable(&refused), "{family:?}");
        assert_eq!(refused.charge.usage().map(|usage| usage.prompt_tokens), Some(COUNTED.0), "{family:?}");
        ends_in(&refused, codes::CRYSTAL_REFUSED);
    }
}

/// Some servers of the Responses wire say `completed` of an answer that they cut off.
#[tokio::test]
async fn an_answer_as_long_as_it_may_be_is_cut_off_whatever_its_server_says() {
    let family = Family::Responses;
    let whole = said([Piece::Text(&["once upon ", "a"])], End::Stop);
    for (output_tokens_max, finish) in [(20, Finish::Length), (21, Finish::Stop)] {
        for served in [family.streamed(&whole), family.whole(&whole)] {
            let (url, _) = serve([served]).await;
            let request = Request { output_tokens_max, ..sample_request(1) };
            let answer = family.crystal(&url, None).ask(&request, &NullSink).await.unwrap();
            assert_eq!(answer.utterance.finish, finish, "{output_tokens_max}");
        }
    }
}

/// llama.cpp rejects an assistant's message that does not say that it is one.
#[tokio::test]
async fn a_message_of_another_source_has_a_type_on_the_responses_wire() {
    let list = MessageLog::new();
    list.push(Message::User { content: "one".into() });
    list.push(Message::Assistant { content: Some("1".into()), calls: Vec::new(), parts: None });
    list.push(Message::User { content: "two".into() });
    let body = listed(Family::Responses, &list).await;
    assert_eq!(body["input"][1], json!({"type": "message", "role": "assistant", "content": "1"}));
}

#[tokio::test]
async fn a_stream_that_is_cut_anywhere_is_broken_and_asked_for_again() {
    for family in Family::ALL {
        let events = family.events(&everything());
        for kept in 0..events.len() - 1 {
            let failure = ask(family, family.stream(&events[..kept])).await.unwrap_err();
            assert!(matches!(failure.cause, Cause::Broken { .. }), "{family:?} after {kept}: {failure}");
            assert!(RetryPolicy::default().is_retryable(&failure), "{family:?} after {kept}");
            ends_in(&failure, codes::STREAM_BROKEN);
        }
        let mut garbled = events.clone();
        let middle = garbled.len() / 2;
        garbled[middle] = garbled[middle].chars().take(20).collect();
        let failure = ask(family, family.stream(&garbled)).await.unwrap_err();
        assert!(matches!(failure.cause, Cause::Broken { .. }), "{family:?}: {failure}");
    }
}

#[tokio::test]
async fn an_error_in_the_middle_fails_the_attempt_and_says_what_it_was() {
    for family in Family::ALL {
        let mut events = family.events(&everything());
        events.truncate(2);
        events.push(family.trouble());
        let failure = ask(family, family.stream(&events)).await.unwrap_err();
        assert!(failure.status().is_some_and(|status| status >= 500), "{family:?}: {failure}");
        assert!(
            failure.to_string().contains("Overloaded") && RetryPolicy::default().is_retryable(&failure),
            "{family:?}"
        );
        assert_ne!(failure.charge, Charge::Nothing, "{family:?}");
    }
}

#[tokio::test]
async fn a_status_is_told_with_the_providers_words_and_its_wish_to_be_left_alone() {
    for family in Family::ALL {
        let error = |status, headers, word| ask(family, Served::Whole(status, headers, family.error(word, "told why")));
        let status = if family == Family::Anthropic { 529 } else { 503 };
        let overloaded = error(status, "retry-after: 7\r\n", "overloaded_error").await.unwrap_err();
        assert_eq!(overloaded.retry_after(), Some(Duration::from_secs(7)), "{family:?}");
        assert_eq!((RetryPolicy::default().is_retryable(&overloaded), overloaded.charge), (true, Charge::Nothing));
        let limited = error(429, "", "rate_limit_error").await.unwrap_err();
        ends_in(&limited, codes::RATE_LIMITED);
        let bad = error(400, "", "invalid_request_error").await.unwrap_err();
        assert!(
            bad.to_string().contains("told why") && !RetryPolicy::default().is_retryable(&bad),
            "{family:?}: {bad}"
        );
        ends_in(&bad, codes::CRYSTAL_REJECTED);
        ends_in(&error(401, "", "authentication_error").await.unwrap_err(), codes::AUTH_FAILED);
        let unknown = error(404, "", "not_found_error").await.unwrap_err();
        assert_eq!(unknown.status(), Some(404));
    }
    let details = json!([
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "12.5s"},
    ]);
    let body = json!([{"error": {"code": 429, "message": "slow down", "details": details}}]);
    let limited = ask(Family::Gemini, Served::Whole(429, "", body.to_string())).await.unwrap_err();
    assert_eq!(limited.retry_after(), Some(Duration::from_millis(12_500)));
    let details = json!([{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}]);
    let body = json!({"error": {"code": 400, "message": "API key not valid.", "details": details}});
    ends_in(&ask(Family::Gemini, Served::Whole(400, "", body.to_string())).await.unwrap_err(), codes::AUTH_FAILED);
}

#[tokio::test]
async fn a_list_that_is_too_long_is_told_apart_with_its_counts_where_they_are_given() {
    let told = |family: Family, word: &str, message: &str| family.error(word, message);
    // llama.cpp says the same on each of its three wires.
    let llama = json!({"error": {
        "code": 400, "message": "request (1128 tokens) exceeds the available context size (1024 tokens)",
        "type": "exceed_context_size_error", "n_prompt_tokens": 1_128, "n_ctx": 1_024,
    }});
    let llama = llama.to_string();
    let cases = [
        (Family::Anthropic, llama.clone(), (Some(1_128), Some(1_024))),
        (Family::Responses, llama.clone(), (Some(1_128), Some(1_024))),
        (Family::Chat, llama, (Some(1_128), Some(1_024))),
        (
            Family::Anthropic,
            told(Family::Anthropic, "invalid_request_error", "prompt is too long: 205000 tokens > 200000 maximum"),
            (Some(205_000), Some(200_000)),
        ),
        (Family::Responses, told(Family::Responses, "context_length_exceeded", "too long"), (None, None)),
        (Family::Chat, told(Family::Chat, "context_length_exceeded", "too long"), (None, None)),
        (
            Family::Gemini,
            told(
                Family::Gemini,
                "INVALID_ARGUMENT",
                "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
            ),
            (Some(1_200_000), Some(1_048_576)),
        ),
    ];
    for (family, body, counts) in cases {
        let failure = ask(family, Served::Whole(400, "", body)).await.unwrap_err();
        let Cause::ContextTooLong { tokens, window } = failure.cause else { panic!("{family:?}: {failure}") };
        assert_eq!((tokens, window), counts, "{family:?}");
    }
}

#[tokio::test]
async fn arguments_that_are_no_object_reach_the_circle_and_the_next_request_still_goes_out() {
    for family in [Family::Anthropic, Family::Responses, Family::Chat] {
        let answer = ask(family, family.streamed(&said([Piece::Call("c1", "read", "{\"path\": ")], End::Calls))).await;
        let answer = answer.unwrap().utterance;
        assert_eq!(answer.calls[0].args, json!("{\"path\": "), "{family:?}");
        for other in Family::ALL {
            let body = listed(other, &after(&answer)).await;
            match other {
                Family::Anthropic => assert!(body["messages"][1]["content"][0]["input"].is_object(), "{body}"),
                Family::Gemini => {
                    assert!(body["contents"][1]["parts"][0]["functionCall"]["args"].is_object(), "{body}");
                }
                Family::Ollama => {
                    assert!(body["messages"][2]["tool_calls"][0]["function"]["arguments"].is_object(), "{body}");
                }
                Family::Responses | Family::Chat => assert!(body.to_string().contains("\\\"path\\\": "), "{body}"),
            }
        }
    }
    let empty = ask(Family::Anthropic, Family::Anthropic.streamed(&said([Piece::Call("c1", "now", "")], End::Calls)));
    assert_eq!(empty.await.unwrap().utterance.calls[0].args, json!({}));
}

#[tokio::test]
async fn missing_ids_are_made_and_doubled_ones_are_told_apart() {
    for family in Family::ALL {
        let call = |id| Piece::Call(id, "read", "{}");
        let doubled = ask(family, family.streamed(&said([call("same"), call("same")], End::Calls))).await.unwrap();
        let breach = contract::find_violation(&doubled.utterance);
        match family {
            // Their calls come in order, and nothing that is sent back repeats the ids.
            Family::Chat | Family::Ollama => {
                assert_eq!((doubled.utterance.calls.len(), breach), (2, None), "{family:?}");
                assert_eq!(doubled.utterance.calls[0].tool_call_id, "same", "{family:?}");
            }
            Family::Anthropic | Family::Responses | Family::Gemini => {
                let is_doubled = matches!(breach, Some(contract::ContractViolation::DuplicateCall { .. }));
                assert!(is_doubled, "{family:?}");
            }
        }
        let missing = ask(family, family.streamed(&said([call(""), call("")], End::Calls))).await.unwrap().utterance;
        assert_eq!((missing.calls.len(), contract::find_violation(&missing)), (2, None), "{family:?}");
    }
}

#[tokio::test]
async fn an_id_of_another_provider_is_sent_as_the_wire_takes_it() {
    let list = MessageLog::new();
    list.push(Message::User { content: "go".into() });
    let call = GateCall { tool_call_id: "fn:call.1/2".into(), gate: "read".into(), args: json!({}) };
    list.push(Message::Assistant { content: None, calls: vec![call], parts: None });
    list.push(Message::Tool { tool_call_id: "fn:call.1/2".into(), gate: "read".into(), content: "".into() });
    let body = listed(Family::Anthropic, &list).await;
    let id = body["messages"][1]["content"][0]["id"].as_str().unwrap();
    assert!(id.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{id}");
    assert_eq!(body["messages"][2]["content"][0]["tool_use_id"], *id);
}

/// Returns a body without the cache marks, which move with its end.
fn unmarked(mut body: Value) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.remove("cache_control");
                fields.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    strip(&mut body);
    body
}

/// Returns the part that a provider's cache compares, in its order, without the closing bracket.
fn prefix(family: Family, body: &Value) -> String {
    let list = match family {
        Family::Anthropic | Family::Chat | Family::Ollama => "messages",
        Family::Responses => "input",
        Family::Gemini => "contents",
    };
    let before: String = ["tools", "system", "systemInstruction"].iter().map(|key| body[key].to_string()).collect();
    before + body[list].to_string().trim_end_matches(']')
}

#[tokio::test]
async fn each_request_begins_with_the_bytes_of_the_one_before() {
    for family in Family::ALL {
        let answer = ask(family, family.streamed(&everything())).await.unwrap().utterance;
        let list = MessageLog::new();
        list.push(Message::System { content: "You read.".into() });
        list.push(Message::User { content: "go".into() });
        let mut before = prefix(family, &unmarked(listed(family, &list).await));
        for message in after(&answer).all().iter().skip(2).cloned() {
            let complete = matches!(&message, Message::Tool { tool_call_id, .. } if tool_call_id == "call_2");
            list.push(message);
            if complete {
                let body = listed(family, &list).await;
                let now = prefix(family, &unmarked(body));
                assert!(now.starts_with(&before), "{family:?}:\n{before}\n{now}");
                before = now;
            }
        }
    }
    let body = listed(Family::Anthropic, &{
        let list = MessageLog::new();
        list.push(Message::System { content: "You read.".into() });
        list.push(Message::User { content: "go".into() });
        list
    })
    .await;
    let marked = json!({"type": "ephemeral"});
    assert_eq!(body["system"][0]["cache_control"], marked);
    assert_eq!(body["tools"][0]["cache_control"], marked);
    assert_eq!(body["messages"][0]["content"][0]["cache_control"], marked);
}

struct OneBody(Body);

impl Bodies for OneBody {
    fn body(&self, _hash: &Hash) -> Result<Arc<[u8]>, cantrip_loom::Error> {
        Ok(Arc::clone(self.0.bytes()))
    }
}

fn full_request() -> Request {
    let image = Body::new(vec![1, 2, 3]).unwrap();
    let part = Part::Image { media_type: "image/png".into(), image: image.reference() };
    let list = MessageLog::new();
    list.push(Message::System { content: "You count.".into() });
    list.push(Message::User { content: Content::Parts(vec![Part::Text { text: "what is it?".into() }, part]) });
    Request {
        messages: list.all(),
        choice: ToolChoice::Required,
        output_tokens_max: 99,
        sampling: Sampling { temperature: Some(0.5), seed: Some(7), stop: vec!["END".into()], top_p: Some(0.25) },
        bodies: Arc::new(OneBody(image)),
        ..sample_request(1)
    }
}

#[tokio::test]
async fn the_whole_request_goes_out_in_each_wires_words() {
    let schema = json!({"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]});
    let mark = json!({"type": "ephemeral"});
    let anthropic = json!({
        "model": "m", "max_tokens": 99, "stream": true, "stop_sequences": ["END"],
        "system": [{"type": "text", "text": "You count.", "cache_control": mark}],
        "messages": [{"role": "user", "content": [
            {"type": "text", "text": "what is it?"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AQID"}, "cache_control": mark},
        ]}],
        "tools": [{
            "name": "javascript", "description": "Runs a program.", "input_schema": schema, "cache_control": mark,
        }],
        "tool_choice": {"type": "any"},
    });
    assert_eq!(body_of(Family::Anthropic, full_request()).await, anthropic);
    let responses = json!({
        "model": "m", "max_output_tokens": 99, "stream": true, "store": false,
        "include": ["reasoning.encrypted_content"],
        "input": [
            {"role": "system", "content": "You count."},
            {"role": "user", "content": [
                {"type": "input_text", "text": "what is it?"},
                {"type": "input_image", "image_url": "data:image/png;base64,AQID", "detail": "auto"},
            ]},
        ],
        "tools": [{
            "type": "function", "name": "javascript", "description": "Runs a program.", "parameters": schema,
            "strict": false,
        }],
        "tool_choice": "required",
    });
    assert_eq!(body_of(Family::Responses, full_request()).await, responses);
    let gemini = json!({
        "systemInstruction": {"parts": [{"text": "You count."}]},
        "contents": [{"role": "user", "parts": [
            {"text": "what is it?"}, {"inlineData": {"mimeType": "image/png", "data": "AQID"}},
        ]}],
        "generationConfig": {
            "maxOutputTokens": 99, "temperature": 0.5, "topP": 0.25, "seed": 7, "stopSequences": ["END"],
            "thinkingConfig": {"includeThoughts": true},
        },
        "tools": [{"functionDeclarations": [{
            "name": "javascript", "description": "Runs a program.", "parametersJsonSchema": schema,
        }]}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
    });
    assert_eq!(body_of(Family::Gemini, full_request()).await, gemini);
}

/// Returns the body that is sent to this model.
async fn body_to(family: Family, model: &str, request: &Request) -> Value {
    let (url, log) = serve([family.streamed(&said([Piece::Text(&["a"])], End::Stop))]).await;
    let crystal = match family {
        Family::Anthropic => Hosted::anthropic(model, &url, None),
        Family::Responses => Hosted::openai(model, &url, None),
        Family::Chat => Hosted::named(format!("openrouter/{model}"), Wire::Chat, model, &url, None),
        Family::Gemini => Hosted::gemini(model, &url, None),
        Family::Ollama => Hosted::ollama(model, &url, None),
    };
    crystal.unwrap().ask(request, &NullSink).await.unwrap();
    log.asked().pop().unwrap().body
}

#[tokio::test]
async fn a_call_is_demanded_and_a_temperature_given_only_where_the_model_takes_them() {
    let required = full_request();
    let forced = body_to(Family::Anthropic, "claude-sonnet-4-5", &required).await;
    assert_eq!((&forced["tool_choice"]["type"], forced.get("temperature")), (&json!("any"), None));
    // A user's profile that allows sampling sends one of the two parameters.
    let mine = Profiles::load("[[model]]\ncrystal = 'anthropic/*'\nsamples = true\n").unwrap();
    let (url, log) = serve([Family::Anthropic.streamed(&said([Piece::Text(&["a"])], End::Stop))]).await;
    let older = Hosted::anthropic("claude-3-haiku", &url, None).unwrap().with_profiles(&mine);
    older.ask(&required, &NullSink).await.unwrap();
    let body = log.asked().pop().unwrap().body;
    assert_eq!((&body["temperature"], body.get("top_p")), (&json!(0.5), None));
    let free = body_to(Family::Anthropic, "claude-sonnet-5-5", &required).await;
    assert_eq!(
        (&free["tool_choice"]["type"], free.get("temperature"), free.get("top_p")),
        (&json!("auto"), None, None)
    );
    let local = body_to(Family::Ollama, "m", &required).await;
    assert_eq!((local.get("tool_choice"), local["tools"].as_array().map(Vec::len)), (None, Some(1)));
    let none = body_to(Family::Ollama, "m", &Request { choice: ToolChoice::None, ..full_request() }).await;
    assert_eq!(none.get("tools"), None, "what may not be called is not offered");
    let routed = body_to(Family::Chat, "anthropic/claude-sonnet-5", &required).await;
    assert_eq!(routed.get("temperature"), None);
}

#[tokio::test]
async fn how_much_to_think_is_said_in_each_models_words_and_to_no_other() {
    let asked = |thinking| Request { thinking, output_tokens_max: 20_000, ..full_request() };
    let high = asked(Thinking { effort: Some(Effort::High), tokens: None });
    let budget = asked(Thinking { effort: None, tokens: Some(3_000) });
    let by_tokens = body_to(Family::Anthropic, "claude-sonnet-4-5", &budget).await;
    assert_eq!(by_tokens["thinking"], json!({"type": "enabled", "budget_tokens": 3_000}));
    // With a thinking budget the model accepts neither a temperature nor a forced call.
    assert_eq!((by_tokens.get("temperature"), &by_tokens["tool_choice"]["type"]), (None, &json!("auto")));
    let by_effort = body_to(Family::Anthropic, "claude-sonnet-4-5", &high).await;
    assert_eq!(by_effort["thinking"]["budget_tokens"], 10_000, "half of the answer is left to the answer");
    let adaptive = body_to(Family::Anthropic, "claude-sonnet-5-5", &high).await;
    assert_eq!((&adaptive["output_config"], adaptive.get("thinking")), (&json!({"effort": "high"}), None));
    assert_eq!(body_to(Family::Anthropic, "claude-sonnet-5-5", &budget).await.get("output_config"), None);
    // This one thinks only if it is told that it may.
    let allowed = body_to(Family::Anthropic, "claude-opus-4-6", &high).await;
    assert_eq!(
        (&allowed["output_config"], &allowed["thinking"]),
        (&json!({"effort": "high"}), &json!({"type": "adaptive"}))
    );
    let plain = asked(Thinking { effort: None, tokens: None });
    assert_eq!(body_to(Family::Anthropic, "claude-opus-4-6", &plain).await.get("thinking"), None);
    let small = Request { output_tokens_max: 1_000, ..budget.clone() };
    assert_eq!(body_to(Family::Anthropic, "claude-sonnet-4-5", &small).await.get("thinking"), None, "too few to think");
    assert_eq!(body_to(Family::Responses, "gpt-5", &high).await["reasoning"], json!({"effort": "high"}));
    assert_eq!(body_to(Family::Responses, "gpt-4.1", &high).await.get("reasoning"), None);
    let config = |body: Value| body["generationConfig"]["thinkingConfig"].clone();
    let levels = config(body_to(Family::Gemini, "gemini-3.8-flash", &high).await);
    assert_eq!(levels, json!({"includeThoughts": true, "thinkingLevel": "high"}));
    let tokens = config(body_to(Family::Gemini, "gemini-2.5-flash", &budget).await);
    assert_eq!(tokens, json!({"includeThoughts": true, "thinkingBudget": 3_000}));
    assert_eq!(body_to(Family::Chat, "x/y", &high).await["reasoning"], json!({"effort": "high"}));
    assert_eq!(body_to(Family::Ollama, "gpt-oss:20b", &high).await["think"], "high");
    assert_eq!(body_to(Family::Ollama, "qwen3:4b", &high).await["think"], true);
    assert_eq!(body_to(Family::Ollama, "m", &high).await.get("think"), None, "a model that cannot think refuses it");
}

#[tokio::test]
async fn a_schema_is_held_by_the_provider_that_can_and_told_in_words_to_the_one_that_cannot() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let format = Some(Arc::new(OutputFormat { name: "count".into(), schema: schema.clone() }));
    let request = Request { format, ..full_request() };
    let body = body_to(Family::Anthropic, "claude-sonnet-5-5", &request).await;
    let mut closed = schema.clone();
    closed["additionalProperties"] = false.into();
    assert_eq!(body["output_config"]["format"], json!({"type": "json_schema", "schema": closed}));
    let body = body_to(Family::Responses, "gpt-5", &request).await;
    let told = json!({"type": "json_schema", "name": "count", "schema": schema, "strict": false});
    assert_eq!(body["text"]["format"], told);
    let config = body_to(Family::Gemini, "gemini-2.5-flash", &request).await["generationConfig"].clone();
    assert_eq!((&config["responseMimeType"], &config["responseJsonSchema"]), (&json!("application/json"), &schema));
    assert_eq!(body_to(Family::Ollama, "m", &request).await["format"], schema);
    for (family, model) in
        [(Family::Anthropic, "claude-3-haiku"), (Family::Chat, "x/y"), (Family::Responses, "gpt-3.5-turbo")]
    {
        let body = body_to(family, model, &request).await;
        assert!(body.to_string().contains("It must fit this JSON Schema"), "{family:?}: {body}");
        assert_eq!((body.get("output_config"), body.get("response_format"), body.get("text")), (None, None, None));
        // It is part of the only system prompt, before everything that was said.
        let list = if family == Family::Responses { &body["input"] } else { &body["messages"] };
        let roles: Vec<&Value> = list.as_array().unwrap().iter().map(|message| &message["role"]).collect();
        let later = roles.iter().skip(1).filter(|role| **role == "system").count();
        assert_eq!(later, 0, "{family:?}: {roles:?}");
    }
}

#[tokio::test]
async fn what_a_provider_does_not_take_of_a_schema_is_said_in_words() {
    let number = json!({"type": "integer", "description": "How many.", "minimum": 1, "exclusiveMaximum": 9});
    let kind = json!({"const": "count"});
    let schema = json!({"type": "object", "properties": {"n": number, "kind": kind}, "required": ["n"]});
    let asked = |schema: &Value| {
        let format = Some(Arc::new(OutputFormat { name: "count".into(), schema: schema.clone() }));
        Request { format, ..full_request() }
    };
    let body = body_to(Family::Anthropic, "claude-sonnet-5-5", &asked(&schema)).await;
    let told = json!({"type": "integer", "description": "How many.\n{\"minimum\":1,\"exclusiveMaximum\":9}"});
    let expected = json!({
        "type": "object", "properties": {"n": told, "kind": kind}, "required": ["n"], "additionalProperties": false,
    });
    assert_eq!(body["output_config"]["format"]["schema"], expected);
    let body = body_to(Family::Gemini, "gemini-2.5-flash", &asked(&schema)).await;
    let told = json!({"type": "integer", "description": "How many.\n{\"exclusiveMaximum\":9}", "minimum": 1});
    let expected = json!({"type": "object", "properties": {"n": told, "kind": {"enum": ["count"]}}, "required": ["n"]});
    assert_eq!(body["generationConfig"]["responseJsonSchema"], expected);
    let formats = json!({"type": "object", "properties": {
        "at": {"type": "string", "format": "date-time"}, "of": {"type": "string", "format": "idn-email"},
    }});
    let body = body_to(Family::Gemini, "gemini-2.5-flash", &asked(&formats)).await;
    let properties = &body["generationConfig"]["responseJsonSchema"]["properties"];
    assert_eq!(properties["at"], formats["properties"]["at"]);
    assert_eq!(properties["of"], json!({"type": "string", "description": "{\"format\":\"idn-email\"}"}));
    let body = body_to(Family::Anthropic, "claude-sonnet-5-5", &asked(&formats)).await;
    let of = &body["output_config"]["format"]["schema"]["properties"]["of"];
    assert_eq!(*of, json!({"type": "string", "description": "{\"format\":\"idn-email\"}"}));
    // A schema that cannot be enforced at all is sent as text.
    let open = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let within = json!({"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}},
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}}});
    for schema in [open, within] {
        let body = body_to(Family::Anthropic, "claude-sonnet-5-5", &asked(&schema)).await;
        assert_eq!(body.get("output_config"), None, "{body}");
        assert!(body["system"].to_string().contains("It must fit this JSON Schema"), "{body}");
    }
    // A tool takes one object: the check of its arguments covers other keywords at its top level.
    let definition = ToolDefinition {
        name: "either".into(),
        description: "One or the other.".into(),
        parameters: json!({"type": "object", "properties": {"a": {}}, "anyOf": [{"required": ["a"]}]}),
    };
    let request = Request { definitions: vec![definition].into(), ..full_request() };
    let plain = json!({"type": "object", "properties": {"a": {}}});
    let anthropic = body_to(Family::Anthropic, "m", &request).await["tools"][0]["input_schema"].clone();
    let responses = body_to(Family::Responses, "m", &request).await["tools"][0]["parameters"].clone();
    let chat = body_to(Family::Chat, "m", &request).await["tools"][0]["function"]["parameters"].clone();
    assert_eq!([anthropic, responses, chat], [plain.clone(), plain.clone(), plain]);
}

/// Every kind of request, against the types of the providers' own libraries: `test.sh` names a Python that has them.
#[tokio::test]
async fn every_body_fits_the_request_types_of_its_providers_own_library() {
    let Some(python) = cantrip_tests::peer::Peer::Python.find() else { return };
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]});
    let format = Some(Arc::new(OutputFormat { name: "count".into(), schema }));
    let effort = Thinking { effort: Some(Effort::High), tokens: None };
    let budget = Thinking { effort: None, tokens: Some(3_000) };
    let of = |thinking| Request { thinking, output_tokens_max: 20_000, ..full_request() };
    let requests = [
        full_request(),
        of(effort),
        of(budget),
        Request { format, ..full_request() },
        Request { choice: ToolChoice::None, ..full_request() },
    ];
    let models = [
        (Family::Anthropic, "anthropic", ["claude-sonnet-5-5", "claude-sonnet-4-5", "claude-3-haiku"]),
        (Family::Responses, "responses", ["gpt-5", "gpt-4.1", "gpt-3.5-turbo"]),
        (Family::Chat, "openrouter", ["anthropic/claude-sonnet-5", "x/y", "m"]),
        (Family::Gemini, "gemini", ["gemini-3.8-flash", "gemini-2.5-flash", "gemini-2.0-flash"]),
    ];
    let mut lines = String::new();
    for (family, wire, models) in models {
        let answer = ask(family, family.streamed(&everything())).await.unwrap().utterance;
        for other in Family::ALL {
            let foreign = ask(other, other.streamed(&everything())).await.unwrap().utterance;
            for said in [&answer, &foreign] {
                let body = listed(family, &after(said)).await;
                lines.push_str(&format!("{}\n", json!({"wire": wire, "body": body})));
            }
        }
        for model in models {
            for request in &requests {
                let body = body_to(family, model, request).await;
                lines.push_str(&format!("{}\n", json!({"wire": wire, "body": body})));
            }
        }
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/request_types.py");
    let mut command = std::process::Command::new(python);
    command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert_eq!(told.trim(), "anthropic=25 gemini=25 openrouter=25 responses=25", "{output:?}");
}

#[tokio::test]
async fn ollama_is_told_its_window_so_that_no_list_is_cut_without_a_word() {
    let body = body_to(Family::Ollama, "qwen3", &full_request()).await;
    let options = json!({
        "num_ctx": 40_960, "num_predict": 99, "temperature": 0.5, "top_p": 0.25, "seed": 7, "stop": ["END"],
    });
    assert_eq!(body["options"], options);
    assert_eq!(body["messages"][1], json!({"role": "user", "content": "what is it?", "images": ["AQID"]}));
    assert_eq!(body_to(Family::Ollama, "unheard-of", &full_request()).await["options"]["num_ctx"], 16_384);
    // A window in the spell overrides the table.
    let wider = Request { window: Some(65_536), ..full_request() };
    assert_eq!(body_to(Family::Ollama, "qwen3", &wider).await["options"]["num_ctx"], 65_536);
}

#[tokio::test]
async fn an_answer_can_be_asked_for_in_one_piece() {
    for (provider, family) in [
        (Provider::Anthropic, Family::Anthropic),
        (Provider::OpenAi, Family::Responses),
        (Provider::OpenRouter, Family::Chat),
        (Provider::Gemini, Family::Gemini),
        (Provider::Ollama, Family::Ollama),
    ] {
        let served = match family {
            // Without streaming Gemini returns one chunk instead of a list of them.
            Family::Gemini => {
                let Served::Whole(status, headers, body) = family.whole(&everything()) else { panic!("whole") };
                let list: Value = serde_json::from_str(&body).unwrap();
                Served::Whole(status, headers, list[0].to_string())
            }
            Family::Anthropic | Family::Responses | Family::Chat | Family::Ollama => family.whole(&everything()),
        };
        let (url, log) = serve([served]).await;
        // At an address that ends in `/v1`, Ollama speaks OpenAI's protocol.
        let base = if family == Family::Ollama { url.join("/").unwrap() } else { url };
        let access = Access { base: Some(base), no_streaming: true, ..Access::default() };
        let crystal = provider.model("m", &access).unwrap();
        let answer = crystal.ask(&sample_request(1), &NullSink).await.unwrap();
        assert_eq!(answer.utterance.content.as_deref(), Some("I look. "), "{family:?}");
        assert_eq!(answer.utterance.calls.len(), 2, "{family:?}");
        let asked = log.asked().pop().unwrap();
        match family {
            Family::Gemini => assert_eq!(asked.path, "/v1/models/m:generateContent"),
            Family::Anthropic | Family::Responses | Family::Chat | Family::Ollama => {
                assert_eq!((&asked.body["stream"], asked.body.get("stream_options")), (&json!(false), None));
            }
        }
    }
}

#[tokio::test]
async fn whoever_shares_a_key_heeds_what_the_provider_asked_of_another() {
    for family in [Family::Anthropic, Family::Chat] {
        let busy = Served::Whole(429, "retry-after-ms: 400\r\n", family.error("rate_limit_error", "slow down"));
        let (url, log) = serve([busy, family.streamed(&said([Piece::Text(&["a"])], End::Stop))]).await;
        let (one, other, stranger) = (
            family.crystal(&url, Some("shared")),
            family.crystal(&url, Some("shared")),
            family.crystal(&url, Some("another")),
        );
        let began = std::time::Instant::now();
        ends_in(&one.ask(&sample_request(1), &NullSink).await.unwrap_err(), codes::RATE_LIMITED);
        let (first, second) = (sample_request(1), sample_request(2));
        let waiting = async {
            other.ask(&first, &NullSink).await.unwrap();
            began.elapsed()
        };
        let (waited, asked) = tokio::join!(waiting, stranger.ask(&second, &NullSink));
        asked.unwrap();
        assert!(waited >= Duration::from_millis(400), "{family:?}: {waited:?}");
        let keys: Vec<bool> = log.asked().iter().map(|asked| asked.head.contains("another")).collect();
        assert_eq!(keys, [false, true, false], "{family:?}: who has a key of their own does not wait");
    }
}

#[tokio::test]
async fn a_model_is_asked_only_for_what_it_has() {
    let answer = || serve([Family::Responses.streamed(&said([Piece::Text(&["a"])], End::Stop))]);
    let (url, log) = answer().await;
    Hosted::openai("gpt-4.1", &url, None).unwrap().ask(&full_request(), &NullSink).await.unwrap();
    let body = log.asked().pop().unwrap().body;
    assert_eq!((&body["temperature"], &body["top_p"], body.get("include")), (&json!(0.5), &json!(0.25), None));
    let (url, log) = serve([Family::Gemini.streamed(&said([Piece::Text(&["a"])], End::Stop))]).await;
    Hosted::gemini("gemini-2.0-flash", &url, None).unwrap().ask(&full_request(), &NullSink).await.unwrap();
    assert_eq!(log.asked().pop().unwrap().body["generationConfig"].get("thinkingConfig"), None);
}

#[tokio::test]
async fn a_key_goes_where_its_provider_looks_for_it_and_is_shown_nowhere() {
    for family in Family::ALL {
        let (url, log) = serve([family.streamed(&said([Piece::Text(&["a"])], End::Stop))]).await;
        let crystal = family.crystal(&url, Some("sk-planted-key"));
        assert!(!format!("{crystal:?}").contains("planted"), "{family:?}");
        crystal.ask(&sample_request(1), &NullSink).await.unwrap();
        let asked: Vec<_> = Log::asked(&log);
        assert_eq!(asked[0].path, family.path());
        assert!(asked[0].head.contains(&family.key_header("sk-planted-key")), "{family:?}: {}", asked[0].head);
    }
    assert!(
        Hosted::anthropic("m", &"http://h/".parse().unwrap(), Some(&cantrip_canon::Secret::new("a\nb".into())))
            .is_err()
    );
}

#[tokio::test]
async fn dropping_a_request_closes_its_connection() {
    for family in Family::ALL {
        let events = family.events(&said([Piece::Text(&["half a"]), Piece::Text(&["b"])], End::Stop));
        let Served::Stream(bytes) = family.stream(&events[..events.len() - 1]) else { panic!() };
        let (url, log) = serve([Served::Stuck(bytes)]).await;
        let (heard, request) = (RecordingSink::default(), sample_request(1));
        let crystal = family.crystal(&url, None);
        tokio::select! { biased;
            outcome = crystal.ask(&request, &heard) => panic!("{family:?}: {outcome:?}"),
            () = heard.wait_for_delta() => {}
        }
        log.hung_up.notified().await;
    }
}

/// Text that has a meaning in a stream, or nearly.
const WORDS: &[&str] = &[
    "data: ",
    "\n\n",
    "\r",
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
    "99999999999999999999",
    "\"index\":7,",
    "\"output_index\":9,",
    "\"type\":\"content_block_start\",",
    "\"type\":\"thinking\",",
    "\"type\":\"response.output_item.done\",",
    "\"type\":\"reasoning\",",
    "\"thoughtSignature\":{},",
    "\"functionCall\":null,",
    "\"parts\":[{}],",
    "\"delta\":[],",
    "\"usage\":{},",
    "\\ud800",
    "\u{0}",
    "<html>",
];

fn texts(family: Family) -> String {
    let Served::Stream(bytes) = family.streamed(&everything()) else { unreachable!("it is a stream") };
    String::from_utf8(bytes).unwrap()
}

fn garbled() -> impl Strategy<Value = (Family, Vec<u8>)> {
    proptest::sample::select(Family::ALL.to_vec()).prop_flat_map(|family| {
        let text: &'static str = Box::leak(texts(family).into_boxed_str());
        let texts: &'static [&'static str] = Box::leak(Box::new([text]));
        (Just(family), garble::garbled(texts, WORDS))
    })
}

proptest! {
    #![proptest_config(garble::samples(96))]

    /// Asking holds each outcome to the promises.
    #[test]
    fn a_stream_that_is_almost_right_is_understood_or_a_failure_with_its_code((family, bytes) in garbled()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        if let Err(failure) = runtime.block_on(ask(family, Served::Stream(bytes))) {
            prop_assert_eq!(failure.code().reply_type(), cantrip_reply::ReplyType::Failure);
        }
    }
}
