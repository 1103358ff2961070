//! One sandbox on its thread: the engine, its host functions, and the one way in which a program ends.
//!
//! A program can end by itself, or be ended by an accepted `done`, a limit or a kill. The end is a latch in [`Core`],
//! which only the host sets. From that moment the engine has a stack limit of one byte, so no function can be called
//! any more; every host function refuses; the interrupt handler requests a stop. An uncatchable error then unwinds the
//! existing frames. If a native function swallows that error, the next loop or call fails in the same way.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::Timestamp;
use cantrip_circle::code::{ConsoleOutput, Limit, ProgramLimits, SandboxSpec, next_random};
use corosensei::stack::DefaultStack;
use rquickjs::context::intrinsic;
use rquickjs::{Array, Context, Ctx, Object, Persistent, Runtime, Value};

use super::meter::{EndReason, InterruptAction, Meter};
use super::natives::{self, LazyScript};
use super::output::ProgramOutput;
use super::raw::{self, EngineControls, Heap, ProgramCoroutine};
use super::run::ProgramRun;
use super::sandbox::{Answer, Program};
use super::{PauseReason, WakeReason, json as values};
use crate::limits;

/// The built-in objects that exist from the start. Dates and typed arrays are created on first use; weak references and
/// threads are never available.
type Intrinsics = (
    intrinsic::Eval,
    intrinsic::RegExpCompiler,
    intrinsic::RegExp,
    intrinsic::Json,
    intrinsic::Proxy,
    intrinsic::MapSet,
    intrinsic::Promise,
);

/// The state that host functions and handlers share with the [`SandboxEngine`] that owns the engine.
pub(super) struct Core {
    pub(super) spec: Arc<SandboxSpec>,
    pub(super) meter: Rc<Meter>,
    reins: Cell<Option<EngineControls>>,
    pub(super) end: Cell<Option<EndReason>>,
    clock: Cell<Timestamp>,
    random: Cell<u64>,
    pub(super) printed: RefCell<ConsoleOutput>,
    /// Rejected promises that have no handler yet, with their rejection reasons.
    pub(super) rejected: RefCell<Vec<(Persistent<Value<'static>>, Persistent<Value<'static>>)>>,
    /// Values that programs cannot reach; `natives` defines the index of each.
    hidden_values: RefCell<Option<Persistent<Array<'static>>>>,
    lates: RefCell<[Option<Persistent<Object<'static>>>; LazyScript::COUNT]>,
    /// The groups of lazily created names whose creation has begun, one bit per group.
    groups: Cell<u8>,
    /// True while work runs that must not fail for lack of stack.
    roomy: Cell<bool>,
    /// The number of members of the collection that is being rendered.
    pub(super) collected: Cell<usize>,
    /// The clock reading at which the sandbox was created.
    origin: Timestamp,
    /// A panic in a host function, kept while the engine unwinds.
    panic: RefCell<Option<Box<dyn Any + Send>>>,
}

/// Returns the size of the interpreter's stack. A ward cannot make it larger than the maximum.
pub(super) fn stack_bytes(wards: &ProgramLimits) -> usize {
    wards.stack_bytes.min(limits::STACK_BYTES_MAX)
}

/// A sandbox that has been built.
pub(super) struct SandboxEngine {
    // The order of these fields is the drop order: the engine calls functions that read the core.
    context: Context,
    _runtime: Runtime,
    core: Rc<Core>,
}

/// The outcome of a program, as its sandbox thread passes it on.
pub(super) struct ProgramOutcome {
    pub(super) output: ProgramOutput,
    /// True if the sandbox cannot run another program, through no fault of this program.
    pub(super) broken: bool,
}

impl Core {
    /// Latches the end of the program. The first end is kept; later ones are ignored.
    pub(super) fn end(&self, end: EndReason) {
        if self.end.get().is_none() {
            self.end.set(Some(end));
        }
        self.meter.end();
        if let Some(reins) = self.reins.get() {
            reins.forbid_calls();
        }
    }

    pub(super) fn set_stack(&self, bytes: usize) {
        if let Some(reins) = self.reins.get() {
            reins.set_stack(bytes);
        }
    }

    /// Ends the program and returns the error that unwinds it.
    fn stop(&self, ctx: &Ctx<'_>, end: EndReason) -> rquickjs::Error {
        self.meter.end();
        let error = raw::raise(ctx);
        self.end(end);
        error
    }

    /// Fails if the program has ended. Every function that lets a value into or out of the sandbox calls this first.
    pub(super) fn check_alive(&self, ctx: &Ctx<'_>) -> rquickjs::Result<()> {
        match self.end.get() {
            None => Ok(()),
            Some(end) => Err(self.stop(ctx, end)),
        }
    }

    /// Checks the time limits from inside native code that the engine does not interrupt.
    pub(super) fn check_time(&self, ctx: &Ctx<'_>) -> rquickjs::Result<()> {
        if self.interrupted() { self.check_alive(ctx) } else { Ok(()) }
    }

    /// Dispatches a call of one of the host functions.
    pub(super) fn native<'js>(
        &self,
        ctx: &Ctx<'js>,
        id: usize,
        this: Value<'js>,
        args: Vec<Value<'js>>,
    ) -> rquickjs::Result<Value<'js>> {
        match id {
            natives::GATES_FROM.. => self.call(ctx, id - natives::GATES_FROM, args),
            natives::NAMES_FROM.. => natives::resolve_name(self, ctx, id - natives::NAMES_FROM, &args),
            _ => natives::call(self, ctx, id, this, args),
        }
    }

    /// Handles a panic in a host function: the program ends, and the panic is passed to the caller that started it.
    pub(super) fn panicked(&self, ctx: &Ctx<'_>, panic: Box<dyn Any + Send>) -> rquickjs::Error {
        self.panic.borrow_mut().get_or_insert(panic);
        self.stop(ctx, EndReason::Limit(Limit::Cancelled))
    }

    /// Returns the array of values that programs cannot reach.
    pub(super) fn hidden_values<'js>(&self, ctx: &Ctx<'js>) -> rquickjs::Result<Array<'js>> {
        self.hidden_values.borrow().clone().ok_or(rquickjs::Error::Unknown)?.restore(ctx)
    }

    /// Returns the object that a lazy script creates. The script runs on first use.
    pub(super) fn lazy_script<'js>(&self, ctx: &Ctx<'js>, late: LazyScript) -> rquickjs::Result<Object<'js>> {
        let known = self.lates.borrow()[late as usize].clone();
        if let Some(known) = known {
            return known.restore(ctx);
        }
        let made = self.with_room(ctx, || natives::load(self, ctx, late))?;
        self.lates.borrow_mut()[late as usize] = Some(Persistent::save(ctx, made.clone()));
        Ok(made)
    }

    /// Marks a group of lazily created names as begun. Returns true if this is the first time.
    pub(super) fn begin_group(&self, group: u8) -> bool {
        let begun = self.groups.get();
        self.groups.set(begun | 1 << group);
        begun & 1 << group == 0
    }

    /// Runs work with extra stack. The work must not fail for lack of stack, because it cannot be left half done.
    pub(super) fn with_room<T>(
        &self,
        ctx: &Ctx<'_>,
        work: impl FnOnce() -> rquickjs::Result<T>,
    ) -> rquickjs::Result<T> {
        self.check_alive(ctx)?;
        if self.roomy.replace(true) {
            return work();
        }
        let stack = stack_bytes(&self.spec.limits);
        self.set_stack(stack + limits::STACK_SPARE_BYTES / 2);
        let done = work();
        self.roomy.set(false);
        if self.end.get().is_none() {
            self.set_stack(stack);
        }
        done
    }

    /// Lets the engine call a native function that runs no code of the entity. This works also after the end.
    pub(super) fn with_one_call<T>(&self, call: impl FnOnce() -> T) -> T {
        let Some(reins) = self.reins.get() else { return call() };
        reins.set_stack(stack_bytes(&self.spec.limits));
        // Without this the interrupt handler would refuse the call.
        reins.poll_after(limits::POLL_STEPS);
        let done = call();
        if self.end.get().is_some() {
            reins.forbid_calls();
        }
        done
    }

    pub(super) fn now(&self) -> f64 {
        self.clock.get().unix_millis() as f64
    }

    pub(super) fn origin(&self) -> f64 {
        self.origin.unix_millis() as f64
    }

    pub(super) fn interrupted(&self) -> bool {
        if let Some(reins) = self.reins.get() {
            reins.poll_after(limits::POLL_STEPS);
        }
        if self.end.get().is_none() {
            match self.meter.poll() {
                InterruptAction::GoOn => {}
                InterruptAction::Rest => match raw::suspend(PauseReason::Slice) {
                    Ok(WakeReason::Kill) => self.end(EndReason::Limit(Limit::Cancelled)),
                    Ok(WakeReason::GoOn | WakeReason::Answer(..)) | Err(_) => {}
                },
                InterruptAction::End(limit) => self.end(EndReason::Limit(limit)),
            }
        }
        match self.end.get() {
            None => false,
            Some(end) => {
                self.end(end);
                true
            }
        }
    }

    /// Returns the next number of the sequence that the seed starts.
    pub(super) fn random(&self) -> f64 {
        let mut state = self.random.get();
        let number = next_random(&mut state);
        self.random.set(state);
        number
    }

    pub(super) fn print(&self, ctx: &Ctx<'_>, line: &str) -> rquickjs::Result<()> {
        self.check_alive(ctx)?;
        let mut printed = self.printed.borrow_mut();
        let fits = |text: &str| printed.print(text, &self.spec.limits);
        if [line, "\n"].into_iter().all(fits) {
            return Ok(());
        }
        drop(printed);
        Err(self.stop(ctx, EndReason::Limit(Limit::Output)))
    }

    /// Calls a gate. The program is suspended here until the host answers.
    fn call<'js>(&self, ctx: &Ctx<'js>, gate: usize, passed: Vec<Value<'js>>) -> rquickjs::Result<Value<'js>> {
        self.check_alive(ctx)?;
        let arguments = match values::Writer::default().arguments(passed) {
            Ok(arguments) => Ok(arguments),
            Err(values::JsonError::Fault(fault)) => Err(fault),
            Err(values::JsonError::Threw(error)) => return Err(error),
        };
        // Reading the arguments may have run code of the entity, and that code may have ended the program.
        self.check_alive(ctx)?;
        match raw::suspend(PauseReason::Call { gate, arguments }) {
            Ok(WakeReason::Answer(answer, clock)) => {
                self.clock.set(clock);
                match answer {
                    Answer::Value(value) => values::read(ctx, &value),
                    Answer::List(places) => values::list(ctx, &places, |place| match place {
                        Ok(value) => values::read(ctx, value),
                        Err(throw) => natives::refusal(self, ctx, throw),
                    }),
                    Answer::Throw(throw) => Err(ctx.throw(natives::refusal(self, ctx, &throw)?)),
                    Answer::Stop => Err(self.stop(ctx, EndReason::Stopped)),
                }
            }
            Ok(WakeReason::Kill | WakeReason::GoOn) | Err(_) => Err(self.stop(ctx, EndReason::Limit(Limit::Cancelled))),
        }
    }

    pub(super) fn rejection<'js>(&self, ctx: &Ctx<'js>, promise: Value<'js>, reason: Value<'js>, handled: bool) {
        let mut rejected = self.rejected.borrow_mut();
        if handled {
            rejected.retain(|(known, _)| known.clone().restore(ctx).is_ok_and(|known| known != promise));
        } else if self.end.get().is_none() {
            rejected.push((Persistent::save(ctx, promise), Persistent::save(ctx, reason)));
        }
    }
}

impl SandboxEngine {
    /// Builds a sandbox: an engine with its own heap, its globals, and a function for each gate.
    pub(super) fn new(spec: Arc<SandboxSpec>, clock: Timestamp) -> rquickjs::Result<Self> {
        let meter = Rc::new(Meter::default());
        meter.begin(spec.limits.memory_bytes, Duration::MAX, Duration::MAX);
        let core = Rc::new(Core {
            random: Cell::new(spec.seed),
            spec,
            meter: Rc::clone(&meter),
            reins: Cell::new(None),
            end: Cell::new(None),
            clock: Cell::new(clock),
            printed: RefCell::default(),
            rejected: RefCell::default(),
            hidden_values: RefCell::default(),
            lates: RefCell::default(),
            groups: Cell::default(),
            roomy: Cell::default(),
            collected: Cell::default(),
            origin: clock,
            panic: RefCell::default(),
        });
        let runtime = Runtime::new_with_alloc(Heap::new(meter))?;
        let context = Context::custom::<Intrinsics>(&runtime)?;
        context.with(|ctx| -> rquickjs::Result<()> {
            raw::enter(&ctx);
            raw::attach(&ctx, &core);
            let reins = EngineControls::of(&ctx);
            core.reins.set(Some(reins));
            core.meter.set_controls(Some(reins));
            let gates: Result<Vec<CString>, _> =
                core.spec.gates.iter().map(|gate| CString::new(gate.name.as_str())).collect();
            *core.hidden_values.borrow_mut() = Some(natives::install(&ctx, &gates?)?);
            Ok(())
        })?;
        Ok(Self { context, _runtime: runtime, core })
    }

    pub(super) fn meter(&self) -> &Meter {
        &self.core.meter
    }

    /// Creates the coroutine that runs one program.
    pub(super) fn start_program(
        self: &Rc<Self>,
        (stack_bytes, stack): (usize, DefaultStack),
        program: Program,
    ) -> ProgramCoroutine<ProgramOutcome> {
        let wards = &self.core.spec.limits;
        self.core.clock.set(program.now);
        self.core.end.set(None);
        self.core.printed.take();
        let (cpu_max, wall_max) = (Duration::from_millis(wards.cpu_ms), Duration::from_millis(wards.wall_ms));
        self.core.meter.begin(wards.memory_bytes, cpu_max, wall_max);
        let machine = Rc::clone(self);
        ProgramCoroutine::new(stack_bytes, stack, move || machine.context.with(|ctx| machine.execute(&ctx, &program)))
    }

    fn execute(&self, ctx: &Ctx<'_>, program: &Program) -> ProgramOutcome {
        raw::enter(ctx);
        self.core.set_stack(stack_bytes(&self.core.spec.limits));
        let outcome = match self.prepare(ctx, program) {
            Ok(true) => ProgramRun::new(&self.core, program).complete(ctx),
            Ok(false) | Err(_) => ProgramRun::new(&self.core, program).finish_unprepared(ctx),
        };
        match self.core.panic.take() {
            None => outcome,
            Some(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Binds the variables to their values and the gates to their names. Returns false if a gate could not get its name
    /// back.
    fn prepare(&self, ctx: &Ctx<'_>, program: &Program) -> rquickjs::Result<bool> {
        for (name, value) in &program.variables {
            natives::bind(ctx, name, values::read(ctx, value)?)?;
        }
        for (index, gate) in self.core.spec.gates.iter().enumerate() {
            if !natives::bind(ctx, &gate.name, natives::gate(&self.core, ctx, index)?)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Drop for SandboxEngine {
    fn drop(&mut self) {
        // The values of the engine that the core keeps must be freed before the engine. The controls are removed first,
        // because nothing may steer an engine that is being freed.
        self.core.reins.set(None);
        self.core.meter.set_controls(None);
        self.core.rejected.borrow_mut().clear();
        self.core.lates.take();
        self.core.hidden_values.take();
    }
}
