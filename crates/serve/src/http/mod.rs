//! The HTTP surface: what a request asks, and how its reply is written.
//!
//! Every route is one line of a table: the same line makes it answer and stand in `/openapi.json`, so neither
//! can be without the other. A handler reads the request, asks the house, and writes the reply's envelope; whatever is
//! wrong with the request itself (no such route, a body that is too long, too slow or no JSON) is an envelope as well.

mod admit;
mod answer;
mod casts;
mod chat;
mod contracts;
mod entities;
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

/// The page that describes every route, as OpenAPI: what is served at `/openapi.json`.
pub fn openapi() -> serde_json::Value {
    routes::all().openapi()
}

/// How a server stands towards those who ask.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whose token is whose. Without any every caller is the local one, which only loopback may be.
    pub tokens: Option<Tokens>,
    /// How long the head of a request may take to arrive.
    pub head: Duration,
    /// How long its body may take.
    pub body: Duration,
    /// How long a client may leave what it is written unread.
    pub stall: Duration,
    /// After so much silence a feed says that it is still there.
    pub heartbeat: Duration,
    /// After so long without a request a session of an agent ends.
    pub session_idle: Duration,
    /// How long what is under way may take to rest when the server stops.
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

/// A house behind HTTP. Cheap to clone; all clones are the same surface.
#[derive(Clone)]
pub struct HttpServer(Arc<Inner>);

struct Inner {
    host: SpellHost,
    /// What stands at `/mcp`.
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

    /// The same with another server for agents at `/mcp`.
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

    /// Every route, behind whoever lets requests in.
    pub fn router(&self) -> Router {
        let routes = routes::all().into_router().route(mcp_route::PATH, axum::routing::any(mcp_route::serve_mcp));
        admit::with_admission(routes, self.clone()).with_state(self.clone())
    }

    /// Serves until `stop` is over; then takes no more requests, lets every run rest where it can go on, hands its lease
    /// back, and ends the feeds.
    pub async fn serve(self, listener: TcpListener, stop: impl Future<Output = ()>) -> io::Result<()> {
        let accepting = listen::accept(listener, self.router(), self.options().clone(), self.stopping());
        let stopping = async {
            stop.await;
            self.host().release_all();
            self.0.stopping.send_replace(true);
            self.wait_until_idle().await;
            // An agent whose run came to rest was told so by then.
            self.0.agents.close();
        };
        let serving = async { tokio::join!(accepting, stopping) };
        tokio::select! {
            (served, ()) = serving => served,
            never = self.0.agents.expire_idle(self.options().session_idle) => match never {},
        }
    }

    /// Returns when nothing is under way any more, or when that takes too long: a lease that is not handed back expires.
    async fn wait_until_idle(&self) {
        let resting = async {
            while self.host().active_runs() > 0 {
                // One that began meanwhile is to rest as well.
                self.host().release_all();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            self.host().runtime().guard().wait_idle().await;
        };
        if tokio::time::timeout(self.options().shutdown, resting).await.is_err() {
            tracing::warn!(runs = self.host().active_runs(), "runs did not come to rest in time");
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

    /// How many feeds are being read.
    fn feeds_open(&self) -> usize {
        FEEDS_MAX.saturating_sub(self.0.feeds.available_permits())
    }

    fn is_stopping(&self) -> bool {
        *self.0.stopping.borrow()
    }

    /// A request that goes no further.
    async fn refusal_reply(&self, refusal: Refusal) -> GuardedReply {
        self.guard().call(Call::surface("http"), |rb| async { rb.refuse(refusal) }).await
    }

    /// What was asked for, or why not.
    async fn answer(&self, asked: Result<GuardedReply, Refusal>) -> answer::Answer {
        match asked {
            Ok(guarded) => guarded.into(),
            Err(refusal) => self.refusal_reply(refusal).await.into(),
        }
    }

    /// The same of a run.
    async fn run_refusal_reply(&self, run: RunId, refusal: Refusal) -> GuardedReply {
        self.guard().call(Call::surface("http").run(run), |rb| async { rb.refuse(refusal) }).await
    }
}
