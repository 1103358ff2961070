//! Threads as values, and message lists as text.
#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

use cantrip_canon::{CastId, EntityId, IdSource, Kind, LoomId, Timestamp, TurnId, bytes_hash};
use cantrip_crystal::Messages;
use cantrip_loom::{
    CallId, CancelledIntent, CantripId, Cast, CastView, Closing, Content, EndedBy, Entity, EntityView, Environment,
    Finish, Fold, FoldSum, FoldView, Fork, GateCall, GateRecord, IntentRecord, Message, Metadata, Origin, OutputRecord,
    RecordValue, ReplyMark, SettledCall, Settlement, Spawn, Strategy, Thread, ThreadState, ToolMode, TruncationReason,
    Turn, Utterance,
};
use cantrip_reply::codes;
use cantrip_turn::fold::FoldDraft;
use cantrip_turn::list::{CastStart, Frame, MessageList, ThreadSinceFold};
use serde_json::{Value, json};

pub const DONE: Closing = Closing::Terminated { ended_by: EndedBy::Done };
pub const TEXT: Closing = Closing::Terminated { ended_by: EndedBy::Text };
pub const OUT_OF_TURNS: Closing = Closing::Truncated { reason: TruncationReason::MaxTurns, error: None };

/// A thread, and a message list that was updated along with it.
pub struct Woven {
    ids: IdSource,
    frame: Frame,
    pub entity: EntityId,
    pub turns: Vec<Turn>,
    pub casts: Vec<CastView>,
    pub folds: Vec<FoldView>,
    pub live: MessageList,
    branch: Option<Fork>,
    spawned: Option<Spawn>,
    /// The casts that were cancelled since the last turn, with their intents.
    cancelled: Vec<(CastId, Content)>,
}

/// Returns an utterance with this content and these calls.
pub fn said(content: Option<&str>, calls: &[(&str, &str, Value)]) -> Utterance {
    let call = |(id, gate, args): &(&str, &str, Value)| GateCall {
        tool_call_id: (*id).to_owned(),
        gate: (*gate).to_owned(),
        args: args.clone(),
    };
    Utterance {
        content: content.map(str::to_owned),
        calls: calls.iter().map(call).collect(),
        thinking: None,
        parts: None,
        model: "scripted".to_owned(),
        finish: Finish::Stop,
    }
}

pub fn output(id: Option<&str>, console: &[&str], value: Option<&str>) -> OutputRecord {
    OutputRecord {
        tool_call_id: id.map(str::to_owned),
        clock_ms: None,
        console: console.iter().map(|line| (*line).to_owned()).collect(),
        value: value.map(str::to_owned),
        error: None,
        cut: 0,
        limit: None,
        rolled_back: false,
        environment_lost: None,
        left: None,
        reply: None,
    }
}

/// Returns a settled call that is not in a thread yet.
pub fn settled(id: &str, gate: &str, result: Value) -> GateRecord {
    record(id, gate, ReplyMark::from(codes::GATE_OK.any()), result)
}

pub fn refused(id: &str, gate: &str, text: &str) -> GateRecord {
    record(id, gate, ReplyMark::from(codes::FILE_MISSING.any()), json!(text))
}

fn record(id: &str, gate: &str, reply: ReplyMark, result: Value) -> GateRecord {
    let settled = SettledCall {
        result,
        reply,
        data: serde_json::Map::new(),
        children: Vec::new(),
        changes: Vec::new(),
        clock_ms: None,
        duration_ms: 1,
        cost: None,
        decision: None,
    };
    GateRecord { settlement: Settlement::Settled(Box::new(settled)), ..delegated(id, gate) }
}

pub fn delegated(id: &str, gate: &str) -> GateRecord {
    GateRecord {
        call_id: CallId::of_turn(some_turn(), 1),
        tool_call_id: Some(id.to_owned()),
        gate: gate.to_owned(),
        args: json!({}),
        ephemeral: false,
        settlement: Settlement::Delegated,
    }
}

fn some_turn() -> TurnId {
    IdSource::seeded(0).next(Timestamp::EPOCH)
}

/// A turn that is not in a thread yet.
pub struct Says {
    pub utterance: Option<Utterance>,
    pub outputs: Vec<OutputRecord>,
    pub records: Vec<GateRecord>,
    pub closing: Closing,
    pub tokens: (u64, u64),
}

impl Says {
    pub fn text(text: &str) -> Self {
        Self::of(said(Some(text), &[]))
    }

    pub fn calls(calls: &[(&str, &str, Value)]) -> Self {
        Self::of(said(None, calls))
    }

    pub fn of(utterance: Utterance) -> Self {
        Self { utterance: Some(utterance), outputs: vec![], records: vec![], closing: Closing::Open, tokens: (0, 0) }
    }

    /// Returns the continuation of the previous utterance.
    pub fn continued() -> Self {
        Self { utterance: None, ..Self::text("") }
    }

    pub fn record(mut self, record: GateRecord) -> Self {
        self.records.push(record);
        self
    }

    pub fn output(mut self, output: OutputRecord) -> Self {
        self.outputs.push(output);
        self
    }

    pub fn tokens(mut self, prompt: u64, completion: u64) -> Self {
        self.tokens = (prompt, completion);
        self
    }

    pub fn closing(mut self, closing: Closing) -> Self {
        self.closing = closing;
        self
    }

    pub fn sealed(self) -> Self {
        self.closing(Closing::Sealed { call: CallId::of_turn(some_turn(), 1), next: some_turn() })
    }
}

impl Woven {
    pub fn new(frame: Frame) -> Self {
        let ids = IdSource::seeded(7);
        let entity = ids.next(Timestamp::EPOCH);
        let live = MessageList::new(frame.clone());
        Self {
            ids,
            frame,
            entity,
            turns: vec![],
            casts: vec![],
            folds: vec![],
            live,
            branch: None,
            spawned: None,
            cancelled: vec![],
        }
    }

    pub fn conversation() -> Self {
        Self::new(Frame::new("scripted/test", "conversation").prompted("You count."))
    }

    pub fn id<K: Kind>(&self) -> cantrip_canon::Id<K> {
        self.ids.next(Timestamp::EPOCH)
    }

    pub fn cast(&mut self, intent: &str) -> CastId {
        let content = Content::from(intent);
        self.begin(IntentRecord::New(RecordValue::Inline { inline: content.clone() }), content)
    }

    /// Adds a cast that continues under the intent of the last one.
    pub fn go_on(&mut self) -> CastId {
        let last = self.casts.last().expect("a cast to go on with");
        let (earlier, content) = (last.cast.cast_id, last.intent.clone());
        self.begin(IntentRecord::Of(earlier), content)
    }

    fn begin(&mut self, intent: IntentRecord, content: Content) -> CastId {
        let cast_id = self.id();
        let environment = self.branch.map(|fork| fork.environment);
        let told: Vec<(CastId, Content)> =
            self.cancelled.iter().filter(|(cast, _)| intent != IntentRecord::Of(*cast)).cloned().collect();
        let cancelled: Vec<Content> = told.iter().map(|(_, content)| content.clone()).collect();
        self.live.begin(CastStart {
            cast: cast_id,
            intent_record: &intent,
            intent: &content,
            environment,
            cancelled: &cancelled,
        });
        let own_intent = matches!(intent, IntentRecord::New(_));
        let cast = Cast {
            cast_id,
            entity_id: self.entity,
            intent,
            wards: json!({}),
            deadline_ms: None,
            budget_scope: None,
            budget: None,
            cancelled: told
                .into_iter()
                .map(|(cast_id, inline)| CancelledIntent { cast_id, intent: RecordValue::Inline { inline } })
                .collect(),
        };
        let run_id = self.id();
        let at = Timestamp::EPOCH;
        self.casts.push(CastView { cast, run_id, at, intent: content, own_intent, cancelled, outcome: None });
        cast_id
    }

    /// Cancels the last cast before its first turn is closed.
    pub fn cancel(&mut self) {
        let last = self.casts.last().expect("a cast to cancel");
        let brought = match last.cast.intent {
            IntentRecord::New(_) => last.cast.cast_id,
            IntentRecord::Of(earlier) => earlier,
        };
        self.cancelled.retain(|(cast, _)| *cast != brought);
        self.cancelled.push((brought, last.intent.clone()));
    }

    /// Adds a turn: requested, answered and closed.
    pub fn turn(&mut self, says: Says) -> TurnId {
        self.cancelled.clear();
        if says.utterance.is_some() {
            self.live.request().expect("calls and results fit");
        }
        let (last, cast) = (self.turns.last(), self.casts.last().expect("a cast"));
        let first_of_cast = last.is_none_or(|last| last.cast_id != cast.cast.cast_id);
        let id = self.id();
        let loom_id: LoomId = self.id();
        let turn = Turn {
            id,
            parent_id: last.map(|last| last.id),
            loom_id,
            cantrip_id: CantripId::cut(&bytes_hash(b"")),
            entity_id: self.entity,
            cast_id: cast.cast.cast_id,
            sequence: last.map_or(0, |last| last.sequence) + 1,
            intent: (first_of_cast && cast.own_intent).then(|| cast.intent.clone()),
            continuation_of: if says.utterance.is_none() { last.map(|last| last.id) } else { None },
            utterance: says.utterance,
            outputs: says.outputs,
            gate_calls: says.records,
            metadata: Metadata {
                tokens_prompt: says.tokens.0,
                tokens_completion: says.tokens.1,
                tokens_cached: 0,
                duration_ms: 1,
                timestamp: Timestamp::EPOCH,
                attempts: 1,
                cost_micros: 0,
                cost: None,
                model: None,
            },
            reward: None,
            closing: says.closing,
            forked_from: self.branch.take(),
            spawned_by: self.spawned.take(),
            snapshot: None,
        };
        self.live.close(&turn).expect("it follows from the turn before");
        self.turns.push(turn);
        id
    }

    /// Makes the next turn the first of a fork.
    pub fn fork(&mut self, environment: Environment) {
        // The cancelled intents belong to the entity that is forked.
        self.cancelled.clear();
        let turn = self.turns.last().expect("a turn to fork from").id;
        self.branch = Some(Fork { turn, environment });
    }

    /// Makes the next turn the first of a child: a new list begins.
    pub fn spawn(&mut self) {
        let turn = self.turns.last().expect("a turn to spawn from").id;
        self.spawned = Some(Spawn { call_id: CallId::of_turn(turn, 1), index: 0 });
        self.live = MessageList::new(self.frame.clone());
    }

    pub fn folded(&mut self, to: u64, text: &str) {
        self.folded_with(Strategy::Window, to, text, None);
    }

    /// Adds a fold as the loop records it.
    pub fn fold(&mut self, made: &FoldDraft) {
        self.folded_with(made.strategy, made.plan.to, &made.text, Some(made.sum.clone()));
    }

    fn folded_with(&mut self, strategy: Strategy, to: u64, text: &str, sum: Option<FoldSum>) {
        let after = self.turns.last().expect("a turn to fold").id;
        let fold = Fold {
            fold_id: self.id(),
            entity_id: self.entity,
            after,
            from: 1,
            to,
            strategy,
            text: RecordValue::Inline { inline: text.to_owned() },
            estimate_before: 0,
            estimate_after: 0,
            attempt: None,
            degraded: false,
            sum,
        };
        self.folds.push(FoldView { fold, text: text.to_owned(), at: Timestamp::EPOCH });
        self.live.fold(strategy, to, text);
    }

    pub fn last_cast(&self) -> Option<CastId> {
        self.casts.last().map(|cast| cast.cast.cast_id)
    }

    pub fn thread(&self) -> Thread {
        let entity = Entity {
            entity_id: self.entity,
            cantrip_id: CantripId::cut(&bytes_hash(b"")),
            origin: Origin::Root,
            medium: self.frame.medium.clone(),
            mode: ToolMode::Tool,
            seed: "0".repeat(16),
            context: None,
            window: None,
            labels: vec![],
        };
        let leaf = self.turns.last().expect("a turn").id;
        let on_path = |cast: &&CastView| self.turns.iter().any(|turn| turn.cast_id == cast.cast.cast_id);
        Thread {
            leaf,
            state: ThreadState::Active,
            entity: EntityView {
                entity,
                loom_id: self.id(),
                run_id: self.id(),
                at: Timestamp::EPOCH,
                casts: self.casts.iter().map(|cast| cast.cast.cast_id).collect(),
                leaf: Some(leaf),
            },
            turns: self.turns.clone(),
            casts: self.casts.iter().filter(on_path).cloned().collect(),
            folds: self.folds.clone(),
            forks: vec![],
        }
    }

    /// Rebuilds the list from the records alone.
    pub fn read_back(&self) -> MessageList {
        MessageList::of(self.frame.clone(), &self.thread()).expect("the thread is whole")
    }

    /// Rebuilds the list without reading any folded turn.
    pub fn read_since(&self) -> Option<MessageList> {
        let fold = self.folds.last()?;
        let (gone, _) = ThreadSinceFold::last_folded_turn(fold)?;
        let from = self.turns.iter().position(|turn| turn.sequence > gone)?;
        let thread = self.thread();
        let since = ThreadSinceFold { fold, turns: &self.turns[from..], casts: &thread.casts };
        MessageList::from_fold(self.frame.clone(), since).expect("the thread is whole")
    }

    /// Returns the messages of the next request, and checks that every way to build the list gives the same.
    pub fn list(&mut self) -> String {
        let lived = shown(&self.live.request().expect("calls and results fit"));
        let last_cast = self.last_cast();
        if self.turns.last().is_some_and(|turn| Some(turn.cast_id) == last_cast) {
            let mut read = self.read_back();
            assert_eq!(lived, shown(&read.request().expect("calls and results fit")));
            assert_eq!(self.live.digest(), read.digest());
            assert_eq!(self.live.bytes(), read.bytes());
            assert_eq!(self.live.estimate(), read.estimate());
            if let Some(mut read) = self.read_since() {
                assert_eq!(lived, shown(&read.request().expect("calls and results fit")));
                assert_eq!(self.live.digest(), read.digest());
                assert_eq!(self.live.estimate(), read.estimate());
                assert_eq!(self.live.folded().turns, read.folded().turns);
                assert_eq!(self.live.folded().deeds, read.folded().deeds);
            }
        }
        lived
    }
}

pub fn shown(messages: &Messages) -> String {
    messages.iter().map(text).collect::<Vec<_>>().join("\n")
}

pub fn text(message: &Message) -> String {
    match message {
        Message::System { content } => format!("system: {}", content.text()),
        Message::User { content } => format!("user: {}", content.text()),
        Message::Assistant { content, calls, parts } => {
            let said = content.as_ref().map(|content| content.text()).unwrap_or_default();
            let calls: Vec<String> =
                calls.iter().map(|call| format!(" {}#{}{}", call.gate, call.tool_call_id, call.args)).collect();
            let parts = if parts.is_some() { " +parts" } else { "" };
            format!("assistant: {said}{}{parts}", calls.concat())
        }
        Message::Tool { tool_call_id, content, .. } => format!("tool {tool_call_id}: {}", content.text()),
    }
}
