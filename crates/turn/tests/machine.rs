//! The machine by itself: the effects that it requests, in their order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::{IdSource, Instant, Money, Now, Timestamp};
use cantrip_circle::Circle;
use cantrip_circle::gate::{Call, Gate, GateSpec, builtin};
use cantrip_circle::medium::Conversation;
use cantrip_crystal::{Answer, Price, Profile, RetryPolicy};
use cantrip_loom::{Content, Event, Finish, GateCall, IntentRecord, RecordValue, RecordedError, ReplyMark, Utterance};
use cantrip_reply::{Refusal, ReplyDraft, Success, codes};
use serde_json::{Map, Value, json};

use cantrip_turn::fold::FoldOptions;
use cantrip_turn::list::MessageList;
use cantrip_turn::{
    Call as Conditioning, CallOutcome, CastFacts, CastMedium, CrystalFacts, Definition, Effect, EndedProgram,
    EntityHistory, Funds, Input, Machine, OtherCrystals, RefusalWording, Settings, StepContext,
};

/// A gate that costs money each time.
struct Costly(GateSpec);

impl Gate for Costly {
    fn spec(&self) -> &GateSpec {
        &self.0
    }
    fn worst_cost(&self, _: &Map<String, Value>) -> Option<Money> {
        Some("0.05 USD".parse().expect("an amount"))
    }
    async fn call(&self, _: Call) -> Result<ReplyDraft<Success>, Refusal> {
        unreachable!("the machine enters nothing")
    }
}

struct Mute;

impl RefusalWording for Mute {
    fn render_fault(&self, refusal: Refusal) -> RecordedError {
        RecordedError::new(refusal.code(), refusal.code().as_str())
    }

    fn program_reply(&self, _: &EndedProgram<'_>, answer: Result<ReplyDraft<Success>, Refusal>) -> RecordedError {
        let code = answer.map_or_else(|refusal| refusal.code(), |filled| filled.code());
        RecordedError::new(code, code.as_str())
    }

    fn redact(&self, text: &str) -> String {
        text.to_owned()
    }
}

fn said(calls: &[(&str, Value)]) -> Answer {
    let calls = calls.iter().enumerate().map(|(at, (gate, args))| GateCall {
        tool_call_id: format!("c{at}"),
        gate: (*gate).to_owned(),
        args: args.clone(),
    });
    let utterance = Utterance {
        content: None,
        calls: calls.collect(),
        thinking: None,
        parts: None,
        model: "mute".to_owned(),
        finish: Finish::Calls,
    };
    Answer { utterance, usage: None, call_items: Vec::new() }
}

fn definition(circle: Circle) -> Definition {
    let crystal = CrystalFacts { name: "scripted/none".to_owned(), profile: Profile::default(), price: Price::Free };
    let others = OtherCrystals {
        fallback: Vec::new(),
        offered: BTreeMap::new(),
        summariser: None,
        reported_profile: crystal.profile,
    };
    let settings = Settings {
        name: None,
        crystal,
        others,
        call: Conditioning::new(),
        circle,
        mediums: BTreeSet::new(),
        folding: FoldOptions::default(),
        retry: RetryPolicy::default(),
        park: true,
        whole: false,
        fenced: false,
        verified: false,
    };
    Definition::new(settings).expect("sound")
}

#[test]
fn policy_is_asked_about_every_call_before_anything_starts() {
    let ids = IdSource::seeded(1);
    let parameters = json!({"type": "object", "properties": {}});
    let costly = || Costly(GateSpec::new("costly", "Costs.", parameters.clone()));
    let circle = Circle::builder().gate(builtin::done()).gate(builtin::echo()).gate(costly());
    let circle = circle.wards(&json!({"max_turns": 3})).build().expect("sound");
    let definition = Arc::new(definition(circle.clone()));
    let now = Now { monotonic: Instant::from_origin(Duration::from_secs(1)), wall: Timestamp::EPOCH };
    let content = Content::from("go");
    let facts = CastFacts {
        run: ids.next(now.wall),
        entity: ids.next(now.wall),
        cast: ids.next(now.wall),
        circle,
        medium: CastMedium(Arc::new(Conversation)),
        parks: false,
        askable: false,
        intent_record: IntentRecord::New(RecordValue::Inline { inline: content.clone() }),
        intent: content,
        environment: None,
        cancelled: Vec::new(),
        scope: String::new(),
        definition: Arc::clone(&definition),
    };
    let mut machine = Machine::new(Arc::new(facts), EntityHistory::empty(MessageList::new(definition.frame(None))));
    let world = StepContext {
        now,
        ids: &ids,
        words: &Mute,
        tokens_left: None,
        money_left: None,
        funds: Funds::NoLedger,
        elapsed: Duration::ZERO,
    };
    let calls = [("echo", json!({"text": 1})), ("costly", json!({})), ("done", json!({"answer": 2}))];
    let mut told = Vec::new();
    let mut started = Vec::new();
    loop {
        let what = match machine.next(&world).expect("coherent") {
            Effect::Authorize(calls) => {
                told.push(format!("authorize {}", numbers(calls.iter().map(|asked| asked.call.number()))));
                Input::Authorized(Vec::new())
            }
            Effect::Reserve(worst) => {
                let calls = numbers(worst.iter().map(|worst| worst.call.number()));
                told.push(format!("reserve {calls}"));
                Input::Reserved
            }
            Effect::Append { events, .. } => {
                for (_, event) in events {
                    if let Event::Started(start) = event {
                        started.push((start.call_id.number(), start.reservation_id.is_some()));
                    }
                }
                continue;
            }
            Effect::Ask(_) => Input::Answered(said(&calls)),
            Effect::Execute(works) => {
                told.push(format!("execute {}", numbers(works.iter().map(|work| work.number))));
                let worked = works.iter().map(|work| CallOutcome {
                    number: work.number,
                    reply: ReplyMark::from(codes::GATE_OK.any()),
                    result: json!(2),
                    data: Map::new(),
                    duration_ms: 0,
                    changes: Vec::new(),
                    bodies: Vec::new(),
                    cost: None,
                    correlation: None,
                    doubt: None,
                    unbegun: false,
                    clock: now.wall,
                    score: None,
                });
                Input::CallsDone(worked.collect())
            }
            Effect::Finish => break,
            other @ (Effect::Sleep(_)
            | Effect::Spawn(_)
            | Effect::RunProgram(_)
            | Effect::ResumeProgram { .. }
            | Effect::CancelProgram
            | Effect::WaitApproval { .. }
            | Effect::Prepare(_)
            | Effect::Park { .. }) => panic!("{other:?}"),
        };
        machine.handle_input(what, &world).expect("coherent");
    }
    assert_eq!(
        told,
        [
            "authorize 0",
            "reserve 0",
            "authorize 1",
            "execute 1",
            "authorize 2",
            "execute 2",
            "authorize 3",
            "execute 3",
        ]
    );
    assert_eq!(started, [(2, false)], "where nobody keeps a ledger nothing is reserved");
}

fn numbers(calls: impl Iterator<Item = u32>) -> String {
    calls.map(|number| number.to_string()).collect::<Vec<_>>().join(",")
}
