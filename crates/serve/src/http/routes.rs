//! The table of routes: each line registers a handler and its documentation.

use axum::Router;
use axum::handler::Handler;
use axum::routing::MethodRouter;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::{
    HttpServer, casts, chat, compile, contracts, datasets, entities, evals, feeds, ledger, looms, runs, server_routes,
};

/// Returns every route.
pub(super) fn all() -> Routes {
    let mut routes = Routes::new();
    server_routes::routes(&mut routes);
    casts::routes(&mut routes);
    runs::routes(&mut routes);
    feeds::routes(&mut routes);
    entities::routes(&mut routes);
    looms::routes(&mut routes);
    contracts::routes(&mut routes);
    datasets::routes(&mut routes);
    evals::routes(&mut routes);
    compile::routes(&mut routes);
    ledger::routes(&mut routes);
    chat::routes(&mut routes);
    routes
}

/// The routes, and the page that describes them.
pub(super) struct Routes {
    router: Router<HttpServer>,
    paths: Map<String, Value>,
    schemas: SchemaGenerator,
}

/// The documentation of a route.
#[derive(Debug)]
pub(super) struct RouteDoc {
    operation: Value,
    /// The types of its query and of its body.
    query: Option<fn(&mut SchemaGenerator) -> Schema>,
    body: Option<fn(&mut SchemaGenerator) -> Schema>,
}

/// The format of a route's response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResponseKind {
    Envelope,
    Events,
    /// A format of another protocol, with this media type.
    Text(&'static str),
}

impl Routes {
    fn new() -> Self {
        let settings = schemars::generate::SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
        });
        Self { router: Router::new(), paths: Map::new(), schemas: settings.into_generator() }
    }

    pub(super) fn into_router(self) -> Router<HttpServer> {
        self.router
    }

    pub(super) fn get<H, T>(&mut self, path: &'static str, handler: H, about: RouteDoc)
    where
        H: Handler<T, HttpServer>,
        T: 'static,
    {
        self.add("get", path, axum::routing::get(handler), about);
    }

    pub(super) fn post<H, T>(&mut self, path: &'static str, handler: H, about: RouteDoc)
    where
        H: Handler<T, HttpServer>,
        T: 'static,
    {
        self.add("post", path, axum::routing::post(handler), about);
    }

    fn add(&mut self, method: &'static str, path: &'static str, route: MethodRouter<HttpServer>, about: RouteDoc) {
        self.router = std::mem::take(&mut self.router).route(path, route);
        let mut operation = about.operation;
        if let Some(query) = about.query {
            add_query(&mut operation, &query(&mut self.schemas));
        }
        if let Some(body) = about.body {
            let schema = body(&mut self.schemas);
            operation["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": schema}}});
            refuses(&mut operation, &["400", "408", "409", "413", "415", "422", "504"]);
        }
        if path != super::admit::HEALTH {
            refuses(&mut operation, &["401"]);
        }
        if super::chat::is_chat_path(path) {
            // These routes have another format for refusals.
            let responses = operation["responses"].as_object_mut().into_iter().flatten();
            for (_, response) in responses.filter(|(_, response)| response.get("$ref").is_some()) {
                *response = json!({"$ref": "#/components/responses/refused_as_openai_does"});
            }
        }
        let methods = self.paths.entry(path).or_insert_with(|| json!({}));
        methods[method] = operation;
    }

    /// Returns the page that describes all routes.
    pub(super) fn openapi(mut self) -> Value {
        let schemas = self.schemas.take_definitions(true);
        super::server_routes::page(self.paths, schemas)
    }
}

/// Creates the documentation of a route that returns an envelope: see [`RouteDoc::new`].
pub(super) fn doc(id: &str, summary: &str, statuses: &[u16]) -> RouteDoc {
    RouteDoc::new(id, summary, ResponseKind::Envelope, statuses)
}

impl RouteDoc {
    /// Creates the documentation of a route: its purpose in one line, and the statuses of its responses.
    ///
    /// The id is the name of the operation in generated clients: a verb and its object.
    pub(super) fn new(id: &str, summary: &str, gives: ResponseKind, statuses: &[u16]) -> Self {
        let responses: Map<String, Value> =
            statuses.iter().map(|status| (status.to_string(), answer(*status, gives))).collect();
        let mut operation = json!({"operationId": id, "summary": summary, "parameters": [], "responses": responses});
        refuses(&mut operation, &["500", "503"]);
        Self { operation, query: None, body: None }
    }

    /// Adds the id in the path, with its description.
    pub(super) fn path(mut self, what: &str) -> Self {
        let schema = json!({"type": "string"});
        push(
            &mut self.operation,
            json!({"name": "id", "in": "path", "required": true, "description": what, "schema": schema}),
        );
        refuses(&mut self.operation, &["404"]);
        self
    }

    /// Adds a query of this type.
    pub(super) fn query<T: JsonSchema>(self) -> Self {
        Self { query: Some(T::json_schema), ..self }
    }

    /// Adds a body of this type.
    pub(super) fn body<T: JsonSchema>(self) -> Self {
        Self { body: Some(SchemaGenerator::subschema_for::<T>), ..self }
    }
}

fn add_query(operation: &mut Value, schema: &Schema) {
    let required = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let mut property = property.clone();
        let described = property.as_object_mut().and_then(|property| property.remove("description"));
        let mut parameter = json!({
            "name": name, "in": "query", "required": required.iter().any(|known| known == name),
            "schema": not_null(property),
        });
        // A missing description is left out, because null is not a description.
        if let Some(described) = described {
            parameter["description"] = described;
        }
        push(operation, parameter);
    }
    refuses(operation, &["422"]);
}

fn push(operation: &mut Value, parameter: Value) {
    if let Some(parameters) = operation["parameters"].as_array_mut() {
        parameters.push(parameter);
    }
}

/// Adds these statuses as refusals.
fn refuses(operation: &mut Value, statuses: &[&str]) {
    for status in statuses {
        operation["responses"][status] = json!({"$ref": "#/components/responses/refused"});
    }
}

/// Removes `null` from the type: an optional query parameter is left out.
fn not_null(mut schema: Value) -> Value {
    if let Some(types) = schema.get_mut("type")
        && let Some(kinds) = types.as_array()
    {
        let kinds: Vec<Value> = kinds.iter().filter(|kind| *kind != "null").cloned().collect();
        *types = match kinds.as_slice() {
            [only] => only.clone(),
            _ => Value::Array(kinds),
        };
    }
    schema
}

fn answer(status: u16, gives: ResponseKind) -> Value {
    let (kind, schema) = match gives {
        ResponseKind::Envelope => ("application/json", json!({"$ref": "#/components/schemas/Envelope"})),
        ResponseKind::Events => ("text/event-stream", json!({"type": "string"})),
        ResponseKind::Text(kind) => (kind, json!({})),
    };
    let said = match status {
        200 => "success",
        201 => "created",
        202 => "started; it is still running",
        204 => "the run has ended and there are no more events",
        _ => return json!({"$ref": "#/components/responses/refused"}),
    };
    match status {
        204 => json!({"description": said}),
        _ => json!({"description": said, "content": {kind: {"schema": schema}}}),
    }
}
