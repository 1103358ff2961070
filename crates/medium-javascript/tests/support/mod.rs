//! A small environment around one sandbox: gates that are answered at once, and a clock that the test moves.
#![allow(dead_code, unreachable_pub)]

use std::sync::Arc;

use cantrip_canon::Timestamp;
use cantrip_circle::arguments::Property;
use cantrip_circle::code::{GateFunction, ProgramLimits, SandboxSpec};
use cantrip_circle::medium::ProgramCall;
use cantrip_medium_javascript::{
    Answer, Event, FinishedProgram, Host, Options, Program, ProgramOutput, Sandbox, Throw,
};
use serde_json::{Value, json};

pub fn at(millis: i64) -> Timestamp {
    Timestamp::from_unix_millis(millis).expect("a time after 1970")
}

pub fn gate(name: &str, properties: &[(&str, bool)]) -> GateFunction {
    let properties = properties.iter().map(|(name, object)| Property::new(*name, *object)).collect();
    GateFunction { name: name.into(), properties }
}

pub fn spec(seed: u64, limits: ProgramLimits) -> SandboxSpec {
    let gates = vec![
        gate("done", &[("answer", true)]),
        gate("submit_answer", &[("answer", true)]),
        gate("echo", &[("value", true)]),
        gate("read", &[("path", false)]),
        gate("refuse", &[("value", true)]),
    ];
    SandboxSpec { seed, limits, gates }
}

pub fn host(threads: usize) -> Host {
    Options { threads }.start().expect("threads can be started")
}

/// A reduced circle of an entity, with only the parts that these tests check.
pub struct World {
    pub host: Host,
    pub spec: Arc<SandboxSpec>,
    pub sandbox: Option<Sandbox>,
    pub now: i64,
    /// Every call that reached the host, in order.
    pub calls: Vec<(String, Value)>,
    /// The answer of the first accepted `done`.
    pub answer: Option<Value>,
    turn: usize,
}

impl World {
    pub fn new() -> Self {
        Self::with(ProgramLimits::default())
    }

    pub fn with(limits: ProgramLimits) -> Self {
        let host = host(1);
        let spec = Arc::new(spec(1, limits));
        let sandbox = Some(host.sandbox(Arc::clone(&spec)));
        Self { host, spec, sandbox, now: 1_771_466_400_000, calls: Vec::new(), answer: None, turn: 0 }
    }

    pub fn program(&mut self, source: &str) -> Program {
        self.turn += 1;
        Program::new(format!("turn-{}.js", self.turn), source, at(self.now)).expect("a short program")
    }

    /// Runs a program to its end and answers every call; a sandbox that was rolled back is replaced by a new one.
    pub async fn run(&mut self, source: &str) -> ProgramOutput {
        self.finish(source).await.0
    }

    pub async fn finish(&mut self, source: &str) -> (ProgramOutput, bool) {
        let program = self.program(source);
        let sandbox = self.sandbox.take().unwrap_or_else(|| self.host.sandbox(Arc::clone(&self.spec)));
        let mut event = sandbox.run(program).await.expect("the sandbox stands");
        loop {
            match event {
                Event::Finished(FinishedProgram { output, cpu: _, sandbox }) => {
                    let kept = sandbox.is_some();
                    self.sandbox = sandbox;
                    return (output, kept);
                }
                Event::Call(suspended) => {
                    let answer = self.answer_to(&suspended.call);
                    self.now += 1;
                    event = suspended.answer(answer, at(self.now)).await.expect("the sandbox stands");
                }
            }
        }
    }

    fn answer_to(&mut self, call: &ProgramCall) -> Answer {
        self.calls.push((call.gate.clone(), call.recorded_arguments()));
        let arguments = match &call.arguments {
            Ok(arguments) => arguments.clone(),
            Err(fault) => return thrown("I", "WA-VAL-I-001", &fault.to_string(), json!({"path": fault.path})),
        };
        match call.gate.as_str() {
            "done" | "submit_answer" => match arguments.get("answer") {
                Some(answer) => {
                    self.answer.get_or_insert_with(|| answer.clone());
                    Answer::Stop
                }
                None => thrown("I", "WA-VAL-I-002", "done was not accepted: no answer", Value::Null),
            },
            "refuse" => thrown("D", "EN-VIS-D-001", "Denied EN-VIS-D-001: gate not available", json!({"ward": "w"})),
            _ => Answer::Value(arguments.values().next().cloned().unwrap_or(Value::Null)),
        }
    }

    /// Returns the completion value of a program that must not fail.
    pub async fn value(&mut self, source: &str) -> String {
        let output = self.run(source).await;
        assert_eq!(output.error, None, "{source}");
        assert_eq!(output.limit, None, "{source}");
        output.value.unwrap_or_else(|| "undefined".into())
    }

    pub fn gates_called(&self) -> Vec<&str> {
        self.calls.iter().map(|(gate, _)| gate.as_str()).collect()
    }
}

pub fn thrown(kind: &str, code: &str, message: &str, data: Value) -> Answer {
    Answer::Throw(Throw {
        message: message.into(),
        kind: kind.into(),
        code: code.into(),
        retry: "fix_and_retry".into(),
        data,
    })
}
