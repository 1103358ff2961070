//! Answers to the gate calls and requests of one run of a backtest, out of the record of the original.
//!
//! A recorded call answers one call: the same gate with the same canonical arguments, each recorded call once, in any
//! order. The state of this lives in one process; a process that goes on with the run rebuilds it from the records of
//! the run, so that no recorded call answers twice.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cantrip::canon::{Hash, RunId, TurnId};
use cantrip::circle::gate::{AnsweringCall, CallAnswer, CallAnswers, GateSpec, canonical_name};
use cantrip::crystal::{Price, Profile};
use cantrip::loom::{
    Actor, AnyLoom, CallId, Caller, Error, Event, GateCallRequest, Journal, RecordValue, RootView, Seq, Turn, Utterance,
};
use cantrip::reply::{AnyCode, Refusal, ReplyDraft, Success, codes};
use cantrip::{Cantrip, HumanDecision, PendingApproval, Verdict, Verifier};
use futures_util::TryStreamExt;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::crystal::RecordedCrystal;
use super::matcher::CallMatcher;
use super::record::{RecordedCall, RecordedRun, arguments_key, is_allowed};
use super::request::MissingCalls;
use crate::eval::read_body;
use cantrip_ds::refuse_store_error;

/// The actor that refuses what a backtest would have to ask a person.
const NOBODY: &str = "nobody";

/// The key of the data of a denied call, which tells that it was not recorded.
pub(super) const NOT_RECORDED: &str = "not_recorded";

/// The state of the answers, as far as the run is.
#[derive(Debug)]
struct AnswerState {
    /// For each call of the original, whether it has answered.
    used: Vec<bool>,
    /// True while every request of the run is one that the original made.
    follows: bool,
    /// The number of answers that the run got from its crystal or from the record.
    answered: usize,
}

/// The answers to one run of a backtest.
pub struct RecordAnswers {
    original: Arc<RecordedRun>,
    /// The cantrip of the original, with the descriptions of its gates.
    root: Option<RootView>,
    missing: MissingCalls,
    matcher: Option<Arc<dyn CallMatcher>>,
    /// True if the crystal must not be asked: such a run holds no money.
    is_free: bool,
    state: Mutex<AnswerState>,
}

impl fmt::Debug for RecordAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordAnswers").field("original", &self.original.run).finish_non_exhaustive()
    }
}

impl RecordAnswers {
    /// Returns the answers out of this original. `cantrip_id` is the cantrip that is cast: if it is the recorded one,
    /// the crystal is not asked as long as the run follows the record. `matcher` decides under the policy `judge`.
    pub fn new(
        original: Arc<RecordedRun>,
        root: Option<RootView>,
        cantrip_id: &str,
        missing: MissingCalls,
        matcher: Option<Arc<dyn CallMatcher>>,
    ) -> Self {
        let state = AnswerState {
            used: vec![false; original.calls.len()],
            follows: original.cantrip_id.to_string() == cantrip_id,
            answered: 0,
        };
        Self { original, root, missing, matcher, is_free: false, state: Mutex::new(state) }
    }

    /// Returns the answers to a run that holds no money, because the record answers each of its requests. If it leaves
    /// the record all the same, its crystal fails, and the run is tried again with money.
    #[must_use]
    pub fn without_money(self) -> Self {
        Self { is_free: true, ..self }
    }

    pub(super) fn is_free(&self) -> bool {
        self.is_free
    }

    fn state(&self) -> MutexGuard<'_, AnswerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the cantrip with its calls and requests answered from the record. `servers` are the servers of tools that
    /// were not started: their tools are those that the original had.
    pub fn apply(self: &Arc<Self>, cantrip: &Cantrip, servers: &[String]) -> Result<Cantrip, Refusal> {
        let answers: Arc<dyn CallAnswers> = Arc::clone(self) as Arc<dyn CallAnswers>;
        let profile: Profile = *cantrip.profile();
        let price = if self.is_free { Price::Free } else { cantrip.price() };
        let crystal = RecordedCrystal::new(cantrip.crystal().clone(), profile, price, Arc::clone(self));
        let answered = cantrip.with_answers(&answers, &self.recorded_tools(servers)).map_err(Refusal::from)?;
        let answered = answered.with_verifier(RecordedVerifier(Arc::clone(self)));
        answered.with_crystal(crystal).map_err(Refusal::from)
    }

    /// Returns the verdict on an answer: the recorded one, each once. An answer that was not given then is accepted,
    /// because the program that verifies is not run.
    fn verdict(&self, answer: &Value) -> Verdict {
        let key = arguments_key(&json!({ "answer": answer }));
        let mut state = self.state();
        let mut calls = self.original.calls.iter().enumerate();
        let rejected = calls.find(|(place, call)| {
            !state.used[*place] && call.gate == "done" && call.key == key && call.reply.code == malformed_code()
        });
        let Some((place, call)) = rejected else { return Verdict::Passed { score: None } };
        state.used[place] = true;
        let rule = call.data.get("rule").and_then(Value::as_str);
        Verdict::Failed { output: rule.unwrap_or("it was rejected").to_owned() }
    }

    /// Returns the tools of these servers as the crystal of the original was offered them.
    fn recorded_tools(&self, servers: &[String]) -> Vec<GateSpec> {
        let definitions = self.root.iter().flat_map(|root| &root.cantrip.definitions);
        let is_tool = |gate: &GateSpec| servers.iter().any(|server| is_tool_of(&gate.name, server));
        definitions.filter_map(gate_of_definition).filter(is_tool).collect()
    }

    /// Rebuilds the state from the records of a run that another process began. A run without records is left as it is.
    pub async fn restore(&self, loom: &AnyLoom, run: RunId) -> Result<(), Refusal> {
        let so_far = match recorded_so_far(loom, run).await {
            Ok(found) => found,
            Err(SoFarFault::Store(Error::NotFound { .. })) => return Ok(()),
            Err(SoFarFault::Store(error)) => return Err(refuse_store_error(error)),
            Err(SoFarFault::Refused(refusal)) => return Err(refusal),
        };
        let mut state = self.state();
        state.used.fill(false);
        state.follows &= !so_far.has_left;
        for call in so_far.calls {
            if self.take(&mut state, &call.gate, &call.key).is_none() {
                state.follows = false;
                self.take_judged(&mut state, &call);
            }
        }
        state.answered = so_far.answered;
        Ok(())
    }

    /// Takes the first unused recorded call of this gate with these arguments.
    fn take(&self, state: &mut AnswerState, gate: &str, key: &str) -> Option<&RecordedCall> {
        let mut calls = self.original.calls.iter().enumerate();
        let (place, call) = calls
            .find(|(place, call)| !state.used[*place] && call.was_answered() && call.gate == gate && call.key == key)?;
        state.used[place] = true;
        Some(call)
    }

    /// Takes the recorded call that a judge found for this one: the first unused one of the gate with the same result.
    fn take_judged(&self, state: &mut AnswerState, answered: &RecordedCall) {
        if self.missing != MissingCalls::Judge {
            return;
        }
        let mut calls = self.original.calls.iter().enumerate();
        let found = calls.find(|(place, call)| {
            let is_open = !state.used[*place] && call.was_answered();
            is_open && call.gate == answered.gate && call.result == answered.result
        });
        if let Some((place, _)) = found {
            state.used[place] = true;
        }
    }

    /// Returns the next recorded answer of the crystal, as long as the run follows the record. The first request that is
    /// not answered so is a new one, and so are all after it.
    pub(super) fn next_utterance(&self) -> Option<Turn> {
        let mut state = self.state();
        let next = self.original.utterances().nth(state.answered).filter(|_| state.follows).cloned();
        match next {
            Some(turn) => {
                state.answered += 1;
                Some(turn)
            }
            None => {
                state.follows = false;
                None
            }
        }
    }

    /// Counts an answer of the crystal. Returns the number of answers before it.
    pub(super) fn count_answer(&self) -> usize {
        let mut state = self.state();
        state.answered += 1;
        state.answered - 1
    }

    /// Notes that the run has this many answers, as its records tell.
    pub(super) fn note_answers(&self, answers: usize) {
        let mut state = self.state();
        state.answered = state.answered.max(answers);
    }

    /// Returns the thread of the original with one turn, for a crystal that repeats it.
    pub(super) fn thread_of(&self, turn: Turn) -> cantrip::loom::Thread {
        cantrip::loom::Thread { turns: vec![turn], ..self.original.thread.clone() }
    }

    /// Decides about a call that a ward wants a person to approve. A call that was made before was approved before, and
    /// is only answered from the record; any other is refused, with the words of the person who refused it then.
    pub fn decide(&self, asked: &PendingApproval) -> Result<HumanDecision, Refusal> {
        let (gate, key) = (canonical_name(&asked.gate), arguments_key(&asked.args));
        let same = |call: &&RecordedCall| call.gate == gate && call.key == key;
        let state = self.state();
        let mut calls = self.original.calls.iter().enumerate();
        let is_recorded = calls.any(|(place, call)| !state.used[place] && call.was_answered() && same(&call));
        drop(state);
        let refused = self.original.calls.iter().filter(same).find(|call| call.reply.code == refusal_code());
        let text = |key: &str| refused.and_then(|call| call.data.get(key)).and_then(Value::as_str);
        let actor = |name: &str| Actor::new(name).map_err(|_| Refusal::from(codes::crash()));
        if is_recorded {
            return Ok(HumanDecision::approve(actor(NOBODY)?));
        }
        let by = text("actor").and_then(|name| Actor::new(name).ok());
        let by = match by {
            Some(by) => by,
            None => actor(NOBODY)?,
        };
        Ok(HumanDecision::refuse(by, text("reason").unwrap_or("a backtest asks no person")))
    }

    /// Answers a call from the record, or by the policy.
    async fn answer_call(&self, gate: &GateSpec, arguments: Map<String, Value>) -> CallAnswer {
        let key = arguments_key(&Value::Object(arguments.clone()));
        let found = {
            let mut state = self.state();
            let found = self.take(&mut state, &gate.name, &key).map(recorded_reply);
            if found.is_none() {
                state.follows = false;
            }
            found
        };
        if let Some(reply) = found {
            return CallAnswer::Replied(reply);
        }
        if gate.is_pure() {
            // Its answer follows from the arguments alone.
            return CallAnswer::Live;
        }
        match self.missing {
            MissingCalls::ReadOnlyLive if gate.is_read_only() => CallAnswer::Live,
            MissingCalls::Deny | MissingCalls::ReadOnlyLive => denied(gate, self.missing),
            MissingCalls::Judge => self.answer_judged(gate, &arguments).await,
        }
    }

    /// Answers a call by the recorded one that means the same, if the judge finds one.
    async fn answer_judged(&self, gate: &GateSpec, arguments: &Map<String, Value>) -> CallAnswer {
        let Some(matcher) = &self.matcher else { return denied(gate, self.missing) };
        let open: Vec<(usize, Value)> = {
            let state = self.state();
            let calls = self.original.calls.iter().enumerate();
            calls
                .filter(|(place, call)| !state.used[*place] && call.was_answered() && call.gate == gate.name)
                .map(|(place, call)| (place, call.args.clone()))
                .collect()
        };
        let recorded: Vec<&Value> = open.iter().map(|(_, args)| args).collect();
        let chosen = matcher.choose(gate, arguments, &recorded).await;
        let place = chosen.and_then(|chosen| open.get(chosen)).map(|(place, _)| *place);
        let mut state = self.state();
        // A call that was made meanwhile may have taken it.
        let free = place.filter(|place| state.used.get(*place) == Some(&false));
        match free.and_then(|place| self.original.calls.get(place).map(|call| (place, call))) {
            Some((place, call)) => {
                state.used[place] = true;
                CallAnswer::Replied(recorded_reply(call))
            }
            None => denied(gate, self.missing),
        }
    }
}

impl CallAnswers for RecordAnswers {
    fn answer<'a>(&'a self, gate: &'a GateSpec, arguments: Map<String, Value>) -> AnsweringCall<'a> {
        Box::pin(self.answer_call(gate, arguments))
    }
}

/// Gives the recorded verdicts on answers.
struct RecordedVerifier(Arc<RecordAnswers>);

impl Verifier for RecordedVerifier {
    async fn verify(&self, answer: &Value) -> Result<Verdict, Refusal> {
        Ok(self.0.verdict(answer))
    }
}

/// Returns the code of a `done` that was not accepted.
fn malformed_code() -> &'static str {
    codes::DONE_MALFORMED.any().as_str()
}

/// Returns the code of a call that a person refused.
fn refusal_code() -> &'static str {
    codes::APPROVAL_REFUSED.any().as_str()
}

/// Returns the reply of a call that is neither in the record nor allowed by the policy.
fn denied(gate: &GateSpec, missing: MissingCalls) -> CallAnswer {
    let reason = match missing {
        MissingCalls::Deny => "a backtest answers from the record, and the recorded run did not make this call",
        MissingCalls::ReadOnlyLive => {
            "a backtest answers from the record, the recorded run did not make this call, and the gate does not only read"
        }
        MissingCalls::Judge => "a backtest answers from the record, and no recorded call means the same as this one",
    };
    let data = json!({ "backtest": NOT_RECORDED });
    CallAnswer::Replied(Err(codes::not_authorized(gate.name.as_str(), reason).data(data).into()))
}

/// Returns the reply of a recorded call, with its code.
fn recorded_reply(call: &RecordedCall) -> Result<ReplyDraft<Success>, Refusal> {
    if call.reply.is_success() {
        // The record of a success has its result alone. The fields of its message are shown to nobody.
        let mut fields = Map::new();
        if let Ok(code) = AnyCode::parse(&call.reply.code) {
            fields.extend(code.row().fields.iter().map(|field| ((*field).to_owned(), Value::from("recorded"))));
        }
        let draft = ReplyDraft::dynamic(&call.reply.code, Value::Object(fields));
        let draft = draft.unwrap_or_else(|_| codes::gate_ok(call.gate.as_str()));
        return Ok(draft.value(call.result.clone()));
    }
    let text = || call.result.as_str().map_or_else(|| call.result.to_string(), str::to_owned);
    Err(Refusal::dynamic(&call.reply.code, Value::Object(call.data.clone()))
        .unwrap_or_else(|_| codes::gate_reported(call.gate.as_str(), text()).into()))
}

/// Returns the gate that a recorded definition describes. Nothing is known of its promises.
fn gate_of_definition(definition: &Value) -> Option<GateSpec> {
    let name = definition.get("name")?.as_str()?;
    let description = definition.get("description").and_then(Value::as_str).unwrap_or_default();
    let parameters = definition.get("parameters").cloned().unwrap_or_else(|| json!({"type": "object"}));
    Some(GateSpec::new(name, description, parameters))
}

/// Returns true if a gate has the name of a tool of this server: the name of the server, and an underscore.
fn is_tool_of(gate: &str, server: &str) -> bool {
    let plain: String =
        server.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' }).collect();
    gate.strip_prefix(plain.as_str()).is_some_and(|rest| rest.starts_with('_'))
}

/// The reason why the records of a run could not be read.
enum SoFarFault {
    Store(Error),
    Refused(Refusal),
}

impl From<Error> for SoFarFault {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<Refusal> for SoFarFault {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// A run as far as its records are.
#[derive(Default)]
struct SoFar {
    /// The number of answers that it got.
    answered: usize,
    /// The calls that were answered, in order.
    calls: Vec<RecordedCall>,
    /// True if a call was denied that the original did not make.
    has_left: bool,
}

/// Reads a run as far as it is.
async fn recorded_so_far(loom: &AnyLoom, run: RunId) -> Result<SoFar, SoFarFault> {
    let mut utterances: HashMap<TurnId, Utterance> = HashMap::new();
    let mut asked: HashMap<CallId, (String, Value)> = HashMap::new();
    let mut so_far = SoFar::default();
    let mut records = std::pin::pin!(loom.read(run, Seq::START));
    while let Some(record) = records.try_next().await? {
        let event = record.event()?;
        if let Event::Opened(opened) = event {
            so_far.answered += 1;
            utterances.insert(opened.turn_id, held(loom, opened.utterance).await?);
        } else if let Event::Started(started) = event {
            if let Some(request) = started.asked {
                asked.insert(started.call_id, requested(loom, request).await?);
            }
        } else if let Event::Settled(settled) = event {
            let was_entered = !settled.reply.code.is_empty() && settled.call_id.number() > 0;
            let spelled = match settled.asked {
                Some(request) => Some(requested(loom, request).await?),
                None => asked.remove(&settled.call_id),
            };
            let call = spelled.or_else(|| uttered(&utterances, settled.call_id));
            let Some((gate, args)) = call.filter(|_| was_entered) else { continue };
            let gate = canonical_name(&gate).to_owned();
            let mark = RecordedCall {
                turn: 0,
                key: arguments_key(&args),
                gate,
                args,
                result: held(loom, settled.result).await?,
                reply: settled.reply,
                data: Map::new(),
                was_allowed: is_allowed(settled.decision.as_ref()),
            };
            so_far.has_left |= mark.reply.code == codes::NOT_AUTHORIZED.any().as_str();
            if mark.was_answered() && mark.gate != "done" {
                so_far.calls.push(mark);
            }
        }
    }
    Ok(so_far)
}

/// Returns the call of an utterance as the crystal wrote it.
fn uttered(utterances: &HashMap<TurnId, Utterance>, id: CallId) -> Option<(String, Value)> {
    let turn = match id.caller() {
        Caller::Turn(turn) => turn,
        Caller::Fold(_) => return None,
    };
    let place = usize::try_from(id.number()).ok()?.checked_sub(1)?;
    let call = utterances.get(&turn)?.calls.get(place)?;
    Some((call.gate.clone(), call.args.clone()))
}

async fn requested(loom: &AnyLoom, request: GateCallRequest) -> Result<(String, Value), Refusal> {
    Ok((request.gate, held(loom, request.args).await?))
}

/// Returns a value of a record, read from its body if it has one.
async fn held<T: DeserializeOwned>(loom: &AnyLoom, value: RecordValue<T>) -> Result<T, Refusal> {
    let altered = |hash: Hash| Refusal::from(codes::record_altered("body", hash.to_string(), "bytes"));
    match value {
        RecordValue::Inline { inline } => Ok(inline),
        RecordValue::Body(reference) => {
            let content = read_body(loom, reference.hash).await?;
            serde_json::from_value(content).map_err(|_| altered(reference.hash))
        }
    }
}
