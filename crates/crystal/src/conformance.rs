//! The promises of [`Crystal`] as code: every crystal runs every case.
//!
//! A suite per crystal was rejected: it drifts toward the behaviour of that crystal. Here a crystal brings a
//! [`Subject`] and gets one test per case. It declares the behaviours that it cannot show: their cases are then skipped
//! by name, and a test fails if the declaration is wrong.
//!
//! ```
//! use cantrip_crystal::conformance::{Behaviour, Subject};
//! use cantrip_crystal::{AnyCrystal, Response, Script, ScriptedCrystal};
//!
//! struct OneWord;
//! impl Subject for OneWord {
//!     const SKIPS: &[Behaviour] = &[Behaviour::Thinking, Behaviour::Calls, Behaviour::Broken, Behaviour::Stuck];
//!     async fn crystal(&self, lesson: Behaviour) -> Option<AnyCrystal> {
//!         let script = Script::new([Response::text("hello there"), Response::text("again")]);
//!         (lesson == Behaviour::Text).then(|| AnyCrystal::new(ScriptedCrystal::new("scripted/a.yaml", script)))
//!     }
//! }
//! cantrip_crystal::conformance!(one_word, OneWord);
//! # fn main() {}
//! ```

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use cantrip_canon::{IdSource, Timestamp};
use cantrip_loom::{CallId, Message, Spawn};
use cantrip_stream::{CancelReason, FinalItem, ItemId, StartedItem};
use serde_json::json;
use tokio::sync::Notify;

use crate::{
    Answer, AnyCrystal, Caller, Crystal, EventSink, Failure, ItemEvent, MessageLog, ProgramFormat, Request,
    ToolDefinition,
};

/// The behaviour that a crystal under test shows for each of two requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// A text of several words.
    Text,
    /// Reasoning, then a text.
    Thinking,
    /// At least one call, with arguments.
    Calls,
    /// The beginning of a text, and then nothing: the answer breaks off.
    Broken,
    /// The beginning of a text, and then a long silence.
    Stuck,
}

impl Behaviour {
    pub const ALL: [Self; 5] = [Self::Text, Self::Thinking, Self::Calls, Self::Broken, Self::Stuck];
}

/// Makes crystals of one kind.
pub trait Subject: Send + Sync {
    /// The behaviours that this kind of crystal cannot show.
    const SKIPS: &[Behaviour];

    /// Returns a fresh crystal that shows this behaviour for two requests, or none if it is in [`Subject::SKIPS`].
    fn crystal(&self, lesson: Behaviour) -> impl Future<Output = Option<AnyCrystal>> + Send;
}

/// Records the events that it receives and wakes the tasks that wait for them.
#[derive(Debug, Default)]
pub struct RecordingSink {
    events: Mutex<Vec<ItemEvent>>,
    more: Notify,
}

impl EventSink for RecordingSink {
    fn emit(&self, event: ItemEvent) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        self.more.notify_one();
    }
}

impl RecordingSink {
    pub fn events(&self) -> Vec<ItemEvent> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until a delta was received.
    pub async fn wait_for_delta(&self) {
        while !self.events().iter().any(|event| matches!(event, ItemEvent::Delta(_))) {
            self.more.notified().await;
        }
    }
}

/// Returns a request of a root entity, with a tool definition and a program format. `number` seeds its ids.
pub fn sample_request(number: u64) -> Request {
    let ids = IdSource::seeded(number);
    let caller = Caller {
        entity: ids.next(Timestamp::EPOCH),
        spawned_by: None,
        request: CallId::request(ids.next(Timestamp::EPOCH)),
    };
    let list = MessageLog::new();
    list.push(Message::System { content: "You count.".into() });
    list.push(Message::User { content: "count the words".into() });
    let parameters = json!({"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]});
    let code = ToolDefinition { name: "javascript".into(), description: "Runs a program.".into(), parameters };
    Request {
        definitions: Arc::new([code]),
        program: ProgramFormat::Call { name: "javascript".into(), argument: "code".into() },
        ..Request::new(caller, list.all())
    }
}

/// Returns the request of the child that `call` spawned at `index`.
pub fn child_request(call: CallId, index: u32) -> Request {
    let request = sample_request(u64::from(index) + 1_000);
    let caller =
        Caller { entity: call.child(index), spawned_by: Some(Spawn { call_id: call, index }), ..request.caller };
    Request { caller, ..request }
}

/// Checks that the events of one attempt, together with its outcome, keep the promises.
pub fn check_events(events: &[ItemEvent], outcome: &Result<Answer, Failure>) -> Result<(), String> {
    let mut items: HashMap<&ItemId, Heading<'_>> = HashMap::new();
    let (mut content, mut thinking) = (String::new(), String::new());
    for event in events {
        let id = event.item_id();
        let known = items.get_mut(id);
        match (event, known) {
            (ItemEvent::Start(start), None) => {
                items.insert(id, Heading { started: &start.item, text: String::new(), open: true });
            }
            (ItemEvent::Start(_), Some(_)) => return Err(format!("{id} starts twice")),
            (_, None) => return Err(format!("{id} did not start: {event:?}")),
            (_, Some(item)) if !item.open => return Err(format!("{id} has ended: {event:?}")),
            (ItemEvent::Delta(delta), Some(item)) => item.text.push_str(&delta.delta_content),
            (ItemEvent::Done(done), Some(item)) => {
                item.open = false;
                match (&done.final_item, item.started) {
                    (FinalItem::Message { content: last, .. }, StartedItem::Message { .. }) if *last == *item.text => {
                        content.push_str(&item.text);
                    }
                    (FinalItem::Reasoning { content: last, .. }, StartedItem::Reasoning { .. })
                        if *last == *item.text =>
                    {
                        thinking.push_str(&item.text);
                    }
                    (FinalItem::FunctionCall(last), StartedItem::FunctionCall { name, call_id, .. })
                        if last.name == *name && last.call_id == *call_id => {}
                    (end, _) => return Err(format!("{id} ends as another item, or with another text: {end:?}")),
                }
            }
            (ItemEvent::Cancelled(cancelled), Some(item)) => {
                item.open = false;
                if cancelled.reason != Some(CancelReason::Retry) || outcome.is_ok() {
                    return Err(format!("{id} is cancelled, and not for a retry"));
                }
            }
            (ItemEvent::Error(_), Some(item)) => item.open = false,
        }
    }
    let open: HashSet<_> = items.iter().filter(|(_, item)| item.open).map(|(id, _)| *id).collect();
    match outcome {
        Err(_) if open.is_empty() => Ok(()),
        Err(_) => Err(format!("left open by a failure: {open:?}")),
        Ok(answer) => agree(answer, &items, &open, (&content, &thinking)),
    }
}

struct Heading<'a> {
    started: &'a StartedItem,
    text: String,
    open: bool,
}

fn agree(
    answer: &Answer,
    items: &HashMap<&ItemId, Heading<'_>>,
    open: &HashSet<&ItemId>,
    (content, thinking): (&str, &str),
) -> Result<(), String> {
    let said = &answer.utterance;
    if said.content.as_deref().unwrap_or_default() != content {
        return Err(format!("the answer's text is {:?}, streamed was {content:?}", said.content));
    }
    if said.thinking.as_deref().unwrap_or_default() != thinking {
        return Err(format!("the answer's thinking is {:?}, streamed was {thinking:?}", said.thinking));
    }
    let started = items.values().filter(|item| matches!(item.started, StartedItem::FunctionCall { .. })).count();
    if said.calls.len() != started || answer.call_items.len() != started {
        return Err(format!("{} calls answered, {started} streamed", said.calls.len()));
    }
    let mut unfinished = 0;
    for (call, id) in said.calls.iter().zip(&answer.call_items) {
        let Some(Heading { started: StartedItem::FunctionCall { name, call_id, .. }, open, .. }) = items.get(id) else {
            return Err(format!("{id} is the item of no call"));
        };
        if name.as_str() != call.gate || call_id.as_str() != call.tool_call_id {
            return Err(format!("{id} was streamed as {name} {call_id}, answered as {call:?}"));
        }
        if *open == call.args.is_object() {
            return Err(format!("{id} must be done exactly if its arguments are an object"));
        }
        unfinished += usize::from(*open);
    }
    if open.len() == unfinished { Ok(()) } else { Err(format!("left open: {open:?}")) }
}

/// Runs one case to its end, on its own runtime.
pub fn run<F: Future<Output = ()>>(case: F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be built").block_on(case);
}

async fn ask_and_record(crystal: &AnyCrystal, request: &Request) -> (Vec<ItemEvent>, Result<Answer, Failure>) {
    let heard = RecordingSink::default();
    let outcome = crystal.ask(request, &heard).await;
    (heard.events(), outcome)
}

/// The cases themselves, for the macro.
#[doc(hidden)]
pub mod cases {
    use super::*;

    pub async fn what_it_cannot_say_is_declared<S: Subject>(subject: S) {
        for lesson in Behaviour::ALL {
            let can = subject.crystal(lesson).await.is_some();
            assert_ne!(can, S::SKIPS.contains(&lesson), "{lesson:?}");
        }
    }

    pub async fn an_answer_is_what_was_streamed_in_order<S: Subject>(subject: S) {
        for lesson in [Behaviour::Text, Behaviour::Thinking, Behaviour::Calls] {
            let Some(crystal) = subject.crystal(lesson).await else { continue };
            let (events, outcome) = ask_and_record(&crystal, &sample_request(1)).await;
            assert_eq!(check_events(&events, &outcome), Ok(()), "{lesson:?}");
            let said = outcome.expect("the lesson is an answer").utterance;
            match lesson {
                Behaviour::Text => assert!(said.content.is_some_and(|content| content.contains(' '))),
                Behaviour::Thinking => assert!(said.thinking.is_some() && said.content.is_some()),
                Behaviour::Calls => assert!(said.calls.iter().any(|call| !call.args.is_null())),
                Behaviour::Broken | Behaviour::Stuck => {}
            }
        }
    }

    pub async fn an_answer_keeps_the_contract<S: Subject>(subject: S) {
        for lesson in [Behaviour::Text, Behaviour::Thinking, Behaviour::Calls] {
            let Some(crystal) = subject.crystal(lesson).await else { continue };
            let (_, outcome) = ask_and_record(&crystal, &sample_request(1)).await;
            let said = outcome.expect("the lesson is an answer").utterance;
            assert_eq!(crate::contract::find_violation(&said), None, "{lesson:?}");
            assert!(!said.model.is_empty(), "{lesson:?}");
        }
    }

    pub async fn a_second_attempt_takes_no_item_id_again<S: Subject>(subject: S) {
        for lesson in [Behaviour::Text, Behaviour::Thinking, Behaviour::Calls, Behaviour::Broken] {
            let Some(crystal) = subject.crystal(lesson).await else { continue };
            let request = sample_request(1);
            let (first, _) = ask_and_record(&crystal, &request).await;
            let (second, _) = ask_and_record(&crystal, &request.clone()).await;
            let ids = |events: &[ItemEvent]| -> HashSet<ItemId> {
                events.iter().map(|event| event.item_id().clone()).collect()
            };
            assert!(!first.is_empty() && !second.is_empty(), "{lesson:?}: nothing was streamed");
            assert!(ids(&first).is_disjoint(&ids(&second)), "{lesson:?}");
        }
    }

    pub async fn a_broken_answer_is_a_failure_that_leaves_nothing_open<S: Subject>(subject: S) {
        let Some(crystal) = subject.crystal(Behaviour::Broken).await else { return };
        let (events, outcome) = ask_and_record(&crystal, &sample_request(1)).await;
        assert_eq!(check_events(&events, &outcome), Ok(()));
        assert!(events.iter().any(|event| matches!(event, ItemEvent::Cancelled(_))), "{events:?}");
        assert!(crate::RetryPolicy::default().is_retryable(&outcome.expect_err("it broke off")));
    }

    pub async fn a_dropped_request_says_nothing_more<S: Subject>(subject: S) {
        let Some(crystal) = subject.crystal(Behaviour::Stuck).await else { return };
        let (heard, request) = (RecordingSink::default(), sample_request(1));
        tokio::select! { biased;
            outcome = crystal.ask(&request, &heard) => panic!("it was to be stuck: {outcome:?}"),
            () = heard.wait_for_delta() => {}
        }
        let before = heard.events();
        tokio::task::yield_now().await;
        assert_eq!(heard.events(), before);
        assert!(!before.iter().any(|event| matches!(event, ItemEvent::Done(_) | ItemEvent::Cancelled(_))));
    }

    pub async fn a_stuck_request_holds_up_no_other<S: Subject>(subject: S) {
        let Some(crystal) = subject.crystal(Behaviour::Stuck).await else { return };
        let (first, second) = (RecordingSink::default(), RecordingSink::default());
        let requests = (sample_request(1), sample_request(2));
        tokio::select! { biased;
            outcome = crystal.ask(&requests.0, &first) => panic!("it was to be stuck: {outcome:?}"),
            outcome = crystal.ask(&requests.1, &second) => panic!("it was to be stuck: {outcome:?}"),
            () = async { first.wait_for_delta().await; second.wait_for_delta().await } => {}
        }
    }
}

macro_rules! cases {
    ($dollar:tt $($case:ident),+ $(,)?) => {
        /// The name of every case.
        pub const CASES: &[&str] = &[$(stringify!($case)),+];

        /// Makes a module `name` with one test per case against what `maker` gives, made anew for each.
        #[macro_export]
        macro_rules! conformance {
            ($dollar name:ident, $dollar maker:expr) => {
                mod $dollar name {
                    #[allow(unused_imports)]
                    use super::*;

                    const RUN: &[&str] = &[$(stringify!($case)),+];

                    $(#[test]
                    fn $case() {
                        $dollar crate::conformance::run($dollar crate::conformance::cases::$case($dollar maker));
                    })+

                    #[test]
                    fn no_case_is_missing() {
                        assert_eq!(RUN, $dollar crate::conformance::CASES);
                    }
                }
            };
        }
    };
}

cases! { $
    what_it_cannot_say_is_declared,
    an_answer_is_what_was_streamed_in_order,
    an_answer_keeps_the_contract,
    a_second_attempt_takes_no_item_id_again,
    a_broken_answer_is_a_failure_that_leaves_nothing_open,
    a_dropped_request_says_nothing_more,
    a_stuck_request_holds_up_no_other,
}
