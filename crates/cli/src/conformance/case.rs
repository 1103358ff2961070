//! Reads a file of cases: one value for each case, parsed strictly, before any case runs.

use cantrip_circle::MediumKind;
use cantrip_crystal::tree::{Issue, Node, NodeValue};

use super::action::{Action, read_action};
use super::expect::{Expectation, read_expect};
use super::issues::Issues;
use super::medium;
use super::setup::{Setup, read_setup};

/// One case, or one of its variants.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) rule: String,
    pub(super) name: String,
    /// The medium of this variant, if the case has several.
    pub(super) medium: Option<MediumKind>,
    pub(super) body: Body,
}

impl Case {
    /// Returns true if the circle of the case uses this medium.
    pub(super) fn acts_in(&self, medium: MediumKind) -> bool {
        match &self.body {
            Body::Skipped(_) => false,
            Body::Runs(runs) => runs.setup.circle.as_ref().is_some_and(|circle| circle.mediums.contains(&medium)),
        }
    }
}

#[derive(Debug)]
pub(super) enum Body {
    Skipped(&'static str),
    Runs(Box<Runs>),
}

/// The setup, the actions and the expectations of a case.
#[derive(Debug)]
pub(super) struct Runs {
    pub(super) setup: Setup,
    pub(super) action: Action,
    pub(super) expect: Vec<Expectation>,
}

const CASE_KEYS: &[&str] = &["rule", "name", "description", "setup", "action", "expect", "skip"];

/// Returns the cases of a text in order, or everything that is wrong with the text.
pub(super) fn read(text: &str) -> Result<Vec<Case>, Vec<Issue>> {
    let root = Node::read_yaml(text).map_err(|issue| vec![issue])?;
    let mut issues = Issues::default();
    let nodes = issues.list(&root, "a list of cases");
    let mut cases = Vec::with_capacity(nodes.len());
    for node in nodes {
        for variant in medium::variants(node, &mut issues) {
            cases.extend(case(&variant.node, variant.medium, &mut issues));
        }
    }
    issues.0.sort_by_key(|issue| issue.line);
    // The variants of a case report their common faults more than once.
    issues.0.dedup();
    if issues.0.is_empty() { Ok(cases) } else { Err(issues.0) }
}

fn case(node: &Node, medium: Option<MediumKind>, issues: &mut Issues) -> Option<Case> {
    let (mut rule, mut name, mut skip) = (None, None, false);
    let (mut setup, mut action, mut expect) = (None, None, None);
    for (key, value) in issues.map(node, "a case", CASE_KEYS) {
        match &*key.text {
            "rule" => rule = issues.text(value),
            "name" => name = issues.text(value),
            "description" => {
                issues.text(value);
            }
            "skip" => skip = issues.flag(value).unwrap_or(false),
            "setup" => setup = Some(value),
            "action" => action = Some(value),
            "expect" => expect = Some(value),
            _ => {}
        }
    }
    let (Some(rule), Some(name)) = (rule, name) else {
        issues.push(node.line, "a case needs `rule` and `name`");
        return None;
    };
    let name = match medium {
        Some(medium) => format!("{name} ({})", medium.as_str()),
        None => name,
    };
    let skipped = |why| Some(Case { rule: rule.clone(), name: name.clone(), medium, body: Body::Skipped(why) });
    if setup.is_none() && action.is_none() && expect.is_none() {
        return skipped(if skip { "marked skip" } else { "it has neither setup, action nor expect" });
    }
    // A skipped case is read as strictly as any other.
    let setup = setup.map_or_else(Setup::default, |setup| read_setup(setup, issues));
    let action = action.and_then(|action| read_action(action, &setup, issues));
    let expect = match expect {
        Some(Node { shape: NodeValue::Null, line }) => {
            issues.push(*line, "`expect` is empty: a case that expects nothing shows nothing");
            Vec::new()
        }
        Some(expect) => {
            let before = issues.0.len();
            let wanted = read_expect(expect, issues);
            if wanted.is_empty() && issues.0.len() == before {
                issues.push(expect.line, "`expect` is empty: a case that expects nothing shows nothing");
            }
            wanted
        }
        None => {
            issues.push(node.line, "a case with an action needs `expect`");
            Vec::new()
        }
    };
    if skip {
        return skipped("marked skip");
    }
    let Some(action) = action else {
        issues.push(node.line, "a case needs an `action`");
        return None;
    };
    Some(Case { rule, name, medium, body: Body::Runs(Box::new(Runs { setup, action, expect })) })
}

#[cfg(test)]
mod tests {
    use cantrip_reply::codes;
    use cantrip_reply::testing::guarded;
    use cantrip_tests::garble;
    use proptest::prelude::*;

    use super::read;
    use crate::conformance::unreadable;

    /// All conformance files of this repository.
    const SUITE: &[&str] = &[
        include_str!("../../../../tests/conformance/circle.yaml"),
        include_str!("../../../../tests/conformance/composition.yaml"),
        include_str!("../../../../tests/conformance/crystal.yaml"),
        include_str!("../../../../tests/conformance/loom.yaml"),
        include_str!("../../../../tests/conformance/loop.yaml"),
        include_str!("../../../../tests/conformance/production.yaml"),
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
                let faults: Vec<_> = issues.into_iter().map(|issue| ("a.yaml".to_owned(), issue)).collect();
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
}
