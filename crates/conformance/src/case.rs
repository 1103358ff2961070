//! Reads a file of cases: one value for each case, parsed strictly, before any case runs.

use cantrip_circle::MediumKind;
use cantrip_crystal::tree::{Issue, Node, NodeValue};

use crate::action::{Action, read_action};
use crate::expect::{Expectation, read_expect};
use crate::issues::Issues;
use crate::medium;
use crate::setup::{Setup, read_setup};

/// One case, or one of its variants.
#[derive(Debug)]
pub struct Case {
    pub rule: String,
    pub name: String,
    /// The medium of this variant, if the case has several.
    pub(crate) medium: Option<MediumKind>,
    pub(crate) body: Body,
}

impl Case {
    /// Returns true if the circle of the case uses this medium.
    pub fn acts_in(&self, medium: MediumKind) -> bool {
        match &self.body {
            Body::Skipped(_) => false,
            Body::Runs(runs) => runs.setup.circle.as_ref().is_some_and(|circle| circle.mediums.contains(&medium)),
        }
    }
}

#[derive(Debug)]
pub(crate) enum Body {
    Skipped(&'static str),
    Runs(Box<Runs>),
}

/// The setup, the actions and the expectations of a case.
#[derive(Debug)]
pub(crate) struct Runs {
    pub(crate) setup: Setup,
    pub(crate) action: Action,
    pub(crate) expect: Vec<Expectation>,
}

const CASE_KEYS: &[&str] = &["rule", "name", "description", "setup", "action", "expect", "skip"];

/// Returns the cases of a text in order, or everything that is wrong with the text.
pub fn read(text: &str) -> Result<Vec<Case>, Vec<Issue>> {
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
