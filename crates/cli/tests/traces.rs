//! `traceparent` in and out: one trace through processes, surfaces, crystals and gates.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::serve::Server;
use crate::support::Folder;
use crate::support::collector::{Collector, Told};
use crate::support::model::Model;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const STATE: &str = "vendor=kept,other=too";

fn once(folder: &Folder) {
    folder.write(
        "once.toml",
        "name = \"once\"\ncrystal = \"scripted/once.yaml\"\n[gates.echo]\n[wards]\nmax_turns = 5\n",
    );
    folder.write("once.yaml", "responses:\n  - tool_calls: [{id: d, gate: done, args: {answer: over}}]\n");
}

fn run(command: &mut Command) -> Value {
    let output = command.stdin(Stdio::null()).output().expect("the binary runs");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[track_caller]
fn named<'a>(spans: &'a [Told], name: &str) -> &'a Told {
    spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no {name} in {spans:#?}"))
}

/// Returns the value of a header in the head of a request.
fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.split_once(':').filter(|(key, _)| *key == name).map(|(_, value)| value.trim()))
}

#[test]
fn a_cast_of_the_command_line_hangs_below_the_span_that_started_it() {
    let (folder, collector) = (Folder::new(), Collector::start());
    once(&folder);
    let cast = |parent: &str| {
        let mut command = folder.command(&["cast", "once.toml", "go", "--json"]);
        command.env("TRACEPARENT", parent).env("TRACESTATE", STATE);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.address);
        let envelope = run(&mut command);
        assert_envelope(&envelope, codes::TERMINATED.any());
        envelope["meta"]["trace_id"].as_str().expect("an id").to_owned()
    };
    assert_eq!(cast(PARENT), TRACE);
    let spans = collector.spans();
    let root = named(&spans, "invoke_agent once");
    assert_eq!((root.trace_id.as_str(), root.parent.as_str(), root.state.as_str()), (TRACE, SPAN, STATE));
    assert!(spans.iter().all(|span| span.trace_id == TRACE), "{spans:#?}");
    let sent = spans.len();
    // The caller's trace is not sampled, so our spans are not sent either.
    assert_eq!(cast("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"), TRACE);
    assert_eq!(collector.spans().len(), sent);
    for malformed in ["", "nonsense", "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", &PARENT.to_uppercase()]
    {
        assert_ne!(cast(malformed), TRACE, "{malformed}");
    }
}

#[test]
fn a_request_over_http_carries_its_trace_into_the_run_and_the_envelope() {
    let (folder, collector) = (Folder::new(), Collector::start());
    once(&folder);
    let told = [("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address.as_str())];
    let server = Server::start_with(&folder, &["--store", "memory:"], &told);
    let headers = format!("traceparent: {PARENT}\r\ntracestate: {STATE}\r\n");
    let asked = json!({"spell": "once", "intent": "go", "wait": true});
    let (_, envelope) = server.ask_with("POST", "/v1/casts", &headers, Some(&asked));
    assert_envelope(&envelope, codes::TERMINATED.any());
    assert_eq!(envelope["meta"]["trace_id"], TRACE);
    let (_, refused) = server.ask_with("GET", "/v1/runs/nobody", &headers, None);
    assert_envelope(&refused, codes::NOT_FOUND.any());
    assert_eq!(refused["meta"]["trace_id"], TRACE, "also what is refused");
    let (_, other) = server.ask_with("GET", "/v1/runs/nobody", "traceparent: nonsense\r\n", None);
    assert_ne!(other["meta"]["trace_id"], TRACE);
    let chat = json!({"model": "once", "messages": [{"role": "user", "content": "go"}]});
    let (status, _) = server.ask_with("POST", "/v1/chat/completions", &headers, Some(&chat));
    assert_eq!(status, 200);
    let (_, quiet) = server.ask("POST", "/v1/casts", Some(&asked));
    assert_ne!(quiet["meta"]["trace_id"], TRACE, "the next one on its own");
    assert_eq!(server.stop(Signal::TERM), 0);
    let spans = collector.spans();
    let roots: Vec<_> = spans.iter().filter(|span| span.name == "invoke_agent once").collect();
    let below: Vec<_> = roots.iter().filter(|root| root.parent == SPAN).collect();
    assert_eq!((roots.len(), below.len()), (3, 2), "{roots:#?}");
    assert!(below.iter().all(|root| root.trace_id == TRACE && root.state == STATE));
}

/// A spell with a local model that calls every kind of gate which can receive a trace context.
fn caller(folder: &Folder, model: &str, endpoint: &str, server: &str) {
    folder.write(
        "caller.toml",
        &format!(
            "name = \"caller\"\ncrystal = \"{model}\"\n[gates.program]\ncommand = [\"./program.sh\"]\nlabels = []\n\
             [gates.endpoint]\nurl = \"{endpoint}\"\nmethod = \"GET\"\nallow_hosts = [\"127.0.0.1\", \"0.0.0.0\"]\n\
             labels = []\n[gates.far]\nmcp = \"{server}\"\ntools = [\"cast\"]\nlabels = []\n[wards]\nmax_turns = 9\n"
        ),
    );
    folder.write(
        "program.sh",
        "#!/bin/sh\nprintf '{\"parent\": \"%s\", \"state\": \"%s\"}' \"$TRACEPARENT\" \"$TRACESTATE\"\n",
    );
    let script = folder.path().join("program.sh");
    std::fs::set_permissions(script, std::fs::Permissions::from_mode(0o755)).expect("a script");
}

/// A model that calls these gates, one after another.
fn calling() -> Model {
    Model::start(|request| {
        let messages = request["messages"].as_array().cloned().unwrap_or_default();
        let tools: Vec<_> = messages.iter().filter(|message| message["role"] == "tool").collect();
        let seen = tools.first().map(|tool| tool["content"].clone()).unwrap_or_default();
        let (name, arguments) = match tools.len() {
            0 => ("program", json!({})),
            1 => ("endpoint", json!({})),
            2 => ("far_cast", json!({"spell": "once", "intent": "go"})),
            _ => ("done", json!({"answer": seen})),
        };
        let call = json!({"id": format!("call_{name}"), "type": "function",
            "function": {"name": name, "arguments": arguments.to_string()}});
        json!({"role": "assistant", "content": null, "tool_calls": [call]})
    })
}

#[test]
fn crystals_programs_endpoints_and_servers_of_this_machine_are_told_of_the_trace() {
    let (folder, collector) = (Folder::new(), Collector::start());
    once(&folder);
    let told = [("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address.as_str())];
    let server = Server::start_with(&folder, &["--store", "memory:"], &told);
    let (model, endpoint) = (calling(), Model::saying("here"));
    caller(&folder, &model.crystal(), endpoint.url(), &format!("http://{}/mcp", server.address()));
    let mut command = folder.command(&["cast", "caller.toml", "go", "--json"]);
    command.env("TRACEPARENT", PARENT).env("TRACESTATE", STATE);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.address);
    let envelope = run(&mut command);
    assert_envelope(&envelope, codes::TERMINATED.any());
    assert_eq!(server.stop(Signal::TERM), 0);
    let spans = collector.spans();
    assert!(spans.iter().all(|span| span.trace_id == TRACE && span.state == STATE), "one trace: {spans:#?}");
    let below = |span: &Told| format!("00-{TRACE}-{}-01", span.span_id);

    let chats: Vec<_> = spans.iter().filter(|span| span.name == "chat test").collect();
    let heads = model.heads();
    assert_eq!(heads.len(), chats.len());
    for (head, chat) in heads.iter().zip(&chats) {
        assert_eq!(header(head, "traceparent"), Some(below(chat).as_str()), "{head}");
        assert_eq!(header(head, "tracestate"), Some(STATE), "{head}");
    }
    let seen: Value = serde_json::from_str(envelope["data"]["answer"].as_str().expect("a text")).expect("JSON");
    assert_eq!(seen["parent"], below(named(&spans, "execute_tool program")));
    assert_eq!(seen["state"], STATE);
    let heads = endpoint.heads();
    assert_eq!(header(&heads[0], "traceparent"), Some(below(named(&spans, "execute_tool endpoint")).as_str()));
    let inner = named(&spans, "invoke_agent once");
    assert_eq!(inner.parent, named(&spans, "execute_tool far_cast").span_id, "a cast of another process");
}

#[test]
fn nobody_beyond_this_machine_is_told_unless_they_are_named() {
    let folder = Folder::new();
    once(&folder);
    let model = Model::saying("so");
    // Another name for this machine that does not count as local.
    let elsewhere = |url: &str| url.replace("127.0.0.1", "0.0.0.0");
    folder.write(
        "far.toml",
        &format!("name = \"far\"\ncrystal = \"{}\"\n[wards]\nmax_turns = 2\n", elsewhere(&model.crystal())),
    );
    let cast = |named: Option<&str>, parent: Option<&str>| {
        let mut command = folder.command(&["cast", "far.toml", "go", "--json"]);
        if let Some(parent) = parent {
            command.env("TRACEPARENT", parent);
        }
        if let Some(named) = named {
            command.env("CANTRIP_TRACEPARENT_TO", named);
        }
        assert_envelope(&run(&mut command), codes::TERMINATED.any());
        header(model.heads().last().expect("asked"), "traceparent").map(str::to_owned)
    };
    assert_eq!(cast(None, Some(PARENT)), None);
    assert_eq!(cast(Some("gateway.internal, *.example.org"), Some(PARENT)), None);
    assert_eq!(cast(Some("gateway.internal, 0.0.0.0"), None), None, "there is no trace to tell of");
    // If no spans are made, the caller's span is passed on unchanged.
    assert_eq!(cast(Some("gateway.internal, 0.0.0.0"), Some(PARENT)).as_deref(), Some(PARENT));
    let own = folder.path().join(".config/cantrip");
    std::fs::create_dir_all(&own).expect("a folder");
    std::fs::write(own.join("config.toml"), "[telemetry]\ntraceparent_to = [\"0.0.0.0\"]\n").expect("written");
    assert_eq!(cast(None, Some(PARENT)).as_deref(), Some(PARENT), "the user's own file names it");
    assert_eq!(cast(Some(""), Some(PARENT)), None, "a variable wins");
}

#[test]
fn a_server_over_pipes_takes_the_trace_of_each_request() {
    let folder = Folder::new();
    once(&folder);
    let script = Path::new(env!("CARGO_BIN_EXE_cantrip"));
    folder.write(
        "near.toml",
        &format!(
            "name = \"near\"\ncrystal = \"scripted/near.yaml\"\n[gates.near]\ntools = [\"cast\"]\nlabels = []\n\
             mcp = [\"{}\", \"mcp\", \"--store\", \"memory:\"]\n[wards]\nmax_turns = 3\n",
            script.display()
        ),
    );
    folder.write(
        "near.yaml",
        "responses:\n  - tool_calls: [{id: c1, gate: near_cast, args: {spell: once, intent: go}}]\n  \
         - tool_calls: [{id: d, gate: done, args: {answer: over}}]\n",
    );
    let mut command = folder.command(&["cast", "near.toml", "go", "--json"]);
    let envelope = run(command.env("TRACEPARENT", PARENT));
    assert_envelope(&envelope, codes::TERMINATED.any());
    let inner = &folder.seen(&["thread"])["turns"][0]["gate_calls"][0]["result"];
    assert_eq!(inner["meta"]["trace_id"], TRACE, "the answer of the other process: {inner}");
}
