//! The HTTP surface: how a request is read, and how its reply is written.
//!
//! Every route is one line of a table: the same line registers the handler and its entry in `/openapi.json`, so neither
//! can exist without the other. A handler reads the request, calls the [`SpellHost`], and writes the reply's envelope.
//! A fault of the request itself (an unknown route, a body that is too long, too slow or not JSON) is an envelope as
//! well.

mod admit;
mod answer;
mod casts;
mod chat;
mod chat_request;
mod compile;
mod contracts;
mod datasets;
mod entities;
mod evals;
mod extractors;
mod feeds;
mod ledger;
mod listen;
mod looms;
mod mcp_route;
mod routes;
mod runs;
mod server_routes;
mod tokens;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use cantrip_service::cantrip::canon::RunId;
use cantrip_service::cantrip::reply::{Call, Guard, GuardedReply, Refusal};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use crate::SpellHost;
use crate::limits::{
    BODY_MS, FEEDS_MAX, HEAD_MS, HEARTBEAT_MS, MCP_SESSION_IDLE_MS, REQUESTS_TOGETHER_MAX, SHUTDOWN_MS, WRITE_STALL_MS,
};
use crate::mcp::{McpEndpoint, McpServer};
use crate::spell_host::local_owner;

pub(crate) use tokens::Bearer;
pub use tokens::Tokens;

/// Returns the OpenAPI page that describes every route, as served at `/openapi.json`.
pub fn openapi() -> serde_json::Value {
    routes::all().openapi()
}

/// The settings of a server.
#[derive(Debug, Clone)]
pub struct Options {
    /// The tokens of the owners. Without any, every caller is the local owner, which is only allowed from loopback.
    pub tokens: Option<Tokens>,
    /// The time within which the head of a request must arrive.
    pub head: Duration,
    /// The time within which its body must arrive.
    pub body: Duration,
    /// The time that a client may leave written data unread.
    pub stall: Duration,
    /// The silence after which a feed sends a heartbeat.
    pub heartbeat: Duration,
    /// The time without a request after which an MCP session ends.
    pub session_idle: Duration,
    /// The time that active runs have to park when the server stops.
    pub shutdown: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tokens: None,
            head: Duration::from_millis(HEAD_MS),
            body: Duration::from_millis(BODY_MS),
            stall: Duration::from_millis(WRITE_STALL_MS),
            heartbeat: Duration::from_millis(HEARTBEAT_MS),
            session_idle: Duration::from_millis(MCP_SESSION_IDLE_MS),
            shutdown: Duration::from_millis(SHUTDOWN_MS),
        }
    }
}

/// A [`SpellHost`] behind HTTP. Cheap to clone; all clones are the same server.
#[derive(Clone)]
pub struct HttpServer(Arc<Inner>);

struct Inner {
    host: SpellHost,
    /// The endpoint at `/mcp`.
    agents: McpEndpoint,
    options: Options,
    under_way: Arc<Semaphore>,
    feeds: Arc<Semaphore>,
    stopping: watch::Sender<bool>,
}

impl fmt::Debug for HttpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpServer").field("options", &self.0.options).finish_non_exhaustive()
    }
}

impl HttpServer {
    pub fn new(host: SpellHost, options: Options) -> Self {
        let agents = McpServer::new(host.clone(), local_owner()).http();
        Self::with_mcp(host, options, agents)
    }

    /// Creates a server with another endpoint at `/mcp`.
    pub fn with_mcp(host: SpellHost, options: Options, agents: McpEndpoint) -> Self {
        Self(Arc::new(Inner {
            agents,
            host,
            options,
            under_way: Arc::new(Semaphore::new(REQUESTS_TOGETHER_MAX)),
            feeds: Arc::new(Semaphore::new(FEEDS_MAX)),
            stopping: watch::Sender::new(false),
        }))
    }

    /// Returns every route, behind the admission checks.
    pub fn router(&self) -> Router {
        let routes = routes::all().into_router().route(mcp_route::PATH, axum::routing::any(mcp_route::serve_mcp));
        admit::with_admission(routes, self.clone()).with_state(self.clone())
    }

    /// Serves until `stop` resolves. Then it accepts no more requests, parks every run where it can resume, releases
    /// its lease, and ends the feeds.
    pub async fn serve(self, listener: TcpListener, stop: impl Future<Output = ()>) -> io::Result<()> {
        let accepting = listen::accept(listener, self.router(), self.options().clone(), self.stopping());
        let stopping = async {
            stop.await;
            self.host().local_service().release_all();
            self.0.stopping.send_replace(true);
            self.wait_until_idle().await;
            // By now every agent whose run was parked has its reply.
            self.0.agents.close();
        };
        let serving = async { tokio::join!(accepting, stopping) };
        tokio::select! {
            (served, ()) = serving => served,
            never = self.0.agents.expire_idle(self.options().session_idle) => match never {},
        }
    }

    /// Waits until no run is active, up to the limit: a lease that is not released then expires.
    async fn wait_until_idle(&self) {
        let resting = async {
            while self.host().local_service().active_runs() > 0 {
                // A run that began meanwhile must be released too.
                self.host().local_service().release_all();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            self.host().runtime().guard().wait_idle().await;
        };
        if tokio::time::timeout(self.options().shutdown, resting).await.is_err() {
            tracing::warn!(runs = self.host().local_service().active_runs(), "runs did not stop in time");
        }
    }

    fn host(&self) -> &SpellHost {
        &self.0.host
    }

    fn options(&self) -> &Options {
        &self.0.options
    }

    fn guard(&self) -> &Guard {
        self.host().runtime().guard()
    }

    fn stopping(&self) -> watch::Receiver<bool> {
        self.0.stopping.subscribe()
    }

    /// Returns the number of open feeds.
    fn feeds_open(&self) -> usize {
        FEEDS_MAX.saturating_sub(self.0.feeds.available_permits())
    }

    fn is_stopping(&self) -> bool {
        *self.0.stopping.borrow()
    }

    /// Returns the reply to a refused request.
    async fn refusal_reply(&self, refusal: Refusal) -> GuardedReply {
        self.guard().call(Call::surface("http"), |rb| async { rb.refuse(refusal) }).await
    }

    /// Returns the response for a reply or a refusal.
    async fn answer(&self, asked: Result<GuardedReply, Refusal>) -> answer::Answer {
        match asked {
            Ok(guarded) => guarded.into(),
            Err(refusal) => self.refusal_reply(refusal).await.into(),
        }
    }

    /// Returns the reply to a refused request about a run.
    async fn run_refusal_reply(&self, run: RunId, refusal: Refusal) -> GuardedReply {
        self.guard().call(Call::surface("http").run(run), |rb| async { rb.refuse(refusal) }).await
    }
}
