//! `program.v1`: a function `score` in JavaScript or Python, in a sandbox without gates.
//!
//! The sandbox is that of an entity's code, with nothing in it: no gate, so no file and no network; random numbers
//! from a seed that metric and example determine; a clock that stands at 0. So a program gives the same score on
//! every machine. A program that throws, loops, takes too much memory or returns another shape has no score; a zero
//! would punish the candidate for a fault of the metric.

use std::fmt;
use std::sync::{Arc, OnceLock};

use cantrip::canon::{Timestamp, json};
use cantrip::circle::ProgramEnd;
use cantrip::circle::code::{CodeMedium, ProgramLimits, SandboxSpec};
use cantrip::circle::medium::{FinishedProgram, Program, ProgramEvent, SandboxError};
use cantrip::reply::{Refusal, codes};
use cantrip_contract::limits::FEEDBACK_CHARS_MAX;
use cantrip_contract::{Decimal, MetricFault, Unscored};
use cantrip_medium_javascript::{Javascript, Options as JavascriptOptions};
use cantrip_medium_python::{Options as PythonOptions, Python};
use serde_json::{Map, Value, json};

use super::score::{Scoring, UnscoredOutput, cut_text};
use super::{Case, SCORE_MAX};
use crate::contract::Medium;
use crate::limits::{METRIC_CPU_MS, METRIC_MEMORY_BYTES, METRIC_OUTPUT_BYTES_MAX, METRIC_SANDBOX_TRIES};
use crate::stats::seed_of;

/// The variable that holds the argument of `score`.
const CASE: &str = "cantrip_case";

/// The sandboxes of metrics. Each language starts with its first program. Cheap to clone; all clones share them.
#[derive(Clone, Default)]
pub struct MetricSandboxes {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    javascript: OnceLock<Javascript>,
    python: OnceLock<Python>,
    python_options: Option<PythonOptions>,
}

impl fmt::Debug for MetricSandboxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricSandboxes").finish_non_exhaustive()
    }
}

/// The reason why a program gave no score.
#[derive(Debug)]
pub struct ProgramFailure {
    pub detail: String,
    /// The reply about the program, if it ended itself.
    pub refusal: Option<Box<Refusal>>,
}

impl ProgramFailure {
    fn new(detail: impl Into<String>) -> Self {
        Self { detail: detail.into(), refusal: None }
    }

    fn scoring(self) -> Scoring {
        let Self { detail, refusal } = self;
        Scoring::Unscored(UnscoredOutput { reason: Unscored::MetricFailed, detail, refusal })
    }
}

/// Returns the argument of `score`.
pub(super) fn argument(case: &Case<'_>, output: &Value, expected: Option<&Value>) -> Value {
    json!({"input": case.input, "output": output, "expected": expected, "outcome": case.outcome})
}

impl MetricSandboxes {
    /// Uses these options for the interpreters of Python. Otherwise they run in worker processes of the program
    /// `cantrip`.
    pub fn with_python(options: PythonOptions) -> Self {
        Self { shared: Arc::new(Shared { python_options: Some(options), ..Shared::default() }) }
    }

    fn medium(&self, language: Medium) -> Result<Box<dyn CodeMedium>, Refusal> {
        let medium: Box<dyn CodeMedium> = match language {
            Medium::Javascript => Box::new(self.javascript()?),
            Medium::Python => Box::new(self.python()?),
        };
        Ok(medium)
    }

    fn javascript(&self) -> Result<Javascript, Refusal> {
        if let Some(started) = self.shared.javascript.get() {
            return Ok(started.clone());
        }
        let started = Javascript::start(JavascriptOptions::default())
            .map_err(|error| codes::sandbox_unavailable("javascript", error.to_string()))?;
        Ok(self.shared.javascript.get_or_init(|| started).clone())
    }

    fn python(&self) -> Result<Python, Refusal> {
        if let Some(started) = self.shared.python.get() {
            return Ok(started.clone());
        }
        let started = Python::start(self.shared.python_options.clone().unwrap_or_default())?;
        Ok(self.shared.python.get_or_init(|| started).clone())
    }

    /// Refuses a program that does not compile, throws while it is read, or defines no function `score`.
    pub(super) async fn check(&self, language: Medium, source: &str, metric: &str) -> Result<(), Refusal> {
        let ending = match language {
            Medium::Javascript => {
                "if (typeof score !== 'function') { throw new TypeError('there is no function score') }"
            }
            // The interpreter has no `callable`.
            Medium::Python => {
                "if isinstance(score, (bool, int, float, str, list, dict, tuple)):\n    \
                 raise TypeError('score is not a function')"
            }
        };
        let medium = self.medium(language)?;
        // The source is run alone first, so that an open bracket is reported at its own line.
        for program in [source, &format!("{source}\n{ending}\n")] {
            if let Err(failure) = run(&*medium, language, program, &Value::Null, "check").await {
                return Err(MetricFault { path: "/source".to_owned(), rule: failure.detail }.refusal(metric));
            }
        }
        Ok(())
    }

    /// Runs `score` on an argument. The label determines the random numbers of the program.
    pub(super) async fn score(&self, language: Medium, source: &str, argument: Value, label: &str) -> Scoring {
        let medium = match self.medium(language) {
            Ok(medium) => medium,
            Err(refusal) => {
                let failure = ProgramFailure {
                    detail: "the sandbox for the metric's program is not available".to_owned(),
                    refusal: Some(Box::new(refusal)),
                };
                return failure.scoring();
            }
        };
        let call = match language {
            Medium::Javascript => format!("console.log(JSON.stringify(score({CASE})))"),
            Medium::Python => format!("import json\nprint(json.dumps(score({CASE})))"),
        };
        match run(&*medium, language, &format!("{source}\n{call}\n"), &argument, label).await {
            Ok(printed) => match read_score(printed.last().map_or("", String::as_str)) {
                Ok(scoring) => scoring,
                Err(rule) => ProgramFailure::new(rule).scoring(),
            },
            Err(failure) => failure.scoring(),
        }
    }
}

/// Runs a program to its end and returns the lines that it printed.
async fn run(
    medium: &dyn CodeMedium,
    language: Medium,
    source: &str,
    argument: &Value,
    label: &str,
) -> Result<Vec<String>, ProgramFailure> {
    let limits = ProgramLimits {
        memory_bytes: METRIC_MEMORY_BYTES,
        cpu_ms: METRIC_CPU_MS,
        output_shown_bytes: METRIC_OUTPUT_BYTES_MAX,
        ..ProgramLimits::default()
    };
    let name = match language {
        Medium::Javascript => "metric.js",
        Medium::Python => "metric.py",
    };
    let mut tries = 0;
    loop {
        let spec = SandboxSpec { seed: seed_of(label), limits, gates: Vec::new() };
        let variables = Map::from_iter([(CASE.to_owned(), argument.clone())]);
        let program = Program { name: name.to_owned(), source: source.to_owned(), now: Timestamp::EPOCH };
        tries += 1;
        match medium.sandbox(spec, Some(variables)).start(program).await {
            Ok(ProgramEvent::Finished(finished)) => return printed(finished),
            // The sandbox has no gates, so this does not happen.
            Ok(ProgramEvent::Call(_)) => return Err(ProgramFailure::new("a metric's program has no gates")),
            // Another program took the worker with it.
            Err(SandboxError::Gone | SandboxError::Overloaded) if tries < METRIC_SANDBOX_TRIES => {}
            Err(error) => return Err(ProgramFailure::new(format!("the metric's program: {error}"))),
        }
    }
}

/// Returns the printed lines of a program that ran to its end.
fn printed(finished: FinishedProgram) -> Result<Vec<String>, ProgramFailure> {
    let FinishedProgram { output, end, .. } = finished;
    match end {
        ProgramEnd::Completed if output.cut > 0 => {
            let rule = format!("the metric's program printed more than {METRIC_OUTPUT_BYTES_MAX} bytes");
            Err(ProgramFailure::new(rule))
        }
        ProgramEnd::Completed => Ok(output.console),
        ProgramEnd::Failed { refusal, position } => {
            let said = match (&output.error, &output.limit) {
                (_, Some(limit)) => format!("it reached its limit of {limit}"),
                (Some(error), None) if error.message.is_empty() => error.name.clone(),
                (Some(error), None) => format!("{}: {}", error.name, error.message),
                (None, None) => "it failed".to_owned(),
            };
            let at = position.map(|position| format!(" (line {})", position.line)).unwrap_or_default();
            let detail = format!("the metric's program: {said}{at}");
            Err(ProgramFailure { detail, refusal: Some(Box::new(refusal)) })
        }
        ProgramEnd::Cancelled => Err(ProgramFailure::new("the metric's program was stopped")),
    }
}

/// Reads `{score, feedback}` as a program or a command wrote it.
pub(super) fn read_score(text: &str) -> Result<Scoring, String> {
    let shape = "{score, feedback} with a score from 0 to 1 is expected";
    let value = json::read(text.trim()).map_err(|_| format!("the metric gave no JSON; {shape}"))?;
    let Value::Object(fields) = &value else {
        return Err(format!("the metric gave {}; {shape}", cut_text(text.trim(), 80)));
    };
    if let Some(strange) = fields.keys().find(|key| !["score", "feedback"].contains(&key.as_str())) {
        return Err(format!("the metric gave {}; {shape}", cut_text(strange, 80)));
    }
    let micro = fields.get("score").and_then(Decimal::of).filter(|score| !score.is_negative());
    let micro = micro.and_then(|score| score.scaled(6)).and_then(|micro| u64::try_from(micro).ok());
    let Some(micro) = micro.filter(|micro| *micro <= SCORE_MAX) else {
        return Err(format!("the metric gave no score; {shape}"));
    };
    let feedback = match fields.get("feedback") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => cut_text(text, FEEDBACK_CHARS_MAX),
        Some(_) => return Err(format!("the metric gave a feedback that is not a text; {shape}")),
    };
    Ok(Scoring::scored(micro, feedback))
}
