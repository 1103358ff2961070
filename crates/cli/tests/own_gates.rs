//! Commands and endpoints as gates: a call that may be repeated after a crash, and the exit status of a program.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cantrip_reply::codes;
use serde_json::Value;

use crate::support::{Folder, stderr, stdout};

const STORE: &str = "sqlite:kept/loom.db";

/// A spell that calls the gate `pay` once, and then ends.
fn till(gate: &str) -> Folder {
    let folder = Folder::new();
    folder.write(
        "till.toml",
        &format!(
            "name = \"till\"\ncrystal = \"scripted/till.yaml\"\n[gates.pay]\n{gate}labels = []\n\
             [wards]\nmax_turns = 5\n"
        ),
    );
    folder.write(
        "till.yaml",
        "responses:\n  - tool_calls: [{id: a, gate: pay, args: {to: ann}}]\n  \
         - tool_calls: [{id: d, gate: done, args: {answer: over}}]\n",
    );
    folder
}

fn write_program(folder: &Folder, text: &str) {
    folder.write("pay.sh", text);
    fs::set_permissions(folder.path().join("pay.sh"), PermissionsExt::from_mode(0o755)).expect("a script");
}

/// Kills the cast once the gate has been entered, and resumes it. Returns the code of the call.
#[track_caller]
fn code_after_kill(folder: &Folder, entered: impl Fn() -> bool) -> String {
    let mut child = folder.spawn(&["cast", "till.toml", "go", "--store", STORE]);
    let until = Instant::now() + Duration::from_secs(60);
    while !entered() {
        assert!(Instant::now() < until, "the gate is not entered");
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().expect("it is killed");
    child.wait().expect("it ends");
    let resumed = folder.envelope(&["run", "resume", "--store", STORE], codes::TERMINATED.any());
    assert_eq!(resumed["data"]["answer"], "over");
    code_of_call(folder)
}

#[track_caller]
fn code_of_call(folder: &Folder) -> String {
    let thread = folder.envelope(&["loom", "thread", "--store", STORE], codes::READ.any());
    let code = &thread["data"]["value"]["turns"][0]["gate_calls"][0]["reply"]["code"];
    code.as_str().unwrap_or_else(|| panic!("{thread}")).to_owned()
}

#[test]
fn a_command_that_is_declared_idempotent_is_called_again_after_a_crash_with_the_same_key() {
    // The first call waits to be killed.
    let program = "#!/bin/sh\ncat > /dev/null\necho \"$CANTRIP_IDEMPOTENCY_KEY\" >> keys.log\n\
                   [ -e again ] || { touch again; sleep 600; }\necho '{\"paid\": true}'\n";
    for (declared, code, calls) in
        [("idempotent = true\n", codes::GATE_OK.any(), 2), ("", codes::OUTCOME_UNKNOWN.any(), 1)]
    {
        let folder = till(&format!("command = [\"./pay.sh\"]\n{declared}"));
        write_program(&folder, program);
        let entered = folder.path().join("again");
        assert_eq!(code_after_kill(&folder, || entered.exists()), code.as_str(), "{declared}");
        let keys = folder.read("keys.log");
        let keys: Vec<&str> = keys.lines().collect();
        assert_eq!(keys.len(), calls, "{declared}: {keys:?}");
        assert!(!keys[0].is_empty() && keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    }
}

/// A server that never answers its first request, and answers the others. It keeps the head of each request.
fn server() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let host = listener.local_addr().expect("an address").to_string();
    let heads: Arc<Mutex<Vec<String>>> = Arc::default();
    let kept = Arc::clone(&heads);
    std::thread::spawn(move || {
        let mut unanswered: Option<TcpStream> = None;
        for mut stream in listener.incoming().map_while(Result::ok) {
            let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
            while !bytes.windows(4).any(|window| window == b"\r\n\r\n") {
                match stream.read(&mut piece) {
                    Ok(read @ 1..) => bytes.extend_from_slice(&piece[..read]),
                    Ok(_) | Err(_) => break,
                }
            }
            kept.lock().expect("not poisoned").push(String::from_utf8_lossy(&bytes).to_lowercase());
            if unanswered.is_none() {
                unanswered = Some(stream);
                continue;
            }
            let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4\r\n\
                          connection: close\r\n\r\ntrue";
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    (host, heads)
}

#[test]
fn an_endpoint_that_is_declared_idempotent_is_called_again_after_a_crash_with_the_same_key() {
    for (declared, code, calls) in
        [("idempotent = true\n", codes::GATE_OK.any(), 2), ("", codes::OUTCOME_UNKNOWN.any(), 1)]
    {
        let (host, heads) = server();
        let gate = format!("url = \"http://{host}/pay\"\nmethod = \"POST\"\nallow_hosts = [\"{host}\"]\n{declared}");
        let folder = till(&gate);
        let entered = || !heads.lock().expect("not poisoned").is_empty();
        assert_eq!(code_after_kill(&folder, entered), code.as_str(), "{declared}");
        let heads = heads.lock().expect("not poisoned").clone();
        let lines = heads.iter().flat_map(|head| head.lines());
        let keys: Vec<&str> = lines.filter_map(|line| line.strip_prefix("idempotency-key: ")).collect();
        assert_eq!((heads.len(), keys.len()), (calls, calls), "{declared}: {heads:?}");
        assert!(keys.iter().all(|other| *other == keys[0]), "{keys:?}");
    }
}

#[test]
fn only_a_gate_of_ones_own_is_declared_idempotent() {
    let folder = till("command = [\"sh\"]\n");
    folder.write("till.toml", "crystal = \"scripted/till.yaml\"\n[gates.write]\nroot = \".\"\nidempotent = true\n");
    let refused = folder.envelope(&["cast", "till.toml", "go"], codes::CONFIG_INVALID.any());
    assert!(refused["message"].as_str().is_some_and(|told| told.contains("gates.write.idempotent")), "{refused}");
}

#[test]
fn the_exit_status_of_a_command_is_data_that_the_entity_can_act_on() {
    let folder = till("command = [\"./pay.sh\"]\n");
    write_program(&folder, "#!/bin/sh\necho 'sold out' >&2\nexit 4\n");
    let output = folder.run(&["cast", "till.toml", "go", "--store", STORE]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "over\n"), "{output:?}");
    assert!(stderr(&output).contains("pay reported: exit status: 4: sold out"), "{output:?}");
    assert_eq!(code_of_call(&folder), codes::GATE_REPORTED.any().as_str());

    // A program of an entity branches on it.
    let spell = folder.read("till.toml").replace("[gates.pay]", "medium = \"javascript\"\n[gates.pay]");
    folder.write("till.toml", &spell);
    folder.write(
        "till.yaml",
        "responses:\n  - code: |\n      try { pay() } catch (error) { done([error.code, error.data.exit_status]) }\n",
    );
    let output = folder.run(&["cast", "till.toml", "go", "--quiet", "--store", STORE]);
    let answer: Value = serde_json::from_str(stdout(&output)).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_eq!(answer, serde_json::json!([codes::GATE_REPORTED.any().as_str(), 4]));

    // The spell can say that such a status is a failure of the gate.
    let folder = till("command = [\"./pay.sh\"]\non_error = \"error\"\n");
    write_program(&folder, "#!/bin/sh\necho 'sold out' >&2\nexit 4\n");
    folder.envelope(&["cast", "till.toml", "go", "--store", STORE], codes::TERMINATED.any());
    assert_eq!(code_of_call(&folder), codes::GATE_FAILED.any().as_str());
}

#[test]
fn a_payment_whose_command_ends_with_a_status_other_than_0_is_to_be_reconciled() {
    let folder = till("command = [\"./pay.sh\"]\nsettlement = {most = \"0.05 USD\"}\n");
    write_program(&folder, "#!/bin/sh\necho 'the line broke' >&2\nexit 1\n");
    let authorize = ["spend", "authorize", "--total", "1.00 USD", "--agent", "till", "--store", STORE];
    folder.envelope(&authorize, codes::CREATED.any());
    folder.envelope(&["cast", "till.toml", "go", "--store", STORE], codes::TERMINATED.any());
    assert_eq!(code_of_call(&folder), codes::GATE_REPORTED.any().as_str());
    let held = ["spend", "reservations", "--state", "reconcile_required", "--store", STORE];
    let held = folder.envelope(&held, codes::READ.any());
    assert_eq!(held["data"]["value"]["items"][0]["row"]["state"]["why"], "failed", "{held}");
}
