//! Servers of the Model Context Protocol as gates: a small one of ours, which also misbehaves on request.

use crate::gates;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cantrip_circle::gate::{Progress, ProgressListener, StopReason, StopSignal, Stopper};
use cantrip_circle::{Circle, Label, Labels};
use cantrip_gate_mcp::limits::MCP_LISTED_MAX;
use cantrip_gate_mcp::{Connection, Server};
use cantrip_reply::testing::assert_code;
use cantrip_reply::{Call, Refusal, Reply, codes};
use gates::{call, circle, execute, guard, heard, value};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The small server, in a folder of its own.
struct Small {
    folder: TempDir,
}

impl Small {
    fn new() -> Self {
        Self { folder: TempDir::new().expect("a temporary folder") }
    }

    fn server(&self) -> Server {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server.py");
        Server::program("small", "python3").arguments([script.display().to_string()]).folder(self.folder.path())
    }

    /// How many processes work in its folder.
    fn processes(&self) -> usize {
        let here = self.folder.path().canonicalize().expect("it is there");
        let all = fs::read_dir("/proc").expect("processes can be listed").flatten();
        all.filter(|process| fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd == here)).count()
    }

    /// Waits until none of them is left: what is killed is gone a moment later.
    async fn gone(&self) {
        while self.processes() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn lines(&self, file: &str) -> usize {
        fs::read_to_string(self.folder.path().join(file)).map_or(0, |text| text.lines().count())
    }

    /// How often it was started.
    fn starts(&self) -> usize {
        self.lines("starts")
    }

    /// Waits until it was told that nobody waits any more.
    async fn cancelled(&self) {
        while self.lines("cancelled") == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn connected(server: &Server) -> Connection {
    server.connect().unwrap_or_else(|refusal| panic!("{:?}", refusal.code()))
}

fn holding(server: &Connection) -> Circle {
    let gates = server.gates(None, &Labels::none()).expect("gates can be made of it");
    circle(gates, json!({}))
}

async fn told(refusal: Refusal) -> Reply {
    guard().call(Call::surface("test"), |rb| async { rb.refuse(refusal) }).await.reply
}

async fn add(circle: &Circle) -> Reply {
    call(circle, "small_add", json!({"a": 2, "b": 3})).await
}

#[tokio::test]
async fn its_tools_are_listed_once_and_called_with_arguments_that_fit() {
    let small = Small::new();
    let server = connected(&small.server());
    assert_eq!(server.revision(), "2025-11-25");
    let names: Vec<&str> = server.tools().iter().map(|tool| tool.name.as_str()).collect();
    assert!(names.is_sorted() && names.contains(&"add") && names.contains(&"sum"), "{names:?}");
    let held = holding(&server);
    let answer = add(&held).await;
    assert_code(&answer, codes::GATE_OK);
    assert_eq!(value(&answer), "5");
    // Two users of the same server with the same settings share its process.
    let again = connected(&small.server());
    assert_eq!(value(&add(&holding(&again)).await), "5");
    assert_eq!(small.starts(), 1);
    // Arguments that do not fit are refused here; the server, which would fail on them, is not asked.
    for wrong in [json!({"a": 2}), json!({"a": "two", "b": 3})] {
        assert_code(&call(&held, "small_add", wrong).await, codes::SCHEMA);
    }
}

#[tokio::test]
async fn a_server_of_the_newer_revision_is_spoken_to_in_it() {
    let small = Small::new();
    let server = connected(&small.server().variable("NEWER", "yes"));
    assert_eq!(server.revision(), "2026-07-28");
    assert_eq!(value(&add(&holding(&server)).await), "5");
}

#[tokio::test]
async fn structured_results_are_values_and_must_fit_what_was_promised() {
    let small = Small::new();
    let held = holding(&connected(&small.server()));
    let sum = call(&held, "small_sum", json!({"a": 2, "b": 3})).await;
    assert_code(&sum, codes::GATE_OK);
    assert_eq!(value(&sum), &json!({"sum": 5}));
    for liar in ["small_lie", "small_omit"] {
        let lied = call(&held, liar, json!({})).await;
        assert_code(&lied, codes::GATE_FAILED);
        assert!(lied.data()["detail"].as_str().is_some_and(|said| said.contains("schema")), "{lied:?}");
    }
}

#[tokio::test]
async fn an_error_of_a_tool_is_the_entitys_to_mend() {
    let small = Small::new();
    let reported = call(&holding(&connected(&small.server())), "small_fail", json!({})).await;
    assert_code(&reported, codes::GATE_REPORTED);
    assert_eq!(reported.data()["detail"], "the moon is in the wrong phase");
}

#[tokio::test]
async fn what_is_no_text_is_kept_as_a_body() {
    let small = Small::new();
    let held = holding(&connected(&small.server()));
    let executed = execute(&held, "small_mixed", json!({}), StopSignal::never()).await;
    assert_code(&executed.guarded.reply, codes::GATE_OK);
    let kept: Vec<&[u8]> = executed.effects.bodies.iter().map(|body| &**body.bytes()).collect();
    assert_eq!(kept, [b"a picture"]);
    let hash = executed.effects.bodies[0].hash().to_string();
    let image = json!({"type": "image", "mime_type": "image/png", "bytes": 9, "body": hash});
    let link = json!({"type": "resource_link", "uri": "file:///notes", "name": "notes"});
    assert_eq!(value(&executed.guarded.reply), &json!([{"type": "text", "text": "look"}, image, link]));
}

#[tokio::test]
async fn a_call_that_hangs_is_given_up_and_the_server_is_told() {
    let small = Small::new();
    let held = holding(&connected(&small.server().time_max(Duration::from_millis(500))));
    let hung = call(&held, "small_hang", json!({})).await;
    assert_code(&hung, codes::TIMED_OUT);
    small.cancelled().await;
    assert_code(&add(&held).await, codes::GATE_OK);
    assert_eq!(small.starts(), 1, "it lives on");
}

#[tokio::test]
async fn a_call_that_is_stopped_is_given_up_at_once() {
    let small = Small::new();
    let held = holding(&connected(&small.server()));
    let (stopper, stop) = Stopper::new();
    let stopping = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        stopper.stop(StopReason::Outside { actor: "a test".to_owned(), reason: "enough".to_owned() });
    };
    let (executed, ()) = tokio::join!(execute(&held, "small_hang", json!({}), stop), stopping);
    assert_code(&executed.guarded.reply, codes::ENDED_FROM_OUTSIDE);
    small.cancelled().await;
    assert_code(&add(&held).await, codes::GATE_OK);
    assert_eq!(small.starts(), 1);
}

/// Calls the tool that takes two seconds and is never silent for one, and gives what was heard meanwhile.
async fn slow(held: &Circle) -> Vec<Progress> {
    let told = Arc::new(Mutex::new(Vec::new()));
    let hearing = Arc::clone(&told);
    let listener = ProgressListener::new(move |progress| hearing.lock().expect("nobody panicked").push(progress));
    let slow = heard(held, "small_slow", json!({}), StopSignal::never(), listener).await.guarded.reply;
    assert_code(&slow, codes::GATE_OK);
    assert_eq!(value(&slow), "at last");
    let told = told.lock().expect("nobody panicked").clone();
    assert!(told.is_sorted_by(|one, other| one.done < other.done), "{told:?}");
    told
}

#[tokio::test]
async fn progress_is_heard_and_gives_a_call_more_time() {
    let small = Small::new();
    let held = holding(&connected(&small.server().time_max(Duration::from_secs(1))));
    let step = |done: u8| Progress { done: f64::from(done), total: Some(5.0), message: Some(format!("step {done}")) };
    assert_eq!(slow(&held).await, (1..=5).map(step).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_server_that_died_is_started_again_for_the_next_call() {
    let small = Small::new();
    let held = holding(&connected(&small.server()));
    assert_code(&call(&held, "small_die", json!({})).await, codes::UNREACHABLE);
    assert_eq!(value(&add(&held).await), "5");
    assert_eq!(small.starts(), 2);
}

#[tokio::test]
async fn a_tool_that_changed_while_its_server_was_away_is_not_the_one_that_was_listed() {
    let small = Small::new();
    let held = holding(&connected(&small.server().variable("CHANGES", "yes")));
    assert_code(&call(&held, "small_die", json!({})).await, codes::UNREACHABLE);
    let changed = add(&held).await;
    assert_code(&changed, codes::GATE_FAILED);
    assert!(changed.data()["detail"].as_str().is_some_and(|said| said.contains("cast again")), "{changed:?}");
    // Those that did not change are what they were.
    assert_eq!(value(&call(&held, "small_sum", json!({"a": 1, "b": 1})).await), &json!({"sum": 2}));
}

#[tokio::test]
async fn a_server_that_floods_or_sends_too_much_is_ended_and_the_entity_goes_on() {
    let small = Small::new();
    let held = holding(&connected(&small.server()));
    let flooded = call(&held, "small_flood", json!({})).await;
    assert_code(&flooded, codes::UNREACHABLE);
    assert_eq!(value(&add(&held).await), "5");
    let big = call(&held, "small_big", json!({})).await;
    assert_code(&big, codes::TOO_LARGE);
    assert_eq!(value(&add(&held).await), "5");
    assert_eq!(small.starts(), 3);
}

#[tokio::test]
async fn tools_that_are_renamed_between_calls_are_told_as_they_are() {
    let small = Small::new();
    let held = holding(&connected(&small.server()));
    assert_code(&call(&held, "small_rename", json!({})).await, codes::GATE_OK);
    let unknown = add(&held).await;
    assert_code(&unknown, codes::GATE_REPORTED);
    assert!(unknown.data()["detail"].as_str().is_some_and(|said| said.contains("Unknown tool")), "{unknown:?}");
    assert_code(&call(&held, "small_harmless", json!({})).await, codes::GATE_OK);
}

#[tokio::test]
async fn a_server_sees_the_environment_it_was_given_and_no_other() {
    let small = Small::new();
    let held = holding(&connected(&small.server().variable("GIVEN", "yes")));
    let seen = call(&held, "small_environment", json!({})).await;
    let names: Vec<&str> = value(&seen).as_str().expect("a text").split(' ').collect();
    // The launcher may add variables of its own; those of this process are not among them.
    let ours = "CARGO_MANIFEST_DIR";
    assert!(std::env::var_os(ours).is_some(), "there would be nothing to see");
    assert!(names.contains(&"GIVEN") && names.contains(&"PATH") && !names.contains(&ours), "{names:?}");
}

#[tokio::test]
async fn annotations_raise_labels_and_never_lower_them() {
    let small = Small::new();
    let server = connected(&small.server());
    let labelled = |labels: Labels, tool: &str| {
        let gates = server.gates(Some(&[tool.to_owned()]), &labels).expect("a gate");
        gates[0].spec().labels.clone()
    };
    assert_eq!(labelled(Labels::all(), "harmless"), Labels::all());
    assert_eq!(labelled(Labels::none(), "harmless"), Labels::none());
    let raised = Labels::of([Label::PrivateData, Label::UntrustedContent, Label::ExternalComm]);
    assert_eq!(labelled(Labels::of([Label::PrivateData]), "open"), raised);
    let read_only = server.gates(Some(&["harmless".to_owned()]), &Labels::none()).expect("a gate");
    assert!(!read_only[0].spec().is_read_only(), "that is a stranger's word");
}

#[tokio::test]
async fn a_schema_that_cannot_be_used_is_told_before_anything_is_cast() {
    let small = Small::new();
    let server = connected(&small.server().variable("BROKEN", "yes"));
    let fault = server.gates(None, &Labels::none()).expect_err("one of them cannot be");
    assert!(fault.contains("broken"), "{fault}");
    assert_eq!(server.gates(Some(&["add".to_owned()]), &Labels::none()).expect("the others can").len(), 1);
    let absent = server.gates(Some(&["subtract".to_owned()]), &Labels::none()).expect_err("there is none");
    assert!(absent.contains("subtract") && absent.contains("add"), "{absent}");
}

#[tokio::test]
async fn a_server_that_cannot_be_had_is_told_with_its_name() {
    let small = Small::new();
    let absent = Server::program("absent", "/no/such/program").connect().expect_err("it is not there");
    let mute = Server::program("mute", "true").connect().expect_err("it says nothing");
    let endless = small.server().variable("ENDLESS", "yes").connect().expect_err("its list has no end");
    for (refusal, said) in [(absent, "absent"), (mute, "mute"), (endless, &*MCP_LISTED_MAX.to_string())] {
        let reply = told(refusal).await;
        assert_code(&reply, codes::UNREACHABLE);
        assert!(reply.message().contains(said), "{}", reply.message());
    }
}

#[tokio::test]
async fn a_server_that_is_silent_at_its_start_is_given_up_and_it_is_told_what_to_do() {
    let small = Small::new();
    let silent = small.server().variable("SILENT", "yes").start_max(Duration::from_secs(2));
    let reply = told(silent.connect().expect_err("it is not ready")).await;
    assert_code(&reply, codes::UNREACHABLE);
    let said = reply.message();
    assert!(said.contains("not ready after 2000 ms") && said.contains("waiting for the moon"), "{said}");
    let hint = reply.data()["hint"].as_str().expect("a hint");
    assert!(hint.contains("python3 ") && hint.contains("start_timeout"), "{hint}");
    small.gone().await;
}

#[tokio::test]
async fn the_last_words_of_a_server_that_does_not_start_are_told() {
    let small = Small::new();
    let reply = told(small.server().variable("FAILS", "yes").connect().expect_err("it fails")).await;
    assert_code(&reply, codes::UNREACHABLE);
    assert!(reply.message().contains("Error: there is no key for the moon"), "{}", reply.message());
}

#[tokio::test]
async fn a_server_goes_with_all_that_it_started() {
    let small = Small::new();
    let held = holding(&connected(&small.server().variable("STAYS", "yes")));
    assert_eq!(value(&add(&held).await), "5");
    // It, and what it started; their keeper does not stand in this folder.
    assert_eq!(small.processes(), 2);
    assert_code(&call(&held, "small_big", json!({})).await, codes::TOO_LARGE);
    // A server that is given up is ended at once, even if it ignores signals.
    small.gone().await;
}

/// The same server at an address; it ends with the test.
struct Addressed {
    process: std::process::Child,
    url: String,
}

impl Addressed {
    /// It answers in JSON, or as events.
    fn start(small: &Small, how: &str) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server.py");
        let mut command = std::process::Command::new("python3");
        command.arg(script).env("HTTP", how).current_dir(small.folder.path()).stdout(std::process::Stdio::piped());
        let mut process = command.spawn().expect("python3 runs");
        let mut port = String::new();
        let mut said = BufReader::new(process.stdout.take().expect("a pipe"));
        said.read_line(&mut port).expect("it says where it listens");
        Self { process, url: format!("http://127.0.0.1:{}/mcp", port.trim()) }
    }

    fn server(&self, key: &str) -> Server {
        Server::address("small", &self.url).header("Authorization", format!("Bearer {key}"))
    }
}

impl Drop for Addressed {
    fn drop(&mut self) {
        // A server that ended by itself is fine too.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn a_server_at_an_address_is_used_within_the_same_bounds() {
    let small = Small::new();
    let addressed = Addressed::start(&small, "json");
    let held = holding(&connected(&addressed.server("the-right-key").time_max(Duration::from_secs(20))));
    assert_eq!(value(&add(&held).await), "5");
    assert_eq!(value(&call(&held, "small_sum", json!({"a": 2, "b": 3})).await), &json!({"sum": 5}));
    assert_code(&call(&held, "small_fail", json!({})).await, codes::GATE_REPORTED);
    assert_code(&call(&held, "small_lie", json!({})).await, codes::GATE_FAILED);
    assert_code(&call(&held, "small_big", json!({})).await, codes::TOO_LARGE);
    assert_eq!(value(&add(&held).await), "5", "the entity goes on");
    assert_code(&call(&held, "small_die", json!({})).await, codes::UNREACHABLE);
    assert_code(&add(&held).await, codes::UNREACHABLE);
}

#[tokio::test]
async fn events_of_a_server_at_an_address_are_bounded_in_size_and_number() {
    let small = Small::new();
    let addressed = Addressed::start(&small, "events");
    let held = holding(&connected(&addressed.server("the-right-key").time_max(Duration::from_secs(20))));
    assert_eq!(value(&add(&held).await), "5");
    assert_eq!(slow(&held).await.last().map(|last| last.done), Some(5.0));
    let flooded = call(&held, "small_flood", json!({})).await;
    assert_code(&flooded, codes::UNREACHABLE);
    assert!(flooded.message().contains("messages at once"), "{}", flooded.message());
    assert_eq!(value(&add(&held).await), "5", "the entity goes on");
    assert_code(&call(&held, "small_big", json!({})).await, codes::TOO_LARGE);
    assert_eq!(value(&add(&held).await), "5");
}

#[tokio::test]
async fn a_server_at_an_address_that_never_answers_is_given_up() {
    let listening = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let url = format!("http://{}/mcp", listening.local_addr().expect("it has one"));
    let silent = Server::address("silent", &url).start_max(Duration::from_millis(500));
    let reply = told(silent.connect().expect_err("nobody answers")).await;
    assert_code(&reply, codes::UNREACHABLE);
    assert!(reply.data()["hint"].as_str().is_some_and(|hint| hint.contains(&url)), "{reply:?}");
}

#[tokio::test]
async fn a_server_that_wants_another_key_says_so_and_the_key_is_in_no_message() {
    let small = Small::new();
    let addressed = Addressed::start(&small, "json");
    let reply = told(addressed.server("the-wrong-key").connect().expect_err("it is the wrong one")).await;
    assert_code(&reply, codes::AUTH_FAILED);
    assert!(!format!("{reply:?} {:?}", addressed.server("the-wrong-key")).contains("the-wrong-key"));
    let nobody = Server::address("small", "http://127.0.0.1:9/mcp").connect().expect_err("nobody listens there");
    assert_code(&told(nobody).await, codes::UNREACHABLE);
}

#[tokio::test]
async fn what_a_server_offers_can_be_shown() {
    let small = Small::new();
    let shown = connected(&small.server()).to_value();
    assert_eq!(shown["server"], "small");
    let tools = shown["tools"].as_array().expect("a list");
    let add =
        json!({"tool": "add", "gate": "small_add", "description": "The tool add.", "admits": Value::Array(Vec::new())});
    assert!(tools.contains(&add), "{tools:?}");
}
