//! Forms: which of them are acted on, and how often?
//!
//! A form must come from a page of this server and of the same session: it carries the token of the session, and its
//! `Origin` is this server. The cookie alone proves nothing, because browsers send it from every port of localhost.
//! Each form has an idempotency key, so a second click gets the answer of the first. The action runs as a task of its
//! own: a browser that sends the form again closes the first connection, and must not cut the action in half.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts};
use axum::http::Request;
use axum::http::header::{CONTENT_TYPE, ORIGIN};
use axum::http::request::Parts;
use cantrip_pages::Notice;
use cantrip_service::cantrip::canon::{Hash, bytes_hash};
use cantrip_service::cantrip::reply::{Refusal, codes};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use url::form_urlencoded;

use super::multipart;
use super::visitor::{OwnOrigin, Visitor};
use crate::http::HttpServer;
use crate::http::answer::Answer;
use crate::http::extractors::read_body;
use crate::limits::{FORM_ANSWERS_KEPT, FORM_BYTES_MAX, FORM_CONTEXT_BYTES_MAX, FORM_KEY_BYTES_MAX};

/// The fields that may be as long as the context of a cast: as text, and as a file.
pub(super) const CONTEXT: &str = "context";
pub(super) const FILE: &str = "file";

/// One field of a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) value: Vec<u8>,
}

/// A form that belongs to the session of the request.
pub(super) struct Form {
    pub(super) visitor: Visitor,
    fields: Vec<Field>,
    key: String,
    /// The hash of the address and of everything that was sent.
    content: Hash,
}

impl FromRequest<HttpServer> for Form {
    type Rejection = Answer;

    async fn from_request(request: Request<Body>, http: &HttpServer) -> Result<Self, Answer> {
        let (mut parts, body) = request.into_parts();
        let visitor = Visitor::from_request_parts(&mut parts, http).await?;
        let fields = fields_of(http, &parts, body).await?;
        let form = Self::of(visitor, fields, &parts);
        match form.check() {
            Ok(()) => Ok(form),
            Err(refusal) => Err(http.refusal_reply(refusal).await.into()),
        }
    }
}

/// The form by which a person signs in: it comes from a page of this server, and has no session yet. It holds a token,
/// so it is never printed.
pub(super) struct SignInForm(Vec<Field>);

impl FromRequest<HttpServer> for SignInForm {
    type Rejection = Answer;

    async fn from_request(request: Request<Body>, http: &HttpServer) -> Result<Self, Answer> {
        let (parts, body) = request.into_parts();
        Ok(Self(fields_of(http, &parts, body).await?))
    }
}

impl SignInForm {
    pub(super) fn field(&self, name: &str) -> String {
        text_of(&self.0, name)
    }
}

/// Reads the fields of a form that comes from a page of this server.
async fn fields_of(http: &HttpServer, parts: &Parts, body: Body) -> Result<Vec<Field>, Answer> {
    let kind = match form_kind(parts) {
        Ok(kind) => kind,
        Err(refusal) => return Err(http.refusal_reply(refusal).await.into()),
    };
    let most = match kind {
        FormKind::Fields => FORM_BYTES_MAX,
        FormKind::Multipart(_) => FORM_BYTES_MAX + FORM_CONTEXT_BYTES_MAX,
    };
    let bytes = read_body(http, parts, body, most).await?;
    match read_fields(&kind, &bytes) {
        Ok(fields) => Ok(fields),
        Err(refusal) => Err(http.refusal_reply(refusal).await.into()),
    }
}

fn text_of(fields: &[Field], name: &str) -> String {
    let found = fields.iter().find(|field| field.name == name);
    found.map_or_else(String::new, |field| String::from_utf8_lossy(&field.value).replace("\r\n", "\n"))
}

/// How the fields of a form are written.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FormKind {
    Fields,
    /// With the text that separates the fields.
    Multipart(String),
}

/// Checks where a form comes from, before its body is read.
fn form_kind(parts: &Parts) -> Result<FormKind, Refusal> {
    let origin = parts.headers.get(ORIGIN).and_then(|origin| origin.to_str().ok());
    let own = parts.extensions.get::<OwnOrigin>();
    if !origin.zip(own).is_some_and(|(origin, own)| own.is(origin)) {
        return Err(refused(parts.uri.path(), "the form does not come from a page of this server"));
    }
    let written = parts.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = written.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        return Ok(FormKind::Fields);
    }
    let boundary = kind.eq_ignore_ascii_case("multipart/form-data").then(|| multipart::boundary(written)).flatten();
    boundary.map(FormKind::Multipart).ok_or_else(|| refused(parts.uri.path(), "it is not a form of a page"))
}

/// Returns the refusal of a form that is not acted on.
pub(super) fn refused(address: &str, reason: &str) -> Refusal {
    codes::address_refused(address, reason).into()
}

fn read_fields(kind: &FormKind, bytes: &[u8]) -> Result<Vec<Field>, Refusal> {
    match kind {
        FormKind::Fields => {
            let pairs = form_urlencoded::parse(bytes).into_owned();
            Ok(pairs.map(|(name, value)| Field { name, value: value.into_bytes() }).collect())
        }
        FormKind::Multipart(boundary) => multipart::fields(bytes, boundary)
            .ok_or_else(|| codes::unparsable("the form", "its fields", "it is not multipart/form-data").into()),
    }
}

impl Form {
    fn of(visitor: Visitor, fields: Vec<Field>, parts: &Parts) -> Self {
        let address = parts.uri.path_and_query().map_or("", |address| address.as_str());
        // The boundary of a multipart body is another one each time, so the fields are hashed and not the bytes.
        let mut content = bytes_hash(address.as_bytes()).as_bytes().to_vec();
        for Field { name, value } in &fields {
            content.extend_from_slice(bytes_hash(name.as_bytes()).as_bytes());
            content.extend_from_slice(bytes_hash(value).as_bytes());
        }
        let key = text_of(&fields, "key");
        Self { visitor, fields, key, content: bytes_hash(&content) }
    }

    fn check(&self) -> Result<(), Refusal> {
        if !self.visitor.session().has_form_token(&self.field("token")) {
            return Err(refused("the form", "it does not have the token of this session; load the page again"));
        }
        let long =
            |field: &&Field| ![CONTEXT, FILE].contains(&field.name.as_str()) && field.value.len() > FORM_BYTES_MAX;
        if let Some(field) = self.fields.iter().find(long) {
            return Err(codes::limit(format!("the field {}", field.name), field.value.len(), FORM_BYTES_MAX).into());
        }
        if self.key.is_empty() || self.key.len() > FORM_KEY_BYTES_MAX {
            let rule = format!("a form has a key of at most {FORM_KEY_BYTES_MAX} bytes; load the page again");
            return Err(codes::schema("the form", "/key", rule).into());
        }
        Ok(())
    }

    /// Returns a field as text, with the line ends of a record; empty if it was not sent.
    pub(super) fn field(&self, name: &str) -> String {
        text_of(&self.fields, name)
    }

    /// Returns a field that was filled in, without the blanks around it.
    pub(super) fn filled(&self, name: &str) -> Option<String> {
        Some(self.field(name).trim().to_owned()).filter(|text| !text.is_empty())
    }

    pub(super) fn is_checked(&self, name: &str) -> bool {
        self.fields.iter().any(|field| field.name == name && field.value != b"off" && !field.value.is_empty())
    }

    /// Returns the bytes of a field that was filled in.
    pub(super) fn bytes(&self, name: &str) -> Option<&[u8]> {
        let found = self.fields.iter().find(|field| field.name == name && !field.value.is_empty());
        found.map(|field| field.value.as_slice())
    }

    pub(super) fn fields(&self) -> impl Iterator<Item = (&str, String)> {
        self.fields.iter().map(|field| (field.name.as_str(), self.field(&field.name)))
    }

    /// Acts on the form, unless its key was used before: then this is the answer of the first time.
    pub(super) async fn act(&self, action: impl Future<Output = FormOutcome> + Send + 'static) -> FormOutcome {
        let session = self.visitor.session();
        let answer = session.answers().first(&self.key, self.content, action);
        let answered = match answer {
            Ok(answer) => answer.await,
            Err(refusal) => Some(FormOutcome::Refused(self.visitor.notice(refusal).await)),
        };
        match answered {
            Some(outcome) => outcome,
            None => FormOutcome::Refused(self.visitor.notice(codes::crash().into()).await),
        }
    }
}

/// The answer to a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FormOutcome {
    /// The browser goes to what was made or changed.
    Done(String),
    /// The same page again, with this reply on top.
    Refused(PageNotice),
}

/// A reply that is shown on a page, with the status of that page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PageNotice {
    pub(super) notice: Notice,
    pub(super) status: u16,
}

/// None if the action panicked.
type Answering = Shared<BoxFuture<'static, Option<FormOutcome>>>;

/// The answers to the latest forms of a session, by their keys.
#[derive(Debug, Default)]
pub(super) struct FormAnswers(Mutex<VecDeque<KeptAnswer>>);

#[derive(Debug)]
struct KeptAnswer {
    key: String,
    content: Hash,
    answering: Answering,
}

impl FormAnswers {
    /// Returns the answer under this key. It is the one of `action` if the key is new, and otherwise the action is
    /// not begun. The same key with another content is refused.
    fn first(
        &self,
        key: &str,
        content: Hash,
        action: impl Future<Output = FormOutcome> + Send + 'static,
    ) -> Result<Answering, Refusal> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept.iter().find(|known| known.key == key) {
            let same = known.content == content;
            return if same {
                Ok(known.answering.clone())
            } else {
                Err(codes::immutable("a form that was sent").into())
            };
        }
        // The request is the parent in the trace, although the task outlives it.
        let task = tokio::spawn(cantrip_trace::scope(cantrip_trace::current(), Box::pin(action)));
        let answering = async move { task.await.ok() }.boxed().shared();
        if kept.len() >= FORM_ANSWERS_KEPT {
            kept.pop_front();
        }
        kept.push_back(KeptAnswer { key: key.to_owned(), content, answering: answering.clone() });
        Ok(answering)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_second_click_gets_the_answer_of_the_first() {
        let (answers, times) = (FormAnswers::default(), Arc::new(AtomicU32::new(0)));
        let act = || {
            let times = Arc::clone(&times);
            async move {
                let nth = times.fetch_add(1, Ordering::SeqCst) + 1;
                tokio::task::yield_now().await;
                FormOutcome::Done(format!("/runs/{nth}"))
            }
        };
        let content = bytes_hash(b"one");
        // The first connection is closed before the action has ended.
        drop(answers.first("k", content, act()).expect("new"));
        let (second, third) = (answers.first("k", content, act()), answers.first("k", content, act()));
        let first = Some(FormOutcome::Done("/runs/1".to_owned()));
        assert_eq!(second.expect("the same form").await, first);
        assert_eq!(third.expect("the same form").await, first);
        let other = answers.first("k", bytes_hash(b"two"), act()).expect_err("another form");
        assert_eq!(other.code(), codes::IMMUTABLE);
        let fresh = answers.first("l", bytes_hash(b"two"), act()).expect("another key").await;
        assert_eq!(fresh, Some(FormOutcome::Done("/runs/2".to_owned())));
        assert_eq!(times.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn only_the_latest_answers_are_kept() {
        let answers = FormAnswers::default();
        for nth in 0..=FORM_ANSWERS_KEPT {
            let made = async move { FormOutcome::Done(nth.to_string()) };
            let answer = answers.first(&nth.to_string(), bytes_hash(b""), made).expect("new").await;
            assert_eq!(answer, Some(FormOutcome::Done(nth.to_string())));
        }
        assert_eq!(answers.0.lock().expect("not poisoned").len(), FORM_ANSWERS_KEPT);
    }
}
