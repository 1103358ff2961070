//! Helpers for the tests of the binary: a separate folder for each test, and a terminal to type on.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

pub mod collector;
pub mod keyed;
pub mod llama;
pub mod model;
pub mod terminal;
pub mod tickets;
pub mod wire;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use cantrip_reply::AnyCode;
use cantrip_reply::testing::assert_envelope;
use serde_json::Value;

/// A separate folder, which is also the only home that the binary sees. Casts go to `jsonl:kept` in it.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    #[track_caller]
    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).expect("a file can be written");
    }

    #[track_caller]
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path().join(name)).expect("a file can be read")
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cantrip"));
        command.args(arguments);
        self.around(&mut command);
        command
    }

    /// Sets the environment in which the binary runs.
    pub fn around(&self, command: &mut Command) {
        command.current_dir(self.path()).env("HOME", self.path()).env("CANTRIP_STORE", "jsonl:kept");
        for variable in ["XDG_DATA_HOME", "XDG_CONFIG_HOME", "CANTRIP_CRYSTAL", "CARGO", "NO_COLOR", "CANTRIP_LOG"] {
            command.env_remove(variable);
        }
    }

    pub fn spawn(&self, arguments: &[&str]) -> Child {
        let mut command = self.command(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the binary runs")
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).stdin(Stdio::null()).output().expect("the binary runs")
    }

    /// Runs the binary with this input on a pipe.
    pub fn piped(&self, arguments: &[&str], input: &str) -> Output {
        let mut command = self.command(arguments);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary runs");
        // A command that refuses before it reads closes the pipe.
        let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
        child.wait_with_output().expect("the binary ends")
    }

    /// Runs a line in a shell, as a user pastes it.
    pub fn pasted(&self, line: &str) -> Output {
        let folder = Path::new(env!("CARGO_BIN_EXE_cantrip")).parent().expect("a folder");
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").expect("a PATH"));
        let mut command = Command::new("bash");
        command.args(["-c", &format!("set -eo pipefail; {line}")]);
        self.around(&mut command);
        command.env("PATH", path).stdin(Stdio::null()).output().expect("bash runs")
    }

    /// Runs a command with `--json`. Its exit status has to match its envelope.
    #[track_caller]
    pub fn envelope(&self, arguments: &[&str], code: AnyCode) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        enveloped(&output, code)
    }

    /// Returns the value that a loom command reads.
    #[track_caller]
    pub fn seen(&self, arguments: &[&str]) -> Value {
        let arguments = [&["loom"], arguments].concat();
        self.envelope(&arguments, cantrip_reply::codes::READ.any())["data"]["value"].clone()
    }

    /// The intents of the latest thread, oldest first.
    #[track_caller]
    pub fn intents(&self) -> Vec<String> {
        let thread = self.seen(&["thread"]);
        let casts = thread["casts"].as_array().expect("casts").iter();
        casts.map(|cast| cast["intent"].as_str().expect("a text").to_owned()).collect()
    }

    /// An entity that counts in its sandbox: each answer is the sum so far; the second answer needs an extra turn.
    pub fn with_adder(self) -> Self {
        self.write(
            "adder.toml",
            "name = \"adder\"\ncrystal = \"scripted/adder.yaml\"\nmedium = \"javascript\"\n[call]\n\
             require_done_tool = true\n[wards]\nmax_turns = 5\n",
        );
        self.write(
            "adder.yaml",
            "responses:\n  - code: var sum = 2; done(sum)\n  - code: console.log('adding'); sum += 3\n  \
             - code: done(sum)\n  - code: sum += 10; done(sum)\n  - code: done('rest')\n",
        );
        self
    }

    /// A spell whose entity calls a gate as often as `model` says. The gate records each call in `calls.log`, and then
    /// takes this many seconds to answer. A call without arguments is recorded in `torn.log`: there must be none. Its
    /// model has a price, and each call of the gate is a payment: the idempotency key of the payment is recorded in
    /// `paid.log`.
    pub fn with_counter(self, model: &model::Model, seconds: &str) -> Self {
        self.write(
            "counter.toml",
            &format!(
                "name = \"counter\"\ncrystal = \"{}\"\n[gates.count]\ncommand = [\"./count.sh\"]\nlabels = []\n\
                 settlement = {{most = \"0.01 USD\", cost = \"/cost\"}}\n[wards]\nmax_turns = 100\n",
                model.crystal()
            ),
        );
        self.write(
            "count.sh",
            &format!(
                "#!/bin/sh\nread -r call\n[ -n \"$call\" ] || {{ echo torn >> torn.log; exit 1; }}\n\
             echo \"$CANTRIP_IDEMPOTENCY_KEY\" >> paid.log\necho \"$call\" >> calls.log\nsleep {seconds}\n\
             echo \"{{\\\"cost\\\": \\\"0.003 USD\\\", \\\"provider_correlation_id\\\": \\\"$CANTRIP_IDEMPOTENCY_KEY\\\"}}\"\n"
            ),
        );
        let settings = self.path().join(".config/cantrip");
        fs::create_dir_all(&settings).expect("a folder");
        let prices = "[[model]]\ncrystal = 'local/test*'\nprice = { input = '1 USD', output = '10 USD' }\n";
        fs::write(settings.join("models.toml"), prices).expect("a table");
        let script = self.path().join("count.sh");
        fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a script");
        self
    }

    /// Returns the calls that the gate of the counter recorded: the number of times that each step of each intent was
    /// really executed.
    pub fn calls(&self) -> std::collections::BTreeMap<(String, u64), u64> {
        let text = fs::read_to_string(self.path().join("calls.log")).unwrap_or_default();
        let mut calls = std::collections::BTreeMap::new();
        for line in text.lines() {
            let call: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            let step = (id(&call["intent"]).to_owned(), call["step"].as_u64().expect("a number"));
            *calls.entry(step).or_default() += 1;
        }
        calls
    }

    /// Writes the spell of `cantrip new`.
    pub fn with_hello(self) -> Self {
        assert!(self.run(&["new", "hello"]).status.success());
        self
    }
}

#[allow(unused_imports, reason = "not every test binary stores in Postgres")]
pub use cantrip_tests::peer::new_postgres_store as own_postgres;

/// Returns the envelope that a command with `--json` printed. The exit status has to match the envelope.
#[track_caller]
pub fn enveloped(output: &Output, code: AnyCode) -> Value {
    let envelope = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_envelope(&envelope, code);
    assert_eq!(output.status.code(), Some(status_of(&envelope)), "{output:?}");
    envelope
}

/// Returns the exit status of an envelope, as docs/replies.md tells scripts to compute it.
fn status_of(envelope: &Value) -> i32 {
    let data = &envelope["data"];
    if data["run_state"] == "waiting" {
        return 5;
    }
    match (id(&envelope["reply_type"]), data["state"].as_str(), data["reason"].as_str()) {
        ("S", Some("waiting"), Some("interrupted")) => 130,
        ("S", Some("waiting"), _) => 5,
        ("S", _, _) => 0,
        ("I", _, _) => 2,
        ("D", _, _) => 3,
        (_, _, _) => 4,
    }
}

#[track_caller]
pub fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).expect("UTF-8")
}

#[track_caller]
pub fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).expect("UTF-8")
}

#[track_caller]
pub fn id(value: &Value) -> &str {
    value.as_str().expect("an id")
}
