//! The pages for people: their addresses, who may see them, and how a form is acted on.
//!
//! A handler reads the views that a page needs and hands them to a function of `pages`, which knows how it looks. What
//! a form does is done by the functions of the service that the routes of programs call. A refusal is returned like
//! everywhere else, and the admission turns it into a page.

mod act;
mod approvals;
mod assets;
mod downloads;
mod entry;
mod filters;
mod forms;
mod go;
mod headers;
mod looms;
mod multipart;
mod named;
mod parts;
mod reader;
mod runs;
mod session;
mod sign_in;
mod spells;
mod visitor;

use axum::Router;
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, ETAG, IF_NONE_MATCH, LOCATION, VARY};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use axum::routing::{get, post};
use cantrip_service::cantrip::canon::bytes_hash;

use super::HttpServer;

pub(super) use entry::{Barred, admit};
pub(super) use headers::add as add_headers;
pub(super) use reader::{Reader, closed};
pub(super) use session::Sessions;
pub(super) use sign_in::open_link;
pub(super) use visitor::notice_of;

/// Returns the addresses of all pages.
pub(super) fn router() -> Router<HttpServer> {
    let reading = Router::new()
        .route("/", get(runs::list))
        .route("/runs", get(runs::list))
        .route("/runs/{run}", get(runs::show))
        .route("/runs/{run}/parts", get(parts::run_parts))
        .route("/runs/{run}/tree", get(runs::tree))
        .route("/runs/{run}/files", get(runs::files))
        .route("/runs/{run}/records", get(runs::records))
        .route("/runs/{run}/sent/{turn}", get(runs::sent))
        .route("/runs/{run}/output/{turn}/{n}", get(downloads::output))
        .route("/runs/{run}/export", get(downloads::export))
        .route("/turns/{turn}", get(go::turn))
        .route("/calls/{call}", get(go::call))
        .route("/entities/{entity}", get(go::entity))
        .route("/go/{anything}", get(go::anything))
        .route("/looms", get(looms::list))
        .route("/looms/{loom}", get(looms::show))
        .route("/compare", get(looms::compare))
        .route("/spells", get(spells::list))
        .route("/spells/{spell}", get(spells::show))
        .route("/codes/{code}", get(reader::code))
        .route("/keys", get(reader::keys))
        .route("/bodies/{hash}", get(downloads::body))
        .route("/assets/{hash}/{name}", get(assets::asset));
    let acting = Router::new()
        .route("/runs/{run}/cancel", get(act::cancel_form).post(act::cancel))
        .route("/runs/{run}/resume", post(act::resume))
        .route("/runs/{run}/continue", get(act::continue_form).post(act::continue_run))
        .route("/turns/{turn}/fork", get(act::fork_form).post(act::fork))
        .route("/turns/{turn}/rewind", get(act::rewind_form).post(act::rewind))
        .route("/turns/{turn}/reward", post(act::reward))
        .route("/approvals", get(approvals::list))
        .route("/approvals/{approval}", get(approvals::show).post(approvals::decide))
        .route("/spells/{spell}/cast", post(spells::cast))
        .route("/settings", get(reader::settings).post(reader::save_settings))
        .route("/sign-in", get(sign_in::form).post(sign_in::sign_in))
        .route("/sign-out", post(sign_in::sign_out))
        .route("/open/{key}", get(sign_in::open));
    reading.merge(acting)
}

/// Returns a page.
fn html(status: u16, page: String) -> Response<Body> {
    let mut response = Response::new(Body::from(page));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    response
}

/// Sends the browser to another address of this server. Ids and encoded texts make every such address a header.
pub(super) fn see_other(address: &str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    let address = HeaderValue::try_from(address).unwrap_or(HeaderValue::from_static("/"));
    response.headers_mut().insert(LOCATION, address);
    response
}

/// The header by which the script asks for a part of a page.
const PART: &str = "cantrip-part";

/// Returns the name of the part that the script asks for.
fn wanted_part(headers: &HeaderMap) -> Option<&str> {
    headers.get(PART)?.to_str().ok()
}

/// Returns a part of a page, or only that it has not changed.
fn part(asked: &HeaderMap, part: String) -> Response<Body> {
    let tag = format!("\"{}\"", bytes_hash(part.as_bytes()).hex(32));
    let is_known = asked.get(IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let mut response = if is_known { html(304, String::new()) } else { html(200, part) };
    let headers = response.headers_mut();
    if let Ok(tag) = HeaderValue::try_from(tag) {
        headers.insert(ETAG, tag);
    }
    headers.insert(VARY, HeaderValue::from_static(PART));
    response
}
