//! A small environment around one Python sandbox: gates that are answered at once, and a clock that the test moves.
#![allow(dead_code, unreachable_pub)]

use cantrip_canon::Timestamp;
use cantrip_circle::AnyGate;
use cantrip_circle::gate::{NoArguments, builtin, gate};
use cantrip_circle::medium::{
    Answer, FinishedProgram, Medium, Program, ProgramCall, ProgramEvent, Sandbox, SandboxOptions,
};
use cantrip_circle::{Circle, MediumKind};
use cantrip_loom::OutputRecord;
use cantrip_medium_python::{Options, Python};
use cantrip_reply::{Advice, Refusal, ReplyException, ReplyType, codes};
use serde_json::{Map, Value, json};

pub fn at(millis: i64) -> Timestamp {
    Timestamp::from_unix_millis(millis).expect("a time after 1970")
}

/// Creates a gate with one argument of any kind.
fn any(name: &'static str) -> AnyGate {
    let gate = gate(name, "For tests.", |_: NoArguments| async { Ok::<_, Refusal>(()) });
    let parameters = json!({"type": "object", "properties": {"value": {}, "more": {"type": "integer"}}});
    AnyGate::from(gate).parameters(parameters)
}

pub fn circle(wards: &Value) -> Circle {
    Circle::builder()
        .gate(builtin::done())
        .gate(any("give"))
        .gate(builtin::read(None))
        .gate(any("refuse"))
        .gate(any("taken"))
        .medium(MediumKind::Python)
        .wards(&json!({"max_turns": 10, "remove_gate": "taken"}))
        .wards(wards)
        .build()
        .expect("a circle")
}

/// A reduced circle of an entity, with only the parts that these tests check.
pub struct World {
    pub medium: Python,
    pub circle: Circle,
    pub isolation: SandboxOptions,
    pub sandbox: Option<Box<dyn Sandbox>>,
    pub now: i64,
    /// Every call that reached the host, in order.
    pub calls: Vec<(String, Value)>,
    /// The answer of the first accepted `done`.
    pub answer: Option<Value>,
    turn: usize,
}

impl World {
    pub fn new() -> Self {
        Self::with(&json!({}))
    }

    pub fn with(wards: &Value) -> Self {
        Self::of(Python::start(Options::in_process()).expect("this process counts its memory"), wards)
    }

    pub fn of(medium: Python, wards: &Value) -> Self {
        let isolation = SandboxOptions { seed: 1, context: None };
        let circle = circle(wards);
        let now = 1_771_466_400_000;
        Self { medium, circle, isolation, sandbox: None, now, calls: Vec::new(), answer: None, turn: 0 }
    }

    pub fn program(&mut self, source: &str) -> Program {
        self.turn += 1;
        Program { name: format!("turn-{}.py", self.turn), source: source.to_owned(), now: at(self.now) }
    }

    pub fn take(&mut self) -> Box<dyn Sandbox> {
        let fresh =
            || self.medium.isolate(&self.circle, self.isolation.clone()).expect("a sandbox").expect("a sandbox");
        self.sandbox.take().unwrap_or_else(fresh)
    }

    /// Runs a program to its end and answers every call; a sandbox that was rolled back is replaced by a new one.
    pub async fn run(&mut self, source: &str) -> OutputRecord {
        let program = self.program(source);
        let mut next = self.take().start(program).await.expect("the sandbox stands");
        loop {
            match next {
                ProgramEvent::Finished(FinishedProgram { output, sandbox, cpu: _, end: _ }) => {
                    assert_eq!(output.rolled_back, sandbox.is_none(), "{source}");
                    self.sandbox = sandbox;
                    return output;
                }
                ProgramEvent::Call(paused) => {
                    let answer = self.answer_to(paused.call());
                    self.now += 1;
                    next = paused.resume(answer, at(self.now)).await.expect("the sandbox stands");
                }
            }
        }
    }

    fn answer_to(&mut self, call: &ProgramCall) -> Answer {
        let recorded = Value::Object(call.arguments.clone().unwrap_or_default());
        self.calls.push((call.gate.clone(), recorded));
        if call.gate == "taken" {
            return thrown("Denied EN-VIS-D-001: gate not available: taken is removed by ward remove_gate");
        }
        let arguments = match &call.arguments {
            Ok(arguments) => arguments.clone(),
            Err(fault) => return thrown(&format!("Invalid WA-VAL-I-001: {fault}")),
        };
        match call.gate.as_str() {
            "done" | "submit_answer" => match arguments.get("answer") {
                Some(answer) => {
                    self.answer.get_or_insert_with(|| answer.clone());
                    Answer::Stop
                }
                None => thrown("Invalid WA-VAL-I-002: done was not accepted: no answer"),
            },
            "refuse" => thrown("Denied EN-VIS-D-001: no"),
            _ => Answer::Value(arguments.values().next().cloned().unwrap_or(Value::Null)),
        }
    }

    /// Returns the text of the last expression of a program that must not fail.
    pub async fn value(&mut self, source: &str) -> String {
        let output = self.run(source).await;
        assert_eq!(output.error, None, "{source}");
        assert_eq!(output.limit, None, "{source}");
        output.value.unwrap_or_else(|| "None".into())
    }

    /// Returns the name and the message of the error that a program ends in.
    pub async fn error(&mut self, source: &str) -> (String, String) {
        let output = self.run(source).await;
        let error = output.error.unwrap_or_else(|| panic!("{source} must fail: {:?}", output.value));
        (error.name, error.message)
    }

    pub fn gates_called(&self) -> Vec<&str> {
        self.calls.iter().map(|(gate, _)| gate.as_str()).collect()
    }
}

pub fn thrown(message: &str) -> Answer {
    Answer::Throw(ReplyException {
        message: message.into(),
        reply_type: ReplyType::Invalid,
        code: codes::SCHEMA.any(),
        retry: Advice::FixAndRetry,
        data: Map::new(),
    })
}
