//! A reply over HTTP: its envelope, with the status that follows from its type and code.

use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, Response, StatusCode};
use axum::response::IntoResponse;
use cantrip_pages::Notice;
use cantrip_service::cantrip::reply::{AnyCode, Envelope, GuardedReply};

use super::pages;

/// The response of a handler.
#[derive(Debug)]
pub(super) struct Answer {
    envelope: Envelope,
    /// A status that replaces the one derived from the reply.
    status: Option<StatusCode>,
}

/// The code and message of a response, for metrics and for other formats.
#[derive(Debug, Clone)]
pub(super) struct AnswerCode {
    pub(super) code: AnyCode,
    pub(super) message: String,
    /// The reply as a page shows it, unless it is a success.
    pub(super) notice: Option<Arc<Notice>>,
}

impl Answer {
    pub(super) fn of(guarded: GuardedReply) -> Self {
        Self::from_envelope(Envelope::of(guarded.reply, &guarded.meta))
    }

    pub(super) fn from_envelope(envelope: Envelope) -> Self {
        Self { envelope, status: None }
    }

    pub(super) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = Some(status);
        self
    }
}

impl From<GuardedReply> for Answer {
    fn from(guarded: GuardedReply) -> Self {
        Self::of(guarded)
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response<Body> {
        let Self { envelope, status } = self;
        let by_code = StatusCode::from_u16(envelope.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = Response::new(Body::from(envelope.to_json()));
        *response.status_mut() = status.unwrap_or(by_code);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // The state of a run changes, so responses must not be cached.
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(delay) = envelope.retry_after() {
            headers.insert(RETRY_AFTER, HeaderValue::from(delay.as_secs()));
        }
        let notice = (!envelope.reply_type().is_success()).then(|| Arc::new(pages::notice_of(&envelope)));
        let coded = AnswerCode { code: envelope.code(), message: envelope.message().to_owned(), notice };
        response.extensions_mut().insert(coded);
        response
    }
}
