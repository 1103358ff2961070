//! The parts that all mediums of code share, whatever their language.
//!
//! A language implements [`CodeMedium`]: its description, its variable names and its sandboxes. How a program reaches a
//! sandbox is the same for every language and is written here once: the tool and the fenced block, the limits of a
//! program ([`ProgramLimits`]), its console ([`ConsoleOutput`]) and its end ([`ProgramResult`]). Two mediums that each
//! wrote this themselves would in time cut, stop and report differently.

mod console;
mod program_limits;
mod result;

use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::json;
use cantrip_loom::{GateCall, ToolMode};
use cantrip_reply::{Refusal, codes};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};

use crate::arguments::Property;
use crate::medium::{BoxFuture, CallTarget, Medium, Presentation, Sandbox, SandboxOptions};
use crate::{CallArguments, CallRequest, CallerState, Circle, Decision, MediumKind, ToolDefinition};

pub use console::ConsoleOutput;
pub use program_limits::{Limit, ProgramLimits};
pub use result::{Exception, ProgramFault, ProgramResult};

/// The name of the one argument of the tool.
const CODE: &str = "code";

/// A medium in which the crystal writes programs that call gates as functions. Every code medium is a [`Medium`].
pub trait CodeMedium: Send + Sync + 'static {
    /// Returns the kind of the medium. Its name is also the name of the tool and of the fenced block.
    fn language(&self) -> MediumKind;

    /// Describes the language to the entity. The signatures of the gates follow the text. A pure function.
    fn introduction(&self, circle: &Circle) -> String;

    /// Returns true if a variable can have this name.
    fn is_variable_name(&self, name: &str) -> bool;

    /// Makes the sandbox of one entity. Its first program finds these variables.
    fn sandbox(&self, spec: SandboxSpec, variables: Option<Map<String, Value>>) -> Box<dyn Sandbox>;

    /// Returns true if these bytes are a snapshot that this version can load.
    fn reads_snapshot(&self, snapshot: &[u8]) -> bool {
        let _ = snapshot;
        false
    }

    /// Makes a sandbox from a snapshot; see [`Medium::restore`].
    fn restored_sandbox(&self, spec: SandboxSpec, snapshot: Arc<[u8]>) -> BoxFuture<'_, Option<Box<dyn Sandbox>>> {
        let _ = (spec, snapshot);
        Box::pin(std::future::ready(None))
    }
}

/// The specification of an entity's sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SandboxSpec {
    /// The seed of the random numbers.
    pub seed: u64,
    pub limits: ProgramLimits,
    pub gates: Vec<GateFunction>,
}

/// A gate as a program calls it. A gate that a ward removed is bound too: a call of it returns a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateFunction {
    pub name: String,
    /// The arguments in declared order.
    pub properties: Vec<Property>,
}

impl SandboxSpec {
    fn of(circle: &Circle, seed: u64) -> Self {
        let names = circle.callable_names().into_iter();
        let gate = |(name, gate): (String, String)| GateFunction {
            name,
            properties: circle.properties(&gate).unwrap_or_default(),
        };
        Self { seed, limits: ProgramLimits::within(&circle.wards().medium), gates: names.map(gate).collect() }
    }
}

impl<M: CodeMedium> Medium for M {
    fn kind(&self) -> MediumKind {
        self.language()
    }

    fn present(&self, circle: &Circle, mode: ToolMode) -> Presentation {
        let name = self.language().as_str();
        let mut text = self.introduction(circle);
        for signature in circle.signatures() {
            text.push('\n');
            text.push_str(&signature);
        }
        match mode {
            ToolMode::Tool => {}
            ToolMode::Fenced => {
                let fenced = format!(
                    "You act by writing programs. Put your program into one fenced block that begins with ```{name}; it \
                     is run, and its output is sent back to you.\n{text}"
                );
                return Presentation { tools: Vec::new(), text: Some(fenced) };
            }
        }
        let parameters = json!({
            "type": "object",
            "properties": {CODE: {"type": "string", "description": "The program."}},
            "required": [CODE],
            "additionalProperties": false,
        });
        let tool = ToolDefinition { name: name.to_owned(), description: text.clone(), parameters };
        Presentation { tools: vec![tool], text: Some(text) }
    }

    fn interpret(&self, circle: &Circle, call: &GateCall) -> CallTarget {
        let name = self.language().as_str();
        if call.gate != name {
            let asked = CallRequest { gate: &call.gate, arguments: CallArguments::Tool(call.args.clone()) };
            return match circle.decide(asked, &CallerState::default()) {
                Decision::Refused(refusal) => CallTarget::Refused(refusal),
                Decision::Allowed(_) | Decision::NeedsApproval { .. } => {
                    CallTarget::Refused(codes::target_unusable(&call.gate, "call it in code").into())
                }
            };
        }
        match program(name, &call.args) {
            Ok(source) => CallTarget::Program(source),
            Err(refusal) => CallTarget::Refused(refusal),
        }
    }

    fn isolate(&self, circle: &Circle, isolation: SandboxOptions) -> Result<Option<Box<dyn Sandbox>>, Refusal> {
        let SandboxOptions { seed, context } = isolation;
        let variables = context.map(|context| circle.variables(context, |name| self.is_variable_name(name)));
        Ok(Some(self.sandbox(SandboxSpec::of(circle, seed), variables)))
    }

    fn can_restore(&self, snapshot: &[u8]) -> bool {
        self.reads_snapshot(snapshot)
    }

    fn restore<'a>(
        &'a self,
        circle: &'a Circle,
        isolation: SandboxOptions,
        snapshot: Arc<[u8]>,
    ) -> BoxFuture<'a, Option<Box<dyn Sandbox>>> {
        // The context is already among the restored variables.
        self.restored_sandbox(SandboxSpec::of(circle, isolation.seed), snapshot)
    }
}

/// Returns the program in the arguments of a call of this tool.
fn program(tool: &str, args: &Value) -> Result<String, Refusal> {
    let subject = || format!("arguments of {tool}");
    let read;
    let args = match args {
        Value::String(text) => {
            read = json::read_foreign(text)
                .map_err(|fault| codes::unparsable(subject(), &fault.path, fault.rule.to_string()))?;
            &read
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => args,
    };
    match args.get(CODE) {
        Some(Value::String(code)) => Ok(code.clone()),
        Some(_) => Err(codes::schema(subject(), format!("/{CODE}"), "it must be a text").into()),
        None => Err(codes::schema(subject(), format!("/{CODE}"), "missing required argument").into()),
    }
}

/// Returns the processor time of this thread; other work on the machine does not count against a program.
pub fn thread_cpu() -> Duration {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(spent.tv_sec).unwrap_or(0), u32::try_from(spent.tv_nsec).unwrap_or(0))
}

/// Returns the next number of the sequence that a seed starts (splitmix64), as a fraction of one.
pub fn next_random(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    (mixed >> 11) as f64 / (1_u64 << 53) as f64
}
