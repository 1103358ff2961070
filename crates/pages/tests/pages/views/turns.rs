//! Threads: turns, windows, what is live, the spine, a comparison.

use cantrip_service::cantrip::canon::FoldId;
use cantrip_service::cantrip::loom::{
    CallId, Closing, Content, DamagedTurn, Finish, Fold, FoldView, GateCall, GateRecord, Metadata, OutputRecord,
    PathBucket, RecordSpan, RecordValue, RecordedError, ReplyMark, RewardView, RunState, Seq, SettledCall, Settlement,
    Strategy, Turn, TurnWindow, Utterance,
};
use cantrip_service::cantrip::reply::{Advice, ReplyType};
use cantrip_view::{
    CallNote, CompareRow, CompareSide, CompareView, Doing, NowLine, OpenCall, OpenCallState, OpenItem, OpenTurn,
    PartingReason, SentView, SpineView, ThreadWindow,
};
use serde_json::{Map, Value, json};

use super::{
    approval_id, at, beginning, cast, cast_id, chance, child, entity_id, fork, loom_id, money, owner, run_id, summary,
    turn_id,
};

fn settled(gate: &str, text: &str, call_id: CallId, mark: (ReplyType, &str)) -> GateRecord {
    let number = call_id.number();
    GateRecord {
        call_id,
        tool_call_id: Some(format!("c{number}")),
        gate: gate.to_owned(),
        args: json!({ "path": text }),
        ephemeral: false,
        settlement: Settlement::Settled(Box::new(SettledCall {
            result: Value::String(text.to_owned()),
            reply: ReplyMark { reply_type: mark.0, code: mark.1.to_owned() },
            data: Map::new(),
            children: Vec::new(),
            changes: Vec::new(),
            clock_ms: Some(1_771_466_400_000),
            duration_ms: 41_300,
            cost: Some(money("0.0021 USD")),
            decision: None,
        })),
    }
}

/// A turn that thinks, speaks, runs a program and makes a call of each reply type.
pub(crate) fn turn(text: &str, sequence: u64) -> Turn {
    let program = GateCall {
        tool_call_id: "p1".to_owned(),
        gate: "javascript".to_owned(),
        args: json!({ "code": format!("const x = 1; // {text}\nx + 1") }),
    };
    let output = OutputRecord {
        tool_call_id: Some("p1".to_owned()),
        console: vec![text.to_owned(), "second line".to_owned()],
        value: Some(text.to_owned()),
        ..OutputRecord::default()
    };
    let call = |number: u32| CallId::of_turn(turn_id(sequence), number);
    Turn {
        id: turn_id(sequence),
        parent_id: (sequence > 1).then(|| turn_id(sequence - 1)),
        loom_id: loom_id(),
        cantrip_id: format!("can_{}", "0a".repeat(16)).parse().unwrap(),
        entity_id: entity_id(1),
        cast_id: cast_id(),
        sequence,
        intent: (sequence == 1).then(|| Content::Text(text.to_owned())),
        utterance: Some(Utterance {
            content: Some(text.to_owned()),
            calls: vec![program],
            thinking: Some(text.to_owned()),
            parts: None,
            model: "scripted/three".to_owned(),
            finish: Finish::Calls,
        }),
        outputs: vec![output],
        gate_calls: vec![
            settled("read", text, call(1), (ReplyType::Success, "WA-READ-S-001")),
            settled("read", text, call(2), (ReplyType::Invalid, "WA-READ-I-001")),
            settled(text, text, call(3), (ReplyType::Denied, "EN-READ-D-001")),
            settled("fetch", text, call(4), (ReplyType::Failure, "WA-IO-E-001")),
        ],
        metadata: Metadata {
            tokens_prompt: 18_204,
            tokens_completion: 412,
            tokens_cached: 17_000,
            duration_ms: 6_200,
            timestamp: at(sequence),
            attempts: 1,
            cost_micros: 11_800,
            cost: Some(money("0.0118 USD")),
            model: Some("scripted/three".to_owned()),
        },
        reward: None,
        closing: Closing::Open,
        continuation_of: None,
        forked_from: None,
        spawned_by: None,
        snapshot: None,
    }
}

pub(crate) fn window(text: &str, turns: u64) -> ThreadWindow {
    let note = CallNote { advice: Some(Advice::FixAndRetry), approval: None, reservation: Some("rsv_1".to_owned()) };
    let error = RecordedError::new(mark(ReplyType::Failure, "WA-IO-E-001"), text);
    let fold = Fold {
        fold_id: FoldId::from_parts(at(0), chance(1)),
        entity_id: entity_id(1),
        after: turn_id(1),
        from: 1,
        to: 1,
        strategy: Strategy::Window,
        text: RecordValue::Inline { inline: text.to_owned() },
        estimate_before: 9_000,
        estimate_after: 1_000,
        attempt: None,
        degraded: false,
        sum: None,
    };
    let reward = RewardView { turn_id: turn_id(1), reward: 0.5, by: owner(), at: at(9), note: Some(text.to_owned()) };
    ThreadWindow {
        run: run_id(1),
        window: TurnWindow {
            turns: (1..=turns).map(|sequence| turn(text, sequence)).collect(),
            spans: (1..=turns).map(|at| RecordSpan { first: Seq::new(at * 9), last: Seq::new(at * 9 + 8) }).collect(),
            damaged: vec![DamagedTurn { turn_id: turn_id(900), sequence: turns + 1, error: error.clone() }],
            casts: vec![cast(text, false)],
            folds: vec![FoldView { fold, text: text.to_owned(), at: at(2) }],
            rewards: vec![reward],
            branches: vec![child(text, 2, 1, 1, RunState::Terminated), fork(text, 7, 1, 1, 40)],
            first: 1,
            last: turns + 1,
        },
        notes: [((turn_id(3), 1), note)].into(),
        open: Vec::new(),
        damaged: vec![(turn_id(900), error)],
        newest: 4_000,
        at_end: true,
        redacted: [(turn_id(2), 2)].into(),
        attempts: [(turn_id(2), vec!["WA-IO-E-001".to_owned()])].into(),
    }
}

pub(crate) fn mark(reply_type: ReplyType, code: &str) -> ReplyMark {
    ReplyMark { reply_type, code: code.to_owned() }
}

pub(crate) fn open_turn(text: &str) -> OpenTurn {
    let call = |n: usize, state: OpenCallState| {
        OpenItem::Call(OpenCall { n, gate: "read".to_owned(), args: json!({ "path": text }), state, since: at(5) })
    };
    OpenTurn {
        turn_id: turn_id(50),
        entity_id: entity_id(1),
        sequence: 50,
        since: at(5),
        items: vec![
            OpenItem::Thinking { n: 0, text: text.to_owned(), complete: true },
            OpenItem::Said { n: 1, text: text.to_owned(), complete: false },
            call(2, OpenCallState::Running),
            call(3, OpenCallState::Waiting(approval_id(1))),
            call(
                4,
                OpenCallState::Settled {
                    reply_type: ReplyType::Denied,
                    code: "EN-READ-D-001".to_owned(),
                    text: text.to_owned(),
                },
            ),
        ],
        children: vec![child(text, 2, 1, 3, RunState::Running)],
    }
}

pub(crate) fn now_lines(text: &str) -> Vec<NowLine> {
    let line = |number: u64, doing: Doing| NowLine {
        entity_id: entity_id(number),
        name: beginning(text),
        doing,
        since: at(3),
    };
    vec![
        line(1, Doing::WaitingForPerson(beginning(text))),
        line(2, Doing::InGate(beginning(text))),
        line(3, Doing::Thinking),
    ]
}

pub(crate) fn spine(marks: u64) -> SpineView {
    let worst = [ReplyType::Success, ReplyType::Success, ReplyType::Invalid, ReplyType::Denied, ReplyType::Failure];
    let buckets = (0..marks).zip(worst.into_iter().cycle()).map(|(at, worst)| PathBucket {
        first: at * 4 + 1,
        last: at * 4 + 4,
        turn_id: turn_id(at * 4 + 1),
        worst,
        cost_micros: i64::try_from(at % 7).unwrap() * 1_000,
        forks: u32::from(at % 9 == 3),
        children: 0,
        folds: u32::from(at % 11 == 5),
    });
    SpineView { buckets: buckets.collect(), first: 1, last: marks * 4 }
}

pub(crate) fn sent(text: &str, count: u64) -> SentView {
    let calls = json!([{ "tool_call_id": "c1", "gate": text, "args": { "path": text } }]);
    let mut messages = vec![json!({ "role": "system", "content": text })];
    for _ in 0..count {
        messages.push(json!({ "role": "user", "content": [{ "type": "text", "text": text }] }));
        messages.push(json!({ "role": "assistant", "content": text, "calls": calls }));
        messages.push(json!({ "role": "tool", "gate": text, "tool_call_id": "c1", "content": text }));
    }
    SentView { turn: turn_id(3), messages, gates_in_words: true }
}

fn side(text: &str, number: u64, state: RunState) -> CompareSide {
    CompareSide {
        leaf: turn_id(number),
        run: summary(text, number, state),
        turns: 181,
        counted: 180,
        tokens_prompt: 1_204_118,
        tokens_completion: 38_402,
        cost: Some(money("0.4199 USD")),
        duration_ms: 581_000,
        answer: (!state.is_live()).then(|| json!({ "module": text })),
    }
}

/// Two threads whose turns at the same place say `text` and `other`.
pub(crate) fn compare(text: &str, other: &str, rows: u64) -> CompareView {
    let row = |at: u64| match at % 4 {
        0 => CompareRow { a: Some(turn(text, at + 1)), b: Some(turn(other, at + 1)), equal: false },
        1 => CompareRow { a: Some(turn(text, at + 1)), b: None, equal: false },
        _ => CompareRow { a: Some(turn(text, at + 1)), b: Some(turn(text, at + 1)), equal: true },
    };
    CompareView {
        a: side(text, 1, RunState::Waiting),
        b: side(text, 2, RunState::Terminated),
        shared: 131,
        shared_up_to: Some(turn_id(131)),
        parts: vec![PartingReason::Intent, PartingReason::Crystal],
        rows: (0..rows).map(row).collect(),
        left_out: 3,
    }
}
