//! The prelude: what every sandbox runs before its first program, and the functions it hands the host.

use std::sync::OnceLock;

use rquickjs::context::intrinsic;
use rquickjs::{Context, Ctx, Function, Object, Persistent, Runtime, Value};

use super::raw::{self, Compiled};

const SOURCE: &str = include_str!("prelude.js");
/// The name the prelude's frames have in a stack; no program can have it.
pub(super) const NAME: &str = "<prelude>";

/// The prelude is compiled once in a process; every sandbox is given the bytecode. That is a tenth of the work, and the
/// text is not kept ten thousand times.
fn compiled() -> rquickjs::Result<&'static Compiled> {
    static COMPILED: OnceLock<Compiled> = OnceLock::new();
    if let Some(compiled) = COMPILED.get() {
        return Ok(compiled);
    }
    let context = Context::custom::<(intrinsic::Eval, intrinsic::RegExpCompiler, intrinsic::RegExp)>(&Runtime::new()?)?;
    let compiled = context.with(|ctx| {
        raw::enter(&ctx);
        Compiled::new(&ctx, SOURCE, NAME)
    })?;
    Ok(COMPILED.get_or_init(|| compiled))
}

/// Functions of the prelude, kept out of the program's reach.
pub(super) struct Prelude {
    restore: Persistent<Function<'static>>,
    bind: Persistent<Function<'static>>,
    text: Persistent<Function<'static>>,
    failure: Persistent<Function<'static>>,
    refusal: Persistent<Function<'static>>,
    kind: Persistent<Function<'static>>,
}

impl Prelude {
    /// Runs the prelude, which is given the host's own functions.
    pub(super) fn run<'js>(ctx: &Ctx<'js>, host: Object<'js>) -> rquickjs::Result<Self> {
        let prelude = raw::load(ctx, compiled()?)?;
        let made: Object<'js> = prelude.call((host,))?;
        let keep = |name: &str| -> rquickjs::Result<Persistent<Function<'static>>> {
            Ok(Persistent::save(ctx, made.get::<_, Function<'js>>(name)?))
        };
        Ok(Self {
            restore: keep("restore")?,
            bind: keep("bind")?,
            text: keep("text")?,
            failure: keep("failure")?,
            refusal: keep("refusal")?,
            kind: keep("kind")?,
        })
    }

    /// Puts a gate's name back; answers whether that could be done.
    pub(super) fn restore<'js>(&self, ctx: &Ctx<'js>, name: &str, gate: Function<'js>) -> rquickjs::Result<bool> {
        self.restore.clone().restore(ctx)?.call((name, gate))
    }

    /// Gives a global variable its value.
    pub(super) fn bind<'js>(&self, ctx: &Ctx<'js>, name: &str, value: Value<'js>) -> rquickjs::Result<()> {
        self.bind.clone().restore(ctx)?.call((name, value))
    }

    /// A value as it is shown.
    pub(super) fn text<'js>(&self, ctx: &Ctx<'js>, value: Value<'js>) -> rquickjs::Result<String> {
        self.text.clone().restore(ctx)?.call((value,))
    }

    /// Name, message and stack of something that was thrown.
    pub(super) fn failure<'js>(&self, ctx: &Ctx<'js>, thrown: Value<'js>) -> rquickjs::Result<Vec<String>> {
        self.failure.clone().restore(ctx)?.call((thrown,))
    }

    /// A `GateError`.
    pub(super) fn refusal<'js>(
        &self,
        ctx: &Ctx<'js>,
        message: &str,
        fields: Value<'js>,
    ) -> rquickjs::Result<Value<'js>> {
        self.refusal.clone().restore(ctx)?.call((message, fields))
    }

    /// The function that names a collection.
    pub(super) fn kind<'js>(&self, ctx: &Ctx<'js>) -> rquickjs::Result<Function<'js>> {
        self.kind.clone().restore(ctx)
    }
}
