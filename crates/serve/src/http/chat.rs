//! A spell as if it were a model: the routes that chat clients know, in OpenAI's format.
//!
//! The messages of the entity and its answer become the message content. Its thinking, and every gate call with its
//! result, become `reasoning_content`, which chat clients show separately and leave out of the conversation. If a
//! client disconnects, the run is cancelled, as a request to a model would be.

use std::collections::{HashMap, HashSet};

use axum::body::{Body, Bytes};
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::Response;
use axum::response::IntoResponse;
use cantrip_service::cantrip::canon::{Clock, Redactor, RunId};
use cantrip_service::cantrip::loom::{Ending, Outcome};
use cantrip_service::cantrip::reply::{AnyCode, Envelope, ReplyType, codes};
use cantrip_service::cantrip::stream::{
    Emission, Gradient, Item, ItemId, Options, Origin, Text, ToolCall, TurnEvent, TurnId, Upsert,
};
use cantrip_service::cantrip::{Cancel, CastReply, MachineClock, UpsertStream, Waiting};
use cantrip_service::{CastRequest, SpellSummary, StartedCast};
use futures_util::stream;
use serde_json::{Value, json};

use super::answer::{Answer, AnswerCode};
use super::chat_request::Completion;
use super::extractors::{Caller, JsonBody};
use super::feeds::event_stream;
use super::routes::{ResponseKind, RouteDoc, Routes};

const CHAT: &str = "/v1/chat/completions";
const MODELS: &str = "/v1/models";
const MODEL: &str = "/v1/models/{id}";

pub(super) fn routes(routes: &mut Routes) {
    let about = RouteDoc::new(
        "create_chat_completion",
        "Chat with a spell as if it were a model, in OpenAI's format.",
        ResponseKind::Text("application/json"),
        &[200, 403, 404, 502],
    )
    .body::<Completion>();
    routes.post(CHAT, complete, about);
    let about = RouteDoc::new(
        "list_models",
        "List the spells as models, in OpenAI's format.",
        ResponseKind::Text("application/json"),
        &[200],
    );
    routes.get(MODELS, models, about);
    let about = RouteDoc::new(
        "get_model",
        "Show a spell as a model, in OpenAI's format.",
        ResponseKind::Text("application/json"),
        &[200],
    )
    .path("the name of a spell");
    routes.get(MODEL, model, about);
}

/// The finish reason of a run that waits. No reason of the format means that a person must act first; this one says
/// that content is withheld, and no client continues by itself or calls a tool because of it.
const WITHHELD: &str = "content_filter";

/// A text up to this length is sent word by word; a longer one in steps of this part of its length.
const EVERY_WORD_BYTES: usize = 16 << 10;
const STEPS: usize = 64;

/// The field of our own in a response and in its last chunk: the run, and its state.
const EXTENSION: &str = "cantrip";

/// Returns true if a path is one of the OpenAI-compatible routes.
pub(super) fn is_chat_path(path: &str) -> bool {
    path == CHAT || path == MODELS || path.strip_prefix(MODELS).is_some_and(|rest| rest.starts_with('/'))
}

/// Returns a refusal in OpenAI's format.
pub(super) fn error(refused: &AnswerCode) -> Value {
    let kind = match refused.code.reply_type() {
        _ if refused.code == codes::UNAUTHENTICATED.any() => "authentication_error",
        ReplyType::Success | ReplyType::Invalid => "invalid_request_error",
        ReplyType::Denied => "permission_error",
        ReplyType::Failure => "server_error",
    };
    json!({"error": {"message": refused.message, "type": kind, "param": null, "code": refused.code}})
}

/// Cancels a run when the client that asked for it is gone.
struct CancelOnDrop {
    cancel: Cancel,
    over: bool,
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if !self.over {
            self.cancel.cancel();
        }
    }
}

async fn complete(caller: Caller, JsonBody(completion): JsonBody<Completion>) -> Response<Body> {
    let asked = completion.check().and_then(|()| Ok((completion.intent()?, completion.answer_schema()?)));
    let (intent, answer) = match asked {
        Ok(asked) => asked,
        Err(refusal) => return Answer::of(caller.http.refusal_reply(refusal).await).into_response(),
    };
    let run = caller.http.host().runtime().new_run_id();
    let events = caller.service.follow(run).filter(|_| completion.stream == Some(true));
    let ask = CastRequest { run: Some(run), ..CastRequest::with_intent(intent) };
    let is_typed = answer.is_some();
    let begun = caller.service.begin_typed_cast(&completion.model, ask, answer).await;
    let patience = CancelOnDrop { cancel: begun.cancel.clone(), over: false };
    let head = CompletionHead {
        id: format!("chatcmpl-{run}"),
        created: MachineClock::new().now().wall.unix_millis() / 1_000,
        model: completion.model,
        is_typed,
    };
    match (events, begun.run) {
        (Some(events), Some(_)) => {
            let told = completion.stream_options.unwrap_or_default();
            let gradient = if told.every_delta == Some(false) { Gradient::default() } else { Gradient::every_token() };
            let options = Options { gradient, announce_arguments: true, ..Options::default() };
            let usage = told.include_usage.unwrap_or(false);
            let telling = ChatStream {
                head,
                run,
                upserts: UpsertStream::of(events, options),
                begun: Some(begun),
                patience,
                redactor: caller.http.guard().redactor().clone(),
                sent: HashMap::new(),
                told: HashSet::new(),
                children: HashSet::new(),
                said: false,
                usage,
                stage: Stage::Opens,
            };
            stream_response(telling)
        }
        (_, _) => {
            let mut patience = patience;
            let reply = begun.reply().await;
            patience.over = true;
            complete_response(&head, ChatEnd::of(&head, run, reply))
        }
    }
}

/// The fields that every response and every chunk begin with.
struct CompletionHead {
    id: String,
    created: i64,
    model: String,
    /// True if the client asked for JSON: then the content is the answer alone.
    is_typed: bool,
}

impl CompletionHead {
    fn of(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices,
            "system_fingerprint": null,
        })
    }

    fn piece(&self, delta: Value, finish: Option<&str>) -> Value {
        self.of(
            "chat.completion.chunk",
            json!([{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": null}]),
        )
    }
}

/// The end of a run as a chat client sees it.
enum ChatEnd {
    Answered {
        text: String,
        usage: Option<Value>,
        run: Value,
    },
    /// The run waits. `notice` says for what, and how it continues.
    Waiting {
        notice: String,
        usage: Option<Value>,
        run: Value,
    },
    Refused(Box<Envelope>),
}

impl ChatEnd {
    fn of(head: &CompletionHead, run: RunId, reply: CastReply) -> Self {
        let usage = reply.outcome.as_ref().map(usage);
        if let Some(Outcome { ending: Ending::Terminated { result, .. }, .. }) = &reply.outcome {
            let text = result.as_str().filter(|_| !head.is_typed).map_or_else(|| result.to_string(), str::to_owned);
            return Self::Answered { text, usage, run: json!({"run_id": run, "state": "terminated"}) };
        }
        if let Some(waiting) = &reply.waiting {
            let reason = waiting.reason();
            let notice = match waiting {
                Waiting::Approval { .. } => {
                    format!("{run} waits for a person's approval. POST /v1/runs/{run}/approve decides.")
                }
                Waiting::Crystal { .. } | Waiting::Interrupted | Waiting::HandedBack => {
                    format!("{run} waits: {reason}. POST /v1/runs/{run}/resume resumes it.")
                }
            };
            let approvals = waiting.approvals();
            let run = json!({"run_id": run, "state": "waiting", "reason": reason, "approvals": approvals});
            return Self::Waiting { notice, usage, run };
        }
        Self::Refused(Box::new(Envelope::of(reply.guarded.reply, &reply.guarded.meta)))
    }
}

fn usage(outcome: &Outcome) -> Value {
    let usage = &outcome.usage;
    json!({
        "prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens(), "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    })
}

fn complete_response(head: &CompletionHead, end: ChatEnd) -> Response<Body> {
    let (message, finish, usage, run) = match end {
        ChatEnd::Answered { text, usage, run } => {
            (json!({"role": "assistant", "content": text, "refusal": null}), "stop", usage, run)
        }
        ChatEnd::Waiting { notice, usage, run } => {
            (json!({"role": "assistant", "content": null, "refusal": notice}), WITHHELD, usage, run)
        }
        ChatEnd::Refused(envelope) => return Answer::from_envelope(*envelope).into_response(),
    };
    let choices = json!([{"index": 0, "message": message, "finish_reason": finish, "logprobs": null}]);
    let mut told = head.of("chat.completion", choices);
    told["usage"] = usage.unwrap_or_else(|| json!({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}));
    told[EXTENSION] = run;
    axum::Json(told).into_response()
}

fn model_card(card: &SpellSummary) -> Value {
    json!({"id": card.name, "object": "model", "created": 0, "owned_by": "cantrip"})
}

async fn models(caller: Caller) -> axum::Json<Value> {
    let data: Vec<Value> = caller.http.host().local_service().spells().spells().iter().map(model_card).collect();
    axum::Json(json!({"object": "list", "data": data}))
}

async fn model(caller: Caller, path: Result<Path<String>, PathRejection>) -> Response<Body> {
    let named = path.map_or_else(|_| String::new(), |Path(named)| named);
    let spells = caller.http.host().local_service().spells().spells();
    match spells.iter().find(|card| card.name == named) {
        Some(card) => axum::Json(model_card(card)).into_response(),
        None => {
            let refusal = codes::not_found("spell", named);
            Answer::of(caller.http.refusal_reply(refusal.into()).await).into_response()
        }
    }
}

fn stream_response(telling: ChatStream) -> Response<Body> {
    event_stream(stream::unfold(telling, |mut telling| async {
        let piece = telling.next().await?;
        Some((piece, telling))
    }))
}

/// The progress of a streamed answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Opens,
    Tells,
    Usage,
    Closes,
    Over,
}

/// A streamed answer.
struct ChatStream {
    head: CompletionHead,
    run: RunId,
    upserts: UpsertStream,
    begun: Option<StartedCast>,
    patience: CancelOnDrop,
    redactor: Redactor,
    /// The text that was sent for each item.
    sent: HashMap<ItemId, String>,
    /// The calls whose result was sent.
    told: HashSet<ItemId>,
    /// The turns of children: their calls are sent, their messages are not.
    children: HashSet<TurnId>,
    /// True if some content was sent before.
    said: bool,
    usage: bool,
    stage: Stage,
}

fn piece(value: &Value) -> Bytes {
    Bytes::from(format!("data: {value}\n\n"))
}

impl ChatStream {
    async fn next(&mut self) -> Option<Bytes> {
        match self.stage {
            Stage::Opens => {
                self.stage = Stage::Tells;
                Some(piece(&self.head.piece(json!({"role": "assistant", "content": ""}), None)))
            }
            Stage::Tells => {
                while let Some(emission) = self.upserts.next().await {
                    if let Some(delta) = self.delta(emission) {
                        return Some(piece(&self.head.piece(delta, None)));
                    }
                }
                self.stage = Stage::Closes;
                Some(self.end().await)
            }
            Stage::Usage | Stage::Closes => {
                self.stage = Stage::Over;
                Some(Bytes::from_static(b"data: [DONE]\n\n"))
            }
            Stage::Over => None,
        }
    }

    /// Returns the answer, or the error in its place.
    async fn end(&mut self) -> Bytes {
        let Some(begun) = self.begun.take() else { return Bytes::new() };
        let reply = begun.reply().await;
        self.patience.over = true;
        match ChatEnd::of(&self.head, self.run, reply) {
            ChatEnd::Answered { text: answer, usage, run } => {
                let mut text = Vec::new();
                // An answer that was already sent as a message is not sent again.
                if self.head.is_typed || !self.sent.values().any(|said| *said == answer) {
                    let gap = if self.said { "\n\n" } else { "" };
                    text.extend_from_slice(&piece(
                        &self.head.piece(json!({"content": format!("{gap}{answer}")}), None),
                    ));
                }
                self.close(text, "stop", usage, run)
            }
            ChatEnd::Waiting { notice, usage, run } => {
                let text = piece(&self.head.piece(json!({"refusal": notice}), None)).to_vec();
                self.close(text, WITHHELD, usage, run)
            }
            ChatEnd::Refused(envelope) => {
                let code: AnyCode = envelope.code();
                piece(&error(&AnswerCode { code, message: envelope.message().to_owned(), notice: None }))
            }
        }
    }

    /// Appends the chunk with the finish reason and, if the client asked for it, the one with the usage.
    fn close(&mut self, mut text: Vec<u8>, finish: &str, usage: Option<Value>, run: Value) -> Bytes {
        let mut last = self.head.piece(json!({}), Some(finish));
        last[EXTENSION] = run;
        text.extend_from_slice(&piece(&last));
        if let Some(usage) = usage.filter(|_| self.usage) {
            self.stage = Stage::Usage;
            let mut last = self.head.of("chat.completion.chunk", json!([]));
            last["usage"] = usage;
            text.extend_from_slice(&piece(&last));
        }
        Bytes::from(text)
    }

    /// Returns the delta of an emission, if a chat client should see it.
    fn delta(&mut self, emission: Emission) -> Option<Value> {
        match emission {
            Emission::Turn(TurnEvent::Started { turn_id, child, .. }) => {
                if child.entity_id.is_some() {
                    self.children.insert(turn_id);
                }
                None
            }
            Emission::Turn(TurnEvent::Complete { .. } | TurnEvent::Error { .. }) => None,
            Emission::Upsert(upsert) => self.item_delta(&upsert),
        }
    }

    fn item_delta(&mut self, upsert: &Upsert) -> Option<Value> {
        let of_child = self.children.contains(&upsert.turn_id);
        match &upsert.item {
            // The answer is sent at the end.
            Item::Message { .. } if upsert.item_id.as_str().ends_with("/answer") => None,
            Item::Message { content, origin: Origin::Agent } if !of_child => {
                let first = !self.sent.contains_key(&upsert.item_id);
                let more = self.suffix(upsert, content)?;
                if self.head.is_typed {
                    // The content is JSON, and only the answer fits.
                    return Some(json!({"reasoning_content": more}));
                }
                let gap = if first && self.said { "\n\n" } else { "" };
                self.said = true;
                Some(json!({"content": format!("{gap}{more}")}))
            }
            Item::Thinking { content, .. } if !of_child => {
                let more = self.suffix(upsert, content)?;
                Some(json!({"reasoning_content": more}))
            }
            Item::ToolCall(call) => self.call_delta(upsert, call, of_child),
            Item::Message { .. } | Item::Thinking { .. } => None,
        }
    }

    /// Returns the part of a text that was not sent yet. Text that was replaced stays as it was sent: a chat cannot
    /// take it back. So an unfinished word waits for its end: it may become a secret.
    fn suffix(&mut self, upsert: &Upsert, content: &Text) -> Option<String> {
        let is_final = upsert.status.is_final();
        let before = self.sent.get(&upsert.item_id).map_or(0, String::len);
        // A text is redacted as a whole, so the steps of a long one grow with it.
        if !is_final && content.len() > EVERY_WORD_BYTES && content.len() < before + before / STEPS {
            return None;
        }
        let text: String = content.segments().collect();
        let mut text = self.redactor.redact_text(&text).into_owned();
        if !is_final {
            let words = text.trim_end_matches(|letter: char| letter.is_ascii_graphic()).len();
            text.truncate(words);
        }
        let sent = self.sent.get(&upsert.item_id).map_or("", String::as_str);
        let more = text.strip_prefix(sent).filter(|more| !more.is_empty())?.to_owned();
        self.sent.insert(upsert.item_id.clone(), text);
        Some(more)
    }

    /// Returns the delta of a call once it has its result.
    fn call_delta(&mut self, upsert: &Upsert, call: &ToolCall, of_child: bool) -> Option<Value> {
        let output = call.output.as_ref()?;
        if call.name.as_str() == "done" || !self.told.insert(upsert.item_id.clone()) {
            return None;
        }
        const SHOWN: usize = 200;
        let cut = |text: &str| {
            let mut shown: String = text.chars().take(SHOWN).collect();
            if shown.len() < text.len() {
                shown.push('…');
            }
            shown
        };
        let arguments = serde_json::to_value(&call.arguments).unwrap_or_default();
        let arguments = cut(&self.redactor.redact_value(&arguments).to_string());
        let came: String = output.text.segments().collect();
        let came = cut(&self.redactor.redact_text(&came));
        let indent = if of_child { "  " } else { "" };
        let mark = if output.is_error { "failed" } else { "gave" };
        Some(json!({"reasoning_content": format!("\n{indent}{}({arguments}) {mark}: {came}\n", call.name.as_str())}))
    }
}
