//! A gate from an HTTP endpoint: the arguments become one request, and the response becomes the result.
//!
//! The author of the spell sets method, address and headers; an entity gives only arguments. An argument fills a place
//! in the path or the query of the address and cannot leave it: the host is fixed, and the value is percent-encoded.
//! The rules of `fetch` decide which addresses may be reached, redirects included.

use std::net::IpAddr;
use std::time::Duration;

use cantrip_canon::json as canon_json;
use cantrip_reply::{Refusal, ReplyDraft, Success, codes};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url};
use serde_json::{Map, Value};

use super::super::OnError;
use super::address::{self, BlockedAddress};
use super::{Fetch, Hop, Resolver};
use crate::Label;
use crate::gate::{AnyGate, Call, Gate, GateSpec, Purity, UnknownCharge};
use crate::ward::{ResourceAccess, host_fits};

/// The header that carries the idempotency key of a call: the same whenever the call is repeated.
const KEY_HEADER: HeaderName = HeaderName::from_static("idempotency-key");

/// The settings of an endpoint gate.
#[derive(Debug)]
#[must_use = "an endpoint becomes a gate by gate()"]
pub struct Endpoint {
    promises: GateSpec,
    method: Method,
    template: Template,
    headers: HeaderMap,
    fetch: Fetch,
    on_error: OnError,
}

/// The reason why an endpoint cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointFault {
    #[error("not an HTTP method")]
    Method,
    #[error("not an http or https address")]
    Address,
    #[error("its host must be written out: only its path and query have places for arguments")]
    Host,
    #[error("a place for an argument is not closed, or has no name")]
    Place,
    #[error("the header {0} cannot be sent")]
    Header(String),
}

/// The host of an endpoint whose requests are all refused, whatever the host answers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockedHost {
    #[error("{0} is a private address, which is refused; allow it with allow_hosts = [\"{0}\"]")]
    Private(String),
    #[error("{0} is a metadata service, which returns the credentials of this machine, and is refused")]
    Metadata(String),
}

impl Endpoint {
    /// Makes a gate of this name. The address may contain places such as `{city}`. The gate carries all three labels
    /// until others are set.
    pub fn new(
        name: impl Into<String>,
        description: impl Into<String>,
        method: &str,
        url: &str,
    ) -> Result<Self, EndpointFault> {
        let method: Method = method.to_ascii_uppercase().parse().map_err(|_| EndpointFault::Method)?;
        let template = Template::read(url)?;
        let reading = method == Method::GET || method == Method::HEAD;
        let parameters = serde_json::json!({"type": "object"});
        let promises = GateSpec::new(name, description, parameters).labels(Label::ALL).purity(if reading {
            Purity::ReadOnly
        } else {
            Purity::Effects
        });
        let fetch = Fetch::default().methods([method.clone()]);
        Ok(Self { promises, method, template, headers: HeaderMap::new(), fetch, on_error: OnError::Report })
    }

    /// Adds a header to every request. Its value is never shown.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, EndpointFault> {
        let fault = || EndpointFault::Header(name.to_owned());
        cantrip_canon::remember_header(name, value);
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| fault())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| fault())?;
        value.set_sensitive(true);
        self.headers.insert(key, value);
        Ok(self)
    }

    /// Sets the JSON Schema of the arguments.
    pub fn parameters(mut self, parameters: Value) -> Self {
        self.promises.parameters = parameters;
        self
    }

    /// Allows hosts at private addresses too.
    pub fn allow_hosts(mut self, hosts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.fetch = self.fetch.allow_hosts(hosts);
        self
    }

    /// Sets the number of bytes of a response that are read.
    pub fn bytes(mut self, bytes: usize) -> Self {
        self.fetch = self.fetch.bytes(bytes);
        self
    }

    pub fn time_max(mut self, limit: Duration) -> Self {
        self.fetch = self.fetch.time_max(limit);
        self
    }

    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }

    pub fn resolver(mut self, resolver: impl Resolver) -> Self {
        self.fetch = self.fetch.resolver(resolver);
        self
    }

    /// Returns the host if every request would be refused because of its name or its address. A name that has to be
    /// resolved is checked at each request.
    pub fn blocked_host(&self) -> Option<BlockedHost> {
        let Template { host, port, .. } = &self.template;
        if self.fetch.allow_hosts.iter().any(|pattern| host_fits(pattern, host, *port)) {
            return None;
        }
        let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok();
        let blocked = address::blocked_host(host).or_else(|| literal.and_then(address::blocked_address))?;
        let host = port.map_or_else(|| host.clone(), |port| format!("{host}:{port}"));
        Some(match blocked {
            BlockedAddress::Private => BlockedHost::Private(host),
            BlockedAddress::Metadata => BlockedHost::Metadata(host),
        })
    }

    pub fn gate(mut self) -> AnyGate {
        self.promises.time_max = Some(self.fetch.time_max);
        AnyGate::from(EndpointGate { endpoint: self })
    }

    /// Builds the request for these arguments.
    fn build_request(&self, arguments: &Map<String, Value>) -> Result<Hop, Refusal> {
        let (mut url, unused) = self.template.expand(arguments)?;
        let mut headers = self.headers.clone();
        let carries = !matches!(self.method, Method::GET | Method::HEAD | Method::DELETE);
        let body = if carries {
            headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
            Some(Value::Object(unused).to_string())
        } else {
            if !unused.is_empty() {
                let mut query = url.query_pairs_mut();
                for (name, value) in &unused {
                    query.append_pair(name, &plain(value));
                }
            }
            None
        };
        Ok(Hop { url, method: self.method.clone(), headers, body })
    }
}

struct EndpointGate {
    endpoint: Endpoint,
}

impl Gate for EndpointGate {
    fn spec(&self) -> &GateSpec {
        &self.endpoint.promises
    }

    fn resource_accesses(&self, _: &Map<String, Value>) -> Vec<ResourceAccess> {
        let Endpoint { method, template, .. } = &self.endpoint;
        vec![
            ResourceAccess::Method(method.to_string()),
            ResourceAccess::Host { host: template.host.clone(), port: template.port },
        ]
    }

    async fn call(&self, call: Call) -> Result<ReplyDraft<Success>, Refusal> {
        let Endpoint { promises, fetch, on_error, .. } = &self.endpoint;
        let mut hop = self.endpoint.build_request(&call.arguments)?;
        let key = call.idempotency_key.as_deref().and_then(|key| HeaderValue::from_str(key).ok());
        if let Some(key) = key.filter(|_| !matches!(hop.method, Method::GET | Method::HEAD)) {
            hop.headers.entry(KEY_HEADER).or_insert(key);
        }
        let (hop, response) = fetch.follow(hop, &call.restrict).await?;
        let status = response.status().as_u16();
        let mut shown = fetch.render_response(&hop, response).await?;
        let body = shown["body"].take();
        if let 408 | 409 | 425 = status {
            // The server may still process the request.
            call.effects.record_unknown_charge(UnknownCharge::Cut);
        }
        match status {
            200..=299 => {}
            401 | 403 => return Err(codes::auth_failed(&promises.name).into()),
            400..=499 if *on_error == OnError::Report => {
                return Err(codes::gate_reported(&promises.name, detail(status, &body)).into());
            }
            _ => return Err(codes::gate_failed(&promises.name, detail(status, &body)).into()),
        }
        let value = match body.as_str() {
            Some(text) if shown.get("truncated").is_none() => {
                canon_json::read_foreign(text).unwrap_or_else(|_| body.clone())
            }
            Some(_) => serde_json::json!({"body": body, "truncated": shown["truncated"]}),
            None => serde_json::json!({"binary_bytes": shown["binary_bytes"]}),
        };
        Ok(codes::gate_ok(&promises.name).value(value))
    }
}

fn detail(status: u16, body: &Value) -> String {
    match body.as_str().map(str::trim).filter(|said| !said.is_empty()) {
        Some(said) => format!("HTTP {status}: {said}"),
        None => format!("HTTP {status}"),
    }
}

/// Formats a value for an address: a text without its quotes.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// An address with places for arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Template {
    host: String,
    port: Option<u16>,
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Place(String),
}

impl Template {
    fn read(written: &str) -> Result<Self, EndpointFault> {
        let mut pieces = Vec::new();
        let mut rest = written;
        while let Some(open) = rest.find('{') {
            let close = rest[open..].find('}').ok_or(EndpointFault::Place)? + open;
            let name = &rest[open + 1..close];
            if name.is_empty() || name.contains('{') {
                return Err(EndpointFault::Place);
            }
            pieces.extend((open > 0).then(|| Piece::Text(rest[..open].to_owned())));
            pieces.push(Piece::Place(name.to_owned()));
            rest = &rest[close + 1..];
        }
        pieces.extend((!rest.is_empty()).then(|| Piece::Text(rest.to_owned())));
        // The text before the first place must contain the complete host.
        let Some(Piece::Text(first)) = pieces.first() else { return Err(EndpointFault::Host) };
        let url = Url::parse(first).map_err(|_| EndpointFault::Address)?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(EndpointFault::Address);
        }
        let behind = first.split_once("://").map_or("", |(_, behind)| behind);
        if pieces.len() > 1 && !behind.contains(['/', '?']) {
            return Err(EndpointFault::Host);
        }
        let host = url.host_str().ok_or(EndpointFault::Address)?.to_owned();
        Ok(Self { host, port: url.port_or_known_default(), pieces })
    }

    /// Returns the address, and the arguments that have no place in it.
    fn expand(&self, arguments: &Map<String, Value>) -> Result<(Url, Map<String, Value>), Refusal> {
        let mut unused = arguments.clone();
        let mut text = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(piece) => text.push_str(piece),
                Piece::Place(name) => {
                    let unusable = |rule: &str| Refusal::from(codes::target_unusable(format!("argument {name}"), rule));
                    unused.shift_remove(name);
                    let value = arguments.get(name).filter(|value| !value.is_null());
                    let value =
                        plain(value.ok_or_else(|| unusable("the address has a place for it, and it is missing"))?);
                    // A path segment of only dots would lead to another path, encoded or not.
                    if value.is_empty() || value.chars().all(|letter| letter == '.') {
                        return Err(unusable("it cannot stand in an address"));
                    }
                    encode(&value, &mut text);
                }
            }
        }
        let url = Url::parse(&text).map_err(|fault| codes::target_unusable("the address", fault.to_string()))?;
        Ok((url, unused))
    }
}

/// Percent-encodes everything except letters, digits and `-._~`.
fn encode(value: &str, into: &mut String) {
    use std::fmt::Write;
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            into.push(char::from(byte));
        } else {
            let _ = write!(into, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{EndpointFault, Template};

    #[test]
    fn an_argument_cannot_leave_its_place() {
        let template = Template::read("https://example.com/v1/{city}/now?units={units}").expect("a template");
        let filled = |city: &str| {
            let arguments = json!({"city": city, "units": "m&x=1"});
            let arguments = arguments.as_object().expect("an object").clone();
            template.expand(&arguments).map(|(url, _)| url.to_string())
        };
        let wanted = "https://example.com/v1/a%2F..%2Fb%3Fc%23d%40e/now?units=m%26x%3D1";
        assert_eq!(filled("a/../b?c#d@e").ok().as_deref(), Some(wanted));
        assert!(filled("..").is_err() && filled("").is_err() && filled(".").is_err());
    }

    #[test]
    fn the_host_is_written_out() {
        for (written, fault) in [
            ("https://{host}/a", EndpointFault::Address),
            ("https://example.com{rest}", EndpointFault::Host),
            ("https://example.com:80{rest}", EndpointFault::Host),
            ("{url}", EndpointFault::Host),
            ("ftp://example.com/{a}", EndpointFault::Address),
            ("https://example.com/{a", EndpointFault::Place),
            ("https://example.com/{}", EndpointFault::Place),
        ] {
            assert_eq!(Template::read(written), Err(fault), "{written}");
        }
        assert!(Template::read("https://example.com?q={q}").is_ok());
    }
}
