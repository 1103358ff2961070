//! What do tracing systems and logs receive about a cast?
//!
//! One span for each cast, each request to a crystal and each gate call, with the names and attributes of
//! OpenTelemetry's conventions for generative AI, and one log line for each request (the guard writes the line of a
//! gate call). They are `tracing` spans and events: the embedding program picks the subscriber, and this module knows
//! no wire protocol.
//!
//! Without a subscriber nothing is created, not even a name: a turn is measured in microseconds. Content (messages,
//! arguments and results) is included only if the runtime was configured to do so. It is redacted and cut to a maximum
//! length; secrets are never included.
//!
//! A span generates its own id, because a service that is called from inside the span may have to receive it
//! (`traceparent`). The calling code is below the exporter, which otherwise would be the only part to know the id.

mod content;

use std::num::NonZeroU64;

use cantrip_canon::{CastId, EntityId, Entropy, Instant, Money, RunId};
use cantrip_circle::gate::Identity;
use cantrip_crystal::{Answer, Failure, Messages, Price, Provider, Sampling};
use cantrip_loom::{CallId, Caller, Content, Finish, Outcome, ReplyMark, Usage, Utterance};
use cantrip_reply::{AnyCode, ReplyType, Trace, codes};
use cantrip_trace::TraceContext;
use serde_json::{Map, Value, json};
use tracing::field::{Empty, display};
use tracing::{Level, Span, enabled, event, span};

use crate::cantrip::Cantrip;
use crate::driver::{MachineEntropy, Runtime};
use crate::limits::{TOLD_CONTENT_BYTES_MAX, TOLD_NAME_CHARS_MAX};
use content::{answer_part, call_json, finish, message, parts, text};

/// The target of every span; subscribers filter by it.
pub const SPANS: &str = "cantrip::span";

/// The target of the log line of each request to a crystal.
pub const LINES: &str = "cantrip::crystal";

/// A span in progress and its position in a trace. Cheap to clone; all clones are the same span.
#[derive(Debug, Clone)]
pub(crate) struct SpanScope {
    span: Span,
    /// `None` if no one follows the trace: there is no span here, and no foreign span above it.
    context: Option<TraceContext>,
}

/// The attributes of a cast whose span is about to start.
pub(crate) struct CastSpan<'a> {
    pub cantrip: &'a Cantrip,
    pub run: RunId,
    pub entity: EntityId,
    pub cast: CastId,
    pub intent: &'a Content,
}

/// The parent of a cast's span.
#[derive(Clone, Copy)]
pub(crate) enum SpanParent<'a> {
    /// The surface call that consists of this cast alone.
    Call(&'a Trace),
    /// The delegation that this cast is a child of.
    Scope(&'a SpanScope),
}

/// The outcome of a cast.
#[derive(Default)]
pub(crate) struct CastSpanEnd<'a> {
    pub usage: Option<Usage>,
    pub cost: Option<Money>,
    pub turns: Option<u64>,
    pub answer: Option<&'a Value>,
}

impl<'a> CastSpanEnd<'a> {
    pub(crate) fn of(outcome: &'a Outcome) -> Self {
        let Outcome { ending, usage, cost, turns, .. } = outcome;
        Self { usage: Some(*usage), cost: *cost, turns: Some(*turns), answer: ending.result() }
    }
}

fn listens() -> bool {
    enabled!(target: SPANS, Level::INFO)
}

/// Returns random bits that nothing in a cast depends on.
fn fresh() -> NonZeroU64 {
    let mut bytes = [0; 8];
    MachineEntropy.fill(&mut bytes);
    NonZeroU64::new(u64::from_le_bytes(bytes)).unwrap_or(NonZeroU64::MIN)
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl SpanScope {
    /// Creates a scope that records nothing.
    pub(crate) fn silent() -> Self {
        Self { span: Span::none(), context: None }
    }

    /// Returns the same position in the trace, without a span.
    fn without_span(&self) -> Self {
        Self { span: Span::none(), context: self.context.clone() }
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.span.is_disabled()
    }

    /// Starts the span of a cast.
    pub(crate) fn cast(runtime: &Runtime, casting: &CastSpan<'_>, above: SpanParent<'_>) -> Self {
        let (asks, parent, state) = match above {
            SpanParent::Call(trace) => (trace.parent_context().cloned(), None, trace.parent_context()),
            SpanParent::Scope(scope) => (scope.context.clone(), scope.span.id(), None),
        };
        if !listens() {
            return Self { span: Span::none(), context: asks };
        }
        let context = match (asks, above) {
            (Some(asks), _) => asks.with_span(fresh()),
            (None, SpanParent::Call(trace)) => TraceContext::new_root(trace.id(), fresh()),
            (None, SpanParent::Scope(_)) => return Self::silent(),
        };
        let CastSpan { cantrip, run, entity, cast, intent } = casting;
        let name = cantrip.name().map(|name| redacted_name(runtime, name));
        let (provider, model) = provider_and_model(&cantrip.record().crystal);
        let span = span!(
            target: SPANS, parent: parent, Level::INFO, "invoke_agent",
            otel.name = match &name { Some(name) => format!("invoke_agent {name}"), None => "invoke_agent".to_owned() },
            otel.kind = "internal",
            otel.status_code = Empty,
            trace_id = %context.trace_id(),
            span_id = format!("{:016x}", context.span()),
            traceparent = state.map(display),
            tracestate = state.and_then(TraceContext::state),
            gen_ai.operation.name = "invoke_agent",
            gen_ai.provider.name = provider,
            gen_ai.request.model = model,
            gen_ai.agent.name = name,
            gen_ai.agent.id = %cantrip.id(),
            gen_ai.conversation.id = %entity,
            gen_ai.usage.input_tokens = Empty,
            gen_ai.usage.output_tokens = Empty,
            gen_ai.input.messages = Empty,
            gen_ai.output.messages = Empty,
            cantrip.run.id = %run,
            cantrip.cast.id = %cast,
            cantrip.turns = Empty,
            cantrip.cost = Empty,
            cantrip.reply.type = Empty,
            cantrip.reply.code = Empty,
            error.type = Empty,
        );
        let scope = Self { span, context: Some(context) };
        if runtime.traces_content() {
            scope.content(runtime, "gen_ai.input.messages", || json!([{"role": "user", "parts": parts(intent)}]));
        }
        scope
    }

    /// Starts the span of a gate call.
    pub(crate) fn gate(
        &self,
        runtime: &Runtime,
        gate: &str,
        identity: &Identity,
        arguments: Option<&Map<String, Value>>,
    ) -> Self {
        let Some(context) = self.below() else { return self.without_span() };
        let gate = redacted_name(runtime, gate);
        let call = match &identity.tool_call_id {
            Some(id) => redacted_name(runtime, id),
            None => identity.call_id.to_string(),
        };
        let span = span!(
            target: SPANS, parent: self.span.id(), Level::INFO, "execute_tool",
            otel.name = format!("execute_tool {gate}"),
            otel.kind = "internal",
            otel.status_code = Empty,
            trace_id = %context.trace_id(),
            span_id = format!("{:016x}", context.span()),
            gen_ai.operation.name = "execute_tool",
            gen_ai.tool.name = gate,
            gen_ai.tool.type = "function",
            gen_ai.tool.call.id = call,
            gen_ai.tool.call.arguments = Empty,
            gen_ai.tool.call.result = Empty,
            gen_ai.conversation.id = %identity.entity_id,
            cantrip.run.id = %identity.run_id,
            cantrip.turn.id = %identity.turn_id,
            cantrip.call.id = %identity.call_id,
            cantrip.cost = Empty,
            cantrip.reply.type = Empty,
            cantrip.reply.code = Empty,
            error.type = Empty,
        );
        let scope = Self { span, context: Some(context) };
        if let Some(arguments) = arguments.filter(|_| runtime.traces_content()) {
            scope.content(runtime, "gen_ai.tool.call.arguments", || Value::Object(arguments.clone()));
        }
        scope
    }

    /// Records the reply of a gate call.
    pub(crate) fn record_settled(&self, runtime: &Runtime, reply: &ReplyMark, cost: Option<Money>, result: &Value) {
        if self.is_silent() {
            return;
        }
        self.record_reply(reply.reply_type, &reply.code);
        self.record_cost(cost);
        if runtime.traces_content() {
            self.content(runtime, "gen_ai.tool.call.result", || result.clone());
        }
    }

    /// Records the end or the wait of a cast.
    pub(crate) fn record_end(&self, runtime: &Runtime, reply: &ReplyMark, ended: &CastSpanEnd<'_>) {
        if self.is_silent() {
            return;
        }
        self.record_reply(reply.reply_type, &reply.code);
        self.record_cost(ended.cost);
        if let Some(turns) = ended.turns {
            self.span.record("cantrip.turns", whole(turns));
        }
        if let Some(usage) = &ended.usage {
            self.record_usage(usage);
        }
        if let Some(answer) = ended.answer.filter(|_| runtime.traces_content()) {
            self.content(runtime, "gen_ai.output.messages", || {
                json!([{"role": "assistant", "parts": [answer_part(answer)], "finish_reason": finish(&Finish::Stop)}])
            });
        }
    }

    /// Starts the span of a request to a crystal.
    pub(crate) fn chat(&self, runtime: &Runtime, asking: ChatSpanStart<'_>) -> ChatSpan {
        let context = self.below();
        let line = enabled!(target: LINES, Level::ERROR).then(|| ChatLogLine {
            began: runtime.now().monotonic,
            trace: asking.trace.clone(),
            run: asking.run,
            entity: asking.entity,
            call: asking.call,
            crystal: asking.crystal.to_owned(),
        });
        let Some(context) = context else { return ChatSpan { scope: self.without_span(), line } };
        let (provider, model) = provider_and_model(asking.crystal);
        let sampling = asking.sampling;
        let span = span!(
            target: SPANS, parent: self.span.id(), Level::INFO, "chat",
            otel.name = format!("chat {model}"),
            otel.kind = "client",
            otel.status_code = Empty,
            trace_id = %context.trace_id(),
            span_id = format!("{:016x}", context.span()),
            gen_ai.operation.name = "chat",
            gen_ai.provider.name = provider,
            gen_ai.request.model = model,
            gen_ai.request.max_tokens = i64::from(asking.output_tokens),
            gen_ai.request.temperature = sampling.and_then(|sampling| sampling.temperature),
            gen_ai.request.top_p = sampling.and_then(|sampling| sampling.top_p),
            gen_ai.response.model = Empty,
            gen_ai.response.finish_reasons = Empty,
            gen_ai.usage.input_tokens = Empty,
            gen_ai.usage.output_tokens = Empty,
            gen_ai.usage.cache_read.input_tokens = Empty,
            gen_ai.usage.cache_creation.input_tokens = Empty,
            gen_ai.usage.reasoning.output_tokens = Empty,
            gen_ai.input.messages = Empty,
            gen_ai.output.messages = Empty,
            gen_ai.conversation.id = %asking.entity,
            cantrip.run.id = %asking.run,
            cantrip.call.id = %asking.call,
            cantrip.cost = Empty,
            cantrip.reply.type = Empty,
            cantrip.reply.code = Empty,
            error.type = Empty,
        );
        let scope = Self { span, context: Some(context) };
        if runtime.traces_content() {
            let messages = || asking.messages.iter().map(message).collect();
            scope.content(runtime, "gen_ai.input.messages", messages);
        }
        ChatSpan { scope, line }
    }

    /// Returns the span, for code that runs inside it.
    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    /// Returns the trace context for services that are called from this span.
    pub(crate) fn context(&self) -> Option<&TraceContext> {
        self.context.as_ref()
    }

    /// Returns the trace context of a new child span; `None` without a subscriber.
    fn below(&self) -> Option<TraceContext> {
        if self.is_silent() { None } else { self.context.as_ref().map(|context| context.with_span(fresh())) }
    }

    fn record_reply(&self, kind: ReplyType, code: &str) {
        self.span.record("cantrip.reply.type", kind.as_str());
        self.span.record("cantrip.reply.code", code);
        match kind {
            ReplyType::Success => {}
            ReplyType::Invalid | ReplyType::Denied => {
                self.span.record("error.type", code);
            }
            ReplyType::Failure => {
                self.span.record("error.type", code);
                self.span.record("otel.status_code", "error");
            }
        }
    }

    fn record_usage(&self, usage: &Usage) {
        self.span.record("gen_ai.usage.input_tokens", whole(usage.prompt_tokens));
        self.span.record("gen_ai.usage.output_tokens", whole(usage.completion_tokens));
    }

    fn record_cost(&self, cost: Option<Money>) {
        if let Some(cost) = cost {
            self.span.record("cantrip.cost", display(cost));
        }
    }

    /// Records content, redacted and cut to the maximum length.
    fn content(&self, runtime: &Runtime, key: &'static str, content: impl FnOnce() -> Value) {
        let redactor = runtime.guard().redactor();
        let mut text = redactor.redact_value(&content()).to_string();
        if text.len() > TOLD_CONTENT_BYTES_MAX {
            text.truncate(text.floor_char_boundary(TOLD_CONTENT_BYTES_MAX));
        }
        self.span.record(key, text);
    }
}

/// A request to a crystal that is about to be sent.
pub(crate) struct ChatSpanStart<'a> {
    pub trace: &'a Trace,
    pub run: RunId,
    pub entity: EntityId,
    pub call: CallId,
    pub crystal: &'a str,
    pub output_tokens: u32,
    pub sampling: Option<&'a Sampling>,
    pub messages: &'a Messages,
}

/// A request to a crystal in progress.
#[derive(Debug)]
#[must_use = "say what came of it"]
pub(crate) struct ChatSpan {
    scope: SpanScope,
    line: Option<ChatLogLine>,
}

/// The content of the request's log line, if the line is enabled.
#[derive(Debug)]
struct ChatLogLine {
    began: Instant,
    trace: Trace,
    run: RunId,
    entity: EntityId,
    call: CallId,
    crystal: String,
}

impl ChatSpan {
    /// Returns the span, for code that runs inside it.
    pub(crate) fn span(&self) -> Span {
        self.scope.span()
    }

    /// Returns the trace context for the crystal's provider.
    pub(crate) fn context(&self) -> Option<&TraceContext> {
        self.scope.context()
    }

    /// Records the outcome of the request.
    pub(crate) fn finish(self, runtime: &Runtime, price: &Price, answered: &Result<Answer, Failure>) {
        if self.scope.is_silent() && self.line.is_none() {
            return;
        }
        let (code, usage) = match answered {
            Ok(answer) => (codes::OK.any(), answer.usage),
            Err(failure) => (failure.code(), failure.charge.usage().copied()),
        };
        let cost = usage.and_then(|usage| price.cost(&usage));
        if !self.scope.is_silent() {
            let said = answered.as_ref().ok().map(|answer| &answer.utterance);
            self.scope.record_answer(runtime, code, usage.as_ref(), cost, said);
        }
        if let Some(line) = &self.line {
            line.write(runtime, code, usage.as_ref(), cost);
        }
    }

    /// Records that the answer is no longer awaited.
    pub(crate) fn abandon(self, runtime: &Runtime) {
        let code = codes::ENDED_FROM_OUTSIDE.any();
        if !self.scope.is_silent() {
            self.scope.record_reply(code.reply_type(), code.as_str());
        }
        if let Some(line) = &self.line {
            line.write(runtime, code, None, None);
        }
    }
}

impl SpanScope {
    fn record_answer(
        &self,
        runtime: &Runtime,
        code: AnyCode,
        usage: Option<&Usage>,
        cost: Option<Money>,
        said: Option<&Utterance>,
    ) {
        self.record_reply(code.reply_type(), code.as_str());
        self.record_cost(cost);
        if let Some(usage) = usage {
            self.record_usage(usage);
            let further = [
                ("gen_ai.usage.cache_read.input_tokens", Some(usage.cached_tokens).filter(|tokens| *tokens > 0)),
                ("gen_ai.usage.cache_creation.input_tokens", usage.cache_write_tokens),
                ("gen_ai.usage.reasoning.output_tokens", usage.reasoning_tokens),
            ];
            for (key, tokens) in further {
                if let Some(tokens) = tokens {
                    self.span.record(key, whole(tokens));
                }
            }
        }
        let Some(said) = said else { return };
        self.span.record("gen_ai.response.model", redacted_name(runtime, &said.model));
        let finish = redacted_name(runtime, finish(&said.finish));
        self.span.record("gen_ai.response.finish_reasons", finish.as_str());
        if runtime.traces_content() {
            self.content(runtime, "gen_ai.output.messages", || {
                let content = said.content.iter().map(|content| text(content));
                let parts: Vec<Value> = content.chain(said.calls.iter().map(call_json)).collect();
                json!([{"role": "assistant", "parts": parts, "finish_reason": finish}])
            });
        }
    }
}

impl ChatLogLine {
    fn write(&self, runtime: &Runtime, code: AnyCode, usage: Option<&Usage>, cost: Option<Money>) {
        let took = runtime.now().monotonic.since(self.began);
        // A request of a fold belongs to no turn.
        let turn = if let Caller::Turn(turn) = self.call.caller() { Some(turn) } else { None };
        macro_rules! write_at {
            ($level:expr) => {
                event!(
                    target: LINES, $level,
                    trace_id = %self.trace.id(),
                    run_id = %self.run,
                    entity_id = %self.entity,
                    turn_id = turn.map(display),
                    model = redacted_name(runtime, &self.crystal),
                    input_tokens = usage.map(|usage| usage.prompt_tokens),
                    output_tokens = usage.map(|usage| usage.completion_tokens),
                    cost = cost.map(display),
                    duration_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
                    "type" = code.reply_type().as_str(),
                    code = code.as_str(),
                    "chat"
                )
            };
        }
        match code.reply_type() {
            ReplyType::Success => write_at!(Level::INFO),
            ReplyType::Invalid | ReplyType::Denied => write_at!(Level::WARN),
            ReplyType::Failure => write_at!(Level::ERROR),
        }
    }
}

/// Returns a name that may come from a model or a file, redacted and on one line.
fn redacted_name(runtime: &Runtime, name: &str) -> String {
    let clean = runtime.guard().redactor().redact_text(name).into_owned();
    clean.chars().map(|char| if char.is_control() { ' ' } else { char }).take(TOLD_NAME_CHARS_MAX).collect()
}

/// Returns the provider's name in the conventions, and the provider's name for the model.
fn provider_and_model(crystal: &str) -> (&str, &str) {
    let (provider, model) = crystal.split_once('/').unwrap_or(("cantrip", crystal));
    // A self-hosted server's address follows the model; it is not part of the model's name.
    let model = model.split_once("@http").map_or(model, |(model, _)| model);
    (if provider == Provider::Gemini.as_str() { "gcp.gemini" } else { provider }, model)
}
