//! The stylesheet, the script and the mark, each under the hash of its content, so a browser may keep it for a year.
//!
//! A debug build reads them from disk: whoever works on them sees a change without a build.

use std::borrow::Cow;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, Response};
use axum::response::IntoResponse;
use cantrip_pages::AssetPaths;
use cantrip_service::cantrip::canon::bytes_hash;
use cantrip_service::cantrip::reply::codes;

use crate::http::HttpServer;
use crate::http::answer::Answer;

/// The beginning of the addresses of all assets.
pub(super) const ADDRESS: &str = "/assets/";

struct Asset {
    name: &'static str,
    kind: &'static str,
    content: &'static str,
}

static STYLE: Asset = Asset { name: "pages.css", kind: "text/css; charset=utf-8", content: cantrip_pages::STYLE };
static SCRIPT: Asset =
    Asset { name: "pages.js", kind: "text/javascript; charset=utf-8", content: cantrip_pages::SCRIPT };
static MARK: Asset = Asset { name: "mark.svg", kind: "image/svg+xml", content: cantrip_pages::MARK };

impl Asset {
    fn content(&self) -> Cow<'static, str> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../pages/assets/");
        let read = cfg!(debug_assertions).then(|| std::fs::read_to_string(format!("{folder}{}", self.name)).ok());
        read.flatten().map_or(Cow::Borrowed(self.content), Cow::Owned)
    }

    fn address(&self) -> String {
        format!("{ADDRESS}{}/{}", hash(&self.content()), self.name)
    }
}

fn hash(content: &str) -> String {
    bytes_hash(content.as_bytes()).hex(16)
}

/// Returns the addresses of the assets as they are now.
pub(super) fn paths() -> AssetPaths {
    AssetPaths { style: STYLE.address(), script: SCRIPT.address(), mark: MARK.address() }
}

/// Serves an asset under the hash of its content, and under no other.
pub(super) async fn asset(
    State(http): State<HttpServer>,
    Path((wanted, name)): Path<(String, String)>,
) -> Response<Body> {
    let known = [&STYLE, &SCRIPT, &MARK].into_iter().find(|asset| asset.name == name);
    let found = known.map(|asset| (asset.kind, asset.content())).filter(|(_, content)| hash(content) == wanted);
    let Some((kind, content)) = found else {
        return Answer::of(http.refusal_reply(codes::not_found("asset", name).into()).await).into_response();
    };
    let mut response = Response::new(Body::from(content.into_owned()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable"));
    response
}
