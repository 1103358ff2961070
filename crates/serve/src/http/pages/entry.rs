//! Which requests for pages are let in, and as whom?
//!
//! The cookie decides, never a bearer. Without tokens the server answers only loopback, and the first page gives a
//! session of the local owner. A request that a page of another origin sends is not answered, whatever its cookie.

use axum::extract::Request;
use axum::http::header::{ACCEPT, COOKIE, HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderValue, Method};
use cantrip_pages::Settings;
use cantrip_service::cantrip::reply::{Refusal, codes};
use tokio::time::Instant;
use url::form_urlencoded;

use super::session::Entry;
use super::visitor::{OwnOrigin, Visitor};
use super::{assets, forms, sign_in, wanted_part};
use crate::http::admit::is_loopback;
use crate::http::{Bearer, HttpServer};
use crate::limits::PAGE_QUERY_BYTES_MAX;

/// The cookie of a reader's settings. It opens nothing.
pub(super) const SETTINGS: &str = "cantrip_settings";

/// The rule of a server that was reached by a name that is not its own.
const OTHER_NAME: &str = "its pages are at loopback names, or at the address of --public-url https://HOST";

/// Why a request does not reach its page.
#[derive(Debug)]
pub(in crate::http) enum Barred {
    Refused(Refusal),
    /// The browser goes to the sign-in first.
    SignIn(String),
    /// The server shows no pages, because it was not told by which address browsers reach it.
    Closed,
}

impl From<Refusal> for Barred {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Admits a request for a page. Returns the cookie that the response sets, if it opened a session.
pub(in crate::http) fn admit(http: &HttpServer, request: &mut Request) -> Result<Option<HeaderValue>, Barred> {
    let path = request.uri().path();
    if path.starts_with(assets::ADDRESS) {
        return Ok(None);
    }
    let origin = own_origin(http, request)?;
    if let Some(sender) = request.headers().get(ORIGIN)
        && !sender.to_str().is_ok_and(|sender| origin.is(sender))
    {
        return Err(forms::refused(path, "the request does not come from a page of this server").into());
    }
    let query = request.uri().query().unwrap_or_default().len();
    let is_open = path == sign_in::ADDRESS || path.starts_with(sign_in::LINK);
    let settings = settings(request.headers());
    let (visitor, given) = match find_session(http, request, settings) {
        Some(found) => found,
        None if is_open => {
            request.extensions_mut().insert(origin);
            return Ok(None);
        }
        None => return Err(without_session(http, request)),
    };
    let extensions = request.extensions_mut();
    extensions.insert(visitor.bearer.clone());
    extensions.insert(visitor);
    extensions.insert(origin);
    // Only now, so that the page that says so has its frame.
    if query > PAGE_QUERY_BYTES_MAX {
        return Err(Refusal::from(codes::limit("the query", query, PAGE_QUERY_BYTES_MAX)).into());
    }
    Ok(given)
}

/// Returns the visitor of a request, and the cookie of the session if it was opened just now.
fn find_session(http: &HttpServer, request: &Request, settings: Settings) -> Option<(Visitor, Option<HeaderValue>)> {
    let (tokens, now) = (http.tokens(), Instant::now());
    let sent = cookie(request.headers(), &cookie_name(http));
    let known = sent.and_then(|cookie| http.sessions().find(cookie, tokens.as_deref(), now));
    if let Some((session, bearer)) = known {
        return Some((Visitor::new(http, bearer, session, settings), None));
    }
    if tokens.is_some() || !may_open_session(request) {
        return None;
    }
    let (value, session) = http.sessions().open(Entry::Loopback, now)?;
    let visitor = Visitor::new(http, Bearer::local(), session, settings);
    Some((visitor, Some(session_cookie(http, &value))))
}

/// Returns true if this request gives its browser a session: a page does, and so does what our own page asks for after
/// the server was started again. An image in a page of somebody else does not.
fn may_open_session(request: &Request) -> bool {
    let told = |name: &str| request.headers().get(name).map(HeaderValue::as_bytes);
    let from_here = matches!(told("sec-fetch-site"), None | Some(b"same-origin" | b"none"));
    request.method() != Method::POST && (from_here || told("sec-fetch-dest") == Some(b"document".as_slice()))
}

/// Returns where a request without a session goes: a page to the sign-in, and anything else to nowhere.
fn without_session(http: &HttpServer, request: &Request) -> Barred {
    let headers = request.headers();
    if http.tokens().is_none() {
        return Barred::Refused(forms::refused(request.uri().path(), "its session has ended; load the page again"));
    }
    let feed = headers.get(ACCEPT).is_some_and(|accept| accept.as_bytes().starts_with(b"text/event-stream"));
    let is_page = matches!(*request.method(), Method::GET | Method::HEAD) && !feed && wanted_part(headers).is_none();
    if !is_page {
        return Barred::Refused(codes::unauthenticated().into());
    }
    let wanted = request.uri().path_and_query().map_or("/", |wanted| wanted.as_str());
    let next: String = form_urlencoded::byte_serialize(wanted.as_bytes()).collect();
    let query = format!("next={next}");
    // A query that is too long would only lead to a refusal.
    let query = if query.len() > PAGE_QUERY_BYTES_MAX { String::new() } else { format!("?{query}") };
    Barred::SignIn(format!("{}{query}", sign_in::ADDRESS))
}

/// Returns the origin of this server's own pages, or why there are none for this request.
fn own_origin(http: &HttpServer, request: &Request) -> Result<OwnOrigin, Barred> {
    let public = http.options().public_url.as_ref().filter(|_| http.tokens().is_some());
    if let Some(public) = public {
        return Ok(OwnOrigin(public.as_str().to_owned()));
    }
    if http.is_beyond_loopback() {
        return Err(Barred::Closed);
    }
    let host = match request.uri().authority() {
        Some(authority) => Some(authority.as_str()),
        None => request.headers().get(HOST).and_then(|host| host.to_str().ok()),
    };
    match host {
        Some(host) if is_loopback(host) => Ok(OwnOrigin(format!("http://{host}"))),
        Some(_) | None => {
            let asked = format!("requests for pages of the host {}", host.unwrap_or("?"));
            Err(Refusal::from(codes::request_refused(asked, OTHER_NAME)).into())
        }
    }
}

/// Returns the settings of the reader.
pub(super) fn settings(headers: &HeaderMap) -> Settings {
    Settings::from_cookie(cookie(headers, SETTINGS).unwrap_or_default())
}

/// Returns the name of the session's cookie. Cookies of one host are shared by its ports.
fn cookie_name(http: &HttpServer) -> String {
    if is_public(http) { "__Host-cantrip".to_owned() } else { format!("cantrip_{}", http.port()) }
}

/// Returns true if pages are reached by encrypted connections only.
pub(super) fn is_public(http: &HttpServer) -> bool {
    http.options().public_url.is_some() && http.tokens().is_some()
}

/// Returns the header that gives a browser its session.
pub(super) fn session_cookie(http: &HttpServer, value: &str) -> HeaderValue {
    let secure = if is_public(http) { "; Secure" } else { "" };
    let written = format!("{}={value}; HttpOnly; SameSite=Lax; Path=/{secure}", cookie_name(http));
    HeaderValue::try_from(written).expect("a name, hexadecimal digits and fixed words")
}

/// Returns the header that takes the session's cookie away.
pub(super) fn no_session_cookie(http: &HttpServer) -> HeaderValue {
    let secure = if is_public(http) { "; Secure" } else { "" };
    let written = format!("{}=; HttpOnly; SameSite=Lax; Path=/; Max-Age=0{secure}", cookie_name(http));
    HeaderValue::try_from(written).expect("a name and fixed words")
}

/// Returns the value of a cookie. A name that was sent twice counts as missing: another port of this host may have set
/// the second one.
fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lines = headers.get_all(COOKIE).into_iter().filter_map(|line| line.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let mut values = pairs.filter(|(sent, _)| *sent == name).map(|(_, value)| value);
    let first = values.next();
    first.filter(|_| values.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_found_by_its_whole_name_and_only_if_it_is_there_once() {
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, HeaderValue::from_static("a=1; cantrip_80=x; cantrip_8=y"));
        headers.append(COOKIE, HeaderValue::from_static("b=2;c=3=4; a=5"));
        assert_eq!(cookie(&headers, "cantrip_8"), Some("y"));
        assert_eq!(cookie(&headers, "c"), Some("3=4"));
        assert_eq!(cookie(&headers, "a"), None, "sent twice");
        assert_eq!(cookie(&headers, "cantrip_"), None);
    }
}
