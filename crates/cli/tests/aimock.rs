//! Casts against a peer that is not ours: `@copilotkit/aimock` simulates the providers and knows nothing of this
//! project. `test.sh` installs it and names its folder in `CANTRIP_TEST_AIMOCK`.

use crate::support;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use support::{Folder, stdout};

use crate::providers::FAMILIES;

/// The peer on its own port; it runs until it is dropped.
struct Peer {
    process: Child,
    address: String,
}

impl Peer {
    /// Starts the peer; None if the tests are to run without it.
    fn start(folder: &Folder) -> Option<Self> {
        let installed = cantrip_tests::peer::Peer::Aimock.find_path()?;
        // The peer calls a gate, and after the result it calls the gate that ends the cast.
        let call = |name: &str, arguments: Value| json!({"toolCalls": [{"name": name, "arguments": arguments}]});
        let fixtures = json!({"fixtures": [
            {"match": {"userMessage": "look", "hasToolResult": false}, "response": call("echo", json!({"text": "seen"}))},
            {"match": {"userMessage": "look", "hasToolResult": true}, "response": call("done", json!({"answer": "seen"}))},
        ]});
        folder.write("fixtures.json", &fixtures.to_string());
        let mut process = Command::new("node")
            .arg(installed.join("dist/cli.js"))
            .args(["--port", "0", "--strict", "--validate-on-load", "--fixtures", "fixtures.json"])
            .current_dir(folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("node runs it");
        let told = BufReader::new(process.stdout.take().expect("its output"));
        let listening = told.lines().map_while(Result::ok).find_map(|line| {
            let (_, address) = line.split_once("listening on ")?;
            Some(address.trim().to_owned())
        });
        let Some(address) = listening else {
            let _ = process.kill();
            panic!("it did not say where it listens");
        };
        Some(Self { process, address })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn casts_with_calls_run_against_an_independent_peer_in_every_familys_shape_streamed_and_whole() {
    let served = Folder::new();
    let Some(peer) = Peer::start(&served) else { return };
    let mut woven = Vec::new();
    for (family, key, base, path) in FAMILIES {
        for stream in ["on", "off"] {
            let folder = Folder::new();
            folder.write("peer.toml", &format!("crystal = \"{family}/m\"\n[gates.echo]\n[wards]\nmax_turns = 5\n"));
            let mut command = folder.command(&["cast", "peer.toml", "look around", "--quiet"]);
            command.env(base, format!("{}{path}", peer.address)).env("CANTRIP_STREAM", stream);
            command.envs(key.map(|key| (key, "planted")));
            let output = command.stdin(Stdio::null()).output().expect("the binary runs");
            assert_eq!(stdout(&output), "seen\n", "{family}, stream {stream}: {output:?}");
            let turns = folder.seen(&["thread"])["turns"].clone();
            let told = turns.as_array().expect("turns").iter().map(|turn| {
                let calls = turn["gate_calls"].as_array().expect("calls").iter();
                let calls = calls.map(|call| (call["gate"].clone(), call["args"].clone(), call["result"].clone()));
                (turn["sequence"].clone(), calls.collect::<Vec<_>>(), turn["terminated"].clone())
            });
            woven.push(told.collect::<Vec<_>>());
        }
    }
    let echoed = (json!("echo"), json!({"text": "seen"}), json!("seen"));
    let ended = (json!("done"), json!({"answer": "seen"}), json!("seen"));
    let expected = vec![(json!(1), vec![echoed], json!(false)), (json!(2), vec![ended], json!(true))];
    assert!(woven.iter().all(|turns| *turns == expected), "{woven:?}");
    assert_eq!(woven.len(), 2 * FAMILIES.len());
}
