//! Comments open in plain English: the smallest part of the style that a machine can hold.
//!
//! A comment that opens with a relative clause ("What was said, and by whom") makes its reader guess what the item is. No
//! list of words makes prose good; this one keeps the openings out that were found to be riddles every time.

use cantrip_tests::{Source, files_below};

/// An opening that no comment may have, and what to write instead.
const OPENINGS: &[(&str, &str)] = &[
    ("What ", "say what the item is or does: \"The reply to a call.\", \"Returns the reply to a call.\""),
    ("Whatever ", "name the thing"),
    ("Whoever ", "name the caller, the process or the person"),
    ("Who ", "name the caller, the process or the person"),
    ("Nobody ", "say what does not happen: \"No process holds the lease.\""),
    ("So many ", "give the unit: \"The number of turns.\""),
    ("As many ", "give the unit: \"The number of turns.\""),
    ("One that ", "name the thing: \"A gate that ...\""),
    ("One whose ", "name the thing: \"A gate whose ...\""),
];

/// Comments that the model reads as part of a gate's schema: other words would give every cantrip another id.
const READ_BY_MODELS: &[&str] = &[
    "crates/circle/src/gate/builtin/human.rs: What a person is asked.",
    "crates/circle/src/gate/builtin/loom.rs: What is to be read.",
    "crates/medium-shell/src/gate.rs: What bash is to run: one line or many.",
    "crates/cantrip/tests/library.rs: Who is greeted.",
];

/// The comments of a source that open with one of the forbidden words, each with its place and the advice. A question is
/// a fair opening: a module may say which one it answers.
fn riddles(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    let mut before = "";
    for (number, line) in source.text.lines().enumerate() {
        let line = line.trim_start();
        let comment = ["//! ", "/// ", "// "].into_iter().find_map(|mark| line.strip_prefix(mark));
        let opens = !before.starts_with("//") || before.trim_start_matches(['/', '!']).trim().is_empty();
        before = line;
        let Some(comment) = comment.filter(|_| opens) else { continue };
        let is_excused = READ_BY_MODELS.contains(&format!("{}: {comment}", source.path).as_str());
        for (opening, advice) in OPENINGS {
            if comment.starts_with(opening) && !comment.contains('?') && !is_excused {
                found.push(format!("{}:{}: {comment}\n    {advice}", source.path, number + 1));
            }
        }
    }
    found
}

#[test]
fn no_comment_opens_with_a_riddle() {
    let sources = ["crates", "bench", "tests"].map(|folder| files_below(folder, "rs").expect("sources are readable"));
    let sources: Vec<Source> =
        sources.into_iter().flatten().filter(|source| !source.path.contains("/target/")).collect();
    assert!(sources.len() > 500, "the sources were not found");
    let found: Vec<String> = sources.iter().flat_map(riddles).collect();
    assert!(
        found.is_empty(),
        "a reader must not have to guess what an item is (CONTRIBUTING.md, \"Words\"):\n{}",
        found.join("\n")
    );
}

#[test]
fn every_opening_on_the_list_is_found_where_a_comment_opens_and_nowhere_else() {
    for (opening, _) in OPENINGS {
        let planted = |text: String| riddles(&Source { path: "crates/canon/src/x.rs".to_owned(), text }).len();
        for mark in ["//!", "///", "//"] {
            assert_eq!(planted(format!("    {mark} {opening}was said.\n")), 1, "{mark} {opening}");
            assert_eq!(
                planted(format!("{mark} The item.\n{mark}\n{mark} {opening}was said.\n")),
                1,
                "{mark} {opening}"
            );
        }
        assert_eq!(planted(format!("/// A sentence that goes on in\n/// {opening}was said.\n")), 0, "{opening}");
        assert_eq!(planted(format!("//! {opening}is asked here?\n")), 0, "{opening}");
        assert_eq!(planted(format!("let x = \"/// {opening}\";\n")), 0, "{opening}");
    }
}
