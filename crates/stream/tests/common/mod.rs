//! Builders of events, for tests with more events than a person would write down.

use cantrip_canon::{Instant, Now, Timestamp};
use cantrip_stream::{
    Arguments, CallId, EventId, FinalCall, FinalItem, FinalOutput, ItemCancelled, ItemDelta, ItemDone, ItemId,
    ItemStart, ModelId, Name, Origin, Payload, ProviderId, ResponseDone, ResponseStart, ResponseStatus, SessionId,
    StartedItem, StreamEvent, TurnId,
};
use std::time::Duration;

pub(crate) fn at(millis: u64) -> Now {
    let since_start = Duration::from_millis(millis);
    Now { monotonic: Instant::from_origin(since_start), wall: Timestamp::EPOCH.after(since_start) }
}

pub(crate) fn item(id: &str) -> ItemId {
    ItemId::new(id).expect("an id")
}

pub(crate) fn call(id: &str) -> CallId {
    CallId::new(id).expect("an id")
}

pub(crate) fn event(turn: &str, payload: Payload) -> StreamEvent {
    StreamEvent {
        event_id: EventId::new("e").expect("an id"),
        timestamp: "2026-02-15T10:00:00Z".parse().expect("a real time"),
        turn_id: TurnId::new(turn).expect("an id"),
        session_id: SessionId::new("s").expect("an id"),
        payload,
    }
}

pub(crate) fn response_start() -> Payload {
    Payload::ResponseStart(ResponseStart {
        model_id: ModelId::new("m").expect("an id"),
        provider_id: ProviderId::new("p").expect("an id"),
        child: Default::default(),
    })
}

pub(crate) fn start(id: &str, initial: &str) -> Payload {
    Payload::ItemStart(ItemStart { item_id: item(id), item: StartedItem::Message { initial_content: initial.into() } })
}

pub(crate) fn start_reasoning(id: &str) -> Payload {
    Payload::ItemStart(ItemStart {
        item_id: item(id),
        item: StartedItem::Reasoning { initial_content: Default::default() },
    })
}

pub(crate) fn start_call(id: &str, call_id: &str) -> Payload {
    Payload::ItemStart(ItemStart {
        item_id: item(id),
        item: StartedItem::FunctionCall {
            name: Name::new("n").expect("a name"),
            call_id: call(call_id),
            parent_item_id: None,
        },
    })
}

pub(crate) fn start_output(id: &str) -> Payload {
    Payload::ItemStart(ItemStart { item_id: item(id), item: StartedItem::FunctionCallOutput { call_id: None } })
}

pub(crate) fn delta(id: &str, text: &str) -> Payload {
    Payload::ItemDelta(ItemDelta { item_id: item(id), delta_content: text.into() })
}

pub(crate) fn done(id: &str, text: &str) -> Payload {
    let final_item = FinalItem::Message { content: text.into(), origin: Origin::Agent };
    Payload::ItemDone(ItemDone { item_id: item(id), final_item })
}

pub(crate) fn done_call(id: &str, call_id: &str, key: &str) -> Payload {
    let arguments: serde_json::Map<_, _> = [(key.to_owned(), serde_json::json!(1))].into_iter().collect();
    let final_item = FinalItem::FunctionCall(FinalCall {
        name: Name::new("n").expect("a name"),
        call_id: call(call_id),
        arguments: Arguments::from(arguments),
    });
    Payload::ItemDone(ItemDone { item_id: item(id), final_item })
}

pub(crate) fn output(id: &str, call_id: &str, text: &str) -> Payload {
    let final_item = FinalItem::FunctionCallOutput(FinalOutput {
        call_id: call(call_id),
        output: text.into(),
        is_error: false,
        reply: None,
    });
    Payload::ItemDone(ItemDone { item_id: item(id), final_item })
}

pub(crate) fn cancelled(id: &str) -> Payload {
    Payload::ItemCancelled(ItemCancelled { item_id: item(id), reason: None })
}

pub(crate) fn response_done(status: ResponseStatus) -> Payload {
    Payload::ResponseDone(ResponseDone { status, finish_reason: None, error: None, usage: None, continuations: None })
}
