//! One interpreter: runs a program from its text to its output, and pauses at each gate call.
//!
//! Names are bound before each program, so a program that reassigns the name of a gate has the change only for its own
//! run. The end of a program is decided here, outside of the language: an answer that stops the program drops it at
//! that call, so none of its code runs any more, and a latched limit ends it whatever it does with the exception.

use cantrip_circle::code::{Limit, next_random};
use cantrip_circle::limits::ERROR_TEXT_BYTES_MAX;
use monty::{Dump, MontyRepl, MontyRun, ReplFunctionCall, ReplProgress, ReplStartError, Session as Dumped, SessionRef};
use monty_types::{
    CompileOptions, ExcType, ExtFunctionResult, MontyDate, MontyDateTime, MontyException, MontyObject,
    NameLookupResult, OsFunctionCall, PrintWriter, ResourceLimits, ResourceTracker,
};
use serde_json::{Map, Value};

use super::last_expression::WrappedProgram;
use super::memory::{self, SessionMemory, counted, uncounted};
use super::meter::{CancelledSessions, Meter};
use super::value::{Writer, object};
use super::wire::{CallAnswer, JsonFault, Message, PassedArguments, Program, ProgramOutput, RaisedError, SandboxSpec};
use crate::limits;

/// The header of every snapshot. Another version of the format or of the interpreter cannot be read.
pub(super) const HEADER: &[u8] = b"cantrip python snapshot 1, monty 0.0.23\n";

type Progress = Result<ReplProgress, Box<ReplStartError>>;

/// An interpreter, with the memory that is counted for it.
#[derive(Debug)]
pub(super) struct Session {
    held: SessionMemory,
    hard_bytes: Option<usize>,
    cancelled: CancelledSessions,
    core: Core,
    state: State,
}

#[derive(Debug)]
struct Core {
    id: u64,
    spec: SandboxSpec,
    /// The state of the random sequence that the seed starts.
    random: u64,
    /// The number of programs that the interpreter has received; it names them by their number.
    fed: u64,
}

#[derive(Debug)]
enum State {
    Idle(Box<MontyRepl>),
    Waiting(Box<ReplFunctionCall>, Box<Running>),
    /// The session cannot continue.
    Over,
}

/// A running program.
#[derive(Debug)]
struct Running {
    meter: Meter,
    now_ms: i64,
    shown: WrappedProgram,
    /// The name that the interpreter gave the program.
    name: String,
    /// True before the first step: an error can still be a compile error.
    unbegun: bool,
}

/// The saved state of a session: the interpreter and the state outside of it.
#[derive(serde::Serialize, serde::Deserialize)]
struct SavedSession {
    random: u64,
    fed: u64,
    interpreter: Vec<u8>,
}

impl Session {
    /// Creates a session. With `hard`, exceeding the memory limit by far ends the process.
    pub(super) fn new(id: u64, spec: SandboxSpec, hard: bool, cancelled: CancelledSessions) -> Self {
        let mut held = SessionMemory::NOTHING;
        let hard_bytes = hard.then(|| spec.limits.memory_bytes.saturating_add(limits::PYTHON_SLACK_BYTES));
        let slice = memory::slice(&mut held, hard_bytes);
        let repl = counted(|| MontyRepl::new("program", tracker(&spec), CompileOptions::default()));
        drop(slice);
        let core = Core { id, random: spec.seed, spec, fed: 0 };
        Self { held, hard_bytes, cancelled, core, state: State::Idle(Box::new(repl)) }
    }

    /// Restores a session from a snapshot; `None` if the snapshot cannot be read.
    pub(super) fn load(
        id: u64,
        spec: SandboxSpec,
        hard: bool,
        cancelled: CancelledSessions,
        snapshot: &[u8],
    ) -> Option<Self> {
        let (kept, rest) = postcard::take_from_bytes::<SavedSession>(snapshot.strip_prefix(HEADER)?).ok()?;
        if !rest.is_empty() {
            return None;
        }
        let mut session = Self::new(id, spec, hard, cancelled);
        let slice = memory::slice(&mut session.held, session.hard_bytes);
        let loaded = counted(|| match Dump::load(&kept.interpreter) {
            Ok(Dump { state: Dumped::Idle(repl), .. }) => Some(repl),
            Ok(Dump { state: Dumped::Suspended(_) | Dumped::Running(_), .. }) | Err(_) => None,
        });
        drop(slice);
        session.core.random = kept.random;
        session.core.fed = kept.fed;
        session.state = State::Idle(loaded?);
        Some(session)
    }

    /// Returns a snapshot of the session; `None` while a program waits.
    pub(super) fn dump(&self) -> Option<Vec<u8>> {
        let State::Idle(repl) = &self.state else { return None };
        let interpreter = monty::dump("program", None, SessionRef::Idle(repl)).ok()?;
        let kept = SavedSession { random: self.core.random, fed: self.core.fed, interpreter };
        postcard::to_extend(&kept, HEADER.to_vec()).ok()
    }

    pub(super) fn run(&mut self, program: Program) -> Message {
        let State::Idle(mut repl) = std::mem::replace(&mut self.state, State::Over) else { return Message::Lost };
        let Program { source, now_ms, variables } = program;
        let shown = WrappedProgram::of(&source);
        if let Some(place) = shown.surrogate {
            self.state = State::Idle(repl);
            return Message::Finished(refused_surrogate(place));
        }
        let name = format!("<python-input-{}>", self.core.fed);
        if !source.is_empty() {
            self.core.fed += 1;
        }
        let meter = Meter::new(self.core.id, self.cancelled.clone(), self.core.spec.limits);
        let mut running = Running { meter, now_ms, shown, name, unbegun: true };
        let slice = memory::slice(&mut self.held, self.hard_bytes);
        running.meter.begin_slice();
        let spec = &self.core.spec;
        let progress = counted(|| {
            *repl.tracker_mut() = tracker(spec);
            repl.tracker_mut().set_max_duration(running.meter.native_time());
            let bound = spec.gates.iter().map(String::as_str).chain([RAND, NOW]);
            let function = |name: &str| MontyObject::Function { name: name.to_owned(), docstring: None };
            let mut inputs: Vec<(String, MontyObject)> = bound.map(|name| (name.to_owned(), function(name))).collect();
            let variables = variables.and_then(|text| serde_json::from_str::<Map<String, Value>>(&text).ok());
            inputs.extend(variables.into_iter().flatten().map(|(name, value)| (name, object(value))));
            repl.feed_start(&running.shown.source, inputs, PrintWriter::Callback(&mut running.meter))
        });
        let (state, message) = self.core.advance(progress, running);
        drop(slice);
        self.state = state;
        message
    }

    pub(super) fn answer(&mut self, given: CallAnswer, now_ms: i64) -> Message {
        let State::Waiting(call, mut running) = std::mem::replace(&mut self.state, State::Over) else {
            return Message::Lost;
        };
        let slice = memory::slice(&mut self.held, self.hard_bytes);
        running.meter.begin_slice();
        let (state, message) = match given {
            CallAnswer::Stop => finish_stopped(counted(|| call.into_repl()), *running, true, None),
            CallAnswer::Cancel => {
                running.meter.end(Limit::Cancelled);
                finish_stopped(counted(|| call.into_repl()), *running, false, None)
            }
            CallAnswer::Value(_) | CallAnswer::Raise(_) => {
                running.now_ms = now_ms;
                let progress = counted(|| {
                    let result = match given {
                        CallAnswer::Value(text) => match serde_json::from_str(&text) {
                            Ok(value) => ExtFunctionResult::Return(object(value)),
                            Err(_) => runtime_error("the answer cannot be read".to_owned()).into(),
                        },
                        CallAnswer::Raise(text) => runtime_error(text).into(),
                        CallAnswer::Stop | CallAnswer::Cancel => runtime_error(String::new()).into(),
                    };
                    call.resume(result, PrintWriter::Callback(&mut running.meter))
                });
                self.core.advance(progress, *running)
            }
        };
        drop(slice);
        self.state = state;
        message
    }
}

fn tracker(spec: &SandboxSpec) -> ResourceTracker {
    let levels = spec.limits.stack_bytes / limits::PYTHON_LEVEL_BYTES;
    let levels = levels.clamp(1, limits::PYTHON_LEVELS_MAX);
    ResourceTracker::new(ResourceLimits::default().max_memory(spec.limits.memory_bytes).max_recursion_depth(levels))
}

const RAND: &str = "rand";
const NOW: &str = "now";

/// The host's reaction to a call of a function that is not built into the interpreter.
enum HostCall {
    Gate(u32),
    Answers(ExtFunctionResult),
}

impl Core {
    /// Runs the program until it waits for a gate or ends.
    fn advance(&mut self, mut progress: Progress, mut running: Running) -> (State, Message) {
        loop {
            running.meter.check_limits();
            let reached = match progress {
                Ok(reached) => reached,
                Err(stopped) => {
                    let ReplStartError { repl, error } = *stopped;
                    let told = error.exc_type();
                    let of_text =
                        matches!(told, ExcType::SyntaxError | ExcType::NotImplementedError | ExcType::ImportError);
                    let suspect = running.unbegun && of_text;
                    let uncompiled = suspect && !self.compiles(&running.shown.source);
                    return finish_raised(repl, error, running, uncompiled);
                }
            };
            running.unbegun = false;
            if running.meter.limit_reached().is_some() {
                return finish_stopped(counted(|| reached.into_repl()), running, false, None);
            }
            progress = match reached {
                ReplProgress::Complete { repl, value } => return finish_completed(repl, value, running),
                ReplProgress::FunctionCall(mut call) => match self.host_call(&call, running.now_ms) {
                    HostCall::Gate(gate) => {
                        let passed = uncounted(|| passed_arguments(&call));
                        counted(|| {
                            call.args = Vec::new();
                            call.kwargs = Vec::new();
                        });
                        running.meter.end_slice();
                        let state = State::Waiting(Box::new(call), Box::new(running));
                        return (state, Message::Called { gate, passed });
                    }
                    HostCall::Answers(answer) => {
                        counted(|| call.resume(answer, PrintWriter::Callback(&mut running.meter)))
                    }
                },
                ReplProgress::OsCall(call) => counted(|| {
                    let answer = answer_os_call(&call.function_call, running.now_ms);
                    call.resume(answer, PrintWriter::Callback(&mut running.meter))
                }),
                ReplProgress::NameLookup(lookup) => {
                    counted(|| lookup.resume(NameLookupResult::Undefined, PrintWriter::Callback(&mut running.meter)))
                }
                ReplProgress::ResolveFutures(futures) => counted(|| {
                    let never = runtime_error("nothing can end what is awaited here".to_owned());
                    futures.abort(never, PrintWriter::Callback(&mut running.meter))
                }),
            };
        }
    }

    /// Returns true if the interpreter compiles this text. It is used only for a program that failed before its first
    /// visible step, to distinguish a compile error from an exception that the program raised.
    fn compiles(&self, source: &str) -> bool {
        let bound = self.spec.gates.iter().map(String::as_str).chain([RAND, NOW]).map(str::to_owned).collect();
        uncounted(|| MontyRun::new(source.to_owned(), "program", bound, CompileOptions::default()).is_ok())
    }

    fn host_call(&mut self, call: &ReplFunctionCall, now_ms: i64) -> HostCall {
        let name = call.function_name.as_str();
        let unknown = || HostCall::Answers(ExtFunctionResult::NotFound(name.to_owned()));
        if call.object_id.is_some() {
            return unknown();
        }
        if let Some(gate) = self.spec.gates.iter().position(|gate| gate == name) {
            return u32::try_from(gate).map_or_else(|_| unknown(), HostCall::Gate);
        }
        let own = name == RAND || name == NOW;
        if own && !(call.args.is_empty() && call.kwargs.is_empty()) {
            let message = format!("{name}() takes no arguments");
            return HostCall::Answers(MontyException::new(ExcType::TypeError, Some(message)).into());
        }
        match name {
            RAND => HostCall::Answers(MontyObject::Float(next_random(&mut self.random)).into()),
            NOW => HostCall::Answers(MontyObject::Float(now_ms as f64 / 1000.0).into()),
            _ => unknown(),
        }
    }
}

fn passed_arguments(call: &ReplFunctionCall) -> Result<PassedArguments, JsonFault> {
    let mut writer = Writer::new();
    let positional = writer.positional(&call.args)?;
    let keywords = writer.keywords(&call.kwargs)?;
    let keywords = keywords.into_iter().map(|(name, value)| Value::Array(vec![Value::String(name), value])).collect();
    Ok(PassedArguments {
        positional: Value::Array(positional).to_string(),
        keywords: Value::Array(keywords).to_string(),
    })
}

fn runtime_error(message: String) -> MontyException {
    MontyException::new(ExcType::RuntimeError, Some(message))
}

/// Answers a call to the operating system: the clock answers, everything else is refused.
fn answer_os_call(asked: &OsFunctionCall, now_ms: i64) -> ExtFunctionResult {
    let refused = |kind: ExcType| {
        let message = format!("{} is refused: only gates reach outside", asked.name());
        ExtFunctionResult::Error(MontyException::new(kind, Some(message)))
    };
    match asked {
        OsFunctionCall::DateToday => match moment(now_ms, 0) {
            Some(MontyDateTime { year, month, day, .. }) => {
                ExtFunctionResult::Return(MontyObject::Date(MontyDate { year, month, day }))
            }
            None => refused(ExcType::OSError),
        },
        OsFunctionCall::DateTimeNow(zone) => {
            let offset = zone.as_ref().map_or(0, |zone| zone.offset_seconds);
            match moment(now_ms, offset) {
                Some(moment) => ExtFunctionResult::Return(MontyObject::DateTime(MontyDateTime {
                    offset_seconds: zone.as_ref().map(|zone| zone.offset_seconds),
                    timezone_name: zone.as_ref().and_then(|zone| zone.name.clone()),
                    ..moment
                })),
                None => refused(ExcType::OSError),
            }
        }
        OsFunctionCall::Getenv(_) | OsFunctionCall::GetEnviron => refused(ExcType::PermissionError),
        OsFunctionCall::Exists(_)
        | OsFunctionCall::IsFile(_)
        | OsFunctionCall::IsDir(_)
        | OsFunctionCall::IsSymlink(_)
        | OsFunctionCall::ReadText(_)
        | OsFunctionCall::ReadBytes(_)
        | OsFunctionCall::Stat(_)
        | OsFunctionCall::Iterdir(_)
        | OsFunctionCall::Resolve(_)
        | OsFunctionCall::Absolute(_)
        | OsFunctionCall::Unlink(_)
        | OsFunctionCall::Rmdir(_)
        | OsFunctionCall::WriteText(_)
        | OsFunctionCall::WriteBytes(_)
        | OsFunctionCall::AppendText(_)
        | OsFunctionCall::AppendBytes(_)
        | OsFunctionCall::Open(_)
        | OsFunctionCall::Mkdir(_)
        | OsFunctionCall::Rename(_) => refused(ExcType::PermissionError),
    }
}

/// Converts a clock reading to a calendar date and time, at this many seconds east of Greenwich.
fn moment(now_ms: i64, offset_seconds: i32) -> Option<MontyDateTime> {
    let local = now_ms.checked_add(i64::from(offset_seconds) * 1000)?;
    let at = jiff::civil::DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
    let at = at.checked_add(jiff::SignedDuration::from_millis(local)).ok()?;
    Some(MontyDateTime {
        year: i32::from(at.year()),
        month: u8::try_from(at.month()).ok()?,
        day: u8::try_from(at.day()).ok()?,
        hour: u8::try_from(at.hour()).ok()?,
        minute: u8::try_from(at.minute()).ok()?,
        second: u8::try_from(at.second()).ok()?,
        microsecond: u32::try_from(at.subsec_nanosecond()).ok()? / 1000,
        offset_seconds: None,
        timezone_name: None,
    })
}

/// Finishes a program that completed.
fn finish_completed(repl: MontyRepl, value: MontyObject, mut running: Running) -> (State, Message) {
    let text = uncounted(|| match (&value, running.shown.is_text()) {
        (MontyObject::String(text), true) => Some(text.clone()).filter(|text| text != "None"),
        (MontyObject::None, _) => None,
        (other, _) => Some(other.py_repr()),
    });
    counted(|| drop(value));
    running.meter.end_slice();
    let shown = text.map(|text| running.meter.cut_value(text));
    let (console, cut) = running.meter.take();
    let (value, cut_value) = shown.unzip();
    let left = ProgramOutput {
        console,
        value,
        cut: cut + cut_value.unwrap_or(0),
        cpu_us: micros(&running.meter),
        ..ProgramOutput::default()
    };
    (State::Idle(Box::new(repl)), Message::Finished(left))
}

/// Finishes a program that was ended by an accepted answer or by a latched limit. `place` is the position at which it
/// stopped, if the interpreter reported it.
fn finish_stopped(repl: MontyRepl, mut running: Running, stopped: bool, place: Option<(u32, u32)>) -> (State, Message) {
    running.meter.end_slice();
    let limit = running.meter.limit_reached();
    let (console, cut) = running.meter.take();
    let stopped_at = place.filter(|_| limit.is_some());
    let left = ProgramOutput {
        console,
        cut,
        limit,
        stopped_at,
        stopped,
        cpu_us: micros(&running.meter),
        ..ProgramOutput::default()
    };
    let state = match left.rolled_back() {
        true => {
            counted(|| drop(repl));
            State::Over
        }
        false => State::Idle(Box::new(repl)),
    };
    (state, Message::Finished(left))
}

/// Finishes a program that ended in an exception, or in a limit that the interpreter reports as an exception.
fn finish_raised(repl: MontyRepl, error: MontyException, mut running: Running, uncompiled: bool) -> (State, Message) {
    let kind = error.exc_type();
    if kind == ExcType::TimeoutError && repl.tracker().check_time().is_err() {
        running.meter.out_of_time();
    } else if kind == ExcType::MemoryError {
        // A program gets this error only when it runs out of memory; if it raises the error itself, it is treated the
        // same.
        running.meter.end(Limit::Memory);
    }
    let stack = (kind == ExcType::RecursionError).then_some(Limit::Stack);
    let own = error.traceback().iter().rev().find(|frame| frame.filename == running.name);
    let place = own.map(|frame| running.shown.original(frame.start.line, frame.start.column));
    if running.meter.limit_reached().is_some() {
        counted(|| drop(error));
        return finish_stopped(repl, running, false, place);
    }
    let told = uncounted(|| {
        let cut = |mut text: String| {
            text.truncate(text.floor_char_boundary(ERROR_TEXT_BYTES_MAX));
            text
        };
        RaisedError {
            uncompiled,
            name: cut(error.exc_type().to_string()),
            message: cut(own_words(error.message().unwrap_or_default()).to_owned()),
            place,
        }
    });
    counted(|| drop(error));
    running.meter.end_slice();
    let (console, cut) = running.meter.take();
    let cpu_us = micros(&running.meter);
    let left = ProgramOutput { console, cut, error: Some(told), limit: stack, cpu_us, ..ProgramOutput::default() };
    (State::Idle(Box::new(repl)), Message::Finished(left))
}

/// Returns the output of a program that is refused because of half of a surrogate pair; none of it runs.
fn refused_surrogate(place: (u32, u32)) -> ProgramOutput {
    let error = RaisedError {
        uncompiled: true,
        name: ExcType::SyntaxError.to_string(),
        message: "half of a surrogate pair is not a character; write the whole one, as in \\U0001f980".to_owned(),
        place: Some(place),
    };
    ProgramOutput { error: Some(error), ..ProgramOutput::default() }
}

/// Returns a message of the interpreter without its remark that the error is its own: what follows is about the
/// program, which made an exception in a way that this interpreter does not know.
fn own_words(message: &str) -> &str {
    message.strip_prefix("Internal error in monty: ").unwrap_or(message)
}

fn micros(meter: &Meter) -> u64 {
    u64::try_from(meter.cpu().as_micros()).unwrap_or(u64::MAX)
}
