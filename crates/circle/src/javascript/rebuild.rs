//! A sandbox as it was, from what was recorded: its programs are run again against their recorded answers.
//!
//! No gate is executed. Chance, clock and answers are what they were, so the variables are what they were; and where a
//! program asks for something it did not ask for then, the environment is not the same and is not passed off as such.

use std::time::Duration;

use cantrip_canon::Timestamp;
use serde_json::Value;

use super::output::Limit;
use super::sandbox::{Answer, Event, Program, Sandbox, SandboxError};

/// A program with the calls it made. Programs that were rolled back are left out.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedProgram {
    pub program: Program,
    pub calls: Vec<RecordedCall>,
}

/// A call as its record holds it.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedCall {
    pub gate: String,
    /// The mapped arguments.
    pub args: Value,
    pub answer: Answer,
    /// The reading of the clock when it was answered.
    pub clock: Timestamp,
}

/// What came of a rebuild.
#[derive(Debug)]
pub enum RebuildResult {
    Restored(Sandbox),
    Diverged(Divergence),
    /// It took more processor time than it was given.
    TooLong,
}

/// The first difference between a recorded program and its second run.
#[derive(Debug, Clone, PartialEq)]
pub struct Divergence {
    /// The program's place in the list, from 0.
    pub program: usize,
    /// The call's place in the program, from 0.
    pub call: usize,
    pub recorded: Option<(String, Value)>,
    pub found: Option<(String, Value)>,
}

impl Sandbox {
    /// Runs the recorded programs in this sandbox, which has to be a new one, within `cpu_max` of processor time.
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

/// Equal as canonical JSON: members in any order, numbers by value however they were read.
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
