//! `cantrip serve`: the HTTP server.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use cantrip_reply::{Call, Guard, Refusal, codes};
use cantrip_serve::http::{HttpServer, Options, Tokens};
use cantrip_serve::{GuardWatch, SpellHost, Takeover};
use cantrip_service::SpellSummary;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use cantrip_local::predictor::with_predictor;
use cantrip_local::process::{self, Presence};
use cantrip_local::runtime::runtime_without_predictor;
use cantrip_local::spell_catalog::{BUILT_IN, FileSpellCatalog};
use cantrip_local::store::{self, Access};
use cantrip_terminal::guard::draw_event;
use cantrip_terminal::present::{DIM, Present, quoted, say};

/// Run an HTTP server for the spells of this project, described at /openapi.json.
///
/// It serves casts, runs, looms, their event feeds and the rest. Ctrl-C or SIGTERM stops every run where it can be
/// resumed and releases it; another server of the same store resumes it. A server also resumes the runs of a process
/// that was killed: at once on the same machine, otherwise when the lease of the run has run out.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip serve\n  cantrip serve --bind 0.0.0.0:8420 --tokens tokens.txt\n  \
                        curl -s localhost:8420/v1/casts -H 'content-type: application/json' \\\n    \
                        -d '{\"spell\": \"default\", \"intent\": \"what is this project?\", \"wait\": true}'")]
pub(crate) struct Serve {
    /// The address to listen on. Any address other than loopback needs tokens. Port 0 takes a free port.
    #[arg(long, alias = "listen", value_name = "ADDRESS", default_value = "127.0.0.1:8420")]
    bind: String,

    /// A file with the tokens of the allowed callers, one per line: owner = token, or operator owner = token for a
    /// caller who may change signatures, artifacts and pointers. The token in CANTRIP_TOKEN is that of the user who
    /// runs the server.
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,

    /// The store for casts: sqlite:FILE, postgres://..., jsonl:DIR or memory:.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE")]
    store: Option<String>,

    /// Do not resume runs that other servers released, or whose process is gone.
    #[arg(long)]
    no_resume: bool,
}

/// The number of spells that are listed when the server starts.
const SPELLS_SHOWN: usize = 12;

/// The variable with the single token of the operator.
const TOKEN: &str = "CANTRIP_TOKEN";

impl Serve {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        match self.serve(guard).await {
            Ok(()) => {
                let call = Call::surface("serve");
                let guarded = guard.call(call, |rb| async { rb.success(codes::ok("serve")) }).await;
                present.reply(guarded, String::new)
            }
            Err(refusal) => present.refuse(guard, "serve", refusal).await,
        }
    }

    async fn serve(&self, guard: &Guard) -> Result<(), Refusal> {
        let tokens = self.tokens()?;
        let address = self.address(tokens.is_some())?;
        let store = Arc::new(store::open_here(self.store.as_deref(), Access::Write)?);
        let runtime = runtime_without_predictor(&store, guard).with_approvals(true);
        let runtime = if address.ip().is_loopback() { runtime } else { runtime.for_remote_callers() };
        let runtime = with_predictor(&runtime, &store);
        let spells = FileSpellCatalog::new(Arc::clone(&store))?;
        let host = SpellHost::open_with_liveness(runtime, spells, |worker| process::presence(worker) == Presence::Gone);
        let unusable = |error: std::io::Error| {
            Refusal::from(codes::config_invalid("--bind", address.to_string(), error.to_string()))
        };
        let listener = TcpListener::bind(address).await.map_err(unusable)?;
        let bound = listener.local_addr().map_err(unusable)?;
        say(&format!("listening on http://{bound} {DIM}· {}{DIM:#}", store.name));
        say(&introduction(&host.local_service().spells().spells(), bound, self.authorization(tokens.is_some())));
        let looking = tokio::spawn(look_for_runs(host.clone(), store.is_shared, !self.no_resume));
        let guards = GuardWatch::new(host.clone()).with_listener(|event| say(&draw_event(event)));
        let watching = tokio::spawn(async move { guards.run().await });
        let http = HttpServer::new(host, Options { tokens, ..Options::default() });
        let stop = async move {
            wait_for_stop_signal().await;
            // A run that is handed back from here on is left for another server.
            looking.abort();
            watching.abort();
            let _ = (looking.await, watching.await);
        };
        http.serve(listener, stop)
            .await
            .map_err(|error| codes::io_failed("serve", bound.to_string(), error.to_string()).into())
    }

    fn tokens(&self) -> Result<Option<Tokens>, Refusal> {
        if let Some(file) = &self.tokens {
            let shown = file.display().to_string();
            let text = std::fs::read_to_string(file)
                .map_err(|error| codes::config_invalid("--tokens", shown.as_str(), error.to_string()))?;
            let tokens =
                Tokens::parse(&text).map_err(|fault| codes::config_invalid("--tokens", shown, fault.to_string()))?;
            return Ok(Some(tokens));
        }
        match std::env::var(TOKEN) {
            Ok(token) if !token.is_empty() => {
                let tokens = Tokens::of_local(&token)
                    .map_err(|fault| codes::config_invalid("environment", TOKEN, fault.rule))?;
                Ok(Some(tokens))
            }
            Ok(_) | Err(_) => Ok(None),
        }
    }

    /// Returns the option by which curl sends a token, if the server needs one.
    fn authorization(&self, guarded: bool) -> &'static str {
        match (&self.tokens, guarded) {
            (Some(_), _) => " -H \"authorization: Bearer $TOKEN\"",
            (None, true) => " -H \"authorization: Bearer $CANTRIP_TOKEN\"",
            (None, false) => "",
        }
    }

    /// Returns the address to listen on. Any address but loopback requires a token.
    fn address(&self, guarded: bool) -> Result<SocketAddr, Refusal> {
        let invalid = |rule: String| Refusal::from(codes::config_invalid("--bind", self.bind.as_str(), rule));
        let mut found = self.bind.to_socket_addrs().map_err(|error| invalid(error.to_string()))?;
        let address = found.next().ok_or_else(|| invalid("not a valid address".to_owned()))?;
        if !guarded && !address.ip().is_loopback() {
            let hint = "give --tokens FILE with lines of owner = token, or set CANTRIP_TOKEN";
            let rule = "any address other than loopback needs a token, because everyone who can reach it could cast";
            return Err(codes::config_invalid("--bind", self.bind.as_str(), rule).data(json!({ "hint": hint })).into());
        }
        Ok(address)
    }
}

/// Returns the lines below the address: the spells that can be cast, and a command that casts the first of them.
fn introduction(spells: &[SpellSummary], bound: SocketAddr, authorization: &str) -> String {
    let names: Vec<&str> = spells.iter().take(SPELLS_SHOWN).map(|spell| spell.name.as_str()).collect();
    let more = match spells.len() - names.len() {
        0 => String::new(),
        more => format!(" and {more} more, listed at /v1/spells"),
    };
    let host = if bound.ip().is_unspecified() { format!("localhost:{}", bound.port()) } else { bound.to_string() };
    let first = names.first().copied().unwrap_or(BUILT_IN);
    let body = json!({"spell": first, "intent": "say hello", "wait": true}).to_string();
    format!(
        "spells: {}{more}\n  curl -s http://{host}/v1/casts -H 'content-type: application/json'{authorization} -d {}",
        names.join(", "),
        quoted(&body)
    )
}

/// Waits for Ctrl-C or SIGTERM.
async fn wait_for_stop_signal() {
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    say(&format!("{DIM}stopping where every run can be resumed{DIM:#}"));
}

/// Resumes the runs that other processes handed back, or left behind when they were killed. It does so once at the
/// start, and continuously if other processes share the store.
async fn look_for_runs(host: SpellHost, is_shared: bool, takes_up: bool) {
    let service = host.service(&cantrip_serve::local_owner());
    let takeover = Takeover::new(host, |owner| process::presence(owner) == Presence::Gone)
        .with_listener(|run| say(&format!("resuming {}", run.run_id)));
    let begun = async {
        takeover.release_dead_leases().await?;
        service.recover().await
    };
    if let Err(refusal) = begun.await {
        tracing::warn!(code = %refusal.code(), "reservations of other processes cannot be read");
    }
    if !takes_up {
        return;
    }
    match takeover.scan_once().await {
        Ok(0) => say(&format!("{DIM}no run was resumed{DIM:#}")),
        Ok(_) => {}
        Err(refusal) => tracing::warn!(code = %refusal.code(), "orphaned runs cannot be read"),
    }
    if is_shared {
        takeover.run().await;
    }
}
