//! What does a cast cost over HTTP, compared with the same cast in process?
//!
//! One scripted cast of one turn, by three contenders that alternate batch by batch: in process, through the
//! `SpellHost` that every surface uses; over HTTP, with the real surface on a real socket; and, as the floor, a route
//! that reads a body of the same size and returns as many bytes, called by the same client. So the overhead of HTTP
//! for a cast can be compared with the cost of HTTP without any work. Wall time, because the wait for the disk and the
//! socket counts.

use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::post;
use cantrip::circle::gate::builtin;
use cantrip::crystal::{Answer, Crystal, EventSink, Failure, Request, Response, Script, ScriptedCrystal};
use cantrip::loom::{AnyLoom, MemoryLoom};
use cantrip::reply::{Refusal, codes};
use cantrip::{Call, Cantrip, Runtime};
use cantrip_canon::EntityId;
use cantrip_serve::SpellHost;
use cantrip_serve::http::{HttpServer, Options};
use cantrip_service::contracts::Predictor;
use cantrip_service::{CastRequest, Service, SpellCatalog, SpellSummary};
use cantrip_store::Store;
use futures_util::future::{BoxFuture, FutureExt, join_all, ready};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::store::{over, runtime};

const ROUNDS: usize = 9;
/// The casts of one contender in one round, shared among the concurrent callers.
const ASKED: usize = if cfg!(debug_assertions) { 32 } else { 256 };
const TOGETHER: [usize; 2] = [1, 16];

/// A crystal that answers every request with the same text.
#[derive(Clone)]
struct Brief;

impl Crystal for Brief {
    fn name(&self) -> &str {
        "scripted/brief"
    }

    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        let answer = Response::call("c", "done", json!({"answer": "over"}));
        ScriptedCrystal::new("scripted/brief", Script::new([answer])).ask(request, heard).await
    }
}

/// A catalog with one spell.
struct OneSpellCatalog(Cantrip);

impl OneSpellCatalog {
    fn new() -> Self {
        let built = Cantrip::builder()
            .name("brief")
            .crystal(Brief)
            .call(Call::new().system_prompt("Be brief."))
            .gate(builtin::done())
            .ward("max_turns", 3)
            .build();
        Self(built.expect("it is sound"))
    }
}

impl SpellCatalog for OneSpellCatalog {
    fn spells(&self) -> Vec<SpellSummary> {
        Vec::new()
    }

    fn cantrip<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Cantrip, Refusal>> {
        ready(Ok(self.0.clone())).boxed()
    }

    fn predictor<'a>(&'a self, _: &'a Service) -> BoxFuture<'a, Result<Predictor, Refusal>> {
        ready(Err(codes::config_invalid("predict", "crystal", "nothing is predicted here").into())).boxed()
    }

    fn cantrip_of_entity(&self, _: EntityId) -> BoxFuture<'_, Result<Cantrip, Refusal>> {
        ready(Ok(self.0.clone())).boxed()
    }
}

/// A connection that is kept open.
struct Client(TcpStream);

impl Client {
    async fn to(address: &str) -> Self {
        let stream = TcpStream::connect(address).await.expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        Self(stream)
    }

    /// Sends one request and reads the whole response.
    async fn ask(&mut self, path: &str, body: &str) -> String {
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.0.write_all(request.as_bytes()).await.expect("it reads");
        let mut read = Vec::with_capacity(4_096);
        loop {
            assert!(self.0.read_buf(&mut read).await.expect("it answers") > 0, "it hung up");
            let text = String::from_utf8_lossy(&read);
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let length = head.to_ascii_lowercase().lines().find_map(|line| {
                line.strip_prefix("content-length:").and_then(|length| length.trim().parse::<usize>().ok())
            });
            if body.len() >= length.expect("the length is told") {
                assert!(head.starts_with("HTTP/1.1 20"), "{text}");
                return body.to_owned();
            }
        }
    }
}

/// The times of one contender: each request, and each round.
#[derive(Default)]
struct Latencies {
    each: Vec<Duration>,
    rounds: Vec<Duration>,
}

impl Latencies {
    /// The median and the 99th percentile.
    fn quantiles(&mut self) -> (Duration, Duration) {
        self.each.sort_unstable();
        (self.each[self.each.len() / 2], self.each[self.each.len() * 99 / 100])
    }

    fn a_second(&mut self) -> f64 {
        self.rounds.sort_unstable();
        ASKED as f64 / self.rounds[self.rounds.len() / 2].as_secs_f64()
    }
}

/// Runs the callers concurrently and records the time of each request.
async fn round<F: Future<Output = Vec<Duration>>>(taken: &mut Latencies, askers: impl IntoIterator<Item = F>) {
    let start = Instant::now();
    let each = join_all(askers).await;
    taken.rounds.push(start.elapsed());
    taken.each.extend(each.into_iter().flatten());
}

async fn over_http(client: &mut Client, path: &str, body: &str, count: usize) -> Vec<Duration> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        client.ask(path, body).await;
        times.push(start.elapsed());
    }
    times
}

async fn in_process(host: &SpellHost, count: usize) -> Vec<Duration> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        let reply = host.local_service().begin_cast("brief", CastRequest::with_intent("go")).await.reply().await;
        times.push(start.elapsed());
        assert!(reply.answer().is_some(), "{:?}", reply.reply());
    }
    times
}

async fn measured(kept: &str, loom: AnyLoom) {
    let host = SpellHost::open(Runtime::new(loom), OneSpellCatalog::new());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let served = listener.local_addr().expect("an address").to_string();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let http = HttpServer::new(host.clone(), Options::default());
    let serving = tokio::spawn(http.serve(listener, async move { drop(stopped.await) }));
    let body = json!({"spell": "brief", "intent": "go", "wait": true}).to_string();
    let answer = Client::to(&served).await.ask("/v1/casts", &body).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let floor = listener.local_addr().expect("an address").to_string();
    let nothing = Router::new().route("/", post(move |_: String| ready(answer.clone())));
    let idle = tokio::spawn(async move { axum::serve(listener, nothing).await });
    for together in TOGETHER {
        let mut to_floor = join_all((0..together).map(|_| Client::to(&floor))).await;
        let mut to_server = join_all((0..together).map(|_| Client::to(&served))).await;
        let (mut bare, mut inside, mut outside) = (Latencies::default(), Latencies::default(), Latencies::default());
        let share = ASKED / together;
        for counted in 0..=ROUNDS {
            round(&mut bare, to_floor.iter_mut().map(|client| over_http(client, "/", &body, share))).await;
            round(&mut inside, (0..together).map(|_| in_process(&host, share))).await;
            round(&mut outside, to_server.iter_mut().map(|client| over_http(client, "/v1/casts", &body, share))).await;
            if counted == 0 {
                // The first round is a warm-up.
                (bare, inside, outside) = (Latencies::default(), Latencies::default(), Latencies::default());
            }
        }
        let (floor, cast) = (bare.quantiles(), inside.quantiles());
        let row = |what: &str, taken: &mut Latencies, ratios: String| {
            let (half, nearly) = taken.quantiles();
            let micros = |time: Duration| format!("{:.0} us", time.as_secs_f64() * 1e6);
            let a_second = taken.a_second();
            println!(
                "| {kept}, {together} at once: {what} | {a_second:.0} | {} | {} | {ratios} |",
                micros(half),
                micros(nearly)
            );
        };
        row("a route that does nothing", &mut bare, String::new());
        row("the cast in process", &mut inside, String::new());
        let (half, _) = outside.quantiles();
        let added = half.saturating_sub(cast.0);
        let ratios = format!("{:.2} x in process; adds {:.2} x the route", over(half, cast.0), over(added, floor.0));
        row("the cast over HTTP", &mut outside, ratios);
    }
    idle.abort();
    drop(stop);
    serving.await.expect("it ends").expect("it served");
}

pub(crate) fn run() {
    let folder = tempfile::tempdir_in(".").or_else(|_| tempfile::tempdir()).expect("a folder to write in");
    println!("http: a cast of one turn, {ASKED} a round, {ROUNDS} rounds in turns, wall time");
    println!("SQLite on {}\n", folder.path().display());
    println!("| what | requests a second | p50 | p99 | ratios |");
    println!("| --- | --- | --- | --- | --- |");
    runtime().block_on(async {
        measured("in memory", AnyLoom::new(MemoryLoom::new())).await;
        let store = Store::sqlite(folder.path().join("loom.db")).expect("a store");
        measured("SQLite", AnyLoom::new(store)).await;
    });
    println!();
}
