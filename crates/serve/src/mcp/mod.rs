//! A server for agents: the Model Context Protocol, over pipes and over HTTP.
//!
//! Each tool is a call of the [`SpellHost`]. Its result is the reply's envelope as structured content, with text for a
//! model beside it. Faults of the protocol itself (an unknown tool, arguments that are not an object) are protocol
//! errors; everything else is a reply. The revision 2025-11-25 has a handshake, the revision 2026-07-28 has none. The
//! library supports both and distinguishes them. They differ here in one thing: in the newer one, the client can be
//! asked for a decision about a call.

mod cast_tools;
mod endpoint;
mod read_tools;
mod resources;
mod tools;
mod wire;

use std::fmt;
use std::future::Future;
use std::io;

use axum::http::request::Parts;
use cantrip_service::Service;
use cantrip_service::cantrip::loom::Actor;
use cantrip_service::cantrip::reply::{Call, Envelope, GuardedReply, Refusal, codes, refusal_text};
use cantrip_trace::TraceContext;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestMethod, CompleteRequestParams,
    CompleteResult, ContentBlock, ErrorCode, ErrorData, Implementation, ListPromptsRequestMethod, ListPromptsResult,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{RequestContext, RoleServer, ServiceExt};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::http::Bearer;
use crate::spell_host::SpellHost;
use tools::ToolName;

pub use endpoint::McpEndpoint;

/// The server. Cheap to clone; all clones are the same server.
#[derive(Clone)]
pub struct McpServer {
    host: SpellHost,
    /// The owner of requests that carry no token.
    owner: Actor,
}

impl fmt::Debug for McpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpServer").field("house", &self.host).field("owner", &self.owner).finish()
    }
}

/// The context of a request.
type McpContext = RequestContext<RoleServer>;
type McpResult<T> = Result<T, ErrorData>;
/// The response of a tool, or the refusal that becomes one.
type ToolResult = Result<CallToolResponse, Refusal>;

impl McpServer {
    /// Creates a server on this host. `owner` is the caller over pipes; over HTTP the caller is the owner of the
    /// request's token, if it has one.
    pub fn new(host: SpellHost, owner: Actor) -> Self {
        Self { host, owner }
    }

    /// Serves one client until it closes its end. Only protocol messages are written to `to`.
    pub async fn serve(
        self,
        from: impl AsyncRead + Send + Unpin + 'static,
        to: impl AsyncWrite + Send + Unpin + 'static,
    ) -> io::Result<()> {
        let host = self.host.clone();
        let (pipes, closing) = wire::Wire::new(from, to).split();
        let running = match ServiceExt::serve(self, pipes).await {
            Ok(running) => running,
            // The client disconnected before its first request.
            Err(error) => {
                tracing::info!(%error, "the client closed the connection before it was served");
                return closing.finish().await;
            }
        };
        let ended = running.waiting().await;
        host.local_service().park_all().await;
        closing.finish().await?;
        ended.map(drop).map_err(io::Error::other)
    }

    /// Returns the endpoint for HTTP, to be mounted at `/mcp`.
    pub fn http(self) -> McpEndpoint {
        McpEndpoint::new(self)
    }

    /// Returns the caller of a request.
    fn caller_of(&self, context: &McpContext) -> Caller {
        let parts = context.extensions.get::<Parts>();
        let carried = parts.and_then(|parts| parts.extensions.get::<Bearer>());
        let (owner, service) = match carried {
            Some(bearer) => (bearer.owner.clone(), self.host.service_of(bearer)),
            None => (self.owner.clone(), self.host.service(&self.owner)),
        };
        let header = |name: &str| parts.and_then(|parts| parts.headers.get(name)?.to_str().ok());
        // The request's own trace context comes first: one connection may carry many requests.
        let meta = |name: &str| context.meta.get(name)?.as_str();
        let trace = meta("traceparent")
            .and_then(|parent| TraceContext::parse(parent, meta("tracestate")))
            .or_else(|| TraceContext::parse(header("traceparent")?, header("tracestate")));
        Caller { service, owner, trace }
    }

    /// Runs a reading call inside the safety wrapper.
    async fn read_reply<T: Into<Value>>(
        &self,
        caller: &Caller,
        name: ToolName,
        told: impl Future<Output = Result<T, Refusal>> + Send,
    ) -> GuardedReply {
        let call = Call::surface(name.as_str()).trace_context(caller.trace.clone());
        let guard = self.host.runtime().guard();
        let read = |value: T| codes::read(name.as_str()).value(value.into());
        guard.call(call, |rb| async { rb.answer(told.await.map(read)) }).await
    }

    async fn refusal_reply(&self, caller: &Caller, name: &str, refusal: Refusal) -> GuardedReply {
        let call = Call::surface(name).trace_context(caller.trace.clone());
        self.host.runtime().guard().call(call, |rb| async { rb.refuse(refusal) }).await
    }

    async fn run_tool(&self, name: ToolName, request: CallToolRequestParams, context: &McpContext) -> CallToolResponse {
        let caller = self.caller_of(context);
        let response = Box::pin(self.dispatch_tool(name, request, context, &caller));
        match cantrip_trace::scope(caller.trace.clone(), response).await {
            Ok(response) => response,
            Err(refusal) => tool_result(self.refusal_reply(&caller, name.as_str(), refusal).await).into(),
        }
    }

    async fn dispatch_tool(
        &self,
        name: ToolName,
        request: CallToolRequestParams,
        context: &McpContext,
        caller: &Caller,
    ) -> ToolResult {
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        // A request with the user's answers continues the run that asked for them.
        if let Some(state) = &request.request_state {
            let responses = request.input_responses.unwrap_or_default();
            return self.continue_after_input(caller, context, state, responses).await;
        }
        let guarded = match name {
            ToolName::Spells => {
                let _: tools::NoArguments = read(name, arguments)?;
                let spells = json!({"items": self.host.local_service().spells().spells()});
                self.read_reply(caller, name, async { Ok(spells) }).await
            }
            ToolName::Cast => return self.cast(caller, context, read(name, arguments)?).await,
            ToolName::Send => return self.send(caller, context, read(name, arguments)?).await,
            ToolName::Resume => return self.resume(caller, context, read(name, arguments)?).await,
            ToolName::Fork => return self.fork(caller, context, read(name, arguments)?).await,
            ToolName::Cancel => self.cancel(caller, read(name, arguments)?).await?,
            ToolName::Predict => self.predict(caller, context, read(name, arguments)?).await?,
            ToolName::Signatures => {
                let _: tools::NoArguments = read(name, arguments)?;
                caller.service.signatures().await
            }
            ToolName::Runs => self.read_reply(caller, name, self.runs(caller, read(name, arguments)?)).await,
            ToolName::Run => self.read_reply(caller, name, self.run(caller, read(name, arguments)?)).await,
            ToolName::Thread => self.read_reply(caller, name, self.thread(caller, read(name, arguments)?)).await,
            ToolName::Turn => self.read_reply(caller, name, self.turn(caller, read(name, arguments)?)).await,
            ToolName::Receipts => self.receipts(caller, read(name, arguments)?).await?,
            ToolName::Evaluations => self.evaluations(caller, read(name, arguments)?).await?,
            ToolName::Compiles => self.compiles(caller, read(name, arguments)?).await?,
            ToolName::Spend => self.read_reply(caller, name, self.spend(caller, read(name, arguments)?)).await,
            ToolName::Codes => self.read_reply(caller, name, read_tools::codes(read(name, arguments)?)).await,
        };
        Ok(tool_result(guarded).into())
    }
}

/// The caller of a request, with its service.
struct Caller {
    service: Service,
    owner: Actor,
    /// The trace context of the request, if it has one.
    trace: Option<TraceContext>,
}

fn read<T: DeserializeOwned>(name: ToolName, arguments: Value) -> Result<T, Refusal> {
    serde_json::from_value(arguments).map_err(|fault| codes::schema(name.as_str(), "/", fault.to_string()).into())
}

/// Converts a reply into a tool result: the envelope for programs, and text for a model.
pub fn tool_result(guarded: GuardedReply) -> CallToolResult {
    let text = match refusal_text(&guarded.reply, &guarded.meta) {
        Some(text) => text,
        None => match guarded.reply.value() {
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => Value::Object(guarded.reply.data().clone()).to_string(),
        },
    };
    let is_error = !guarded.reply.reply_type().is_success();
    let envelope = Envelope::of(guarded.reply, &guarded.meta);
    let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
    result.structured_content = serde_json::from_str(&envelope.to_json()).ok();
    result.is_error = Some(is_error);
    result
}

/// Returns a fault of the protocol itself as an error.
async fn protocol_error(server: &McpServer, caller: &Caller, name: &str, refusal: Refusal) -> ErrorData {
    let guarded = server.refusal_reply(caller, name, refusal).await;
    let data = json!({"code": guarded.reply.code(), "trace_id": guarded.meta.trace_id().to_string()});
    ErrorData::invalid_params(guarded.reply.message(), Some(data))
}

/// Returns the error for a resource that cannot be read or does not exist.
async fn resource_error(server: &McpServer, caller: &Caller, uri: &str, refusal: Refusal) -> ErrorData {
    let mut fault = protocol_error(server, caller, "resources/read", refusal).await;
    let data = fault.data.get_or_insert_default();
    if data["code"] == json!(codes::NOT_FOUND.any()) {
        fault.code = ErrorCode::RESOURCE_NOT_FOUND;
    }
    data["uri"] = json!(uri);
    fault
}

impl ServerHandler for McpServer {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        let this = Implementation::new("cantrip", env!("CARGO_PKG_VERSION")).with_title("Cantrip");
        ServerConfig::new(capabilities).with_server_info(this).with_instructions(
            "Cantrip runs agents (spells) and records everything they do. `spells` lists them, `cast` runs one on an \
             intent, `thread` shows what it did, `fork` continues from any turn. Every reply is an envelope: branch on \
             its `reply_type` (S, I, D, E) and `code`, never on its message.",
        )
    }

    async fn list_tools(&self, _: Option<PaginatedRequestParams>, _: McpContext) -> McpResult<ListToolsResult> {
        Ok(ListToolsResult::with_all_items(ToolName::ALL.into_iter().map(ToolName::tool).collect()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        ToolName::parse(name).map(ToolName::tool)
    }

    async fn call_tool(&self, request: CallToolRequestParams, context: McpContext) -> McpResult<CallToolResponse> {
        let Some(name) = ToolName::parse(&request.name) else {
            let caller = self.caller_of(&context);
            let refusal = codes::not_found("tool", request.name.to_string()).into();
            return Err(protocol_error(self, &caller, "tools/call", refusal).await);
        };
        Ok(self.run_tool(name, request, &context).await)
    }

    /// Prompts are not supported: the method is answered as unknown.
    async fn list_prompts(&self, _: Option<PaginatedRequestParams>, _: McpContext) -> McpResult<ListPromptsResult> {
        Err(ErrorData::method_not_found::<ListPromptsRequestMethod>())
    }

    /// Completions are not supported either.
    async fn complete(&self, _: CompleteRequestParams, _: McpContext) -> McpResult<CompleteResult> {
        Err(ErrorData::method_not_found::<CompleteRequestMethod>())
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: McpContext,
    ) -> McpResult<ListResourcesResult> {
        let caller = self.caller_of(&context);
        match self.resources(&caller, request.and_then(|request| request.cursor)).await {
            Ok(listed) => Ok(listed),
            Err(refusal) => Err(protocol_error(self, &caller, "resources/list", refusal).await),
        }
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: McpContext,
    ) -> McpResult<ListResourceTemplatesResult> {
        Ok(ListResourceTemplatesResult::with_all_items(resources::templates()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: McpContext,
    ) -> McpResult<ReadResourceResponse> {
        let caller = self.caller_of(&context);
        match self.resource(&caller, &request.uri).await {
            Ok(result) => Ok(result.into()),
            Err(refusal) => Err(resource_error(self, &caller, &request.uri, refusal).await),
        }
    }
}

/// Returns a page of items, with the cursor of the next page or null.
fn page_json(items: Vec<Value>, next: Option<impl Into<Value>>) -> Value {
    let mut listed = Map::from_iter([("items".to_owned(), Value::Array(items))]);
    listed.insert("next".to_owned(), next.map_or(Value::Null, Into::into));
    Value::Object(listed)
}
