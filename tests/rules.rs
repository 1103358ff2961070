//! Every rule and every acceptance case has existing tests, and each kind of fault is found.

use std::fs;
use std::path::{Path, PathBuf};

use cantrip_tests::doc_examples;
use cantrip_tests::peer::Peer;
use cantrip_tests::rulebook::{
    AWAITED, Acceptance, AcceptanceCase, Evidence, Held, LongForm, Page, Rulebook, cases_listed, rule_ids, unnamed,
    violations,
};
use cantrip_tests::{Source, Violation, files_below};

fn rulebook() -> Rulebook {
    toml::from_str(include_str!("rules.toml")).expect("rules.toml reads")
}

fn acceptance() -> Acceptance {
    toml::from_str(include_str!("acceptance.toml")).expect("acceptance.toml reads")
}

fn evidence() -> Evidence {
    let below = |folder, ending| files_below(folder, ending).expect("the workspace is readable");
    let mut sources = below("crates", "rs");
    sources.extend(below("tests", "rs"));
    sources.extend(below("tests/browser", "mjs"));
    Evidence { suite: below("tests/conformance", "yaml"), sources }
}

#[track_caller]
fn assert_none(violations: &[Violation]) {
    let lines: Vec<_> = violations.iter().map(Violation::to_string).collect();
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}

#[test]
fn every_rule_and_every_acceptance_case_is_held_by_tests_that_are_there() {
    let evidence = evidence();
    assert!(evidence.suite.len() > 3 && evidence.sources.len() > 100, "the sources were not found");
    assert_none(&violations(&rulebook(), &acceptance(), &evidence));
}

fn ids_in(text: &str, opening: &str, closing: &str) -> Vec<String> {
    let mut found: Vec<String> = text
        .split(opening)
        .skip(1)
        .filter_map(|rest| rest.split(closing).next())
        .filter(|id| id.split_once('-').is_some_and(|(chapter, number)| is_rule(chapter, number)))
        .map(str::to_owned)
        .collect();
    found.sort();
    found.dedup();
    found
}

fn is_rule(chapter: &str, number: &str) -> bool {
    let capitals = !chapter.is_empty() && chapter.chars().all(|letter| letter.is_ascii_uppercase());
    capitals && !number.is_empty() && number.chars().all(|digit| digit.is_ascii_digit())
}

#[test]
fn the_rules_are_those_of_the_specification() {
    let Some(documents) = Peer::Documents.find_path() else { return };
    let specification = text_of(&documents.join("seeds"), "001");
    let of_the_seed = ids_in(&specification, "- **", "**");
    assert_eq!(of_the_seed.len(), 59);
    let ours = rule_ids();
    let missing: Vec<_> = of_the_seed.iter().filter(|id| !ours.contains(id)).collect();
    assert!(missing.is_empty(), "{missing:?}");

    let page = text_of(&documents.join("spec"), "loop");
    let (_, page) = page.split_once("## 2. The rules").expect("the page has its rules");
    let (page, _) = page.split_once("\n## ").expect("and something after them");
    let mut on_the_page: Vec<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" |").next())
        .flat_map(|cell| cell.split(", "))
        .filter(|id| id.split_once('-').is_some_and(|(chapter, number)| is_rule(chapter, number)))
        .map(str::to_owned)
        .collect();
    on_the_page.sort();
    let mut ours = ours;
    ours.sort();
    assert_eq!(on_the_page, ours);
    assert_none(&unnamed(&rulebook(), page));
}

#[test]
fn the_acceptance_cases_are_as_many_as_the_pages_of_the_specification_list() {
    let Some(documents) = Peer::Documents.find_path() else { return };
    for (letter, page) in acceptance().pages {
        let text = text_of(&documents.join("spec"), &page.document);
        assert_eq!(cases_listed(&text), Ok(page.cases), "page.{letter}");
    }
}

fn text_of(folder: &Path, begins: &str) -> String {
    let entries = fs::read_dir(folder).expect("the documents are readable");
    let mut paths = entries.map(|entry| entry.expect("an entry").path());
    let named = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(begins));
    fs::read_to_string(paths.find(named).expect("the document is there")).expect("UTF-8")
}

/// The smallest rulebook in which everything is covered, with one test for all.
struct Small {
    rulebook: Rulebook,
    acceptance: Acceptance,
    evidence: Evidence,
}

fn source(path: &str, text: &str) -> Source {
    Source { path: path.to_owned(), text: text.to_owned() }
}

const TEST: &str = "crates/x/tests/x.rs::it_holds";

impl Small {
    fn sound() -> Self {
        let held = || Held { tests: vec![TEST.to_owned()], ..Held::default() };
        let case =
            || AcceptanceCase { says: "so".to_owned(), tests: vec![TEST.to_owned()], ..AcceptanceCase::default() };
        let rules = rule_ids().into_iter().map(|id| (id, held())).collect();
        let mut rulebook = Rulebook { rules, ..Rulebook::default() };
        rulebook.rules.insert("LOOP-1".to_owned(), Held { cases: true, ..Held::default() });
        Self {
            rulebook,
            acceptance: Acceptance {
                pages: [("A".to_owned(), Page { document: "loop".to_owned(), cases: 20, not_built: None })].into(),
                cases: (1..=20).map(|number| (format!("A{number}"), case())).collect(),
            },
            evidence: Evidence {
                suite: vec![source("tests/conformance/x.yaml", "# Cases.\n\n- rule: LOOP-1\n  name: a case\n")],
                sources: vec![source("crates/x/tests/x.rs", "#[test]\nfn it_holds() {}\n")],
            },
        }
    }

    fn rule(&mut self, id: &str) -> &mut Held {
        self.rulebook.rules.get_mut(id).expect("a rule")
    }

    fn case(&mut self, name: &str) -> &mut AcceptanceCase {
        self.acceptance.cases.get_mut(name).expect("a case")
    }

    /// Returns the faults after a change, as `place: fault`.
    fn after(change: impl FnOnce(&mut Self)) -> Vec<String> {
        let mut small = Self::sound();
        change(&mut small);
        let found = violations(&small.rulebook, &small.acceptance, &small.evidence);
        found.iter().map(Violation::to_string).collect()
    }
}

#[test]
fn a_world_in_which_everything_is_held_has_no_fault() {
    assert_eq!(Small::after(|_| {}), Vec::<String>::new());
}

#[test]
fn a_rule_that_nothing_holds_is_found() {
    let found = Small::after(|small| *small.rule("COMP-9") = Held::default());
    assert_eq!(found, ["COMP-9: nothing holds it"]);
    let found = Small::after(|small| drop(small.rulebook.rules.remove("COMP-9")));
    assert_eq!(found, ["COMP-9: nothing is said about it"]);
    let found = Small::after(|small| small.evidence.suite.clear());
    assert_eq!(found, ["LOOP-1: it has no case in tests/conformance", "LOOP-1: nothing holds it"]);
    // An acceptance case that still waits covers nothing.
    let found = Small::after(|small| {
        small.case("A20").tests.clear();
        small.case("A20").not_yet.insert(AWAITED[0].to_owned(), "all of it".to_owned());
        *small.rule("COMP-9") = Held { acceptance: vec!["A20".to_owned()], ..Held::default() };
    });
    assert_eq!(found, ["COMP-9: nothing holds it"]);
}

#[test]
fn a_rule_that_does_not_exist_is_found_wherever_it_is_named() {
    let found = Small::after(|small| drop(small.rulebook.rules.insert("COMP-10".to_owned(), Held::default())));
    assert_eq!(found, ["COMP-10: there is no such rule"]);
    let more = source("tests/conformance/y.yaml", "- rule: LOOM-2\n  name: a\n- rule: LOOM-99\n- name: none\n");
    let found = Small::after(|small| {
        small.rule("LOOM-2").cases = true;
        small.evidence.suite.push(more);
    });
    let places = [
        "tests/conformance/y.yaml:3: there is no rule LOOM-99",
        "tests/conformance/y.yaml:4: a case begins with its rule",
    ];
    assert_eq!(found, places);
}

#[test]
fn a_test_that_is_not_there_or_never_runs_is_found() {
    let found = Small::after(|small| small.rule("COMP-9").tests.push("crates/x/tests/x.rs::gone".to_owned()));
    assert_eq!(found, ["COMP-9: there is no test crates/x/tests/x.rs::gone"]);
    let found = Small::after(|small| small.case("A4").tests.push("crates/y/tests/x.rs::it_holds".to_owned()));
    assert_eq!(found, ["A4: there is no test crates/y/tests/x.rs::it_holds"]);
    let found = Small::after(|small| small.rule("COMP-9").tests.push(TEST.to_owned()));
    assert_eq!(found, [format!("COMP-9: {TEST} is named twice")]);
    for text in ["fn it_holds() {}", "// #[test]\nfn it_holds() {}", "#[test]\nfn other() { fn it_holds() {} }"] {
        let found = Small::after(|small| small.evidence.sources[0].text = text.to_owned());
        assert!(found.contains(&format!("COMP-9: there is no test {TEST}")), "{text}: {found:?}");
    }
    let found =
        Small::after(|small| small.evidence.sources[0].text = "#[test]\n#[ignore]\nfn it_holds() {}".to_owned());
    assert!(found.contains(&format!("COMP-9: {TEST} is ignored, and holds nothing")), "{found:?}");
}

#[test]
fn tests_are_found_however_they_are_written() {
    for text in [
        "#[tokio::test]\nasync fn it_holds() {}",
        "    #[tokio::test(start_paused = true)]\n    async fn it_holds() {}",
        "#[test]\n#[cfg(unix)]\n// Why.\n#[should_panic(expected = \"[x]\")]\nfn it_holds() {}",
        "proptest! {\n    #[test]\n    fn it_holds(x in any::<u8>()) {}\n}",
        "cases! { $\n    some {\n        it_is_so,\n        it_holds,\n    }\n}\n",
    ] {
        let found = Small::after(|small| small.evidence.sources[0].text = text.to_owned());
        assert_eq!(found, Vec::<String>::new(), "{text}");
    }
}

#[test]
fn an_example_that_must_not_compile_belongs_to_the_item_below_it() {
    let held = |name: &str| Held { compile_fail: vec![name.to_owned()], ..Held::default() };
    let text = "/// One.\n///\n/// ```compile_fail,E0451\n/// x\n/// ```\n#[derive(Debug)]\npub struct One;\n\npub struct Two;\n";
    let with = |name: &str| {
        Small::after(|small| {
            small.evidence.sources.push(source("crates/x/src/x.rs", text));
            *small.rule("ENTITY-1") = held(name);
        })
    };
    assert_eq!(with("crates/x/src/x.rs::One"), Vec::<String>::new());
    for name in ["crates/x/src/x.rs::Two", "crates/x/src/y.rs::One"] {
        let missing = format!("ENTITY-1: there is no example that must not compile at {name}");
        assert_eq!(with(name), [missing, "ENTITY-1: nothing holds it".to_owned()]);
    }
}

#[test]
fn every_example_that_must_not_compile_has_a_code_and_a_twin_that_compiles() {
    let sources = evidence().sources;
    let is_found = |source: &&Source| source.text.contains("/// ```compile_fail");
    assert!(sources.iter().filter(is_found).count() > 8, "the examples were not found");
    assert_none(&doc_examples::violations(&sources));
}

#[test]
fn an_example_without_a_code_or_a_twin_is_found() {
    let found = |examples: &[(&str, &str)]| -> Vec<String> {
        let example = |(attributes, lines): &(&str, &str)| {
            let lines: String = lines.lines().map(|line| format!("    /// {line}\n")).collect();
            format!("    /// ```{attributes}\n{lines}    /// ```\n    ///\n")
        };
        let text = format!("{}    pub fn one() {{}}\n", examples.iter().map(example).collect::<String>());
        doc_examples::violations(&[source("crates/x/src/x.rs", &text)]).iter().map(Violation::to_string).collect()
    };
    let (sound, wrong) = ("# use x::One;\nlet one = One::new();", "# use x::One;\nlet one = One;");
    let (coded, bare) = (("compile_fail,E0423", wrong), ("compile_fail", wrong));
    assert_eq!(found(&[("", sound), coded]), Vec::<String>::new());
    assert_eq!(found(&[coded, ("no_run", sound)]), Vec::<String>::new());
    let without_code = "it does not name its error code, as in compile_fail,E0308";
    assert_eq!(found(&[bare, ("", sound)]), [format!("crates/x/src/x.rs:1: {without_code}")]);
    let without_twin = "no example of its comment compiles and differs from it in at most two lines";
    let longer = "# use x::One;\nlet one = One::new();\nlet two = 2;\nlet three = 3;";
    for other in [("text", sound), ("ignore", sound), ("", longer), ("", "let other = 1;"), coded] {
        let alone = found(&[other, coded]);
        assert_eq!(alone.last(), Some(&format!("crates/x/src/x.rs:{}: {without_twin}", other.1.lines().count() + 4)));
    }
}

#[test]
fn an_exemption_has_a_reason_and_ends_when_something_holds_the_rule() {
    let exempt = |small: &mut Small, why: &str| {
        small.rulebook.rules.remove("PROD-6");
        small.rulebook.exempt.insert("PROD-6".to_owned(), why.to_owned());
    };
    assert_eq!(Small::after(|small| exempt(small, "later")), Vec::<String>::new());
    assert_eq!(Small::after(|small| exempt(small, " ")), ["PROD-6: it is exempt without a reason"]);
    let found = Small::after(|small| {
        exempt(small, "later");
        small.evidence.suite[0].text.push_str("- rule: PROD-6\n  name: it is there\n");
    });
    assert_eq!(found, ["PROD-6: it is exempt, and has cases"]);
    let found = Small::after(|small| {
        exempt(small, "later");
        small.rulebook.rules.insert("PROD-6".to_owned(), Held { tests: vec![TEST.to_owned()], ..Held::default() });
    });
    assert_eq!(found, ["PROD-6: it is exempt, and something holds it"]);
    let found = Small::after(|small| small.evidence.suite[0].text.push_str("- rule: PROD-6\n  name: it is there\n"));
    assert_eq!(found, ["PROD-6: its cases in tests/conformance are not counted"]);
}

#[test]
fn an_acceptance_case_has_tests_or_waits_for_something_that_is_named() {
    assert_eq!(Small::after(|small| drop(small.acceptance.cases.remove("A7"))), ["A7: nothing is said about it"]);
    assert_eq!(Small::after(|small| small.case("A7").says.clear()), ["A7: it does not say what it is about"]);
    assert_eq!(Small::after(|small| small.case("A7").tests.clear()), ["A7: it has no test, and waits for nothing"]);
    let found = Small::after(|small| {
        small.acceptance.cases.insert(
            "A57".to_owned(),
            AcceptanceCase { says: "more".to_owned(), tests: vec![TEST.to_owned()], ..AcceptanceCase::default() },
        );
    });
    assert_eq!(found, ["A57: there is no such acceptance case"]);
    let waits = |what: &str, part: &str| {
        Small::after(|small| drop(small.case("A7").not_yet.insert(what.to_owned(), part.to_owned())))
    };
    assert_eq!(waits("pages", "the pages"), Vec::<String>::new());
    assert_eq!(waits("pages", ""), ["A7: it does not say what of it waits for pages"]);
    assert!(
        waits("better weather", "all of it")[0].starts_with("A7: better weather is nothing that can be waited for")
    );
    let found = Small::after(|small| small.rule("COMP-9").acceptance.push("A99".to_owned()));
    assert_eq!(found, ["COMP-9: there is no acceptance case A99"]);
}

#[test]
fn each_page_of_the_specification_extends_the_list_of_cases() {
    let page = |cases, not_built: Option<&str>| Page {
        document: "improve".to_owned(),
        cases,
        not_built: not_built.map(str::to_owned),
    };
    let with = |page| Small::after(|small| drop(small.acceptance.pages.insert("I".to_owned(), page)));
    assert_eq!(with(page(2, None)), ["I1: nothing is said about it", "I2: nothing is said about it"]);
    assert_eq!(with(page(2, Some("it does not exist yet"))), Vec::<String>::new());
    assert_eq!(with(page(2, Some(" "))), ["I: it does not say why its cases are absent"]);
    assert_eq!(Small::after(|small| small.acceptance.pages.clear()).len(), 20, "cases without a page are not known");
}

#[test]
fn a_long_form_names_the_day_of_its_last_run() {
    let with = |last_run: &str| {
        let long = LongForm { command: "./test.sh --long".to_owned(), last_run: last_run.to_owned() };
        Small::after(|small| small.case("A7").long = Some(long))
    };
    assert_eq!(with("never"), Vec::<String>::new());
    assert_eq!(with("2026-11-17"), Vec::<String>::new());
    assert_eq!(with("lately"), ["A7: \"lately\" is neither a day nor \"never\""]);
    let found = Small::after(|small| small.case("A7").says = "many (more in the long form)".to_owned());
    assert_eq!(found, ["A7: it speaks of a long form and names none"]);
}

#[test]
fn the_cases_of_a_page_are_counted_in_its_section_of_acceptance() {
    let page = "# Page\n1. not this\n\n## 9. Other\n1. nor this\n\n## 10. Further acceptance cases\n- **A1** one\n- **A2** two\n";
    assert_eq!(cases_listed(page), Ok(2));
    assert_eq!(cases_listed("\n## Acceptance\n1. one\n2. two\n3. three\n"), Ok(3));
    let gap = cases_listed("\n## Acceptance\n1. one\n3. three\n");
    assert_eq!(gap, Err("case 3 stands where 2 is expected".to_owned()));
    assert!(cases_listed("\n## Other\n1. one\n").is_err_and(|fault| fault.contains("exactly one section")));
}

#[test]
fn what_the_page_asks_for_and_the_rulebook_does_not_name_is_found() {
    let page = "| LOOP-1 | alternates | C A12 |\n| CALL-5, LOOM-6 | folds | C A30 |\n| PROD-1 | later | A43 |\n";
    let mut rulebook = Rulebook::default();
    rulebook.exempt.insert("PROD-1".to_owned(), "later".to_owned());
    let held = |cases, acceptance: &[&str]| Held {
        cases,
        acceptance: acceptance.iter().map(|name| (*name).to_owned()).collect(),
        ..Held::default()
    };
    rulebook.rules.insert("LOOP-1".to_owned(), held(false, &["A12"]));
    rulebook.rules.insert("CALL-5".to_owned(), held(true, &["A3"]));
    let found: Vec<String> = unnamed(&rulebook, page).iter().map(Violation::to_string).collect();
    let wanted = [
        "LOOP-1: the page holds it by cases",
        "CALL-5: the page holds it by A30",
        "LOOM-6: the page holds it by something",
    ];
    assert_eq!(found, wanted);
}

#[test]
fn a_test_fails_without_its_peer_unless_it_is_left_out_by_name() {
    let place = || Some("postgres://there".to_owned());
    let with = |value: Option<String>, without: &str| Peer::Postgres.place_or_left_out(value, without);
    assert_eq!(with(place(), ""), Ok(place()));
    assert_eq!(with(None, "model, postgres"), Ok(None));
    assert_eq!(with(place(), "postgres"), Ok(None));
    for absent in [None, Some(String::new())] {
        let fault = with(absent, "model").unwrap_err();
        assert!(fault.contains("CANTRIP_TEST_POSTGRES") && fault.contains("CANTRIP_TEST_WITHOUT=postgres"), "{fault}");
    }
    let fault = with(place(), "postgress").unwrap_err();
    assert!(fault.contains("names postgress") && fault.contains("documents"), "{fault}");
}
