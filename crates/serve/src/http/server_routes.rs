//! Routes about the server itself: its health, its spells, the codes of replies.

use axum::extract::State;
use axum::http::HeaderName;
use axum::http::header::CONTENT_TYPE;
use cantrip_service::cantrip::reply::{AnyCode, Call, codes, registry};
use serde_json::{Map, Value, json};

use super::HttpServer;
use super::answer::Answer;
use super::extractors::Caller;
use super::routes::{ResponseKind, RouteDoc, Routes, doc};

pub(super) fn routes(routes: &mut Routes) {
    let about = doc("get_health", "Check that the server is alive.", &[200]);
    routes.get(super::admit::HEALTH, health, about);
    let about = doc("list_codes", "List every reply code.", &[200]);
    routes.get("/v1/codes", all_codes, about);
    let about = doc("list_crystals", "List the known crystals.", &[200]);
    routes.get("/v1/crystals", crystals, about);
    let about = doc("list_spells", "List the spells that can be cast by name.", &[200]);
    routes.get("/v1/spells", spells, about);
    let about = RouteDoc::new(
        "get_metrics",
        "Return the metrics in Prometheus' text format.",
        ResponseKind::Text("text/plain"),
        &[200],
    );
    routes.get("/metrics", metrics, about);
    let about =
        RouteDoc::new("get_openapi", "Return this OpenAPI page.", ResponseKind::Text("application/json"), &[200]);
    routes.get("/openapi.json", openapi_page, about);
}

async fn health(State(http): State<HttpServer>) -> Answer {
    http.guard().call(Call::surface("health"), |rb| async { rb.success(codes::ok("health")) }).await.into()
}

async fn all_codes(State(http): State<HttpServer>, _: Caller) -> Answer {
    let told = || {
        let rows: Vec<_> = AnyCode::all().map(|code| code.row()).collect();
        codes::ok("codes").data(json!({"version": registry::registry().version})).data(json!({"codes": rows}))
    };
    http.guard().call(Call::surface("codes"), |rb| async { rb.success(told()) }).await.into()
}

async fn crystals(State(http): State<HttpServer>, _: Caller) -> Answer {
    let known = http.host().local_service().spells().crystals();
    let known = known.map(|known| codes::read("crystals").value(known));
    http.guard().call(Call::surface("crystals"), |rb| async { rb.answer(known) }).await.into()
}

async fn spells(State(http): State<HttpServer>, _: Caller) -> Answer {
    let cards = http.host().local_service().spells().spells();
    let filled = codes::read("spells").value(json!({"items": cards}));
    http.guard().call(Call::surface("spells"), |rb| async { rb.success(filled) }).await.into()
}

async fn metrics(State(http): State<HttpServer>, _: Caller) -> ([(HeaderName, &'static str); 1], String) {
    let kind = (CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8");
    ([kind], http.host().metrics().render(http.host().local_service().active_runs(), http.feeds_open()))
}

async fn openapi_page(_: Caller) -> axum::Json<Value> {
    axum::Json(super::openapi())
}

/// Returns the OpenAPI page of these routes.
pub(super) fn page(paths: Map<String, Value>, mut schemas: Map<String, Value>) -> Value {
    schemas.insert("Envelope".to_owned(), envelope());
    let refused = json!({
        "description": "a refusal, with a code and a message that says how to fix it",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Envelope"}}},
    });
    let text = json!({"type": "string"});
    let error = json!({
        "type": "object",
        "required": ["message", "type", "param", "code"],
        "properties": {"message": text, "type": text, "param": {"type": "null"}, "code": text},
    });
    let elsewhere = json!({
        "description": "a refusal in OpenAI's format",
        "content": {"application/json": {"schema": {
            "type": "object", "required": ["error"], "additionalProperties": false, "properties": {"error": error},
        }}},
    });
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Cantrip",
            "version": env!("CARGO_PKG_VERSION"),
            "description": ABOUT,
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        // The server that the page was read from.
        "servers": [{"url": "/", "description": "the server that serves this page"}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {"refused": refused, "refused_as_openai_does": elsewhere},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        // Loopback needs no token.
        "security": [{}, {"bearer": []}],
    })
}

const ABOUT: &str = "Every reply is an envelope: `status`, `reply_type`, `code`, `message`, `data`, `meta`, `error`. \
The exceptions are the feeds, the metrics, this page and the two routes in OpenAI's format. Branch on `code`; \
`GET /v1/codes` lists all codes.\n\n\
In the feed `/v1/runs/{id}/events` an upsert carries the full state of its item: keep a map from `itemId` to the last \
upsert, and drop the items of a turn when the turn is started again. The `toolArguments` of a `tool_call` with status \
`create` may be empty or partial: only a later upsert of the item has the final arguments. A failed turn ends in \
`turn_error`. Its code and message are the first of these: those of the response's own error event; those of the error \
in the response's end; the finish reason; `RESPONSE_ERROR`.";

fn envelope() -> Value {
    let text = json!({"type": "string"});
    json!({
        "type": "object",
        "description": "The format of every reply.",
        "required": ["status", "reply_type", "code", "message", "data", "meta", "error"],
        "additionalProperties": false,
        "properties": {
            "status": {"enum": ["success", "invalid", "denied", "error"]},
            "reply_type": {"enum": ["S", "I", "D", "E"]},
            "code": {"type": "string", "pattern": "^(WA|EN|CT|MCP)-[A-Z]+-[SIDE]-[0-9]{3}$"},
            "message": text,
            "data": {"type": "object"},
            "meta": {
                "type": "object",
                "required": ["trace_id", "duration_ms"],
                "properties": {"trace_id": text, "duration_ms": {"type": "integer", "minimum": 0}},
            },
            "error": {
                "oneOf": [{"type": "null"}, {
                    "type": "object",
                    "required": ["code", "message", "retry"],
                    "properties": {
                        "code": text,
                        "message": text,
                        "retry": {"enum": ["fix_and_retry", "ask_scope", "wait", "stop"]},
                    },
                }],
            },
        },
    })
}
