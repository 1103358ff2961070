//! The execution of an utterance's calls, one by one or in parallel.

use std::sync::Arc;

use cantrip_canon::{EntityId, TurnId};
use cantrip_circle::gate::{Identity, canonical_name};
use cantrip_circle::limits::TOGETHER_MAX;
use cantrip_circle::medium::CallTarget;
use cantrip_circle::{
    ApprovalReason, CallArguments, CallRequest as Asking, CallerState, Decision, Delegation, Effect as Decided, Labels,
    Permit,
};
use cantrip_loom::{
    CallId, CallStarted, CallWork as Working, Closing, Error, Event, GateCall, GateCallRequest, TurnClosed,
};
use cantrip_reply::{Refusal, codes};
use serde_json::{Map, Value};

use super::admission::{AdmissionEntry, CallPath, needs_no_record};
use super::group::RequestedCall;
use super::money::HoldDraft as Paid;
use super::predict::PredictOrigin;
use super::{CallTask, CallTaskKind, ChildSpec, Effect, Machine, SpawnRequest, StepContext};

/// One call that is being checked.
#[derive(Debug, Clone)]
pub(super) struct PendingCall {
    pub number: u32,
    /// The gate name as the crystal wrote it.
    pub gate: String,
    pub given: CallArguments,
    pub tool_call_id: Option<String>,
    /// True if the records must contain the requested call, because the utterance does not.
    pub spelled: bool,
}

impl PendingCall {
    /// Returns the call with this number, as its utterance has it.
    fn of_utterance(number: u32, call: &GateCall) -> Self {
        Self {
            number,
            gate: call.gate.clone(),
            given: CallArguments::Tool(call.args.clone()),
            tool_call_id: Some(call.tool_call_id.clone()),
            spelled: canonical_name(&call.gate) != call.gate,
        }
    }

    pub(super) fn args(&self) -> Value {
        match &self.given {
            CallArguments::Tool(value) => value.clone(),
            CallArguments::Code(Ok(arguments)) => Value::Object(arguments.clone()),
            CallArguments::Code(Err(_)) => Value::Object(Map::new()),
        }
    }
}

/// Returns the refusal of a call whose arguments were cut off at the output limit.
fn cut_off_refusal(gate: &str) -> Refusal {
    let detail = "your answer was cut off there, at the limit of its output tokens; write less in one answer";
    codes::unparsable(format!("arguments of {gate}"), "the end", detail).into()
}

/// The result of the circle's checks, and the circle's reasons for asking a person first.
pub(super) struct CheckedCall {
    way: CallPath,
    reasons: Vec<ApprovalReason>,
}

impl CheckedCall {
    /// Returns true if the call only reads, costs nothing and needs no approval: it may run in parallel with its
    /// neighbours.
    fn can_run_in_parallel(&self) -> bool {
        let reads = matches!(&self.way, CallPath::Enter(permit) if permit.gate().spec().is_read_only());
        reads && self.reasons.is_empty() && self.way.cost().is_none()
    }
}

impl Machine {
    pub(super) fn act(&mut self, world: &StepContext<'_>) -> Result<Option<Effect>, Error> {
        if let Some(effect) = self.cast_predict(world)? {
            return Ok(Some(effect));
        }
        let facts = Arc::clone(&self.facts);
        let halted = self.halt;
        if halted.is_some() {
            // Calls that were about to start do not start.
            self.admission.cancel();
        } else if self.admission.is_pending() {
            return self.step_admission(world);
        } else if let Some(waits) = self.admission.take_approval() {
            return self.request_approval(waits, world);
        }
        let group = self.open_group()?;
        if group.program.is_some() {
            return self.step_program(world);
        }
        let over = group.cursor >= group.length() || (group.done.is_some() && !facts.circle.medium().is_code());
        if let Some(reason) = halted {
            // Calls that were started by another process must still be settled.
            return match group.first_stale() {
                Some(number) if group.delegates(number) => self.resume_delegation(number).map(Some),
                Some(number) => self.refuse_stale_call(number, self.halt_refusal(reason)).map(Some),
                None => self.close(world),
            };
        }
        if over {
            return self.close(world);
        }
        let Some(call) = group.said.calls.get(group.cursor).cloned() else {
            let source = group.fenced.clone().unwrap_or_default();
            return self.start_program(source, None).map(Some);
        };
        let taken = match group.is_cut_call(group.cursor) {
            true => CallTarget::Refused(cut_off_refusal(&call.gate)),
            false => facts.medium.0.interpret(&facts.circle, &call),
        };
        match taken {
            CallTarget::Gate(_) => self.next_batch(world),
            CallTarget::Program(source) => self.start_program(source, Some(call.tool_call_id)).map(Some),
            CallTarget::Refused(refusal) => {
                let number = group.number;
                if group.is_settled(number) {
                    group.cursor += 1;
                    group.number += 1;
                    return Ok(None);
                }
                let asks = PendingCall { spelled: true, ..PendingCall::of_utterance(number, &call) };
                self.refuse(&asks, refusal).map(|work| Some(Effect::Execute(vec![work])))
            }
        }
    }

    /// Admits the next calls that may run in parallel: neighbours that only read, or one call that does not.
    fn next_batch(&mut self, world: &StepContext<'_>) -> Result<Option<Effect>, Error> {
        let mut touched = self.touched.clone();
        let group = self.open_group()?;
        while group.cursor < group.said.calls.len() && group.is_settled(group.number) {
            group.cursor += 1;
            group.number += 1;
        }
        let (said, first, from) = (Arc::clone(&group.said), group.number, group.cursor);
        let (mut entries, mut again) = (Vec::new(), Vec::new());
        let mut together = 0;
        for (number, call) in (first..).zip(&said.calls[from..]) {
            if self.open_group()?.stale_call(number).is_some() {
                if !entries.is_empty() || again.len() == TOGETHER_MAX {
                    break;
                }
                if self.open_group()?.delegates(number) {
                    if again.is_empty() {
                        return self.resume_delegation(number).map(Some);
                    }
                    break;
                }
                again.push(number);
                continue;
            }
            let place = from + usize::try_from(number - first).unwrap_or(usize::MAX);
            if !again.is_empty() || self.open_group()?.is_settled(number) || self.open_group()?.is_cut_call(place) {
                break;
            }
            let asks = PendingCall::of_utterance(number, call);
            let examined = self.check_call(&asks, &touched, world);
            if let CallPath::Refused(_) = examined.way {
                entries.push(AdmissionEntry::new(asks, examined.way, Vec::new(), touched.clone()));
            } else if examined.can_run_in_parallel() {
                if together == TOGETHER_MAX {
                    break;
                }
                together += 1;
                let before = touched.clone();
                if let CallPath::Enter(permit) = &examined.way {
                    touched.take(&permit.gate().spec().labels);
                }
                entries.push(AdmissionEntry::new(asks, examined.way, Vec::new(), before));
            } else {
                if entries.is_empty() {
                    self.alone(asks, examined, touched);
                    return Ok(None);
                }
                break;
            }
        }
        if !again.is_empty() {
            return self.repeat_calls(again, world);
        }
        if !entries.is_empty() {
            self.admit_calls(entries);
        }
        Ok(None)
    }

    /// Admits one call by itself.
    pub(super) fn alone(&mut self, asks: PendingCall, examined: CheckedCall, touched: Labels) {
        self.admit_calls(vec![AdmissionEntry::new(asks, examined.way, examined.reasons, touched)]);
    }

    /// Runs the circle's checks in their order: name, arguments, schema, wards, approval. If a ledger is kept, policy
    /// denies the calls that would complete the trifecta when no person can be asked.
    pub(super) fn check_call(&self, asks: &PendingCall, touched: &Labels, world: &StepContext<'_>) -> CheckedCall {
        let standing = CallerState {
            calls: u64::from(asks.number.saturating_sub(1)),
            touched: touched.clone(),
            children: self.tally.children(),
            can_ask_person: self.facts.askable || world.funds.is_counted(),
        };
        let asked = Asking { gate: &asks.gate, arguments: asks.given.clone() };
        let (effect, reasons) = match self.facts.circle.decide(asked, &standing) {
            Decision::Refused(refusal) => return CheckedCall { way: CallPath::Refused(refusal), reasons: Vec::new() },
            Decision::Allowed(effect) => (effect, Vec::new()),
            Decision::NeedsApproval { reasons, then } => (then, reasons),
        };
        let way = match effect {
            Decided::Execute(permit) => CallPath::Enter(permit),
            Decided::Done { answer } => CallPath::Done(answer),
            Decided::Delegate(delegation) => CallPath::Delegate(delegation),
        };
        CheckedCall { way, reasons }
    }

    pub(super) fn call_task(
        &mut self,
        number: u32,
        gate: &str,
        tool_call_id: Option<String>,
        kind: CallTaskKind,
    ) -> Result<CallTask, Error> {
        let group = self.open_group()?;
        let (call, turn) = (group.call_id(number), group.turn);
        let identity = self.identity(turn, call, tool_call_id);
        Ok(CallTask { number, gate: gate.to_owned(), identity, idempotency_key: None, kind })
    }

    pub(super) fn identity(&self, turn_id: TurnId, call_id: CallId, tool_call_id: Option<String>) -> Identity {
        Identity { run_id: self.facts.run, entity_id: self.facts.entity, turn_id, call_id, tool_call_id }
    }

    /// Returns the requested call if the records must contain it.
    fn asked_for(&mut self, asks: &PendingCall, gate: &str, args: Value) -> Result<Option<GateCallRequest>, Error> {
        if !asks.spelled {
            return Ok(None);
        }
        let args = self.drafts.hold(args)?;
        Ok(Some(GateCallRequest { gate: gate.to_owned(), args, tool_call_id: asks.tool_call_id.clone() }))
    }

    fn spell(&mut self, asks: &PendingCall, gate: &str, args: Value) -> Result<(), Error> {
        if asks.spelled {
            let spelled = RequestedCall { gate: gate.to_owned(), args, tool_call_id: asks.tool_call_id.clone() };
            self.open_group()?.spelled.insert(asks.number, spelled);
        }
        Ok(())
    }

    pub(super) fn refuse(&mut self, asks: &PendingCall, refusal: Refusal) -> Result<CallTask, Error> {
        let gate = canonical_name(&asks.gate);
        self.spell(asks, gate, asks.args())?;
        self.call_task(asks.number, gate, asks.tool_call_id.clone(), CallTaskKind::Refuse(refusal))
    }

    pub(super) fn enter(
        &mut self,
        asks: &PendingCall,
        permit: Permit,
        held: Option<Paid>,
        world: &StepContext<'_>,
    ) -> Result<CallTask, Error> {
        let gate = permit.gate().name().to_owned();
        let args = Value::Object(permit.arguments().clone());
        let mut key = None;
        if needs_no_record(&permit) {
            self.spell(asks, &gate, args)?;
        } else {
            let asked = self.asked_for(asks, &gate, args)?;
            let call_id = self.open_group()?.call_id(asks.number);
            // The provider receives the key of the payment.
            key = Some(held.as_ref().map_or_else(|| call_id.to_string(), |held| held.provider_key.as_str().to_owned()));
            let (reservation_id, operation) = held.map(|held| (held.reservation, held.operation)).unzip();
            self.drafts.add_money(operation);
            let started =
                CallStarted { call_id, work: Working::Gate, asked, idempotency_key: key.clone(), reservation_id };
            self.draft(started, world)?;
        }
        let mut work = self.call_task(asks.number, &gate, asks.tool_call_id.clone(), CallTaskKind::Enter(permit))?;
        work.idempotency_key = key;
        Ok(work)
    }

    /// Handles `done`: the verifier, if there is one, checks the answer, and then the answer ends the cast.
    pub(super) fn handle_done(
        &mut self,
        asks: &PendingCall,
        answer: Value,
        world: &StepContext<'_>,
    ) -> Result<CallTask, Error> {
        let args = Value::Object(Map::from_iter([("answer".to_owned(), answer.clone())]));
        let kind = if self.facts.definition.is_verified() {
            let asked = self.asked_for(asks, "done", args)?;
            let call_id = self.open_group()?.call_id(asks.number);
            let started =
                CallStarted { call_id, work: Working::Verifier, asked, idempotency_key: None, reservation_id: None };
            self.draft(started, world)?;
            CallTaskKind::Verify(answer)
        } else {
            self.spell(asks, "done", args)?;
            CallTaskKind::Answer(codes::gate_ok("done").value(answer))
        };
        self.call_task(asks.number, "done", asks.tool_call_id.clone(), kind)
    }

    /// Closes the current turn and creates the children, in one step.
    pub(super) fn delegate(
        &mut self,
        asks: &PendingCall,
        delegation: Delegation,
        world: &StepContext<'_>,
    ) -> Result<Effect, Error> {
        let call = self.open_group()?.call_id(asks.number);
        let children = match self.child_specs(call, &delegation) {
            Ok(children) => children,
            Err(refusal) => return self.refuse(asks, refusal).map(|work| Effect::Execute(vec![work])),
        };
        let entities = children.iter().map(|child| child.entity).collect();
        self.seal(asks, &delegation, entities, children, world)
    }

    /// Closes the current turn with a call that spawns these entities. In replay they are not cast again.
    pub(super) fn seal(
        &mut self,
        asks: &PendingCall,
        delegation: &Delegation,
        entities: Vec<EntityId>,
        mut children: Vec<ChildSpec>,
        world: &StepContext<'_>,
    ) -> Result<Effect, Error> {
        let asked = self.asked_for(asks, &delegation.gate, Value::Object(delegation.arguments.clone()))?;
        let group = self.open_group()?;
        let (call, turn, since) = (group.call_id(asks.number), group.turn, group.since);
        // The outputs of earlier programs belong to the turn that the programs ran in.
        let outputs = group.outputs.clone();
        let identity = self.identity(turn, call, asks.tool_call_id.clone());
        let work = Working::Delegation { children: entities };
        self.draft(CallStarted { call_id: call, work, asked, idempotency_key: None, reservation_id: None }, world)?;
        let sealed = TurnClosed {
            turn_id: turn,
            closing: Closing::Sealed { call, next: world.ids.next(world.now.wall) },
            duration_ms: super::millis_up(world.now.monotonic.since(since)),
            outputs: if outputs.is_empty() { None } else { Some(self.drafts.hold(outputs)?) },
            snapshot: None,
        };
        self.draft(sealed, world)?;
        let touched = self.touched.clone();
        for child in &mut children {
            let cast = world.ids.next(world.now.wall);
            child.cast = Some(cast);
            let (scope, cap) = self.child_scope(child, cast, world);
            child.scope = Some(scope.clone());
            self.drafts.add_money(cap);
            let records: Vec<Event> = child.records(turn, cast, scope, &touched, self.drafts.bodies())?;
            for record in records {
                self.draft(record, world)?;
            }
        }
        Ok(Effect::Spawn(SpawnRequest { parent: turn, gate: delegation.gate.clone(), identity, children }))
    }

    fn child_specs(&self, call: CallId, delegation: &Delegation) -> Result<Vec<ChildSpec>, Refusal> {
        let children = (0..).zip(&delegation.children);
        let born =
            children.map(|(index, child)| ChildSpec::for_call(call, index, child.clone(), &self.facts.definition));
        let born: Vec<ChildSpec> = born.collect::<Result<_, _>>()?;
        for child in &born {
            let medium = child.child.circle.medium();
            if !child.definition.serves(medium) {
                return Err(codes::sandbox_unavailable(medium.as_str(), "nothing serves it here").into());
            }
        }
        Ok(born)
    }

    /// Resumes a delegation that was started before, with its children.
    pub(super) fn resume_delegation(&mut self, number: u32) -> Result<Effect, Error> {
        let again = self.decide_again(number, Labels::none())?.map(|(effect, _)| effect);
        let group = self.open_group()?;
        let (call, tool_call_id) = (group.call_id(number), group.stale_tool_call(number));
        match (again, self.position.parent()) {
            (Some(Decided::Delegate(delegation)), Some(_)) if delegation.predict.is_some() => {
                self.prepare(PredictOrigin::Before(number), delegation)
            }
            (Some(Decided::Delegate(delegation)), Some(parent)) => match self.child_specs(call, &delegation) {
                Ok(children) => {
                    let identity = self.identity(parent, call, tool_call_id);
                    Ok(Effect::Spawn(SpawnRequest { parent, gate: delegation.gate, identity, children }))
                }
                Err(refusal) => self.refuse_stale_call(number, refusal),
            },
            (Some(Decided::Delegate(_) | Decided::Execute(_) | Decided::Done { .. }) | None, _) => {
                let gate = self.stale_gate(number)?;
                self.refuse_stale_call(number, codes::outcome_unknown(gate).into())
            }
        }
    }

    /// Handles calls that were started before and have no answer. Calls that are made again are judged again, because
    /// the permission may have been revoked since.
    pub(super) fn repeat_calls(&mut self, numbers: Vec<u32>, world: &StepContext<'_>) -> Result<Option<Effect>, Error> {
        let mut entries = Vec::new();
        for number in numbers.iter().copied().filter(|_| world.funds.is_counted()) {
            let group = self.open_group()?;
            if group.decisions.contains_key(&number) || group.reservation(number).is_some() {
                continue;
            }
            let touched = self.touched.clone();
            let (Some(asks), Some((Decided::Execute(permit), reasons))) =
                (self.stale_pending_call(number)?, self.decide_again(number, touched.clone())?)
            else {
                continue;
            };
            if permit.gate().spec().is_idempotent() {
                entries.push(AdmissionEntry::new(asks, CallPath::Enter(permit), reasons, touched));
            }
        }
        if !entries.is_empty() {
            self.readmit_calls(entries, numbers);
            return Ok(None);
        }
        let works = numbers.into_iter().map(|number| self.resume_call(number)).collect::<Result<_, _>>()?;
        Ok(Some(Effect::Execute(works)))
    }

    /// Returns the request of a call that was started before.
    fn stale_pending_call(&mut self, number: u32) -> Result<Option<PendingCall>, Error> {
        let code = self.facts.circle.medium().is_code();
        let Some((call, _, _)) = self.open_group()?.stale_call(number) else { return Ok(None) };
        let given = match (code, call.args.clone()) {
            (true, Value::Object(arguments)) => CallArguments::Code(Ok(arguments)),
            (_, args) => CallArguments::Tool(args),
        };
        let (gate, tool_call_id) = (call.gate.clone(), call.tool_call_id.clone());
        Ok(Some(PendingCall { number, gate, given, tool_call_id, spelled: false }))
    }

    /// Returns the task for a call that was started before and has no answer.
    pub(super) fn resume_call(&mut self, number: u32) -> Result<CallTask, Error> {
        let again = self.decide_again(number, Labels::none())?.map(|(effect, _)| effect);
        let gate = self.stale_gate(number)?;
        let (key, tool_call_id) = match self.open_group()?.stale_call(number) {
            Some((call, _, key)) => (key.cloned(), call.tool_call_id.clone()),
            None => (None, None),
        };
        // A paid call is made again only if its hold was kept.
        let paid = self.open_group()?.reservation(number).cloned();
        let kept = paid.is_none_or(|reservation| self.adopted.contains(&reservation));
        let kind = match again {
            Some(Decided::Execute(permit)) if kept && permit.gate().spec().is_idempotent() => {
                CallTaskKind::Enter(permit)
            }
            Some(Decided::Done { answer }) => CallTaskKind::Verify(answer),
            Some(Decided::Execute(_) | Decided::Delegate(_)) | None => {
                CallTaskKind::Refuse(codes::outcome_unknown(gate.as_str()).into())
            }
        };
        let mut work = self.call_task(number, &gate, tool_call_id, kind)?;
        work.idempotency_key = key;
        Ok(work)
    }

    pub(super) fn refuse_stale_call(&mut self, number: u32, refusal: Refusal) -> Result<Effect, Error> {
        let gate = self.stale_gate(number)?;
        Ok(Effect::Execute(vec![self.call_task(number, &gate, None, CallTaskKind::Refuse(refusal))?]))
    }

    fn stale_gate(&mut self, number: u32) -> Result<String, Error> {
        let fault = self.incoherent("started", "it is not there");
        self.open_group()?.calls.get(&number).map(|call| call.gate.clone()).ok_or(fault)
    }

    /// Decides again on a call that was started before. Returns the allowed effect and the reasons for asking a person;
    /// the circle decides the same way each time.
    fn decide_again(&mut self, number: u32, touched: Labels) -> Result<Option<(Decided, Vec<ApprovalReason>)>, Error> {
        let Some(asks) = self.stale_pending_call(number)? else { return Ok(None) };
        let standing = CallerState { calls: 0, touched, can_ask_person: true, children: 0 };
        Ok(match self.facts.circle.decide(Asking { gate: &asks.gate, arguments: asks.given }, &standing) {
            Decision::Refused(_) => None,
            Decision::Allowed(effect) => Some((effect, Vec::new())),
            Decision::NeedsApproval { then, reasons } => Some((then, reasons)),
        })
    }
}
