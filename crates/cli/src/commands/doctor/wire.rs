//! Do `acp` and `mcp` answer? Each is started as an editor or an agent starts it, and sent `initialize`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::Finding;
use crate::limits::DOCTOR_WIRE_MS;
use cantrip_terminal::present::program;

/// The commands, each with the params of its `initialize` request.
fn greetings() -> [(&'static str, Value); 2] {
    let client = json!({"name": "doctor", "version": env!("CARGO_PKG_VERSION")});
    [
        ("acp", json!({"protocolVersion": 1, "clientCapabilities": {}})),
        ("mcp", json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client})),
    ]
}

pub(super) async fn findings() -> Vec<Finding> {
    let mut findings = Vec::new();
    for (command, params) in greetings() {
        if command == "acp" && cantrip_acp::check_built().is_err() {
            findings.push(Finding::absent(command, "not in this build; --features full has it"));
            continue;
        }
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
        findings.push(match greet(command, &message).await {
            Ok(version) => {
                let said =
                    format!("answers over its pipes, revision {version}; it prints nothing before the first request");
                Finding::good(command, said)
            }
            Err(why) => {
                let hint = format!("{} {command} --debug logs every message on standard error", program());
                Finding::bad(command, why, hint)
            }
        });
    }
    findings
}

/// Starts a command, sends it the message and returns the protocol revision of its answer.
async fn greet(command: &str, message: &Value) -> Result<String, String> {
    let program = std::env::current_exe().map_err(|error| format!("this program cannot be found: {error}"))?;
    let started = Command::new(program)
        .args([command, "--store", "memory:"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = started.map_err(|error| format!("it cannot be started: {error}"))?;
    let (to, from) = (child.stdin.take(), child.stdout.take());
    let line = format!("{message}\n");
    let exchange = tokio::task::spawn_blocking(move || {
        let (mut to, from) = to.zip(from).ok_or("it has no pipes")?;
        to.write_all(line.as_bytes()).map_err(|_| "it does not read")?;
        let mut answer = String::new();
        BufReader::new(from).read_line(&mut answer).map_err(|_| "it cannot be read")?;
        Ok::<String, &str>(answer)
    });
    let answered = tokio::time::timeout(Duration::from_millis(DOCTOR_WIRE_MS), exchange).await;
    end(child);
    let answer = match answered {
        Ok(Ok(answer)) => answer?,
        Ok(Err(_)) => return Err("the connection to it was lost".to_owned()),
        Err(_) => return Err(format!("it does not answer within {DOCTOR_WIRE_MS} ms")),
    };
    let answer: Value =
        serde_json::from_str(&answer).map_err(|_| "its first line is not a protocol message".to_owned())?;
    match answer.pointer("/result/protocolVersion") {
        Some(Value::String(version)) => Ok(version.clone()),
        Some(version) => Ok(version.to_string()),
        None => Err("its answer names no revision of the protocol".to_owned()),
    }
}

/// Kills the process. It would end by itself now that its input is closed, but there is no need to wait for that.
fn end(mut child: Child) {
    drop(child.kill());
    drop(child.wait());
}
