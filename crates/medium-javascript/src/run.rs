//! Runs one program, from its text to its output.

use std::cell::Cell;
use std::rc::Rc;

use cantrip_circle::code::Limit;
use cantrip_circle::limits::ERROR_TEXT_BYTES_MAX;
use corosensei::stack::DefaultStack;
use rquickjs::context::EvalOptions;
use rquickjs::promise::PromiseState;
use rquickjs::{Ctx, Promise, Value};

use super::engine::{Core, ProgramOutcome, stack_bytes};
use super::meter::EndReason;
use super::natives::{self, ThrownError};
use super::output::{Error, Fault, ProgramOutput, SourceLocation};
use super::raw::{self, Job};
use super::rewrite::{Rewritten, rewrite};
use super::sandbox::Program;
use crate::limits;

/// The beginning of a stack line whose frame is the top level of a program.
const TOP_LEVEL_FRAME: &str = "at <eval> ";

/// A running program.
pub(super) struct ProgramRun<'a> {
    core: &'a Rc<Core>,
    program: &'a Program,
    rewritten: Option<Rewritten>,
    output: ProgramOutput,
}

/// The reason why a program did not complete.
enum ProgramHalt<'js> {
    /// The host ended the program; the latch holds the reason. The location is given if it is known.
    Ended(Option<SourceLocation>),
    Threw(Fault, Value<'js>),
    /// Nothing was thrown, but nothing is left to wait for, or the program could not be parsed.
    Said(Fault, &'static str),
}

/// Parses a program on a separate stack. The stack is kept for the next program, unless a long program may have used
/// much of it.
fn read(source: &str) -> Option<Rewritten> {
    thread_local! {
        static KEPT: Cell<Option<DefaultStack>> = const { Cell::new(None) };
    }
    let mut stack = match KEPT.take() {
        Some(stack) => stack,
        None => DefaultStack::new(limits::READING_STACK_BYTES).ok()?,
    };
    let rewritten = raw::run_on_stack(&mut stack, || std::panic::catch_unwind(|| rewrite(source)).ok().flatten());
    if source.len() <= limits::READING_STACK_KEPT_SOURCE_BYTES {
        KEPT.set(Some(stack));
    }
    rewritten
}

impl<'a> ProgramRun<'a> {
    pub(super) fn new(core: &'a Rc<Core>, program: &'a Program) -> Self {
        Self { core, program, rewritten: None, output: ProgramOutput::default() }
    }

    pub(super) fn complete(mut self, ctx: &Ctx<'_>) -> ProgramOutcome {
        match self.evaluate(ctx) {
            Ok(()) => {}
            Err(ProgramHalt::Ended(place)) => self.output.stopped_at = place,
            Err(ProgramHalt::Threw(fault, thrown)) => self.record_exception(ctx, fault, thrown),
            Err(ProgramHalt::Said(fault, message)) => {
                let name = match fault {
                    Fault::Syntax => "SyntaxError",
                    Fault::Threw | Fault::Unhandled | Fault::Unsettled => "Error",
                };
                self.output.error = Some(Error { fault, name: name.into(), message: message.into(), place: None });
            }
        }
        self.finish(ctx, false)
    }

    /// Finishes a program whose sandbox could not be prepared: a limit was reached on the way, or the sandbox is
    /// broken.
    pub(super) fn finish_unprepared(self, ctx: &Ctx<'_>) -> ProgramOutcome {
        self.finish(ctx, true)
    }

    fn evaluate<'js>(&mut self, ctx: &Ctx<'js>) -> Result<(), ProgramHalt<'js>> {
        let source = &self.program.source;
        raw::compile(ctx, source, &self.program.name).map_err(|_| self.halt(ctx, Fault::Syntax))?;
        let Some(rewritten) = read(source) else {
            return Err(ProgramHalt::Said(Fault::Syntax, "the program cannot be read"));
        };
        let mut options = EvalOptions::default();
        options.strict = false;
        options.promise = true;
        options.filename = Some(self.program.name.clone());
        let text = rewritten.source.clone();
        self.rewritten = Some(rewritten);
        let program: Promise<'js> = ctx.eval_with_options(text, options).map_err(|_| self.halt(ctx, Fault::Threw))?;
        let completion = self.settle_promise(ctx, &program)?;
        let mut value: Value<'js> = match completion.as_object() {
            Some(completion) => completion.get("value").map_err(|_| self.halt(ctx, Fault::Threw))?,
            None => completion,
        };
        if let Some(promise) = value.as_promise().cloned() {
            value = self.settle_promise(ctx, &promise)?;
        }
        self.check_rejections(ctx)?;
        if !value.is_undefined() {
            let text = natives::render_value(self.core, ctx, &value);
            let text = text.map_err(|_| self.halt(ctx, Fault::Threw))?;
            // The traps of a proxy may have run and may have queued jobs.
            self.jobs(ctx)?;
            self.show(text);
        }
        Ok(())
    }

    /// Returns the reason for the halt after the engine has reported a failure.
    fn halt<'js>(&self, ctx: &Ctx<'js>, fault: Fault) -> ProgramHalt<'js> {
        let thrown = ctx.catch();
        self.latch_spent();
        match self.core.end.get() {
            Some(EndReason::Stopped) => ProgramHalt::Ended(None),
            Some(EndReason::Limit(_)) => ProgramHalt::Ended(self.place_of(ctx, &thrown)),
            None => ProgramHalt::Threw(fault, thrown),
        }
    }

    /// Ends a program that has reached a limit without being stopped. It may have caught the engine's exception.
    fn latch_spent(&self) {
        if self.core.end.get().is_none()
            && let Some(limit) = self.core.meter.limit_reached()
        {
            self.core.end(EndReason::Limit(limit));
        }
    }

    /// Returns the location of the error that unwinds a program which a limit ended. The engine records locations at
    /// calls and in functions. For a loop at top level that ran out of time it would report the last location before
    /// the loop, so no location is returned.
    fn place_of<'js>(&self, ctx: &Ctx<'js>, thrown: &Value<'js>) -> Option<SourceLocation> {
        let out_of_time = matches!(self.core.end.get(), Some(EndReason::Limit(Limit::Cpu | Limit::Wall)));
        match natives::recorded_stack(self.core, ctx, thrown) {
            Ok(stack) if out_of_time && stack.trim_start().starts_with(TOP_LEVEL_FRAME) => None,
            Ok(stack) => self.place(&stack),
            Err(_) => {
                ctx.catch();
                None
            }
        }
    }

    /// Runs pending jobs until none are left.
    fn jobs<'js>(&self, ctx: &Ctx<'js>) -> Result<(), ProgramHalt<'js>> {
        loop {
            if self.core.end.get().is_some() {
                return Err(ProgramHalt::Ended(None));
            }
            match raw::run_job(ctx) {
                Job::NoneLeft => return Ok(()),
                Job::Completed => {}
                Job::Threw(error) if matches!(self.core.end.get(), Some(EndReason::Limit(_))) => {
                    return Err(ProgramHalt::Ended(self.place_of(ctx, &error)));
                }
                Job::Threw(_) => {}
            }
        }
    }

    fn settle_promise<'js>(&self, ctx: &Ctx<'js>, promise: &Promise<'js>) -> Result<Value<'js>, ProgramHalt<'js>> {
        self.jobs(ctx)?;
        match promise.state() {
            PromiseState::Pending => {
                Err(ProgramHalt::Said(Fault::Unsettled, "a promise that is awaited never settles"))
            }
            PromiseState::Resolved | PromiseState::Rejected => {
                let own = promise.as_inner().as_value();
                let mut rejected = self.core.rejected.borrow_mut();
                rejected.retain(|(known, _)| known.clone().restore(ctx).is_ok_and(|known| known != *own));
                drop(rejected);
                match promise.result() {
                    Some(Ok(value)) => Ok(value),
                    Some(Err(_)) | None => Err(self.halt(ctx, Fault::Threw)),
                }
            }
        }
    }

    /// Fails if a rejection has no handler, because that is an error of the program.
    fn check_rejections<'js>(&self, ctx: &Ctx<'js>) -> Result<(), ProgramHalt<'js>> {
        let first = self.core.rejected.borrow().first().map(|(_, reason)| reason.clone());
        match first.map(|reason| reason.restore(ctx)) {
            None => Ok(()),
            Some(Ok(reason)) => Err(ProgramHalt::Threw(Fault::Unhandled, reason)),
            Some(Err(_)) => Err(ProgramHalt::Said(Fault::Unhandled, "a promise was rejected and nobody handled it")),
        }
    }

    /// Records the value. It shares the limit of what is shown with the console.
    fn show(&mut self, text: String) {
        let (text, cut) = self.core.printed.borrow().cut_value(text, &self.core.spec.limits);
        self.output.cut += cut;
        self.output.value = Some(text);
    }

    fn record_exception<'js>(&mut self, ctx: &Ctx<'js>, fault: Fault, thrown: Value<'js>) {
        let ThrownError { mut name, mut message, stack } = natives::describe_thrown(self.core, ctx, &thrown)
            .unwrap_or_else(|_| {
                ctx.catch();
                ThrownError {
                    name: "Uncaught".into(),
                    message: "what was thrown cannot be shown".into(),
                    ..ThrownError::default()
                }
            });
        for text in [&mut name, &mut message] {
            text.truncate(text.floor_char_boundary(ERROR_TEXT_BYTES_MAX));
        }
        let place = self.place(&stack);
        if fault != Fault::Syntax && name == "RangeError" && message == "Maximum call stack size exceeded" {
            self.output.limit = Some(Limit::Stack);
        }
        self.output.error = Some(Error { fault, name, message, place });
    }

    /// Returns the location of the first frame in the entity's own code. Native functions have no location, and the
    /// host's scripts are not part of any program.
    fn place(&self, stack: &str) -> Option<SourceLocation> {
        stack.lines().find_map(|frame| {
            let frame = frame.trim().trim_start_matches("at ");
            let inner = frame.rsplit_once('(').map_or(frame, |(_, inner)| inner).trim_end_matches(')');
            let (rest, column) = inner.rsplit_once(':')?;
            let (program, line) = rest.rsplit_once(':')?;
            let (line, column) = (line.parse().ok()?, column.parse().ok()?);
            // The frames of the host's scripts have no line numbers.
            if program == natives::LATE_NAME || line == 0 {
                return None;
            }
            let column = (program == self.program.name).then(|| match &self.rewritten {
                Some(rewritten) => rewritten.original(line, column),
                None => column,
            });
            Some(SourceLocation { program: program.into(), line, column })
        })
    }

    fn finish(mut self, ctx: &Ctx<'_>, unprepared: bool) -> ProgramOutcome {
        let core = self.core;
        self.latch_spent();
        ctx.catch();
        core.rejected.borrow_mut().clear();
        let (console, cut) = core.printed.take().into_shown();
        self.output.cut += cut;
        self.output.console = console;
        match core.end.get() {
            None => {}
            Some(EndReason::Stopped) => self.output.stopped = true,
            Some(EndReason::Limit(limit)) => {
                self.output.limit = Some(limit);
                self.output.rolled_back = limit.rolls_back();
            }
        }
        if core.end.get().is_some() {
            self.output.value = None;
            self.output.error = None;
            if !self.output.rolled_back {
                // With the stack limit at one byte a job cannot call anything: this empties the queue.
                while ctx.execute_pending_job() {}
                core.rejected.borrow_mut().clear();
            }
        }
        core.set_stack(stack_bytes(&core.spec.limits));
        ProgramOutcome { output: self.output, broken: unprepared && core.end.get().is_none() }
    }
}
