//! A server for agents: the Model Context Protocol, over pipes and over HTTP.
//!
//! Each tool is a call of the house, and its answer is the reply's envelope as structured content, with what a model reads as
//! text beside it. What only the protocol can have wrong (a tool that there is not, arguments that are no object) is an error
//! of the protocol; everything else is a reply. The revision of 2025-11-25 is spoken with a handshake, that of 2026-07-28
//! without; the library that carries both tells them apart, and here they differ in one thing: who has to decide about a call
//! can be asked within the newer one.

mod casting;
mod door;
mod reading;
mod resources;
mod tools;
mod wire;

use std::fmt;
use std::future::Future;
use std::io;

use axum::http::request::Parts;
use cantrip_service::Service;
use cantrip_service::cantrip::loom::Actor;
use cantrip_service::cantrip::reply::{Call, Envelope, Guarded, Refusal, TraceContext, below, codes, refusal_text};
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

use crate::house::House;
use crate::http::Bearer;
use tools::Name;

pub use door::Door;

/// The server. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct Server {
    house: House,
    /// Who asks where the wire does not say.
    owner: Actor,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("house", &self.house).field("owner", &self.owner).finish()
    }
}

impl Server {
    /// A server in this house. `owner` is who asks over pipes; over HTTP it is whose token the request came with, if it
    /// carries one.
    pub fn new(house: House, owner: Actor) -> Self {
        Self { house, owner }
    }

    /// Serves one client until it closes its end. Nothing but the protocol is written to `to`.
    pub async fn serve(
        self,
        from: impl AsyncRead + Send + Unpin + 'static,
        to: impl AsyncWrite + Send + Unpin + 'static,
    ) -> io::Result<()> {
        let house = self.house.clone();
        let (pipes, closing) = wire::Wire::new(from, to).split();
        let running = match ServiceExt::serve(self, pipes).await {
            Ok(running) => running,
            // A client that went away before it said anything wanted nothing.
            Err(error) => {
                tracing::info!(%error, "the client left before it was served");
                return closing.finish().await;
            }
        };
        let ended = running.waiting().await;
        house.rested().await;
        closing.finish().await?;
        ended.map(drop).map_err(io::Error::other)
    }

    /// The same over HTTP, to be mounted at `/mcp`.
    pub fn http(self) -> Door {
        Door::to(self)
    }

    /// Who asks.
    fn asks(&self, context: &RequestContext<RoleServer>) -> Caller {
        let parts = context.extensions.get::<Parts>();
        let carried = parts.and_then(|parts| parts.extensions.get::<Bearer>());
        let (owner, service) = match carried {
            Some(bearer) => (bearer.owner.clone(), self.house.service_of(bearer)),
            None => (self.owner.clone(), self.house.service(&self.owner)),
        };
        let header = |name: &str| parts.and_then(|parts| parts.headers.get(name)?.to_str().ok());
        // The request's own word counts: one connection may carry many.
        let meta = |name: &str| context.meta.get(name)?.as_str();
        let trace = meta("traceparent")
            .and_then(|parent| TraceContext::read(parent, meta("tracestate")))
            .or_else(|| TraceContext::read(header("traceparent")?, header("tracestate")));
        Caller { service, owner, trace }
    }

    /// A call that gives something to read, through the wrapper.
    async fn told<T: Into<Value>>(
        &self,
        caller: &Caller,
        name: Name,
        told: impl Future<Output = Result<T, Refusal>>,
    ) -> Guarded {
        let call = Call::surface(name.as_str()).below(caller.trace.clone());
        let guard = self.house.runtime().guard();
        let answered = guard.call(call, |rb| async {
            match told.await {
                Ok(value) => rb.success(codes::read(name.as_str()).value(value.into())),
                Err(refusal) => rb.refuse(refusal),
            }
        });
        answered.await
    }

    async fn refused(&self, caller: &Caller, name: &str, refusal: Refusal) -> Guarded {
        let call = Call::surface(name).below(caller.trace.clone());
        self.house.runtime().guard().call(call, |rb| async { rb.refuse(refusal) }).await
    }

    async fn called(
        &self,
        name: Name,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> CallToolResponse {
        let caller = self.asks(context);
        match below(caller.trace.clone(), Box::pin(self.answered(name, request, context, &caller))).await {
            Ok(response) => response,
            Err(refusal) => result_of(self.refused(&caller, name.as_str(), refusal).await).into(),
        }
    }

    async fn answered(
        &self,
        name: Name,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
        caller: &Caller,
    ) -> Result<CallToolResponse, Refusal> {
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        // Who answers what was asked of a person goes on with the run that asked.
        if let Some(state) = &request.request_state {
            return self.goes_on(caller, context, state, request.input_responses.unwrap_or_default()).await;
        }
        let guarded = match name {
            Name::Spells => {
                let _: tools::Nothing = read(name, arguments)?;
                let spells = json!({"items": self.house.grimoire().spells()});
                self.told(caller, name, async { Ok(spells) }).await
            }
            Name::Cast => return self.cast(caller, context, read(name, arguments)?).await,
            Name::Send => return self.send(caller, context, read(name, arguments)?).await,
            Name::Resume => return self.resume(caller, context, read(name, arguments)?).await,
            Name::Fork => return self.fork(caller, context, read(name, arguments)?).await,
            Name::Cancel => self.cancel(caller, read(name, arguments)?).await?,
            Name::Predict => self.predict(caller, context, read(name, arguments)?).await?,
            Name::Signatures => {
                let _: tools::Nothing = read(name, arguments)?;
                caller.service.signatures().await
            }
            Name::Runs => self.told(caller, name, self.runs(caller, read(name, arguments)?)).await,
            Name::Run => self.told(caller, name, self.run(caller, read(name, arguments)?)).await,
            Name::Thread => self.told(caller, name, self.thread(caller, read(name, arguments)?)).await,
            Name::Turn => self.told(caller, name, self.turn(caller, read(name, arguments)?)).await,
            Name::Receipts => self.receipts(caller, read(name, arguments)?).await?,
            Name::Spend => self.told(caller, name, self.spend(caller, read(name, arguments)?)).await,
            Name::Codes => self.told(caller, name, reading::codes(read(name, arguments)?)).await,
        };
        Ok(result_of(guarded).into())
    }
}

/// Who asks, and what they can ask for.
struct Caller {
    service: Service,
    owner: Actor,
    /// The trace that the request belongs to, as it was given.
    trace: Option<TraceContext>,
}

fn read<T: DeserializeOwned>(name: Name, arguments: Value) -> Result<T, Refusal> {
    serde_json::from_value(arguments).map_err(|fault| codes::schema(name.as_str(), "/", fault.to_string()).into())
}

/// A reply as a tool's result: the envelope for programs, and beside it what a model reads.
pub fn result_of(guarded: Guarded) -> CallToolResult {
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

/// What only the protocol can have wrong.
async fn fault(server: &Server, caller: &Caller, name: &str, refusal: Refusal) -> ErrorData {
    let guarded = server.refused(caller, name, refusal).await;
    let data = json!({"code": guarded.reply.code(), "trace_id": guarded.meta.trace_id().to_string()});
    ErrorData::invalid_params(guarded.reply.message(), Some(data))
}

/// A resource that cannot be read, or that there is not.
async fn unread(server: &Server, caller: &Caller, uri: &str, refusal: Refusal) -> ErrorData {
    let mut fault = fault(server, caller, "resources/read", refusal).await;
    let data = fault.data.get_or_insert_default();
    if data["code"] == json!(codes::NOT_FOUND.any()) {
        fault.code = ErrorCode::RESOURCE_NOT_FOUND;
    }
    data["uri"] = json!(uri);
    fault
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        let this = Implementation::new("cantrip", env!("CARGO_PKG_VERSION")).with_title("Cantrip");
        ServerConfig::new(capabilities).with_server_info(this).with_instructions(
            "Cantrip runs agents (spells) and keeps everything they do. `spells` lists them, `cast` runs one on an intent; \
             `thread` shows what it did, `fork` branches off from any turn. Every answer is an envelope: branch on its \
             `reply_type` (S, I, D, E) and `code`, never on its message.",
        )
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(Name::ALL.into_iter().map(Name::tool).collect()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        Name::named(name).map(Name::tool)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(name) = Name::named(&request.name) else {
            let caller = self.asks(&context);
            let refusal = codes::not_found("tool", request.name.to_string()).into();
            return Err(fault(self, &caller, "tools/call", refusal).await);
        };
        Ok(self.called(name, request, &context).await)
    }

    /// There are none, and what is not offered is not answered.
    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListPromptsRequestMethod>())
    }

    /// The same of completions.
    async fn complete(
        &self,
        _: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Err(ErrorData::method_not_found::<CompleteRequestMethod>())
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let caller = self.asks(&context);
        match self.resources(&caller, request.and_then(|request| request.cursor)).await {
            Ok(listed) => Ok(listed),
            Err(refusal) => Err(fault(self, &caller, "resources/list", refusal).await),
        }
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(resources::templates()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let caller = self.asks(&context);
        match self.resource(&caller, &request.uri).await {
            Ok(result) => Ok(result.into()),
            Err(refusal) => Err(unread(self, &caller, &request.uri, refusal).await),
        }
    }
}

/// An object with one entry left out where there is nothing to say.
fn listed(items: Vec<Value>, next: Option<impl Into<Value>>) -> Value {
    let mut listed = Map::from_iter([("items".to_owned(), Value::Array(items))]);
    listed.insert("next".to_owned(), next.map_or(Value::Null, Into::into));
    Value::Object(listed)
}
