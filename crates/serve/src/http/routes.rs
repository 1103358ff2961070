//! The table of routes: each line registers a handler and its documentation.

use axum::Router;
use axum::handler::Handler;
use axum::routing::MethodRouter;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::{HttpServer, casts, chat, contracts, entities, feeds, ledger, looms, runs, server_routes};

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
        let RouteDoc { mut operation } = about;
        if path != super::admit::HEALTH {
            operation["responses"]["401"] = json!({"$ref": "#/components/responses/refused"});
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

    /// Creates the documentation of a route: its purpose in one line, and the statuses of its responses.
    ///
    /// The id is the name of the operation in generated clients: a verb and its object.
    pub(super) fn doc(&self, id: &str, summary: &str, gives: ResponseKind, statuses: &[u16]) -> RouteDoc {
        let mut responses = Map::new();
        for status in statuses {
            responses.insert(status.to_string(), answer(*status, gives));
        }
        for status in ["500", "503"] {
            responses.insert(status.to_owned(), json!({"$ref": "#/components/responses/refused"}));
        }
        let operation = json!({"operationId": id, "summary": summary, "parameters": [], "responses": responses});
        RouteDoc { operation }
    }

    /// Adds the parameters of the path, each with its description.
    pub(super) fn with_path(&self, mut about: RouteDoc, names: &[(&str, &str)]) -> RouteDoc {
        for (name, what) in names {
            push(
                &mut about,
                json!({
                    "name": name, "in": "path", "required": true, "description": what, "schema": {"type": "string"},
                }),
            );
        }
        about.operation["responses"]["404"] = json!({"$ref": "#/components/responses/refused"});
        about
    }

    /// Adds a query of this type.
    pub(super) fn with_query<T: JsonSchema>(&mut self, mut about: RouteDoc) -> RouteDoc {
        let schema = T::json_schema(&mut self.schemas);
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
            push(&mut about, parameter);
        }
        about.operation["responses"]["422"] = json!({"$ref": "#/components/responses/refused"});
        about
    }

    /// Adds a body of this type.
    pub(super) fn with_body<T: JsonSchema>(&mut self, mut about: RouteDoc) -> RouteDoc {
        let schema = self.schemas.subschema_for::<T>();
        about.operation["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": schema}}});
        for status in ["400", "409", "413", "415", "422", "504"] {
            about.operation["responses"][status] = json!({"$ref": "#/components/responses/refused"});
        }
        about
    }

    /// Returns the page that describes all routes.
    pub(super) fn openapi(mut self) -> Value {
        let schemas = self.schemas.take_definitions(true);
        super::server_routes::page(self.paths, schemas)
    }
}

fn push(about: &mut RouteDoc, parameter: Value) {
    if let Some(parameters) = about.operation["parameters"].as_array_mut() {
        parameters.push(parameter);
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
