//! The measured events, made before the clock starts.

use cantrip_stream::{
    Arguments, CallId, EventId, FinalCall, FinalItem, FinalOutput, ItemDelta, ItemDone, ItemId, ItemStart, ModelId,
    Name, Origin, Payload, ProviderId, ResponseDone, ResponseStart, ResponseStatus, SessionId, SourceTimestamp,
    StartedItem, StreamEvent, TurnId,
};

const WORDS: &[&str] = &["the ", "quick ", "brown ", "fox ", "jumps ", "over ", "a ", "lazy ", "dog, ", "again "];

/// Makes the events of one turn.
struct Turn {
    turn_id: TurnId,
    session_id: SessionId,
    event_id: EventId,
    timestamp: SourceTimestamp,
}

impl Turn {
    fn new(number: usize) -> Self {
        Self {
            turn_id: format!("turn_06cyf9k2vtd3m8x1q7hbz{number:05}").parse().expect("an id"),
            session_id: "run_06cyf9k2vtd3m8x1q7hbz4n5rw".parse().expect("an id"),
            event_id: "event".parse().expect("an id"),
            timestamp: "2026-02-15T10:00:00.000Z".parse().expect("a real time"),
        }
    }

    fn item(&self, number: u64) -> ItemId {
        ItemId::nth(&self.turn_id, number).expect("a short id")
    }

    fn event(&self, payload: Payload) -> StreamEvent {
        StreamEvent {
            event_id: self.event_id.clone(),
            timestamp: self.timestamp,
            turn_id: self.turn_id.clone(),
            session_id: self.session_id.clone(),
            payload,
        }
    }

    fn begin(&self) -> StreamEvent {
        let model_id: ModelId = "model".parse().expect("an id");
        let provider_id: ProviderId = "provider".parse().expect("an id");
        self.event(Payload::ResponseStart(ResponseStart { model_id, provider_id, child: Default::default() }))
    }

    fn end(&self) -> StreamEvent {
        self.event(Payload::ResponseDone(ResponseDone {
            status: ResponseStatus::Completed,
            finish_reason: None,
            error: None,
            usage: None,
            continuations: None,
        }))
    }

    fn start(&self, item_id: &ItemId) -> StreamEvent {
        let item = StartedItem::Message { initial_content: Default::default() };
        self.event(Payload::ItemStart(ItemStart { item_id: item_id.clone(), item }))
    }

    fn delta(&self, item_id: &ItemId, text: &str) -> StreamEvent {
        self.event(Payload::ItemDelta(ItemDelta { item_id: item_id.clone(), delta_content: text.into() }))
    }

    fn done(&self, item_id: &ItemId, final_item: FinalItem) -> StreamEvent {
        self.event(Payload::ItemDone(ItemDone { item_id: item_id.clone(), final_item }))
    }

    /// A message of this many one-word deltas, from start to done.
    fn message(&self, number: u64, deltas: usize, events: &mut Vec<StreamEvent>) {
        let item_id = self.item(number);
        events.push(self.start(&item_id));
        let mut text = String::new();
        for word in WORDS.iter().cycle().take(deltas) {
            text.push_str(word);
            events.push(self.delta(&item_id, word));
        }
        events.push(self.done(&item_id, FinalItem::Message { content: text.into(), origin: Origin::Agent }));
    }

    /// A call from start to output: seven events.
    fn call(&self, number: u64, events: &mut Vec<StreamEvent>) {
        let (item_id, output_id) = (self.item(number), self.item(number + 1));
        let name = Name::new("read").expect("a name");
        let call_id: CallId = "toolu_01A09q90qw90lq917835lq9".parse().expect("an id");
        let item = StartedItem::FunctionCall { name: name.clone(), call_id: call_id.clone(), parent_item_id: None };
        events.push(self.event(Payload::ItemStart(ItemStart { item_id: item_id.clone(), item })));
        events.push(self.delta(&item_id, "{\"path\":"));
        events.push(self.delta(&item_id, "\"rows.csv\"}"));
        let arguments: serde_json::Map<_, _> = [("path".to_owned(), "rows.csv".into())].into_iter().collect();
        let call = FinalCall { name, call_id: call_id.clone(), arguments: Arguments::from(arguments) };
        events.push(self.done(&item_id, FinalItem::FunctionCall(call)));
        let item = StartedItem::FunctionCallOutput { call_id: Some(call_id.clone()) };
        events.push(self.event(Payload::ItemStart(ItemStart { item_id: output_id.clone(), item })));
        let output = FinalOutput { call_id, output: "id,name\n1,a\n".into(), is_error: false, reply: None };
        events.push(self.done(&output_id, FinalItem::FunctionCallOutput(output)));
    }
}

pub(super) fn one_item(deltas: usize) -> Vec<StreamEvent> {
    short_items(deltas, deltas)
}

/// One turn whose deltas are split into messages of `length` deltas each.
pub(super) fn short_items(deltas: usize, length: usize) -> Vec<StreamEvent> {
    let turn = Turn::new(0);
    let mut events = vec![turn.begin()];
    for number in 0..deltas / length {
        turn.message(number as u64, length, &mut events);
    }
    events.push(turn.end());
    events
}

/// Turns one after the other, 14 events each: a message of four deltas, then a call.
pub(super) fn turns(count: usize) -> Vec<StreamEvent> {
    let mut events = Vec::new();
    for number in 0..count {
        let turn = Turn::new(number);
        events.push(turn.begin());
        turn.message(1, 4, &mut events);
        turn.call(2, &mut events);
        events.push(turn.end());
    }
    assert_eq!(events.len(), 14 * count);
    events
}

/// Concurrent turns that each stream one message, with their deltas interleaved.
pub(super) fn interleaved(turns: usize, deltas: usize) -> Vec<StreamEvent> {
    let lists: Vec<Vec<StreamEvent>> = (0..turns)
        .map(|number| {
            let turn = Turn::new(number);
            let mut events = vec![turn.begin()];
            turn.message(1, deltas, &mut events);
            events.push(turn.end());
            events
        })
        .collect();
    let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
    (0..longest).flat_map(|index| lists.iter().filter_map(move |list| list.get(index)).cloned()).collect()
}
