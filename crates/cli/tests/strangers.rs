//! The resources of one owner do not exist for another. Every route and every tool of the server is called by a
//! stranger with the real ids of another owner's resources, and must return exactly the same answer as for an id that
//! never existed. A route or a tool without a line in these tables fails the test.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use cantrip::spend::ReservationRow;
use cantrip_reply::codes;
use serde_json::{Value, json};

use crate::serve::Server;
use crate::signatures::SHOUT;
use crate::support::model::Model;
use crate::support::{Folder, id};

const ANN: &str = "token-of-ann-0123456789";
const BOB: &str = "token-of-bob-0123456789";
const ROOT: &str = "token-of-root-0123456789";

/// How a route treats resources that belong to an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    /// The path names a resource of this kind; a stranger gets NotFound.
    Hides(&'static str),
    /// The path names a resource of this kind; every owner is denied, whether the resource exists or not.
    Denies(&'static str),
    /// The route shows the caller's own resources; actions of others do not change its answer.
    ShowsOwn,
    /// The route is about shared resources, or creates a resource of the caller without reading anybody else's.
    Shared,
}

use Line::{Denies, Hides, Shared, ShowsOwn};

/// Returns every route, with the body of the request.
fn lines() -> Vec<(&'static str, &'static str, Line, Value)> {
    let none = Value::Null;
    vec![
        ("get", "/healthz", Shared, none.clone()),
        ("get", "/metrics", Shared, none.clone()),
        ("get", "/openapi.json", Shared, none.clone()),
        ("get", "/v1/codes", Shared, none.clone()),
        ("get", "/v1/crystals", Shared, none.clone()),
        ("get", "/v1/spells", Shared, none.clone()),
        ("get", "/v1/models", Shared, none.clone()),
        ("get", "/v1/models/{id}", Shared, none.clone()),
        ("post", "/v1/chat/completions", Shared, none.clone()),
        ("post", "/v1/casts", Shared, none.clone()),
        ("post", "/v1/entities", Shared, none.clone()),
        ("post", "/v1/predict", Shared, none.clone()),
        ("get", "/v1/signatures", Shared, none.clone()),
        ("post", "/v1/signatures", Shared, none.clone()),
        ("get", "/v1/signatures/{id}", Shared, none.clone()),
        ("get", "/v1/artifacts", Shared, none.clone()),
        ("post", "/v1/artifacts", Shared, none.clone()),
        ("get", "/v1/artifacts/{id}", Shared, none.clone()),
        ("get", "/v1/datasets", Shared, none.clone()),
        ("post", "/v1/datasets", Shared, none.clone()),
        ("get", "/v1/datasets/{id}", Shared, none.clone()),
        ("get", "/v1/datasets/{id}/examples", Shared, none.clone()),
        ("get", "/v1/evals", Shared, none.clone()),
        ("post", "/v1/evals", Shared, none.clone()),
        ("get", "/v1/evals/{id}", Shared, none.clone()),
        ("get", "/v1/evals/{id}/rows", Shared, none.clone()),
        ("get", "/v1/compile", Shared, none.clone()),
        ("post", "/v1/compile", Shared, none.clone()),
        ("get", "/v1/compile/{id}", Shared, none.clone()),
        ("get", "/v1/pointers", Shared, none.clone()),
        ("get", "/v1/pointers/{id}", Shared, none.clone()),
        ("post", "/v1/pointers/{id}", Shared, none.clone()),
        ("get", "/v1/pointers/{id}/audits", Shared, none.clone()),
        ("get", "/v1/runs", ShowsOwn, none.clone()),
        ("get", "/v1/runs/{id}", Hides("run"), none.clone()),
        ("get", "/v1/runs/{id}/turns", Hides("run"), none.clone()),
        ("get", "/v1/runs/{id}/events", Hides("run"), none.clone()),
        ("get", "/v1/runs/{id}/records", Hides("run"), none.clone()),
        ("post", "/v1/runs/{id}/cancel", Hides("run"), json!({})),
        ("post", "/v1/runs/{id}/approve", Hides("waiting run"), json!({"decision": "approve"})),
        ("post", "/v1/runs/{id}/fork", Hides("run"), json!({"intent": "mine"})),
        ("post", "/v1/runs/{id}/resume", Hides("waiting run"), json!({})),
        ("post", "/v1/runs/{id}/continue", Hides("run"), json!({})),
        ("get", "/v1/looms", ShowsOwn, none.clone()),
        ("get", "/v1/looms/{id}", Hides("loom"), none.clone()),
        ("get", "/v1/looms/{id}/entities", Hides("loom"), none.clone()),
        ("get", "/v1/looms/{id}/leaves", Hides("loom"), none.clone()),
        ("get", "/v1/turns/{id}", Hides("turn"), none.clone()),
        ("get", "/v1/turns/{id}/thread", Hides("turn"), none.clone()),
        ("get", "/v1/turns/{id}/rewards", Hides("turn"), none.clone()),
        ("post", "/v1/turns/{id}/reward", Hides("turn"), json!({"reward": 1})),
        ("get", "/v1/entities/{id}", Hides("entity"), none.clone()),
        ("get", "/v1/entities/{id}/casts", Hides("entity"), none.clone()),
        ("post", "/v1/entities/{id}/send", Hides("entity"), json!({"intent": "mine"})),
        ("post", "/v1/entities/{id}/dispose", Hides("entity"), json!({})),
        ("get", "/v1/receipts", ShowsOwn, none.clone()),
        ("get", "/v1/receipts/{id}", Hides("receipt"), none.clone()),
        ("get", "/v1/receipts/{id}/trace", Hides("receipt of a predict"), none.clone()),
        ("post", "/v1/receipts/{id}/verdict", Hides("receipt of a predict"), json!({"verdict": "good"})),
        ("get", "/v1/traces/{id}", Hides("trace"), none.clone()),
        ("get", "/v1/spend/authorizations", ShowsOwn, none.clone()),
        ("post", "/v1/spend/authorizations", Shared, none.clone()),
        ("get", "/v1/spend/authorizations/{id}", Hides("authorization"), none.clone()),
        ("post", "/v1/spend/authorizations/{id}/revoke", Denies("authorization"), json!({"reason": "mine"})),
        ("get", "/v1/spend/reservations", ShowsOwn, none.clone()),
        ("post", "/v1/spend/reservations/{id}/reconcile", Denies("reservation"), json!({"reason": "mine"})),
        ("get", "/v1/spend/verify", ShowsOwn, none),
    ]
}

/// An MCP tool by name, its arguments (each with the kind of resource that it names), and how it treats a stranger.
type ToolLine = (&'static str, Vec<(&'static str, &'static str)>, Line);

fn tools() -> Vec<ToolLine> {
    vec![
        ("spells", vec![], Shared),
        ("codes", vec![], Shared),
        ("signatures", vec![], Shared),
        ("evaluations", vec![], Shared),
        ("compiles", vec![], Shared),
        ("predict", vec![], Shared),
        ("cast", vec![], Shared),
        ("runs", vec![], ShowsOwn),
        ("send", vec![("entity", "entity")], Hides("entity")),
        ("resume", vec![("run", "waiting run")], Hides("run")),
        ("cancel", vec![("run", "run")], Hides("run")),
        ("fork", vec![("turn", "turn")], Hides("turn")),
        ("run", vec![("run", "run"), ("run", "waiting run")], Hides("run")),
        ("thread", vec![("thread", "turn"), ("thread", "entity"), ("thread", "run")], Hides("thread")),
        ("turn", vec![("turn", "turn")], Hides("turn")),
        ("receipts", vec![("receipt", "receipt")], ShowsOwn),
        ("spend_status", vec![("authorization", "authorization")], ShowsOwn),
    ]
}

/// Returns the addresses of MCP resources, with the kinds that each can name.
fn resources() -> Vec<(&'static str, &'static str, &'static [&'static str])> {
    vec![
        ("cantrip://threads/{turn}", "cantrip://threads/", &["turn", "entity", "run"]),
        ("cantrip://receipts/{receipt}", "cantrip://receipts/", &["receipt"]),
        ("cantrip://traces/{trace}", "cantrip://traces/", &["trace", "receipt of a predict"]),
        ("cantrip://evaluations/{evaluation}", "cantrip://evaluations/", &[]),
        ("cantrip://compiles/{compile}", "cantrip://compiles/", &[]),
    ]
}

/// A server with three owners: Ann, Bob and the operator.
struct Walked {
    server: Server,
    _folder: Folder,
    _model: Model,
    /// The model that answers predicts.
    oracle: Model,
}

fn bearer(token: &str) -> String {
    format!("authorization: Bearer {token}\r\n")
}

impl Walked {
    fn start(arguments: &[&str]) -> Self {
        let model = Model::counting(1);
        let folder = Folder::new().with_counter(&model, "0");
        folder.write("tokens", &format!("ann = {ANN}\nbob = {BOB}\nlocal = {ROOT}\n"));
        let spell = "name = \"asks\"\ncrystal = \"scripted/asks.yaml\"\n[gates.edit]\nroot = \".\"\n[wards]\nmax_turns = 9\n\
                     require_approval = [\"edit\"]\n";
        folder.write("asks.toml", spell);
        // Spells that differ only in their name are one cantrip and have one loom.
        let anns = |spell: &str, name: &str| {
            spell.replace(&format!("\"{name}\""), &format!("\"anns-{name}\"")).replace("max_turns = ", "max_turns = 1")
        };
        folder.write("anns-asks.toml", &anns(spell, "asks"));
        folder.write("anns-counter.toml", &anns(&folder.read("counter.toml"), "counter"));
        let call = "{id: c1, gate: edit, args: {path: tokens, old: ann, new: eve}}";
        folder.write("asks.yaml", &format!("responses:\n  - tool_calls: [{call}]\n"));
        folder.write("shout.toml", SHOUT);
        folder.envelope(&[&["sig", "add", "shout.toml"], arguments].concat(), codes::CREATED.any());
        let oracle = Model::start(|_| {
            let arguments = json!({"answer": {"text": "HEY"}}).to_string();
            let call = json!({"id": "c1", "type": "function", "function": {"name": "done", "arguments": arguments}});
            json!({"role": "assistant", "content": null, "tool_calls": [call]})
        });
        let server = Server::start(&folder, &[&["--tokens", "tokens"], arguments].concat());
        Self { server, _folder: folder, _model: model, oracle }
    }

    fn ask(&self, token: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = Some(body).filter(|body| !body.is_null());
        self.server.ask_with(&method.to_uppercase(), path, &bearer(token), body)
    }

    fn value(&self, token: &str, path: &str) -> Value {
        let (status, envelope) = self.ask(token, "get", path, &Value::Null);
        assert_eq!(status, 200, "{path}: {envelope}");
        envelope["data"]["value"].clone()
    }

    fn authorize(&self, owner: &str) -> String {
        let given = json!({"owner": owner, "total": "1.00 USD", "reason": "for the week"});
        let (status, envelope) = self.ask(ROOT, "post", "/v1/spend/authorizations", &given);
        assert_eq!(status, 201, "{envelope}");
        id(&envelope["data"]["authorization_id"]).to_owned()
    }

    /// Casts a spell and waits until the run stops.
    fn cast(&self, token: &str, spell: &str) -> Value {
        let (status, envelope) = self.ask(token, "post", "/v1/casts", &json!({"spell": spell, "intent": "go"}));
        assert_eq!(status, 202, "{envelope}");
        let (path, began) = (format!("/v1/runs/{}", id(&envelope["data"]["run_id"])), Instant::now());
        loop {
            let run = self.value(token, &path);
            if run["state"] != "running" && run["state"] != "queued" {
                return run;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "it does not rest: {run}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Creates a real resource of each kind for this owner.
    fn things(&self, token: &str, authorization: String) -> BTreeMap<&'static str, String> {
        // A loom belongs to a spell, so each owner has their own spell.
        let (counter, asks) = if token == ANN { ("anns-counter", "anns-asks") } else { ("counter", "asks") };
        let (over, waits) = (self.cast(token, counter), self.cast(token, asks));
        assert_eq!((&over["state"], &waits["state"]), (&json!("terminated"), &json!("waiting")), "{over} {waits}");
        let run = id(&over["run_id"]);
        let turns = self.value(token, &format!("/v1/runs/{run}/turns"));
        let reservations = self.value(token, &format!("/v1/spend/reservations?run={run}"));
        let receipts = self.value(token, &format!("/v1/receipts?run={run}"));
        let booked: ReservationRow = serde_json::from_value(reservations["items"][0].clone()).expect("a reservation");
        let reservation = booked.row.terms().id().to_string();
        let asked =
            json!({"signature": "@me/text/Shout.v1", "input": {"text": "hey"}, "crystal": self.oracle.crystal()});
        let (status, predicted) = self.ask(token, "post", "/v1/predict", &asked);
        assert_eq!(status, 200, "{predicted}");
        let of_predict = id(&predicted["data"]["receipt_id"]);
        let trace = self.value(token, &format!("/v1/receipts/{of_predict}"))["trace_ref"].clone();
        BTreeMap::from([
            ("receipt of a predict", of_predict.to_owned()),
            ("trace", id(&trace).to_owned()),
            ("run", run.to_owned()),
            ("waiting run", id(&waits["run_id"]).to_owned()),
            ("approval", id(&waits["approvals"][0]["approval_id"]).to_owned()),
            ("loom", id(&over["loom_id"]).to_owned()),
            ("entity", id(&over["entity_id"]).to_owned()),
            ("turn", id(&turns["items"][0]["id"]).to_owned()),
            ("receipt", id(&receipts["items"][0]["receipt_id"]).to_owned()),
            ("authorization", authorization),
            ("reservation", reservation),
        ])
    }

    /// Sends one MCP message and returns the answer.
    fn said(&self, token: &str, session: Option<&str>, message: &Value) -> (String, Value) {
        let body = message.to_string();
        let session = session.map(|id| format!("mcp-session-id: {id}\r\n")).unwrap_or_default();
        let mut stream = TcpStream::connect(self.server.address()).expect("it listens");
        let head = format!(
            "POST /mcp HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\naccept: \
             application/json, text/event-stream\r\n{}{session}content-length: {}\r\n\r\n{body}",
            bearer(token),
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("it reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("it answers");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        let event = body.lines().filter_map(|line| line.strip_prefix("data: {")).next_back();
        let answer = event.and_then(|event| serde_json::from_str(&format!("{{{event}")).ok());
        (head.to_owned(), answer.unwrap_or_default())
    }

    fn session(&self, token: &str) -> String {
        let client = json!({"name": "by hand", "version": "1"});
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
        let (head, _) =
            self.said(token, None, &json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}));
        let session =
            head.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).expect("a session").to_owned();
        self.said(token, Some(&session), &json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        session
    }

    fn agent_asks(&self, session: &str, method: &str, params: &Value) -> Value {
        let message = json!({"jsonrpc": "2.0", "id": 2, "method": method, "params": params});
        let answer = self.said(BOB, Some(session), &message).1;
        assert!(answer.is_object(), "{method} {params} is not answered");
        answer
    }

    fn tool(&self, session: &str, name: &str, arguments: &Value) -> Value {
        self.agent_asks(session, "tools/call", &json!({"name": name, "arguments": arguments}))
    }
}

/// Returns an id of the same form that was never issued.
fn absent(id: &str) -> String {
    let last = if id.ends_with('0') { '1' } else { '0' };
    let mut other = id.to_owned();
    other.pop();
    other.push(last);
    other
}

/// A placeholder for requests without an id.
const NOTHING: &str = "no id at all";

/// Returns an answer without the values that differ between requests: the requested id, the trace and the time.
fn plain(answer: &Value, asked: &str) -> Value {
    fn trace_of(value: &Value) -> Option<String> {
        match value {
            Value::Object(fields) => match fields.get("trace_id").and_then(Value::as_str) {
                Some(trace) => Some(trace.to_owned()),
                None => fields.values().find_map(trace_of),
            },
            Value::Array(items) => items.iter().find_map(trace_of),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        }
    }
    let mut text = answer.to_string().replace(asked, "ID");
    if let Some(trace) = trace_of(answer) {
        text = text.replace(&trace, "TRACE");
    }
    let mut value: Value = serde_json::from_str(&text).expect("it was JSON");
    for pointer in ["/meta", "/result/structuredContent/meta"] {
        if let Some(meta) = value.pointer_mut(pointer) {
            *meta = Value::Null;
        }
    }
    value
}

/// Asserts that the answer contains nothing of Ann's.
#[track_caller]
fn assert_silent(answer: &Value, things: &BTreeMap<&'static str, String>, asked: Option<&str>, about: &str) {
    let text = answer.to_string();
    assert!(!text.contains("user:ann"), "{about} tells of Ann: {text}");
    for (kind, thing) in things.iter().filter(|(_, thing)| Some(thing.as_str()) != asked) {
        assert!(!text.contains(thing.as_str()), "{about} tells of Ann's {kind}: {text}");
    }
}

#[track_caller]
fn assert_same(one: &(u16, Value), real: &str, other: &(u16, Value), never: &str, about: &str) {
    assert_eq!(one.0, other.0, "{about}: {} {}", one.1, other.1);
    assert_eq!(plain(&one.1, real), plain(&other.1, never), "{about}: a stranger can tell that it is there");
}

#[test]
fn a_stranger_gets_the_same_answer_as_for_what_never_was_at_every_route() {
    let walked = Walked::start(&["--store", "sqlite:kept/loom.db"]);
    // Every route has a line, and every line has a route.
    let (_, page) = walked.ask(BOB, "get", "/openapi.json", &Value::Null);
    let served: BTreeSet<(String, String)> = page["paths"]
        .as_object()
        .expect("paths")
        .iter()
        .flat_map(|(path, methods)| {
            methods.as_object().expect("methods").keys().map(|method| (method.clone(), path.clone()))
        })
        .collect();
    let lines = lines();
    let known: BTreeSet<(String, String)> =
        lines.iter().map(|(method, path, _, _)| ((*method).to_owned(), (*path).to_owned())).collect();
    assert_eq!(known.len(), lines.len(), "a route has one line");
    assert_eq!(known, served, "every route says in `lines` what a stranger gets of it");

    let of_bob = walked.authorize("user:bob");
    let bobs = walked.things(BOB, of_bob);
    let own = |walked: &Walked| -> BTreeMap<&'static str, Value> {
        let shown = lines.iter().filter(|(_, _, line, _)| *line == ShowsOwn);
        shown.map(|(method, path, _, body)| (*path, plain(&walked.ask(BOB, method, path, body).1, NOTHING))).collect()
    };
    let before = own(&walked);
    let of_ann = walked.authorize("user:ann");
    let anns = walked.things(ANN, of_ann);
    for (path, shown) in own(&walked) {
        assert_eq!(shown, before[path], "{path} shows a stranger what Ann did");
        assert_silent(&shown, &anns, None, path);
    }

    for (method, path, line, body) in &lines {
        let (Hides(kind) | Denies(kind)) = line else { continue };
        let (real, never) = (anns[kind].as_str(), absent(&anns[kind]));
        let about = format!("{method} {path}");
        let one = walked.ask(BOB, method, &path.replace("{id}", real), body);
        let other = walked.ask(BOB, method, &path.replace("{id}", &never), body);
        assert_same(&one, real, &other, &never, &about);
        assert_silent(&one.1, &anns, Some(real), &about);
        let (status, code) = match line {
            Hides(_) => (404, codes::NOT_FOUND.as_str()),
            Denies(_) | ShowsOwn | Shared => (403, codes::NOT_AUTHORIZED.as_str()),
        };
        assert_eq!((one.0, id(&one.1["code"])), (status, code), "{about}: {}", one.1);
    }

    // Ids outside of the path: in a query, or in the body of a request about the caller's own resource.
    let queries = [
        ("/v1/receipts?run={}", "run"),
        ("/v1/spend/reservations?run={}", "run"),
        ("/v1/spend/reservations?authorization={}", "authorization"),
    ];
    for (path, kind) in queries {
        let (real, never) = (anns[kind].as_str(), absent(&anns[kind]));
        let one = walked.ask(BOB, "get", &path.replace("{}", real), &Value::Null);
        let other = walked.ask(BOB, "get", &path.replace("{}", &never), &Value::Null);
        assert_same(&one, real, &other, &never, path);
        assert_silent(&one.1, &anns, Some(real), path);
    }
    let bodies = [
        (format!("/v1/runs/{}/fork", bobs["run"]), "turn", "turn", json!({"intent": "mine"})),
        (format!("/v1/runs/{}/approve", bobs["waiting run"]), "approval", "approval", json!({"decision": "approve"})),
    ];
    for (path, field, kind, body) in bodies {
        let (real, never) = (anns[kind].as_str(), absent(&anns[kind]));
        let with = |id: &str| {
            let mut body = body.clone();
            body[field] = json!(id);
            walked.ask(BOB, "post", &path, &body)
        };
        let (one, other) = (with(real), with(&never));
        assert_same(&one, real, &other, &never, &path);
        assert!(one.0 >= 400, "{path}: {}", one.1);
    }
    // None of the stranger's requests had an effect.
    assert_eq!(walked.value(ANN, &format!("/v1/runs/{}", anns["waiting run"]))["state"], "waiting");
    assert_eq!(walked.value(ANN, &format!("/v1/turns/{}/rewards", anns["turn"])), json!([]));
    assert_eq!(walked.value(ANN, "/v1/runs")["items"].as_array().expect("runs").len(), 3);
}

#[test]
fn a_stranger_gets_the_same_answer_as_for_what_never_was_from_every_tool_and_resource() {
    let walked = Walked::start(&["--store", "sqlite:kept/loom.db"]);
    let of_bob = walked.authorize("user:bob");
    walked.things(BOB, of_bob);
    let session = walked.session(BOB);
    let listed = walked.agent_asks(&session, "tools/list", &json!({}));
    let names = |items: &Value, key: &str| -> BTreeSet<String> {
        items.as_array().expect("a list").iter().map(|item| id(&item[key]).to_owned()).collect()
    };
    let tools = tools();
    let known: BTreeSet<String> = tools.iter().map(|(name, _, _)| (*name).to_owned()).collect();
    assert_eq!(
        known,
        names(&listed["result"]["tools"], "name"),
        "every tool says in `tools` what a stranger gets of it"
    );
    let templates = walked.agent_asks(&session, "resources/templates/list", &json!({}));
    let resources = resources();
    let known: BTreeSet<String> = resources.iter().map(|(template, _, _)| (*template).to_owned()).collect();
    assert_eq!(known, names(&templates["result"]["resourceTemplates"], "uriTemplate"));

    let own = || -> BTreeMap<&'static str, Value> {
        let shown = tools.iter().filter(|(_, _, line)| *line == ShowsOwn);
        let mut shown: BTreeMap<_, _> =
            shown.map(|(name, _, _)| (*name, plain(&walked.tool(&session, name, &json!({})), NOTHING))).collect();
        shown.insert("resources/list", plain(&walked.agent_asks(&session, "resources/list", &json!({})), NOTHING));
        let further = json!({"cursor": "receipts:"});
        shown.insert("receipts listed", plain(&walked.agent_asks(&session, "resources/list", &further), NOTHING));
        shown
    };
    let before = own();
    let of_ann = walked.authorize("user:ann");
    let anns = walked.things(ANN, of_ann);
    for (name, shown) in own() {
        assert_eq!(shown, before[name], "{name} shows a stranger what Ann did");
        assert_silent(&shown, &anns, None, name);
    }

    for (name, arguments, _) in &tools {
        for (argument, kind) in arguments {
            let (real, never) = (anns[kind].as_str(), absent(&anns[kind]));
            let mut asked = if *name == "send" { json!({"intent": "mine"}) } else { json!({}) };
            asked[*argument] = json!(real);
            let one = walked.tool(&session, name, &asked);
            asked[*argument] = json!(never);
            let other = walked.tool(&session, name, &asked);
            let about = format!("{name} of a {kind}");
            assert_same(&(0, one.clone()), real, &(0, other), &never, &about);
            assert_silent(&one, &anns, Some(real), &about);
            assert_eq!(one["result"]["structuredContent"]["code"], codes::NOT_FOUND.as_str(), "{about}: {one}");
        }
    }
    for (_, address, kinds) in resources {
        for kind in kinds {
            let (real, never) = (anns[kind].as_str(), absent(&anns[kind]));
            let read =
                |id: &str| walked.agent_asks(&session, "resources/read", &json!({"uri": format!("{address}{id}")}));
            let (one, other) = (read(real), read(&never));
            let about = format!("{address} of a {kind}");
            assert_same(&(0, one.clone()), real, &(0, other), &never, &about);
            assert_silent(&one, &anns, Some(real), &about);
            assert_eq!(one["error"]["data"]["code"], codes::NOT_FOUND.as_str(), "{about}: {one}");
        }
    }
    // Knowing the name of a waiting run is not enough to decide about it.
    let state = |run: &str| {
        let params = json!({"name": "cast", "arguments": {"spell": "asks", "intent": "go"}, "requestState": run,
            "inputResponses": {&anns["approval"]: {"action": "accept", "content": {"decision": "approve"}}}});
        walked.agent_asks(&session, "tools/call", &params)
    };
    let (real, never) = (anns["waiting run"].as_str(), absent(&anns["waiting run"]));
    assert_same(&(0, state(real)), real, &(0, state(&never)), &never, "the state of a request");
    assert_eq!(walked.value(ANN, &format!("/v1/runs/{real}"))["state"], "waiting");
}
