//! The parts of a request: its body, its query, the ids in its path, and its sender.

use std::str::FromStr;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Query};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{Request, StatusCode};
use cantrip_service::Service;
use cantrip_service::cantrip::canon::{self, EntityId, LoomId, RunId, TurnId};
use cantrip_service::cantrip::loom::{Actor, PageRequest};
use cantrip_service::cantrip::reply::{Refusal, codes};
use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::HttpServer;
use super::answer::Answer;
use super::tokens::Bearer;
use crate::limits::{BODY_BYTES_MAX, LISTED_ITEMS_DEFAULT, LISTED_ITEMS_MAX};

/// The sender of the request, and the server that got it.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) http: HttpServer,
    pub(super) owner: Actor,
    pub(super) service: Service,
}

impl FromRequestParts<HttpServer> for Caller {
    type Rejection = Answer;

    async fn from_request_parts(parts: &mut Parts, http: &HttpServer) -> Result<Self, Answer> {
        match parts.extensions.get::<Bearer>() {
            Some(bearer) => {
                let (owner, service) = (bearer.owner.clone(), http.host().service_of(bearer));
                Ok(Self { http: http.clone(), owner, service })
            }
            // Every admitted request has a bearer.
            None => Err(http.refusal_reply(codes::unauthenticated().into()).await.into()),
        }
    }
}

/// The body, as JSON of this type. A missing body is an empty object.
#[derive(Debug)]
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned + Send> FromRequest<HttpServer> for JsonBody<T> {
    type Rejection = Answer;

    async fn from_request(request: Request<Body>, http: &HttpServer) -> Result<Self, Answer> {
        let (parts, body) = request.into_parts();
        let bytes = read_body(http, &parts, body, BODY_BYTES_MAX).await?;
        if !bytes.is_empty() && !is_json(&parts) {
            let refusal = codes::schema("the request", "/content-type", "it must be application/json");
            let answer = Answer::of(http.refusal_reply(refusal.into()).await);
            return Err(answer.with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE));
        }
        match parse_json(&bytes) {
            Ok(told) => Ok(Self(told)),
            Err(refusal) => Err(http.refusal_reply(refusal).await.into()),
        }
    }
}

fn is_json(parts: &Parts) -> bool {
    let told = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = told.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}

/// Reads the complete body, of at most this number of bytes and within the limit of time.
pub(super) async fn read_body(
    http: &HttpServer,
    parts: &Parts,
    body: Body,
    bytes_max: usize,
) -> Result<Vec<u8>, Answer> {
    match tokio::time::timeout(http.options().body, collect_body(parts, body, bytes_max)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(refusal)) => Err(http.refusal_reply(refusal).await.into()),
        Err(_) => {
            let limit = http.options().body.as_millis();
            let refusal = codes::timed_out("the body of the request", limit);
            let answer = Answer::of(http.refusal_reply(refusal.into()).await);
            // The client stalled, no server behind this one did.
            Err(answer.with_status(StatusCode::REQUEST_TIMEOUT))
        }
    }
}

async fn collect_body(parts: &Parts, body: Body, bytes_max: usize) -> Result<Vec<u8>, Refusal> {
    let too_long = |actual: u64| Refusal::from(codes::limit("the body of the request", actual, bytes_max));
    let announced = parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if let Some(bytes) = announced.filter(|bytes| *bytes > bytes_max as u64) {
        return Err(too_long(bytes));
    }
    let mut bytes = Vec::new();
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| codes::unparsable("the body", "its end", error.to_string()))?;
        if bytes.len() + piece.len() > bytes_max {
            return Err(too_long((bytes.len() + piece.len()) as u64));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    let text = std::str::from_utf8(bytes)
        .map_err(|fault| codes::unparsable("the body", format!("byte {}", fault.valid_up_to()), "it is not UTF-8"))?;
    let value = canon::json::read(text).map_err(|fault| {
        let at = format!("line {}, column {}", fault.at.line, fault.at.column);
        codes::unparsable("the body", at, fault.rule.to_string())
    })?;
    deserialize_as("the body", value)
}

/// Deserializes a value, or returns the path at which it does not match the type.
pub(super) fn deserialize_as<T: DeserializeOwned>(subject: &str, value: serde_json::Value) -> Result<T, Refusal> {
    serde_path_to_error::deserialize(value).map_err(|fault| {
        let path: String = fault.path().iter().map(segment).collect();
        codes::schema(subject, path, fault.inner().to_string()).into()
    })
}

/// Returns a segment of a JSON Pointer.
fn segment(step: &serde_path_to_error::Segment) -> String {
    use serde_path_to_error::Segment;
    match step {
        Segment::Seq { index } => format!("/{index}"),
        Segment::Map { key } => format!("/{}", key.replace('~', "~0").replace('/', "~1")),
        Segment::Enum { variant } => format!("/{variant}"),
        Segment::Unknown => "/?".to_owned(),
    }
}

/// The query, as a value of this type.
#[derive(Debug)]
pub(super) struct QueryParams<T>(pub(super) T);

impl<T: DeserializeOwned + Send> FromRequestParts<HttpServer> for QueryParams<T> {
    type Rejection = Answer;

    async fn from_request_parts(parts: &mut Parts, http: &HttpServer) -> Result<Self, Answer> {
        match Query::<T>::try_from_uri(&parts.uri) {
            Ok(Query(wanted)) => Ok(Self(wanted)),
            Err(fault) => {
                let refusal = codes::schema("the query", "", fault.body_text());
                Err(http.refusal_reply(refusal.into()).await.into())
            }
        }
    }
}

/// An id that a path can contain, with the name of its kind for NotFound replies.
pub(super) trait ResourceId: FromStr {
    const KIND: &'static str;
}

impl ResourceId for RunId {
    const KIND: &'static str = "run";
}

impl ResourceId for TurnId {
    const KIND: &'static str = "turn";
}

impl ResourceId for EntityId {
    const KIND: &'static str = "entity";
}

impl ResourceId for LoomId {
    const KIND: &'static str = "loom";
}

/// The id in the path. Invalid text is answered with NotFound.
#[derive(Debug)]
pub(super) struct PathId<T>(pub(super) T);

impl<T: ResourceId + Send> FromRequestParts<HttpServer> for PathId<T> {
    type Rejection = Answer;

    async fn from_request_parts(parts: &mut Parts, http: &HttpServer) -> Result<Self, Answer> {
        let path: Result<Path<String>, PathRejection> = Path::from_request_parts(parts, http).await;
        let named = path.map_or_else(|_| String::new(), |Path(named)| named);
        match named.parse().ok() {
            Some(id) => Ok(Self(id)),
            None => Err(http.refusal_reply(codes::not_found(T::KIND, named).into()).await.into()),
        }
    }
}

/// The page of a list.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Paging {
    /// The cursor of the page: `next` of the previous page.
    pub(super) after: Option<u64>,
    /// The maximum number of items on a page; 50 by default.
    #[schemars(range(min = 1, max = 1000))]
    pub(super) most: Option<usize>,
}

/// The page that the query asks for.
#[derive(Debug)]
pub(super) struct Page(pub(super) PageRequest);

impl FromRequestParts<HttpServer> for Page {
    type Rejection = Answer;

    async fn from_request_parts(parts: &mut Parts, http: &HttpServer) -> Result<Self, Answer> {
        let QueryParams(paging) = QueryParams::<Paging>::from_request_parts(parts, http).await?;
        match paging.page() {
            Ok(page) => Ok(Self(page)),
            Err(refusal) => Err(http.refusal_reply(refusal).await.into()),
        }
    }
}

impl Paging {
    pub(super) fn page(self) -> Result<PageRequest, Refusal> {
        let most = self.most.unwrap_or(LISTED_ITEMS_DEFAULT);
        if most == 0 {
            return Err(codes::schema("the query", "/most", "a page has at least one item").into());
        }
        if most > LISTED_ITEMS_MAX {
            return Err(
                codes::schema("the query", "/most", format!("a page has at most {LISTED_ITEMS_MAX} items")).into()
            );
        }
        Ok(PageRequest { after: self.after, most })
    }
}
