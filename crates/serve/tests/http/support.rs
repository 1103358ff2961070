//! A server with a few spells, and a client.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use cantrip_reply::AnyCode;
use cantrip_reply::testing::assert_envelope;
use cantrip_serve::SpellHost;
use cantrip_serve::http::{HttpServer, Options};
use cantrip_service::cantrip::canon::EntityId;
use cantrip_service::cantrip::circle::gate::builtin;
use cantrip_service::cantrip::crystal::{AnyCrystal, Price, Rates, Script, ScriptedCrystal};
use cantrip_service::cantrip::loom::{AnyLoom, Loom, MemoryLoom};
use cantrip_service::cantrip::reply::{Refusal, codes};
use cantrip_service::cantrip::{Cantrip, Runtime};
use cantrip_service::contracts::{Predictor, TraceArchive};
use cantrip_service::{Service, SpellCatalog, SpellSummary};
use cantrip_store::Store;
use cantrip_tests::peer::{Peer, new_schema};
use futures_util::future::{BoxFuture, FutureExt, ready};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Spells by name, each with the script that its entities follow.
#[derive(Clone)]
pub(crate) struct Book {
    loom: AnyLoom,
    spells: Vec<(String, String)>,
}

pub(super) const SPELLS: &[(&str, &str)] = &[
    ("three", "responses:\n  - tool_calls: [{id: c1, gate: done, args: {answer: 3}}]\n"),
    (
        "slow",
        "responses:\n  - {content: 'One moment please, this takes a while.', pace_ms: 60, tool_calls: [{id: c1, gate: echo, args: {text: a}}]}\n  \
         - {thinking: 'What next?', tool_calls: [{id: c2, gate: echo, args: {text: b}}], delay_ms: 50}\n  \
         - {tool_calls: [{id: c3, gate: done, args: {answer: slow}}], delay_ms: 50}\n",
    ),
    (
        "priced",
        "responses:\n  - {tool_calls: [{id: c1, gate: done, args: {answer: paid}}], usage: {prompt_tokens: 100, \
         completion_tokens: 10}}\n",
    ),
    ("stuck", "responses:\n  - {content: never, delay_ms: 600000}\n"),
    (
        "asks",
        "responses:\n  - tool_calls: [{id: c1, gate: echo, args: {text: may I}}]\n  \
         - tool_calls: [{id: c2, gate: done, args: {answer: over}}]\n",
    ),
    (
        "talks",
        "responses:\n  - tool_calls: [{id: c1, gate: done, args: {answer: first}}]\n  \
         - tool_calls: [{id: c2, gate: done, args: {answer: second}}]\n",
    ),
];

/// The spell whose script the crystal of predicts follows.
pub(super) const PREDICTS: &str = "predicts";

impl Book {
    /// Creates the catalog of common test spells, with these added.
    pub(crate) fn over(loom: AnyLoom, more: &[(String, String)]) -> Self {
        let known = SPELLS.iter().map(|(name, script)| ((*name).to_owned(), (*script).to_owned()));
        Self { loom, spells: known.chain(more.iter().cloned()).collect() }
    }

    pub(super) fn made(&self, name: &str) -> Option<Cantrip> {
        let (_, script) = self.spells.iter().find(|(known, _)| known == name)?;
        let script = Script::read("script.yaml", script).unwrap().pop().unwrap();
        let mut builder = Cantrip::builder()
            .name(name)
            .crystal(ScriptedCrystal::new(format!("scripted/{name}"), script))
            .gate(builtin::done())
            .gate(builtin::echo())
            .ward("max_turns", 300);
        if name == "asks" {
            builder = builder.ward("require_approval", json!(["echo"]));
        }
        if name == "priced" {
            let rates = Rates::new("1 USD".parse().unwrap(), "10 USD".parse().unwrap()).unwrap();
            builder = builder.price(Price::Listed(rates));
        }
        Some(builder.build().unwrap())
    }
}

impl SpellCatalog for Book {
    fn spells(&self) -> Vec<SpellSummary> {
        let card = |(name, _): &(String, String)| SpellSummary {
            name: name.clone(),
            crystal: format!("scripted/{name}"),
            medium: "conversation".to_owned(),
            about: String::new(),
        };
        self.spells.iter().map(card).collect()
    }

    fn cantrip<'a>(&'a self, spell: &'a str) -> BoxFuture<'a, Result<Cantrip, Refusal>> {
        ready(self.made(spell).ok_or_else(|| codes::not_found("spell", spell).into())).boxed()
    }

    fn predictor<'a>(&'a self, service: &'a Service) -> BoxFuture<'a, Result<Predictor, Refusal>> {
        let predictor = match self.spells.iter().find(|(name, _)| name == PREDICTS) {
            Some((name, script)) => {
                let script = Script::read("script.yaml", script).unwrap().pop().unwrap();
                let crystal = AnyCrystal::new(ScriptedCrystal::new(format!("scripted/{name}"), script));
                Ok(service.predictor(move |_: Option<&str>| Ok(crystal.clone()), TraceArchive::inline()))
            }
            None => Err(codes::config_invalid("predict", "crystal", "there is none here").into()),
        };
        ready(predictor).boxed()
    }

    fn cantrip_of_entity(&self, entity: EntityId) -> BoxFuture<'_, Result<Cantrip, Refusal>> {
        async move {
            let view = self.loom.entity(entity).await.unwrap();
            let found = self.spells.iter().filter_map(|(name, _)| self.made(name));
            Ok(found.into_iter().find(|cantrip| cantrip.id() == view.entity.cantrip_id).unwrap())
        }
        .boxed()
    }
}

/// The storage of a server.
pub(super) enum Place {
    Memory(AnyLoom),
    File(TempDir),
    Schema { url: String, name: String },
}

/// Returns every kind of storage: in memory, in a file, and in a database if there is one.
pub(super) fn places() -> Vec<Place> {
    let mut all = vec![Place::Memory(AnyLoom::new(MemoryLoom::new()))];
    all.extend(durable());
    all
}

/// Returns the kinds of storage that several processes share.
pub(super) fn durable() -> Vec<Place> {
    let mut all = vec![Place::File(tempfile::tempdir().unwrap())];
    all.extend(Peer::Postgres.find().map(|url| Place::Schema { url, name: new_schema() }));
    all
}

impl Place {
    /// Opens the storage, as a separate process would.
    pub(super) fn loom(&self) -> AnyLoom {
        match self {
            Self::Memory(loom) => loom.clone(),
            Self::File(_) | Self::Schema { .. } => AnyLoom::new(self.store()),
        }
    }

    pub(super) fn store(&self) -> Store {
        match self {
            Self::Memory(_) => panic!("there is no store in memory"),
            Self::File(folder) => Store::sqlite(folder.path().join("loom.db")).unwrap(),
            Self::Schema { url, name } => Store::postgres_in(url, name).unwrap(),
        }
    }
}

pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) host: SpellHost,
    pub(super) http: HttpServer,
    pub(super) client: reqwest::Client,
    token: Option<String>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<std::io::Result<()>>,
}

pub(super) async fn server() -> Server {
    Server::over(AnyLoom::new(MemoryLoom::new()), Options::default(), &[]).await
}

impl Server {
    pub(super) async fn over(loom: AnyLoom, options: Options, more: &[(String, String)]) -> Self {
        Self::of(Runtime::new(loom.clone()), loom, options, more).await
    }

    pub(super) async fn of(runtime: Runtime, loom: AnyLoom, options: Options, more: &[(String, String)]) -> Self {
        Self::bound(IpAddr::from(Ipv4Addr::LOCALHOST), runtime, loom, options, more).await
    }

    /// Starts a server that listens on this address.
    pub(super) async fn bound(
        listening: IpAddr,
        runtime: Runtime,
        loom: AnyLoom,
        options: Options,
        more: &[(String, String)],
    ) -> Self {
        let runtime = runtime.with_approvals(true);
        let host = SpellHost::open(runtime, Book::over(loom, more));
        let listener = TcpListener::bind((listening, 0)).await.unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, listener.local_addr().unwrap().port()));
        let (stop, stopped) = oneshot::channel::<()>();
        let http = HttpServer::new(host.clone(), options);
        let task = tokio::spawn(http.clone().serve(listener, async move { drop(stopped.await) }));
        // The client needs a crypto provider even without encryption; a second install changes nothing.
        drop(rustls::crypto::ring::default_provider().install_default());
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { address, host, http, client, token: None, stop: Some(stop), task }
    }

    pub(super) fn with_token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    pub(super) fn without_token(mut self) -> Self {
        self.token = None;
        self
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(super) fn asks(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    pub(super) async fn get(&self, path: &str) -> (u16, Value) {
        answered(self.asks(self.client.get(self.url(path)))).await
    }

    pub(super) async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        answered(self.asks(self.client.post(self.url(path)).json(&body))).await
    }

    /// Returns the value at this path.
    pub(super) async fn value(&self, path: &str) -> Value {
        let (status, envelope) = self.get(path).await;
        assert_eq!(status, 200, "{envelope}");
        assert_envelope(&envelope, codes::READ.any());
        envelope["data"]["value"].clone()
    }

    /// Casts a spell, and returns its run.
    pub(super) async fn cast(&self, spell: &str) -> String {
        let (status, envelope) = self.post("/v1/casts", json!({"spell": spell, "intent": "go"})).await;
        assert!(matches!(status, 201 | 202), "{envelope}");
        assert_envelope(&envelope, codes::CREATED.any());
        envelope["data"]["run_id"].as_str().unwrap().to_owned()
    }

    /// Waits until a run has this state.
    pub(super) async fn until(&self, run: &str, state: &str) -> Value {
        for _ in 0..3_000 {
            let value = self.value(&format!("/v1/runs/{run}")).await;
            if value["state"] == state {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{run} is never {state}: {}", self.value(&format!("/v1/runs/{run}")).await);
    }

    pub(super) async fn stop(mut self) {
        drop(self.stop.take());
        (&mut self.task).await.unwrap().unwrap();
    }
}

pub(super) async fn answered(request: reqwest::RequestBuilder) -> (u16, Value) {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {status} {text:?}")))
}

#[track_caller]
pub(super) fn refused((status, envelope): (u16, Value), expected: u16, code: AnyCode) -> Value {
    assert_eq!(status, expected, "{envelope}");
    assert_envelope(&envelope, code);
    envelope
}
