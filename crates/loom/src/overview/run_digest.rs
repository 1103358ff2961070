//! The summary of a run, folded from its records one by one.
//!
//! Every store folds with this code, so a list says the same everywhere. A store on a disk keeps the fold beside the
//! run and goes on from there, which is why the fold can be written and read back in the middle of a turn. Computing a
//! summary from the closed turns was rejected: it would read a whole run for one line of a list.

use std::collections::{BTreeMap, BTreeSet};

use cantrip_canon::{CastId, EntityId, Hash, Money, TurnId, json};
use cantrip_contract::Subject;
use cantrip_reply::ReplyType;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{RunSummary, summary_text};
use crate::limits::SUMMARY_MARKS_MAX;
use crate::{
    Bodies, BodyRef, CallId, CallSettled, Caller, Cast, Closing, Content, CostTotal, End, Ending, Event, IntentRecord,
    OutputRecord, ParkReason, RecordValue, RecordedError, RunOpening, RunState, RunView, TruncationReason, TurnClosed,
    TurnOpened, Usage, Utterance, receipt_status,
};

/// The calls of one utterance, until its last turn is closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct OpenGroup {
    /// True if the group belongs to the root entity of the run.
    own: bool,
    /// The turn that is open now.
    turn: TurnId,
    /// The position of the worst reply so far in [`ReplyType::ALL`].
    worst: usize,
    spent: CostTotal,
    /// The gates of the calls as the utterance has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    said: Vec<String>,
    /// The gates of the calls that the utterance does not have, by number.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    started: BTreeMap<u32, String>,
}

/// The part of a turn that was just closed which the drawing of its path shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClosedTurn {
    pub turn_id: TurnId,
    /// The worst reply of the calls that settled in the turn, and of its programs.
    pub worst: ReplyType,
    /// The cost of its answer and of its calls.
    pub cost: CostTotal,
}

/// The fold of a run's records. The default value is the fold of no record.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunDigest {
    /// The root entity of the run.
    root: Option<EntityId>,
    /// The cast of the root entity.
    pub cast_id: Option<CastId>,
    pub spell: Option<String>,
    /// The beginning of the intent; none if the cast goes on under that of `intent_of`.
    pub intent: Option<String>,
    pub intent_of: Option<CastId>,
    pub answer: Option<String>,
    pub reason: Option<TruncationReason>,
    /// The code of the error that ended, failed or parked the run, until it goes on.
    pub code: Option<String>,
    /// The reason why the run is parked, until it goes on; none if it needs no person to go on.
    pub waiting_for: Option<ParkReason>,
    pub budget: Option<Money>,
    /// The closed turns of the root entity, and of all children.
    pub turns: u64,
    pub child_turns: u64,
    pub children: u64,
    pub tokens_prompt: u64,
    pub tokens_completion: u64,
    pub tokens_cached: u64,
    own: CostTotal,
    whole: CostTotal,
    /// The gates that were called, and the codes of their replies and of the end.
    pub gates: BTreeSet<String>,
    pub codes: BTreeSet<String>,
    /// The casts that have not ended; true for that of the root entity.
    casts: BTreeMap<CastId, bool>,
    /// The requests that have no accepted answer; true for those of the root entity.
    requests: BTreeMap<CallId, bool>,
    groups: BTreeMap<TurnId, OpenGroup>,
}

/// Returns the beginning of an answer; a value that is not a text as compact JSON.
fn answer_text(answer: &Value) -> String {
    match answer {
        Value::String(text) => summary_text(text),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            // Canonical, as the record has it: a fold of the draft and a fold of the record must say the same.
            summary_text(&json::canonical(answer).unwrap_or_else(|_| answer.to_string()))
        }
    }
}

/// Returns the beginning of an intent; none if it is a body that cannot be read.
fn intent_text(intent: &RecordValue<Content>, bodies: &dyn Bodies) -> Option<String> {
    match intent {
        RecordValue::Inline { inline } => Some(summary_text(&inline.text())),
        RecordValue::Body(_) => intent.load(bodies).ok().map(|content| summary_text(&content.text())),
    }
}

impl RunDigest {
    /// Returns the body that [`apply`](Self::apply) reads for an event.
    pub fn body_hash(event: &Event) -> Option<Hash> {
        let body: Option<BodyRef> = if let Event::Cast(Cast { intent: IntentRecord::New(intent), .. }) = event {
            intent.reference()
        } else if let Event::Opened(opened) = event {
            opened.utterance.reference()
        } else if let Event::Turn(closed) = event {
            closed.outputs.as_ref().and_then(RecordValue::reference)
        } else if let Event::End(end) = event {
            end.ending.result().and_then(RecordValue::reference)
        } else {
            None
        };
        body.map(|body| body.hash)
    }

    /// Returns the known cost of the root entity.
    pub fn own_cost(&self) -> Option<Money> {
        self.own.cost()
    }

    /// Returns the known cost of the root entity with all children.
    pub fn cost(&self) -> Option<Money> {
        self.whole.cost()
    }

    /// Returns the summary of the run. `intent` is that of the cast [`intent_of`](Self::intent_of), if it has one.
    pub fn summary(&self, run: RunView, intent: Option<String>, crystal: Option<String>) -> RunSummary {
        let rests = !matches!(run.state, RunState::Queued | RunState::Running);
        RunSummary {
            run_id: run.run_id,
            kind: run.kind,
            loom_id: run.loom_id,
            owner: run.owner,
            entity_id: run.entity_id,
            cast_id: self.cast_id,
            spell: self.spell.clone(),
            crystal,
            intent: self.intent.clone().or(intent),
            answer: self.answer.clone(),
            state: run.state,
            reason: self.reason,
            code: self.code.clone().filter(|_| rests),
            waiting_for: self.waiting_for.filter(|_| run.state == RunState::Waiting),
            turns: self.turns,
            child_turns: self.child_turns,
            children: self.children,
            tokens_prompt: self.tokens_prompt,
            tokens_completion: self.tokens_completion,
            tokens_cached: self.tokens_cached,
            own_cost: self.own_cost(),
            cost: self.cost(),
            budget: self.budget,
            created_at: run.created_at,
            ended_at: run.ended_at,
            newest: run.newest,
        }
    }

    /// Adds the next record of the run; `opening` is that of its first record. A body that cannot be read leaves out
    /// what it would say. Returns the turn that the record closes.
    pub fn apply(&mut self, event: &Event, opening: Option<&RunOpening>, bodies: &dyn Bodies) -> Option<ClosedTurn> {
        if let Some(opening) = opening {
            self.root = opening.entity_id;
        }
        if !event.kind().annotates() {
            (self.waiting_for, self.code) = (None, None);
        }
        if let Event::Entity(made) = event {
            self.children += u64::from(self.root != Some(made.entity_id));
        } else if let Event::Cast(cast) = event {
            self.begin_cast(cast, bodies);
        } else if let Event::Attempt(attempt) = event {
            let own = self.casts.get(&attempt.cast_id).copied().unwrap_or(false);
            self.requests.insert(attempt.call_id, own);
        } else if let Event::Opened(opened) = event {
            self.open_turn(opened, bodies);
        } else if let Event::Started(started) = event {
            if let (Some(asked), Caller::Turn(holder)) = (&started.asked, started.call_id.caller())
                && let Some(group) = self.groups.get_mut(&holder)
            {
                group.started.insert(started.call_id.number(), asked.gate.clone());
            }
        } else if let Event::Settled(settled) = event {
            self.settle_call(settled);
        } else if let Event::Turn(closed) = event {
            return self.close_turn(closed, bodies);
        } else if let Event::Fold(fold) = event {
            self.requests.retain(|call, _| call.caller() != Caller::Fold(fold.fold_id));
        } else if let Event::End(end) = event {
            self.end_cast(end, bodies);
        } else {
            self.apply_rest(event);
        }
        None
    }

    /// Adds a record by which the run rests or ends, or that names its spell.
    fn apply_rest(&mut self, event: &Event) {
        if let Event::Parked(parked) = event {
            self.waiting_for = Some(parked.reason).filter(|reason| reason.needs_resume());
            self.set_error(parked.error.as_ref());
        } else if let Event::JobParked(parked) = event {
            self.waiting_for = Some(parked.reason).filter(|reason| reason.needs_resume());
            self.set_error(parked.error.as_ref());
        } else if let Event::Failed(failed) = event {
            self.set_error(Some(&failed.error));
        } else if let Event::JobClosed(closed) = event {
            self.set_error(closed.error.as_ref());
        } else if let Event::PredictClosed(closed) = event {
            self.code.clone_from(&closed.error_code);
            closed.error_code.clone().into_iter().for_each(|code| add_mark(&mut self.codes, code));
        } else if let Event::JobOpened(opened) = event {
            self.spell = match &opened.subject {
                Subject::Spell(name) => Some(name.clone()),
                Subject::Signature(_) => None,
            };
        } else if let Event::PolicyDecision(decided) = event
            && self.spell.is_none()
            && let Some(input) = &decided.input
        {
            self.spell.clone_from(&input.principal.autopilot_id);
        }
    }

    fn set_error(&mut self, error: Option<&RecordedError>) {
        self.code = error.map(|error| error.mark.code.clone());
        if let Some(code) = self.code.clone() {
            add_mark(&mut self.codes, code);
        }
    }

    fn begin_cast(&mut self, cast: &Cast, bodies: &dyn Bodies) {
        let own = self.root == Some(cast.entity_id);
        self.casts.insert(cast.cast_id, own);
        if !own {
            return;
        }
        (self.cast_id, self.budget) = (Some(cast.cast_id), cast.budget);
        (self.answer, self.reason, self.code) = (None, None, None);
        (self.intent, self.intent_of) = match &cast.intent {
            IntentRecord::New(intent) => (intent_text(intent, bodies), None),
            IntentRecord::Of(earlier) => (None, Some(*earlier)),
        };
    }

    fn add_usage(&mut self, usage: &Usage) {
        self.tokens_prompt = self.tokens_prompt.saturating_add(usage.prompt_tokens);
        self.tokens_completion = self.tokens_completion.saturating_add(usage.completion_tokens);
        self.tokens_cached = self.tokens_cached.saturating_add(usage.cached_tokens);
    }

    fn add_cost(&mut self, own: bool, cost: Option<Money>) {
        self.whole.add(cost);
        if own {
            self.own.add(cost);
        }
    }

    fn open_turn(&mut self, opened: &TurnOpened, bodies: &dyn Bodies) {
        self.requests.remove(&CallId::request(opened.turn_id));
        let own = self.casts.get(&opened.cast_id).copied().unwrap_or(false);
        self.add_usage(&opened.usage);
        self.add_cost(own, opened.cost);
        let names = |said: &Utterance| said.calls.iter().map(|call| call.gate.clone()).collect();
        let said = match &opened.utterance {
            RecordValue::Inline { inline } => names(inline),
            RecordValue::Body(_) => opened.utterance.load(bodies).as_ref().map(names).unwrap_or_default(),
        };
        let mut spent = CostTotal::default();
        spent.add(opened.cost);
        let turn = opened.turn_id;
        self.groups.insert(turn, OpenGroup { own, turn, worst: 0, spent, said, started: BTreeMap::new() });
    }

    fn settle_call(&mut self, settled: &CallSettled) {
        for reply in settled.children.iter().map(|child| &child.reply).chain([&settled.reply]) {
            add_mark(&mut self.codes, reply.code.clone());
        }
        let number = settled.call_id.number();
        let holder = match settled.call_id.caller() {
            Caller::Turn(holder) if number > 0 => holder,
            Caller::Turn(_) | Caller::Fold(_) => return self.settle_request(settled),
        };
        let Some(group) = self.groups.get_mut(&holder) else { return };
        let place = usize::try_from(number).unwrap_or(usize::MAX) - 1;
        let asked = settled.asked.as_ref().map(|asked| asked.gate.clone());
        let gate = group.started.remove(&number).or(asked).or_else(|| group.said.get(place).cloned());
        group.worst = group.worst.max(settled.reply.reply_type as usize);
        let own = group.own;
        if settled.cost.is_some() {
            group.spent.add(settled.cost);
            self.add_cost(own, settled.cost);
        }
        if let Some(gate) = gate {
            add_mark(&mut self.gates, gate);
        }
        if let Some(judged) = settled.judged.as_deref().filter(|_| own && self.spell.is_none()) {
            self.spell.clone_from(&judged.agent);
        }
    }

    /// Adds a request that has no accepted answer, or that wrote a fold.
    fn settle_request(&mut self, settled: &CallSettled) {
        let own = self.requests.get(&settled.call_id).copied().unwrap_or(false);
        if let Some(usage) = &settled.usage {
            self.add_usage(usage);
        }
        if settled.cost.is_some() {
            self.add_cost(own, settled.cost);
        }
    }

    fn close_turn(&mut self, closed: &TurnClosed, bodies: &dyn Bodies) -> Option<ClosedTurn> {
        let holder = self.groups.iter().find(|(_, group)| group.turn == closed.turn_id).map(|(holder, _)| *holder)?;
        let outputs: Vec<OutputRecord> =
            closed.outputs.as_ref().and_then(|outputs| outputs.load(bodies).ok()).unwrap_or_default();
        let mut group = self.groups.remove(&holder)?;
        for output in &outputs {
            match &output.reply {
                Some(reply) => {
                    group.worst = group.worst.max(reply.mark.reply_type as usize);
                    add_mark(&mut self.codes, reply.mark.code.clone());
                }
                None if output.is_error() => group.worst = ReplyType::Failure as usize,
                None => {}
            }
        }
        if group.own {
            self.turns += 1;
        } else {
            self.child_turns += 1;
        }
        let worst = ReplyType::ALL.get(group.worst).copied().unwrap_or(ReplyType::Failure);
        let told = ClosedTurn { turn_id: closed.turn_id, worst, cost: group.spent };
        match &closed.closing {
            Closing::Sealed { next, .. } => {
                self.groups.insert(holder, OpenGroup { turn: *next, worst: 0, spent: CostTotal::default(), ..group });
            }
            Closing::Open | Closing::Terminated { .. } | Closing::Truncated { .. } => {}
        }
        Some(told)
    }

    fn end_cast(&mut self, end: &End, bodies: &dyn Bodies) {
        let own = self.casts.remove(&end.cast_id).unwrap_or(false);
        if !own {
            return;
        }
        self.requests.clear();
        match &end.ending {
            Ending::Terminated { result, .. } => {
                self.answer = result.load(bodies).ok().map(|answer| answer_text(&answer));
                (self.reason, self.code) = (None, None);
            }
            Ending::Truncated { reason, .. } => {
                (self.answer, self.reason, self.code) = (None, Some(*reason), receipt_status(end).1);
                self.code.clone().into_iter().for_each(|code| add_mark(&mut self.codes, code));
            }
        }
    }
}

/// Adds a name to a set that has a limit. A run that meets more names is found by the first ones.
fn add_mark(marks: &mut BTreeSet<String>, name: String) {
    if marks.len() < SUMMARY_MARKS_MAX {
        marks.insert(name);
    }
}
