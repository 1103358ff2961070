//! Applying records: the only place where the state of a machine changes.

use std::sync::Arc;

use cantrip_canon::{Instant, Timestamp};
use cantrip_loom::{
    Bodies, CallSettled, CallStarted, CallWork as Working, Caller, Closing, EndedBy, Ending, Error, Event,
    GateCallRequest, GateRecord, SettledCall, Settlement, TurnClosed, TurnOpened,
};
use serde_json::Value;

use super::group::{CallState, GroupCall, OpenGroup};
use super::request::RequestInProgress;
use super::{CastFailure, Machine, Phase, StepContext};
use crate::list::ClosedTurn;

impl Machine {
    /// Applies a record of this cast that was read back. `now` is the time of reading, because the time that passed
    /// before was not measured.
    pub fn apply(&mut self, event: &Event, at: Timestamp, now: Instant, bodies: &dyn Bodies) -> Result<(), Error> {
        self.apply_event(event, at, now, bodies, false)
    }

    pub(super) fn apply_drafted(
        &mut self,
        event: &Event,
        bodies: &dyn Bodies,
        world: &StepContext<'_>,
    ) -> Result<(), Error> {
        self.apply_event(event, world.now.wall, world.now.monotonic, bodies, true)
    }

    fn apply_event(
        &mut self,
        event: &Event,
        at: Timestamp,
        now: Instant,
        bodies: &dyn Bodies,
        fresh: bool,
    ) -> Result<(), Error> {
        match event {
            Event::Attempt(attempt) => match (attempt.call_id.caller(), &mut self.phase) {
                (Caller::Turn(turn), Phase::Asking(request)) if !request.is_folding() => {
                    request.note_turn(turn);
                    request.note_attempt(attempt, fresh);
                    Ok(())
                }
                (Caller::Fold(_), Phase::Asking(request)) if request.is_folding() => {
                    request.note_attempt(attempt, fresh);
                    Ok(())
                }
                // The process that was writing the fold is gone: the fold is begun again.
                (Caller::Fold(_), Phase::Asking(request)) => {
                    request.note_fold(false);
                    Ok(())
                }
                (Caller::Turn(_), Phase::Asking(_)) | (_, Phase::Acting(_) | Phase::Ended) => {
                    Err(self.incoherent("attempt", "a turn is open"))
                }
            },
            Event::Opened(opened) => self.apply_opened(opened, at, now, bodies),
            Event::Started(started) => self.apply_started(started, bodies, fresh),
            Event::Settled(settled) => self.apply_settled(settled, bodies),
            Event::Turn(closed) => self.apply_closed(closed, now, bodies),
            Event::Fold(fold) => {
                let text = fold.text.load(bodies)?;
                self.view.fold(fold.strategy, fold.to, &text);
                if let Phase::Asking(request) = &mut self.phase {
                    request.note_fold(true);
                }
                Ok(())
            }
            Event::End(end) => {
                match &end.ending {
                    Ending::Terminated { result, .. } => self.answer = Some(result.load(bodies)?),
                    Ending::Truncated { error: Some(fault), .. } => {
                        self.failing.get_or_insert_with(|| CastFailure::Recorded(fault.clone()));
                    }
                    Ending::Truncated { error: None, .. } => {}
                }
                self.end = Some(end.clone());
                self.phase = Phase::Ended;
                Ok(())
            }
            Event::ApprovalRequested(asked) => {
                self.apply_approval_request(asked);
                Ok(())
            }
            Event::ApprovalDecided(decided) => {
                self.apply_approval_decision(decided, at);
                Ok(())
            }
            Event::SpendReserved(reserved) => {
                self.apply_hold_decision(reserved);
                Ok(())
            }
            // The machine got the beginning of the cast when it was created. The other records do not change its state.
            Event::Cast(_)
            | Event::Root(_)
            | Event::Entity(_)
            | Event::Parked(_)
            | Event::Failed(_)
            | Event::Reward(_)
            | Event::PolicyDecision(_)
            | Event::SpendSettled(_)
            | Event::ReconcileRequired(_)
            | Event::SpendOverage(_)
            | Event::PredictOpened(_)
            | Event::PredictClosed(_)
            | Event::JobOpened(_)
            | Event::JobContinued(_)
            | Event::JobAsked(_)
            | Event::JobProposed(_)
            | Event::JobScored(_)
            | Event::JobAccepted(_)
            | Event::JobProgress(_)
            | Event::JobParked(_)
            | Event::JobClosed(_)
            | Event::Other { .. } => Ok(()),
        }
    }

    fn apply_opened(
        &mut self,
        opened: &TurnOpened,
        at: Timestamp,
        now: Instant,
        bodies: &dyn Bodies,
    ) -> Result<(), Error> {
        let since = match &self.phase {
            Phase::Asking(request) if !request.is_folding() => request.since().unwrap_or(now),
            Phase::Asking(_) | Phase::Acting(_) | Phase::Ended => {
                return Err(self.incoherent("opened", "a turn is open"));
            }
        };
        let said = Arc::new(opened.utterance.load(bodies)?);
        self.tally.add_request(Some(&opened.usage), opened.cost);
        self.tally.add_utterance(&said);
        let fenced = self.facts.fenced_program(&said, self.tally.invites_programs());
        let group = OpenGroup::new(opened.turn_id, opened.sequence, said, fenced, opened.usage, since, at);
        self.phase = Phase::Acting(Box::new(group));
        Ok(())
    }

    pub(super) fn open_group(&mut self) -> Result<&mut OpenGroup, Error> {
        let fault = self.incoherent("settled", "no turn is open");
        match &mut self.phase {
            Phase::Acting(group) => Ok(group),
            Phase::Asking(_) | Phase::Ended => Err(fault),
        }
    }

    /// Returns the requested call: from its record, or from its utterance.
    fn call_from_record(
        &mut self,
        number: u32,
        asked: Option<&GateCallRequest>,
        bodies: &dyn Bodies,
    ) -> Result<GroupCall, Error> {
        let pending = CallState::Started { work: Working::Gate, key: None, reservation: None, fresh: false };
        if let Some(asked) = asked {
            return Ok(GroupCall {
                gate: asked.gate.clone(),
                args: asked.args.load(bodies)?,
                tool_call_id: asked.tool_call_id.clone(),
                state: pending,
            });
        }
        let fault = self.incoherent("settled", "its utterance has no such call");
        let place = usize::try_from(number).unwrap_or(usize::MAX).wrapping_sub(1);
        let call = self.open_group()?.said.calls.get(place).cloned().ok_or(fault)?;
        Ok(GroupCall { gate: call.gate, args: call.args, tool_call_id: Some(call.tool_call_id), state: pending })
    }

    fn apply_started(&mut self, started: &CallStarted, bodies: &dyn Bodies, fresh: bool) -> Result<(), Error> {
        let number = started.call_id.number();
        let mut call = self.call_from_record(number, started.asked.as_ref(), bodies)?;
        call.state = CallState::Started {
            work: started.work.clone(),
            key: started.idempotency_key.clone(),
            reservation: started.reservation_id.clone(),
            fresh,
        };
        match &started.work {
            Working::Gate => {
                let labels = self.facts.circle.gate(&call.gate).map(|gate| gate.spec().labels.clone());
                self.touched.take(&labels.unwrap_or_default());
            }
            Working::Delegation { children } => self.tally.add_children(children.len()),
            Working::Verifier => {}
        }
        self.open_group()?.calls.insert(number, call);
        Ok(())
    }

    fn apply_settled(&mut self, settled: &CallSettled, bodies: &dyn Bodies) -> Result<(), Error> {
        let number = settled.call_id.number();
        if number == 0 || matches!(settled.call_id.caller(), Caller::Fold(_)) {
            self.tally.add_request(settled.usage.as_ref(), settled.cost);
            if let Phase::Asking(request) = &mut self.phase {
                request.end_attempt();
            }
            return Ok(());
        }
        let came_to = Box::new(SettledCall::load(settled, bodies)?);
        let known = self.open_group()?.calls.remove(&number);
        let mut call = match known {
            Some(call) => call,
            None => self.call_from_record(number, settled.asked.as_ref(), bodies)?,
        };
        let record = GateRecord {
            call_id: settled.call_id,
            tool_call_id: call.tool_call_id.clone(),
            gate: call.gate.clone(),
            args: call.args.clone(),
            ephemeral: settled.ephemeral,
            settlement: Settlement::Settled(came_to.clone()),
        };
        let promises = self.facts.circle.gate(&call.gate).map(|gate| gate.spec().clone());
        for child in &settled.children {
            if let Some(labels) = self.kin.get(&child.entity_id) {
                self.touched.take(labels);
            }
        }
        self.tally.add_call(&call.gate, settled.reply.is_success(), settled.cost);
        let clock = super::program::timestamp_from_millis(settled.clock_ms);
        let group = self.open_group()?;
        group.count(&record, promises.is_some_and(|promises| promises.polling));
        if call.gate == "done" && settled.reply.is_success() {
            group.done = Some(came_to.result.clone());
        }
        group.clock = clock.unwrap_or(group.clock).max(group.clock);
        call.state = CallState::Settled(came_to);
        group.records.push(record);
        group.calls.insert(number, call);
        Ok(())
    }

    fn apply_closed(&mut self, closed: &TurnClosed, now: Instant, bodies: &dyn Bodies) -> Result<(), Error> {
        let outputs = closed.outputs.as_ref().map(|outputs| outputs.load(bodies)).transpose()?.unwrap_or_default();
        let fault = self.incoherent("turn", "another turn is open");
        let group = self.open_group()?;
        if group.turn != closed.turn_id {
            return Err(fault);
        }
        if let Closing::Sealed { call, .. } = &closed.closing
            && let Some(delegated) = group.calls.get(&call.number())
        {
            group.records.push(GateRecord {
                call_id: *call,
                tool_call_id: delegated.tool_call_id.clone(),
                gate: delegated.gate.clone(),
                args: delegated.args.clone(),
                ephemeral: false,
                settlement: Settlement::Delegated,
            });
        }
        group.records.sort_by_key(|record| record.call_id.number());
        group.outputs.clear();
        group.count_programs(&outputs);
        let first = group.turn == group.holder;
        let said = Arc::clone(&group.said);
        let (records, sequence, usage) = (std::mem::take(&mut group.records), group.sequence, group.usage);
        let view = ClosedTurn {
            id: closed.turn_id,
            sequence,
            utterance: first.then_some(&*said),
            outputs: &outputs,
            gate_calls: &records,
            closing: &closed.closing,
            tokens_prompt: if first { usage.prompt_tokens } else { 0 },
            tokens_completion: if first { usage.completion_tokens } else { 0 },
        };
        self.view.close(view).map_err(|_| self.incoherent("turn", "it does not follow in its list"))?;
        self.position.close(closed.turn_id, sequence, &closed.closing);
        self.tally.close_turn();
        match &closed.closing {
            Closing::Sealed { next, .. } => {
                let group = self.open_group()?;
                group.turn = *next;
                group.sequence = sequence + 1;
                group.since = now;
            }
            Closing::Open | Closing::Terminated { .. } | Closing::Truncated { .. } => {
                let group = self.open_group()?;
                let (mark, text_mark, said) = (group.loop_mark(), group.text_mark(), Arc::clone(&group.said));
                let cut_text = group.is_cut_text().then(|| said.content.as_deref().unwrap_or_default());
                self.tally.close_group(mark, text_mark, cut_text);
                self.phase = Phase::Asking(RequestInProgress::new(now));
            }
        }
        Ok(())
    }

    /// Returns how the entity chose to end in the open turn, if it did.
    pub(super) fn chosen_ending(&mut self) -> Result<Option<(EndedBy, Value)>, Error> {
        let require_done = self.facts.definition.requires_done_tool();
        let group = self.open_group()?;
        if let Some(answer) = &group.done {
            return Ok(Some((EndedBy::Done, answer.clone())));
        }
        let text_ends = group.length() == 0 && !require_done && group.outputs.is_empty() && !group.is_cut_text();
        if !text_ends {
            return Ok(None);
        }
        // A text that was cut off before is the beginning of the text that ends the cast.
        let last = Arc::clone(&group.said);
        let text = self.tally.whole_text(last.content.as_deref().unwrap_or_default());
        Ok(Some((EndedBy::Text, Value::String(text))))
    }
}
