//! The numbered examples are run as a reader would run them, and print what the guide promises.

use std::process::Command;

/// Runs an example. Cargo builds a package's examples with its tests, in a folder beside them.
fn example(name: &str) -> String {
    let tests = std::env::current_exe().expect("a test knows its own path");
    let path = tests.ancestors().nth(2).expect("target/<profile>").join("examples").join(name);
    let hint = "build it first: cargo build --package cantrip --examples";
    let ran = Command::new(&path).output().unwrap_or_else(|fault| panic!("{}: {fault}; {hint}", path.display()));
    assert!(ran.status.success(), "{name}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).expect("text")
}

#[test]
fn one_query() {
    assert_eq!(example("01_one_query"), "\"A loom is where turns are woven.\"\n");
}

#[test]
fn typed_answer() {
    assert_eq!(example("02_typed_answer"), "4 words: promising\n");
}

#[test]
fn watching() {
    let seen =
        "asked   roll a die with twenty sides\ncalls   roll, gets 10\ncalls   done, gets 10\nsays    10\nanswer  10\n";
    assert_eq!(example("03_watching"), seen);
}

#[test]
fn summoning() {
    assert_eq!(example("04_summoning"), "1\n\"loom and crystal\"\n");
}

#[test]
fn children() {
    assert_eq!(example("05_children"), "23255 errors in 999965 bytes\n");
}

#[test]
fn forking() {
    assert_eq!(example("06_forking"), "first:  \"forest, swamp\"\nforked: \"forest, meadow\"\nreplay: identical\n");
}

#[test]
fn familiar() {
    let said = "\"It sways. Do not cross.\"\n\"2 were asked\"\n[\"the bridge sways\"]\n";
    assert_eq!(example("07_familiar"), said);
}

/// Returns the Rust blocks of a page, without the indentation of the file that they are from.
fn shown(page: &str) -> Vec<String> {
    let mut blocks: Vec<String> = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        match (line.starts_with("```"), inside) {
            (true, false) if line.starts_with("```rust") => {
                inside = true;
                blocks.push(String::new());
            }
            (true, _) => inside = false,
            (false, true) => blocks.last_mut().expect("one was begun").push_str(&format!("{}\n", line.trim())),
            (false, false) => {}
        }
    }
    blocks
}

#[test]
fn the_first_chapter_shows_the_typed_answer_as_it_is() {
    let example: String =
        include_str!("../examples/02_typed_answer.rs").lines().map(|line| format!("{}\n", line.trim())).collect();
    let blocks = shown(include_str!("../../../docs/beginning.md"));
    assert_eq!(blocks.len(), 5);
    for block in blocks {
        assert!(example.contains(&block), "not in the example:\n{block}");
    }
}
