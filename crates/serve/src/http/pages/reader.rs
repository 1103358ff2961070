//! The pages about the reader and the reading: faults, settings, keys and codes.

use axum::body::Body;
use axum::extract::{Path, Request};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, SET_COOKIE};
use axum::http::{HeaderValue, Response};
use axum::response::IntoResponse;
use cantrip_pages::{Notice, Settings, closed_page, code_page, fault_page, keys_page, settings_page};
use cantrip_service::cantrip::reply::{AnyCode, codes};

use super::entry::{self, SETTINGS};
use super::forms::Form;
use super::visitor::{Frame, Visitor};
use super::{html, see_other};
use crate::http::HttpServer;
use crate::http::answer::Answer;

/// The sender of a request, as far as a fault page needs to know.
#[derive(Debug)]
pub(in crate::http) struct Reader {
    http: HttpServer,
    visitor: Option<Visitor>,
    settings: Settings,
}

impl Reader {
    pub(in crate::http) fn of(http: &HttpServer, request: &Request) -> Self {
        let visitor = request.extensions().get::<Visitor>().cloned();
        Self { http: http.clone(), visitor, settings: entry::settings(request.headers()) }
    }

    /// Replaces the body of a response by the page that says what went wrong.
    pub(in crate::http) async fn show_fault(&self, response: &mut Response<Body>, notice: &Notice) {
        let busy = notice.code == codes::OVERLOADED.any().as_str();
        let frame = match &self.visitor {
            // A server with too much to do does not read for a page that says so.
            Some(visitor) if busy => visitor.frame_unread(),
            Some(visitor) => visitor.frame().await,
            None => Frame::signed_out(&self.http, self.settings),
        };
        let chrome = frame.chrome(title(response.status().as_u16()));
        *response.body_mut() = Body::from(fault_page(&chrome, notice, response.status().as_u16()));
        let headers = response.headers_mut();
        headers.remove(CONTENT_LENGTH);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    }
}

const fn title(status: u16) -> &'static str {
    match status {
        404 => "Not found",
        401 => "Signed out",
        403 => "Not allowed",
        410 => "No longer kept",
        503 => "Not available",
        _ if status >= 500 => "Failed",
        _ => "Not possible",
    }
}

/// Returns the one page of a server that shows no others.
pub(in crate::http) fn closed(http: &HttpServer) -> Response<Body> {
    let frame = Frame::signed_out(http, Settings::default());
    html(403, closed_page(&frame.chrome("No pages here")))
}

/// Shows the settings of the reader.
pub(super) async fn settings(visitor: Visitor) -> Response<Body> {
    let frame = visitor.frame().await;
    html(200, settings_page(&frame.chrome("Settings")))
}

/// Keeps the settings in a cookie, which the server reads: so no page changes after it was drawn.
pub(super) async fn save_settings(form: Form) -> Response<Body> {
    let chosen = form.fields().fold(form.visitor.settings, |settings, (name, value)| settings.with((name, &value)));
    let mut response = see_other("/settings");
    let cookie = format!("{SETTINGS}={}; HttpOnly; SameSite=Lax; Path=/; Max-Age=31536000", chosen.cookie_value());
    if let Ok(cookie) = HeaderValue::try_from(cookie) {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    response
}

pub(super) async fn keys(visitor: Visitor) -> Response<Body> {
    let frame = visitor.frame().await;
    html(200, keys_page(&frame.chrome("Keys")))
}

/// Shows what a reply code means.
pub(super) async fn code(visitor: Visitor, Path(code): Path<String>) -> Response<Body> {
    match AnyCode::parse(&code) {
        Ok(known) => {
            let frame = visitor.frame().await;
            html(200, code_page(&frame.chrome(known.as_str()), known))
        }
        Err(_) => {
            let refusal = codes::not_found("code", code).into();
            Answer::of(visitor.http.refusal_reply(refusal).await).into_response()
        }
    }
}
