//! The golden cases: every file in `tests/golden`, in the notation that its README explains.
//!
//! Cases are data, so that a reader can add one without knowing the API, and a change of the API does not affect them.
//! The list of required ids is here: a case that is lost with a file is a failure and does not go unnoticed.

mod golden_runner;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use golden_runner::{Case, parse, run};

/// The families of cases with the number of their last case, and the cases that have two variants.
const FAMILIES: &[(&str, usize)] = &[("G", 19), ("T", 14), ("L", 7), ("I", 3), ("E", 5), ("B", 5)];
const IN_TWO_VARIANTS: &[&str] = &["G11", "G19", "T4", "T13"];

fn cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut files: Vec<_> = fs::read_dir(&folder)
        .expect("the folder of golden cases")
        .map(|entry| entry.expect("an entry of the folder").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    files.sort();
    let mut cases = Vec::new();
    for file in files {
        let name = file.file_name().expect("a file").to_string_lossy().into_owned();
        let text = fs::read_to_string(&file).expect("a readable file");
        cases.extend(parse(&name, &text).unwrap_or_else(|fault| panic!("tests/golden/{fault}")));
    }
    cases
}

#[test]
fn every_golden_case_comes_out_as_written() {
    let cases = cases();
    assert!(!cases.is_empty(), "tests/golden has no cases");
    let mut report = String::new();
    for case in &cases {
        let seen = run(case).unwrap_or_else(|fault| panic!("tests/golden/{}:{}: {fault}", case.file, case.line));
        if seen != case.expected {
            let _ = writeln!(report, "\ntests/golden/{}:{} {}", case.file, case.line, case.title);
            let _ = writeln!(report, "  {:<60} | came out", "expected");
            for row in 0..seen.len().max(case.expected.len()) {
                let [expected, seen] = [&case.expected, &seen].map(|list| list.get(row).map_or("", String::as_str));
                let mark = if expected == seen { ' ' } else { '>' };
                let _ = writeln!(report, "{mark} {expected:<60} | {seen}");
            }
        }
    }
    assert!(report.is_empty(), "{report}");
}

#[test]
fn no_golden_case_is_missing() {
    let mut variants: BTreeMap<String, usize> = BTreeMap::new();
    for case in cases() {
        *variants.entry(case.id).or_default() += 1;
    }
    let mut missing = Vec::new();
    for (family, last) in FAMILIES {
        for number in 1..=*last {
            let id = format!("{family}{number}");
            let wanted = if IN_TWO_VARIANTS.contains(&id.as_str()) { 2 } else { 1 };
            if variants.get(&id).copied().unwrap_or(0) < wanted {
                missing.push(id);
            }
        }
    }
    assert!(missing.is_empty(), "missing: {missing:?}");
}
