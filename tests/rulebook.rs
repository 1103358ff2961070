//! Which tests cover each rule? Compares the rules of the specification and its acceptance cases with the existing
//! tests.
//!
//! A list of rules beside a test suite proves nothing: a test can be renamed, a case dropped, a rule added, and both
//! still look complete. So `rules.toml` names the coverage of every rule and `acceptance.toml` the tests of every
//! acceptance case, and this module compares both with the sources: a function from the content of the repository to
//! its faults. A reader must judge that the named tests are the right ones; this module checks that they exist.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::LazyLock;

use regex::Regex;
use serde::Deserialize;

use crate::{Source, Violation};

/// All rules: those of the specification, and those that were added to it. COMP-10 was not adopted.
pub const RULES: &[(&str, &[RangeInclusive<u32>])] = &[
    ("LOOP", &[1..=7]),
    ("CANTRIP", &[1..=3]),
    ("INTENT", &[1..=3]),
    ("ENTITY", &[1..=6]),
    ("CRYSTAL", &[1..=7]),
    ("CALL", &[1..=5]),
    ("CIRCLE", &[1..=11]),
    ("MEDIUM", &[1..=4]),
    ("WARD", &[1..=2]),
    ("COMP", &[1..=9, 11..=11]),
    ("LOOM", &[1..=13]),
    ("PROD", &[1..=9]),
];

/// The features that a part of an acceptance case may wait for.
pub const AWAITED: &[&str] = &["pages", "test", "upcasters"];

/// The name of every rule, in order.
pub fn rule_ids() -> Vec<String> {
    let numbers = RULES.iter().flat_map(|(chapter, spans)| spans.iter().cloned().flatten().map(move |n| (chapter, n)));
    numbers.map(|(chapter, number)| format!("{chapter}-{number}")).collect()
}

/// `rules.toml`, parsed.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rulebook {
    #[serde(rename = "rule", default)]
    pub rules: BTreeMap<String, Held>,
    /// Rules that are not covered yet, each with the reason.
    #[serde(default)]
    pub exempt: BTreeMap<String, String>,
}

/// The coverage of one rule.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Held {
    /// True if `tests/conformance` has cases of this rule.
    #[serde(default)]
    pub cases: bool,
    /// Acceptance cases, by name.
    #[serde(default)]
    pub acceptance: Vec<String>,
    /// Tests, as `<path>::<function>`.
    #[serde(default)]
    pub tests: Vec<String>,
    /// Examples that must not compile, as `<path>::<item that they document>`.
    #[serde(default)]
    pub compile_fail: Vec<String>,
}

/// `acceptance.toml`, parsed.
#[derive(Debug, Default, Deserialize)]
pub struct Acceptance {
    /// The pages of the specification that list acceptance cases, by the letter that their cases begin with.
    #[serde(rename = "page")]
    pub pages: BTreeMap<String, Page>,
    #[serde(flatten)]
    pub cases: BTreeMap<String, AcceptanceCase>,
}

/// A page of the specification that lists acceptance cases, numbered from 1.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Page {
    /// The name of the page's file, without its ending.
    pub document: String,
    pub cases: u32,
    /// Why cases of this page may be absent: what they describe is not built.
    pub not_built: Option<String>,
}

/// The long form of a case: more samples, longer threads, more processes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LongForm {
    pub command: String,
    /// The day of the last run that passed, as `2026-11-17`, or `never`.
    pub last_run: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptanceCase {
    /// The case, in one line.
    pub says: String,
    /// Tests, as `<path>::<function>`, or `<path>::<sentence>` for a case of the browser.
    #[serde(default)]
    pub tests: Vec<String>,
    /// The parts of the case that no test covers yet, by the feature that they wait for.
    #[serde(default)]
    pub not_yet: BTreeMap<String, String>,
    /// The long form of the case, if it has one. Without it, `./test.sh` shows the case as it is meant.
    pub long: Option<LongForm>,
}

/// The files that the rules are compared with.
#[derive(Debug, Default)]
pub struct Evidence {
    /// Files of conformance cases.
    pub suite: Vec<Source>,
    /// Rust sources, tests among them, and the cases of the browser.
    pub sources: Vec<Source>,
}

static TEST: LazyLock<Regex> = LazyLock::new(|| {
    let attribute = r"\s*(?:#\[(?:[^\]\[]|\[[^\]]*\])*\]|//[^\n]*\n)";
    let pattern = format!(
        r"(?m)^[ \t]*#\[(?:tokio::)?test(?:\([^)]*\))?\](?P<attributes>(?:{attribute})*)\s*(?:async\s+)?fn\s+(?P<name>\w+)"
    );
    Regex::new(&pattern).expect("a fixed pattern")
});
static BROWSER_CASE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r#"(?m)^test\("(?P<name>[^"]+)""#).expect("a fixed pattern"));
static SUITE_CASES: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?ms)^(?:cases|on_both)! \{(?P<cases>.*?)^\}").expect("a fixed pattern"));
static DAY: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\d{4}-\d{2}-\d{2}$").expect("a fixed pattern"));
static LISTED: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?m)^(?:(?P<number>\d+)\. |- \*\*[A-Z](?P<named>\d+)\*\* )").expect("a fixed pattern")
});
static CASE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?m)^- (?:rule: (?P<rule>[A-Z]+-[0-9]+)$)?").expect("a fixed pattern"));
static ITEM: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^\s*pub (?:const |async )*(?:struct|enum|trait|fn|type|macro) (?P<name>\w+)").expect("a fixed pattern")
});

/// The tests of a source: its test functions, the cases of a suite that every implementation or both dialects run, and
/// the cases that a browser runs, which are named by sentences.
fn tests_of(source: &Source) -> BTreeMap<&str, bool> {
    if source.path.ends_with(".mjs") {
        let cases = BROWSER_CASE.captures_iter(&source.text);
        return cases.filter_map(|found| Some((found.name("name")?.as_str(), true))).collect();
    }
    let functions = TEST.captures_iter(&source.text).map(|found| {
        let attributes = found.name("attributes").map_or("", |found| found.as_str());
        (found.name("name").map_or("", |name| name.as_str()), !attributes.contains("#[ignore"))
    });
    let suites = SUITE_CASES.captures_iter(&source.text);
    let cases = suites.flat_map(|found| found.name("cases").map_or("", |cases| cases.as_str()).split_whitespace());
    functions.chain(cases.filter_map(|word| Some((word.strip_suffix(',')?, true)))).collect()
}

/// The items of a source whose documentation has an example that must not compile.
fn compile_fails_of(source: &Source) -> BTreeSet<&str> {
    let (mut found, mut within) = (BTreeSet::new(), false);
    for line in source.text.lines() {
        let bare = line.trim_start();
        if let Some(told) = bare.strip_prefix("///") {
            within |= told.trim_start().starts_with("```compile_fail");
        } else if let Some(item) = ITEM.captures(line) {
            if within {
                found.extend(item.name("name").map(|name| name.as_str()));
            }
            within = false;
        } else if !bare.starts_with("#[") {
            within = false;
        }
    }
    found
}

struct Book<'a> {
    tests: BTreeMap<&'a str, BTreeMap<&'a str, bool>>,
    compile_fails: BTreeMap<&'a str, BTreeSet<&'a str>>,
    found: Vec<Violation>,
}

impl<'a> Book<'a> {
    fn of(evidence: &'a Evidence) -> Self {
        Self {
            tests: evidence.sources.iter().map(|source| (source.path.as_str(), tests_of(source))).collect(),
            compile_fails: evidence.sources.iter().map(|s| (s.path.as_str(), compile_fails_of(s))).collect(),
            found: Vec::new(),
        }
    }

    fn fault(&mut self, place: &str, fault: impl Into<String>) {
        self.found.push(Violation { place: place.to_owned(), fault: fault.into() });
    }

    /// Returns the number of named tests that exist; each missing one is a fault.
    fn count(&mut self, place: &str, names: &[String]) -> usize {
        let (mut seen, mut there) = (BTreeSet::new(), 0);
        for name in names {
            let known = name.split_once("::").and_then(|(path, test)| self.tests.get(path)?.get(test));
            match known {
                _ if !seen.insert(name) => self.fault(place, format!("{name} is named twice")),
                Some(true) => there += 1,
                Some(false) => self.fault(place, format!("{name} is ignored, and holds nothing")),
                None => self.fault(place, format!("there is no test {name}")),
            }
        }
        there
    }

    fn count_compile_fails(&mut self, place: &str, names: &[String]) -> usize {
        let mut there = 0;
        for name in names {
            let known = name
                .split_once("::")
                .filter(|(path, item)| self.compile_fails.get(path).is_some_and(|items| items.contains(item)));
            match known {
                Some(_) => there += 1,
                None => self.fault(place, format!("there is no example that must not compile at {name}")),
            }
        }
        there
    }
}

/// Returns the faults of the rules, the acceptance cases and the tests that they name.
pub fn violations(rulebook: &Rulebook, acceptance: &Acceptance, evidence: &Evidence) -> Vec<Violation> {
    let mut book = Book::of(evidence);
    let tested = acceptance_violations(acceptance, &mut book);
    let said = suite_violations(evidence, &mut book);
    let known: BTreeSet<String> = rule_ids().into_iter().collect();
    for rule in rulebook.rules.keys().chain(rulebook.exempt.keys()).filter(|rule| !known.contains(*rule)) {
        book.fault(rule, "there is no such rule");
    }
    for rule in &known {
        match (rulebook.rules.get(rule), rulebook.exempt.get(rule)) {
            (None, None) => book.fault(rule, "nothing is said about it"),
            (Some(_), Some(_)) => book.fault(rule, "it is exempt, and something holds it"),
            (None, Some(why)) if why.trim().is_empty() => book.fault(rule, "it is exempt without a reason"),
            (None, Some(_)) if said.contains(rule.as_str()) => book.fault(rule, "it is exempt, and has cases"),
            (None, Some(_)) => {}
            (Some(held), None) => rule_violations(rule, held, &said, &tested, acceptance, &mut book),
        }
    }
    book.found
}

fn rule_violations(
    rule: &str,
    held: &Held,
    said: &BTreeSet<&str>,
    tested: &BTreeSet<&str>,
    acceptance: &Acceptance,
    book: &mut Book<'_>,
) {
    match (held.cases, said.contains(rule)) {
        (true, false) => book.fault(rule, "it has no case in tests/conformance"),
        (false, true) => book.fault(rule, "its cases in tests/conformance are not counted"),
        (true, true) | (false, false) => {}
    }
    let mut holds = usize::from(held.cases && said.contains(rule));
    for name in &held.acceptance {
        if !acceptance.cases.contains_key(name) {
            book.fault(rule, format!("there is no acceptance case {name}"));
        }
        holds += usize::from(tested.contains(name.as_str()));
    }
    holds += book.count(rule, &held.tests);
    holds += book.count_compile_fails(rule, &held.compile_fail);
    if holds == 0 {
        book.fault(rule, "nothing holds it");
    }
}

/// Checks the acceptance cases and returns those that have tests.
fn acceptance_violations<'a>(acceptance: &'a Acceptance, book: &mut Book<'_>) -> BTreeSet<&'a str> {
    let mut known = BTreeSet::new();
    for (letter, page) in &acceptance.pages {
        if page.not_built.as_ref().is_some_and(|reason| reason.trim().is_empty()) {
            book.fault(letter, "it does not say why its cases are absent");
        }
        for name in (1..=page.cases).map(|number| format!("{letter}{number}")) {
            if !acceptance.cases.contains_key(&name) && page.not_built.is_none() {
                book.fault(&name, "nothing is said about it");
            }
            known.insert(name);
        }
    }
    let mut tested = BTreeSet::new();
    for (name, case) in &acceptance.cases {
        if !known.contains(name) {
            book.fault(name, "there is no such acceptance case");
        }
        if case.long.is_none() && case.says.contains("long form") {
            book.fault(name, "it speaks of a long form and names none");
        }
        if let Some(long) = &case.long
            && !(long.last_run == "never" || DAY.is_match(&long.last_run))
        {
            book.fault(name, format!("{:?} is neither a day nor \"never\"", long.last_run));
        }
        if case.says.trim().is_empty() {
            book.fault(name, "it does not say what it is about");
        }
        for (awaited, part) in &case.not_yet {
            if !AWAITED.contains(&awaited.as_str()) {
                book.fault(name, format!("{awaited} is nothing that can be waited for: {}", AWAITED.join(", ")));
            }
            if part.trim().is_empty() {
                book.fault(name, format!("it does not say what of it waits for {awaited}"));
            }
        }
        if book.count(name, &case.tests) > 0 {
            tested.insert(name.as_str());
        } else if case.not_yet.is_empty() {
            book.fault(name, "it has no test, and waits for nothing");
        }
    }
    tested
}

/// Checks the suite and returns the rules that it has cases of.
fn suite_violations<'a>(evidence: &'a Evidence, book: &mut Book<'_>) -> BTreeSet<&'a str> {
    let known: BTreeSet<String> = rule_ids().into_iter().collect();
    let mut said = BTreeSet::new();
    for file in &evidence.suite {
        for case in CASE.captures_iter(&file.text) {
            let line = file.text[..case.get(0).map_or(0, |found| found.start())].lines().count() + 1;
            let place = format!("{}:{line}", file.path);
            match case.name("rule").map(|rule| rule.as_str()) {
                Some(rule) if known.contains(rule) => {
                    said.insert(rule);
                }
                Some(rule) => book.fault(&place, format!("there is no rule {rule}")),
                None => book.fault(&place, "a case begins with its rule"),
            }
        }
    }
    said
}

/// Returns what the table of the specification requires and the rulebook does not name: `| LOOP-1 | .. | C A12 |`.
pub fn unnamed(rulebook: &Rulebook, page: &str) -> Vec<Violation> {
    let row = Regex::new(r"(?m)^\| (?P<rules>[A-Z]+-[0-9]+(?:, [A-Z]+-[0-9]+)*) \|.*\| (?P<held>[^|]*) \|$");
    let row = row.expect("a fixed pattern");
    let mut found = Vec::new();
    for line in row.captures_iter(page) {
        let text = |name| line.name(name).map_or("", |found| found.as_str());
        for rule in text("rules").split(", ").filter(|rule| !rulebook.exempt.contains_key(*rule)) {
            let mut missing = |what: &str| {
                found.push(Violation { place: rule.to_owned(), fault: format!("the page holds it by {what}") });
            };
            let Some(held) = rulebook.rules.get(rule) else {
                missing("something");
                continue;
            };
            for word in text("held").split_whitespace() {
                match word {
                    "C" if !held.cases => missing("cases"),
                    _ if word.starts_with('A') && !held.acceptance.iter().any(|name| name == word) => missing(word),
                    _ => {}
                }
            }
        }
    }
    found
}

/// Returns the number of acceptance cases that a page of the specification lists, or a fault if their numbers have a gap.
pub fn cases_listed(page: &str) -> Result<u32, String> {
    let mut sections = page.split("\n## ").filter(|section| section.lines().next().is_some_and(is_acceptance_heading));
    let (Some(section), None) = (sections.next(), sections.next()) else {
        return Err("the page does not have exactly one section of acceptance cases".to_owned());
    };
    let (_, section) = section.split_once('\n').unwrap_or_default();
    let mut count = 0;
    for found in LISTED.captures_iter(section) {
        let number = found.name("number").or(found.name("named")).map_or("", |number| number.as_str());
        count += 1;
        if number != count.to_string() {
            return Err(format!("case {number} stands where {count} is expected"));
        }
    }
    Ok(count)
}

fn is_acceptance_heading(line: &str) -> bool {
    line.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == '.')
        .to_lowercase()
        .contains("acceptance")
}
