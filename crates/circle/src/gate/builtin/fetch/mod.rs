//! `fetch`: an HTTP request to the public internet.
//!
//! Every hop is checked by itself: the URL, the wards, and the addresses that its host resolves to. The connection is
//! then made to exactly the addresses that were checked, so a name that resolves differently a moment later gains
//! nothing. A redirect is a new hop, and the HTTP client follows none by itself. Proxies from the environment are not
//! used: behind a proxy the address that is reached would be unknown.

mod address;
mod endpoint;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use cantrip_reply::{Refusal, ReplyDraft, Success, codes};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, LOCATION};
use reqwest::{Client, Method, Response, Url, redirect};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::Label;
use crate::gate::function::{parameters, parse_arguments};
use crate::gate::{AnyGate, Call, Gate, GateSpec, Purity};
use crate::limits::{
    FETCH_BYTES, FETCH_CONNECT_MS, FETCH_HEADER_BYTES, FETCH_HEADERS_MAX, FETCH_MS, FETCH_REDIRECTS_MAX,
};
use crate::medium::BoxFuture;
use crate::ward::{ResourceAccess, Restriction, host_fits};

pub use endpoint::{BlockedHost, Endpoint, EndpointFault};

/// Resolves a host name to its addresses.
pub trait Resolver: Send + Sync + 'static {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>>;
}

/// The resolver of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, 0)).await?.map(|address| address.ip()).collect()) })
    }
}

/// The settings of `fetch`.
pub struct Fetch {
    methods: Vec<Method>,
    allow_hosts: Vec<String>,
    bytes: usize,
    time_max: Duration,
    resolver: Box<dyn Resolver>,
}

impl std::fmt::Debug for Fetch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetch").field("methods", &self.methods).finish_non_exhaustive()
    }
}

impl Default for Fetch {
    /// `GET` and `HEAD`, public addresses only.
    fn default() -> Self {
        Self {
            methods: vec![Method::GET, Method::HEAD],
            allow_hosts: Vec::new(),
            bytes: FETCH_BYTES,
            time_max: Duration::from_millis(FETCH_MS),
            resolver: Box::new(SystemResolver),
        }
    }
}

impl Fetch {
    /// Sets the allowed methods. With a method that changes something, the gate is no longer read-only.
    #[must_use]
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.methods = methods.into_iter().collect();
        self
    }

    /// Allows hosts at private addresses too: `localhost:8080`, `*.internal.example`.
    #[must_use]
    pub fn allow_hosts(mut self, hosts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.allow_hosts = hosts.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the number of bytes of a response that are read.
    #[must_use]
    pub fn bytes(mut self, bytes: usize) -> Self {
        self.bytes = bytes;
        self
    }

    #[must_use]
    pub fn time_max(mut self, limit: Duration) -> Self {
        self.time_max = limit;
        self
    }

    #[must_use]
    pub fn resolver(mut self, resolver: impl Resolver) -> Self {
        self.resolver = Box::new(resolver);
        self
    }

    pub fn gate(self) -> AnyGate {
        let description = "Makes an HTTP request and returns status, headers and body.";
        let reading = self.methods.iter().all(|method| *method == Method::GET || *method == Method::HEAD);
        let promises = GateSpec::new("fetch", description, parameters::<Request>())
            .labels([Label::UntrustedContent, Label::ExternalComm])
            .purity(if reading { Purity::ReadOnly } else { Purity::Effects })
            .time_max(self.time_max);
        AnyGate::from(FetchGate { promises, fetch: self })
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Request {
    /// An http or https URL.
    url: String,
    /// GET unless given.
    method: Option<String>,
    /// Headers to send.
    #[serde(default)]
    headers: Map<String, Value>,
    /// The body to send.
    body: Option<String>,
}

struct FetchGate {
    promises: GateSpec,
    fetch: Fetch,
}

impl Gate for FetchGate {
    fn spec(&self) -> &GateSpec {
        &self.promises
    }

    fn resource_accesses(&self, arguments: &Map<String, Value>) -> Vec<ResourceAccess> {
        let text = |key: &str| arguments.get(key).and_then(Value::as_str);
        let mut reaches = vec![ResourceAccess::Method(text("method").unwrap_or("GET").to_owned())];
        if let Some(url) = text("url").and_then(|url| Url::parse(url).ok())
            && let Some(host) = url.host_str()
        {
            reaches.push(ResourceAccess::Host { host: host.to_owned(), port: url.port_or_known_default() });
        }
        reaches
    }

    async fn call(&self, call: Call) -> Result<ReplyDraft<Success>, Refusal> {
        let Request { url, method, headers, body } = parse_arguments(&self.promises.name, call.arguments)?;
        let method = method.as_deref().unwrap_or("GET").to_ascii_uppercase();
        let method = self.fetch.methods.iter().find(|known| known.as_str() == method).cloned();
        let method = method.ok_or_else(|| codes::address_refused(&url, "method_not_allowed"))?;
        let parsed = Url::parse(&url).map_err(|fault| codes::target_unusable(&url, fault.to_string()))?;
        let headers = request_headers(&headers)?;
        let hop = Hop { url: parsed, method, headers, body };
        let (hop, response) = self.fetch.follow(hop, &call.restrict).await?;
        let shown = self.fetch.render_response(&hop, response).await?;
        Ok(codes::read(&url).value(shown))
    }
}

/// One request on the way to the final response.
struct Hop {
    url: Url,
    method: Method,
    headers: HeaderMap,
    body: Option<String>,
}

impl Fetch {
    async fn follow(&self, mut hop: Hop, restrict: &Restriction) -> Result<(Hop, Response), Refusal> {
        for _ in 0..=FETCH_REDIRECTS_MAX {
            let response = self.hop(&hop, restrict).await?;
            match response.status().as_u16() {
                301 | 302 | 303 | 307 | 308 => hop = redirect_target(hop, &response)?,
                _ => return Ok((hop, response)),
            }
        }
        Err(codes::address_refused(host(&hop.url), "redirect_limit_exceeded").into())
    }

    async fn hop(&self, hop: &Hop, restrict: &Restriction) -> Result<Response, Refusal> {
        let Hop { url, method, headers, body } = hop;
        let addresses = self.checked_addresses(url, method, restrict).await?;
        // A program that embeds this crate may have installed another provider before; then that one stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .redirect(redirect::Policy::none())
            .no_proxy()
            .referer(false)
            .pool_max_idle_per_host(0)
            .connect_timeout(Duration::from_millis(FETCH_CONNECT_MS))
            .resolve_to_addrs(host(url), &addresses)
            .build()
            .map_err(|error| unreachable(url, &error))?;
        let mut headers = headers.clone();
        if let Some(trace) = cantrip_trace::header_for(host(url)) {
            let state = trace.state().map(str::to_owned);
            for (name, text) in [("traceparent", Some(trace.traceparent())), ("tracestate", state)] {
                if let Some(value) = text.and_then(|text| HeaderValue::try_from(text).ok()) {
                    headers.entry(name).or_insert(value);
                }
            }
        }
        let mut request = client.request(method.clone(), url.clone()).headers(headers);
        if let Some(body) = body {
            request = request.body(body.clone());
        }
        request.send().await.map_err(|error| unreachable(url, &error))
    }

    /// Returns the addresses that this hop may connect to, all of them checked.
    async fn checked_addresses(
        &self,
        url: &Url,
        method: &Method,
        restrict: &Restriction,
    ) -> Result<Vec<SocketAddr>, Refusal> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(codes::target_unusable(url.as_str(), "only http and https can be fetched").into());
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(codes::target_unusable(host(url), "a URL with a name and password in it is not fetched").into());
        }
        let Some(port) = url.port_or_known_default() else {
            return Err(codes::target_unusable(url.as_str(), "it has no port").into());
        };
        let host = host(url);
        let denied = |reason: &str| Refusal::from(codes::address_refused(host, reason));
        if !restrict.allows_host(host, Some(port)) {
            return Err(denied("host_not_allowed"));
        }
        if !restrict.allows_method(method.as_str()) {
            return Err(denied("method_not_allowed"));
        }
        let allowed = self.allow_hosts.iter().any(|pattern| host_fits(pattern, host, Some(port)));
        if let Some(refused) = address::blocked_host(host).filter(|_| !allowed) {
            return Err(denied(refused.reason()));
        }
        let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        let addresses = match literal {
            Ok(address) => vec![address],
            Err(_) => self.resolver.resolve(host).await.unwrap_or_default(),
        };
        if addresses.is_empty() {
            return Err(codes::target_unusable(host, "the host does not resolve").into());
        }
        // A private address among public ones is a known way around such checks, so all addresses must be public.
        if let Some(refused) =
            addresses.iter().find_map(|address| address::blocked_address(*address)).filter(|_| !allowed)
        {
            return Err(denied(refused.reason()));
        }
        Ok(addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect())
    }

    async fn render_response(&self, hop: &Hop, mut response: Response) -> Result<Value, Refusal> {
        let status = response.status().as_u16();
        let total = response.content_length();
        let mut headers = Map::new();
        for (name, value) in response.headers().iter().take(FETCH_HEADERS_MAX) {
            let mut text = String::from_utf8_lossy(value.as_bytes()).into_owned();
            text.truncate(text.floor_char_boundary(FETCH_HEADER_BYTES));
            headers.insert(name.as_str().to_owned(), Value::String(text));
        }
        let mut body = Vec::new();
        let mut cut = false;
        while let Some(piece) = response.chunk().await.map_err(|error| unreachable(&hop.url, &error))? {
            let room = self.bytes - body.len();
            body.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.len() > room {
                cut = true;
                break;
            }
        }
        let mut shown = Map::new();
        shown.insert("status".to_owned(), json!(status));
        shown.insert("url".to_owned(), json!(hop.url.as_str()));
        shown.insert("headers".to_owned(), Value::Object(headers));
        let bytes = body.len();
        shown.insert("body".to_owned(), text(body, cut).map_or(Value::Null, Value::String));
        if shown["body"].is_null() {
            shown.insert("binary_bytes".to_owned(), json!(bytes));
        }
        if cut {
            shown.insert("truncated".to_owned(), json!({"shown": bytes, "total": total}));
        }
        Ok(Value::Object(shown))
    }
}

/// Returns a body as text, if it is UTF-8. A cut may have split the last character.
fn text(mut body: Vec<u8>, cut: bool) -> Option<String> {
    if let Err(fault) = std::str::from_utf8(&body)
        && cut
        && fault.error_len().is_none()
    {
        body.truncate(fault.valid_up_to());
    }
    String::from_utf8(body).ok().filter(|text| !text.contains('\0'))
}

/// Returns the hop that a redirect leads to. Headers and body that were meant for the first host are not sent to
/// another.
fn redirect_target(hop: Hop, response: &Response) -> Result<Hop, Refusal> {
    let Hop { url, method, mut headers, mut body } = hop;
    let denied = |reason: &str| Refusal::from(codes::address_refused(host(&url), reason));
    let location = response.headers().get(LOCATION).ok_or_else(|| denied("redirect_missing_location"))?;
    let next = location.to_str().ok().and_then(|location| url.join(location).ok());
    let next = next.ok_or_else(|| denied("redirect_invalid_location"))?;
    let method = match response.status().as_u16() {
        307 | 308 => method,
        _ if method == Method::HEAD => method,
        _ => {
            body = None;
            Method::GET
        }
    };
    if next.origin() != url.origin() {
        headers.clear();
        body = None;
    }
    Ok(Hop { url: next, method, headers, body })
}

/// Returns the headers that an entity wrote. Headers that control the connection are refused.
fn request_headers(written: &Map<String, Value>) -> Result<HeaderMap, Refusal> {
    if written.len() > FETCH_HEADERS_MAX {
        return Err(codes::limit("the number of headers", written.len(), FETCH_HEADERS_MAX).into());
    }
    let mut headers = HeaderMap::new();
    for (name, value) in written {
        let unusable = |rule: &str| Refusal::from(codes::target_unusable(format!("header {name}"), rule));
        let value = value.as_str().and_then(|value| HeaderValue::from_str(value).ok());
        let value = value.ok_or_else(|| unusable("its value is no plain text"))?;
        let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| unusable("its name is none"))?;
        let steering = ["host", "connection", "content-length", "transfer-encoding", "upgrade", "te", "trailer"];
        if steering.contains(&parsed.as_str()) || parsed.as_str().starts_with("proxy-") {
            return Err(unusable("it is set by the connection itself"));
        }
        headers.insert(parsed, value);
    }
    Ok(headers)
}

fn host(url: &Url) -> &str {
    url.host_str().unwrap_or_default()
}

/// Returns the refusal for a network error: its innermost cause without the URL, which may contain a key.
fn unreachable(url: &Url, error: &reqwest::Error) -> Refusal {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let told = if error.is_timeout() { "it took too long".to_owned() } else { cause.to_string() };
    codes::unreachable(host(url), told).into()
}
