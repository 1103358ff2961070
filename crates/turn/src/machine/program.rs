//! A program of the utterance, in media where the crystal writes code.

use cantrip_canon::{Timestamp, json};
use cantrip_circle::medium::{Answer, ProgramCall, SandboxError};
use cantrip_circle::{CallArguments, MediumKind, ProgramEnd};
use cantrip_loom::{
    Body, ChildRecord, Error, OutputRecord, ProgramError, ProgramReply, RecordedError, ReplyMark, SettledCall,
};
use cantrip_reply::{AnyCode, ReplyException, codes};
use serde_json::{Map, Value, json};

use super::calls::PendingCall;
use super::group::{CallState, Program, ProgramState};
use super::{Effect, EndedProgram, Machine, ProgramStart, StepContext};

impl Machine {
    pub(super) fn start_program(&mut self, source: String, tool_call_id: Option<String>) -> Result<Effect, Error> {
        let medium = self.facts.circle.medium();
        let group = self.open_group()?;
        group.snapshot = None;
        let clock = group.clock;
        let name = program_name(group.sequence, medium);
        group.program = Some(Program { tool_call_id, clock, state: ProgramState::Runs });
        Ok(Effect::RunProgram(ProgramStart { name, source, clock }))
    }

    /// Handles a gate call of the program: it is checked like any other call.
    pub(super) fn handle_program_call(&mut self, call: ProgramCall) -> Result<(), Error> {
        let group = self.open_group()?;
        let number = group.number;
        group.number += 1;
        if let Some(program) = &mut group.program {
            program.state = ProgramState::Waits(number, call);
        }
        Ok(())
    }

    pub(super) fn step_program(&mut self, world: &StepContext<'_>) -> Result<Option<Effect>, Error> {
        let fault = self.incoherent("started", "its program runs");
        let halted = self.halt.is_some();
        let group = self.open_group()?;
        let (number, call) = match group.program.as_ref().map(|program| program.state.clone()) {
            Some(ProgramState::Waits(number, call)) => (number, call),
            Some(ProgramState::Runs | ProgramState::Stopping) | None => return Err(fault),
        };
        if group.is_settled(number) {
            // No code of a halted program runs, whatever it would catch; an accepted answer still counts.
            if halted && group.done.is_none() {
                return self.stop_program(Effect::CancelProgram).map(Some);
            }
            return self.answer_program(number, call).map(Some);
        }
        if group.stale_call(number).is_some() {
            return match group.delegates(number) {
                true => self.resume_delegation(number).map(Some),
                false => self.repeat_calls(vec![number], world),
            };
        }
        if halted {
            return self.stop_program(Effect::CancelProgram).map(Some);
        }
        let tool_call_id = self.open_group()?.program.as_ref().and_then(|program| program.tool_call_id.clone());
        let asks = PendingCall {
            number,
            gate: call.gate,
            given: CallArguments::Code(call.arguments),
            tool_call_id,
            spelled: true,
        };
        let touched = self.touched.clone();
        let examined = self.check_call(&asks, &touched, world);
        self.alone(asks, examined, touched);
        Ok(None)
    }

    fn stop_program(&mut self, effect: Effect) -> Result<Effect, Error> {
        if let Some(program) = &mut self.open_group()?.program {
            program.state = ProgramState::Stopping;
        }
        Ok(effect)
    }

    /// Returns the recorded answer, whether it was settled just now or before a crash.
    fn answer_program(&mut self, number: u32, called: ProgramCall) -> Result<Effect, Error> {
        let group = self.open_group()?;
        let sequence = group.sequence;
        let Some(call) = group.calls.get(&number) else {
            return Err(self.incoherent("settled", "it is not there"));
        };
        let CallState::Settled(settled) = &call.state else {
            return Err(self.incoherent("settled", "it is not settled"));
        };
        let gate = if called.gate == "submit_answer" { "done" } else { &*called.gate };
        let args = Value::Object(called.arguments.unwrap_or_default());
        let same = cantrip_circle::gate::canonical_name(gate) == call.gate && is_same_json(&args, &call.args);
        let clock = timestamp_from_millis(settled.clock_ms).unwrap_or(group.clock);
        let answer = program_answer(&call.gate, settled);
        if !same {
            let group = self.open_group()?;
            group.outputs.push(OutputRecord {
                environment_lost: Some(format!("[environment lost: replay differs at turn {sequence}]")),
                ..OutputRecord::default()
            });
            return self.stop_program(Effect::CancelProgram);
        }
        if answer == Answer::Stop {
            return self.stop_program(Effect::ResumeProgram { answer, clock });
        }
        if let Some(program) = &mut self.open_group()?.program {
            program.state = ProgramState::Runs;
        }
        Ok(Effect::ResumeProgram { answer, clock })
    }

    /// Keeps a snapshot of the sandbox as the last program left it, with the turn.
    pub fn keep_snapshot(&mut self, snapshot: Body) {
        if let super::Phase::Acting(group) = &mut self.phase {
            group.snapshot = Some(snapshot);
        }
    }

    /// Handles the end of the program. Its reply is recorded with its output; `end` is none if the output is a recorded
    /// one.
    pub(super) fn handle_program_end(
        &mut self,
        mut output: OutputRecord,
        end: Option<ProgramEnd>,
        world: &StepContext<'_>,
    ) -> Result<(), Error> {
        if let Some(end) = end.filter(|_| !self.has_output()) {
            output.reply = Some(self.program_reply(end, world)?);
        }
        if self.facts.circle.counts_turns() {
            let most = self.facts.circle.wards().max_turns;
            output.left = most.map(|most| most.saturating_sub(self.tally.utterances()));
        }
        let group = self.open_group()?;
        let lost = group.outputs.pop_if(|output| output.environment_lost.is_some() && output.tool_call_id.is_none());
        if let Some(program) = group.program.take() {
            output.tool_call_id = program.tool_call_id;
            output.clock_ms = u64::try_from(program.clock.unix_millis()).ok();
        }
        if let Some(lost) = lost {
            output.environment_lost = lost.environment_lost;
        }
        if !group.has_run(&output.tool_call_id) {
            group.outputs.push(output);
        }
        group.cursor = if group.done.is_some() { group.length() } else { group.cursor + 1 };
        Ok(())
    }

    /// Returns true if the program that ends has its output on record: it was run again only to restore its variables.
    fn has_output(&mut self) -> bool {
        let Ok(group) = self.open_group() else { return false };
        group.program.as_ref().is_some_and(|program| group.has_run(&program.tool_call_id))
    }

    /// Returns the reply of the program that ends. A program that was stopped from outside has the code of the cast's
    /// end.
    fn program_reply(&mut self, end: ProgramEnd, world: &StepContext<'_>) -> Result<ProgramReply, Error> {
        let medium = self.facts.circle.medium().as_str();
        let (answer, position) = match (end, self.halt) {
            (ProgramEnd::Completed, _) => (Ok(codes::gate_ok(medium)), None),
            (ProgramEnd::Failed { refusal, position }, _) => (Err(refusal), position),
            (ProgramEnd::Cancelled, Some(reason)) => (Err(self.halt_refusal(reason)), None),
            // Nothing ends the cast: the program made another call than the recorded one, and its sandbox was given up.
            (ProgramEnd::Cancelled, None) => (Err(codes::sandbox_lost(medium).into()), None),
        };
        let (run, entity) = (self.facts.run, self.facts.entity);
        let group = self.open_group()?;
        let tool_call_id = group.program.as_ref().and_then(|program| program.tool_call_id.as_deref());
        let program = EndedProgram { medium, run, entity, turn: group.turn, tool_call_id };
        let RecordedError { mark, message, .. } = world.words.program_reply(&program, answer);
        let message = Some(message).filter(|_| !mark.is_success());
        let (line, column) = (position.map(|position| position.line), position.and_then(|position| position.column));
        Ok(ProgramReply { mark, message, line, column })
    }

    pub(super) fn handle_sandbox_lost(&mut self, lost: SandboxError, world: &StepContext<'_>) -> Result<(), Error> {
        let refusal = match lost {
            SandboxError::Overloaded => codes::overloaded(lost.to_string()).into(),
            SandboxError::Stopped | SandboxError::Gone => {
                codes::sandbox_lost(self.facts.circle.medium().as_str()).into()
            }
        };
        let reply = self.program_reply(ProgramEnd::Failed { refusal, position: None }, world)?;
        let message = format!("{}: {}", reply.mark.code, reply.message.as_deref().unwrap_or_default());
        let error = ProgramError { name: "Error".to_owned(), message, line: None, column: None };
        let output =
            OutputRecord { error: Some(error), rolled_back: true, reply: Some(reply), ..OutputRecord::default() };
        self.handle_program_end(output, None, world)
    }
}

/// Returns the program's name in its errors. Code can read it there, so it is the same in replay.
pub fn program_name(sequence: u64, medium: MediumKind) -> String {
    let extension = match medium {
        MediumKind::Javascript => "js",
        MediumKind::Python => "py",
        MediumKind::Conversation | MediumKind::Shell | MediumKind::Browser | MediumKind::Human => medium.as_str(),
    };
    format!("turn-{sequence}.{extension}")
}

/// Returns the answer of a settled call for code. It is built from the record alone, so that a program gets the same
/// answer in each run.
pub fn program_answer(gate: &str, settled: &SettledCall) -> Answer {
    match (gate, &settled.result) {
        _ if !settled.reply.is_success() => {
            Answer::Throw(thrown(&settled.reply, text(&settled.result), settled.data.clone()))
        }
        ("done", _) => Answer::Stop,
        ("call_agent_batch", Value::Array(elements)) if elements.len() == settled.children.len() => {
            Answer::List(elements.iter().zip(&settled.children).map(|(value, child)| element(value, child)).collect())
        }
        _ => Answer::Value(settled.result.clone()),
    }
}

/// Returns one element of a batch's answer. The child's reply decides if it is an error, because an answer may look
/// like an error.
fn element(value: &Value, child: &ChildRecord) -> Result<Value, ReplyException> {
    if child.reply.is_success() {
        return Ok(value.clone());
    }
    let error = &value["error"];
    let mark = serde_json::from_value(error.clone()).unwrap_or_else(|_| ReplyMark::from(codes::CHILD_FAILED.any()));
    let message = error.get("message").map_or_else(|| text(value), text);
    // The same data as in the error of a child that was called alone.
    let data = Map::from_iter([
        ("entity".to_owned(), json!(child.entity_id)),
        ("reason".to_owned(), json!(child.reason)),
        ("child".to_owned(), json!({"type": child.reply.reply_type, "code": child.reply.code})),
    ]);
    Err(thrown(&mark, message, data))
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn thrown(reply: &ReplyMark, message: String, data: Map<String, Value>) -> ReplyException {
    let code: AnyCode = reply.known().unwrap_or(codes::CRASH.any());
    let retry = code.advice().unwrap_or(cantrip_reply::Advice::Stop);
    ReplyException { message, reply_type: reply.reply_type, code, retry, data }
}

/// Returns true if the values are equal as canonical JSON.
pub fn is_same_json(one: &Value, other: &Value) -> bool {
    match (json::canonical(one), json::canonical(other)) {
        (Ok(one), Ok(other)) => one == other,
        (Err(_), _) | (_, Err(_)) => one == other,
    }
}

/// Converts a recorded clock reading to a timestamp.
pub fn timestamp_from_millis(ms: Option<u64>) -> Option<Timestamp> {
    ms.and_then(|ms| i64::try_from(ms).ok()).and_then(|ms| Timestamp::from_unix_millis(ms).ok())
}
