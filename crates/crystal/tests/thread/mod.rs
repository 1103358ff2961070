//! Recorded threads for tests.

#![allow(dead_code, reason = "each test uses its part of it")]

use cantrip_canon::{IdSource, Timestamp, TurnId, bytes_hash};
use cantrip_loom::{
    CantripId, Closing, Entity, EntityView, Finish, GateCall, Metadata, Origin, Thread, ThreadState, ToolMode, Turn,
    Utterance,
};
use serde_json::Value;

pub(crate) fn utterance(content: &str) -> Utterance {
    Utterance {
        content: Some(content.to_owned()),
        calls: Vec::new(),
        thinking: None,
        parts: None,
        model: "small".to_owned(),
        finish: Finish::Stop,
    }
}

pub(crate) fn call(id: &str, args: Value) -> GateCall {
    GateCall { tool_call_id: id.to_owned(), gate: "read".to_owned(), args }
}

pub(crate) fn turn(id: TurnId, utterance: Option<Utterance>) -> Turn {
    let ids = IdSource::seeded(9);
    Turn {
        id,
        parent_id: None,
        loom_id: ids.next(Timestamp::EPOCH),
        cantrip_id: CantripId::cut(&bytes_hash(b"a cantrip")),
        entity_id: ids.next(Timestamp::EPOCH),
        cast_id: ids.next(Timestamp::EPOCH),
        sequence: 1,
        intent: None,
        utterance,
        outputs: Vec::new(),
        gate_calls: Vec::new(),
        metadata: Metadata {
            tokens_prompt: 11,
            tokens_completion: 3,
            tokens_cached: 2,
            duration_ms: 1,
            timestamp: Timestamp::EPOCH,
            attempts: 1,
            cost_micros: 0,
            cost: None,
            model: None,
        },
        reward: None,
        closing: Closing::Open,
        continuation_of: None,
        forked_from: None,
        spawned_by: None,
        snapshot: None,
    }
}

pub(crate) fn thread(turns: Vec<Turn>) -> Thread {
    let last = turns.last().expect("a thread has a turn");
    let entity = entity(last);
    Thread {
        leaf: last.id,
        state: ThreadState::Active,
        entity,
        turns,
        casts: Vec::new(),
        folds: Vec::new(),
        forks: Vec::new(),
    }
}

fn entity(last: &Turn) -> EntityView {
    EntityView {
        entity: Entity {
            entity_id: last.entity_id,
            cantrip_id: last.cantrip_id,
            origin: Origin::Root,
            medium: "conversation".to_owned(),
            mode: ToolMode::Tool,
            seed: "0".repeat(16),
            context: None,
            window: None,
            labels: Vec::new(),
        },
        loom_id: last.loom_id,
        run_id: IdSource::seeded(8).next(Timestamp::EPOCH),
        at: Timestamp::EPOCH,
        casts: vec![last.cast_id],
        leaf: Some(last.id),
    }
}
