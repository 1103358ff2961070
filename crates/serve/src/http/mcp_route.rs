//! The MCP server, behind the same admission checks as all routes. Its responses follow the MCP protocol, so it is
//! registered beside the table of routes and is not in the OpenAPI page.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use axum::response::IntoResponse;

use super::HttpServer;
use super::answer::Answer;
use super::extractors::{Caller, read_body};
use crate::limits::BODY_BYTES_MAX;

pub(super) const PATH: &str = "/mcp";

/// Handles an MCP request. The caller is already authenticated; a body that is too long or too slow never reaches the
/// protocol.
pub(super) async fn serve_mcp(State(http): State<HttpServer>, caller: Caller, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let bytes = match read_body(&http, &parts, body, BODY_BYTES_MAX).await {
        Ok(bytes) => bytes,
        Err(answer) => return answer.into_response(),
    };
    match http.0.agents.handle(&caller.owner, Request::from_parts(parts, bytes)).await {
        Ok(response) => response,
        Err(refusal) => Answer::of(http.refusal_reply(refusal).await).into_response(),
    }
}
