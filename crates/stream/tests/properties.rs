//! Properties that hold for every list of events, sensible or not.
//!
//! Lists are drawn from few ids and few texts, so that they collide: items restart, calls share ids, outputs come
//! first, events arrive for ended turns. A small model predicts what a viewer may expect; it knows which text is open
//! and nothing of tokens, thresholds or timers.

#[allow(dead_code, reason = "each test crate uses its own part")]
mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cantrip_stream::{
    Emission, ErrorInfo, Gradient, Item, ItemError, Options, Payload, Processor, ResponseError, ResponseStatus,
    StartedItem, Status, StreamEvent, Text, Timers, TurnEvent, Upsert,
};
use common::{
    at, cancelled, delta, done, done_call, event, item, output, response_done, response_start, start, start_call,
    start_output, start_reasoning,
};
use proptest::prelude::*;
use proptest::sample::select;

/// One step of a list; each has its delay in milliseconds after the previous one.
#[derive(Debug, Clone)]
enum Step {
    Event(Box<StreamEvent>),
    Tick,
    Close,
}

const TEXTS: &[&str] = &[
    "",
    " ",
    "x",
    "wor",
    "ld ",
    " \n",
    "two words",
    "\u{FEFF}",
    "\u{85}",
    "é",
    "日本 語",
    "a b c d e f g h i j k l m",
];

/// The ids that a list may use: with `Apart`, texts and calls never share an item id.
#[derive(Debug, Clone, Copy)]
enum Ids {
    Apart,
    Shared,
}

fn payloads(ids: Ids) -> impl Strategy<Value = Payload> {
    let texts: &[&str] = &["a", "b", "c"];
    let calls: &[&str] = match ids {
        Ids::Apart => &["f", "g"],
        Ids::Shared => &["a", "b", "f"],
    };
    let outputs: &[&str] = match ids {
        Ids::Apart => &["o", "p"],
        Ids::Shared => &["a", "o", "f"],
    };
    let error = || ErrorInfo::new("X", "about X");
    let (text_id, call_item, output_item) = (select(texts), select(calls), select(outputs));
    let any_item = prop_oneof![text_id.clone(), call_item.clone(), output_item.clone()];
    let call_id = select(&["k", "l"][..]);
    let text = select(TEXTS);
    prop_oneof![
        1 => Just(response_start()),
        4 => (text_id.clone(), text.clone()).prop_map(|(id, text)| start(id, text)),
        1 => text_id.clone().prop_map(start_reasoning),
        3 => (call_item.clone(), call_id.clone()).prop_map(|(id, call)| start_call(id, call)),
        1 => output_item.clone().prop_map(start_output),
        14 => (text_id.clone(), text.clone()).prop_map(|(id, text)| delta(id, text)),
        1 => (call_item.clone(), text.clone()).prop_map(|(id, text)| delta(id, text)),
        2 => (text_id, text.clone()).prop_map(|(id, text)| done(id, text)),
        2 => (call_item, call_id.clone(), select(&["k", "l"][..])).prop_map(|(id, call, key)| done_call(id, call, key)),
        3 => (output_item, call_id, text).prop_map(|(id, call, text)| output(id, call, text)),
        1 => any_item.clone().prop_map(move |id| Payload::ItemError(ItemError { item_id: item(id), error: error() })),
        1 => any_item.prop_map(cancelled),
        1 => select(&[ResponseStatus::Completed, ResponseStatus::Cancelled, ResponseStatus::Error][..])
            .prop_map(response_done),
        1 => Just(Payload::ResponseError(ResponseError { error: error() })),
    ]
}

fn steps(ids: Ids, turns: &'static [&'static str]) -> impl Strategy<Value = Vec<(u64, Step)>> {
    let wait = prop_oneof![4 => Just(0), 2 => 1..60_u64, 1 => 60..1200_u64];
    let step = prop_oneof![
        20 => (select(turns), payloads(ids)).prop_map(|(turn, payload)| Step::Event(Box::new(event(turn, payload)))),
        2 => Just(Step::Tick),
    ];
    prop::collection::vec((wait, step), 0..60)
}

fn with_closes(steps: Vec<(u64, Step)>, closes: &[usize]) -> Vec<(u64, Step)> {
    let mut steps = steps;
    for close in closes {
        steps.insert(close % (steps.len() + 1), (0, Step::Close));
    }
    steps
}

fn options() -> impl Strategy<Value = Options> {
    let timer = || prop::option::of(prop_oneof![Just(0), 1..50_u64, 50..2000_u64].prop_map(Duration::from_millis));
    let gradient = prop_oneof![
        Just(Gradient::default()),
        prop::collection::vec(-1..6_i64, 0..4).prop_map(|thresholds| Gradient::new(&thresholds)),
    ];
    (gradient, timer(), timer(), timer(), any::<bool>()).prop_map(|(gradient, idle, first, max, announce_arguments)| {
        Options { gradient, timers: Timers { idle, first, max }, announce_arguments }
    })
}

/// Runs a list and returns the emissions of each step. Ends by closing the stream.
fn run(options: Options, steps: &[(u64, Step)]) -> (Processor, Vec<Vec<Emission>>) {
    let mut processor = Processor::new(options);
    let mut now = 0;
    let mut answers = Vec::new();
    for (wait, step) in steps {
        now += wait;
        let mut out = Vec::new();
        match step {
            Step::Event(event) => processor.process(event, at(now), &mut out).expect("within every limit"),
            Step::Tick => processor.tick(at(now), &mut out),
            Step::Close => processor.close(None, at(now), &mut out),
        }
        answers.push(out);
    }
    let mut out = Vec::new();
    processor.close(None, at(now), &mut out);
    answers.push(out);
    (processor, answers)
}

fn upserts(emissions: &[Emission]) -> impl Iterator<Item = &Upsert> {
    emissions.iter().filter_map(|emission| match emission {
        Emission::Upsert(upsert) => Some(upsert),
        Emission::Turn(_) => None,
    })
}

fn content(item: &Item) -> Option<&Text> {
    match item {
        Item::Message { content, .. } | Item::Thinking { content, .. } => Some(content),
        Item::ToolCall(_) => None,
    }
}

type Key = (String, String);

/// The reference model: the open turns, and the text of the open items.
#[derive(Default)]
struct Model {
    ended: BTreeSet<String>,
    open_turns: BTreeSet<String>,
    open: BTreeMap<Key, String>,
    cancelled: BTreeSet<Key>,
    /// Items that had text at any time.
    had_text: BTreeSet<Key>,
    ends: usize,
}

impl Model {
    fn end_turn(&mut self, turn: &str) {
        self.ends += 1;
        self.open_turns.remove(turn);
        self.ended.insert(turn.to_owned());
        self.open.retain(|(of, _), _| of != turn);
        self.cancelled.retain(|(of, _)| of != turn);
    }

    fn apply(&mut self, step: &Step) {
        let event = match step {
            Step::Event(event) => event,
            Step::Tick => return,
            Step::Close => {
                for turn in self.open_turns.clone() {
                    self.end_turn(&turn);
                }
                return;
            }
        };
        let turn = event.turn_id.as_str();
        let key = |item: &cantrip_stream::ItemId| (turn.to_owned(), item.as_str().to_owned());
        if self.ended.contains(turn) {
            if !matches!(event.payload, Payload::ResponseStart(_)) {
                return;
            }
            self.ended.remove(turn);
        }
        self.open_turns.insert(turn.to_owned());
        match &event.payload {
            Payload::ResponseStart(_) => {}
            Payload::ItemStart(start) => {
                let key = key(&start.item_id);
                self.cancelled.remove(&key);
                match &start.item {
                    StartedItem::Message { initial_content } | StartedItem::Reasoning { initial_content } => {
                        self.open.insert(key.clone(), initial_content.to_string());
                        if !initial_content.is_empty() {
                            self.had_text.insert(key);
                        }
                    }
                    StartedItem::FunctionCall { .. } | StartedItem::FunctionCallOutput { .. } => {}
                }
            }
            Payload::ItemDelta(delta) => {
                if let Some(text) = self.open.get_mut(&key(&delta.item_id)) {
                    text.push_str(&delta.delta_content);
                    if !delta.delta_content.is_empty() {
                        self.had_text.insert(key(&delta.item_id));
                    }
                }
            }
            Payload::ItemDone(done) => match &done.final_item {
                cantrip_stream::FinalItem::Message { .. } | cantrip_stream::FinalItem::Reasoning { .. } => {
                    if !self.cancelled.contains(&key(&done.item_id)) {
                        self.open.remove(&key(&done.item_id));
                    }
                }
                cantrip_stream::FinalItem::FunctionCall(_) | cantrip_stream::FinalItem::FunctionCallOutput(_) => {}
            },
            Payload::ItemError(failed) => {
                self.open.remove(&key(&failed.item_id));
            }
            Payload::ItemCancelled(cancelled) => {
                self.open.remove(&key(&cancelled.item_id));
                self.cancelled.insert(key(&cancelled.item_id));
            }
            Payload::ResponseDone(_) | Payload::ResponseError(_) => self.end_turn(turn),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_comes_nothing_is_open_after_the_end_and_every_shown_item_has_ended(
        options in options(),
        list in steps(Ids::Shared, &["A", "B", "C"]),
        closes in prop::collection::vec(any::<usize>(), 0..2),
    ) {
        let list = with_closes(list, &closes);
        let (processor, answers) = run(options, &list);
        prop_assert_eq!(processor.open_turns(), 0);
        prop_assert_eq!(processor.next_deadline(), None);
        let mut model = Model::default();
        list.iter().for_each(|(_, step)| model.apply(step));
        model.apply(&Step::Close);
        let mut last = BTreeMap::new();
        for upsert in upserts(&answers.concat()) {
            last.insert((upsert.turn_id.to_string(), upsert.item_id.to_string()), upsert.status.clone());
        }
        for (key, status) in &last {
            prop_assert!(status.is_final(), "{:?} was left at {:?}", key, status);
        }
        for key in &model.had_text {
            prop_assert!(last.contains_key(key), "{:?} had text and was never shown", key);
        }
        let ends = answers.concat().iter().filter(|emission| match emission {
            Emission::Turn(TurnEvent::Complete { .. } | TurnEvent::Error { .. }) => true,
            Emission::Turn(TurnEvent::Started { .. }) | Emission::Upsert(_) => false,
        }).count();
        prop_assert_eq!(ends, model.ends);
    }

    #[test]
    fn no_byte_is_lost_and_every_partial_text_is_a_beginning(
        options in options(),
        list in steps(Ids::Apart, &["A", "B"]),
    ) {
        let (_, answers) = run(options, &list);
        let mut model = Model::default();
        for (step, emissions) in list.iter().map(|(_, step)| step).chain([&Step::Close]).zip(&answers) {
            let before = model.open.clone();
            model.apply(step);
            let mut ended: BTreeMap<Key, String> = BTreeMap::new();
            for upsert in upserts(emissions) {
                let Some(content) = content(&upsert.item) else { continue };
                let key = (upsert.turn_id.to_string(), upsert.item_id.to_string());
                match &upsert.status {
                    Status::Create | Status::Update => {
                        // A timer may have fired just before the event that ended or restarted the item.
                        let mut texts = [&before, &model.open].into_iter().filter_map(|open| open.get(&key));
                        let is_beginning = texts.any(|text| text.starts_with(&content.to_string()));
                        prop_assert!(is_beginning, "{:?} is no beginning of {:?}", content, key);
                    }
                    Status::Complete { .. } | Status::Error { .. } => {
                        ended.insert(key, content.to_string());
                    }
                }
            }
            // A completed item has the content of its final event.
            let given = match step {
                Step::Event(event) => match &event.payload {
                    Payload::ItemDone(done) => Some((event.turn_id.to_string(), done.item_id.to_string())),
                    Payload::ResponseStart(_)
                    | Payload::ItemStart(_)
                    | Payload::ItemDelta(_)
                    | Payload::ItemError(_)
                    | Payload::ItemCancelled(_)
                    | Payload::ResponseDone(_)
                    | Payload::ResponseError(_) => None,
                },
                Step::Tick | Step::Close => None,
            };
            for (key, text) in &before {
                let goes_on = model.open.get(key).is_some_and(|now| now.starts_with(text.as_str()))
                    && !ended.contains_key(key);
                if goes_on || given.as_ref() == Some(key) || text.is_empty() {
                    continue;
                }
                prop_assert_eq!(ended.get(key), Some(text), "{:?} ended without all of its text", key);
            }
        }
    }

    #[test]
    fn turns_that_interleave_say_what_they_would_have_said_alone(
        options in options(),
        list in steps(Ids::Shared, &["A", "B", "C"]),
    ) {
        let of = |answers: &[Vec<Emission>], turn: &str| -> Vec<Emission> {
            let emissions = answers.iter().flatten();
            let mut own: Vec<Emission> =
                emissions.filter(|emission| emission.turn_id().as_str() == turn).cloned().collect();
            for emission in &mut own {
                match emission {
                    // The firing time of a timer depends on the other turns that make the caller read the clock.
                    Emission::Upsert(upsert) => upsert.emitted_at = at(0).wall,
                    Emission::Turn(_) => {}
                }
            }
            own
        };
        let (_, together) = run(options.clone(), &list);
        for turn in ["A", "B", "C"] {
            let mut waited = 0;
            let mut alone = Vec::new();
            for (wait, step) in &list {
                waited += wait;
                match step {
                    Step::Event(event) if event.turn_id.as_str() != turn => {}
                    Step::Event(_) | Step::Tick | Step::Close => {
                        alone.push((waited, step.clone()));
                        waited = 0;
                    }
                }
            }
            alone.push((waited, Step::Close));
            let (_, alone) = run(options.clone(), &alone);
            prop_assert_eq!(of(&together, turn), of(&alone, turn));
        }
    }

    #[test]
    fn counting_as_it_comes_gives_what_a_recount_of_the_whole_text_gives(
        thresholds in prop::collection::vec(-1..6_i64, 0..4),
        pieces in prop::collection::vec(prop_oneof![select(TEXTS).prop_map(str::to_owned), "\\PC{0,6}"], 0..40),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        let whole = pieces.concat();
        let mut borders: BTreeSet<usize> = cuts.iter().map(|cut| whole.floor_char_boundary(cut.index(whole.len() + 1))).collect();
        borders.extend([0, whole.len()]);
        let borders: Vec<usize> = borders.into_iter().collect();
        let recut: Vec<String> = borders.windows(2).map(|pair| whole[pair[0]..pair[1]].to_owned()).collect();
        let mut finals = Vec::new();
        for pieces in [&pieces, &recut] {
            let options = Options { gradient: Gradient::new(&thresholds), timers: Timers::OFF, ..Options::default() };
            let mut list = vec![(0, Step::Event(Box::new(event("A", start("a", "")))))];
            list.extend(pieces.iter().map(|piece| (0, Step::Event(Box::new(event("A", delta("a", piece)))))));
            list.push((0, Step::Event(Box::new(event("A", response_done(ResponseStatus::Completed))))));
            let (_, answers) = run(options, &list);
            let emissions = answers.concat();
            let mut shown: Vec<(&str, String)> = upserts(&emissions)
                .map(|upsert| (upsert.status.as_str(), content(&upsert.item).map(Text::to_string).unwrap_or_default()))
                .collect();
            finals.push(shown.pop());
            prop_assert_eq!(shown.into_iter().map(|(_, text)| text).collect::<Vec<_>>(), recounted(&thresholds, pieces));
        }
        prop_assert_eq!(&finals[0], &finals[1]);
        let last = finals[0].as_ref().map(|(_, text)| text.as_str());
        prop_assert_eq!(last, (!whole.is_empty()).then_some(whole.as_str()));
    }
}

/// The texts that are shown before the end, by the written rules: the whole text is counted anew each time.
fn recounted(thresholds: &[i64], pieces: &[String]) -> Vec<String> {
    let thresholds = if thresholds.is_empty() { &[10, 20, 40, 80, 120] } else { thresholds };
    let threshold = |index: usize| thresholds[index.min(thresholds.len() - 1)].max(0);
    let (mut text, mut emitted, mut index, mut shown) = (String::new(), 0, 0, Vec::new());
    for piece in pieces {
        text.push_str(piece);
        if tokens(&text) - emitted > threshold(index) {
            let mut rest = tokens(&text) - emitted;
            while threshold(index) > 0 && rest > threshold(index) {
                rest -= threshold(index);
                index += 1;
            }
            emitted = tokens(&text);
            shown.push(text.clone());
        }
    }
    if tokens(&text) > emitted {
        shown.push(text);
    }
    shown
}

fn tokens(text: &str) -> i64 {
    const SPACES: &str = "\t\n\u{B}\u{C}\r \u{A0}\u{1680}\u{2000}\u{2001}\u{2002}\u{2003}\u{2004}\u{2005}\u{2006}\
                          \u{2007}\u{2008}\u{2009}\u{200A}\u{2028}\u{2029}\u{202F}\u{205F}\u{3000}\u{FEFF}";
    assert_eq!(SPACES.chars().count(), 25);
    text.split(|c| SPACES.contains(c)).filter(|token| !token.is_empty()).count() as i64
}
