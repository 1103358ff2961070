//! Requests to a person, spells, files and records.

use std::collections::BTreeMap;

use cantrip_service::cantrip::PendingApproval;
use cantrip_service::cantrip::loom::{ListPage, RecordedError, RunState};
use cantrip_service::cantrip::reply::ReplyType;
use cantrip_service::{ChangeKind, FileDiff, SpellSummary};
use cantrip_view::{
    AskedBecause, DecidedView, DryRunView, FilesView, Proposal, ProposalSubject, RecordLine, RewindFile, RewindPlan,
    SpellGate, SpellView, WaitingView,
};
use serde_json::json;

use super::{approval_id, at, beginning, mark, money, owner, summary, turn_id};

pub(crate) fn files(text: &str, count: usize) -> FilesView {
    let lines = format!("{text}\n").repeat(3);
    let file = |at: usize| match at % 3 {
        0 => FileDiff::of_texts(&format!("{at}/{text}"), Some("one\ntwo\n"), Some(&lines)),
        1 => FileDiff::of_texts(&format!("{at}/{text}"), None, Some(&lines)),
        _ => FileDiff::of_texts(&format!("{at}/{text}"), Some(&lines), None),
    };
    FilesView {
        files: (0..count).map(file).collect(),
        unknown: vec![text.to_owned()],
        undo_to: [(format!("0/{text}"), turn_id(2))].into(),
        fault: None,
    }
}

pub(crate) fn records(text: &str, count: u64) -> ListPage<RecordLine> {
    let items = (1..=count).map(|seq| RecordLine {
        seq,
        kind: "call".to_owned(),
        at: at(seq),
        payload: json!({ "args": { "path": text } }),
        hash: format!("sha256:{}", "0a".repeat(32)),
    });
    ListPage { items: items.collect(), next: Some(count) }
}

pub(crate) fn pending(text: &str, number: u64) -> PendingApproval {
    PendingApproval {
        approval_id: approval_id(number),
        gate: beginning(text),
        args: json!({ "path": text }),
        cost: Some(money("0.05 USD")),
        reason_code: None,
        reasons: json!([]),
        expires_at: at(1_440),
    }
}

pub(crate) fn subjects(text: &str) -> Vec<ProposalSubject> {
    let text = text.to_owned();
    let difference = format!("--- a\n+++ a\n@@ -1 +1 @@\n-{text}\n+{text} and more\n");
    vec![
        ProposalSubject::File { path: text.clone(), difference: Some(difference.clone()), changed_since: None },
        ProposalSubject::File {
            path: text.clone(),
            difference: Some(difference.clone()),
            changed_since: Some(difference),
        },
        ProposalSubject::File { path: text.clone(), difference: Some(String::new()), changed_since: None },
        ProposalSubject::File { path: text.clone(), difference: None, changed_since: None },
        ProposalSubject::Command {
            arguments: vec![text.clone(), "--flag".to_owned(), text.clone()],
            folder: text.clone(),
            input: Some(json!({ "stdin": text })),
        },
        ProposalSubject::Address {
            method: "POST".to_owned(),
            url: format!("https://example.org/{text}"),
            host: "example.org".to_owned(),
            punycode: Some("xn--exmple-cua.org".to_owned()),
            input: Some(json!({ "body": text })),
        },
        ProposalSubject::Child { spell: Some(text.clone()), intents: vec![text.clone(), text.clone()] },
        ProposalSubject::Money { what: text.clone(), arguments: json!({ "on": text }) },
        ProposalSubject::Question { text: text.clone(), choices: vec![text.clone(), "no".to_owned()] },
        ProposalSubject::Call { gate: text.clone(), arguments: json!({ "x": text }) },
    ]
}

pub(crate) fn waiting(text: &str, number: u64, subject: ProposalSubject) -> WaitingView {
    let labels = BTreeMap::from([
        ("external_comm".to_owned(), Vec::new()),
        ("private_data".to_owned(), vec![turn_id(3), turn_id(9)]),
        ("untrusted_content".to_owned(), vec![turn_id(7)]),
    ]);
    WaitingView {
        run: summary(text, 1, RunState::Waiting),
        asked_at: at(2),
        pending: pending(text, number),
        proposal: Proposal {
            turn: Some(turn_id(3)),
            subject,
            because: vec![
                AskedBecause::Ward("require_approval".to_owned()),
                AskedBecause::Threshold("its worst-case cost is above the threshold for approval".to_owned()),
                AskedBecause::Trifecta(labels),
                AskedBecause::Protected { path: beginning(text), danger: beginning(text) },
            ],
            cost: Some(money("0.05 USD")),
            left: Some(money("0.267851 USD")),
            decided: None,
            digest: "digest".to_owned(),
        },
    }
}

pub(crate) fn decided(text: &str) -> WaitingView {
    let waiting = waiting(text, 1, ProposalSubject::Call { gate: text.to_owned(), arguments: json!({}) });
    let decided = DecidedView { approved: false, by: owner(), at: at(4), reason: Some(text.to_owned()) };
    WaitingView { proposal: Proposal { decided: Some(decided), ..waiting.proposal }, ..waiting }
}

pub(crate) fn requests(text: &str, rounds: u64) -> ListPage<WaitingView> {
    let all = (0..rounds).flat_map(|_| subjects(text));
    let items = all.zip(1_u64..).map(|(subject, number)| waiting(text, number, subject));
    ListPage { items: items.collect(), next: Some(9) }
}

pub(crate) fn spell_summary(text: &str) -> SpellSummary {
    SpellSummary {
        name: beginning(text),
        crystal: beginning(text),
        medium: "javascript".to_owned(),
        about: text.to_owned(),
    }
}

pub(crate) fn spell(text: &str, count: usize) -> SpellView {
    let rows = || (0..count).map(|at| (format!("key {at}"), text.to_owned())).collect();
    let gates = (0..count).map(|at| SpellGate {
        name: format!("gate {at}"),
        labels: vec!["private_data".to_owned(), beginning(text)],
        about: text.to_owned(),
    });
    SpellView {
        summary: spell_summary(text),
        sections: vec![("spell".to_owned(), rows()), (beginning(text), rows())],
        gates: gates.collect(),
        recent: (1..=10).map(|number| summary(text, number, RunState::Terminated)).collect(),
        fault: Some(RecordedError::new(mark(ReplyType::Failure, "WA-IO-E-001"), beginning(text))),
    }
}

pub(crate) fn dry_run(text: &str, count: usize) -> DryRunView {
    DryRunView {
        system_prompt: text.to_owned(),
        tools: (0..count).map(|at| json!({ "name": format!("gate {at}"), "description": text })).collect(),
        capabilities: Some(text.to_owned()),
        intent: text.to_owned(),
    }
}

pub(crate) fn rewind(text: &str, count: usize) -> RewindPlan {
    let difference = format!("--- a\n+++ a\n@@ -1 +1 @@\n-{text}\n+before\n");
    let file = |at: usize| RewindFile {
        path: format!("{at}/{text}"),
        touched: ChangeKind::Changed,
        unified: (at % 3 != 2).then(|| difference.clone()),
        kept: (at % 2 == 1).then(|| beginning(text)),
    };
    RewindPlan { to: turn_id(3), files: (0..count).map(file).collect() }
}
