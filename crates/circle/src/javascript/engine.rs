//! One sandbox on its thread: the engine, its host functions, and the one way in which a program ends.
//!
//! A program can end by itself or be ended: by an accepted `done`, a limit, a kill. Ending is a latch in [`Core`], set
//! by the host and by nobody else. From that moment the engine has a stack limit of one byte, so no function can be
//! called any more; every host function refuses; the interrupt handler says stop. An uncatchable error then unwinds the
//! frames that are there, and where a native swallows it the next loop or call meets the same wall.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::Timestamp;
use corosensei::stack::DefaultStack;
use rquickjs::context::intrinsic;
use rquickjs::function::Rest;
use rquickjs::{Context, Ctx, Function, Object, Persistent, Runtime, Value};
use serde_json::json;

use super::meter::{Beat, End, Meter};
use super::output::{Limit, Output};
use super::prelude::Prelude;
use super::raw::{self, Heap, Reins, Strand};
use super::run::Run;
use super::sandbox::{Answer, Program, Spec, Throw};
use super::{Pause, Wake, json as values};

/// What the language offers here: everything but weak references and clocks of its own.
type Intrinsics = (
    intrinsic::Date,
    intrinsic::Eval,
    intrinsic::RegExpCompiler,
    intrinsic::RegExp,
    intrinsic::Json,
    intrinsic::Proxy,
    intrinsic::MapSet,
    intrinsic::TypedArrays,
    intrinsic::Promise,
);

/// What host functions and handlers share with the machine that owns the engine.
pub(super) struct Core {
    pub(super) spec: Arc<Spec>,
    pub(super) meter: Rc<Meter>,
    reins: Cell<Option<Reins>>,
    pub(super) end: Cell<Option<End>>,
    clock: Cell<Timestamp>,
    random: Cell<u64>,
    pub(super) printed: RefCell<Printed>,
    /// Promises that were rejected and that nobody has handled yet, with their reasons.
    pub(super) rejected: RefCell<Vec<(Persistent<Value<'static>>, Persistent<Value<'static>>)>>,
    prelude: RefCell<Option<Rc<Prelude>>>,
}

/// What a program has printed.
#[derive(Default)]
pub(super) struct Printed {
    pub(super) shown: String,
    total: usize,
}

/// A sandbox that has been built.
pub(super) struct Machine {
    // In the order in which they have to go: values, the context, the runtime.
    gates: Vec<Persistent<Function<'static>>>,
    context: Context,
    runtime: Runtime,
    core: Rc<Core>,
}

/// A program's end, as the thread hands it on.
pub(super) struct Outcome {
    pub(super) output: Output,
    /// The sandbox cannot serve another program, though the program itself did nothing wrong.
    pub(super) broken: bool,
}

impl Core {
    /// Latches the end; the first one stands.
    pub(super) fn end(&self, end: End) {
        if self.end.get().is_none() {
            self.end.set(Some(end));
        }
        self.meter.end();
        if let Some(reins) = self.reins.take() {
            reins.pull();
            self.reins.set(Some(reins));
        }
    }

    pub(super) fn loosen(&self, bytes: usize) {
        if let Some(reins) = self.reins.take() {
            reins.loosen(bytes);
            self.reins.set(Some(reins));
        }
    }

    /// Ends the program and gives the error that unwinds it.
    fn stop(&self, ctx: &Ctx<'_>, end: End) -> rquickjs::Error {
        self.meter.end();
        let error = raw::raise(ctx);
        self.end(end);
        error
    }

    /// Every host function asks this first: after the end there is none.
    fn alive(&self, ctx: &Ctx<'_>) -> rquickjs::Result<()> {
        match self.end.get() {
            None => Ok(()),
            Some(end) => Err(self.stop(ctx, end)),
        }
    }

    pub(super) fn prelude(&self) -> rquickjs::Result<Rc<Prelude>> {
        self.prelude.borrow().clone().ok_or(rquickjs::Error::Unknown)
    }

    fn interrupted(&self) -> bool {
        if self.end.get().is_none() {
            match self.meter.poll() {
                Beat::GoOn => {}
                Beat::Rest => match raw::suspend(Pause::Slice) {
                    Ok(Wake::Kill) => self.end(End::Limit(Limit::Cancelled)),
                    Ok(Wake::GoOn | Wake::Answer(..)) | Err(_) => {}
                },
                Beat::End(limit) => self.end(End::Limit(limit)),
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

    /// The next number of the sequence that the seed began (splitmix64), as a fraction of one.
    fn random(&self) -> f64 {
        let state = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(state);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        (mixed >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn print(&self, ctx: &Ctx<'_>, line: &str) -> rquickjs::Result<()> {
        self.alive(ctx)?;
        let wards = &self.spec.limits;
        let mut printed = self.printed.borrow_mut();
        let full = printed.total.saturating_add(line.len() + 1) > wards.output_bytes;
        let room = wards.output_bytes.saturating_sub(printed.total);
        printed.add(&line[..line.floor_char_boundary(room)], wards.output_shown_bytes);
        if full {
            drop(printed);
            return Err(self.stop(ctx, End::Limit(Limit::Output)));
        }
        printed.add("\n", wards.output_shown_bytes);
        Ok(())
    }

    /// A call of a gate: the program stands still here until the host answers.
    fn call<'js>(&self, ctx: &Ctx<'js>, gate: usize, passed: Vec<Value<'js>>) -> rquickjs::Result<Value<'js>> {
        self.alive(ctx)?;
        let prelude = self.prelude()?;
        let arguments = match values::Writer::new(prelude.kind(ctx)?).arguments(passed) {
            Ok(arguments) => Ok(arguments),
            Err(values::Refusal::Fault(fault)) => Err(fault),
            Err(values::Refusal::Threw(error)) => return Err(error),
        };
        // Reading the arguments may have run code of the entity, and that may have ended the program.
        self.alive(ctx)?;
        match raw::suspend(Pause::Call { gate, arguments }) {
            Ok(Wake::Answer(answer, clock)) => {
                self.clock.set(clock);
                match answer {
                    Answer::Value(value) => values::read(ctx, &value),
                    Answer::List(places) => values::list(ctx, &places, |place| match place {
                        Ok(value) => values::read(ctx, value),
                        Err(throw) => refusal(ctx, &prelude, throw),
                    }),
                    Answer::Throw(throw) => Err(ctx.throw(refusal(ctx, &prelude, &throw)?)),
                    Answer::Stop => Err(self.stop(ctx, End::Stopped)),
                }
            }
            Ok(Wake::Kill | Wake::GoOn) | Err(_) => Err(self.stop(ctx, End::Limit(Limit::Cancelled))),
        }
    }

    fn rejection<'js>(&self, ctx: &Ctx<'js>, promise: Value<'js>, reason: Value<'js>, handled: bool) {
        let mut rejected = self.rejected.borrow_mut();
        if handled {
            rejected.retain(|(known, _)| known.clone().restore(ctx).is_ok_and(|known| known != promise));
        } else if self.end.get().is_none() {
            rejected.push((Persistent::save(ctx, promise), Persistent::save(ctx, reason)));
        }
    }
}

impl Printed {
    pub(super) fn add(&mut self, text: &str, shown_max: usize) {
        let room = shown_max.saturating_sub(self.shown.len());
        // Once something was cut, nothing after it is shown.
        if self.total == self.shown.len() {
            self.shown.push_str(&text[..text.floor_char_boundary(room)]);
        }
        self.total += text.len();
    }

    pub(super) fn cut(&self) -> u64 {
        (self.total - self.shown.len()) as u64
    }
}

impl Machine {
    /// Builds a sandbox: an engine with its own heap, the prelude, and a function for each gate.
    pub(super) fn new(spec: Arc<Spec>, clock: Timestamp) -> rquickjs::Result<Self> {
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
            prelude: RefCell::new(None),
        });
        let runtime = Runtime::new_with_alloc(Heap::new(meter))?;
        let handler = Rc::clone(&core);
        runtime.set_interrupt_handler(Some(Box::new(move || handler.interrupted())));
        let tracker = Rc::clone(&core);
        runtime.set_host_promise_rejection_tracker(Some(Box::new(move |ctx, promise, reason, handled| {
            tracker.rejection(&ctx, promise, reason, handled);
        })));
        let context = Context::custom::<Intrinsics>(&runtime)?;
        let gates = context.with(|ctx| -> rquickjs::Result<Vec<Persistent<Function<'static>>>> {
            raw::enter(&ctx);
            core.reins.set(Some(Reins::of(&ctx)));
            let prelude = Prelude::run(&ctx, host_functions(&ctx, &core)?)?;
            *core.prelude.borrow_mut() = Some(Rc::new(prelude));
            core.spec
                .gates
                .iter()
                .enumerate()
                .map(|(index, gate)| gate_function(&ctx, &core, index, &gate.name))
                .collect()
        })?;
        Ok(Self { gates, context, runtime, core })
    }

    pub(super) fn meter(&self) -> &Meter {
        &self.core.meter
    }

    /// A strand that runs one program; `cpu_max` may be tighter than the ward.
    pub(super) fn strand(
        self: &Rc<Self>,
        (stack_bytes, stack): (usize, DefaultStack),
        program: Program,
        cpu_max: Duration,
    ) -> Strand<Outcome> {
        let wards = &self.core.spec.limits;
        self.core.clock.set(program.now);
        self.core.end.set(None);
        self.core.printed.take();
        let cpu_max = cpu_max.min(Duration::from_millis(wards.cpu_ms));
        self.core.meter.begin(wards.memory_bytes, cpu_max, Duration::from_millis(wards.wall_ms));
        let machine = Rc::clone(self);
        Strand::new(stack_bytes, stack, move || machine.context.with(|ctx| machine.execute(&ctx, &program)))
    }

    fn execute(&self, ctx: &Ctx<'_>, program: &Program) -> Outcome {
        raw::enter(ctx);
        self.core.loosen(self.core.spec.limits.stack());
        match self.prepare(ctx, program) {
            Ok(true) => Run::new(&self.core, program).complete(ctx),
            Ok(false) | Err(_) => Run::new(&self.core, program).unprepared(ctx),
        }
    }

    /// Gates have their names and variables their values; answers whether every gate could get its name back.
    fn prepare(&self, ctx: &Ctx<'_>, program: &Program) -> rquickjs::Result<bool> {
        let prelude = self.core.prelude()?;
        for (name, value) in &program.variables {
            prelude.bind(ctx, name, values::read(ctx, value)?)?;
        }
        for (gate, function) in self.core.spec.gates.iter().zip(&self.gates) {
            if !prelude.restore(ctx, &gate.name, function.clone().restore(ctx)?)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // What `Core` keeps of the engine has to go before the engine; `Core` itself may outlive it in a closure.
        self.core.rejected.borrow_mut().clear();
        self.core.prelude.borrow_mut().take();
        self.runtime.set_interrupt_handler(None);
        self.runtime.set_host_promise_rejection_tracker(None);
    }
}

/// A `GateError`.
fn refusal<'js>(ctx: &Ctx<'js>, prelude: &Prelude, throw: &Throw) -> rquickjs::Result<Value<'js>> {
    let fields = json!({"type": throw.kind, "code": throw.code, "retry": throw.retry, "data": throw.data});
    prelude.refusal(ctx, &throw.message, values::read(ctx, &fields)?)
}

fn host_functions<'js>(ctx: &Ctx<'js>, core: &Rc<Core>) -> rquickjs::Result<Object<'js>> {
    let host = Object::new(ctx.clone())?;
    let of = Rc::clone(core);
    host.set("now", Function::new(ctx.clone(), move || of.clock.get().unix_millis() as f64)?)?;
    let of = Rc::clone(core);
    host.set("random", Function::new(ctx.clone(), move || of.random())?)?;
    let of = Rc::clone(core);
    host.set("print", Function::new(ctx.clone(), move |ctx: Ctx<'js>, line: String| of.print(&ctx, &line))?)?;
    let of = Rc::clone(core);
    let of_beat = Rc::clone(core);
    let beat = move |ctx: Ctx<'js>| match of_beat.interrupted() {
        false => Ok(()),
        true => of_beat.alive(&ctx),
    };
    host.set("beat", Function::new(ctx.clone(), beat)?)?;
    host.set("plain", Function::new(ctx.clone(), |value: Value<'js>| value.is_array() && !value.is_proxy())?)?;
    host.set("check", Function::new(ctx.clone(), move |ctx: Ctx<'js>| of.alive(&ctx))?)?;
    Ok(host)
}

fn gate_function<'js>(
    ctx: &Ctx<'js>,
    core: &Rc<Core>,
    index: usize,
    name: &str,
) -> rquickjs::Result<Persistent<Function<'static>>> {
    let of = Rc::clone(core);
    let call = move |ctx: Ctx<'js>, passed: Rest<Value<'js>>| of.call(&ctx, index, passed.0);
    Ok(Persistent::save(ctx, Function::new(ctx.clone(), call)?.with_name(name)?))
}
