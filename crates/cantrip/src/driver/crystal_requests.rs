//! Requests to a crystal: the tokens that a request may use are held, its images are loaded, and its usage is charged.

use std::sync::Arc;

use cantrip_canon::TurnId;
use cantrip_crystal::{
    Answer, AnyCrystal, Caller, Charge, Crystal, EventSink, Failure, ItemIds, Messages, NullSink, Price, ProgramFormat,
    Request, RetryDecision, ToolChoice,
};
use cantrip_loom::{BodyRef, Content, Journal, Message, Part};
use cantrip_reply::ReplyType;
use tokio::time::Instant;
use tracing::Instrument;

use super::token_budget::TokenHold;
use super::{EntityDriver, LoadedBodies};
use crate::events::{RetryNotice, WaitTime};
use crate::runtime_error::RunError;
use crate::telemetry::{ChatSpan, ChatSpanStart};
use cantrip_turn::{CastFacts, CrystalRequest, Input, RequestPurpose, WorstCase};

impl EntityDriver {
    /// Holds the tokens that a request can use of the tree's budget. Without a ledger no money is reserved. If only
    /// requests of the same tree are in the way, this function waits until one of them is settled. Returns `None` if
    /// the cast is paused meanwhile.
    pub(super) async fn reserve(&mut self, calls: &[WorstCase]) -> Option<Input> {
        let free = || Some(Input::Reserved);
        let Some(amount) = calls.iter().find_map(|worst| worst.tokens) else { return free() };
        let tokens = Arc::clone(&self.run.tokens);
        let moved = tokens.settlement();
        tokio::pin!(moved);
        // Subscribes before it checks, so that no settlement between the two is missed.
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
                        _ = self.halting.wait_halted() => self.ticket = None,
                        () = self.halting.wait_paused() => return None,
                        () = moved => {}
                    }
                }
                Some(Input::Waited)
            }
        }
    }

    /// Sends the request and returns the answer of the crystal; `None` if the cast is paused, and then the request is
    /// dropped.
    pub(super) async fn ask(&mut self, asked: CrystalRequest) -> Result<Option<Input>, RunError> {
        let CrystalRequest { purpose, call, tries, messages, output_tokens } = asked;
        let (facts, cantrip) = (Arc::clone(self.machine.facts()), self.cantrip.clone());
        let caller = Caller { entity: facts.entity, spawned_by: self.spawned_by, request: call };
        let request = Request {
            output_tokens_max: output_tokens,
            utterances: self.machine.utterances(),
            ..Request::new(caller, messages)
        };
        let (request, crystal, price, turn) = match purpose {
            RequestPurpose::Turn { turn, place, before } => {
                let request = self.turn_request(request, turn, place, before).await?;
                (request, cantrip.crystal_at(place), facts.definition.crystal_at(place).price, Some(turn))
            }
            RequestPurpose::Summary => {
                let request = Request { choice: ToolChoice::None, ..request };
                (request, cantrip.folding_crystal(), facts.definition.summariser().price, None)
            }
        };
        // A summary is not shown to watchers, because it is not part of a turn.
        let watched = turn.map(|turn| self.stage.sink(turn));
        let heard: &dyn EventSink = watched.as_ref().map_or(&NullSink, |watched| watched);
        let hold = self.hold.take();
        let (chat, began) = (self.start_chat_span(crystal, &request), Instant::now());
        let asking = crystal.ask(&request, heard).instrument(chat.span());
        let answered = tokio::select! { biased;
            answered = cantrip_trace::scope_with_hosts(chat.context().cloned(), self.run.runtime.traced_hosts(), asking) => answered,
            // The usage of a dropped request cannot be known; the held tokens are released.
            _ = self.halting.wait_halted() => {
                chat.abandon(&self.run.runtime);
                return Ok(Some(Input::Interrupted));
            }
            () = self.halting.wait_paused() => {
                chat.abandon(&self.run.runtime);
                return Ok(None);
            }
        };
        self.report_crystal_wait(began, &answered);
        chat.finish(&self.run.runtime, &price, &answered);
        self.settle(hold, &price, &answered);
        Ok(Some(match answered {
            Ok(answer) => {
                if turn.is_some() {
                    self.stage.set_call_items(&answer.call_items);
                }
                Input::Answered(answer)
            }
            Err(failure) => self.failure_input(failure, tries, turn),
        }))
    }

    /// Completes the request for a turn: with its tools and settings, its images and the ids of its items.
    async fn turn_request(
        &mut self,
        request: Request,
        turn: TurnId,
        place: usize,
        before: u32,
    ) -> Result<Request, RunError> {
        let bodies = self.images(&request.messages).await?;
        let facts = Arc::clone(self.machine.facts());
        let definition = &facts.definition;
        self.stage.begin_group(turn);
        let items = match &self.items {
            Some((of, items)) if *of == turn => items.clone(),
            Some(_) | None => {
                let items = ItemIds::after(&request.caller.request, before);
                self.items = Some((turn, items.clone()));
                items
            }
        };
        Ok(Request {
            definitions: Arc::clone(&self.definitions),
            choice: definition.choice_at(place),
            program: self.program(&facts),
            sampling: definition.call().sampling_settings().clone(),
            thinking: definition.call().thinking(),
            // A fallback crystal has its own window.
            window: definition.profile().window.filter(|_| place == 0),
            items,
            bodies,
            ..request
        })
    }

    /// Reports the duration of a request to the watcher.
    fn report_crystal_wait(&self, began: Instant, answered: &Result<Answer, Failure>) {
        let reply = match answered {
            Ok(_) => ReplyType::Success,
            Err(failure) => failure.code().reply_type(),
        };
        self.run.runtime.watch(|watcher| watcher.on_wait(WaitTime::Crystal { reply, took: began.elapsed() }));
    }

    /// Starts the span of a request that is about to be sent.
    fn start_chat_span(&self, crystal: &AnyCrystal, request: &Request) -> ChatSpan {
        let asking = ChatSpanStart {
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

    /// Releases the tokens that were held for a request, and charges its usage to the entity and all its ancestors.
    fn settle(&self, hold: Option<TokenHold>, price: &Price, answered: &Result<Answer, Failure>) {
        let usage = match answered {
            Ok(answer) => answer.usage,
            Err(failure) => match failure.charge {
                Charge::Reported(usage) => Some(usage),
                Charge::Nothing | Charge::Unknown => None,
            },
        };
        let used = usage.map_or(0, |usage| usage.total_tokens());
        let cost =
            usage.and_then(|usage| price.cost(&usage)).filter(|cost| cost.currency() == self.run.funds.currency());
        self.run.funds.charge(self.entity(), cost.map_or(0, |cost| u64::try_from(cost.micros()).unwrap_or(0)));
        match hold {
            Some(hold) => hold.settle(used),
            None => self.run.tokens.charge(self.entity(), used),
        }
    }

    /// Returns the input that follows a failed attempt, with the time left until the deadline.
    fn failure_input(&self, failure: Failure, tries: u32, turn_id: Option<TurnId>) -> Input {
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let now = self.run.runtime.now().wall;
        let chance = self.run.runtime.ids().next_bits(now) as u64;
        let retry = self.machine.facts().definition.retry();
        let plan: RetryDecision = retry.decide(&failure, tries, left, chance);
        if let RetryDecision::Again(after) = plan {
            let cause = self.run.runtime.guard().redactor().redact_text(&failure.cause.to_string()).into_owned();
            let (attempt, attempts_max) = (tries.saturating_add(1), retry.max_retries.saturating_add(1));
            let crystal = failure.crystal.to_string();
            let retrying = RetryNotice { turn_id, crystal, attempt, attempts_max, after, cause };
            self.run.runtime.watch(|watcher| watcher.on_retry(retrying));
        }
        Input::Failed(failure, plan)
    }

    /// Loads the images that the list refers to, once per cast: only intents bring images. If an image is missing, no
    /// request is sent.
    async fn images(&mut self, messages: &Messages) -> Result<Arc<LoadedBodies>, RunError> {
        if let Some(images) = &self.images {
            return Ok(Arc::clone(images));
        }
        let mut loaded = LoadedBodies::default();
        for image in self.machine.images() {
            match self.run.runtime.loom().body(image.hash).await {
                Ok(body) => {
                    loaded.0.insert(image.hash, Arc::clone(body.bytes()));
                }
                // Folded messages are not sent, so their images may be missing.
                Err(_) if !messages.iter().any(|message| shows(message, image)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let loaded = Arc::new(loaded);
        self.images = Some(Arc::clone(&loaded));
        Ok(loaded)
    }

    /// Returns the format in which the circle accepts a program, for crystals that write programs directly.
    fn program(&self, facts: &CastFacts) -> ProgramFormat {
        let medium = facts.circle.medium();
        match (medium.is_code(), facts.definition.mode()) {
            (false, _) => ProgramFormat::None,
            (true, cantrip_loom::ToolMode::Tool) => {
                ProgramFormat::Call { name: medium.as_str().to_owned(), argument: "code".to_owned() }
            }
            (true, cantrip_loom::ToolMode::Fenced) => ProgramFormat::Fenced { language: medium.as_str().to_owned() },
        }
    }
}

/// Returns true if a message shows this image.
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
