//! The ids in the address of a page. A shortened one leads to the whole one.

use axum::body::Body;
use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;
use axum::http::{Method, Response};
use axum::response::IntoResponse;
use cantrip_service::cantrip::canon::{EntityId, LoomId, RunId, TurnId};
use cantrip_service::cantrip::loom::AnyId;
use cantrip_service::cantrip::reply::{Refusal, codes};

use super::see_other;
use super::visitor::Visitor;
use crate::http::HttpServer;
use crate::http::answer::Answer;
use crate::http::extractors::ResourceId;

/// An id that a page is about. The parameter of its address has the name of its kind.
pub(super) trait PageId: ResourceId + ToString + Send {
    fn of(id: AnyId) -> Option<Self>;
}

macro_rules! page_id {
    ($($kind:ty => $variant:ident),+ $(,)?) => {$(
        impl PageId for $kind {
            fn of(id: AnyId) -> Option<Self> {
                if let AnyId::$variant(id) = id { Some(id) } else { None }
            }
        }
    )+};
}

page_id! { RunId => Run, TurnId => Turn, EntityId => Entity, LoomId => Loom }

/// The id in the path.
#[derive(Debug)]
pub(super) struct Named<T>(pub(super) T);

impl<T: PageId> FromRequestParts<HttpServer> for Named<T> {
    type Rejection = Response<Body>;

    async fn from_request_parts(parts: &mut Parts, http: &HttpServer) -> Result<Self, Response<Body>> {
        let written = path_text(parts, http, T::KIND).await;
        if let Ok(id) = written.parse() {
            return Ok(Self(id));
        }
        let visitor = Visitor::from_request_parts(parts, http).await.map_err(IntoResponse::into_response)?;
        let found = visitor.service.find(T::KIND, &written).await;
        match found.map(|id| T::of(id).map(|id| id.to_string())) {
            Ok(Some(id)) if parts.method == Method::GET => {
                let address = parts.uri.path_and_query().map_or("/", |address| address.as_str());
                Err(see_other(&address.replacen(&written, &id, 1)))
            }
            Ok(_) => Err(refused(http, codes::not_found(T::KIND, written).into()).await),
            Err(refusal) => Err(refused(http, refusal).await),
        }
    }
}

async fn refused(http: &HttpServer, refusal: Refusal) -> Response<Body> {
    Answer::of(http.refusal_reply(refusal).await).into_response()
}

/// Returns a parameter of the path; empty if it is not text.
async fn path_text(parts: &mut Parts, http: &HttpServer, name: &str) -> String {
    let parameters = RawPathParams::from_request_parts(parts, http).await;
    let found = parameters.as_ref().ok().and_then(|all| all.iter().find(|(key, _)| *key == name));
    found.map_or_else(String::new, |(_, value)| value.to_owned())
}
