//! The endpoint at `/mcp`: which owner may use which session, and how many sessions may there be?
//!
//! The library that speaks the protocol identifies a session by its id alone: any client with the id may use it, any
//! client may open any number of sessions, and a session counts as idle during a long call. So an id is checked here
//! before the library sees it. A session belongs to the owner whose token opened it, the number of sessions is bounded,
//! and a session is idle when none of its requests is active. The newer revision has no sessions and is not affected.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Method, Request, Response, StatusCode};
use axum::response::IntoResponse;
use cantrip_service::cantrip::loom::Actor;
use cantrip_service::cantrip::reply::{Refusal, codes};
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, FutureExt};
use rmcp::handler::server::ServerHandler;
use rmcp::transport::streamable_http_server::session::SessionManager;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use super::wire::{INVALID_REQUEST, id_of, json_rpc_error, parse_error};
use crate::limits::{BODY_BYTES_MAX, MCP_SESSION_LOOK_MS, MCP_SESSIONS_MAX};

/// The header with the session id.
const SESSION: &str = "mcp-session-id";

/// The endpoint at `/mcp`. Cheap to clone; all clones are the same endpoint.
#[derive(Clone)]
pub struct McpEndpoint(Arc<Inner>);

type Handler = dyn Fn(Request<Body>) -> BoxFuture<'static, Response<Body>> + Send + Sync;

struct Inner {
    handling: Box<Handler>,
    manager: Arc<LocalSessionManager>,
    /// The configuration, whose cancellation token ends every open stream.
    config: StreamableHttpServerConfig,
    sessions: Mutex<Sessions>,
}

#[derive(Default)]
struct Sessions {
    open: HashMap<Arc<str>, Session>,
    /// The number of sessions in their handshake: they count against the limit, but have no id yet.
    opening: usize,
}

struct Session {
    owner: Actor,
    /// The number of active requests, including the streams that answer them.
    uses: usize,
    /// The time at which the last of them ended.
    rests_since: Instant,
}

impl fmt::Debug for McpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpEndpoint").field("sessions", &self.sessions().open.len()).finish_non_exhaustive()
    }
}

impl McpEndpoint {
    /// Creates an endpoint for this server. The code that mounts it decides about tokens and origins.
    pub fn new(server: impl ServerHandler + Clone) -> Self {
        let config =
            StreamableHttpServerConfig::default().disable_allowed_hosts().with_max_request_body_bytes(BODY_BYTES_MAX);
        let mut manager = LocalSessionManager::default();
        // The library must not expire sessions: a long call without output is not idle. Expiry is done here.
        manager.session_config.keep_alive = None;
        let manager = Arc::new(manager);
        let service = StreamableHttpService::new(move || Ok(server.clone()), Arc::clone(&manager), config.clone());
        let handling = move |request: Request<Body>| {
            let service = service.clone();
            async move { service.handle(request).await.into_response() }.boxed()
        };
        Self(Arc::new(Inner { handling: Box::new(handling), manager, config, sessions: Mutex::default() }))
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.0.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a request of an owner. A refusal by the protocol itself is a response, not an error.
    pub(crate) async fn handle(&self, owner: &Actor, request: Request<Vec<u8>>) -> Result<Response<Body>, Refusal> {
        let asked = match Message::of(&request) {
            Ok(asked) => asked,
            Err(fault) => return Ok(error_response(&fault)),
        };
        let Some(id) = session_id(request.headers())? else {
            let opening = is_initialize(&request).then(|| self.reserve_session()).transpose()?;
            let response = self.call_library(request, asked).await;
            let given = session_id(response.headers()).ok().flatten().map(Arc::from);
            return Ok(match (opening, given) {
                (Some(opening), Some(id)) => hold_session(response, opening.finish(id, owner)),
                (Some(_), None) | (None, _) => response,
            });
        };
        let Some(using) = self.use_session(id, owner) else { return Err(codes::not_found("session", id).into()) };
        let ends = request.method() == Method::DELETE;
        let response = self.call_library(request, asked).await;
        if ends && response.status().is_success() {
            self.sessions().open.remove(&using.id);
            // The library answers 202, but clients expect 200 or 204 for the end of a session, and warn otherwise.
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
        Ok(hold_session(response, using))
    }

    /// Returns the library's response. For a JSON body that is not a valid message the library reports a wrong media
    /// type, in plain text, although the media type is right; that response is replaced.
    async fn call_library(&self, request: Request<Vec<u8>>, asked: Message) -> Response<Body> {
        let response = (self.0.handling)(request.map(Body::from)).await;
        match asked {
            Message::Json { id } if response.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE => error_response(
                &json_rpc_error(&id, INVALID_REQUEST, "Invalid request: the body is not a protocol message"),
            ),
            Message::Json { .. } | Message::Other => response,
        }
    }

    /// Reserves a place for one more session.
    fn reserve_session(&self) -> Result<PendingSession, Refusal> {
        let mut sessions = self.sessions();
        if sessions.open.len() + sessions.opening >= MCP_SESSIONS_MAX {
            return Err(codes::overloaded(format!("too many open sessions (limit {MCP_SESSIONS_MAX}): end one")).into());
        }
        sessions.opening += 1;
        Ok(PendingSession { door: self.clone() })
    }

    /// Registers the use of a session. Another owner's session is treated as unknown.
    fn use_session(&self, id: &str, owner: &Actor) -> Option<SessionUse> {
        let mut sessions = self.sessions();
        let (id, _) = sessions.open.get_key_value(id)?;
        let id = Arc::clone(id);
        let session = sessions.open.get_mut(&id).filter(|session| session.owner == *owner)?;
        session.uses += 1;
        Some(SessionUse { door: self.clone(), id })
    }

    /// Ends the sessions that were idle for this long, for as long as the future is polled.
    pub(crate) async fn expire_idle(&self, idle: Duration) -> Infallible {
        let look = idle.min(Duration::from_millis(MCP_SESSION_LOOK_MS));
        loop {
            tokio::time::sleep(look).await;
            let now = Instant::now();
            let is_idle = |session: &Session| session.uses == 0 && now.duration_since(session.rests_since) >= idle;
            let ended: Vec<_> =
                self.sessions().open.extract_if(|_, session| is_idle(session)).map(|(id, _)| id).collect();
            for id in ended {
                tracing::debug!("a session of an agent was idle for too long");
                if let Err(error) = self.0.manager.close_session(&id).await {
                    tracing::warn!(%error, "a session of an agent did not end");
                }
            }
        }
    }

    /// Ends every stream.
    pub(crate) fn close(&self) {
        self.0.config.cancellation_token.cancel();
    }
}

/// The content of a request.
enum Message {
    /// Posted JSON. The id is that of the message, or null.
    Json { id: Value },
    /// Anything else: the library reports its faults.
    Other,
}

impl Message {
    /// Reads the content of a request. Returns the error response if the body claims to be JSON and is not.
    fn of(request: &Request<Vec<u8>>) -> Result<Self, Value> {
        let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if request.method() != Method::POST || !kind.starts_with("application/json") {
            return Ok(Self::Other);
        }
        match serde_json::from_slice::<Value>(request.body()) {
            Ok(body) => Ok(Self::Json { id: id_of(&body) }),
            Err(fault) => Err(parse_error(&fault)),
        }
    }
}

/// Returns an error of the protocol, which can only be matched with the HTTP request that carried the message.
fn error_response(error: &Value) -> Response<Body> {
    (StatusCode::BAD_REQUEST, [(CONTENT_TYPE, "application/json")], error.to_string()).into_response()
}

/// Returns the session id of a message.
fn session_id(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let Some(told) = headers.get(SESSION) else { return Ok(None) };
    told.to_str().map(Some).map_err(|_| codes::not_found("session", "it is not text").into())
}

/// Returns true if a request begins a session.
fn is_initialize(request: &Request<Vec<u8>>) -> bool {
    #[derive(Deserialize)]
    struct Asked {
        method: String,
    }
    let asked: Result<Asked, _> = serde_json::from_slice(request.body());
    request.method() == Method::POST && asked.is_ok_and(|asked| asked.method == "initialize")
}

/// Keeps a session in use while the response is being written.
fn hold_session(response: Response<Body>, using: SessionUse) -> Response<Body> {
    response.map(|body| {
        Body::from_stream(body.into_data_stream().map(move |piece| {
            let _under_way = &using;
            piece
        }))
    })
}

/// A handshake in progress.
struct PendingSession {
    door: McpEndpoint,
}

impl PendingSession {
    fn finish(self, id: Arc<str>, owner: &Actor) -> SessionUse {
        let session = Session { owner: owner.clone(), uses: 1, rests_since: Instant::now() };
        self.door.sessions().open.insert(Arc::clone(&id), session);
        SessionUse { door: self.door.clone(), id }
    }
}

impl Drop for PendingSession {
    fn drop(&mut self) {
        self.door.sessions().opening -= 1;
    }
}

/// An active request of a session.
struct SessionUse {
    door: McpEndpoint,
    id: Arc<str>,
}

impl Drop for SessionUse {
    fn drop(&mut self) {
        if let Some(session) = self.door.sessions().open.get_mut(&self.id) {
            session.uses -= 1;
            session.rests_since = Instant::now();
        }
    }
}
