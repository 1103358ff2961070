//! Which requests are admitted, and in what order are they checked?
//!
//! The first check is whether the request was meant for this server at all: it names its host once, and a page in a
//! browser that sends requests to loopback under another host name must not be mistaken for the local user. The second
//! check is authentication: programs send a bearer token, and people who look at pages a cookie, and neither opens what
//! the other is for. Only then is anything read.

use std::panic::AssertUnwindSafe;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_LENGTH, HOST, ORIGIN, SET_COOKIE, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, Version};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::IntoResponse;
use cantrip_service::cantrip::reply::{Refusal, codes};
use cantrip_trace::TraceContext;
use futures_util::FutureExt;

use super::answer::{Answer, AnswerCode};
use super::tokens::Bearer;
use super::{HttpServer, chat, mcp_route, pages};

/// The only route that reveals nothing about any owner.
pub(super) const HEALTH: &str = "/healthz";

/// Adds the admission checks to these routes.
pub(super) fn with_admission(router: Router<HttpServer>, http: HttpServer) -> Router<HttpServer> {
    router.fallback(no_route).method_not_allowed_fallback(no_method).layer(from_fn_with_state(http, admit))
}

async fn no_route(State(http): State<HttpServer>, request: Request) -> Answer {
    let route = format!("{} {}", request.method(), request.uri().path());
    http.refusal_reply(codes::not_found("route", route).into()).await.into()
}

async fn no_method(State(http): State<HttpServer>, request: Request) -> Answer {
    let method = format!("{} {}", request.method(), request.uri().path());
    let refused = http.refusal_reply(codes::not_found("method", method).into()).await;
    Answer::of(refused).with_status(StatusCode::METHOD_NOT_ALLOWED)
}

async fn admit(State(http): State<HttpServer>, request: Request, next: Next) -> Response<Body> {
    let context = parent_trace(request.headers());
    cantrip_trace::scope(context, Box::pin(handle_request(http, request, next))).await
}

/// Returns the span of another system that sent the request, if its headers name one.
fn parent_trace(headers: &HeaderMap) -> Option<TraceContext> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    TraceContext::parse(text("traceparent")?, text("tracestate"))
}

async fn handle_request(http: HttpServer, mut request: Request, next: Next) -> Response<Body> {
    let began = Instant::now();
    let (method, route) = (request.method().clone(), request.extensions().get::<MatchedPath>().cloned());
    let mut response = if is_page(&request, route.as_ref()) {
        handle_page(&http, request, next).await
    } else {
        let chats = chat::is_chat_path(request.uri().path());
        let response = match check(&http, &request, authenticate) {
            Ok(bearer) => {
                request.extensions_mut().insert(bearer);
                run_handler(&http, request, next).await
            }
            Err(refused) => refused.answer(&http).await.into_response(),
        };
        for_programs(response, chats)
    };
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    http.host().metrics().count_request(method.as_str(), route, response.status().as_u16(), began.elapsed());
    if let Some(coded) = response.extensions().get::<AnswerCode>() {
        http.host().metrics().count_reply(coded.code);
    }
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Returns true if a person asks for a page: by one of their addresses, or by an unknown one in a browser.
fn is_page(request: &Request, route: Option<&MatchedPath>) -> bool {
    let path = request.uri().path();
    let for_programs = ["/v1", mcp_route::PATH, "/metrics", HEALTH, "/openapi.json"];
    let is_below =
        |start: &&str| path.strip_prefix(*start).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    !for_programs.iter().any(is_below) && (route.is_some() || accepts_html(request.headers()))
}

fn accepts_html(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).into_iter().filter_map(|accept| accept.to_str().ok());
    accepted.flat_map(|accept| accept.split(',')).any(|kind| kind.trim().starts_with("text/html"))
}

/// Answers a request of a browser: with a page also where it is refused.
async fn handle_page(http: &HttpServer, mut request: Request, next: Next) -> Response<Body> {
    let entered = match check(http, &request, |_, _| Ok(())) {
        Ok(()) => Ok(pages::admit(http, &mut request)),
        Err(refused) => Err(refused),
    };
    let reader = pages::Reader::of(http, &request);
    let (mut response, cookie) = match entered {
        Ok(Ok(cookie)) => (run_handler(http, request, next).await, cookie),
        Ok(Err(pages::Barred::Refused(refusal))) => {
            (Refused { refusal, status: None }.answer(http).await.into_response(), None)
        }
        Ok(Err(pages::Barred::SignIn(address))) => (pages::see_other(&address), None),
        Ok(Err(pages::Barred::Closed)) => (pages::closed(http), None),
        Err(refused) => (refused.answer(http).await.into_response(), None),
    };
    if let Some(notice) = response.extensions().get::<AnswerCode>().and_then(|coded| coded.notice.clone()) {
        reader.show_fault(&mut response, &notice).await;
    }
    if let Some(cookie) = cookie {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    pages::add_headers(response.headers_mut());
    response
}

/// A request that is not admitted.
struct Refused {
    refusal: Refusal,
    status: Option<StatusCode>,
}

impl Refused {
    async fn answer(self, http: &HttpServer) -> Answer {
        let answer = Answer::of(http.refusal_reply(self.refusal).await);
        match self.status {
            Some(status) => answer.with_status(status),
            None => answer,
        }
    }
}

/// Checks that the request names its host, and then who sends it.
fn check<T>(
    http: &HttpServer,
    request: &Request,
    sender: impl FnOnce(&HttpServer, &Request) -> Result<T, Refusal>,
) -> Result<T, Refused> {
    match host_fault(request) {
        Some(rule) => {
            let refusal = codes::schema("the request", "/host", rule).into();
            Err(Refused { refusal, status: Some(StatusCode::BAD_REQUEST) })
        }
        None => sender(http, request).map_err(|refusal| Refused { refusal, status: None }),
    }
}

/// Returns the response in the form that programs expect.
fn for_programs(mut response: Response<Body>, chats: bool) -> Response<Body> {
    if let Some(coded) = response.extensions().get::<AnswerCode>().cloned().filter(|_| chats) {
        *response.body_mut() = Body::from(chat::error(&coded).to_string());
        response.headers_mut().remove(CONTENT_LENGTH);
    }
    if response.status() == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// Handles the request within the limit of concurrent requests, and survives a handler that panics.
async fn run_handler(http: &HttpServer, request: Request, next: Next) -> Response<Body> {
    if http.is_stopping() {
        return Answer::of(http.refusal_reply(codes::overloaded("the server is stopping").into()).await)
            .into_response();
    }
    let Ok(_permit) = http.0.under_way.try_acquire() else {
        let refusal = codes::overloaded("too many requests at once; try again later");
        return Answer::of(http.refusal_reply(refusal.into()).await).into_response();
    };
    match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(_) => Answer::of(http.refusal_reply(codes::crash().into()).await).into_response(),
    }
}

/// Returns what is wrong with the header `Host`: since HTTP/1.1 a request has exactly one.
fn host_fault(request: &Request) -> Option<&'static str> {
    match request.headers().get_all(HOST).iter().count() {
        1 => None,
        0 if request.version() < Version::HTTP_11 => None,
        0 => Some("the header `Host` is missing"),
        _ => Some("the header `Host` was sent more than once"),
    }
}

/// Returns the owner of the request.
fn authenticate(http: &HttpServer, request: &Request) -> Result<Bearer, Refusal> {
    match http.tokens() {
        Some(_) if request.uri().path() == HEALTH => Ok(Bearer::local()),
        Some(tokens) => {
            let token = bearer(request.headers());
            let bearer = token.and_then(|token| tokens.bearer(token));
            bearer.cloned().ok_or_else(|| codes::unauthenticated().into())
        }
        None => match foreign_origin(request) {
            Some(asked) => {
                let rule = "without tokens it answers only loopback names, such as localhost, and their pages";
                Err(codes::request_refused(asked, rule).into())
            }
            None => Ok(Bearer::local()),
        },
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let told = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = told.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Describes the request by its host, if that is not loopback, or by the page that sent it, if that is not of this port
/// of loopback.
fn foreign_origin(request: &Request) -> Option<String> {
    let headers = request.headers();
    let host = match request.uri().authority() {
        Some(authority) => Some(authority.as_str()),
        None => headers.get(HOST).map(|host| host.to_str().unwrap_or("?")),
    };
    if let Some(host) = host.filter(|host| !is_loopback(host)) {
        return Some(format!("requests to the host {host}"));
    }
    let origin = headers.get(ORIGIN)?.to_str().unwrap_or("?");
    let page = origin.split_once("://").map_or(origin, |(_, page)| page);
    // A page of another port of this machine is another page, although its cookies are the same.
    let is_own = is_loopback(page) && host.is_none_or(|host| port(host) == port(page));
    (!is_own).then(|| format!("requests of pages from {origin}"))
}

/// Returns the port behind a host, if there is one.
fn port(host: &str) -> Option<&str> {
    let behind = host.rsplit_once(']').map_or(host, |(_, behind)| behind);
    behind.rsplit_once(':').map(|(_, port)| port)
}

/// Returns true if a host, with its port, is a loopback name or address: not a name that another server could answer
/// for.
pub(super) fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_loopback_are_loopback() {
        for host in ["localhost", "localhost:8080", "127.0.0.1:1", "127.0.0.2", "[::1]:80", "LOCALHOST:9"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in
            ["", "example.org", "127.0.0.1.example.org:80", "localhost.example.org", "[::2]", "10.0.0.1:80", "null"]
        {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
