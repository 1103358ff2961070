//! The workspace follows the rules of `rooms.toml`, and each rule can fail.

use std::process::Command;
use std::{env, fs};

use cantrip_tests::{Package, RoomRules, Source, Violation, files_below, indexed_rooms, root};

fn rules() -> RoomRules {
    RoomRules::parse(include_str!("rooms.toml")).expect("rooms.toml is consistent")
}

/// The packages of the workspace as cargo reports them, with their dependencies outside tests.
fn packages() -> Vec<Package> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo metadata runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let text = |value: &serde_json::Value| value.as_str().expect("a name").to_owned();
    metadata["packages"]
        .as_array()
        .expect("a list of packages")
        .iter()
        .map(|package| Package {
            name: text(&package["name"]),
            needs: package["dependencies"]
                .as_array()
                .expect("a list of dependencies")
                .iter()
                .filter(|dependency| dependency["kind"] != "dev")
                .map(|dependency| text(&dependency["name"]))
                .collect(),
        })
        .collect()
}

/// The sources that are compiled into a crate, without its tests and examples.
fn sources() -> Vec<Source> {
    let all = files_below("crates", "rs").expect("crates/ is readable");
    all.into_iter().filter(|source| source.path.split('/').nth(2) == Some("src")).collect()
}

#[track_caller]
fn assert_none(violations: &[Violation]) {
    let lines: Vec<_> = violations.iter().map(Violation::to_string).collect();
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}

#[track_caller]
fn assert_found(violations: &[Violation], place: &str, fault: &str) {
    assert!(
        violations.iter().any(|v| v.place == place && v.fault.contains(fault)),
        "expected {fault:?} at {place}, found {violations:?}"
    );
}

#[test]
fn every_room_uses_only_the_rooms_and_crates_it_may() {
    let packages = packages();
    assert!(packages.iter().any(|package| package.name == "cantrip-canon"), "the rooms were not found");
    assert_none(&rules().manifest_violations(&packages));
}

#[test]
fn every_room_reaches_through_reexports_only_what_it_is_granted() {
    assert_none(&rules().reexport_violations(&sources()));
}

#[test]
fn every_grant_is_needed() {
    assert_none(&rules().unused_grants(&packages(), &sources()));
}

#[test]
fn no_source_knows_what_its_room_must_not() {
    let sources = sources();
    assert!(sources.iter().any(|source| source.path == "crates/canon/src/lib.rs"), "the sources were not found");
    assert_none(&rules().source_violations(&sources));
}

#[test]
fn every_folder_in_crates_is_a_room_and_the_index_lists_them_in_order() {
    let built: Vec<String> = rules()
        .rooms
        .iter()
        .filter(|room| root().join("crates").join(&room.name).join("Cargo.toml").is_file())
        .map(|room| room.name.clone())
        .collect();
    let folders = fs::read_dir(root().join("crates")).expect("crates/ is readable");
    for folder in folders.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_dir()) {
        let name = folder.file_name().and_then(|name| name.to_str()).expect("UTF-8");
        assert!(built.iter().any(|room| room == name), "crates/{name} is not in tests/rooms.toml or has no manifest");
    }
    let readme = fs::read_to_string(root().join("crates/README.md")).expect("crates/README.md is there");
    assert_eq!(indexed_rooms(&readme), built, "crates/README.md lists the built rooms in dependency order");
}

#[test]
fn every_room_says_in_one_line_what_it_is() {
    for room in rules().rooms {
        let folder = root().join("crates").join(&room.name).join("src");
        let Some(text) = ["lib.rs", "main.rs"].iter().find_map(|file| fs::read_to_string(folder.join(file)).ok())
        else {
            continue;
        };
        let first = text.lines().next().unwrap_or_default();
        assert!(first.starts_with("//! ") && first.ends_with('.'), "crates/{} opens with: {first}", room.name);
    }
}

#[test]
fn exceptions_name_files_that_exist_and_need_them() {
    let rules = rules();
    for exception in &rules.exceptions {
        assert!(root().join(&exception.path).is_file(), "{} is gone; so is the need for its exception", exception.path);
        let strict =
            RoomRules { exceptions: Vec::new(), ..RoomRules::parse(include_str!("rooms.toml")).expect("parses") };
        let found = strict.source_violations(&sources());
        assert!(found.iter().any(|v| v.place.starts_with(&exception.path)), "{} needs no exception", exception.path);
    }
}

#[test]
fn a_module_with_unsafe_code_exists_and_argues_for_it() {
    for module in rules().unsafe_modules {
        let text = fs::read_to_string(root().join(&module.path)).expect("a listed module is there");
        let argument: String = text.lines().take_while(|line| line.starts_with("//!")).collect();
        assert!(argument.contains("sound") && argument.len() > 400, "{} opens without its argument", module.path);
        assert!(text.contains("// SAFETY:"), "{} has no unsafe block left", module.path);
    }
}

/// Texts in a line of code that mark a missing implementation.
const STUBS: [&str; 5] = ["todo!(", "unimplemented!(", "not built yet", "not implemented", "not yet implemented"];

/// Returns the lines of a source that mark a missing implementation; examples in comments are ignored.
fn stubs(source: &Source) -> Vec<String> {
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let is_stub = |line: &&str| STUBS.iter().any(|stub| line.contains(stub));
    source.text.lines().filter(is_code).filter(is_stub).map(|line| format!("{}: {line}", source.path)).collect()
}

#[test]
fn nothing_that_is_compiled_into_a_room_is_a_stub() {
    let found: Vec<String> = sources().iter().flat_map(stubs).collect();
    assert!(found.is_empty(), "{found:#?}");
    for stub in STUBS {
        let planted = Source { path: "crates/cli/src/planted.rs".to_owned(), text: format!("    {stub}\n") };
        assert_eq!(stubs(&planted).len(), 1, "{stub} is found");
    }
}

fn package(name: &str, needs: &[&str]) -> Package {
    Package { name: name.to_owned(), needs: needs.iter().map(|need| (*need).to_owned()).collect() }
}

fn source(path: &str, text: &str) -> Vec<Source> {
    vec![Source { path: path.to_owned(), text: text.to_owned() }]
}

#[test]
fn a_room_that_uses_one_it_may_not_is_found() {
    let found = rules().manifest_violations(&[package("cantrip-stream", &["cantrip-canon", "cantrip-reply"])]);
    assert_eq!(found.len(), 1);
    assert_found(&found, "crates/stream/Cargo.toml", "stream may not use reply");
    let found = rules().manifest_violations(&[package("cantrip", &["cantrip-store"])]);
    assert_found(&found, "crates/cantrip/Cargo.toml", "cantrip may not use store");
}

#[test]
fn a_room_that_reaches_another_through_a_reexport_is_found() {
    let planted = |path: &str, text: &str| {
        let file = |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
        let libraries = [
            file("crates/cantrip/src/lib.rs", "pub use cantrip_crystal as crystal;\npub use cantrip_circle::gate;\n"),
            file("crates/service/src/lib.rs", "pub use cantrip;\npub use cantrip_ds as contracts;\n"),
        ];
        rules().reexport_violations(&libraries.into_iter().chain([file(path, text)]).collect::<Vec<_>>())
    };
    let found = planted("crates/store/src/x.rs", "// A comment.\nlet crystal = cantrip::crystal::Crystal::new();");
    assert_eq!(found.len(), 1);
    assert_found(&found, "crates/store/src/x.rs:2", "store may not reach crystal");
    let nested = "use cantrip_service::{\n    Scope,\n    cantrip::{Cancel, crystal::Crystal, gate::{Gate, Spec}},\n};";
    let found = planted("crates/store/src/x.rs", nested);
    let faults: Vec<&str> = found.iter().map(|violation| violation.fault.as_str()).collect();
    let rooms = ["cantrip", "cantrip", "crystal", "cantrip", "circle", "cantrip", "circle"];
    assert_eq!(faults, rooms.map(|room| format!("store may not reach {room} through a re-export")));
    assert_none(&planted("crates/cli/src/x.rs", nested));
    assert_none(&planted("crates/store/src/x.rs", "use cantrip::Cancel;\nlet gate = crate::cantrip::gate::Gate;"));
}

#[test]
fn a_grant_that_nothing_needs_is_found() {
    let found = rules().unused_grants(&[package("cantrip-stream", &[])], &[]);
    assert_found(&found, "tests/rooms.toml", "stream does not need its grant of canon");
}

#[test]
fn an_sql_crate_is_found_everywhere_but_in_the_store() {
    for room in rules().rooms.iter().map(|room| room.name.as_str()).filter(|name| !["store"].contains(name)) {
        let name = if room == "cantrip" { room.to_owned() } else { format!("cantrip-{room}") };
        let found = rules().manifest_violations(&[package(&name, &["rusqlite"])]);
        assert_found(&found, &format!("crates/{room}/Cargo.toml"), "rusqlite brings sql");
    }
    assert_none(&rules().manifest_violations(&[package("cantrip-store", &["rusqlite", "tokio-postgres"])]));
}

#[test]
fn what_gives_knowledge_away_in_a_source_is_found() {
    let cases = [
        ("crates/loom/src/lib.rs", r#"let q = "SELECT id FROM turns";"#, "sql in loom"),
        ("crates/canon/src/x.rs", "let t = std::time::SystemTime::now();", "clock in canon"),
        ("crates/stream/src/x.rs", "std::fs::read(path)", "io in stream"),
        ("crates/reply/src/x.rs", r#"println!("done");"#, "io in reply"),
        ("crates/circle/src/x.rs", r#"eprintln!("done");"#, "terminal in circle"),
        ("crates/turn/src/x.rs", "let answer = crystal.ask(&request).await;", "runtime in turn"),
        ("crates/turn/src/x.rs", "use tokio::sync::watch;", "runtime in turn"),
        ("crates/service/src/x.rs", "let e = Envelope::of(reply, meta);", "only a surface"),
        ("crates/cli/src/x.rs", r#"if code == "WA-READ-I-001" {}"#, "named by its constant"),
        ("crates/cli/src/x.rs", r#"if reply.message().contains("missing") {}"#, "never on message text"),
        ("crates/loom/src/x.rs", r#"json!({"warnings": []})"#, "no success with warnings"),
        ("crates/circle/src/x.rs", "pub struct ReplyBuilder;", "one Reply, one builder"),
        ("crates/loom/src/x.rs", "#![allow(unsafe_code)]", "unsafe outside"),
        ("crates/loom/src/x.rs", "let x = unsafe { *p };", "unsafe outside"),
    ];
    for (path, text, fault) in cases {
        assert_found(&rules().source_violations(&source(path, text)), &format!("{path}:1"), fault);
    }
}

#[test]
fn comments_and_allowed_rooms_are_left_alone() {
    let cases = [
        ("crates/loom/src/lib.rs", "/// Unlike `SELECT id FROM turns` this reads a view."),
        ("crates/serve/src/x.rs", "let e = Envelope::of(reply, meta);"),
        ("crates/store/src/x.rs", r#"let q = "SELECT id FROM turns";"#),
        ("crates/cli/src/x.rs", r#"println!("done");"#),
    ];
    for (path, text) in cases {
        assert_none(&rules().source_violations(&source(path, text)));
    }
}

#[test]
fn rules_that_contradict_themselves_are_refused() {
    let upside_down = r#"
        [[room]]
        name = "a"
        uses = ["b"]
        forbids = []
        [[room]]
        name = "b"
        uses = []
        forbids = []
        [knowledge]
    "#;
    assert!(RoomRules::parse(upside_down).is_err());
}

/// Runs the commit hook on a message; returns true if it passes, and its output.
fn commit_hook(message: &str) -> (bool, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("message");
    fs::write(&file, message).expect("a file");
    let output = Command::new(root().join(".githooks/commit-msg")).arg(&file).current_dir(root()).output();
    let output = output.expect("the hook runs");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn the_commit_hook_refuses_a_subject_of_more_than_72_characters() {
    let longest = "ä".repeat(72);
    let body = "x".repeat(200);
    assert_eq!(commit_hook(&format!("{longest}\n\n{body}\n")), (true, String::new()));
    let (passes, says) = commit_hook(&format!("{longest}b\n\n{body}\n"));
    assert!(!passes && says.contains("73 characters"), "{says}");
}

/// The functions and types that a page names with their files, as "`Type::function` in `path`".
fn named_in(page: &str) -> Vec<(String, String)> {
    let pair = regex::Regex::new(r"`([A-Za-z_:]+)`\s+in\s+`(crates/[^`]+\.rs)`").expect("a fixed pattern");
    pair.captures_iter(page).map(|found| (found[1].to_owned(), found[2].to_owned())).collect()
}

/// Whether a source defines the last part of a path such as `Type::function`.
fn defines(source: &str, name: &str) -> bool {
    let last = name.rsplit("::").next().unwrap_or(name);
    let definition = format!(r"\b(fn|struct|enum|trait|type) {last}\b");
    regex::Regex::new(&definition).expect("a name is a pattern").is_match(source)
}

#[test]
fn every_function_of_the_walks_stands_in_the_file_that_is_named() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md is there");
    let named = named_in(&page);
    assert!(named.len() >= 15, "only {} functions are named with their files", named.len());
    for (name, path) in named {
        let source = fs::read_to_string(root().join(&path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(defines(&source, &name), "{path} does not define {name}");
    }
    assert!(!defines("let turn = close(turn);", "Machine::close"), "a use is no definition");
}
