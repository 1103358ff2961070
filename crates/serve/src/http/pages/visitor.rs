//! The person who looks: the session of a request, and what every page needs around its content.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::Response;
use axum::http::request::Parts;
use axum::response::IntoResponse;
use cantrip_pages::{AssetPaths, Chrome, Forms, Notice, PartContext, Settings};
use cantrip_service::Service;
use cantrip_service::cantrip::canon::Timestamp;
use cantrip_service::cantrip::loom::Actor;
use cantrip_service::cantrip::reply::{Envelope, GuardedReply, Refusal, codes};
use cantrip_view::Views;
use cantrip_view::command::Commands;
use serde_json::Value;

use super::forms::PageNotice;
use super::session::{Session, random_secret};
use super::{assets, html};
use crate::http::HttpServer;
use crate::http::answer::Answer;
use crate::http::extractors::Caller;
use crate::http::tokens::Bearer;

/// The origin of this server, as the browser of this request sees it.
#[derive(Debug, Clone)]
pub(super) struct OwnOrigin(pub(super) String);

impl OwnOrigin {
    /// Returns true if this is the value of an `Origin` header that a page of this server sends.
    pub(super) fn is(&self, origin: &str) -> bool {
        self.0.eq_ignore_ascii_case(origin)
    }
}

/// A person with a session.
#[derive(Debug, Clone)]
pub(in crate::http) struct Visitor {
    pub(super) http: HttpServer,
    pub(super) owner: Actor,
    pub(super) service: Service,
    pub(super) bearer: Bearer,
    pub(super) settings: Settings,
    session: Arc<Session>,
}

impl FromRequestParts<HttpServer> for Visitor {
    type Rejection = Answer;

    async fn from_request_parts(parts: &mut Parts, http: &HttpServer) -> Result<Self, Answer> {
        match parts.extensions.get::<Self>() {
            Some(visitor) => Ok(visitor.clone()),
            // Only the pages before the sign-in are open to requests without a session.
            None => Err(http.refusal_reply(codes::unauthenticated().into()).await.into()),
        }
    }
}

impl Visitor {
    pub(super) fn new(http: &HttpServer, bearer: Bearer, session: Arc<Session>, settings: Settings) -> Self {
        let (owner, service) = (bearer.owner.clone(), http.host().service_of(&bearer));
        Self { http: http.clone(), owner, service, bearer, settings, session }
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the sender of a request, as the routes of programs know it.
    pub(super) fn caller(&self) -> Caller {
        Caller { http: self.http.clone(), owner: self.owner.clone(), service: self.service.clone() }
    }

    pub(super) fn views(&self) -> Views<'_> {
        Views::of(&self.service)
    }

    /// Reads what every page needs around its content.
    pub(super) async fn frame(&self) -> Frame {
        // A page about a store that cannot be read must still be shown.
        let waiting = self.views().waiting_count().await.unwrap_or(0);
        Frame { waiting, ..self.frame_unread() }
    }

    /// Returns the frame of a page that must not cost anything.
    pub(super) fn frame_unread(&self) -> Frame {
        Frame {
            user: Some(self.owner.as_str().to_owned()),
            signed_out_possible: self.http.tokens().is_some(),
            form_token: self.session.form_token().to_owned(),
            ..Frame::signed_out(&self.http, self.settings)
        }
    }

    /// Answers with a refusal, which becomes a page.
    pub(super) async fn refuse(&self, refusal: Refusal) -> Response<Body> {
        Answer::of(self.http.refusal_reply(refusal).await).into_response()
    }

    /// Answers with the page of what was read, and above it with the reply to what was tried.
    pub(super) async fn page<V>(
        &self,
        read: Result<V, Refusal>,
        refused: Option<&PageNotice>,
        draw: impl FnOnce(&Chrome<'_>, &V) -> String + Send,
    ) -> Response<Body>
    where
        V: Send,
    {
        let view = match read {
            Ok(view) => view,
            Err(refusal) => return self.refuse(refusal).await,
        };
        let frame = self.frame().await;
        let mut chrome = frame.chrome("");
        chrome.notice = refused.map(|refused| &refused.notice);
        html(refused.map_or(200, |refused| refused.status), draw(&chrome, &view))
    }

    /// Returns a refusal as it is shown on top of a form.
    pub(super) async fn notice(&self, refusal: Refusal) -> PageNotice {
        PageNotice::of(self.http.refusal_reply(refusal).await)
    }
}

impl PageNotice {
    pub(super) fn of(guarded: GuardedReply) -> Self {
        let envelope = Envelope::of(guarded.reply, &guarded.meta);
        Self { notice: notice_of(&envelope), status: envelope.http_status() }
    }
}

/// Returns the reply of an envelope as a page shows it.
pub(in crate::http) fn notice_of(envelope: &Envelope) -> Notice {
    let text = |key: &str| envelope.data().get(key).and_then(Value::as_str).map(str::to_owned);
    let field = text("path").and_then(|path| path.strip_prefix('/').map(str::to_owned));
    let notice = Notice::new(envelope.code(), envelope.message(), envelope.trace_id());
    Notice { hint: text("hint"), field: field.filter(|field| !field.is_empty()), ..notice }
}

/// The frame around the content of a page. It holds the token of the session's forms, so it is never printed.
pub(super) struct Frame {
    user: Option<String>,
    pub(super) waiting: u64,
    signed_out_possible: bool,
    settings: Settings,
    assets: AssetPaths,
    commands: Commands,
    form_token: String,
    /// The beginning of the idempotency keys of the page's forms.
    form_key: String,
    now: Timestamp,
}

impl Frame {
    /// Returns the frame for a request without a session.
    pub(super) fn signed_out(http: &HttpServer, settings: Settings) -> Self {
        Self {
            user: None,
            waiting: 0,
            signed_out_possible: false,
            settings,
            assets: assets::paths(),
            commands: http.commands().clone(),
            form_token: String::new(),
            // Without randomness there is no session either, and so no form is acted on.
            form_key: random_secret().unwrap_or_default(),
            now: http.now(),
        }
    }

    pub(super) fn part(&self) -> PartContext<'_> {
        let forms = Forms { token: &self.form_token, key: &self.form_key };
        PartContext { now: self.now, commands: &self.commands, forms }
    }

    /// Returns the values of a part, which is the same for every viewer until it changes.
    pub(super) fn shared_part(&self) -> PartContext<'_> {
        PartContext { forms: Forms::BLANK, ..self.part() }
    }

    /// Returns the frame as a page needs it. Most pages have a title, a place and a path of their own.
    pub(super) fn chrome(&self, title: impl Into<String>) -> Chrome<'_> {
        Chrome {
            title: title.into(),
            heading_note: None,
            crumbs: Vec::new(),
            place: None,
            waiting: self.waiting,
            user: self.user.as_deref(),
            signed_out_possible: self.signed_out_possible,
            settings: self.settings,
            assets: &self.assets,
            command: None,
            live: None,
            notice: None,
            part: self.part(),
        }
    }
}
