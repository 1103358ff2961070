//! The wire formats of each provider family for the same answer, written after their documentation.

use cantrip_canon::Secret;
use cantrip_crystal::{AnyCrystal, Hosted, Wire};
use serde_json::{Value, json};
use url::Url;

use crate::server::Served;

/// The answer of a model, independent of its provider.
#[derive(Debug, Clone)]
pub(crate) struct Said {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) end: End,
}

#[derive(Debug, Clone)]
pub(crate) enum Piece {
    /// Thinking, and the signature that its provider needs back.
    Thought(&'static str, &'static str),
    Text(&'static [&'static str]),
    /// The id, the name and the arguments as text.
    Call(&'static str, &'static str, &'static str),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum End {
    Stop,
    Calls,
    Length,
    Refusal,
}

/// 100 tokens in, 60 of them cached, 20 out.
pub(crate) const COUNTED: (u64, u64, u64) = (100, 60, 20);

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Family {
    Anthropic,
    Responses,
    Chat,
    Gemini,
    Ollama,
}

impl Family {
    pub(crate) const ALL: [Self; 5] = [Self::Anthropic, Self::Responses, Self::Chat, Self::Gemini, Self::Ollama];

    pub(crate) fn crystal(self, url: &Url, key: Option<&str>) -> AnyCrystal {
        let key = key.map(|key| Secret::new(key.to_owned()));
        let key = key.as_ref();
        let crystal = match self {
            Self::Anthropic => Hosted::anthropic("m", url, key),
            Self::Responses => Hosted::openai("m", url, key),
            Self::Chat => Hosted::named("openrouter/m".to_owned(), Wire::Chat, "m", url, key),
            Self::Gemini => Hosted::gemini("m", url, key),
            Self::Ollama => Hosted::ollama("m", url, key),
        };
        AnyCrystal::new(crystal.unwrap())
    }

    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Anthropic => "/v1/messages",
            Self::Responses => "/v1/responses",
            Self::Chat => "/v1/chat/completions",
            Self::Gemini => "/v1/models/m:streamGenerateContent?alt=sse",
            Self::Ollama => "/v1/api/chat",
        }
    }

    /// Returns the header that carries the key.
    pub(crate) fn key_header(self, key: &str) -> String {
        match self {
            Self::Anthropic => format!("x-api-key: {key}"),
            Self::Responses | Self::Chat | Self::Ollama => format!("authorization: Bearer {key}"),
            Self::Gemini => format!("x-goog-api-key: {key}"),
        }
    }

    /// Returns the events of a stream, including the last one.
    pub(crate) fn events(self, said: &Said) -> Vec<String> {
        match self {
            Self::Anthropic => anthropic(said),
            Self::Responses => responses(said),
            Self::Chat => chat(said),
            Self::Gemini => gemini(said),
            Self::Ollama => ollama(said),
        }
    }

    /// Returns 100 tokens in, 60 of them cached if the family reports that, 20 out.
    pub(crate) fn counted(self) -> (u64, u64, u64) {
        match self {
            Self::Ollama => (COUNTED.0, 0, COUNTED.2),
            Self::Anthropic | Self::Responses | Self::Chat | Self::Gemini => COUNTED,
        }
    }

    /// Returns true if the family has a finish reason for a refusal.
    pub(crate) fn refuses(self) -> bool {
        self != Self::Ollama
    }

    pub(crate) fn streamed(self, said: &Said) -> Served {
        self.stream(&self.events(said))
    }

    /// Returns a stream of these events.
    pub(crate) fn stream(self, events: &[String]) -> Served {
        match self {
            Self::Ollama => Served::Stream(events.iter().map(|event| format!("{event}\n")).collect::<String>().into()),
            Self::Anthropic | Self::Responses | Self::Chat | Self::Gemini => stream(events),
        }
    }

    /// Returns the same answer from a server that does not stream.
    pub(crate) fn whole(self, said: &Said) -> Served {
        let body = match self {
            Self::Anthropic => anthropic_whole(said),
            Self::Responses => responses_whole(said),
            Self::Chat => chat_whole(said),
            Self::Gemini => json!([gemini_chunk(said, &said.pieces, true)]),
            Self::Ollama => ollama_line(&said.pieces, Some(said.end)),
        };
        Served::Whole(200, "content-type: application/json\r\n", body.to_string())
    }

    /// Returns a temporary error in the middle of a stream.
    pub(crate) fn trouble(self) -> String {
        match self {
            Self::Anthropic => {
                json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
            }
            Self::Responses => json!({"type": "error", "code": "server_error", "message": "Overloaded"}),
            Self::Chat => json!({"error": {"code": 502, "message": "Overloaded"}, "choices": []}),
            Self::Gemini => json!({"error": {"code": 503, "message": "Overloaded", "status": "UNAVAILABLE"}}),
            Self::Ollama => json!({"error": "Overloaded"}),
        }
        .to_string()
    }

    /// Returns the body of an error response.
    pub(crate) fn error(self, word: &str, message: &str) -> String {
        match self {
            Self::Anthropic => json!({"type": "error", "error": {"type": word, "message": message}}),
            Self::Responses | Self::Chat => json!({"error": {"code": word, "type": word, "message": message}}),
            Self::Gemini => json!([{"error": {"code": 400, "message": message, "status": word}}]),
            Self::Ollama => json!({ "error": message }),
        }
        .to_string()
    }
}

fn stream(events: &[String]) -> Served {
    let mut text = String::from(": a comment\n\n");
    for event in events {
        // Some providers name their events too; only the data counts.
        text.push_str(&format!("event: something\ndata: {event}\n\n"));
    }
    Served::Stream(text.into_bytes())
}

fn parsed(arguments: &str) -> Value {
    serde_json::from_str(arguments).unwrap_or(Value::Null)
}

fn halves(text: &str) -> (&str, &str) {
    text.split_at(text.floor_char_boundary(text.len() / 2))
}

fn anthropic(said: &Said) -> Vec<String> {
    let (prompt, cached, output) = COUNTED;
    let usage = json!({
        "input_tokens": prompt - cached - 10, "cache_creation_input_tokens": 10, "cache_read_input_tokens": cached,
        "output_tokens": 1,
    });
    let mut events = vec![
        json!({"type": "message_start", "message": {"id": "msg_1", "model": "m-2", "content": [], "usage": usage}}),
        json!({"type": "ping"}),
    ];
    for (index, piece) in said.pieces.iter().enumerate() {
        let delta = |delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
        let (block, deltas) = match piece {
            Piece::Thought(text, signature) => (
                json!({"type": "thinking", "thinking": "", "signature": ""}),
                vec![
                    delta(json!({"type": "thinking_delta", "thinking": halves(text).0})),
                    delta(json!({"type": "thinking_delta", "thinking": halves(text).1})),
                    delta(json!({"type": "signature_delta", "signature": signature})),
                ],
            ),
            Piece::Text(chunks) => (
                json!({"type": "text", "text": ""}),
                chunks.iter().map(|chunk| delta(json!({"type": "text_delta", "text": chunk}))).collect(),
            ),
            Piece::Call(id, name, arguments) => (
                json!({"type": "tool_use", "id": id, "name": name, "input": {}}),
                [halves(arguments).0, halves(arguments).1]
                    .map(|half| delta(json!({"type": "input_json_delta", "partial_json": half})))
                    .to_vec(),
            ),
        };
        events.push(json!({"type": "content_block_start", "index": index, "content_block": block}));
        events.extend(deltas);
        events.push(json!({"type": "content_block_stop", "index": index}));
    }
    let delta = json!({"stop_reason": anthropic_end(said.end), "stop_sequence": null});
    events.push(json!({"type": "message_delta", "delta": delta, "usage": {"output_tokens": output}}));
    events.push(json!({"type": "message_stop"}));
    events.iter().map(Value::to_string).collect()
}

fn anthropic_end(end: End) -> &'static str {
    match end {
        End::Stop => "end_turn",
        End::Calls => "tool_use",
        End::Length => "max_tokens",
        End::Refusal => "refusal",
    }
}

fn anthropic_whole(said: &Said) -> Value {
    let (prompt, cached, output) = COUNTED;
    let content = said.pieces.iter().map(|piece| match piece {
        Piece::Thought(text, signature) => json!({"type": "thinking", "thinking": text, "signature": signature}),
        Piece::Text(chunks) => json!({"type": "text", "text": chunks.concat()}),
        Piece::Call(id, name, arguments) => {
            json!({"type": "tool_use", "id": id, "name": name, "input": parsed(arguments)})
        }
    });
    json!({
        "type": "message", "model": "m-2", "content": content.collect::<Vec<_>>(),
        "stop_reason": anthropic_end(said.end),
        "usage": {"input_tokens": prompt - cached, "cache_read_input_tokens": cached, "output_tokens": output},
    })
}

fn response_items(said: &Said) -> Vec<Value> {
    let item = |piece: &Piece| match piece {
        Piece::Thought(text, signature) => json!({
            "type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": text}],
            "encrypted_content": signature, "status": "completed",
        }),
        Piece::Text(chunks) if said.end == End::Refusal => json!({
            "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
            "content": [{"type": "refusal", "refusal": chunks.concat()}],
        }),
        Piece::Text(chunks) => json!({
            "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": chunks.concat(), "annotations": []}],
        }),
        Piece::Call(id, name, arguments) => json!({
            "type": "function_call", "id": "fc_of_the_item", "call_id": id, "name": name, "arguments": arguments,
            "status": "completed",
        }),
    };
    said.pieces.iter().map(item).collect()
}

fn responses_whole(said: &Said) -> Value {
    let (prompt, cached, output) = COUNTED;
    let (status, details) = match said.end {
        End::Length => ("incomplete", json!({"reason": "max_output_tokens"})),
        End::Stop | End::Calls | End::Refusal => ("completed", Value::Null),
    };
    json!({
        "id": "resp_1", "object": "response", "model": "m-2", "status": status, "error": null,
        "incomplete_details": details, "output": response_items(said),
        "usage": {
            "input_tokens": prompt, "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": output, "output_tokens_details": {"reasoning_tokens": 5},
        },
    })
}

fn responses(said: &Said) -> Vec<String> {
    let mut events = vec![json!({"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}})];
    for (index, (piece, item)) in said.pieces.iter().zip(response_items(said)).enumerate() {
        let event = |kind: &str, delta: &str| json!({"type": kind, "output_index": index, "delta": delta});
        let mut begun = item.clone();
        let deltas: Vec<Value> = match piece {
            Piece::Thought(text, _) => {
                begun["summary"] = json!([]);
                let (first, second) = halves(text);
                [first, second].map(|half| event("response.reasoning_summary_text.delta", half)).to_vec()
            }
            Piece::Text(chunks) => {
                begun["content"] = json!([]);
                let refusal = said.end == End::Refusal;
                let kind = if refusal { "response.refusal.delta" } else { "response.output_text.delta" };
                chunks.iter().map(|chunk| event(kind, chunk)).collect()
            }
            Piece::Call(_, _, arguments) => {
                begun["arguments"] = "".into();
                let (first, second) = halves(arguments);
                [first, second].map(|half| event("response.function_call_arguments.delta", half)).to_vec()
            }
        };
        events.push(json!({"type": "response.output_item.added", "output_index": index, "item": begun}));
        events.extend(deltas);
        events.push(json!({"type": "response.output_item.done", "output_index": index, "item": item}));
    }
    let whole = responses_whole(said);
    let status = whole["status"].as_str().unwrap();
    events.push(json!({"type": format!("response.{status}"), "response": whole}));
    events.iter().map(Value::to_string).collect()
}

fn chat_usage() -> Value {
    let (prompt, cached, output) = COUNTED;
    json!({"prompt_tokens": prompt, "completion_tokens": output, "prompt_tokens_details": {"cached_tokens": cached}})
}

fn chat_end(end: End) -> &'static str {
    match end {
        End::Stop => "stop",
        End::Calls => "tool_calls",
        End::Length => "length",
        End::Refusal => "content_filter",
    }
}

fn chat(said: &Said) -> Vec<String> {
    let delta =
        |delta: Value| json!({"model": "m-2", "choices": [{"index": 0, "delta": delta, "finish_reason": null}]});
    let mut events = Vec::new();
    let mut calls = 0;
    for piece in &said.pieces {
        match piece {
            Piece::Thought(text, signature) => {
                let detail = json!({"type": "reasoning.encrypted", "data": signature});
                events.push(delta(json!({"reasoning": text, "reasoning_details": [detail]})));
            }
            Piece::Text(chunks) => events.extend(chunks.iter().map(|chunk| delta(json!({ "content": chunk })))),
            Piece::Call(id, name, arguments) => {
                let (first, second) = halves(arguments);
                let call = json!({"index": calls, "id": id, "function": {"name": name, "arguments": first}});
                events.push(delta(json!({"tool_calls": [call]})));
                let more = json!({"index": calls, "function": {"arguments": second}});
                events.push(delta(json!({"tool_calls": [more]})));
                calls += 1;
            }
        }
    }
    events.push(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": chat_end(said.end)}]}));
    events.push(json!({"choices": [], "usage": chat_usage()}));
    events.iter().map(Value::to_string).chain(["[DONE]".to_owned()]).collect()
}

fn chat_whole(said: &Said) -> Value {
    let mut message = json!({"role": "assistant", "content": null});
    let mut calls = Vec::new();
    for piece in &said.pieces {
        match piece {
            Piece::Thought(text, signature) => {
                message["reasoning"] = (*text).into();
                message["reasoning_details"] = json!([{"type": "reasoning.encrypted", "data": signature}]);
            }
            Piece::Text(chunks) => message["content"] = chunks.concat().into(),
            Piece::Call(id, name, arguments) => {
                calls.push(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}));
            }
        }
    }
    message["tool_calls"] = calls.into();
    let choice = json!({"index": 0, "message": message, "finish_reason": chat_end(said.end)});
    json!({"model": "m-2", "choices": [choice], "usage": chat_usage()})
}

fn gemini_parts(piece: &Piece) -> Vec<Value> {
    match piece {
        Piece::Thought(text, signature) => vec![
            json!({"text": text, "thought": true}),
            // A signature without a following part comes on an empty part.
            json!({"text": "", "thoughtSignature": signature}),
        ],
        Piece::Text(chunks) => chunks.iter().map(|chunk| json!({ "text": chunk })).collect(),
        Piece::Call(id, name, arguments) => {
            vec![
                json!({"functionCall": {"id": id, "name": name, "args": parsed(arguments)}, "thoughtSignature": format!("signs_{id}")}),
            ]
        }
    }
}

fn gemini_chunk(said: &Said, pieces: &[Piece], last: bool) -> Value {
    let (prompt, cached, output) = COUNTED;
    let parts: Vec<Value> = pieces.iter().flat_map(gemini_parts).collect();
    let mut chunk = json!({"candidates": [{"content": {"role": "model", "parts": parts}}], "modelVersion": "m-2"});
    let counted = if last { output } else { 1 };
    chunk["usageMetadata"] = json!({
        "promptTokenCount": prompt, "cachedContentTokenCount": cached, "candidatesTokenCount": counted - 1,
        "thoughtsTokenCount": 1,
    });
    if last {
        let reason = match said.end {
            End::Stop | End::Calls => "STOP",
            End::Length => "MAX_TOKENS",
            End::Refusal => "SAFETY",
        };
        chunk["candidates"][0]["finishReason"] = reason.into();
    }
    chunk
}

fn gemini(said: &Said) -> Vec<String> {
    let (last, before) = said.pieces.split_last().expect("something is said");
    let mut chunks: Vec<Value> =
        before.iter().map(|piece| gemini_chunk(said, std::slice::from_ref(piece), false)).collect();
    chunks.push(gemini_chunk(said, std::slice::from_ref(last), true));
    chunks.iter().map(Value::to_string).collect()
}

/// Returns one line with these pieces, and the end if there is one.
fn ollama_line(pieces: &[Piece], end: Option<End>) -> Value {
    let mut message = json!({"role": "assistant", "content": ""});
    let mut calls = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Thought(text, _) => message["thinking"] = (*text).into(),
            Piece::Text(chunks) => message["content"] = chunks.concat().into(),
            Piece::Call(id, name, arguments) => {
                // Ollama cannot send arguments that are not JSON.
                let arguments = if arguments.is_empty() { json!({}) } else { parsed(arguments) };
                calls.push(json!({"id": id, "function": {"name": name, "arguments": arguments}}));
            }
        }
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    let mut line = json!({"model": "m-2", "created_at": "2026-01-01T00:00:00Z", "message": message, "done": false});
    if let Some(end) = end {
        let (prompt, _, output) = COUNTED;
        line["done"] = true.into();
        line["done_reason"] = if end == End::Length { "length" } else { "stop" }.into();
        line["prompt_eval_count"] = prompt.into();
        line["eval_count"] = output.into();
    }
    line
}

fn ollama(said: &Said) -> Vec<String> {
    let mut lines = Vec::new();
    for piece in &said.pieces {
        match piece {
            Piece::Text(chunks) => lines.extend(chunks.iter().map(|chunk| {
                let mut line = ollama_line(&[], None);
                line["message"]["content"] = (*chunk).into();
                line
            })),
            Piece::Thought(..) | Piece::Call(..) => lines.push(ollama_line(std::slice::from_ref(piece), None)),
        }
    }
    lines.push(ollama_line(&[], Some(said.end)));
    lines.iter().map(Value::to_string).collect()
}
