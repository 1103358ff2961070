//! The door at `/mcp`: who may go on with which session, and how many may there be?
//!
//! The library that speaks the protocol knows a session by its id alone: whoever holds the id may use it, anyone may open as
//! many as they like, and one counts as idle while a call of it takes long. So an id is looked up here before the library sees
//! it. A session belongs to the owner whose token opened it, there are so many and no more, and one is idle when nothing of it
//! is under way. The newer revision has no sessions, and nothing here stands in its way.

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

/// The header that names a session.
const SESSION: &str = "mcp-session-id";

/// What stands at `/mcp`. Cheap to clone; all clones are the same door.
#[derive(Clone)]
pub struct McpEndpoint(Arc<Inner>);

type Handler = dyn Fn(Request<Body>) -> BoxFuture<'static, Response<Body>> + Send + Sync;

struct Inner {
    handling: Box<Handler>,
    manager: Arc<LocalSessionManager>,
    /// Its token ends every stream that is open.
    config: StreamableHttpServerConfig,
    sessions: Mutex<Sessions>,
}

#[derive(Default)]
struct Sessions {
    open: HashMap<Arc<str>, Session>,
    /// Those whose handshake is under way: they have a place already, and no id yet.
    opening: usize,
}

struct Session {
    owner: Actor,
    /// Requests that are under way, with the streams that answer them.
    uses: usize,
    /// When the last of them was over.
    rests_since: Instant,
}

impl fmt::Debug for McpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpEndpoint").field("sessions", &self.sessions().open.len()).finish_non_exhaustive()
    }
}

impl McpEndpoint {
    /// A door to this server. Who may reach it, by which token and from which origin, is decided by who mounts it.
    pub fn new(server: impl ServerHandler + Clone) -> Self {
        let config =
            StreamableHttpServerConfig::default().disable_allowed_hosts().with_max_request_body_bytes(BODY_BYTES_MAX);
        let mut manager = LocalSessionManager::default();
        // A call that takes long and says nothing meanwhile is no idle session: that is found out here.
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

    /// Answers what an owner asks. What the protocol itself refuses is an answer of its own.
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
            // The library says that it was accepted; clients take 200 and 204 for the end of a session, and warn otherwise.
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
        Ok(hold_session(response, using))
    }

    /// The library's answer. Of a body that it cannot read as a message it says that its media type is at fault, in plain
    /// text, which it is not if the body is JSON.
    async fn call_library(&self, request: Request<Vec<u8>>, asked: Message) -> Response<Body> {
        let response = (self.0.handling)(request.map(Body::from)).await;
        match asked {
            Message::Json { id } if response.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE => error_response(
                &json_rpc_error(&id, INVALID_REQUEST, "Invalid request: the body is no message of the protocol"),
            ),
            Message::Json { .. } | Message::Other => response,
        }
    }

    /// A place for one more.
    fn reserve_session(&self) -> Result<PendingSession, Refusal> {
        let mut sessions = self.sessions();
        if sessions.open.len() + sessions.opening >= MCP_SESSIONS_MAX {
            return Err(codes::overloaded("as many sessions of agents are open as may be").into());
        }
        sessions.opening += 1;
        Ok(PendingSession { door: self.clone() })
    }

    /// Another owner's session is none.
    fn use_session(&self, id: &str, owner: &Actor) -> Option<SessionUse> {
        let mut sessions = self.sessions();
        let (id, _) = sessions.open.get_key_value(id)?;
        let id = Arc::clone(id);
        let session = sessions.open.get_mut(&id).filter(|session| session.owner == *owner)?;
        session.uses += 1;
        Some(SessionUse { door: self.clone(), id })
    }

    /// Ends, for as long as it is waited for, whatever session nobody used for so long.
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

    /// Ends every stream: nothing more is said.
    pub(crate) fn close(&self) {
        self.0.config.cancellation_token.cancel();
    }
}

/// What a request brings.
enum Message {
    /// JSON was posted; the id is that of the message, or null.
    Json { id: Value },
    /// Something else: the library says what is wrong with it.
    Other,
}

impl Message {
    /// What this request brings, or the error that its body is answered with if it says to be JSON and is not.
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

/// An error of the protocol that nothing can be correlated with but the request that carried it.
fn error_response(error: &Value) -> Response<Body> {
    (StatusCode::BAD_REQUEST, [(CONTENT_TYPE, "application/json")], error.to_string()).into_response()
}

/// The session that a message names.
fn session_id(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let Some(told) = headers.get(SESSION) else { return Ok(None) };
    told.to_str().map(Some).map_err(|_| codes::not_found("session", "that is no text").into())
}

/// Whether a request begins a session.
fn is_initialize(request: &Request<Vec<u8>>) -> bool {
    #[derive(Deserialize)]
    struct Asked {
        method: String,
    }
    let asked: Result<Asked, _> = serde_json::from_slice(request.body());
    request.method() == Method::POST && asked.is_ok_and(|asked| asked.method == "initialize")
}

/// A response that uses a session for as long as it is being written.
fn hold_session(response: Response<Body>, using: SessionUse) -> Response<Body> {
    response.map(|body| {
        Body::from_stream(body.into_data_stream().map(move |piece| {
            let _under_way = &using;
            piece
        }))
    })
}

/// A handshake that is under way.
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

/// A request of a session that is under way.
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
