//! Rebuilds a sandbox from its records: its programs run again against their recorded answers.
//!
//! No gate is executed. Random numbers, clock readings and answers are the recorded ones, so the variables get the same
//! values. If a program makes a call that is not the recorded one, the environment is not the same, and the rebuild
//! reports the divergence instead of a restored sandbox.

use std::time::Duration;

use cantrip_canon::Timestamp;
use serde_json::Value;

use super::output::Limit;
use super::sandbox::{Answer, Event, Program, Sandbox, SandboxError};

/// A program with the calls that it made. Programs that were rolled back are left out.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedProgram {
    pub program: Program,
    pub calls: Vec<RecordedCall>,
}

/// A recorded call.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedCall {
    pub gate: String,
    /// The arguments, mapped to their names.
    pub args: Value,
    pub answer: Answer,
    /// The clock reading at the answer.
    pub clock: Timestamp,
}

/// The result of a rebuild.
#[derive(Debug)]
pub enum RebuildResult {
    Restored(Sandbox),
    Diverged(Divergence),
    /// The rebuild used more processor time than it was given.
    TooLong,
}

/// The first difference between a recorded program and its second run.
#[derive(Debug, Clone, PartialEq)]
pub struct Divergence {
    /// The index of the program in the list, from 0.
    pub program: usize,
    /// The index of the call in the program, from 0.
    pub call: usize,
    pub recorded: Option<(String, Value)>,
    pub found: Option<(String, Value)>,
}

impl Sandbox {
    /// Runs the recorded programs in this sandbox within `cpu_max` of processor time. The sandbox must be new.
    pub async fn rebuild(
        self,
        programs: Vec<RecordedProgram>,
        cpu_max: Duration,
    ) -> Result<RebuildResult, SandboxError> {
        let mut sandbox = self;
        let mut left = cpu_max;
        for (index, recorded) in programs.into_iter().enumerate() {
            let mut calls = recorded.calls.into_iter();
            let mut made = 0;
            let mut event = sandbox.run_within(recorded.program, left).await?;
            let finished = loop {
                match event {
                    Event::Finished(finished) => break finished,
                    Event::Call(suspended) => {
                        let found = (suspended.call.gate.clone(), suspended.call.recorded_arguments());
                        match calls.next() {
                            Some(call) if call.gate == found.0 && same(&call.args, &found.1) => {
                                event = suspended.answer(call.answer, call.clock).await?;
                                made += 1;
                            }
                            recorded => {
                                let recorded = recorded.map(|call| (call.gate, call.args));
                                return Ok(divergence(index, made, recorded, Some(found)));
                            }
                        }
                    }
                }
            };
            left = left.saturating_sub(finished.cpu);
            if left.is_zero() || finished.output.limit == Some(Limit::Cpu) {
                return Ok(RebuildResult::TooLong);
            }
            if let Some(call) = calls.next() {
                return Ok(divergence(index, made, Some((call.gate, call.args)), None));
            }
            match finished.sandbox {
                Some(next) => sandbox = next,
                None => return Ok(divergence(index, made, None, None)),
            }
        }
        Ok(RebuildResult::Restored(sandbox))
    }
}

fn divergence(
    program: usize,
    call: usize,
    recorded: Option<(String, Value)>,
    found: Option<(String, Value)>,
) -> RebuildResult {
    RebuildResult::Diverged(Divergence { program, call, recorded, found })
}

/// Returns true if the values are equal as canonical JSON: members in any order, numbers compared by value.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(key, one)| other.get(key).is_some_and(|other| same(one, other)))
        }
        (
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_),
            _,
        ) => one == other,
    }
}
