//! Fixed views: every kind of thing that a page shows, with one text wherever a person, an entity or a file speaks.

mod requests;
mod turns;

use std::collections::BTreeMap;

use cantrip_service::cantrip::canon::{ApprovalId, CastId, EntityId, LoomId, Money, RunId, Timestamp, TurnId};
use cantrip_service::cantrip::loom::{
    Actor, CallId, Cast, CastView, Content, EndedBy, Ending, Environment, Epoch, Fork, IntentRecord, ListPage, Origin,
    Outcome, RecordValue, RunCounts, RunKind, RunState, RunSummary, RunView, Seq, Spawn, ThreadSummary,
    TruncationReason, Usage,
};
use cantrip_view::{LoomLine, LoomView, RunActions, RunHead, RunsView};
use serde_json::json;

pub(crate) use requests::{
    decided, dry_run, files, pending, records, requests, rewind, spell, spell_summary, subjects, waiting,
};
pub(crate) use turns::{compare, mark, now_lines, open_turn, sent, spine, window};

pub(crate) fn at(minute: u64) -> Timestamp {
    let start: Timestamp = "2026-02-19T02:00:00.000Z".parse().unwrap();
    start.after(std::time::Duration::from_secs(60 * minute))
}

pub(crate) fn chance(number: u64) -> [u8; 10] {
    let mut chance = [0; 10];
    chance[2..].copy_from_slice(&number.to_be_bytes());
    chance
}

pub(crate) fn run_id(number: u64) -> RunId {
    RunId::from_parts(at(0), chance(number))
}

pub(crate) fn turn_id(number: u64) -> TurnId {
    TurnId::from_parts(at(0), chance(number))
}

pub(crate) fn entity_id(number: u64) -> EntityId {
    EntityId::from_parts(at(0), chance(number))
}

pub(crate) fn approval_id(number: u64) -> ApprovalId {
    ApprovalId::from_parts(at(0), chance(number))
}

pub(crate) fn loom_id() -> LoomId {
    LoomId::from_parts(at(0), chance(1))
}

pub(crate) fn cast_id() -> CastId {
    CastId::from_parts(at(0), chance(1))
}

pub(crate) fn money(text: &str) -> Money {
    text.parse().unwrap()
}

pub(crate) fn owner() -> Actor {
    Actor::new("local").unwrap()
}

/// The beginning of a text, as the store keeps it for lists.
pub(crate) fn beginning(text: &str) -> String {
    text.chars().take(240).collect()
}

pub(crate) fn summary(text: &str, number: u64, state: RunState) -> RunSummary {
    let is_over = !state.is_live();
    RunSummary {
        run_id: run_id(number),
        kind: RunKind::Cast,
        loom_id: loom_id(),
        owner: owner(),
        entity_id: Some(entity_id(1)),
        cast_id: Some(cast_id()),
        spell: Some(beginning(text)),
        crystal: Some(beginning(text)),
        intent: Some(beginning(text)),
        answer: is_over.then(|| beginning(text)),
        state,
        reason: (state == RunState::Truncated).then_some(TruncationReason::MaxTurns),
        code: (state == RunState::Failed).then(|| "WA-IO-E-001".to_owned()),
        waiting_for: None,
        turns: 312,
        child_turns: 41,
        children: 6,
        tokens_prompt: 1_844_120,
        tokens_completion: 61_040,
        tokens_cached: 1_670_000,
        own_cost: Some(money("0.481 USD")),
        cost: Some(money("0.732149 USD")),
        budget: Some(money("1.00 USD")),
        created_at: at(0),
        ended_at: is_over.then(|| at(14)),
        newest: Seq::new(4_000),
    }
}

/// A thread of a root; its entity and its run have this number.
pub(crate) fn root(text: &str, number: u64, last: u64) -> ThreadSummary {
    ThreadSummary {
        entity_id: entity_id(number),
        run_id: run_id(number),
        origin: Origin::Root,
        parent: None,
        parent_sequence: None,
        fork: None,
        call_id: None,
        first: Some(1),
        last: Some(last),
        leaf: Some(turn_id(number * 1_000 + last)),
        state: RunState::Terminated,
        reason: None,
        intent: Some(beginning(text)),
        crystal: Some(beginning(text)),
        own_cost: Some(money("0.0871 USD")),
        cost: Some(money("0.1004 USD")),
        turns: last,
        at: at(number),
    }
}

pub(crate) fn fork(text: &str, number: u64, parent: u64, sequence: u64, last: u64) -> ThreadSummary {
    let fork = Fork { turn: turn_id(sequence), environment: Environment::Fresh };
    ThreadSummary {
        origin: Origin::Fork(fork),
        parent: Some(entity_id(parent)),
        parent_sequence: Some(sequence),
        fork: Some(fork),
        first: Some(sequence + 1),
        turns: last - sequence,
        ..root(text, number, last)
    }
}

pub(crate) fn child(text: &str, number: u64, parent: u64, sequence: u64, state: RunState) -> ThreadSummary {
    let call_id = CallId::of_turn(turn_id(sequence), 1);
    let index = u32::try_from(number).unwrap();
    ThreadSummary {
        run_id: run_id(1),
        origin: Origin::Child { parent: turn_id(sequence), spawned_by: Spawn { call_id, index } },
        parent: Some(entity_id(parent)),
        parent_sequence: Some(sequence),
        call_id: Some(call_id),
        state,
        reason: (state == RunState::Truncated).then_some(TruncationReason::MaxTurns),
        ..root(text, number, 4)
    }
}

pub(crate) fn cast(text: &str, is_over: bool) -> CastView {
    let outcome = Outcome {
        ending: Ending::Terminated { ended_by: EndedBy::Done, result: json!({ "module": text, "risk": 3 }) },
        entity_id: entity_id(1),
        cast_id: cast_id(),
        loom_id: loom_id(),
        leaf: Some(turn_id(3)),
        turns: 3,
        utterances: 3,
        usage: Usage::default(),
        cost: Some(money("0.0354 USD")),
        uncosted: 0,
    };
    CastView {
        cast: Cast {
            cast_id: cast_id(),
            entity_id: entity_id(1),
            intent: IntentRecord::New(RecordValue::Inline { inline: Content::Text(text.to_owned()) }),
            wards: json!({ "max_turns": 400 }),
            deadline_ms: None,
            budget_scope: None,
            budget: Some(money("1.00 USD")),
            cancelled: Vec::new(),
        },
        run_id: run_id(1),
        at: at(0),
        intent: Content::Text(text.to_owned()),
        own_intent: true,
        cancelled: Vec::new(),
        outcome: is_over.then_some(outcome),
    }
}

pub(crate) fn head(text: &str, state: RunState) -> RunHead {
    RunHead {
        run: RunView {
            run_id: run_id(1),
            kind: RunKind::Cast,
            loom_id: loom_id(),
            owner: owner(),
            entity_id: Some(entity_id(1)),
            root_run_id: None,
            state,
            newest: Seq::new(4_000),
            epoch: Epoch::FIRST,
            created_at: at(0),
            ended_at: (!state.is_live()).then(|| at(14)),
            copied: false,
        },
        summary: summary(text, 1, state),
        cast: Some(cast(text, !state.is_live())),
        cantrip_id: Some(format!("can_{}", "0a".repeat(16))),
        leaf: Some(turn_id(3)),
        shown: None,
        parked: None,
        pending: if state == RunState::Waiting { vec![pending(text, 1)] } else { Vec::new() },
        threads: vec![
            ThreadSummary { state, ..root(text, 1, 312) },
            child(text, 2, 1, 3, RunState::Terminated),
            child(text, 3, 1, 3, RunState::Truncated),
            child(text, 4, 3, 2, RunState::Failed),
            child(text, 5, 1, 3, RunState::Running),
        ],
        actions: RunActions {
            cancel: state.is_live(),
            resume: state == RunState::Waiting,
            go_on: state == RunState::Truncated,
            fork: true,
            rewind: true,
            reward: true,
        },
        files: 4,
        files_counted: true,
        has_ledger: true,
        orphaned: false,
    }
}

pub(crate) fn runs(text: &str, count: u64) -> RunsView {
    let states = [
        RunState::Running,
        RunState::Waiting,
        RunState::Terminated,
        RunState::Truncated,
        RunState::Failed,
        RunState::Queued,
    ];
    let items = (1..=count).zip(states.into_iter().cycle()).map(|(number, state)| summary(text, number, state));
    RunsView {
        runs: ListPage { items: items.collect(), next: Some(77) },
        counts: RunCounts { waiting: 2, running: 3, went_wrong: 1, spent: vec![money("4.2 USD")] },
        waiting_for_me: 2,
    }
}

/// The list of runs of an empty store.
pub(crate) fn no_runs() -> RunsView {
    RunsView {
        runs: ListPage { items: Vec::new(), next: None },
        counts: RunCounts { waiting: 0, running: 0, went_wrong: 0, spent: Vec::new() },
        waiting_for_me: 0,
    }
}

/// The loom of the drawing in the look: five threads, and children.
pub(crate) fn loom(text: &str) -> LoomView {
    let mut threads = vec![
        ThreadSummary { state: RunState::Waiting, ..root(text, 1, 312) },
        ThreadSummary { state: RunState::Running, ..fork(text, 2, 1, 228, 267) },
        fork(text, 3, 1, 131, 274),
        ThreadSummary { state: RunState::Failed, ..fork(text, 4, 3, 190, 251) },
        fork(text, 5, 1, 54, 142),
    ];
    threads.extend((10..14).map(|number| child(text, number, 1, 90, RunState::Terminated)));
    threads.extend((20..38).map(|number| child(text, number, 1, 280, RunState::Terminated)));
    let entities = threads.len() as u64;
    LoomView {
        loom_id: loom_id(),
        name: Some(beginning(text)),
        threads,
        behind: [(entity_id(5), 12)].into(),
        entities,
        turns: 643,
        next: Some(60),
    }
}

pub(crate) fn large_loom(text: &str, count: u64) -> LoomView {
    let threads = (1..=count).map(|number| match number % 2 {
        1 => root(text, number, 40),
        _ => fork(text, number, number - 1, 7, 60),
    });
    LoomView { threads: threads.collect(), entities: count, turns: count * 40, behind: BTreeMap::new(), ..loom(text) }
}

pub(crate) fn looms(text: &str, count: u64) -> ListPage<LoomLine> {
    let items = (0..count).map(|number| LoomLine {
        loom_id: LoomId::from_parts(at(0), chance(number)),
        name: (number % 2 == 0).then(|| beginning(text)),
        entities: 5,
        turns: 643,
        last_activity: (number % 2 == 0).then(|| at(3)),
    });
    ListPage { items: items.collect(), next: Some(50) }
}
