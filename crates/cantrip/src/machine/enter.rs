//! From a call that the circle allows to what carries it out: policy is asked, then money, and only then does it start.

use cantrip_circle::{Delegation, Permit};
use cantrip_loom::Error;
use cantrip_reply::Refusal;
use cantrip_spend::ReservationId;
use serde_json::Value;

use super::act::Asks;
use super::{Effect, Machine, World, Worst};

/// Calls that passed the checks of the circle, in call order, on their way through policy and money.
#[derive(Debug)]
pub(super) struct Entering {
    entries: Vec<Entry>,
    stage: Clearing,
    /// Of the entries that cost something, in their order.
    reservations: std::vec::IntoIter<Option<ReservationId>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clearing {
    Authorize,
    Reserve,
    Cleared,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Entry {
    pub asks: Asks,
    pub way: Way,
}

/// What becomes of it once nobody objects.
#[derive(Debug)]
pub(super) enum Way {
    /// Already refused; it keeps its place among the others.
    Refused(Refusal),
    Enter(Permit),
    Done(Value),
    Delegate(Delegation),
}

impl Entry {
    fn is_refused(&self) -> bool {
        match self.way {
            Way::Refused(_) => true,
            Way::Enter(_) | Way::Done(_) | Way::Delegate(_) => false,
        }
    }

    fn cost(&self) -> Option<cantrip_canon::Money> {
        match &self.way {
            Way::Enter(permit) => permit.worst_cost(),
            Way::Refused(_) | Way::Done(_) | Way::Delegate(_) => None,
        }
    }
}

/// Whether a gate needs no record before it is entered: what it answers follows from its arguments, it brings nothing
/// in and costs nothing, so nobody has to know that it was entered.
pub(super) fn is_silent(permit: &Permit) -> bool {
    let promises = permit.gate().promises();
    promises.is_pure() && promises.labels.is_empty() && permit.worst_cost().is_none()
}

impl Machine {
    /// Calls that may begin together, as far as the circle is concerned.
    pub(super) fn clear(&mut self, entries: Vec<Entry>) {
        let stage = if entries.iter().all(Entry::is_refused) { Clearing::Cleared } else { Clearing::Authorize };
        self.entering = Some(Entering { entries, stage, reservations: Vec::new().into_iter() });
    }

    /// The next step of the calls that are on their way in, if any are.
    pub(super) fn entering(&mut self, world: &World<'_>) -> Result<Option<Effect>, Error> {
        let Some(entering) = self.entering.take() else { return Ok(None) };
        let stage = entering.stage;
        match stage {
            Clearing::Authorize | Clearing::Reserve => {
                let group = self.group()?;
                let call = |entry: &Entry| group.call_id(entry.asks.number);
                let effect = match stage {
                    Clearing::Authorize => {
                        let asked = entering.entries.iter().filter(|entry| !entry.is_refused());
                        Effect::Authorize(asked.map(call).collect())
                    }
                    Clearing::Reserve | Clearing::Cleared => {
                        let costly = entering.entries.iter().filter_map(|entry| Some((entry, entry.cost()?)));
                        let worst =
                            costly.map(|(entry, cost)| Worst { call: call(entry), cost: Some(cost), tokens: None });
                        Effect::Reserve(worst.collect())
                    }
                };
                self.entering = Some(entering);
                Ok(Some(effect))
            }
            Clearing::Cleared => self.entered(entering, world).map(Some),
        }
    }

    pub(super) fn entry_authorized(&mut self) -> Result<(), Error> {
        let fault = self.incoherent("started", "no call was about to begin");
        let entering = self.entering.as_mut().ok_or(fault)?;
        let costs = entering.entries.iter().any(|entry| entry.cost().is_some());
        entering.stage = if costs { Clearing::Reserve } else { Clearing::Cleared };
        Ok(())
    }

    pub(super) fn entry_reserved(&mut self, reservations: Vec<Option<ReservationId>>) -> Result<(), Error> {
        let fault = self.incoherent("started", "no call was about to begin");
        let entering = self.entering.as_mut().ok_or(fault)?;
        entering.reservations = reservations.into_iter();
        entering.stage = Clearing::Cleared;
        Ok(())
    }

    /// Nobody objects: the calls begin.
    fn entered(&mut self, entering: Entering, world: &World<'_>) -> Result<Effect, Error> {
        let Entering { entries, mut reservations, .. } = entering;
        let mut works = Vec::with_capacity(entries.len());
        for entry in entries {
            let reservation = entry.cost().and_then(|_| reservations.next()).flatten();
            let Entry { asks, way } = entry;
            works.push(match way {
                Way::Refused(refusal) => self.refuse(&asks, refusal)?,
                Way::Enter(permit) => self.enter(&asks, permit, reservation, world)?,
                Way::Done(answer) => self.finish(&asks, answer, world)?,
                Way::Delegate(delegation) => return self.delegate(&asks, delegation, world),
            });
        }
        Ok(Effect::Execute(works))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use cantrip_canon::{IdSource, Instant, Money, Now, Timestamp};
    use cantrip_circle::gate::{Call, Gate, Promises, builtin};
    use cantrip_circle::medium::Conversation;
    use cantrip_crystal::{Answer, Script, Scripted};
    use cantrip_loom::{Content, Event, Fault, Finish, GateCall, Held, Intent, ReplyMark, Utterance};
    use cantrip_reply::{Filled, Refusal, Success, codes};
    use cantrip_spend::{AuthorizationRef, CallKey, ReservationId};
    use serde_json::{Map, Value, json};

    use crate::Cantrip;
    use crate::entity::nothing_yet;
    use crate::machine::{Effect, Facts, Happened, Machine, Medium, Words, Worked, World};

    /// A gate that costs money each time.
    struct Costly(Promises);

    impl Gate for Costly {
        fn promises(&self) -> &Promises {
            &self.0
        }
        fn worst_cost(&self, _: &Map<String, Value>) -> Option<Money> {
            Some("0.05 USD".parse().expect("an amount"))
        }
        async fn call(&self, _: Call) -> Result<Filled<Success>, Refusal> {
            unreachable!("the machine enters nothing")
        }
    }

    struct Mute;

    impl Words for Mute {
        fn fault(&self, refusal: Refusal) -> Fault {
            Fault { mark: refusal.code().into(), message: refusal.code().as_str().to_owned() }
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

    #[test]
    fn policy_is_asked_about_every_call_and_money_about_those_that_cost_before_anything_starts() {
        let ids = IdSource::seeded(1);
        let parameters = json!({"type": "object", "properties": {}});
        let costly = || Costly(Promises::new("costly", "Costs.", parameters.clone()));
        let cantrip = Cantrip::builder()
            .crystal(Scripted::new("scripted/none", Script::new([])))
            .gate(builtin::done())
            .gate(builtin::echo())
            .gate(costly())
            .ward("max_turns", 3)
            .build()
            .expect("sound");
        let now = Now { monotonic: Instant::from_origin(Duration::from_secs(1)), wall: Timestamp::EPOCH };
        let content = Content::from("go");
        let facts = Facts {
            run: ids.next(now.wall),
            entity: ids.next(now.wall),
            cast: ids.next(now.wall),
            circle: cantrip.circle().clone(),
            medium: Medium(Arc::new(Conversation)),
            parks: false,
            askable: false,
            about: Intent::New(Held::Inline { inline: content.clone() }),
            intent: content,
            environment: None,
            scope: String::new(),
            cantrip: cantrip.clone(),
        };
        let run = facts.run;
        let mut machine = Machine::new(Arc::new(facts), nothing_yet(&cantrip, None));
        let world = World {
            now,
            ids: &ids,
            words: &Mute,
            tokens_left: None,
            money_left: None,
            payer: None,
            elapsed: Duration::ZERO,
        };
        let calls = [("echo", json!({"text": 1})), ("costly", json!({})), ("done", json!({"answer": 2}))];
        let mut told = Vec::new();
        let mut started = Vec::new();
        loop {
            let what = match machine.next(&world).expect("coherent") {
                Effect::Authorize(calls) => {
                    told.push(format!("authorize {}", numbers(calls.iter().map(|call| call.number()))));
                    Happened::Authorized
                }
                Effect::Reserve(worst) => {
                    let costs: Vec<String> = worst
                        .iter()
                        .map(|worst| worst.cost.map_or("free".to_owned(), |cost| cost.to_string()))
                        .collect();
                    let calls = numbers(worst.iter().map(|worst| worst.call.number()));
                    told.push(format!("reserve {calls} {}", costs.join(",")));
                    let key = CallKey::new("one").expect("a short name");
                    let reservation = ReservationId::of(AuthorizationRef::Local, run, &key, 1);
                    Happened::Reserved(worst.iter().map(|worst| worst.cost.map(|_| reservation.clone())).collect())
                }
                Effect::Append { events, .. } => {
                    for (_, event) in events {
                        if let Event::Started(start) = event {
                            started.push((start.call_id.number(), start.reservation_id.is_some()));
                        }
                    }
                    continue;
                }
                Effect::Ask(_) => Happened::Answered(said(&calls)),
                Effect::Execute(works) => {
                    told.push(format!("execute {}", numbers(works.iter().map(|work| work.number))));
                    let worked = works.iter().map(|work| Worked {
                        number: work.number,
                        reply: ReplyMark::from(codes::GATE_OK.any()),
                        result: json!(2),
                        data: Map::new(),
                        duration_ms: 0,
                        changes: Vec::new(),
                        bodies: Vec::new(),
                        cost: None,
                        clock: now.wall,
                        score: None,
                    });
                    Happened::Worked(worked.collect())
                }
                Effect::Finish => break,
                other @ (Effect::Summarise(_)
                | Effect::Sleep(_)
                | Effect::Spawn(_)
                | Effect::RunProgram(_)
                | Effect::ResumeProgram { .. }
                | Effect::CancelProgram
                | Effect::WaitApproval { .. }
                | Effect::Park(_)) => panic!("{other:?}"),
            };
            machine.happened(what, &world).expect("coherent");
        }
        assert_eq!(
            told,
            [
                "authorize 0",
                "reserve 0 free",
                "authorize 1",
                "execute 1",
                "authorize 2",
                "reserve 2 0.05 USD",
                "execute 2",
                "authorize 3",
                "execute 3",
            ]
        );
        assert_eq!(started, [(2, true)], "what was reserved stands in the record of the start");
    }

    fn numbers(calls: impl Iterator<Item = u32>) -> String {
        calls.map(|number| number.to_string()).collect::<Vec<_>>().join(",")
    }
}
