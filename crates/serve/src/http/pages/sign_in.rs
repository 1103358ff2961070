//! Signing in and out.
//!
//! A token is sent once, in the body of a form, and is never part of an address. A failed sign-in takes a fixed time,
//! and an address has only a few within a minute.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::Response;
use axum::http::header::SET_COOKIE;
use axum::response::IntoResponse;
use cantrip_pages::{Settings, sign_in_page};
use cantrip_service::cantrip::reply::{Refusal, codes};
use serde::Deserialize;
use tokio::time::{Instant, sleep};
use url::Url;

use super::forms::{Form, PageNotice, SignInForm};
use super::session::Entry;
use super::visitor::{Frame, Visitor};
use super::{entry, html, see_other};
use crate::http::HttpServer;
use crate::http::answer::Answer;
use crate::http::extractors::QueryParams;
use crate::http::listen::Peer;
use crate::limits::{PAGE_QUERY_BYTES_MAX, SIGN_IN_FAILED_MS};

pub(super) const ADDRESS: &str = "/sign-in";
/// The beginning of the link that `serve --open` opens.
pub(super) const LINK: &str = "/open/";

#[derive(Debug, Default, Deserialize)]
pub(super) struct Wanted {
    /// The page that the person wanted to see.
    next: Option<String>,
}

/// Shows the form, or goes on if there is nothing to sign in to.
pub(super) async fn form(
    State(http): State<HttpServer>,
    visitor: Option<Extension<Visitor>>,
    QueryParams(Wanted { next }): QueryParams<Wanted>,
) -> Response<Body> {
    let next = own_address(next.as_deref().unwrap_or("/"));
    match visitor {
        Some(_) => see_other(&next),
        None => shown(&http, &next, None),
    }
}

fn shown(http: &HttpServer, next: &str, refused: Option<&PageNotice>) -> Response<Body> {
    let frame = Frame::signed_out(http, Settings::default());
    let mut chrome = frame.chrome("Sign in");
    chrome.notice = refused.map(|refused| &refused.notice);
    html(refused.map_or(200, |refused| refused.status), sign_in_page(&chrome, next))
}

/// Takes a token and gives a session.
pub(super) async fn sign_in(
    State(http): State<HttpServer>,
    peer: Option<Extension<Peer>>,
    form: SignInForm,
) -> Response<Body> {
    let next = own_address(&form.field("next"));
    let address = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |Extension(Peer(address))| address);
    match open_session(&http, address, form.field("access").trim()).await {
        Ok(value) => {
            let mut response = see_other(&format!("{next}{}", own_place(&form.field("place"))));
            response.headers_mut().append(SET_COOKIE, entry::session_cookie(&http, &value));
            response
        }
        Err(refusal) => shown(&http, &next, Some(&PageNotice::of(http.refusal_reply(refusal).await))),
    }
}

/// Returns the value of the cookie of a new session.
async fn open_session(http: &HttpServer, address: IpAddr, token: &str) -> Result<String, Refusal> {
    http.sessions().count_sign_in(address, Instant::now())?;
    let entry = match http.tokens() {
        None => Some(Entry::Loopback),
        Some(tokens) => tokens.verify(token).map(|(hash, _)| Entry::Token(hash)),
    };
    let Some(entry) = entry else {
        sleep(Duration::from_millis(SIGN_IN_FAILED_MS)).await;
        return Err(codes::unauthenticated().into());
    };
    let opened = http.sessions().open(entry, Instant::now());
    opened.map(|(value, _)| value).ok_or_else(|| codes::crash().into())
}

pub(super) async fn sign_out(form: Form) -> Response<Body> {
    let http = &form.visitor.http;
    http.sessions().close(form.visitor.session());
    let mut response = see_other(ADDRESS);
    response.headers_mut().append(SET_COOKIE, entry::no_session_cookie(http));
    response
}

/// Opens a session of the local owner by a link that works once.
pub(super) async fn open(State(http): State<HttpServer>, Path(key): Path<String>) -> Response<Body> {
    let now = Instant::now();
    let opened = http.sessions().use_link(&key, now).then(|| http.sessions().open(Entry::Link, now)).flatten();
    match opened {
        Some((value, _)) => {
            let mut response = see_other("/runs");
            response.headers_mut().append(SET_COOKIE, entry::session_cookie(&http, &value));
            response
        }
        // The key is not repeated: it may be a good one that came too late.
        None => {
            let refusal = codes::not_found("link", "that was opened before or is too old");
            Answer::of(http.refusal_reply(refusal.into()).await).into_response()
        }
    }
}

/// Returns the link that opens a session on the server with this address.
pub(in crate::http) fn open_link(http: &HttpServer, bound: SocketAddr) -> Option<String> {
    let key = http.sessions().create_link(Instant::now())?;
    let local = if bound.ip().is_unspecified() { format!("localhost:{}", bound.port()) } else { bound.to_string() };
    let origin = match http.options().public_url.as_ref().filter(|_| http.tokens().is_some()) {
        Some(public) => public.to_string(),
        None => format!("http://{local}"),
    };
    Some(format!("{origin}{LINK}{key}"))
}

/// Returns an address of this server, or its front if the text is something else: nobody is sent elsewhere.
pub(super) fn own_address(text: &str) -> String {
    const BASE: &str = "http://localhost";
    let fits = text.starts_with('/') && text.len() <= PAGE_QUERY_BYTES_MAX && !text.contains(['\\', '\r', '\n', '\t']);
    let base = Url::parse(BASE).ok().filter(|_| fits);
    let joined = base.and_then(|base| Some((base.join(text).ok()?, base)));
    match joined {
        Some((url, base)) if url.origin() == base.origin() && !url.path().starts_with("//") => {
            let query = url.query().map_or_else(String::new, |query| format!("?{query}"));
            format!("{}{query}", url.path())
        }
        Some(_) | None => "/".to_owned(),
    }
}

/// Returns the place inside a page, as `#turn_...`, that the person wanted to see; empty for any other text.
fn own_place(text: &str) -> &str {
    let is_place = text.strip_prefix('#').is_some_and(|place| {
        place.starts_with("turn_")
            && place.len() <= 64
            && place.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b':'))
    });
    if is_place { text } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_sent_to_another_server() {
        for own in ["/", "/runs", "/turns/turn_06?x=1", "/runs?q=a%20b"] {
            assert_eq!(own_address(own), own);
        }
        let elsewhere = [
            "",
            "runs",
            "//evil.example",
            "///evil.example",
            "/\\evil.example",
            "/\t/evil.example",
            "https://evil.example",
            "javascript:alert(1)",
            "/\r\nset-cookie: a=b",
            "/..//evil.example",
            "/.//evil.example",
        ];
        for text in elsewhere {
            assert_eq!(own_address(text), "/", "{text:?}");
        }
    }

    #[test]
    fn only_a_turn_is_a_place() {
        assert_eq!(own_place("#turn_06cyf9.3"), "#turn_06cyf9.3");
        for text in ["", "turn_06", "#", "#evil", "#turn_0\"><script>", "#turn_06 x"] {
            assert_eq!(own_place(text), "", "{text:?}");
        }
    }
}
