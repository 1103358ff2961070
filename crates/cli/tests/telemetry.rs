//! The spans and the log of a cast, from the real binary.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::serve::Server;
use crate::support::collector::{Collector, Told};
use crate::support::{Folder, stderr, stdout};

/// A key that redaction recognizes by its format; it was not loaded by the process.
const KEY: &str = "sk-ant-api03-Q7wXv0Zk2bT9yLr4NdPmCeHsAfUgJi81xYoEzVtBKcM";
const QUESTION: &str = "what-is-asked-of-it";
const ECHOED: &str = "what-a-gate-is-given";

/// A spell with calls that succeed, that are invalid and that fail, and with a child.
fn planner() -> Folder {
    let folder = Folder::new();
    folder.write(
        "planner.toml",
        "name = \"planner\"\ncrystal = \"scripted/planner.yaml\"\n[call]\ntemperature = 0.5\n[gates.echo]\n\
         [gates.call_agent]\n[gates.broken]\ncommand = [\"./broken.sh\"]\nlabels = []\n\
         on_error = \"error\"\n[wards]\nmax_turns = 9\n",
    );
    folder.write(
        "planner.yaml",
        &format!(
            "responses:\n  - tool_calls: [{{id: c1, gate: echo, args: {{text: '{ECHOED} {KEY}'}}}}, \
             {{id: c2, gate: echo, args: {{}}}}, {{id: c3, gate: broken, args: {{}}}}]\n    \
             usage: {{prompt_tokens: 100, completion_tokens: 20, cached_tokens: 60}}\n  \
             - tool_calls: [{{id: c4, gate: call_agent, args: {{intent: 'the part of a child {KEY}'}}}}]\n  \
             - tool_calls: [{{id: d1, gate: done, args: {{answer: small}}}}]\n  \
             - tool_calls: [{{id: d2, gate: done, args: {{answer: '{KEY}'}}}}]\n",
        ),
    );
    folder.write("broken.sh", &format!("#!/bin/sh\necho 'it broke with {KEY}' >&2\nexit 3\n"));
    let script = folder.path().join("broken.sh");
    std::fs::set_permissions(script, std::fs::Permissions::from_mode(0o755)).expect("a script");
    folder
}

fn cast(folder: &Folder, collector: &str) -> Command {
    let mut command = folder.command(&["cast", "planner.toml", &format!("{QUESTION} {KEY}"), "--json"]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector).stdin(Stdio::null());
    command
}

#[track_caller]
fn ended(output: &Output) -> Value {
    let envelope = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_envelope(&envelope, codes::TERMINATED.any());
    envelope
}

#[track_caller]
fn named<'a>(spans: &'a [Told], name: &str) -> Vec<&'a Told> {
    let found: Vec<_> = spans.iter().filter(|span| span.name == name).collect();
    assert!(!found.is_empty(), "no {name} in {spans:#?}");
    found
}

#[test]
fn a_collector_is_told_of_every_cast_request_and_call_below_its_parent() {
    let (folder, collector) = (planner(), Collector::start());
    let output = cast(&folder, &collector.address)
        .env("OTEL_EXPORTER_OTLP_HEADERS", format!("x-key={KEY}"))
        .env("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
        .output()
        .expect("the binary runs");
    let envelope = ended(&output);
    let spans = collector.spans();

    let casts = named(&spans, "invoke_agent planner");
    let (root, child) = match casts.as_slice() {
        [child, root] => (*root, *child),
        other => panic!("a child that ends before its parent: {other:#?}"),
    };
    assert_eq!(root.parent, "", "nobody asked for it from outside");
    assert!(spans.iter().all(|span| span.trace_id == envelope["meta"]["trace_id"]), "one trace, as the envelope says");
    assert_eq!(root.attributes["gen_ai.operation.name"], "invoke_agent");
    assert_eq!(root.attributes["gen_ai.agent.name"], "planner");
    assert!(root.attributes["gen_ai.agent.id"].as_str().expect("an id").len() > 8);
    assert_eq!(root.attributes["gen_ai.conversation.id"], envelope["data"]["entity_id"]);
    assert_eq!(root.attributes["gen_ai.provider.name"], "scripted");
    assert_eq!(root.attributes["cantrip.reply.code"], codes::TERMINATED.as_str());
    assert_eq!(root.attributes["cantrip.turns"], envelope["data"]["turns"]);
    assert_eq!((root.status, root.kind), (0, 1));

    let chats = named(&spans, "chat planner.yaml");
    let of_root: Vec<_> = chats.iter().filter(|chat| chat.parent == root.span_id).collect();
    assert_eq!((chats.len(), of_root.len()), (4, 3), "one of the child");
    assert_eq!(of_root[0].attributes["gen_ai.operation.name"], "chat");
    assert_eq!(of_root[0].attributes["gen_ai.request.model"], "planner.yaml");
    assert_eq!(of_root[0].attributes["gen_ai.response.model"], "scripted/planner.yaml");
    assert_eq!(of_root[0].attributes["gen_ai.request.temperature"], 0.5);
    assert_eq!(of_root[0].attributes["gen_ai.usage.input_tokens"], 100);
    assert_eq!(of_root[0].attributes["gen_ai.usage.output_tokens"], 20);
    assert_eq!(of_root[0].attributes["gen_ai.usage.cache_read.input_tokens"], 60);
    assert_eq!(of_root[0].attributes["gen_ai.response.finish_reasons"], json!(["tool_call"]));
    assert_eq!((of_root[0].status, of_root[0].kind), (0, 3));

    let echoes = named(&spans, "execute_tool echo");
    let (good, bad) = (echoes[0], echoes[1]);
    assert!(echoes.iter().all(|echo| echo.parent == root.span_id));
    assert_eq!(good.attributes["gen_ai.tool.name"], "echo");
    assert_eq!(good.attributes["gen_ai.tool.call.id"], "c1");
    assert_eq!(good.attributes["cantrip.reply.type"], "S");
    assert_eq!(good.attributes["error.type"], Value::Null);
    assert_eq!(bad.attributes["cantrip.reply.type"], "I");
    assert_eq!(bad.attributes["error.type"], codes::SCHEMA.as_str());
    assert_eq!(bad.status, 0, "what the caller has to mend is no failure of ours");
    let broken = named(&spans, "execute_tool broken")[0];
    assert_eq!(broken.attributes["cantrip.reply.type"], "E");
    assert_eq!(broken.attributes["error.type"], broken.attributes["cantrip.reply.code"]);
    assert_eq!(broken.status, 2);

    let delegating = named(&spans, "execute_tool call_agent")[0];
    assert_eq!(delegating.parent, root.span_id);
    assert_eq!(child.parent, delegating.span_id, "a child hangs below the call that asked for it");
    assert!(delegating.took_ns >= child.took_ns, "which lasts as long as it does");
    assert_ne!(child.attributes["gen_ai.conversation.id"], root.attributes["gen_ai.conversation.id"]);
    let dones = named(&spans, "execute_tool done");
    assert!(
        dones.iter().any(|done| done.parent == child.span_id) && dones.iter().any(|done| done.parent == root.span_id)
    );
    assert_eq!(spans.len(), 2 + 4 + 2 + 1 + 1 + 2);

    let resource = &collector.resources()[0];
    assert_eq!(resource["service.name"], "cantrip");
    assert_eq!(resource["deployment.environment.name"], "test");
    let head = &collector.heads()[0];
    assert!(head.starts_with("POST /v1/traces HTTP/1.1") && head.contains(KEY), "it has what it is to be told: {head}");
    for content in [QUESTION, ECHOED, "the part of a child", "it broke", "small"] {
        assert!(!collector.holds(content), "{content} was told unasked");
    }
    let bodies = collector.spans();
    assert!(!format!("{bodies:?}").contains("sk-ant"), "a secret was told");
}

#[test]
fn content_is_told_where_it_is_asked_for_and_secrets_are_not_even_then() {
    let (folder, collector) = (planner(), Collector::start());
    let mut command = cast(&folder, &collector.address);
    ended(&command.env("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true").output().expect("it runs"));
    let spans = collector.spans();
    let told = |span: &Told, key: &str| -> Value {
        serde_json::from_str(span.attributes[key].as_str().unwrap_or_else(|| panic!("no {key}: {span:#?}"))).unwrap()
    };
    let root = *named(&spans, "invoke_agent planner").last().expect("a root");
    let intent = told(root, "gen_ai.input.messages");
    assert_eq!(intent[0]["role"], "user");
    assert!(intent[0]["parts"][0]["content"].as_str().expect("a text").starts_with(QUESTION));
    let chat = named(&spans, "chat planner.yaml")[0];
    let said = told(chat, "gen_ai.output.messages");
    assert_eq!(said[0]["parts"][0]["type"], "tool_call");
    assert_eq!(said[0]["parts"][0]["name"], "echo");
    assert_eq!(json!([said[0]["finish_reason"]]), chat.attributes["gen_ai.response.finish_reasons"]);
    // The answer of the child is a text, and is told as it is.
    let child = named(&spans, "invoke_agent planner")[0];
    let answered = told(child, "gen_ai.output.messages");
    let part = json!({"type": "text", "content": "small"});
    assert_eq!((&answered[0]["parts"], &answered[0]["finish_reason"]), (&json!([part]), &json!("stop")));
    assert!(told(chat, "gen_ai.input.messages").to_string().contains(QUESTION));
    let echo = named(&spans, "execute_tool echo")[0];
    assert!(told(echo, "gen_ai.tool.call.arguments")["text"].as_str().expect("a text").starts_with(ECHOED));
    assert!(echo.attributes["gen_ai.tool.call.result"].as_str().expect("a text").contains(ECHOED));
    assert!(!collector.holds("sk-ant"), "a secret was told");
}

#[test]
fn a_collector_that_is_not_there_neither_fails_nor_slows_a_cast() {
    let folder = planner();
    // No server listens at a port that was free a moment ago.
    let gone = TcpListener::bind(("127.0.0.1", 0)).expect("a port").local_addr().expect("an address");
    let began = Instant::now();
    let output = cast(&folder, &format!("http://{gone}")).output().expect("the binary runs");
    ended(&output);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let said = stderr(&output);
    assert_eq!(said.matches("did not reach their collector").count(), 1, "{said}");
    assert!(!said.contains("sk-ant"), "{said}");

    // A collector that accepts the connection and never answers must not delay the process.
    let deaf = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = format!("http://{}", deaf.local_addr().expect("an address"));
    let began = Instant::now();
    ended(&cast(&folder, &address).output().expect("the binary runs"));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());

    for bad in ["not a url", "http://"] {
        let output = cast(&folder, bad).output().expect("the binary runs");
        ended(&output);
    }
}

#[test]
fn what_the_sampler_leaves_out_is_not_sent_and_without_a_collector_nothing_is_said() {
    let (folder, collector) = (planner(), Collector::start());
    ended(&cast(&folder, &collector.address).env("OTEL_TRACES_SAMPLER", "always_off").output().expect("it runs"));
    ended(&cast(&folder, &collector.address).env("OTEL_SDK_DISABLED", "true").output().expect("it runs"));
    assert_eq!(collector.spans().len(), 0);
    let quiet = folder.run(&["cast", "planner.toml", QUESTION, "--json", "--quiet"]);
    ended(&quiet);
    assert_eq!(stderr(&quiet), "");
}

#[test]
fn ctrl_c_sends_what_there_is() {
    let (folder, collector) = (Folder::new(), Collector::start());
    folder.write(
        "slow.toml",
        "name = \"slow\"\ncrystal = \"scripted/slow.yaml\"\n[gates.echo]\n[wards]\nmax_turns = 5\n",
    );
    folder.write(
        "slow.yaml",
        "responses:\n  - tool_calls: [{id: c1, gate: echo, args: {text: once}}]\n  \
         - {tool_calls: [{id: c2, gate: done, args: {answer: over}}], delay_ms: 60000}\n",
    );
    let mut command = folder.command(&["cast", "slow.toml", "go", "--json"]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.address).env("CANTRIP_LOG", "info");
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let began = Instant::now();
    while !folder.path().join("kept/records.jsonl").exists()
        || !folder.read("kept/records.jsonl").contains("\"type\":\"turn\"")
    {
        assert!(began.elapsed() < Duration::from_secs(30), "it takes no turn");
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&child), Signal::INT).expect("it is there");
    let output = child.wait_with_output().expect("it ends");
    let spans = collector.spans();
    assert!(!stdout(&output).is_empty());
    named(&spans, "execute_tool echo");
    let given_up = *named(&spans, "chat slow.yaml").last().expect("the request that was waited for");
    assert_eq!(given_up.attributes["error.type"], codes::ENDED_FROM_OUTSIDE.as_str());
    let root = named(&spans, "invoke_agent slow")[0];
    assert_eq!(root.attributes["cantrip.reply.code"], codes::CREATED.as_str(), "the run waits");
}

#[test]
fn the_log_has_one_line_for_each_request_and_each_call_if_it_is_asked_for() {
    let folder = planner();
    let mut command = folder.command(&["cast", "planner.toml", &format!("{QUESTION} {KEY}"), "--json", "--quiet"]);
    let output =
        command.env("CANTRIP_LOG", "info").env("NO_COLOR", "1").stdin(Stdio::null()).output().expect("it runs");
    let envelope = ended(&output);
    let said = stderr(&output);
    let lines = |message: &str| -> Vec<&str> { said.lines().filter(|line| line.contains(message)).collect() };
    let chats = lines("cantrip::crystal: chat ");
    assert_eq!(chats.len(), 4, "{said}");
    let entity = envelope["data"]["entity_id"].as_str().expect("an entity");
    for part in
        ["input_tokens=100", "output_tokens=20", "duration_us=", "code=\"MCP-SYS-S-001\"", "turn_id=turn_", entity]
    {
        assert!(chats[0].contains(part), "{part} is not in {}", chats[0]);
    }
    let calls = lines("cantrip::call: call ");
    assert_eq!(calls.iter().filter(|line| line.contains("tool=\"echo\"")).count(), 2, "{said}");
    assert!(calls.iter().any(|line| line.contains("tool=\"broken\"") && line.contains(" ERROR ")), "{said}");
    for content in [QUESTION, ECHOED, "sk-ant", "invoke_agent"] {
        assert!(!said.contains(content), "{content} is in the log: {said}");
    }
}

/// All output of a cast over HTTP, wherever it can be read.
#[test]
fn a_planted_key_is_in_no_line_span_metric_or_event_of_a_server() {
    let (folder, collector) = (planner(), Collector::start());
    // A key that matches no known format: it is in the environment of the process, and is sent in a header.
    folder.write(
        "planner.toml",
        &folder.read("planner.toml").replace(
            "[wards]",
            &format!(
                "[gates.endpoint]\nurl = \"{}\"\nmethod = \"GET\"\nallow_hosts = [\"127.0.0.1\"]\nlabels = []\n\
                 headers = {{ Authorization = \"Bearer ${{PLANTED}}\" }}\n[wards]",
                collector.address
            ),
        ),
    );
    let script = folder.read("planner.yaml").replace(
        "{id: c3, gate: broken, args: {}}",
        "{id: c3, gate: broken, args: {}}, {id: c5, gate: endpoint, args: {}}",
    );
    folder.write("planner.yaml", &script);
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address.as_str()),
        ("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true"),
        ("CANTRIP_LOG", "trace"),
        ("NO_COLOR", "1"),
        ("PLANTED", KEY),
    ];
    let server = Server::start_with(&folder, &["--store", "memory:"], &variables);
    let headers = format!("authorization: Bearer {KEY}\r\nx-api-key: {KEY}\r\ntracestate: k={KEY}\r\n");
    let asked = json!({"spell": "planner", "intent": format!("{QUESTION} {KEY}"), "wait": true});
    let (_, envelope) = server.ask_with("POST", "/v1/casts", &headers, Some(&asked));
    assert_envelope(&envelope, codes::TERMINATED.any());
    let (_, runs) = server.ask("GET", "/v1/runs?most=1", None);
    let run = runs["data"]["value"]["items"][0]["run_id"].as_str().unwrap_or_else(|| panic!("{runs}")).to_owned();
    let seen: Vec<(String, String)> =
        ["/metrics".to_owned(), format!("/v1/runs/{run}/events"), format!("/v1/runs/{run}/records")]
            .into_iter()
            .map(|path| (path.clone(), server.text(&path)))
            .collect();
    let (status, log) = server.stop_and_read(Signal::TERM);
    assert_eq!(status, 0);
    assert!(seen[1].1.contains(QUESTION) && seen[2].1.contains(QUESTION), "the feeds tell of the cast: {seen:#?}");
    assert!(log.contains("cantrip::crystal: chat "), "the log tells of the cast: {log}");
    let spans = collector.spans();
    let echo = named(&spans, "execute_tool echo")[0];
    assert!(echo.attributes["gen_ai.tool.call.arguments"].to_string().contains(ECHOED), "{echo:#?}");
    for (place, text) in
        seen.iter().map(|(path, text)| (path.as_str(), text.as_str())).chain([("the log", log.as_str())])
    {
        assert!(!text.contains("sk-ant"), "{place}: {text}");
    }
    assert!(!format!("{spans:?}").contains("sk-ant"), "a span: {spans:#?}");
}
