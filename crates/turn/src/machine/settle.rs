//! The outcomes of calls and children, and how they are recorded.

use cantrip_canon::Money;
use cantrip_circle::gate::UnknownCharge;
use cantrip_loom::{CallSettled, CallWork as Working, ChildRecord, Error, GateCallRequest, ReplyMark};
use cantrip_reply::{Refusal, ReplyType, codes};
use cantrip_spend::{Operation, Transition, UnknownOutcome};
use serde_json::{Value, json};

use super::group::CallState;
use super::{CallOutcome, CallTaskKind, ChildOutcome, Effect, Machine, StepContext};

impl Machine {
    /// Records the replies of calls, in the order of the calls, whichever ended first.
    pub(super) fn settle_calls(&mut self, worked: Vec<CallOutcome>, world: &StepContext<'_>) -> Result<(), Error> {
        self.admission.end_payment();
        for worked in worked {
            let cost = self.settle_call(&worked, world)?;
            let CallOutcome { number, reply, result, data, duration_ms, changes, bodies, clock, score, .. } = worked;
            self.drafts.bodies().extend(bodies);
            let spelled = self.open_group()?.spelled.remove(&number);
            let asked = match spelled {
                Some(spelled) => Some(GateCallRequest {
                    gate: spelled.gate,
                    args: self.drafts.hold(spelled.args)?,
                    tool_call_id: spelled.tool_call_id,
                }),
                None => None,
            };
            let gate = match &asked {
                Some(asked) => Some(asked.gate.clone()),
                None => self.gate_of(number)?,
            };
            let ephemeral = gate.and_then(|gate| self.facts.circle.gate(&gate).map(|gate| gate.spec().ephemeral));
            let grown = std::mem::take(&mut self.open_group()?.grown);
            let (decision, judged) = self.open_group()?.decisions.remove(&number).unzip();
            let judged = judged.flatten();
            let settled = CallSettled {
                call_id: self.open_group()?.call_id(number),
                reply,
                result: self.drafts.hold(result)?,
                duration_ms,
                asked,
                ephemeral: ephemeral.unwrap_or(false),
                data: if data.is_empty() { None } else { Some(Box::new(self.drafts.hold(data)?)) },
                children: grown.into_iter().map(child_record).collect(),
                changes,
                clock_ms: u64::try_from(clock.unix_millis()).ok(),
                cost,
                decision,
                judged: judged.map(Box::new),
                attempt: None,
                usage: None,
            };
            self.draft(settled, world)?;
            let group = self.open_group()?;
            group.score = score.or(group.score);
        }
        Ok(())
    }

    /// Settles the money that was held for a call, in the step of its reply. Returns the cost, if it is known.
    fn settle_call(&mut self, worked: &CallOutcome, world: &StepContext<'_>) -> Result<Option<Money>, Error> {
        let group = self.open_group()?;
        let (held, fresh) = (group.reservation(worked.number).cloned(), group.is_fresh(worked.number));
        let Some(reservation) = held else { return Ok(worked.cost) };
        if !fresh && !self.adopted.contains(&reservation) {
            // The process that took the run over has already marked the outcome as unknown.
            return Ok(None);
        }
        let at = world.now.wall;
        let held = self.worst_cost_of(worked.number)?;
        let unknown = |why| (Operation::unknown(reservation.clone(), why, at), None);
        let paid =
            |cost: Money| (Operation::commit(reservation.clone(), cost, worked.correlation.clone(), at), Some(cost));
        let (operation, cost) = match (worked.doubt, worked.cost, &worked.reply) {
            (Some(UnknownCharge::Cut), _, _) => unknown(UnknownOutcome::TimedOut),
            (Some(UnknownCharge::NoCorrelation), _, _) => unknown(UnknownOutcome::MissingProviderCorrelationId),
            (Some(UnknownCharge::NoCost), _, _) => unknown(UnknownOutcome::UsageNotReported),
            (Some(UnknownCharge::Failed), _, _) => unknown(UnknownOutcome::Failed),
            // There are no exchange rates: a cost in another currency counts as not reported.
            (None, Some(cost), _) if held.is_some_and(|held| held.currency() != cost.currency()) => {
                unknown(UnknownOutcome::UsageNotReported)
            }
            (None, Some(cost), reply) if reply.is_success() || cost.micros() > 0 => paid(cost),
            (None, None, reply) if reply.is_success() => match held {
                Some(amount) => paid(amount),
                None => unknown(UnknownOutcome::UsageNotReported),
            },
            // A call that never left, was invalid or was denied has not been charged for.
            (None, Some(_), _) => (Operation::release(reservation.clone(), at), None),
            (None, None, reply) => match reply.reply_type {
                _ if worked.unbegun => (Operation::release(reservation.clone(), at), None),
                ReplyType::Invalid | ReplyType::Denied => (Operation::release(reservation.clone(), at), None),
                ReplyType::Success | ReplyType::Failure => unknown(UnknownOutcome::Failed),
            },
        };
        // A call that another owner started may have been charged for, whatever prevents it from being made again.
        let released = matches!(operation, Operation::Move { to: Transition::Release, .. });
        let operation =
            if released && !fresh { Operation::unknown(reservation, UnknownOutcome::Crashed, at) } else { operation };
        self.drafts.add_money([operation]);
        Ok(cost)
    }

    /// Returns the worst cost of a call that is under way.
    fn worst_cost_of(&mut self, number: u32) -> Result<Option<Money>, Error> {
        let Some(call) = self.open_group()?.calls.get(&number) else { return Ok(None) };
        let (gate, args) = (call.gate.clone(), call.args.clone());
        let Value::Object(arguments) = args else { return Ok(None) };
        Ok(self.facts.circle.gate(&gate).and_then(|gate| gate.worst_cost(&arguments)))
    }

    fn gate_of(&mut self, number: u32) -> Result<Option<String>, Error> {
        let place = usize::try_from(number).unwrap_or(usize::MAX).wrapping_sub(1);
        let group = self.open_group()?;
        let started = group.calls.get(&number).map(|call| call.gate.clone());
        Ok(started.or_else(|| group.said.calls.get(place).map(|call| call.gate.clone())))
    }

    /// Handles the end of all children of a delegation: their outcomes are its answer.
    pub(super) fn settle_children(&mut self, grown: Vec<ChildOutcome>) -> Result<(), Error> {
        let halted = self.halt;
        let fault = self.incoherent("settled", "no delegation is under way");
        let found = self.open_group()?.calls.iter().find_map(|(number, call)| match &call.state {
            CallState::Started { work: Working::Delegation { .. }, .. } => {
                Some((*number, call.gate.clone(), call.tool_call_id.clone()))
            }
            CallState::Started { work: Working::Gate | Working::Verifier, .. } | CallState::Settled(_) => None,
        });
        let (number, gate, tool_call_id) = found.ok_or(fault)?;
        let cut_off = grown.iter().any(|child| child.answer.is_err());
        let predicted = self.predict_reply(&grown);
        let kind = match (halted, predicted) {
            (Some(reason), _) if cut_off => CallTaskKind::Refuse(self.halt_refusal(reason)),
            (Some(_) | None, Some(kind)) => kind,
            (Some(_) | None, None) if gate == "call_agent_batch" => {
                let answers: Vec<Value> = grown.iter().map(element).collect();
                CallTaskKind::Answer(codes::gate_ok(gate.as_str()).value(answers))
            }
            (Some(_) | None, None) => match grown.first() {
                Some(ChildOutcome { answer: Ok(value), .. }) => {
                    CallTaskKind::Answer(codes::gate_ok(gate.as_str()).value(value.clone()))
                }
                Some(child @ ChildOutcome { answer: Err((reason, _)), .. }) => {
                    CallTaskKind::Refuse(child_failed(child, reason.as_str()))
                }
                None => CallTaskKind::Refuse(codes::outcome_unknown(gate.as_str()).into()),
            },
        };
        let work = self.call_task(number, &gate, tool_call_id, kind)?;
        self.kin.extend(grown.iter().map(|child| (child.entity, child.touched.clone())));
        self.open_group()?.grown = grown;
        self.ready = Some(Effect::Execute(vec![work]));
        Ok(())
    }
}

fn child_failed(child: &ChildOutcome, reason: &str) -> Refusal {
    let ReplyMark { reply_type, code } = &child.reply;
    let data = json!({"child": {"type": reply_type, "code": code}});
    codes::child_failed(child.entity.to_string(), reason).data(data).into()
}

fn child_record(child: ChildOutcome) -> ChildRecord {
    let reason = child.answer.err().map(|(reason, _)| reason);
    ChildRecord { entity_id: child.entity, reply: child.reply, reason }
}

/// Returns one element of a batch's answer.
fn element(child: &ChildOutcome) -> Value {
    match &child.answer {
        Ok(value) => value.clone(),
        Err((reason, fault)) => {
            let message = fault.as_ref().map_or_else(|| reason.as_str().to_owned(), |fault| fault.message.clone());
            let code = codes::CHILD_FAILED.any();
            let message = format!("child {} failed: {}: {message}", child.entity, reason.as_str());
            json!({"error": {"type": code.reply_type(), "code": code, "message": message}})
        }
    }
}
