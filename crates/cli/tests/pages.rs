//! Every command shown in a page runs, and prints the output that the page shows.
//!
//! A fenced block marked `console` holds commands after `$ `, each followed by its output. In the output, `...` alone
//! on a line stands for any lines, and within a line for any text; `[exit N]` as the last line is the exit status, 0 if
//! absent. A command without output only has to succeed. Commands run in the root of the repository.
//!
//! A command that ends in `&` is a server: it listens on a free port instead of 8420, its first output is compared, and
//! it runs until the page ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Commands that run elsewhere, each with the place.
const RUN_ELSEWHERE: &[(&str, &str)] = &[
    ("./test.sh", "CI itself"),
    ("./test.sh --long", "the same script; longer properties"),
    (
        "git config core.hooksPath .githooks",
        "would change the reader's checkout; the hook's two commands are in test.sh",
    ),
    ("CANTRIP_BLESS=1 cargo test -p cantrip-cli --test generated", "the same test without the variable runs here"),
    ("cargo run --profile dist -p cantrip-bench -- stream", "test.sh"),
    ("cargo run --profile dist -p cantrip-bench -- fold", "test.sh --long"),
    ("cargo run --quiet --package cantrip --example 01_one_query", "crates/cantrip/tests/examples.rs"),
    ("cargo run --quiet --package cantrip --example 02_typed_answer", "crates/cantrip/tests/examples.rs"),
    ("cargo run --quiet --package cantrip --example 03_watching", "crates/cantrip/tests/examples.rs"),
    ("cargo run --quiet --package cantrip --example 04_summoning", "crates/cantrip/tests/examples.rs"),
    ("cargo run --quiet --package cantrip --example 05_children", "crates/cantrip/tests/examples.rs"),
    ("cargo run --quiet --package cantrip --example 06_forking", "crates/cantrip/tests/examples.rs"),
    ("cargo run --quiet --package cantrip --example 07_familiar", "crates/cantrip/tests/examples.rs"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/cli lies in the workspace").to_owned()
}

/// Returns the pages: Markdown at the root and in the folders that hold prose.
fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    for folder in ["", "docs", "crates", "bench", "examples", "tests/conformance"] {
        let Ok(entries) = fs::read_dir(root().join(folder)) else { continue };
        let files = entries.map(|entry| entry.expect("an entry").path());
        pages.extend(files.filter(|path| path.extension().is_some_and(|ending| ending == "md")));
    }
    pages.sort();
    pages
}

#[derive(Debug, PartialEq)]
struct Shown {
    line: usize,
    command: String,
    output: Vec<String>,
    exit: i32,
}

fn shown_in(page: &str) -> Vec<Shown> {
    let mut found: Vec<Shown> = Vec::new();
    let mut inside = false;
    for (index, line) in page.lines().enumerate() {
        if line.starts_with("```") {
            inside = !inside && line.trim_end() == "```console";
        } else if inside && let Some(command) = line.strip_prefix("$ ") {
            found.push(Shown { line: index + 1, command: command.to_owned(), output: Vec::new(), exit: 0 });
        } else if inside && let Some(last) = found.last_mut() {
            match line.strip_prefix("[exit ").and_then(|rest| rest.strip_suffix(']')) {
                Some(status) => last.exit = status.parse().expect("a number in [exit N]"),
                None => last.output.push(line.to_owned()),
            }
        }
    }
    for shown in &mut found {
        while shown.output.last().is_some_and(|line| line.trim().is_empty()) {
            shown.output.pop();
        }
    }
    found
}

/// Returns true if the printed lines match the shown lines.
fn fits(shown: &[String], printed: &[&str]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((line, rest)) if line == "..." => (0..=printed.len()).any(|skip| fits(rest, &printed[skip..])),
        Some((line, rest)) => {
            printed.split_first().is_some_and(|(first, others)| fits_line(line, first) && fits(rest, others))
        }
    }
}

/// Returns true if a printed line matches: `...` stands for any text, and the other parts must come in order, up to
/// both ends of the line.
fn fits_line(shown: &str, printed: &str) -> bool {
    let (shown, printed) = (shown.trim_end(), printed.trim_end());
    let parts: Vec<&str> = shown.split("...").collect();
    let [first, between @ .., last] = parts.as_slice() else { return shown == printed };
    let Some(mut rest) = printed.strip_prefix(first).and_then(|rest| rest.strip_suffix(last)) else {
        return false;
    };
    between.iter().all(|part| match rest.find(part) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}

/// The port that pages show.
const SHOWN_PORT: &str = ":8420";

/// A server that a page started.
struct Served {
    child: Child,
    port: String,
    said: String,
}

impl Served {
    fn start(command: &str, scratch: &Path) -> Self {
        let command = command.trim_end_matches('&').trim_end().replace("cantrip serve", "exec cantrip serve");
        let mut child = bash(&format!("{command} --bind 127.0.0.1:0"), scratch)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("bash runs");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let said = lines.next().expect("it says where it listens").expect("text");
        let port = said.split("http://127.0.0.1").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default();
        let port = port.to_owned();
        // Drain the rest of its output, so that the server does not block.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, port, said }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn run(command: &str, scratch: &Path) -> (String, i32) {
    let output = bash(&format!("{{ {command}\n}} 2>&1"), scratch).output().expect("bash runs");
    (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code().unwrap_or(-1))
}

/// Temporary folders of the command are created in `scratch` and removed with it.
fn bash(command: &str, scratch: &Path) -> Command {
    let binary = Path::new(env!("CARGO_BIN_EXE_cantrip"));
    let command = match command.strip_prefix("{ cargo run -- ") {
        Some(arguments) => format!("{{ cantrip {arguments}"),
        None => command.to_owned(),
    };
    let path = format!(
        "{}:{}",
        binary.parent().expect("a folder").display(),
        std::env::var("PATH").expect("a PATH to find bash by")
    );
    let mut bash = Command::new("bash");
    bash.args(["-c", &command])
        .current_dir(root())
        .env("PATH", path)
        .env("TMPDIR", scratch)
        .env("NO_COLOR", "1")
        // The pages assume that the binary is in the PATH, and is not run by cargo.
        .env_remove("CARGO");
    bash
}

#[test]
fn every_command_in_a_page_runs_and_prints_what_is_shown() {
    let scratch = tempfile::tempdir().expect("a folder");
    let mut faults = Vec::new();
    let mut ran = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a readable page");
        let name = page.strip_prefix(root()).expect("below the root").display().to_string();
        let mut served: Option<Served> = None;
        for mut shown in shown_in(&text) {
            if RUN_ELSEWHERE.iter().any(|(command, _)| *command == shown.command) {
                continue;
            }
            ran += 1;
            if shown.command.ends_with('&') {
                served = Some(Served::start(&shown.command, scratch.path()));
            }
            if let Some(served) = &served {
                shown.command = shown.command.replace(SHOWN_PORT, &served.port);
                for line in &mut shown.output {
                    *line = line.replace(SHOWN_PORT, &served.port);
                }
            }
            let (printed, exit) = match &served {
                Some(served) if shown.command.ends_with('&') => (served.said.clone(), 0),
                Some(_) | None => run(&shown.command, scratch.path()),
            };
            let lines: Vec<&str> = printed.trim_end().lines().collect();
            if exit != shown.exit || !(shown.output.is_empty() || fits(&shown.output, &lines)) {
                faults.push(format!("{name}:{}: $ {}\nexit {exit}, printed:\n{printed}", shown.line, shown.command));
            }
        }
    }
    assert!(ran >= 3, "only {ran} commands were found in the pages");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_two_commands_stand_on_the_first_screen() {
    let readme = fs::read_to_string(root().join("README.md")).expect("a README");
    let screen: Vec<&str> = readme.lines().take(24).collect();
    assert!(screen.contains(&"$ cargo run -- demo") && screen.contains(&"$ ./test.sh"), "{screen:#?}");
}

#[test]
fn output_that_differs_from_the_page_is_noticed() {
    let shown = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
    assert!(fits(&shown(&["a", "...", "z"]), &["a", "b", "c", "z"]));
    assert!(fits(&shown(&["took ... ms", "..."]), &["took 12 ms"]));
    assert!(fits(&shown(&["{\"a\":1,..."]), &["{\"a\":1,\"b\":2}"]));
    assert!(!fits(&shown(&["a", "..."]), &["b"]));
    assert!(!fits(&shown(&["a"]), &["a", "b"]));
    assert!(!fits(&shown(&["took ... ms"]), &["took 12 s"]));
    assert!(!fits(&shown(&["exact"]), &["exactly"]));
}

#[test]
fn commands_are_found_only_in_console_blocks() {
    let page = "```sh\n$ no\n```\n```console\n$ yes --now\nline\n[exit 2]\n\n$ again\n```\n$ no\n";
    let found = shown_in(page);
    assert_eq!(found.len(), 2);
    assert_eq!(found[0], Shown { line: 5, command: "yes --now".into(), output: vec!["line".into()], exit: 2 });
    assert_eq!(found[1].command, "again");
}

/// A new version of the table has to be quoted again.
#[test]
fn what_the_readme_quotes_of_the_comparison_stands_in_it() {
    let read = |page: &str| fs::read_to_string(root().join(page)).expect("a readable page");
    let (readme, results) = (read("README.md"), read("bench/RESULTS.md"));
    let quoting = readme.split("\n\n").find(|part| part.starts_with("**Measured.**")).expect("it quotes the table");
    let words: Vec<&str> = quoting.split_whitespace().collect();
    let ratios: Vec<&str> = words.windows(2).filter(|pair| pair[1] == "x").map(|pair| pair[0]).collect();
    assert!(ratios.len() >= 4, "{ratios:?}");
    for ratio in ratios {
        assert!(results.contains(&format!("({ratio} x)")), "{ratio} x is in the README, and not in bench/RESULTS.md");
    }
}
