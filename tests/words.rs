//! Comments, messages and pages are in plain English: the smallest part of the style that a machine can hold.
//!
//! A comment that opens with a relative clause ("What was said, and by whom") makes its reader guess what the item is, and
//! so does a message without a subject ("it is none"). No list of words makes prose good; these lists keep out the
//! openings and phrases that were found to be riddles every time.

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

/// A phrase that no message and no page may have, and what to write instead.
const PHRASES: &[(&str, &str)] = &[
    ("whoever", "name the caller, the process or the person"),
    ("nobody can be asked", "\"no person can be asked\", and what to do then"),
    ("is no address", "\"is not a valid address\", and the form that is expected"),
    ("it is no ", "\"it is not a ...\", or better the value and the form that is expected"),
    ("this is no ", "\"not a ...\", or better the value and the form that is expected"),
    ("is none of ", "\"is not a ...; use a, b or c\""),
    ("belongs, as in", "\"but a text is expected, as in\""),
    ("goes on with it", "\"continues it\" or \"resumes it\", with the command"),
    ("comes to the same", "\"has the same result\""),
    ("reckoned", "\"added\", \"computed\" or \"recomputed\""),
    ("in live hands", "name the process, the lease or the worker"),
    ("shows what there is", "\"lists them\""),
    ("tells what there is", "\"lists them\""),
    ("a table of your own", "\"your own table\""),
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

/// Returns the text of a line of Rust between its first and its last quotation mark; none in a comment.
fn quoted(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let (first, last) = (line.find('"')?, line.rfind('"')?);
    (!line.starts_with("//") && first < last).then(|| &line[first + 1..last])
}

/// Returns the forbidden phrases of a source or a page, each with its place and the advice. Of a source, the literals
/// before its tests are read; of a page, the prose and the blocks. An opening that no comment may have is refused at the
/// start of a paragraph too.
fn unclear_phrases(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    let mut report = |number: usize, text: &str, advice: &str| {
        found.push(format!("{}:{}: {}\n    {advice}", source.path, number + 1, text.trim()));
    };
    let is_page = source.path.ends_with(".md");
    let mut before = "";
    for (number, line) in source.text.lines().enumerate() {
        if line.contains("#[cfg(test)]") {
            break;
        }
        let opens = is_page && before.is_empty();
        before = line;
        let Some(text) = (if is_page { Some(line) } else { quoted(line) }) else { continue };
        // "No longer" is plain.
        let text = text.to_lowercase().replace("no longer", "");
        for (phrase, advice) in PHRASES.iter().filter(|(phrase, _)| text.contains(phrase)) {
            report(number, line, &format!("not {phrase:?}: {advice}"));
        }
        for (opening, advice) in OPENINGS.iter().filter(|(opening, _)| opens && line.starts_with(opening)) {
            if !line.contains('?') {
                report(number, line, &format!("not {opening:?}: {advice}"));
            }
        }
    }
    found
}

#[test]
fn no_message_and_no_page_has_a_phrase_that_makes_its_reader_guess() {
    let is_read = |source: &Source| {
        let path = source.path.as_str();
        path.ends_with(".md") && !path.contains("/tests/") || path.contains("/src/")
    };
    let mut sources = files_below("crates", "rs").expect("sources are readable");
    sources.extend(files_below("docs", "md").expect("pages are readable"));
    for page in ["README.md", "CHANGELOG.md"] {
        let text = std::fs::read_to_string(cantrip_tests::root().join(page)).expect("a page");
        sources.push(Source { path: page.to_owned(), text });
    }
    sources.retain(is_read);
    assert!(sources.len() > 300, "the sources were not found");
    let found: Vec<String> = sources.iter().flat_map(unclear_phrases).collect();
    assert!(
        found.is_empty(),
        "a message names the thing, the value and the next step (CONTRIBUTING.md, \"Words\"):\n{}",
        found.join("\n")
    );
}

#[test]
fn every_phrase_on_the_list_is_found_in_messages_and_pages_and_not_in_comments() {
    let planted = |path: &str, text: String| unclear_phrases(&Source { path: path.to_owned(), text }).len();
    for (phrase, _) in PHRASES {
        assert_eq!(planted("crates/x/src/x.rs", format!("    say(\"the text {phrase}folder\");\n")), 1, "{phrase}");
        assert_eq!(planted("crates/x/src/x.rs", format!("// \"the text {phrase}\"\n")), 0, "{phrase}");
        assert_eq!(planted("crates/x/src/x.rs", format!("#[cfg(test)]\nsay(\"{phrase}\");\n")), 0, "{phrase}");
        assert_eq!(planted("docs/x.md", format!("A page says {phrase}.\n")), 1, "{phrase}");
    }
    assert_eq!(planted("crates/x/src/x.rs", "say(\"it is no longer there\");\n".to_owned()), 0);
    assert_eq!(planted("docs/x.md", "# X\n\nWhat was said.\n\nWhat is asked?\n".to_owned()), 1);
}
