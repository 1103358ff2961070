//! Every command shown in a page runs, and prints the output that the page shows.
//!
//! A fenced block marked `console` holds commands after `$ `, each followed by its output. A command that ends in `\\`
//! goes on in the next line. In the output, `...` alone on a line stands for any lines, and within a line for any text;
//! `[exit N]` as the last line is the exit status, 0 if absent. A command without output only has to succeed.
//!
//! A page is read from top to bottom at one shell: variables, functions and the folder last from command to command.
//! It begins in a folder that looks like a checkout: `examples/` and `tests/conformance/` are there, and a store
//! (`.cantrip`). The home folder is empty, and no variable of the test's own environment is set.
//!
//! Set-up that a reader does not need to see is a comment above a block:
//!
//! ```text
//! <!-- prelude: cp "$EXAMPLES"/adder.* . -->
//! ```
//!
//! From such a block on, the page goes on in a new empty folder with its own store, where the commands of the comment
//! ran first. `<!-- prelude -->` alone only makes the folder.
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
    for folder in ["", "docs", "crates", "bench", "examples", "examples/tickets", "tests/conformance"] {
        let Ok(entries) = fs::read_dir(root().join(folder)) else { continue };
        let files = entries.map(|entry| entry.expect("an entry").path());
        pages.extend(files.filter(|path| path.extension().is_some_and(|ending| ending == "md")));
    }
    pages.sort();
    pages
}

#[derive(Debug, Default, PartialEq)]
struct Shown {
    line: usize,
    /// The hidden commands above the block, on its first command.
    prelude: Option<String>,
    command: String,
    output: Vec<String>,
    exit: i32,
}

fn shown_in(page: &str) -> Vec<Shown> {
    let mut found: Vec<Shown> = Vec::new();
    let mut inside = false;
    let mut prelude: Option<String> = None;
    let mut lines = page.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        if line.starts_with("```") {
            inside = !inside && line.trim_end() == "```console";
            assert!(inside || prelude.is_none(), "line {index}: a prelude stands above a console block");
        } else if let Some(first) = line.strip_prefix("<!-- prelude") {
            let mut hidden = first.trim_start_matches(':').to_owned();
            while !hidden.contains("-->") {
                let (_, next) = lines.next().expect("a prelude ends with -->");
                hidden = format!("{hidden}\n{next}");
            }
            prelude = Some(hidden.replace("-->", "").trim().to_owned());
        } else if inside && let Some(command) = line.strip_prefix("$ ") {
            let mut command = command.to_owned();
            while command.ends_with('\\') {
                let (_, next) = lines.next().expect("a command goes on after a backslash");
                command = format!("{command}\n{next}");
            }
            found.push(Shown { line: index + 1, prelude: prelude.take(), command, ..Shown::default() });
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
    fn start(mut bash: Command) -> Self {
        let mut child = bash.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("bash runs");
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

/// The shell at which a page is read. Its files are in a folder that is removed with it.
struct Shell {
    scratch: tempfile::TempDir,
    folders: u32,
    served: Option<Served>,
}

impl Shell {
    /// Opens a shell in a copy of the files of the repository that pages name.
    fn open() -> Self {
        let scratch = tempfile::tempdir().expect("a folder");
        fs::create_dir(scratch.path().join("home")).expect("a home folder");
        let mut shell = Self { scratch, folders: 0, served: None };
        let made = shell
            .enter_new_folder(r#"cp -r "$EXAMPLES" . && mkdir tests && cp -r "$EXAMPLES"/../tests/conformance tests"#);
        assert_eq!(made, (String::new(), 0));
        shell
    }

    /// Runs a prelude in a new folder, which has a store and nothing else.
    fn enter_new_folder(&mut self, prelude: &str) -> (String, i32) {
        self.folders += 1;
        let folder = self.scratch.path().join(format!("folder-{}", self.folders));
        fs::create_dir_all(folder.join(".cantrip")).expect("a folder");
        self.run(&format!("cd '{}'\n{prelude}", folder.display()))
    }

    /// Runs a command and returns its output, as on a terminal, and its exit status.
    fn run(&self, command: &str) -> (String, i32) {
        let kept = self.scratch.path().join("kept.sh");
        let keep = format!("{{ export -p; declare -f; printf 'cd %q\n' \"$PWD\"; }} > '{}'", kept.display());
        let output = self.bash(&format!("{{ {command}\n}} 2>&1\nstatus=$?\n{keep}\nexit $status")).output();
        let output = output.expect("bash runs");
        (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code().unwrap_or(-1))
    }

    fn serve(&mut self, command: &str) {
        let command = command.trim_end_matches('&').trim_end().replace("cantrip serve", "exec cantrip serve");
        self.served = Some(Served::start(self.bash(&format!("{command} --bind 127.0.0.1:0"))));
    }

    /// Returns a bash that starts where the last command ended.
    fn bash(&self, script: &str) -> Command {
        let binaries = Path::new(env!("CARGO_BIN_EXE_cantrip")).parent().expect("a folder").to_owned();
        let path = std::env::var("PATH").expect("a PATH to find bash by");
        let scratch = self.scratch.path();
        let kept = scratch.join("kept.sh");
        let script = format!("set -a\n[ ! -e '{0}' ] || . '{0}'\n{script}", kept.display());
        let mut bash = Command::new("bash");
        bash.args(["-c", &script])
            .current_dir(scratch)
            .env_clear()
            .env("PATH", format!("{}:{path}", binaries.display()))
            .env("HOME", scratch.join("home"))
            .env("TMPDIR", scratch)
            .env("LANG", "C.UTF-8")
            .env("NO_COLOR", "1")
            .env("EXAMPLES", root().join("examples"));
        bash
    }
}

/// Returns the faults of one page, and the number of commands that ran.
fn read_page(name: &str, text: &str) -> (Vec<String>, usize) {
    let mut faults = Vec::new();
    let mut ran = 0;
    let mut shell = Shell::open();
    for mut shown in shown_in(text) {
        if RUN_ELSEWHERE.iter().any(|(command, _)| *command == shown.command) {
            continue;
        }
        ran += 1;
        let place = format!("{name}:{}", shown.line);
        if let Some(prelude) = &shown.prelude {
            let (printed, exit) = shell.enter_new_folder(prelude);
            if exit != 0 {
                faults.push(format!("{place}: the prelude above ends with {exit}:\n{printed}"));
            }
        }
        if let Some(arguments) = shown.command.strip_prefix("cargo run -- ") {
            shown.command = format!("cantrip {arguments}");
        }
        if shown.command.ends_with('&') {
            shell.serve(&shown.command);
        }
        if let Some(served) = &shell.served {
            shown.command = shown.command.replace(SHOWN_PORT, &served.port);
            for line in &mut shown.output {
                *line = line.replace(SHOWN_PORT, &served.port);
            }
        }
        let (printed, exit) = match &shell.served {
            Some(served) if shown.command.ends_with('&') => (served.said.clone(), 0),
            Some(_) | None => shell.run(&shown.command),
        };
        let lines: Vec<&str> = printed.trim_end().lines().collect();
        if exit != shown.exit || !(shown.output.is_empty() || fits(&shown.output, &lines)) {
            faults.push(format!("{place}: $ {}\nexit {exit}, printed:\n{printed}", shown.command));
        }
    }
    (faults, ran)
}

#[test]
fn every_command_in_a_page_runs_and_prints_what_is_shown() {
    let mut faults = Vec::new();
    let mut ran = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a readable page");
        let name = page.strip_prefix(root()).expect("below the root").display().to_string();
        let (found, commands) = read_page(&name, &text);
        faults.extend(found);
        ran += commands;
    }
    assert!(ran >= 60, "only {ran} commands were found in the pages");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// A reader types commands of this program, not the set-up of a test.
#[test]
fn no_page_shows_the_set_up_of_its_test() {
    for page in pages() {
        for shown in shown_in(&fs::read_to_string(&page).expect("a readable page")) {
            let found = ["mktemp", "OLDPWD", "export CANTRIP_STORE"].map(|part| shown.command.contains(part));
            assert!(
                !found.contains(&true),
                "{}:{}: move the set-up into a prelude above the block (see the head of this test): {}",
                page.display(),
                shown.line,
                shown.command
            );
        }
    }
}

#[test]
fn a_prelude_makes_a_new_folder_and_the_shell_lasts() {
    let page = "```console\n$ x=1 && ls examples/adder.toml\nexamples/adder.toml\n$ cd examples\n```\n\
                <!-- prelude: echo hidden > file -->\n```console\n$ ls && echo $x\nfile\n1\n```\n\
                <!-- prelude\nfalse\n-->\n```console\n$ ls \\\n  -A\n.cantrip\n$ echo other\nthis\n```\n";
    let (faults, ran) = read_page("page", page);
    assert_eq!(ran, 5);
    assert_eq!(
        faults,
        ["page:16: the prelude above ends with 1:\n", "page:19: $ echo other\nexit 0, printed:\nother\n"]
    );
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
    let output = vec!["line".into()];
    assert_eq!(found[0], Shown { line: 5, prelude: None, command: "yes --now".into(), output, exit: 2 });
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
