//! A client of one server that reconnects after its connection broke.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cantrip_circle::Label;
use cantrip_circle::gate::{Progress, ProgressListener};
use cantrip_reply::{Refusal, codes};
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

use super::flood::{FloodGuard, FloodKind};
use super::http::BoundedHttpClient;
use super::stdio::{self, Pipes, Process, StderrLog};
use super::{Server, ServerTransport, Tool};
use crate::limits::{
    MCP_DESCRIPTION_BYTES, MCP_LISTED_MAX, MCP_MESSAGE_BYTES_MAX, MCP_MESSAGES_MAX, MCP_PROGRESS_BYTES,
    MCP_PROGRESS_TIMES, MCP_RECONNECTS_MAX,
};

/// A server, and the current connection to it, if there is one.
#[derive(Debug)]
pub(super) struct ServerClient {
    server: Server,
    live: tokio::sync::Mutex<Option<Arc<LiveConnection>>>,
}

type Service = RunningService<RoleClient, ProgressHandler>;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ServerTools {
    pub(super) tools: Vec<Tool>,
    pub(super) revision: String,
}

/// One connection.
#[derive(Debug)]
struct LiveConnection {
    service: Service,
    process: Option<Arc<Process>>,
    flood: Arc<FloodGuard>,
    /// The task that closes the connection when the server sends too much, even between calls.
    guard: AbortHandle,
    /// The tools that this start of the server offers; another start may offer others.
    offer: Arc<ServerTools>,
}

impl LiveConnection {
    fn is_over(&self) -> bool {
        self.service.is_closed() || self.service.is_transport_closed() || self.flood.too_much().is_some()
    }
}

impl Drop for LiveConnection {
    fn drop(&mut self) {
        self.guard.abort();
        // The task that reads from the process may exist for a moment longer; the process itself ends now.
        if let Some(process) = &self.process {
            process.end();
        }
    }
}

impl ServerClient {
    pub(super) fn to(server: Server) -> Self {
        Self { server, live: tokio::sync::Mutex::new(None) }
    }

    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// Returns the tools of the server; connects if there is no connection.
    pub(super) async fn offer(&self) -> Result<Arc<ServerTools>, Refusal> {
        Ok(Arc::clone(&self.live().await?.offer))
    }

    /// Returns the live connection; connects again if the last one broke.
    async fn live(&self) -> Result<Arc<LiveConnection>, Refusal> {
        let mut live = self.live.lock().await;
        if let Some(live) = live.as_ref().filter(|live| !live.is_over()) {
            return Ok(Arc::clone(live));
        }
        *live = None;
        let made = Arc::new(self.connect().await?);
        *live = Some(Arc::clone(&made));
        Ok(made)
    }

    async fn connect(&self) -> Result<LiveConnection, Refusal> {
        let flood = Arc::new(FloodGuard::default());
        let (met, process, complaints) = match &self.server.transport {
            ServerTransport::Program { program, .. } => {
                let started = stdio::start(&self.server, &flood);
                let Pipes { process, stdin, stdout, complaints } =
                    started.map_err(|error| self.start_refusal(program, &error))?;
                let transport = AsyncRwTransport::<RoleClient, _, _>::new(stdout, stdin)
                    .with_max_line_length(MCP_MESSAGE_BYTES_MAX + 1);
                (self.handshake_in_time(transport, &flood).await, Some(process), Some(complaints))
            }
            ServerTransport::Address { url, headers } => {
                let transport = self.http_transport(url, headers, &flood)?;
                (self.handshake_in_time(transport, &flood).await, None, None)
            }
        };
        let (service, offer) = match met {
            Ok(met) => met,
            Err(unmet) => {
                if let Some(process) = &process {
                    process.end();
                }
                return Err(self.connect_refusal(unmet, complaints).await);
            }
        };
        let (heard, ends) = (Arc::clone(&flood), service.cancellation_token());
        let guard = tokio::spawn(async move {
            heard.exceeded().await;
            ends.cancel();
        });
        Ok(LiveConnection { service, process, flood, guard: guard.abort_handle(), offer: Arc::new(offer) })
    }

    fn start_refusal(&self, program: &Path, error: &io::Error) -> Refusal {
        let name = program.file_name().map_or_else(|| program.display().to_string(), |name| name.display().to_string());
        let hint = format!("install {name}, or say where it is: mcp = [\"/path/to/{name}\", ...]");
        let absent = error.kind() == io::ErrorKind::NotFound;
        let why = if absent { "there is no such program".to_owned() } else { error.kind().to_string() };
        self.server.unreachable_with_hint(format!("it cannot be started: {why}"), hint)
    }

    async fn handshake_in_time<T, E, A>(
        &self,
        transport: T,
        flood: &FloodGuard,
    ) -> Result<(Service, ServerTools), ConnectError>
    where
        T: IntoTransport<RoleClient, E, A>,
        E: std::error::Error + Send + Sync + 'static,
    {
        timeout(self.server.start_max, self.handshake(transport, flood)).await.unwrap_or(Err(ConnectError::Silent))
    }

    /// Performs the handshake and lists the tools.
    async fn handshake<T, E, A>(&self, transport: T, flood: &FloodGuard) -> Result<(Service, ServerTools), ConnectError>
    where
        T: IntoTransport<RoleClient, E, A>,
        E: std::error::Error + Send + Sync + 'static,
    {
        let unable = |error: ClientInitializeError| match (error.auth_challenge(), flood.too_much()) {
            (Some(_), _) => ConnectError::Refused(self.credentials_refusal()),
            (None, Some(much)) => ConnectError::Refused(self.flood_refusal(much)),
            (None, None) => ConnectError::Failed(innermost(&error)),
        };
        let service = ProgressHandler::new().serve_with_lifecycle(transport, lifecycle()).await.map_err(unable)?;
        let revision = service.peer_info().map_or_else(String::new, |info| info.protocol_version.to_string());
        let tools = self.list_tools(&service, flood).await.map_err(ConnectError::Refused)?;
        Ok((service, ServerTools { tools, revision }))
    }

    async fn connect_refusal(&self, unmet: ConnectError, complaints: Option<StderrLog>) -> Refusal {
        let by_hand = self.server.manual_command();
        let (cause, hint) = match unmet {
            ConnectError::Refused(refusal) => return refusal,
            ConnectError::Failed(cause) => (cause, by_hand),
            ConnectError::Silent => {
                let cause = format!("it was not ready after {} ms", self.server.start_max.as_millis());
                (cause, format!("{by_hand}; or let it take longer: start_timeout = \"2m\""))
            }
        };
        let words = match complaints {
            Some(complaints) => complaints.last_error().await,
            None => None,
        };
        let said = words.map_or_else(String::new, |words| format!("; it said: {words}"));
        self.server.unreachable_with_hint(format!("{cause}{said}"), hint)
    }

    /// Lists all tools of the server, sorted by name.
    async fn list_tools(&self, peer: &Peer<RoleClient>, flood: &FloodGuard) -> Result<Vec<Tool>, Refusal> {
        let mut tools: Vec<Tool> = Vec::new();
        let mut cursor = None;
        loop {
            let asked = PaginatedRequestParams::default().with_cursor(cursor.take());
            let page = peer.list_tools(Some(asked)).await.map_err(|error| match flood.too_much() {
                Some(much) => self.flood_refusal(much),
                None => self.server.unreachable(format!("its tools cannot be listed: {}", describe_error(&error))),
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

    fn http_transport(
        &self,
        url: &str,
        headers: &[(String, String)],
        flood: &Arc<FloodGuard>,
    ) -> Result<StreamableHttpClientTransport<BoundedHttpClient>, Refusal> {
        let client = BoundedHttpClient::new(flood).map_err(|error| self.server.unreachable(innermost(&error)))?;
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

    fn credentials_refusal(&self) -> Refusal {
        codes::auth_failed(format!("the MCP server {}", self.server.name)).into()
    }

    fn flood_refusal(&self, much: FloodKind) -> Refusal {
        match much {
            FloodKind::Bytes(bytes) => {
                let peer = format!("the MCP server {}", self.server.name);
                codes::too_large(peer, bytes, MCP_MESSAGE_BYTES_MAX as u64).into()
            }
            FloodKind::Messages => {
                self.server.unreachable(format!("it sent more than {MCP_MESSAGES_MAX} messages at once and was ended"))
            }
        }
    }

    /// Returns the trace context to send with a call: always for a program on this machine, for a remote server only if
    /// its host is allowed to see it.
    fn trace(&self) -> Option<RequestMetaObject> {
        let trace = match &self.server.transport {
            ServerTransport::Program { .. } => cantrip_trace::header_for_process(),
            ServerTransport::Address { url, .. } => {
                url.parse::<reqwest::Url>().ok().and_then(|url| cantrip_trace::header_for(url.host_str()?))
            }
        }?;
        let mut meta = RequestMetaObject::default();
        meta.set_traceparent(trace.traceparent());
        if let Some(state) = trace.state() {
            meta.set_tracestate(state);
        }
        Some(meta)
    }

    /// Calls a tool. Dropping the future sends the server a cancellation.
    pub(super) async fn call(
        &self,
        tool: &Tool,
        arguments: Map<String, Value>,
        listener: ProgressListener,
    ) -> Result<CallToolResult, Refusal> {
        let live = self.live().await?;
        live.flood.reset();
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
        let failed = |error: ServiceError| self.call_refusal(tool, &live, error);
        let sent = peer.send_request_with_option(ClientRequest::CallToolRequest(request), options).await;
        let handle = sent.map_err(failed)?;
        let mut abandoned = CancelOnDrop { request: Some(handle.id.clone()), peer };
        let _listening = live.service.service().listen(handle.progress_token.clone(), listener);
        let answered = tokio::select! { biased;
            answered = handle.await_response() => answered,
            // Several calls share the connection, so the limit can be exceeded while another call reads.
            _ = live.flood.exceeded() => Err(ServiceError::TransportClosed),
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

    fn call_refusal(&self, tool: &Tool, live: &LiveConnection, error: ServiceError) -> Refusal {
        if let Some(much) = live.flood.too_much() {
            return self.flood_refusal(much);
        }
        if let ServiceError::Timeout { timeout } = error {
            return codes::timed_out(&tool.name, u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)).into();
        }
        if let ServiceError::McpError(error) = error {
            let said = error.message.to_string();
            // A complaint about the arguments goes to the entity, which can correct them.
            let mendable = error.code == ErrorCode::INVALID_PARAMS;
            return if mendable {
                codes::gate_reported(&tool.name, said).into()
            } else {
                codes::gate_failed(&tool.name, said).into()
            };
        }
        if is_rejection(&error) { self.credentials_refusal() } else { self.server.unreachable(describe_error(&error)) }
    }

    /// Closes the connection.
    pub(super) async fn close(&self) {
        let live = self.live.lock().await.take();
        drop(live);
    }
}

/// A pending request; when it is dropped the server is sent a cancellation.
struct CancelOnDrop {
    request: Option<RequestId>,
    peer: Peer<RoleClient>,
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        let Some(request) = self.request.take() else { return };
        let peer = self.peer.clone();
        let params = CancelledNotificationParam::new(Some(request), Some("nobody waits for it any more".to_owned()));
        let notification = CancelledNotification::new(params);
        super::connections::runtime().spawn(async move {
            // The send fails if the server is gone, which is harmless.
            let _ = peer.send_notification(notification.into()).await;
        });
    }
}

/// The reason why a connection attempt failed.
enum ConnectError {
    /// The server was not ready in time.
    Silent,
    Failed(String),
    Refused(Refusal),
}

/// Handles the progress notifications of a server; all other notifications are ignored.
#[derive(Debug, Default)]
struct ProgressHandler {
    calls: Arc<Mutex<HashMap<ProgressToken, Call>>>,
}

/// The listener of a call, and its latest progress.
#[derive(Debug)]
struct Call {
    listener: ProgressListener,
    done: f64,
}

impl ProgressHandler {
    fn new() -> Self {
        Self::default()
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<ProgressToken, Call>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports progress of this call to `listener` until the guard is dropped.
    fn listen(&self, token: ProgressToken, listener: ProgressListener) -> ListenGuard<'_> {
        self.calls().insert(token.clone(), Call { listener, done: f64::NEG_INFINITY });
        ListenGuard { ears: self, token }
    }
}

struct ListenGuard<'a> {
    ears: &'a ProgressHandler,
    token: ProgressToken,
}

impl Drop for ListenGuard<'_> {
    fn drop(&mut self) {
        self.ears.calls().remove(&self.token);
    }
}

impl ClientHandler for ProgressHandler {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(ClientCapabilities::default(), Implementation::new("cantrip", env!("CARGO_PKG_VERSION")))
    }

    async fn on_progress(&self, said: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        let ProgressNotificationParam { progress_token, progress: done, total, message, .. } = said;
        let listener = match self.calls().get_mut(&progress_token) {
            // Notifications can arrive out of order; a lower value than the last one is outdated.
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
        listener.report(Progress { done, total, message });
    }
}

/// Negotiates the newer revision if the server supports it, else the older one.
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

/// Returns true if the server rejected the credentials.
fn is_rejection(error: &ServiceError) -> bool {
    let ServiceError::TransportSend(sending) = error else { return false };
    let first: &(dyn std::error::Error + 'static) = &*sending.error;
    let mut causes = std::iter::successors(Some(first), |cause| cause.source());
    causes.any(|cause| cause.is::<AuthRequiredError>())
}

fn describe_error(error: &ServiceError) -> String {
    if let ServiceError::McpError(error) = error { error.message.to_string() } else { innermost(error) }
}

/// Returns the innermost cause, which is the most specific.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
