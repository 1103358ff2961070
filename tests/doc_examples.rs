//! Can an example that must not compile fail for another reason than the one it shows?
//!
//! Yes: a renamed type or a missing import stops it too, and the test still passes. So each such example names the error
//! code of the compiler, and has a twin: an example of the same comment that compiles and differs from it in at most two
//! lines. A change that breaks both is then found by the twin.

use std::collections::BTreeSet;

use crate::{Source, Violation};

/// Examples that must not compile and whose error has no code, by their source and one of their lines. The message of a
/// macro and a lint have none.
const WITHOUT_CODE: &[(&str, &str)] = &[
    ("crates/cantrip/src/lib.rs", "#[cantrip::gate]"),
    ("crates/cantrip/src/lib.rs", "#[cantrip::gate(readonly)]"),
    ("crates/reply/src/builder.rs", "#![deny(unused_must_use)]"),
];

/// The most lines of an example that its twin does not have, and the other way round.
const TWIN_LINES_MAX: usize = 2;

/// An example in a doc comment.
struct Example<'a> {
    /// The text after the opening fence: `compile_fail,E0308`.
    attributes: &'a str,
    /// The line of the opening fence in its source.
    line: usize,
    lines: BTreeSet<&'a str>,
}

impl Example<'_> {
    fn must_not_compile(&self) -> bool {
        self.attributes.split(',').any(|attribute| attribute == "compile_fail")
    }

    fn compiles(&self) -> bool {
        self.attributes.split(',').all(|attribute| ["", "rust", "no_run", "should_panic"].contains(&attribute))
    }

    fn has_code(&self) -> bool {
        self.attributes.split(',').any(|attribute| {
            attribute.strip_prefix('E').is_some_and(|code| code.len() == 4 && code.bytes().all(|b| b.is_ascii_digit()))
        })
    }

    fn is_twin_of(&self, other: &Self) -> bool {
        let absent = |of: &Self, from: &Self| of.lines.difference(&from.lines).count();
        let is_near = absent(self, other) <= TWIN_LINES_MAX && absent(other, self) <= TWIN_LINES_MAX;
        self.compiles() && is_near && self.lines.intersection(&other.lines).next().is_some()
    }
}

/// Returns the examples of each doc comment of a source.
fn comments_of(source: &Source) -> Vec<Vec<Example<'_>>> {
    let (mut comments, mut comment) = (Vec::new(), Vec::new());
    let mut open: Option<Example<'_>> = None;
    for (number, line) in source.text.lines().enumerate() {
        let line = line.trim_start();
        let Some(text) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
            open = None;
            comments.push(std::mem::take(&mut comment));
            continue;
        };
        let text = text.trim();
        match (text.strip_prefix("```"), open.take()) {
            (Some(_), Some(example)) => comment.push(example),
            (Some(attributes), None) => open = Some(Example { attributes, line: number + 1, lines: BTreeSet::new() }),
            (None, Some(mut example)) => {
                example.lines.insert(text);
                open = Some(example);
            }
            (None, None) => {}
        }
    }
    comments.push(comment);
    comments
}

/// Returns the examples that must not compile and lack a twin or an error code.
pub fn violations(sources: &[Source]) -> Vec<Violation> {
    let mut found = Vec::new();
    for source in sources {
        for comment in comments_of(source) {
            for example in comment.iter().filter(|example| example.must_not_compile()) {
                let mut fault = |fault: &str| {
                    let place = format!("{}:{}", source.path, example.line);
                    found.push(Violation { place, fault: fault.to_owned() });
                };
                let mut excuses = WITHOUT_CODE.iter();
                let is_excused = excuses.any(|(path, line)| *path == source.path && example.lines.contains(line));
                if !example.has_code() && !is_excused {
                    fault("it does not name its error code, as in compile_fail,E0308");
                }
                if !comment.iter().any(|other| other.is_twin_of(example)) {
                    fault("no example of its comment compiles and differs from it in at most two lines");
                }
            }
        }
    }
    found
}
