//! Which requests are admitted, and in what order are they checked?
//!
//! The first check is whether the request was meant for this server at all: it names its host once, and a page in a
//! browser that sends requests to loopback under another host name must not be mistaken for the local user. The second
//! check is authentication. Only then is anything read.

use std::panic::AssertUnwindSafe;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH, HOST, ORIGIN, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, Version};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::IntoResponse;
use cantrip_service::cantrip::reply::{Refusal, codes};
use cantrip_trace::TraceContext;
use futures_util::FutureExt;

use super::HttpServer;
use super::answer::{Answer, AnswerCode};
use super::chat;
use super::tokens::Bearer;

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
    let chats = chat::is_chat_path(request.uri().path());
    let admitted = match host_fault(&request) {
        Some(rule) => {
            let refusal = Refusal::from(codes::schema("the request", "/host", rule));
            Err((refusal, Some(StatusCode::BAD_REQUEST)))
        }
        None => authenticate(&http, &request).map_err(|refusal| (refusal, None)),
    };
    let mut response = match admitted {
        Ok(bearer) => {
            request.extensions_mut().insert(bearer);
            run_handler(&http, request, next).await
        }
        Err((refusal, None)) => Answer::of(http.refusal_reply(refusal).await).into_response(),
        Err((refusal, Some(status))) => {
            Answer::of(http.refusal_reply(refusal).await).with_status(status).into_response()
        }
    };
    let coded = response.extensions().get::<AnswerCode>().cloned();
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    http.host().metrics().count_request(method.as_str(), route, response.status().as_u16(), began.elapsed());
    if let Some(coded) = coded {
        http.host().metrics().count_reply(coded.code);
        if chats {
            *response.body_mut() = Body::from(chat::error(&coded).to_string());
            response.headers_mut().remove(CONTENT_LENGTH);
        }
    }
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
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
    match &http.options().tokens {
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

/// Describes the request by its host, or by the page that sent it, if that is not loopback.
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
    (!is_loopback(page)).then(|| format!("requests of pages from {origin}"))
}

/// Returns true if a host, with its port, is a loopback name or address: not a name that another server could answer
/// for.
fn is_loopback(host: &str) -> bool {
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
