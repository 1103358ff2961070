//! The server for agents, behind the same door as everything else. Its answers are the protocol's own, so it stands beside
//! the table of routes and not in the page that describes them.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use axum::response::IntoResponse;

use super::Http;
use super::answer::Answer;
use super::asked::{Caller, arrived};

pub(super) const PATH: &str = "/mcp";

/// Who asks was found out before; a body that is too long or too slow never reaches the protocol.
pub(super) async fn served(State(http): State<Http>, caller: Caller, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let bytes = match arrived(&http, &parts, body).await {
        Ok(bytes) => bytes,
        Err(answer) => return answer.into_response(),
    };
    match http.0.agents.enter(&caller.owner, Request::from_parts(parts, bytes)).await {
        Ok(response) => response,
        Err(refusal) => Answer::of(http.refused(refusal).await).into_response(),
    }
}
