//! The HTTP surface: how a request is read, and how its reply is written.
//!
//! Every route is one line of a table: the same line registers the handler and its entry in `/openapi.json`, so neither
//! can exist without the other. A handler reads the request, calls the [`SpellHost`], and writes the reply's envelope.
//! A fault of the request itself (an unknown route, a body that is too long, too slow or not JSON) is an envelope as
//! well.
//!
//! The pages for people are beside that table, with sessions of their own; there every fault is a page.

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
mod pages;
mod public_url;
mod routes;
mod runs;
mod server_routes;
mod tokens;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use cantrip_service::cantrip::MachineClock;
use cantrip_service::cantrip::canon::{Clock, RunId, Timestamp};
use cantrip_service::cantrip::reply::{Call, Guard, GuardedReply, Refusal};
use cantrip_view::command::Commands;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use crate::SpellHost;
use crate::limits::{
    BODY_MS, FEEDS_MAX, HEAD_MS, HEARTBEAT_MS, MCP_SESSION_IDLE_MS, REQUESTS_TOGETHER_MAX, SHUTDOWN_MS, WRITE_STALL_MS,
};
use crate::mcp::{McpEndpoint, McpServer};
use crate::spell_host::local_owner;

pub use public_url::{PublicUrl, PublicUrlFault};
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
    /// The address under which people reach the pages, if the server listens beyond loopback. It needs tokens.
    pub public_url: Option<PublicUrl>,
    /// The store as the option `--store` names it, for the commands that pages show; none for the default one.
    pub store: Option<String>,
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
            public_url: None,
            store: None,
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
    tokens: RwLock<Option<Arc<Tokens>>>,
    sessions: pages::Sessions,
    commands: Commands,
    clock: MachineClock,
    /// The address that the server listens on, once it does.
    bound: OnceLock<SocketAddr>,
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
            tokens: RwLock::new(options.tokens.clone().map(Arc::new)),
            sessions: pages::Sessions::default(),
            commands: Commands::new(options.store.clone()),
            clock: MachineClock::new(),
            bound: OnceLock::new(),
            options,
            under_way: Arc::new(Semaphore::new(REQUESTS_TOGETHER_MAX)),
            feeds: Arc::new(Semaphore::new(FEEDS_MAX)),
            stopping: watch::Sender::new(false),
        }))
    }

    /// Returns every route, behind the admission checks.
    pub fn router(&self) -> Router {
        let routes = routes::all().into_router().route(mcp_route::PATH, axum::routing::any(mcp_route::serve_mcp));
        let routes = routes.merge(pages::router());
        admit::with_admission(routes, self.clone()).with_state(self.clone())
    }

    /// Serves until `stop` resolves. Then it accepts no more requests, parks every run where it can resume, releases
    /// its lease, and ends the feeds.
    pub async fn serve(self, listener: TcpListener, stop: impl Future<Output = ()>) -> io::Result<()> {
        let _ = self.0.bound.set(listener.local_addr()?);
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

    /// Replaces the tokens of a server that has some. The sessions of tokens that are gone end.
    pub fn replace_tokens(&self, tokens: Tokens) {
        let mut current = self.0.tokens.write().unwrap_or_else(PoisonError::into_inner);
        if current.is_some() {
            *current = Some(Arc::new(tokens));
        }
    }

    /// Returns a link to the pages of a server with this address, which opens a session of the local owner, once and
    /// within a minute. Returns none if the machine has no randomness.
    pub fn open_link(&self, bound: SocketAddr) -> Option<String> {
        pages::open_link(self, bound)
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

    fn tokens(&self) -> Option<Arc<Tokens>> {
        self.0.tokens.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn sessions(&self) -> &pages::Sessions {
        &self.0.sessions
    }

    /// Returns the commands that pages show.
    fn commands(&self) -> &Commands {
        &self.0.commands
    }

    fn now(&self) -> Timestamp {
        self.0.clock.now().wall
    }

    /// Returns true if the server listens on an address that others can reach.
    fn is_beyond_loopback(&self) -> bool {
        self.0.bound.get().is_some_and(|bound| !bound.ip().is_loopback())
    }

    fn port(&self) -> u16 {
        self.0.bound.get().map_or(0, SocketAddr::port)
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
