//! What is asked of a crystal: what it may use is put aside, its images are at hand, and what it used is booked.

use std::sync::Arc;

use cantrip_canon::TurnId;
use cantrip_crystal::{
    Answer, AnyCrystal, Caller, Charge, Choice, Crystal, Failure, ItemIds, Messages, Plan, Price, Program, Request,
    Silence,
};
use cantrip_loom::{BodyRef, Content, Journal, Message, Part};
use cantrip_reply::{ReplyType, telling};
use tokio::time::Instant;
use tracing::Instrument;

use super::tokens::Hold;
use super::{Loaded, Seat, Stopped};
use crate::events::{Retrying, Waited};
use crate::machine::{Asked, Facts, Happened, Summary, Worst};
use crate::telemetry::{Asking, Chat};

impl Seat {
    /// Where no money is kept everything is free; what a request can use of the tree's tokens is put aside. One that
    /// only others of its tree stand against waits until something of theirs is settled.
    /// Nothing if the cast is to rest meanwhile.
    pub(super) async fn reserve(&mut self, calls: &[Worst]) -> Option<Happened> {
        let free = || Some(Happened::Reserved);
        let Some(amount) = calls.iter().find_map(|worst| worst.tokens) else { return free() };
        let tokens = Arc::clone(&self.run.tokens);
        let moved = tokens.moved();
        tokio::pin!(moved);
        // Listens before it looks, so that nothing is settled between the two unnoticed.
        moved.as_mut().enable();
        match tokens.hold(self.entity(), amount, self.ticket.take()) {
            Ok(hold) => {
                self.hold = Some(hold);
                free()
            }
            Err(hindered) => {
                self.ticket = Some(hindered.ticket);
                if hindered.waits {
                    tokio::select! { biased;
                        _ = self.halting.halted() => self.ticket = None,
                        () = self.halting.pausing() => return None,
                        () = moved => {}
                    }
                }
                Some(Happened::Waited)
            }
        }
    }

    /// What the crystal answered; nothing if the cast is to rest, and then the request is dropped.
    pub(super) async fn ask(&mut self, asked: Asked) -> Result<Option<Happened>, Stopped> {
        let Asked { turn, call, place, tries, before, messages, output_tokens } = asked;
        let bodies = self.images(&messages).await?;
        let facts = Arc::clone(self.machine.facts());
        let cantrip = &facts.cantrip;
        self.stage.asks(turn);
        let items = match &self.items {
            Some((of, items)) if *of == turn => items.clone(),
            Some(_) | None => {
                let items = ItemIds::after(&call, before);
                self.items = Some((turn, items.clone()));
                items
            }
        };
        let request = Request {
            messages,
            definitions: Arc::clone(&self.definitions),
            choice: cantrip.choice_at(place),
            program: self.program(&facts),
            output_tokens_max: output_tokens,
            sampling: cantrip.call().samples().clone(),
            thinking: cantrip.call().thinks(),
            format: None,
            // Who stands in has a window of its own.
            window: cantrip.profile().window.filter(|_| place == 0),
            caller: Caller { entity: facts.entity, spawned_by: self.spawned_by, request: call },
            utterances: self.machine.utterances(),
            items,
            bodies,
        };
        let heard = self.stage.sink(turn);
        let hold = self.hold.take();
        let crystal = cantrip.crystal_at(place);
        let (chat, began) = (self.chat(crystal, &request), Instant::now());
        let asking = crystal.ask(&request, &heard).instrument(chat.span());
        let answered = tokio::select! { biased;
            answered = telling(chat.context().cloned(), self.run.runtime.traced(), asking) => answered,
            // What it would have used nobody will know; what was put aside is given back.
            _ = self.halting.halted() => {
                chat.given_up(&self.run.runtime);
                return Ok(Some(Happened::Interrupted));
            }
            () = self.halting.pausing() => {
                chat.given_up(&self.run.runtime);
                return Ok(None);
            }
        };
        let price = cantrip.price_at(place);
        self.waited(began, &answered);
        chat.answered(&self.run.runtime, &price, &answered);
        self.settle(hold, &price, &answered);
        Ok(Some(match answered {
            Ok(answer) => {
                self.stage.answered(&answer.call_items);
                Happened::Answered(answer)
            }
            Err(failure) => self.failed(failure, tries, Some(turn)),
        }))
    }

    /// How long a request took, for those who count.
    fn waited(&self, began: Instant, answered: &Result<Answer, Failure>) {
        let reply = match answered {
            Ok(_) => ReplyType::Success,
            Err(failure) => failure.code().reply_type(),
        };
        self.run.runtime.waited(Waited::Crystal { reply, took: began.elapsed() });
    }

    /// What is told of a request that is about to leave.
    fn chat(&self, crystal: &AnyCrystal, request: &Request) -> Chat {
        let asking = Asking {
            trace: &self.run.trace,
            run: self.run.id,
            entity: request.caller.entity,
            call: request.caller.request,
            crystal: crystal.name(),
            output_tokens: request.output_tokens_max,
            sampling: Some(&request.sampling),
            messages: &request.messages,
        };
        self.scope.chat(&self.run.runtime, asking)
    }

    /// What was put aside for a request is given back, and what it used is booked with everyone above.
    fn settle(&self, hold: Option<Hold>, price: &Price, answered: &Result<Answer, Failure>) {
        let usage = match answered {
            Ok(answer) => answer.usage,
            Err(failure) => match failure.charge {
                Charge::Reported(usage) => Some(usage),
                Charge::Nothing | Charge::Unknown => None,
            },
        };
        let used = usage.map_or(0, |usage| usage.total_tokens());
        let cost =
            usage.and_then(|usage| price.cost(&usage)).filter(|cost| cost.currency() == self.run.purse.currency());
        self.run.purse.charge(self.entity(), cost.map_or(0, |cost| u64::try_from(cost.micros()).unwrap_or(0)));
        match hold {
            Some(hold) => hold.settle(used),
            None => self.run.tokens.charge(self.entity(), used),
        }
    }

    /// What follows a failed attempt, with the deadline at hand.
    fn failed(&self, failure: Failure, tries: u32, turn_id: Option<TurnId>) -> Happened {
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let now = self.run.runtime.now().wall;
        let chance = self.run.runtime.ids().next_bits(now) as u64;
        let retry = self.machine.facts().cantrip.retry();
        let plan: Plan = retry.plan(&failure, tries, left, chance);
        if let Plan::Again(after) = plan {
            let cause = self.run.runtime.guard().redactor().text(&failure.cause.to_string()).into_owned();
            let (attempt, attempts_max) = (tries.saturating_add(1), retry.max_retries.saturating_add(1));
            let crystal = failure.crystal.to_string();
            self.run.runtime.retrying(Retrying { turn_id, crystal, attempt, attempts_max, after, cause });
        }
        Happened::Failed(failure, plan)
    }

    /// A crystal reads what is folded. Nobody is shown what it says: it is no part of the turn.
    pub(super) async fn summarise(&mut self, summary: Summary) -> Option<Happened> {
        let Summary { call, tries, messages, output_tokens } = summary;
        let facts = Arc::clone(self.machine.facts());
        let request = Request {
            choice: Choice::None,
            output_tokens_max: output_tokens,
            utterances: self.machine.utterances(),
            ..Request::new(Caller { entity: facts.entity, spawned_by: self.spawned_by, request: call }, messages)
        };
        let hold = self.hold.take();
        let crystal = facts.cantrip.summarises();
        let (chat, began) = (self.chat(crystal, &request), Instant::now());
        let asking = crystal.ask(&request, &Silence).instrument(chat.span());
        let answered = tokio::select! { biased;
            answered = telling(chat.context().cloned(), self.run.runtime.traced(), asking) => answered,
            _ = self.halting.halted() => {
                chat.given_up(&self.run.runtime);
                return Some(Happened::Interrupted);
            }
            () = self.halting.pausing() => {
                chat.given_up(&self.run.runtime);
                return None;
            }
        };
        let price = facts.cantrip.summary_price();
        self.waited(began, &answered);
        chat.answered(&self.run.runtime, &price, &answered);
        self.settle(hold, &price, &answered);
        Some(match answered {
            Ok(answer) => Happened::Answered(answer),
            Err(failure) => self.failed(failure, tries, None),
        })
    }

    /// The images that the list names, read once a cast: only intents bring images. One that is gone is no request.
    async fn images(&mut self, messages: &Messages) -> Result<Arc<Loaded>, Stopped> {
        if let Some(images) = &self.images {
            return Ok(Arc::clone(images));
        }
        let mut loaded = Loaded::default();
        for image in self.machine.images() {
            match self.run.runtime.loom().body(image.hash).await {
                Ok(body) => {
                    loaded.0.insert(image.hash, Arc::clone(body.bytes()));
                }
                // What was folded is not sent.
                Err(_) if !messages.iter().any(|message| shows(message, image)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let loaded = Arc::new(loaded);
        self.images = Some(Arc::clone(&loaded));
        Ok(loaded)
    }

    /// How the circle takes a program, for crystals that say one themselves.
    fn program(&self, facts: &Facts) -> Program {
        let medium = facts.circle.medium();
        match (medium.is_code(), facts.cantrip.mode()) {
            (false, _) => Program::None,
            (true, cantrip_loom::Mode::Tool) => {
                Program::Call { name: medium.as_str().to_owned(), argument: "code".to_owned() }
            }
            (true, cantrip_loom::Mode::Fenced) => Program::Fenced { language: medium.as_str().to_owned() },
        }
    }
}

/// Whether a message shows this image.
fn shows(message: &Message, image: &BodyRef) -> bool {
    match message {
        Message::User { content: Content::Parts(parts) } => parts.iter().any(|part| match part {
            Part::Image { image: shown, .. } => shown == image,
            Part::Text { .. } => false,
        }),
        Message::User { content: Content::Text(_) }
        | Message::System { .. }
        | Message::Assistant { .. }
        | Message::Tool { .. } => false,
    }
}
