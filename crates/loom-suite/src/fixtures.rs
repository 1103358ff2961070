//! Fixtures that write runs in the same way as the loop, with reproducible ids and times.

use std::time::Duration;

use cantrip_canon::{CastId, EntityId, IdSource, LoomId, Money, RunId, Timestamp, TurnId};
use cantrip_reply::{AnyCode, codes};
use cantrip_spend::{
    AuthorizationMode, AuthorizationRef, Authorize, Guards, Hold, Operation, Phase, PolicyQuery, Principal, Reserve,
    RetryClass, Subject, Terms, Trifecta,
};
use serde_json::{Value, json};

use cantrip_loom::{
    Actor, AppendOutcome, Body, Call, CallId, CallSettled, CallStarted, CallWork, Cantrip, CantripId, Cast, Closing,
    Content, End, EndedBy, Ending, Entity, Event, Finish, GateCall, GateCallRequest, IntentRecord, Journal, Lease,
    Origin, RecordDraft, RecordValue, Root, RunKind, RunOpening, Seq, Step, StepId, ToolMode, TruncationReason,
    TurnClosed, TurnOpened, Usage, Utterance, WorkerId,
};

/// Returns the time `millis` after the start of the suite's clock.
pub fn at(millis: u64) -> Timestamp {
    let start: Timestamp = "2026-02-19T02:00:00.000Z".parse().expect("a time");
    start.after(Duration::from_millis(millis))
}

/// The cantrip of every run that a [`LoomWriter`] writes.
pub fn sample_cantrip() -> Cantrip {
    Cantrip {
        call: Call { system_prompt: Some("You count.".into()), settings: serde_json::Map::new() },
        definitions: vec![json!({"name": "done", "parameters": {"type": "object"}})],
        circle: json!({"medium": "conversation"}),
        wards: json!({"max_turns": 10}),
        crystal: "scripted".into(),
    }
}

/// A cast while it is being written.
#[derive(Debug, Clone)]
pub struct Episode {
    pub run: RunId,
    pub lease: Lease,
    pub entity: EntityId,
    pub cast: CastId,
    /// The last closed turn.
    pub leaf: Option<TurnId>,
    pub sequence: u64,
    pub turns: u64,
}

/// Writes episodes into a journal.
#[derive(Debug)]
pub struct LoomWriter<'a, J> {
    journal: &'a J,
    ids: IdSource,
    millis: u64,
    steps: u64,
    pub loom: LoomId,
    pub cantrip: CantripId,
}

impl<'a, J: Journal> LoomWriter<'a, J> {
    pub fn new(journal: &'a J) -> Self {
        Self::seeded(journal, 7)
    }

    pub fn seeded(journal: &'a J, seed: u64) -> Self {
        let ids = IdSource::seeded(seed);
        let loom = ids.next(at(0));
        let hash = sample_cantrip().hash().expect("it has a canonical form");
        Self { journal, ids, millis: 0, steps: 0, loom, cantrip: CantripId::cut(&hash) }
    }

    pub fn now(&mut self) -> Timestamp {
        self.millis += 1;
        at(self.millis)
    }

    pub fn id<K: cantrip_canon::Kind>(&mut self) -> cantrip_canon::Id<K> {
        let now = self.now();
        self.ids.next(now)
    }

    /// Advances the clock, so that several writers of the same runs use different times.
    pub fn skip(&mut self, millis: u64) {
        self.millis += millis;
        self.steps += millis;
    }

    pub fn step_id(&mut self) -> StepId {
        self.steps += 1;
        StepId::new(format!("step-{}", self.steps)).expect("a short name")
    }

    pub fn draft(&mut self, event: impl Into<Event>) -> RecordDraft {
        let now = self.now();
        RecordDraft::new(now, event).expect("a small record")
    }

    /// Returns an empty step of the episode's owner.
    pub fn step(&mut self, episode: &Episode) -> Step {
        Step::for_lease(self.step_id(), episode.lease.clone())
    }

    /// Returns a step of the episode's owner with one record.
    pub fn step_with(&mut self, episode: &Episode, event: impl Into<Event>) -> Step {
        self.step(episode).record(self.draft(event))
    }

    /// Appends a step of the episode's owner with one record, and fails the case unless it was committed.
    pub async fn write(&mut self, episode: &Episode, event: impl Into<Event>) -> Seq {
        let step = self.step_with(episode, event);
        self.commit(step).await
    }

    /// Appends a step, and fails the case unless it was committed.
    pub async fn commit(&mut self, step: Step) -> Seq {
        committed(&self.journal.append(step).await.expect("the step is written"))
    }

    /// Issues an authorization with these terms.
    pub async fn authorize(&mut self, terms: Terms) -> AuthorizationRef {
        let authorization = AuthorizationRef::Issued(self.id());
        let (actor, reason) = ("local".to_owned(), "a case".to_owned());
        let issue = Authorize { authorization, terms, actor, reason, at: self.now() };
        let step = Step::outside_runs(self.step_id()).money(Operation::Authorize(Box::new(issue)));
        assert_eq!(append(self.journal, step).await, AppendOutcome::Committed(Seq::START));
        authorization
    }

    pub fn opening(&self, kind: RunKind, entity: EntityId) -> RunOpening {
        RunOpening {
            kind,
            loom_id: self.loom,
            owner: Actor::new("local").expect("a name"),
            entity_id: Some(entity),
            root_run_id: None,
        }
    }

    pub fn root(&self) -> Root {
        let cantrip = sample_cantrip();
        let hash = cantrip.hash().expect("it has a canonical form");
        let cantrip = RecordValue::new(cantrip, &mut Vec::new()).expect("it is short");
        Root { cantrip_id: self.cantrip, hash, cantrip }
    }

    pub fn entity(&self, entity_id: EntityId, origin: Origin) -> Entity {
        Entity {
            entity_id,
            cantrip_id: self.cantrip,
            origin,
            medium: "conversation".into(),
            mode: ToolMode::Tool,
            seed: "00000000000000ff".into(),
            context: None,
            window: None,
            labels: Vec::new(),
        }
    }

    pub fn cast_of(&mut self, entity_id: EntityId, intent: IntentRecord) -> Cast {
        let cast_id = self.id();
        let wards = json!({"max_turns": 10});
        Cast {
            cast_id,
            entity_id,
            intent,
            wards,
            deadline_ms: Some(60_000),
            budget_scope: None,
            budget: None,
            cancelled: Vec::new(),
        }
    }

    pub fn intent(&self, text: &str) -> IntentRecord {
        IntentRecord::New(RecordValue::new(Content::from(text), &mut Vec::new()).expect("it is short"))
    }

    pub fn lease(&self, run: RunId) -> Lease {
        Lease::first(run, WorkerId::new("process-1").expect("a name"), at(3_600_000))
    }

    /// Returns the step that opens a run with a new entity, and the episode that it begins.
    pub fn open(
        &mut self,
        origin: Origin,
        intent: IntentRecord,
        leaf: Option<TurnId>,
        sequence: u64,
    ) -> (Step, Episode) {
        let (run, entity) = (self.id(), self.id());
        let lease = self.lease(run);
        let now = self.now();
        let cast = self.cast_of(entity, intent);
        let episode = Episode { run, lease: lease.clone(), entity, cast: cast.cast_id, leaf, sequence, turns: 0 };
        let first =
            RecordDraft::opening(now, self.opening(RunKind::Cast, entity), self.root()).expect("a small record");
        let made = self.entity(entity, origin);
        let step = Step::open_run(self.step_id(), run, Some(lease));
        (step.record(first).record(self.draft(made)).record(self.draft(cast)), episode)
    }

    /// Casts a new entity on an intent.
    pub async fn cast(&mut self, intent: &str) -> Episode {
        let intent = self.intent(intent);
        let (step, episode) = self.open(Origin::Root, intent, None, 0);
        self.commit(step).await;
        episode
    }

    /// Casts a known entity again.
    pub async fn send(&mut self, of: &Episode, intent: IntentRecord) -> Episode {
        let run = self.id();
        let lease = self.lease(run);
        let cast = self.cast_of(of.entity, intent);
        let episode = Episode { run, lease: lease.clone(), cast: cast.cast_id, turns: 0, ..of.clone() };
        let now = self.now();
        let first = RecordDraft::opening(now, self.opening(RunKind::Cast, of.entity), cast).expect("a small record");
        let step = Step::open_run(self.step_id(), run, Some(lease)).record(first);
        self.commit(step).await;
        episode
    }

    pub fn opened(&mut self, episode: &Episode, said: Utterance, bodies: &mut Vec<Body>) -> TurnOpened {
        TurnOpened {
            turn_id: self.id(),
            cast_id: episode.cast,
            parent_id: episode.leaf,
            sequence: episode.sequence + 1,
            utterance: RecordValue::new(said, bodies).expect("it has a canonical form"),
            usage: Usage { prompt_tokens: 100, completion_tokens: 20, cached_tokens: 40, ..Usage::default() },
            attempt: 1,
            cost: None,
        }
    }

    /// Writes one turn that calls `gate` and is closed with `closing`. Two steps, as the loop writes them.
    pub async fn turn(&mut self, episode: &mut Episode, gate: &str, result: Value, closing: Closing) -> TurnId {
        let mut bodies = Vec::new();
        let said = utterance(None, &[(gate, json!({"n": episode.sequence + 1}))]);
        let opened = self.opened(episode, said, &mut bodies);
        let turn = opened.turn_id;
        let call = CallId::of_turn(turn, 1);
        let step =
            self.step_with(episode, opened).record(self.draft(started(call, CallWork::Gate, None))).bodies(bodies);
        self.commit(step).await;
        let mut bodies = Vec::new();
        let over = settled(call, result, &mut bodies);
        let step = self.step_with(episode, over).record(self.draft(closed(turn, closing))).bodies(bodies);
        self.commit(step).await;
        episode.leaf = Some(turn);
        episode.sequence += 1;
        episode.turns += 1;
        turn
    }

    /// Writes a turn whose answer has this cost in micro-units of USD, and whose one call got this reply.
    pub async fn paid(&mut self, episode: &mut Episode, gate: &str, reply: AnyCode, micros: i64) -> TurnId {
        let opened = self.opened(episode, utterance(Some("I do it"), &[(gate, json!({}))]), &mut Vec::new());
        let turn = opened.turn_id;
        let call = CallId::of_turn(turn, 1);
        let over = CallSettled { reply: reply.into(), ..settled(call, json!("so"), &mut Vec::new()) };
        let step = self
            .step_with(episode, TurnOpened { cost: Some(usd(micros)), ..opened })
            .record(self.draft(started(call, CallWork::Gate, None)))
            .record(self.draft(over))
            .record(self.draft(closed(turn, Closing::Open)));
        self.commit(step).await;
        episode.leaf = Some(turn);
        episode.sequence += 1;
        episode.turns += 1;
        turn
    }

    /// Writes a turn after which the cast continues.
    pub async fn plain(&mut self, episode: &mut Episode) -> TurnId {
        let n = episode.sequence + 1;
        self.turn(episode, "echo", json!({"echo": n}), Closing::Open).await
    }

    /// Writes several turns after which the cast continues.
    pub async fn plain_turns(&mut self, episode: &mut Episode, count: usize) -> Vec<TurnId> {
        let mut turns = Vec::new();
        for _ in 0..count {
            turns.push(self.plain(episode).await);
        }
        turns
    }

    /// Writes a turn that calls `done`, and the end of the cast.
    pub async fn done(&mut self, episode: &mut Episode, answer: Value) -> TurnId {
        let closing = Closing::Terminated { ended_by: EndedBy::Done };
        let turn = self.turn(episode, "done", answer.clone(), closing).await;
        let result = RecordValue::new(answer, &mut Vec::new()).expect("it is short");
        self.end(episode, Ending::Terminated { ended_by: EndedBy::Done, result }).await;
        turn
    }

    pub async fn truncate(&mut self, episode: &Episode, reason: TruncationReason) {
        self.end(episode, Ending::Truncated { reason, error: None, summary: "cut".into() }).await;
    }

    pub fn end_of(&self, episode: &Episode, ending: Ending<RecordValue<Value>>) -> End {
        End {
            cast_id: episode.cast,
            ending,
            leaf: episode.leaf.filter(|_| episode.turns > 0),
            turns: episode.turns,
            utterances: episode.turns,
            usage: Usage::default(),
            cost: None,
            uncosted: 0,
        }
    }

    pub async fn end(&mut self, episode: &Episode, ending: Ending<RecordValue<Value>>) {
        let end = self.end_of(episode, ending);
        self.write(episode, end).await;
        self.journal.release(&episode.lease).await.expect("a lease can be returned");
    }
}

/// Makes an amount of micro-units of USD.
pub fn usd(micros: i64) -> Money {
    Money::new(micros, cantrip_canon::Currency::USD).expect("a small amount")
}

/// Makes an utterance with a content and with calls in order.
pub fn utterance(content: Option<&str>, calls: &[(&str, Value)]) -> Utterance {
    let calls = calls.iter().enumerate();
    Utterance {
        content: content.map(str::to_owned),
        calls: calls
            .map(|(at, (gate, args))| GateCall {
                tool_call_id: format!("call_{}", at + 1),
                gate: (*gate).to_owned(),
                args: args.clone(),
            })
            .collect(),
        thinking: None,
        parts: None,
        model: "scripted".into(),
        finish: Finish::Calls,
    }
}

/// Makes the record of a call that starts.
pub fn started(call_id: CallId, work: CallWork, asked: Option<GateCallRequest>) -> CallStarted {
    CallStarted { call_id, work, asked, idempotency_key: None, reservation_id: None }
}

/// Makes the record of a call that succeeds.
pub fn settled(call_id: CallId, result: Value, bodies: &mut Vec<Body>) -> CallSettled {
    CallSettled {
        call_id,
        reply: codes::GATE_OK.any().into(),
        result: RecordValue::new(result, bodies).expect("it has a canonical form"),
        duration_ms: 3,
        asked: None,
        ephemeral: false,
        data: None,
        children: Vec::new(),
        changes: Vec::new(),
        clock_ms: None,
        cost: None,
        decision: None,
        judged: None,
        attempt: None,
        usage: None,
    }
}

/// Makes the record of a closed turn.
pub fn closed(turn_id: TurnId, closing: Closing) -> TurnClosed {
    TurnClosed { turn_id, closing, duration_ms: 12, outputs: None, snapshot: None }
}

/// Reserves the worst cost of an attempt at the request of a turn, under `auth_local`.
pub fn reserve<J: Journal>(
    weaver: &mut LoomWriter<'_, J>,
    episode: &Episode,
    turn: TurnId,
    attempt: u32,
    micros: i64,
) -> Reserve {
    let now = weaver.now();
    let run = episode.run;
    let hold = Hold {
        authorization: AuthorizationRef::Local,
        run,
        root_run: run,
        call: CallId::request(turn).key(),
        attempt,
        amount: usd(micros),
        retry_class: RetryClass::SafeRetry,
        scope: episode.entity.to_string(),
        decision: weaver.id(),
        approval: None,
        at: now,
        expires_at: now.after(Duration::from_secs(60)),
    };
    let question = PolicyQuery {
        policy_id: "loop.v1".to_owned(),
        phase: Phase::Spend,
        subject: Subject::model_call("scripted", "scripted/count"),
        principal: Principal {
            owner: cantrip_spend::Payer::local(),
            run_id: Some(run.to_string()),
            root_run_id: Some(run.to_string()),
            thread_id: Some(episode.entity.to_string()),
            autopilot_id: None,
        },
        guards: Guards::default(),
        trifecta: Trifecta::default(),
    };
    Reserve { hold, question }
}

/// Returns the place of a committed step, and fails the case for any other outcome.
pub(crate) fn committed(outcome: &AppendOutcome) -> Seq {
    let AppendOutcome::Committed(seq) = outcome else { panic!("not committed: {outcome:?}") };
    *seq
}

pub(crate) async fn append<J: Journal>(journal: &J, step: Step) -> AppendOutcome {
    journal.append(step).await.expect("an answer")
}

/// Terms of a local user with a budget.
pub(crate) fn budget(total: i64) -> Terms {
    Terms { mode: AuthorizationMode::DelegatedBudget, max_total: Some(total), issued_at: at(0), ..Terms::local() }
}

/// Makes an event of a kind that this version does not know.
pub(crate) fn odd(n: u64) -> Event {
    let Value::Object(payload) = json!({"v": 9, "n": n, "later": {"field": [1, 2.5, "x"]}}) else { unreachable!() };
    Event::Other { kind: "weather.changed".into(), payload }
}
