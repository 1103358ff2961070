//! Programs in code circles end in a reply, as calls do: its type, its code and the position of the failure are in the
//! record, in the stream, on the page and over HTTP. The text for the entity is unchanged.

use std::collections::BTreeMap;
use std::process::Output;
use std::time::{Duration, Instant};

use cantrip_reply::testing::assert_recorded;
use cantrip_reply::{AnyCode, codes};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::serve::Server;
use crate::support::{Folder, id, stderr, stdout};

const STORE: &str = "sqlite:kept/loom.db";

/// A program, and its expected end.
struct Case {
    /// The name of its spell.
    name: &'static str,
    wards: &'static str,
    program: String,
    code: AnyCode,
    /// The line and the column of the failure, if they are reported.
    at: Option<(u32, Option<u32>)>,
    /// The text in the message of its reply.
    message: &'static str,
    /// The text that the entity reads.
    reads: &'static str,
    /// The share of the turn's calls and programs that succeeded.
    reward: f64,
    /// The codes of the gates that it called.
    calls: Vec<AnyCode>,
}

fn case(name: &'static str, program: &str, code: AnyCode) -> Case {
    let reward = if code.reply_type().is_success() { 1.0 } else { 0.0 };
    let program = program.to_owned();
    Case { name, wards: "", program, code, at: None, message: "", reads: "", reward, calls: Vec::new() }
}

impl Case {
    fn at(mut self, line: u32, column: u32) -> Self {
        self.at = Some((line, Some(column)));
        self
    }

    /// Expects a failure on this line. The column is not fixed: any call on the line may reach the limit.
    fn on_line(mut self, line: u32) -> Self {
        self.at = Some((line, None));
        self
    }

    fn under(mut self, wards: &'static str) -> Self {
        self.wards = wards;
        self
    }

    fn says(mut self, message: &'static str) -> Self {
        self.message = message;
        self
    }

    fn reads(mut self, text: &'static str) -> Self {
        self.reads = text;
        self
    }

    fn calls(mut self, calls: &[AnyCode], reward: f64) -> Self {
        (self.calls, self.reward) = (calls.to_vec(), reward);
        self
    }
}

const OK: AnyCode = codes::GATE_OK.any();
const SYNTAX: AnyCode = codes::CODE_SYNTAX.any();
const THREW: AnyCode = codes::CODE_THREW.any();
const MEMORY: AnyCode = codes::MEMORY_LIMIT.any();
const TIME: AnyCode = codes::TIME_LIMIT.any();

fn javascript() -> Vec<Case> {
    vec![
        case("value", "1 + 1", OK).reads("=> 2"),
        case("caught", "try { read('missing.txt') } catch (error) { error.code }", OK)
            .calls(&[codes::FILE_MISSING.any()], 0.5)
            .reads("=> \"WA-READ-I-001\"\n"),
        case("parse", "var x = 1;\nvar y = ;", SYNTAX)
            .at(2, 9)
            .says("javascript syntax error at line 2: unexpected token in expression: ';'")
            .reads("SyntaxError: unexpected token in expression: ';' (turn-1.js:2:9)"),
        case("parse_later", "echo('never');\nvar y = ;", SYNTAX).at(2, 9),
        case("nul", "var x;\n'a\0b'", SYNTAX)
            .at(2, 3)
            .says("javascript syntax error at line 2: the program holds a NUL"),
        case("throw", "var x = 1;\nnull.field", THREW)
            .at(2, 1)
            .says("TypeError: cannot read property 'field' of null at line 2")
            .reads("TypeError: cannot read property 'field' of null (turn-1.js:2:1)"),
        case("throw_a_value", "throw 5", THREW).says("at line unknown"),
        case("eval", "var x;\neval('(')", THREW),
        case("unhandled", "Promise.reject(new Error('nobody'));\n1", THREW).says("Error: nobody at line 1"),
        case("unsettled", "await new Promise(() => {})", THREW).says("never settles"),
        case("gate_error", "var x;\nread('missing.txt')", THREW)
            .at(2, 1)
            .says("GateError: Invalid WA-READ-I-001: missing.txt does not exist")
            .calls(&[codes::FILE_MISSING.any()], 0.0),
        case("gate_calls", "echo('1'); echo('2');\necho('3')", THREW)
            .under("max_gate_calls = 2\n")
            .says("EN-GATE-D-001")
            .calls(&[OK, OK, codes::CALLS_SPENT.any()], 0.5),
        case("memory", "var a = [];\nfor (;;) a.push('x'.repeat(10000) + a.length);", MEMORY)
            .under("memory = '8 MiB'\ncpu = '30s'\n")
            .on_line(2)
            .says("the code used more than 8388608 bytes of heap")
            .reads("(no output)\n[stopped: memory]\n[variables are as before this program; calls already made stand]"),
        case(
            "memory_in_a_function",
            "var a = [];\nfunction grow() {\n  for (;;) a.push('x'.repeat(10000) + a.length);\n}\nawait null;\ngrow()",
            MEMORY,
        )
        .under("memory = '8 MiB'\ncpu = '30s'\n")
        .on_line(3),
        case("stack", "function f() { return f() + 1 }\nf()", MEMORY).at(1, 22).says("524288 bytes of stack"),
        case("cpu", "var x;\nfor (;;);", TIME)
            .under("cpu = '200ms'\n")
            .says("the code ran longer than 200 ms of cpu time")
            .reads("(no output)\n[stopped: cpu]\n[variables are as before this program; calls already made stand]"),
        case(
            "cpu_in_a_function",
            "let x = 0;\nfunction spin() {\n  for (;;) x += 1;\n}\ntry { spin() } catch {}",
            TIME,
        )
        .under("cpu = '200ms'\n")
        .at(3, 12),
        case("cpu_in_a_job", "var x = 0;\nPromise.resolve().then(() => {\n  for (;;) x += 1;\n});\n5", TIME)
            .under("cpu = '200ms'\n")
            .at(3, 12),
        // The engine could call the getter for the position, but must not: no code of an ended program runs.
        case(
            "cpu_and_a_stack_of_its_own",
            "Object.defineProperty(Error.prototype, 'stack', {get() { console.log('ran'); return 'x' }});\n\
             (() => { for (;;) globalThis.x = 1 })()",
            TIME,
        )
        .under("cpu = '200ms'\n")
        .reads("(no output)\n[stopped: cpu]"),
        case("wall", "for (;;);", TIME).under("wall = '200ms'\ncpu = '30s'\n").says("200 ms of wall time"),
        case("output", "for (;;) console.log('x'.repeat(1000))", codes::OUTPUT_LIMIT.any())
            .under("output = '64 KiB'\n")
            .at(1, 25)
            .says("output passed 65536 bytes"),
        case("too_long", &format!("1;{}", " ".repeat(256 << 10)), codes::LIMIT.any())
            .says("the length of the program is 262146, the limit is 262144"),
    ]
}

fn python() -> Vec<Case> {
    vec![
        case("value", "1 + 1", OK).reads("=> 2"),
        case("caught", "try:\n    read('missing.txt')\nexcept RuntimeError:\n    print('caught')", OK)
            .calls(&[codes::FILE_MISSING.any()], 0.5)
            .reads("caught"),
        case("parse", "x = 1\ny = =", SYNTAX)
            .at(2, 5)
            .says("python syntax error at line 2: Expected an expression")
            .reads("SyntaxError: Expected an expression (turn-1.py:2:5)"),
        case("parse_later", "echo('never')\ny = =", SYNTAX).at(2, 5),
        case("not_in_this_python", "echo('never')\ndef f():\n    yield 1", SYNTAX),
        case("nul", "x = 1\n'a\0b'", SYNTAX).at(2, 3),
        case("throw", "x = 1\nNone.field", THREW)
            .at(2, 1)
            .says("AttributeError: 'NoneType' object has no attribute 'field' at line 2")
            .reads("AttributeError: 'NoneType' object has no attribute 'field' (turn-1.py:2:1)"),
        case("raised_syntax_error", "x = 1\nraise SyntaxError('mine')", THREW).says("SyntaxError: mine at line 2"),
        case("gate_error", "x = 1\nread('missing.txt')", THREW)
            .at(2, 1)
            .says("RuntimeError: Invalid WA-READ-I-001: missing.txt does not exist")
            .calls(&[codes::FILE_MISSING.any()], 0.0),
        case("gate_calls", "echo('1')\necho('2')\necho('3')", THREW)
            .under("max_gate_calls = 2\n")
            .says("EN-GATE-D-001")
            .calls(&[OK, OK, codes::CALLS_SPENT.any()], 0.5),
        case("memory", "x = 1\n'x' * 10 ** 10", MEMORY)
            .under("memory = '8 MiB'\ncpu = '30s'\n")
            .at(2, 1)
            .says("the code used more than 8388608 bytes of heap"),
        case("stack", "def f():\n    return f() + 1\nf()", MEMORY).at(2, 12).says("524288 bytes of stack"),
        case("cpu", "x = 1\nwhile True: pass", TIME)
            .under("cpu = '200ms'\n")
            .says("the code ran longer than 200 ms of cpu time")
            .reads("(no output)\n[stopped: cpu]\n[variables are as before this program; calls already made stand]"),
        case("wall", "while True: pass", TIME).under("wall = '200ms'\ncpu = '30s'\n").says("200 ms of wall time"),
        case("output", "while True: print('x' * 1000)", codes::OUTPUT_LIMIT.any())
            .under("output = '64 KiB'\n")
            .at(1, 13)
            .says("output passed 65536 bytes"),
        case("too_long", &format!("1{}", " ".repeat(256 << 10)), codes::LIMIT.any())
            .says("the length of the program is 262145, the limit is 262144"),
    ]
}

/// Writes a spell whose entity writes these programs, each in its own turn.
fn spell(folder: &Folder, name: &str, medium: &str, further: &str, programs: &[&str]) {
    let responses: Vec<Value> = programs.iter().map(|program| json!({ "code": program })).collect();
    folder.write(&format!("{name}.yaml"), &json!({ "responses": responses }).to_string());
    folder.write(
        &format!("{name}.toml"),
        &format!(
            "name = \"{name}\"\ncrystal = \"scripted/{name}.yaml\"\nmedium = \"{medium}\"\n[call]\n\
             require_done_tool = true\n[gates.echo]\n[gates.read]\nroot = \".\"\n{further}"
        ),
    );
}

fn cast(folder: &Folder, name: &str, how: &str) -> Output {
    let output = folder.run(&["cast", &format!("{name}.toml"), "go", how, "--store", STORE]);
    assert_eq!(output.status.code(), Some(0), "{name}: {output:?}");
    output
}

/// Returns the upserts of a cast that complete a call of this tool.
fn completed<'a>(lines: &'a [Value], tool: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["toolName"] == tool && line["status"] == "complete").collect()
}

/// Asserts that a reply in the record or in the stream is the expected one, with its position.
#[track_caller]
fn assert_reply(reply: &Value, case: &Case) {
    assert_recorded(reply, case.code);
    match case.at {
        Some((line, Some(column))) => {
            assert_eq!((&reply["line"], &reply["column"]), (&json!(line), &json!(column)), "{}: {reply}", case.name);
        }
        Some((line, None)) => {
            assert_eq!(reply["line"], json!(line), "{}: {reply}", case.name);
            assert!(reply["column"].is_u64(), "{}: {reply}", case.name);
        }
        // For a loop at top level the engine only knows the last position before it, which would mislead.
        None if case.code == TIME && !case.name.starts_with("cpu_") => {
            assert_eq!(reply.get("line"), None, "{}: {reply}", case.name);
        }
        None => {}
    }
    if case.code.reply_type().is_success() {
        assert_eq!(reply.get("line"), None, "{}: {reply}", case.name);
    }
}

#[track_caller]
fn assert_kept(turn: &Value, case: &Case) {
    let output = &turn["outputs"][0];
    assert_reply(&output["reply"], case);
    let message = output["reply"]["message"].as_str().unwrap_or_default();
    assert!(message.contains(case.message), "{}: {message}", case.name);
    assert_eq!(message.is_empty(), case.code.reply_type().is_success(), "{}: {message}", case.name);
    let calls = turn["gate_calls"].as_array().expect("calls").iter();
    let calls: Vec<&Value> = calls.map(|call| &call["reply"]["code"]).collect();
    let expected: Vec<Value> = case.calls.iter().map(|code| json!(code.as_str())).collect();
    assert_eq!(calls, expected.iter().collect::<Vec<_>>(), "{}", case.name);
}

fn every_end_is_typed(medium: &str, cases: &[Case]) {
    let folder = Folder::new();
    let mut runs: BTreeMap<&str, String> = BTreeMap::new();
    for case in cases {
        let wards = format!("[wards]\nmax_turns = 3\n{}", case.wards);
        spell(&folder, case.name, medium, &wards, &[&case.program, "done('over')"]);
        let lines: Vec<Value> = stdout(&cast(&folder, case.name, "--jsonl"))
            .lines()
            .map(|line| serde_json::from_str(line).expect("a line of JSON"))
            .collect();
        // The stream: the call of the program has its reply, and so has the program that succeeds.
        let programs = completed(&lines, medium);
        assert_eq!(programs.len(), 2, "{}", case.name);
        assert_reply(&programs[0]["toolReply"], case);
        assert_eq!(programs[0]["toolOutputIsError"], json!(!case.code.reply_type().is_success()), "{}", case.name);
        assert_eq!(programs[1]["toolReply"], json!({"type": "S", "code": "WA-EXEC-S-001"}), "{}", case.name);
        let run = id(&programs[0]["sessionId"]);
        runs.insert(case.name, run.to_owned());
        // The record, as `--json` and the page show it.
        let looms = ["--store", STORE];
        let thread = folder.seen(&[&["thread", run], &looms[..]].concat());
        let turn = id(&thread["turns"][0]["id"]);
        let shown = folder.seen(&[&["show", turn], &looms[..]].concat());
        assert_kept(&shown, case);
        let page = folder.run(&[&["loom", "show", turn], &looms[..]].concat());
        let (page, word) = (stdout(&page), case.code.reply_type().word().to_lowercase());
        let place = case.at.map_or_else(String::new, |(line, column)| {
            format!(" at line {line}, column {}", column.map(|column| column.to_string()).unwrap_or_default())
        });
        // A person does not know that the layer MCP is the runtime itself.
        let layer = if case.code.to_string().starts_with("MCP-") { " (system)" } else { "" };
        assert!(page.contains(&format!("< {word} {}{layer}{place}", case.code)), "{}: {page}", case.name);
        // The text for the entity contains none of it.
        let exported = folder.run(&[&["loom", "export", case.name], &looms[..]].concat());
        let first: Value = serde_json::from_str(stdout(&exported).lines().next().expect("a turn")).expect("JSON");
        let read = first["observation"].as_str().expect("a text");
        assert!(read.starts_with(case.reads), "{}: {read}", case.name);
        for code in [SYNTAX, MEMORY, TIME, codes::OUTPUT_LIMIT.any(), THREW] {
            assert!(!read.contains(code.as_str()), "{}: {read}", case.name);
        }
        assert_reply(&first["x"]["outputs"][0]["reply"], case);
        assert_eq!(first["x"]["implicit_reward"].as_f64(), Some(case.reward), "{}", case.name);
        // The journal has the reply too, and a second run gives the same result.
        let (journal, copy) = (format!("{}.jsonl", case.name), format!("sqlite:kept/{}.db", case.name));
        let exports = ["loom", "export", case.name, "--format", "journal", "--no-redact", "--out", &journal];
        assert!(folder.run(&[&exports[..], &looms[..]].concat()).status.success(), "{}", case.name);
        assert!(folder.run(&["loom", "import", &journal, "--store", &copy]).status.success(), "{}", case.name);
        assert_kept(&folder.seen(&["show", turn, "--store", &copy]), case);
        let replayed = folder.run(&[&["loom", "replay", run], &looms[..]].concat());
        assert!(stdout(&replayed).starts_with("identical"), "{}: {replayed:?}", case.name);
    }
    let server = Server::start(&folder, &["--store", STORE]);
    for case in cases {
        let (status, envelope) = server.ask("GET", &format!("/v1/runs/{}/turns", runs[case.name]), None);
        assert_eq!(status, 200, "{envelope}");
        assert_kept(&envelope["data"]["value"]["items"][0], case);
        let feed = server.text(&format!("/v1/runs/{}/events", runs[case.name]));
        let upserts = feed.lines().filter_map(|line| line.strip_prefix("data: "));
        let upserts: Vec<Value> = upserts.map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_reply(&completed(&upserts, medium)[0]["toolReply"], case);
    }
}

#[test]
fn every_end_of_a_javascript_program_is_typed_wherever_it_is_read() {
    every_end_is_typed("javascript", &javascript());
}

#[test]
fn every_end_of_a_python_program_is_typed_wherever_it_is_read() {
    every_end_is_typed("python", &python());
}

#[test]
fn a_program_that_fails_shows_its_code_and_place_on_the_terminal_and_one_that_ends_well_its_value() {
    let folder = Folder::new();
    spell(&folder, "shown", "javascript", "[wards]\nmax_turns = 3\n", &["1 + 1", "var x;\nnull.field", "done('over')"]);
    let output = cast(&folder, "shown", "--quiet");
    assert_eq!(stdout(&output), "over\n");
    let output = folder.run(&["cast", "shown.toml", "go", "--store", STORE]);
    let screen = stderr(&output);
    assert!(screen.contains("< invalid WA-EXEC-I-001 at line 2, column 1"), "{screen}");
    assert!(screen.contains("=> 2"), "{screen}");
    let programs = screen.lines().filter(|line| line.contains("WA-EXEC-S-001")).count();
    assert_eq!(programs, 1, "the code of done alone: {screen}");
}

#[test]
fn a_program_in_a_fenced_block_has_its_reply_too() {
    let folder = Folder::new();
    spell(&folder, "fenced", "javascript", "[wards]\nmax_turns = 3\n", &["var y = ;", "done('over')"]);
    let plain = folder.read("fenced.toml");
    folder.write("fenced.toml", &format!("fenced = true\n{plain}"));
    cast(&folder, "fenced", "--quiet");
    let thread = folder.seen(&["thread", "--store", STORE]);
    let output = &thread["turns"][0]["outputs"][0];
    assert_eq!(output["tool_call_id"], Value::Null);
    assert_recorded(&output["reply"], SYNTAX);
    assert_eq!(output["reply"]["line"], 1);
}

/// Waits until a file exists.
#[track_caller]
fn until_there(folder: &Folder, name: &str) {
    let began = Instant::now();
    while !folder.path().join(name).exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "{name} does not come");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_program_that_a_deadline_or_a_person_stops_has_the_code_of_that_end() {
    // A gate that signals that it was reached, and another that never answers.
    const GATES: &str = "[gates.begun]\ncommand = [\"sh\", \"-c\", \"touch begun; echo null\"]\nlabels = []\n\
                         [gates.waits]\ncommand = [\"sh\", \"-c\", \"touch begun; sleep 60\"]\nlabels = []\n";
    for (medium, endless) in [("javascript", "begun();\nfor (;;);"), ("python", "begun()\nwhile True: pass")] {
        for (name, program) in [("runs", endless), ("in_a_gate", "waits()")] {
            // Stopped by its deadline.
            let folder = Folder::new();
            let wards = format!("{GATES}[wards]\nmax_turns = 3\ntimeout = '2s'\ncpu = '60s'\n");
            spell(&folder, name, medium, &wards, &[program]);
            let output = folder.run(&["cast", &format!("{name}.toml"), "go", "--json", "--store", STORE]);
            assert_eq!(output.status.code(), Some(3), "{output:?}");
            let turn = folder.seen(&["thread", "--store", STORE])["turns"][0].clone();
            assert_eq!(turn["truncation_reason"], "timeout", "{medium} {name}");
            let reply = &turn["outputs"][0]["reply"];
            assert_recorded(reply, codes::WARD_REACHED.any());
            assert_eq!(reply["message"], "ward timeout ended the cast at 2000 ms", "{medium} {name}");
            let call = &turn["gate_calls"][0]["reply"]["code"];
            assert_eq!(call, if name == "runs" { "WA-EXEC-S-001" } else { "EN-EXEC-D-001" }, "{medium} {name}");

            // Stopped by a user in another process.
            let folder = Folder::new();
            let wards = format!("{GATES}[wards]\nmax_turns = 3\ncpu = '60s'\nwall = '60s'\n");
            spell(&folder, name, medium, &wards, &[program]);
            let casting = folder.spawn(&["cast", &format!("{name}.toml"), "go", "--jsonl", "--store", STORE]);
            until_there(&folder, "begun");
            let runs = folder.envelope(&["run", "ls", "--store", STORE], codes::READ.any());
            let run = id(&runs["data"]["value"][0]["run_id"]).to_owned();
            folder.envelope(&["run", "cancel", &run, "--store", STORE], codes::CHANGED.any());
            let output = casting.wait_with_output().expect("it ends");
            let lines = stdout(&output).lines().map(|line| serde_json::from_str(line).expect("JSON"));
            let lines: Vec<Value> = lines.collect();
            assert_recorded(&completed(&lines, medium)[0]["toolReply"], codes::ENDED_FROM_OUTSIDE.any());
            let turn = folder.seen(&["thread", "--store", STORE])["turns"][0].clone();
            assert_eq!(turn["truncation_reason"], "cancelled", "{medium} {name}");
            assert_recorded(&turn["outputs"][0]["reply"], codes::ENDED_FROM_OUTSIDE.any());
        }
    }
}

/// Returns the worker process of a cast that runs Python.
#[track_caller]
fn worker_of(casting: &std::process::Child) -> Pid {
    let threads = std::fs::read_dir(format!("/proc/{}/task", casting.id())).expect("its threads");
    let mut started = threads.filter_map(Result::ok).flat_map(|thread| {
        let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        children.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    });
    let is_worker = |pid: &String| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|argument| argument == b"worker")
    };
    let found = started.find(is_worker).expect("a worker");
    Pid::from_raw(found.parse().expect("a number")).expect("a process")
}

/// Returns the processor time that a process has used, in kernel ticks.
fn ticks(process: Pid) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).expect("it lives");
    let behind_name = stat.rsplit_once(')').expect("a name").1;
    behind_name.split_whitespace().nth(11).expect("its time").parse().expect("a number")
}

#[test]
fn a_program_whose_sandbox_is_killed_has_that_code_and_the_next_one_runs() {
    const GATE: &str = "[gates.begun]\ncommand = [\"sh\", \"-c\", \"touch begun; echo null\"]\nlabels = []\n";
    let folder = Folder::new();
    let wards = format!("{GATE}[wards]\nmax_turns = 3\ncpu = '60s'\nwall = '60s'\n");
    spell(&folder, "lost", "python", &wards, &["x = 1\nbegun()\nwhile True: pass", "done('over')"]);
    let casting = folder.spawn(&["cast", "lost.toml", "go", "--jsonl", "--store", STORE]);
    until_there(&folder, "begun");
    // The worker is idle while it waits for the gate; kill it while the program runs.
    let worker = worker_of(&casting);
    let (before, began) = (ticks(worker), Instant::now());
    while ticks(worker) < before + 20 {
        assert!(began.elapsed() < Duration::from_secs(60), "the program does not run");
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(worker, Signal::KILL).expect("it is killed");
    let output = casting.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let lines: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let programs = completed(&lines, "python");
    assert_recorded(&programs[0]["toolReply"], codes::SANDBOX_LOST.any());
    assert_recorded(&programs[1]["toolReply"], OK);
    let turn = folder.seen(&["thread", "--store", STORE])["turns"][0].clone();
    let (reply, call) = (&turn["outputs"][0]["reply"], &turn["gate_calls"][0]["reply"]);
    assert_recorded(reply, codes::SANDBOX_LOST.any());
    assert!(reply["message"].as_str().is_some_and(|message| message.contains("python")), "{reply}");
    assert_recorded(call, OK);
    let page = folder.run(&["loom", "show", id(&turn["id"]), "--store", STORE]);
    assert!(stdout(&page).contains("< error MCP-EXEC-E-002"), "{page:?}");
}

#[test]
fn what_was_recorded_before_programs_had_replies_is_read_verified_and_replayed() {
    for medium in ["javascript", "python"] {
        let folder = Folder::new();
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/programs_without_replies");
        for file in ["toml", "yaml", "jsonl"].map(|end| format!("{medium}.{end}")) {
            folder.write(&file, &std::fs::read_to_string(format!("{fixtures}/{file}")).expect("a fixture"));
        }
        let store = ["--store", STORE];
        let imported = folder.run(&[&["loom", "import", &format!("{medium}.jsonl")], &store[..]].concat());
        assert!(imported.status.success(), "{imported:?}");
        folder.envelope(&[&["loom", "verify"], &store[..]].concat(), codes::VERIFIED.any());
        let replayed = folder.run(&[&["loom", "replay"], &store[..]].concat());
        assert!(stdout(&replayed).starts_with("identical"), "{replayed:?}");
        let thread = folder.seen(&[&["thread"], &store[..]].concat());
        let outputs: Vec<&Value> = (0..5).map(|at| &thread["turns"][at]["outputs"][0]).collect();
        assert!(outputs.iter().all(|output| output.get("reply").is_none()), "{outputs:?}");
        // The outcomes of older programs are derived from their outputs.
        let exported = folder.run(&[&["loom", "export"], &store[..]].concat());
        let rewards: Vec<f64> = stdout(&exported)
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["x"]["implicit_reward"].as_f64())
            .map(|reward| reward.expect("a reward"))
            .collect();
        assert_eq!(rewards, [0.0, 0.0, 0.0, 1.0, 1.0]);
        // The export equals the import, except for the lines about receipts, which stay with their store.
        let journal = folder.run(&[&["loom", "export", "--format", "journal", "--no-redact"], &store[..]].concat());
        let came = folder.read(&format!("{medium}.jsonl"));
        for line in came.lines().filter(|line| line.contains("\"type\":\"turn\"")) {
            assert!(stdout(&journal).contains(line), "{line}");
        }
        // The thread can be continued, and new programs have a reply.
        folder.write(&format!("{medium}.yaml"), "responses: [{code: done(x)}]");
        let fork = folder.run(&[&["loom", "fork", "say it again", "--quiet"], &store[..]].concat());
        assert!(fork.status.success(), "{fork:?}");
        let thread = folder.seen(&[&["thread"], &store[..]].concat());
        let last = thread["turns"].as_array().expect("turns").last().expect("a turn");
        assert_recorded(&last["outputs"][0]["reply"], OK);
    }
}

#[test]
fn the_older_names_of_delegation_are_functions_in_code_and_recorded_under_the_newer_ones() {
    const DELEGATING: &str = "[gates.call_agent]\n[gates.call_agent_batch]\n[wards]\nmax_turns = 3\n";
    let programs = [
        ("javascript", "var a = call_entity('one'); done([a].concat(call_entity_batch(['two', {intent: 'three'}])))"),
        ("python", "a = call_entity('one')\ndone([a] + call_entity_batch(['two', {'intent': 'three'}]))"),
    ];
    for (medium, program) in programs {
        let folder = Folder::new();
        spell(&folder, "kin", medium, DELEGATING, &[program, "done('A')", "done('B')", "done('C')"]);
        assert_eq!(stdout(&cast(&folder, "kin", "--quiet")).trim(), "[\"A\",\"B\",\"C\"]");
        let turns = folder.seen(&["tree", "--store", STORE])["turns"].clone();
        let root = turns.as_array().expect("turns").iter().find(|turn| turn["parent_id"].is_null()).expect("a root");
        let of_root = id(&root["entity_id"]);
        let thread = folder.seen(&["thread", of_root, "--store", STORE]);
        let calls = thread["turns"].as_array().expect("turns").iter();
        let calls = calls.flat_map(|turn| turn["gate_calls"].as_array().expect("calls"));
        let names: Vec<&str> = calls.map(|call| id(&call["gate"])).collect();
        assert_eq!(names, ["call_agent", "call_agent", "call_agent_batch", "call_agent_batch", "done"], "{medium}");
        // The older names are not offered: the tools for a crystal, and their hash, are unchanged.
        let journal = folder.run(&["loom", "export", "--format", "journal", "--no-redact", "--store", STORE]);
        let roots = stdout(&journal).lines().filter(|line| line.contains("\"type\":\"root\"")).map(str::to_owned);
        let roots: Vec<String> = roots.collect();
        assert!(roots.iter().any(|root| root.contains("\"name\":\"call_agent\"")), "{roots:?}");
        assert!(roots.iter().all(|root| !root.contains("call_entity")), "{roots:?}");
        let replayed = folder.run(&["loom", "replay", of_root, "--store", STORE]);
        assert!(stdout(&replayed).starts_with("identical"), "{replayed:?}");
    }
}

#[test]
fn an_older_name_that_a_ward_took_away_is_denied_as_its_gate_is() {
    for (medium, once) in [
        ("javascript", "try { GATE('x') } catch (error) { console.log(error.code) }"),
        ("python", "try:\n    GATE('x')\nexcept RuntimeError as error:\n    print(error)"),
    ] {
        for (gate, of, wards) in [
            ("call_entity", "call_agent", "max_depth = 0\n"),
            ("call_entity_batch", "call_agent_batch", "remove_gate = 'call_entity_batch'\n"),
            ("call_agent", "call_agent", "remove_gate = 'call_entity'\n"),
        ] {
            let folder = Folder::new();
            let gates = format!("[gates.call_agent]\n[gates.call_agent_batch]\n[wards]\nmax_turns = 3\n{wards}");
            spell(&folder, "kin", medium, &gates, &[&once.replace("GATE", gate), "done('over')"]);
            cast(&folder, "kin", "--quiet");
            let turn = folder.seen(&["thread", "--store", STORE])["turns"][0].clone();
            let call = &turn["gate_calls"][0];
            assert_eq!(call["gate"], of, "{medium} {gate}");
            assert_recorded(&call["reply"], codes::GATE_REMOVED.any());
            let said = turn["outputs"][0]["console"][0].as_str().expect("a line");
            assert!(said.contains("EN-VIS-D-001"), "{medium} {gate}: {said}");
            // A circle without the gate does not have its older name either.
            spell(&folder, "alone", medium, "[wards]\nmax_turns = 2\n", &[&format!("{gate}('x')"), "done('over')"]);
            cast(&folder, "alone", "--quiet");
            let output = folder.seen(&["thread", "--store", STORE])["turns"][0]["outputs"][0].clone();
            let name = if medium == "javascript" { "ReferenceError" } else { "NameError" };
            assert_eq!(output["error"]["name"], name, "{output}");
        }
    }
}

/// A folder with a spell in Python whose model says these programs.
fn in_python(programs: &[&str]) -> Folder {
    let folder = Folder::new();
    folder.write(
        "py.toml",
        "name = \"py\"\ncrystal = \"scripted/py.yaml\"\nmedium = \"python\"\n[wards]\nmax_turns = 9\n",
    );
    let responses: Vec<Value> = programs.iter().map(|program| json!({ "code": program })).collect();
    folder.write("py.yaml", &json!({ "responses": responses }).to_string());
    folder
}

#[test]
fn the_errors_of_a_python_program_are_its_own_and_half_a_character_is_refused() {
    let folder = in_python(&["raise SystemExit(3)", "raise ValueError(1)", "print('a\\ud800b')", "done('over')"]);
    let output = folder.run(&["cast", "py.toml", "go", "--store", STORE]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "over\n"), "{}", stderr(&output));
    let shown = folder.run(&["loom", "thread", "--store", STORE]);
    let text = stdout(&shown);
    for part in ["SystemExit: 3", "ValueError: 1", "half of a surrogate pair"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("Internal error") && !text.contains('\u{fffd}'), "{text}");
}

#[test]
fn a_cast_without_memory_for_python_says_so() {
    let folder = in_python(&["done(6 * 7)"]);
    let mut refused = 0;
    // How much a process needs before it starts depends on its build.
    for megabytes in (250..1_000).step_by(50) {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "ulimit -v \"$1\"; shift; exec \"$@\"", "sh", &(megabytes * 1_000).to_string()]);
        shell.arg(env!("CARGO_BIN_EXE_cantrip")).args(["cast", "py.toml", "go", "--json", "--store", STORE]);
        folder.around(&mut shell);
        let output = shell.output().expect("a shell");
        // A process that cannot even start says nothing.
        let Ok(envelope) = serde_json::from_slice::<Value>(&output.stdout) else { continue };
        if envelope["data"]["answer"] == 42 {
            break;
        }
        let said = envelope["message"].as_str().expect("a message");
        if envelope["code"] == codes::STORE_FAILED.as_str() {
            assert!(said.contains("thread") || said.contains("memory"), "{megabytes} MB: {envelope}");
            continue;
        }
        assert_eq!(envelope["code"], codes::SANDBOX_UNAVAILABLE.as_str(), "{megabytes} MB: {envelope}");
        assert!(said.contains("memory") && said.contains("ulimit -v"), "{megabytes} MB: {envelope}");
        refused += 1;
    }
    assert!(refused > 0, "there is a limit at which only the stack of the interpreter does not fit");
}
