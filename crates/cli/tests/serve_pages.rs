//! The pages of `cantrip serve`: they answer, their commands run in a shell as pasted, and `--open` opens them once.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use cantrip_reply::codes;
use rustix::process::Signal;
use serde_json::Value;

use crate::serve::Server;
use crate::support::{Folder, id};

const STORE: &[&str] = &["--store", "sqlite:kept/loom.db"];

/// An intent that a shell must not read as anything but text.
const INTENT: &str = "it's \"odd\":\n$HOME `date` $(date) \\ & <b>; 🎉 -- '";

/// The commands that change something. The others only read.
const ACTING: [&str; 10] = [
    "cast ",
    "summon ",
    "loom fork ",
    "loom reward ",
    "run approve ",
    "run refuse ",
    "run cancel ",
    "run continue ",
    "run resume ",
    "run undo ",
];

/// Returns a page that a browser on this machine gets.
#[track_caller]
fn page(server: &Server, path: &str) -> String {
    let text = server.text(path);
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200 "), "{path}: {text}");
    assert!(head.to_ascii_lowercase().contains("content-type: text/html"), "{path}: {head}");
    assert!(body.contains("<h1"), "{path}: {body}");
    body.to_owned()
}

/// Returns the commands that a page offers to copy.
fn copied(page: &str) -> Vec<String> {
    let values = page.split("data-copy=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let text = |value: &str| {
        let plain = value.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&#39;", "'");
        plain.replace("&amp;", "&")
    };
    values.map(text).filter(|text| text.starts_with("cantrip ")).collect()
}

fn changes_something(command: &str) -> bool {
    let rest = command.trim_start_matches("cantrip ");
    ACTING.iter().any(|acting| format!("{rest} ").starts_with(acting)) && !rest.contains("--dry-run")
}

/// Returns the addresses of all pages of a run that has ended.
fn addresses(server: &Server, run: &str, spell: &str) -> Vec<String> {
    let (_, shown) = server.ask("GET", &format!("/v1/runs/{run}"), None);
    let loom = id(&shown["data"]["value"]["loom_id"]).to_owned();
    let (_, turns) = server.ask("GET", &format!("/v1/runs/{run}/turns"), None);
    let turn = id(&turns["data"]["value"]["items"][0]["id"]).to_owned();
    let fixed = ["/", "/runs", "/looms", "/approvals", "/spells", "/settings", "/keys"].map(str::to_owned);
    let of_run = ["", "/tree", "/files", "/records"].map(|part| format!("/runs/{run}{part}"));
    let others = [
        format!("/runs/{run}/sent/{turn}"),
        format!("/turns/{turn}/fork"),
        format!("/looms/{loom}"),
        format!("/spells/{spell}"),
    ];
    fixed.into_iter().chain(of_run).chain(others).collect()
}

#[test]
fn every_page_answers_and_each_command_on_it_runs_as_pasted_whatever_the_intent_holds() {
    let folder = Folder::new().with_hello();
    let server = Server::start(&folder, STORE);
    let run = server.cast_about("hello", INTENT);
    server.until(&run, |value| value["state"] == "terminated");
    let pages: Vec<(String, String)> =
        addresses(&server, &run, "hello").into_iter().map(|path| (page(&server, &path), path)).collect();
    let mut commands = BTreeSet::new();
    for (text, path) in &pages {
        let found = copied(text);
        // These two are about the pages themselves.
        let of_pages = ["/settings", "/keys"].contains(&path.as_str());
        assert!(of_pages || !found.is_empty(), "{path} says with which command the same is done: {text}");
        commands.extend(found);
    }
    for command in commands {
        // A command that acts is only checked for its form; what it does is seen in the tests of its page.
        let line = if changes_something(&command) { format!("{command} --help") } else { command };
        let output = folder.pasted(&line);
        assert!(output.status.success(), "{line}\n{output:?}");
    }
}

#[test]
fn the_command_of_a_waiting_call_approves_it_and_its_page_then_says_who_decided() {
    let folder = Folder::new();
    folder.write(
        "hands.toml",
        "name = \"hands\"\ncrystal = \"scripted/hands.yaml\"\n[gates.edit]\nroot = \".\"\n[wards]\nmax_turns = 9\n\
         require_approval = [\"edit\"]\n",
    );
    folder.write(
        "hands.yaml",
        "responses:\n  - tool_calls: [{id: e, gate: edit, args: {path: note.txt, old: two, new: zwei}}]\n  \
         - tool_calls: [{id: d, gate: done, args: {answer: over}}]\n",
    );
    folder.write("note.txt", "one\ntwo\nthree\n");
    let server = Server::start(&folder, STORE);
    let run = server.cast_about("hands", INTENT);
    let waiting = |value: &Value| value["approvals"].as_array().is_some_and(|asked| !asked.is_empty());
    let shown = server.until(&run, |value| value["state"] == "waiting" && waiting(value));
    let approval = id(&shown["approvals"][0]["approval_id"]).to_owned();
    let inbox = page(&server, "/approvals");
    assert!(inbox.contains("zwei") && inbox.contains("note.txt"), "{inbox}");
    let approve = copied(&inbox).into_iter().find(|command| command.contains("run approve "));
    let approve = approve.unwrap_or_else(|| panic!("{inbox}"));
    assert_eq!(folder.read("note.txt"), "one\ntwo\nthree\n");
    let output = folder.pasted(&approve);
    assert!(output.status.success(), "{approve}\n{output:?}");
    server.until(&run, |value| !waiting(value));
    let decided = page(&server, &format!("/approvals/{approval}?run={run}"));
    assert!(decided.contains("Approved</b> by local"), "{decided}");
}

/// Returns the text of a file, once it is there.
fn written(folder: &Folder, name: &str) -> String {
    let began = Instant::now();
    while !folder.path().join(name).exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "{name} was not written");
        std::thread::sleep(Duration::from_millis(10));
    }
    folder.read(name)
}

#[test]
fn open_starts_the_browser_with_a_link_that_works_once_and_is_in_no_log() {
    let folder = Folder::new().with_hello();
    folder.write("browser.sh", "#!/bin/sh\nprintf %s \"$1\" > link.part\nmv link.part link.txt\n");
    let browser = folder.path().join("browser.sh");
    std::fs::set_permissions(&browser, std::fs::Permissions::from_mode(0o755)).expect("a script");
    let browser = browser.display().to_string();
    let server = Server::start_with(&folder, &[STORE, &["--open"]].concat(), &[("BROWSER", browser.as_str())]);
    let link = written(&folder, "link.txt");
    let path =
        link.strip_prefix(&format!("http://{}", server.address())).unwrap_or_else(|| panic!("{link}")).to_owned();
    let key = path.rsplit('/').next().expect("a key").to_owned();
    assert!(key.len() >= 32, "{link}");
    let first = server.text(&path);
    assert!(first.starts_with("HTTP/1.1 303 "), "{first}");
    assert!(first.to_ascii_lowercase().contains("set-cookie: cantrip_"), "{first}");
    let second = server.text(&path);
    assert!(second.starts_with("HTTP/1.1 404 ") && !second.contains(&key), "{second}");
    let (status, log) = server.stop_and_read(Signal::TERM);
    assert_eq!(status, 0, "{log}");
    assert!(!log.contains(&key), "{log}");
}

#[test]
fn without_a_browser_the_link_is_printed() {
    let folder = Folder::new().with_hello();
    let server = Server::start_with(&folder, &[STORE, &["--open"]].concat(), &[("BROWSER", "/no/such/browser")]);
    let address = format!("http://{}", server.address());
    page(&server, "/keys");
    let (_, log) = server.stop_and_read(Signal::TERM);
    assert!(log.contains(&format!("this link works once, within a minute: {address}")), "{log}");
}

#[test]
fn a_public_address_needs_tokens_and_https() {
    let folder = Folder::new().with_hello();
    let serve = |url: &str, tokens: &[&str]| {
        let arguments = [&["serve", "--bind", "127.0.0.1:0", "--public-url", url], STORE, tokens].concat();
        folder.envelope(&arguments, codes::CONFIG_INVALID.any())
    };
    let open = serve("https://agents.example.org", &[]);
    assert!(id(&open["message"]).contains("--public-url"), "{open}");
    folder.write("tokens.txt", "user:ann = a-token-of-more-than-sixteen-letters\n");
    for url in ["http://agents.example.org", "https://agents.example.org/pages", "agents"] {
        let refused = serve(url, &["--tokens", "tokens.txt"]);
        assert!(id(&refused["message"]).contains(url), "{refused}");
    }
}
