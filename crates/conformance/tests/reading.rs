//! Case files are read strictly, and a faulty one is refused with its lines.

use cantrip_conformance::{FileIssue, read, unreadable};
use cantrip_reply::codes;
use cantrip_reply::testing::guarded;
use cantrip_tests::garble;
use proptest::prelude::*;

/// All conformance files of this repository.
const SUITE: &[&str] = &[
    include_str!("../../../tests/conformance/circle.yaml"),
    include_str!("../../../tests/conformance/composition.yaml"),
    include_str!("../../../tests/conformance/crystal.yaml"),
    include_str!("../../../tests/conformance/loom.yaml"),
    include_str!("../../../tests/conformance/loop.yaml"),
    include_str!("../../../tests/conformance/production.yaml"),
];

/// Fragments of the syntax of a case file, valid or nearly valid.
const WORDS: &[&str] = &[
    "- ",
    "\n",
    "\n  ",
    "\n- rule: X\n",
    ": ",
    "{",
    "}",
    "[",
    "]",
    ",",
    "&a ",
    "*a ",
    "<<: *a",
    "!!int ",
    "|",
    ">-",
    "? ",
    "---\n",
    "\"",
    "'",
    "#",
    "\t",
    "null",
    "true",
    "-1",
    "1e999",
    "99999999999999999999",
    "mediums: [python]",
    "mediums: {}",
    "javascript: ",
    "python: ",
    "skip: true",
    "expect: {}",
    "then: ",
    "cast: ",
    "summon: x",
    "send: {}",
    "turn_0_observation: ",
    "turn_99999999999999999999_observation: ",
    "thread_-1: ",
    "child_crystal_l0: ",
    "child_crystal_l9: ",
    "crystal_: ",
    "greater_than(nan)",
    "turns[99999999999999999999].id",
    "\u{0}",
    "\u{feff}",
];

proptest! {
    #![proptest_config(garble::samples(192))]

    #[test]
    fn a_file_that_is_almost_right_is_read_or_refused_with_its_lines(text in garble::garbled_text(SUITE, WORDS)) {
        if let Err(issues) = read(&text) {
            let lines = text.lines().count() + 1;
            prop_assert!(!issues.is_empty());
            prop_assert!(issues.iter().all(|issue| (1..=lines).contains(&issue.line)), "{issues:?} of {lines} lines");
            prop_assert!(issues.is_sorted_by_key(|issue| issue.line), "{issues:?}");
            let faults: Vec<_> = issues.into_iter().map(|issue| FileIssue { file: "a.yaml".to_owned(), issue }).collect();
            let reply = guarded(|rb| rb.invalid(unreadable(&faults))).reply;
            prop_assert_eq!(reply.code(), codes::UNPARSABLE.any());
        }
    }
}

#[test]
fn our_own_files_are_read() {
    for text in SUITE {
        assert!(read(text).is_ok_and(|cases| cases.len() > 5));
    }
}
