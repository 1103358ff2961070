//! A connection that is made again when it broke.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cantrip_reply::{Refusal, codes, told_here, told_to};
use http::{HeaderName, HeaderValue};
use rmcp::ClientHandler;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, CancelledNotification, CancelledNotificationParam,
    ClientCapabilities, ClientConfig, ClientRequest, ErrorCode, Implementation, PaginatedRequestParams,
    ProgressNotificationParam, ProgressToken, ProtocolVersion, RequestId, RequestMetaObject, ServerResult,
    Tool as Listed,
};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, ClientServiceExt, NotificationContext, Peer, PeerRequestOptions,
    RoleClient, RunningService, ServiceError,
};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::common::client_side_sse::ExponentialBackoff;
use rmcp::transport::streamable_http_client::{AuthRequiredError, StreamableHttpClientTransportConfig};
use rmcp::transport::{IntoTransport, StreamableHttpClientTransport};
use serde_json::{Map, Value};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::flood::{Flood, TooMuch};
use super::http::Careful;
use super::stdio::{self, Complaints, Pipes, Process};
use super::{Server, Tool, Way};
use crate::Label;
use crate::gate::{Listener, Progress};
use crate::limits::{
    MCP_DESCRIPTION_BYTES, MCP_LISTED_MAX, MCP_MESSAGE_BYTES_MAX, MCP_MESSAGES_MAX, MCP_PROGRESS_BYTES,
    MCP_PROGRESS_TIMES, MCP_RECONNECTS_MAX,
};

/// A server, and the connection to it while there is one.
#[derive(Debug)]
pub(super) struct Link {
    server: Server,
    live: tokio::sync::Mutex<Option<Arc<Live>>>,
}

type Service = RunningService<RoleClient, Ears>;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Offer {
    pub(super) tools: Vec<Tool>,
    pub(super) revision: String,
}

/// One connection.
#[derive(Debug)]
struct Live {
    service: Service,
    process: Option<Arc<Process>>,
    flood: Arc<Flood>,
    /// Whoever ends the connection when it says too much, also while nobody asks it anything.
    guard: AbortHandle,
    /// Another start may offer something else.
    offer: Arc<Offer>,
}

impl Live {
    fn is_over(&self) -> bool {
        self.service.is_closed() || self.service.is_transport_closed() || self.flood.too_much().is_some()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.guard.abort();
        // The task that reads from it may still be there for a moment; the program need not be.
        if let Some(process) = &self.process {
            process.end();
        }
    }
}

impl Link {
    pub(super) fn to(server: Server) -> Self {
        Self { server, live: tokio::sync::Mutex::new(None) }
    }

    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// What it offers; it is asked now if it was not.
    pub(super) async fn offer(&self) -> Result<Arc<Offer>, Refusal> {
        Ok(Arc::clone(&self.live().await?.offer))
    }

    /// The connection; made anew where the last one broke.
    async fn live(&self) -> Result<Arc<Live>, Refusal> {
        let mut live = self.live.lock().await;
        if let Some(live) = live.as_ref().filter(|live| !live.is_over()) {
            return Ok(Arc::clone(live));
        }
        *live = None;
        let made = Arc::new(self.made().await?);
        *live = Some(Arc::clone(&made));
        Ok(made)
    }

    async fn made(&self) -> Result<Live, Refusal> {
        let flood = Arc::new(Flood::default());
        let (met, process, complaints) = match &self.server.way {
            Way::Program { program, .. } => {
                let started = stdio::start(&self.server, &flood);
                let Pipes { process, stdin, stdout, complaints } =
                    started.map_err(|error| self.unstarted(program, &error))?;
                let transport = AsyncRwTransport::<RoleClient, _, _>::new(stdout, stdin)
                    .with_max_line_length(MCP_MESSAGE_BYTES_MAX + 1);
                (self.met_in_time(transport, &flood).await, Some(process), Some(complaints))
            }
            Way::Address { url, headers } => {
                let transport = self.addressed(url, headers, &flood)?;
                (self.met_in_time(transport, &flood).await, None, None)
            }
        };
        let (service, offer) = match met {
            Ok(met) => met,
            Err(unmet) => {
                if let Some(process) = &process {
                    process.end();
                }
                return Err(self.unmet(unmet, complaints).await);
            }
        };
        let (heard, ends) = (Arc::clone(&flood), service.cancellation_token());
        let guard = tokio::spawn(async move {
            heard.over().await;
            ends.cancel();
        });
        Ok(Live { service, process, flood, guard: guard.abort_handle(), offer: Arc::new(offer) })
    }

    fn unstarted(&self, program: &Path, error: &io::Error) -> Refusal {
        let name = program.file_name().map_or_else(|| program.display().to_string(), |name| name.display().to_string());
        let hint = format!("install {name}, or say where it is: mcp = [\"/path/to/{name}\", ...]");
        let absent = error.kind() == io::ErrorKind::NotFound;
        let why = if absent { "there is no such program".to_owned() } else { error.kind().to_string() };
        self.server.unreachable_so(format!("it cannot be started: {why}"), hint)
    }

    async fn met_in_time<T, E, A>(&self, transport: T, flood: &Flood) -> Result<(Service, Offer), Unmet>
    where
        T: IntoTransport<RoleClient, E, A>,
        E: std::error::Error + Send + Sync + 'static,
    {
        timeout(self.server.start_max, self.met(transport, flood)).await.unwrap_or(Err(Unmet::Silent))
    }

    /// It greets, and says what it offers.
    async fn met<T, E, A>(&self, transport: T, flood: &Flood) -> Result<(Service, Offer), Unmet>
    where
        T: IntoTransport<RoleClient, E, A>,
        E: std::error::Error + Send + Sync + 'static,
    {
        let unable = |error: ClientInitializeError| match (error.auth_challenge(), flood.too_much()) {
            (Some(_), _) => Unmet::Refused(self.rejected()),
            (None, Some(much)) => Unmet::Refused(self.flooded(much)),
            (None, None) => Unmet::Failed(innermost(&error)),
        };
        let service = Ears::new().serve_with_lifecycle(transport, lifecycle()).await.map_err(unable)?;
        let revision = service.peer_info().map_or_else(String::new, |info| info.protocol_version.to_string());
        let tools = self.listed(&service, flood).await.map_err(Unmet::Refused)?;
        Ok((service, Offer { tools, revision }))
    }

    async fn unmet(&self, unmet: Unmet, complaints: Option<Complaints>) -> Refusal {
        let by_hand = self.server.by_hand();
        let (cause, hint) = match unmet {
            Unmet::Refused(refusal) => return refusal,
            Unmet::Failed(cause) => (cause, by_hand),
            Unmet::Silent => {
                let cause = format!("it was not ready after {} ms", self.server.start_max.as_millis());
                (cause, format!("{by_hand}; or let it take longer: start_timeout = \"2m\""))
            }
        };
        let words = match complaints {
            Some(complaints) => complaints.last_words().await,
            None => None,
        };
        let said = words.map_or_else(String::new, |words| format!("; it said: {words}"));
        self.server.unreachable_so(format!("{cause}{said}"), hint)
    }

    /// Everything it offers, by name.
    async fn listed(&self, peer: &Peer<RoleClient>, flood: &Flood) -> Result<Vec<Tool>, Refusal> {
        let mut tools: Vec<Tool> = Vec::new();
        let mut cursor = None;
        loop {
            let asked = PaginatedRequestParams::default().with_cursor(cursor.take());
            let page = peer.list_tools(Some(asked)).await.map_err(|error| match flood.too_much() {
                Some(much) => self.flooded(much),
                None => self.server.unreachable(format!("its tools cannot be listed: {}", told(&error))),
            })?;
            tools.extend(page.tools.into_iter().map(tool));
            if tools.len() > MCP_LISTED_MAX {
                return Err(self.server.unreachable(format!("it lists more than {MCP_LISTED_MAX} tools")));
            }
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        tools.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(tools)
    }

    fn addressed(
        &self,
        url: &str,
        headers: &[(String, String)],
        flood: &Arc<Flood>,
    ) -> Result<StreamableHttpClientTransport<Careful>, Refusal> {
        let client = Careful::new(flood).map_err(|error| self.server.unreachable(innermost(&error)))?;
        let mut sent = HashMap::new();
        for (name, value) in headers {
            let unusable = || Refusal::from(codes::target_unusable(format!("header {name}"), "it cannot be sent"));
            let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| unusable())?;
            let mut value = HeaderValue::from_str(value).map_err(|_| unusable())?;
            value.set_sensitive(true);
            sent.insert(key, value);
        }
        let mut config = StreamableHttpClientTransportConfig::with_uri(url)
            .custom_headers(sent)
            .max_sse_event_size(MCP_MESSAGE_BYTES_MAX);
        let mut patience = ExponentialBackoff::default();
        patience.max_times = Some(MCP_RECONNECTS_MAX);
        config.retry_config = Arc::new(patience);
        Ok(StreamableHttpClientTransport::with_client(client, config))
    }

    fn rejected(&self) -> Refusal {
        codes::auth_failed(format!("the MCP server {}", self.server.name)).into()
    }

    fn flooded(&self, much: TooMuch) -> Refusal {
        match much {
            TooMuch::Bytes(bytes) => {
                let peer = format!("the MCP server {}", self.server.name);
                codes::too_large(peer, bytes, MCP_MESSAGE_BYTES_MAX as u64).into()
            }
            TooMuch::Messages => {
                self.server.unreachable(format!("it sent more than {MCP_MESSAGES_MAX} messages at once and was ended"))
            }
        }
    }

    /// What the server is told of the trace that a call belongs to: a program of this machine always, one elsewhere if it may
    /// be.
    fn trace(&self) -> Option<RequestMetaObject> {
        let trace = match &self.server.way {
            Way::Program { .. } => told_here(),
            Way::Address { url, .. } => url.parse::<reqwest::Url>().ok().and_then(|url| told_to(url.host_str()?)),
        }?;
        let mut meta = RequestMetaObject::default();
        meta.set_traceparent(trace.traceparent());
        if let Some(state) = trace.state() {
            meta.set_tracestate(state);
        }
        Some(meta)
    }

    /// Calls a tool. Dropping the future tells the server that nobody waits any more.
    pub(super) async fn call(
        &self,
        tool: &Tool,
        arguments: Map<String, Value>,
        listener: Listener,
    ) -> Result<CallToolResult, Refusal> {
        let live = self.live().await?;
        live.flood.asked();
        if !live.offer.tools.contains(tool) {
            let changed = "the server was started again and no longer offers it as it did; cast again";
            return Err(codes::gate_failed(&tool.name, changed).into());
        }
        let params = CallToolRequestParams::new(tool.name.clone()).with_arguments(arguments);
        let request = CallToolRequest::new(params);
        let time = self.server.time_max;
        let options = PeerRequestOptions::with_timeout(time)
            .reset_timeout_on_progress()
            .with_max_total_timeout(time.saturating_mul(MCP_PROGRESS_TIMES));
        let options = match self.trace() {
            Some(trace) => options.with_meta(trace),
            None => options,
        };
        let peer = live.service.peer().clone();
        let failed = |error: ServiceError| self.failed(tool, &live, error);
        let sent = peer.send_request_with_option(ClientRequest::CallToolRequest(request), options).await;
        let handle = sent.map_err(failed)?;
        let mut abandoned = Abandoned { request: Some(handle.id.clone()), peer };
        let _listening = live.service.service().listening(handle.progress_token.clone(), listener);
        let answered = tokio::select! { biased;
            answered = handle.await_response() => answered,
            // Where many read from one connection, the one who waits is not the one who finds out.
            _ = live.flood.over() => Err(ServiceError::TransportClosed),
        };
        abandoned.request = None;
        let answered = answered.map_err(failed)?;
        if let ServerResult::CallToolResult(result) = answered {
            return Ok(result);
        }
        let asks = matches!(answered, ServerResult::InputRequiredResult(_));
        let detail = if asks {
            "it asks for input, which nobody gives it here"
        } else {
            "it answered something else than a result"
        };
        Err(codes::gate_failed(&tool.name, detail).into())
    }

    fn failed(&self, tool: &Tool, live: &Live, error: ServiceError) -> Refusal {
        if let Some(much) = live.flood.too_much() {
            return self.flooded(much);
        }
        if let ServiceError::Timeout { timeout } = error {
            return codes::timed_out(&tool.name, u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)).into();
        }
        if let ServiceError::McpError(error) = error {
            let said = error.message.to_string();
            // What it says about the arguments, the entity can mend.
            let mendable = error.code == ErrorCode::INVALID_PARAMS;
            return if mendable {
                codes::gate_reported(&tool.name, said).into()
            } else {
                codes::gate_failed(&tool.name, said).into()
            };
        }
        if is_rejection(&error) { self.rejected() } else { self.server.unreachable(told(&error)) }
    }

    /// Ends the connection.
    pub(super) async fn close(&self) {
        let live = self.live.lock().await.take();
        drop(live);
    }
}

/// A request that somebody waits for; when they go, the server is told.
struct Abandoned {
    request: Option<RequestId>,
    peer: Peer<RoleClient>,
}

impl Drop for Abandoned {
    fn drop(&mut self) {
        let Some(request) = self.request.take() else { return };
        let peer = self.peer.clone();
        let params = CancelledNotificationParam::new(Some(request), Some("nobody waits for it any more".to_owned()));
        let notification = CancelledNotification::new(params);
        super::hold::house().spawn(async move {
            // A server that is gone need not be told.
            let _ = peer.send_notification(notification.into()).await;
        });
    }
}

/// Why nobody came of it.
enum Unmet {
    /// It was not ready in time.
    Silent,
    Failed(String),
    Refused(Refusal),
}

/// What a server says unasked: how far its calls have come. Everything else is let pass.
#[derive(Debug, Default)]
struct Ears {
    calls: Arc<Mutex<HashMap<ProgressToken, Call>>>,
}

/// Who hears of a call, and how far it had come.
#[derive(Debug)]
struct Call {
    listener: Listener,
    done: f64,
}

impl Ears {
    fn new() -> Self {
        Self::default()
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<ProgressToken, Call>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hears of this call until what it gives is dropped.
    fn listening(&self, token: ProgressToken, listener: Listener) -> Listening<'_> {
        self.calls().insert(token.clone(), Call { listener, done: f64::NEG_INFINITY });
        Listening { ears: self, token }
    }
}

struct Listening<'a> {
    ears: &'a Ears,
    token: ProgressToken,
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.ears.calls().remove(&self.token);
    }
}

impl ClientHandler for Ears {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(ClientCapabilities::default(), Implementation::new("cantrip", env!("CARGO_PKG_VERSION")))
    }

    async fn on_progress(&self, said: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        let ProgressNotificationParam { progress_token, progress: done, total, message, .. } = said;
        let listener = match self.calls().get_mut(&progress_token) {
            // They are heard in no order; what was overtaken is old.
            Some(call) if done > call.done => {
                call.done = done;
                call.listener.clone()
            }
            Some(_) | None => return,
        };
        let message = message.map(|mut message| {
            message.truncate(message.floor_char_boundary(MCP_PROGRESS_BYTES));
            message
        });
        listener.tell(Progress { done, total, message });
    }
}

/// The newer revision where the server has it, else the older one.
fn lifecycle() -> ClientLifecycleMode {
    ClientLifecycleMode::Auto {
        preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        legacy_version: Some(ProtocolVersion::V_2025_11_25),
    }
}

fn tool(listed: Listed) -> Tool {
    let mut description = listed.description.or(listed.title.map(Into::into)).unwrap_or_default().into_owned();
    description.truncate(description.floor_char_boundary(MCP_DESCRIPTION_BYTES));
    let open = listed.annotations.and_then(|said| said.open_world_hint).unwrap_or(false);
    Tool {
        name: listed.name.into_owned(),
        description,
        parameters: Value::Object((*listed.input_schema).clone()),
        result: listed.output_schema.map(|schema| Value::Object((*schema).clone())),
        admits: if open { vec![Label::UntrustedContent, Label::ExternalComm] } else { Vec::new() },
    }
}

/// Whether the credentials were what it did not like.
fn is_rejection(error: &ServiceError) -> bool {
    let ServiceError::TransportSend(sending) = error else { return false };
    let first: &(dyn std::error::Error + 'static) = &*sending.error;
    let mut causes = std::iter::successors(Some(first), |cause| cause.source());
    causes.any(|cause| cause.is::<AuthRequiredError>())
}

fn told(error: &ServiceError) -> String {
    if let ServiceError::McpError(error) = error { error.message.to_string() } else { innermost(error) }
}

/// The last of the causes, which says most.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
