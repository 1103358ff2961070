//! `cantrip serve`: the HTTP server.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;

use cantrip_reply::{Call, Guard, Refusal, codes};
use cantrip_serve::http::{HttpServer, Options, PublicUrl, Tokens};
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

/// Run an HTTP server for the spells of this project: pages for people at /, and an API described at /openapi.json.
///
/// It serves casts, runs, looms, their event feeds and the rest. Ctrl-C or SIGTERM stops every run where it can be
/// resumed and releases it; another server of the same store resumes it. A server also resumes the runs of a process
/// that was killed: at once on the same machine, otherwise when the lease of the run has run out.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  cantrip serve --open\n  cantrip serve --bind 0.0.0.0:8420 --tokens tokens.txt\n  \
                        cantrip serve --tokens tokens.txt --public-url https://agents.example.org\n  \
                        curl -s localhost:8420/v1/casts -H 'content-type: application/json' \\\n    \
                        -d '{\"spell\": \"default\", \"intent\": \"what is this project?\", \"wait\": true}'"
)]
pub(crate) struct Serve {
    /// The address to listen on. Any address other than loopback needs tokens. Port 0 takes a free port.
    #[arg(long, alias = "listen", value_name = "ADDRESS", default_value = "127.0.0.1:8420")]
    bind: String,

    /// A file with the tokens of the allowed callers, one per line: owner = token, or operator owner = token for a
    /// caller who may change signatures, artifacts and pointers. The token in CANTRIP_TOKEN is that of the user who
    /// runs the server. The file is read again at SIGHUP; tokens that are gone end their sessions.
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,

    /// The store for casts: sqlite:FILE, postgres://..., jsonl:DIR or memory:.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE")]
    store: Option<String>,

    /// Open the pages in the browser. The link works once and within a minute; it is printed if no browser starts.
    #[arg(long)]
    open: bool,

    /// The https address under which people reach the pages, for example through a proxy. Needed for the pages of a
    /// server that listens beyond loopback, and needs tokens.
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,

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
        let public_url = self.public_url(tokens.is_some())?;
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
        let named = self.store.clone();
        let http = HttpServer::new(host, Options { tokens, public_url, store: named, ..Options::default() });
        if self.open {
            open_pages(http.open_link(bound));
        }
        let rereading = self.tokens.clone().map(|file| tokio::spawn(reread_tokens(file, http.clone())));
        let stop = async move {
            wait_for_stop_signal().await;
            // A run that is handed back from here on is left for another server.
            looking.abort();
            watching.abort();
            rereading.iter().for_each(tokio::task::JoinHandle::abort);
            let _ = (looking.await, watching.await);
        };
        http.serve(listener, stop)
            .await
            .map_err(|error| codes::io_failed("serve", bound.to_string(), error.to_string()).into())
    }

    fn tokens(&self) -> Result<Option<Tokens>, Refusal> {
        if let Some(file) = &self.tokens {
            let invalid = |why| codes::config_invalid("--tokens", file.display().to_string(), why);
            return Ok(Some(read_tokens(file).map_err(invalid)?));
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

    /// Returns the address under which people reach the pages.
    fn public_url(&self, guarded: bool) -> Result<Option<PublicUrl>, Refusal> {
        let Some(url) = &self.public_url else { return Ok(None) };
        let invalid = |rule: String| codes::config_invalid("--public-url", url.as_str(), rule);
        if !guarded {
            let hint = "give --tokens FILE with lines of owner = token, or set CANTRIP_TOKEN";
            let rule = "a server that others reach needs a token, because everyone could cast".to_owned();
            return Err(invalid(rule).data(json!({ "hint": hint })).into());
        }
        PublicUrl::parse(url).map(Some).map_err(|fault| invalid(fault.to_string()).into())
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

/// Reads the file of tokens, or says why it cannot be used.
fn read_tokens(file: &Path) -> Result<Tokens, String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    Tokens::parse(&text).map_err(|fault| fault.to_string())
}

/// Reads the file of tokens again at every SIGHUP. A file that cannot be used leaves the tokens as they are.
async fn reread_tokens(file: PathBuf, http: HttpServer) {
    let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
    while hangup.recv().await.is_some() {
        match read_tokens(&file) {
            Ok(tokens) => {
                http.replace_tokens(tokens);
                say(&format!("{DIM}read the tokens again{DIM:#}"));
            }
            Err(why) => say(&format!("the tokens stay as they were: {why}")),
        }
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

/// Opens a link in the user's browser. The link opens a session, so it is printed only if no browser takes it.
fn open_pages(link: Option<String>) {
    let Some(link) = link else { return say("no link could be made: open the address above") };
    match start_browser(&link) {
        // The program is waited for on a thread of its own: some browsers run until their window is closed.
        Ok(mut browser) => drop(std::thread::spawn(move || {
            if !browser.wait().is_ok_and(|status| status.success()) {
                print_link(&link);
            }
        })),
        Err(_) => print_link(&link),
    }
}

fn print_link(link: &str) {
    say(&format!("no browser was opened; this link works once, within a minute: {link}"));
}

fn start_browser(link: &str) -> std::io::Result<Child> {
    // The variable may list several programs; the first one is the preferred one.
    let chosen = std::env::var("BROWSER").unwrap_or_default();
    let usual = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let program = chosen.split(':').find(|program| !program.is_empty()).unwrap_or(usual);
    Command::new(program).arg(link).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
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
