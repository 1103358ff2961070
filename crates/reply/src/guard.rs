//! How does a call end in exactly one reply, whatever the tool does?
//!
//! It runs inside the safety wrapper; nothing calls a tool without it. The wrapper makes the builder, turns a panic
//! into an Error, measures the duration, checks the content and the size of the reply, and writes one log line, even
//! if the caller has gone away. Errors that every caller passes up as `Result` were rejected: the first caller that
//! forgets to map them returns prose, or a crash that looks like a mistake of the caller.
//!
//! ```
//! # use std::sync::Arc;
//! # use cantrip_canon::{IdSource, ManualClock, Redactor, Timestamp};
//! # use cantrip_reply::{Call, Guard, codes};
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let clock = Arc::new(ManualClock::starting(Timestamp::EPOCH));
//! let guard = Guard::new(clock, Arc::new(IdSource::seeded(1)), Redactor::default());
//! let guarded = guard.call(Call::surface("codes"), |rb| async { rb.success(codes::ok("codes")) }).await;
//! assert_eq!(guarded.reply.code(), codes::OK);
//! let broken = guard.call(Call::surface("codes"), |_| async { panic!("a bug") }).await;
//! assert_eq!(broken.reply.code(), codes::CRASH);
//! # }
//! ```

mod active_call;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cantrip_canon::{Clock, EntityId, IdSource, Redactor, RunId, Timestamp, TurnId};
use cantrip_trace::{Trace, TraceContext, TraceId};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tracing::Instrument;

use self::active_call::{
    ActiveCall, CallEnd, CallTimer, DetachedCall, DetachedCount, GuardedFuture, ToolOutput, ValueOf,
};
use crate::builder::{Reply, ReplyBuilder};
use crate::limits::{ANSWER_REPLY_BYTES_MAX, GATE_RESULT_BYTES_MAX, REPLY_BYTES_MAX};
use crate::log::CallLocation;
use crate::panics::{Panic, catch_panic, install_hook};

#[cfg(not(panic = "unwind"))]
compile_error!("a panic inside a call must become a reply, so the build must unwind: set panic = \"unwind\"");

/// A call to make: its tool, its location and its limits.
#[derive(Debug)]
#[must_use = "a call is made by a Guard"]
pub struct Call {
    tool: Arc<str>,
    /// None if the wrapper starts a new trace.
    trace: Option<Trace>,
    place: CallLocation,
    bytes_max: usize,
    time_max: Option<Duration>,
}

impl Call {
    /// A request to a surface, or a predict: an outermost call, which starts a new trace.
    pub fn surface(name: impl AsRef<str>) -> Self {
        Self {
            tool: name.as_ref().into(),
            trace: None,
            place: CallLocation::default(),
            bytes_max: REPLY_BYTES_MAX,
            time_max: None,
        }
    }

    /// A gate call inside another call. It gets the next number of that call's trace and the size limit of a gate.
    pub fn gate(inside: &Trace, name: impl AsRef<str>) -> Self {
        Self { trace: Some(inside.next()), bytes_max: GATE_RESULT_BYTES_MAX, ..Self::surface(name) }
    }

    /// Sets the trace from the `traceparent` of the request, if it is valid. A call inside another keeps the outer
    /// trace.
    pub fn traceparent(self, header: Option<&str>) -> Self {
        self.trace_context(header.and_then(|header| TraceContext::parse(header, None)))
    }

    /// Sets the trace from a parsed trace context. A call inside another keeps the outer trace.
    pub fn trace_context(mut self, context: Option<TraceContext>) -> Self {
        self.trace = self.trace.or_else(|| context.map(Trace::from_context));
        self
    }

    pub fn run(mut self, run_id: RunId) -> Self {
        self.place.run_id = Some(run_id);
        self
    }

    pub fn entity(mut self, entity_id: EntityId) -> Self {
        self.place.entity_id = Some(entity_id);
        self
    }

    pub fn turn(mut self, turn_id: TurnId) -> Self {
        self.place.turn_id = Some(turn_id);
        self
    }

    pub fn tool_call_id(mut self, id: impl Into<String>) -> Self {
        self.place.tool_call_id = Some(id.into());
        self
    }

    /// Limits the bytes of the reply's data as JSON; never more than [`REPLY_BYTES_MAX`].
    pub fn bytes_max(mut self, bytes: usize) -> Self {
        self.bytes_max = bytes.min(REPLY_BYTES_MAX);
        self
    }

    /// Lets the reply carry the answer of a cast, which may be larger than other data.
    pub fn with_answer(mut self) -> Self {
        self.bytes_max = ANSWER_REPLY_BYTES_MAX;
        self
    }

    /// Limits the time of the call. A call that exceeds it ends in `MCP-SYS-E-005`. The `timeout` of a ward is another
    /// limit.
    pub fn time_max(mut self, limit: Duration) -> Self {
        self.time_max = Some(limit);
        self
    }
}

/// The trace id of a call, its end time and its duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    trace_id: TraceId,
    duration: Duration,
    ended_at: Timestamp,
}

impl Meta {
    pub fn trace_id(&self) -> TraceId {
        self.trace_id
    }

    /// The duration by the monotonic clock.
    pub fn duration(&self) -> Duration {
        self.duration
    }

    /// The duration in whole milliseconds, rounded down.
    pub fn duration_ms(&self) -> u64 {
        u64::try_from(self.duration.as_millis()).unwrap_or(u64::MAX)
    }

    /// The wall-clock time when the call ended.
    pub fn ended_at(&self) -> Timestamp {
        self.ended_at
    }
}

/// A reply that passed through the wrapper.
#[derive(Debug)]
#[must_use = "a reply is the outcome of a call: return it"]
pub struct GuardedReply {
    pub reply: Reply,
    pub meta: Meta,
}

/// The safety wrapper. Cheap to clone; one per process is enough.
///
/// * One reply: every call ends in exactly one reply, even after a panic or a fault of the wrapper itself.
/// * One line: every call that began writes exactly one line `call` to the log, even if no caller waits for it.
/// * The process survives, and the next call works.
#[derive(Clone)]
pub struct Guard {
    core: Arc<Core>,
}

struct Core {
    clock: Arc<dyn Clock>,
    ids: Arc<IdSource>,
    redactor: Arc<Redactor>,
    /// The number of detached calls that have not ended yet.
    running: watch::Sender<usize>,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("running", &*self.core.running.borrow()).finish_non_exhaustive()
    }
}

impl Guard {
    /// Makes a wrapper. The first wrapper of a process installs a panic hook that keeps the panics of guarded calls
    /// from standard error. All other panics still reach the previous hook.
    pub fn new(clock: Arc<dyn Clock>, ids: Arc<IdSource>, redactor: Redactor) -> Self {
        install_hook();
        let (running, _) = watch::channel(0);
        Self { core: Arc::new(Core { clock, ids, redactor: Arc::new(redactor), running }) }
    }

    /// The redactor, for code that makes observations and pages.
    pub fn redactor(&self) -> &Redactor {
        &self.core.redactor
    }

    /// Calls a tool without effects. If the caller goes away, the tool is cancelled. Needs no executor unless the call
    /// has a [`Call::time_max`].
    pub async fn call<F, R>(&self, call: Call, tool: F) -> GuardedReply
    where
        F: FnOnce(ReplyBuilder) -> R,
        R: Future<Output = Reply> + Send,
    {
        match self.start(call, tool) {
            Ok(running) => running.await.0,
            Err(failed) => *failed,
        }
    }

    /// Calls a tool without effects that also returns a typed value. The value is none if the tool did not return.
    pub async fn call_returning<F, R, T>(&self, call: Call, tool: F) -> (GuardedReply, Option<T>)
    where
        F: FnOnce(ReplyBuilder) -> R,
        R: Future<Output = (Reply, T)> + Send,
        T: 'static,
    {
        match self.start(call, tool) {
            Ok(running) => running.await,
            Err(failed) => (*failed, None),
        }
    }

    /// Calls a tool with effects. If the caller goes away, the tool still runs to its end and settles its effects, and
    /// its log line says that it was abandoned. [`Guard::wait_idle`] waits for such calls. The time limit still ends
    /// the tool.
    pub async fn call_with_effects<F, R>(&self, call: Call, tool: F) -> GuardedReply
    where
        F: FnOnce(ReplyBuilder) -> R + Send + 'static,
        R: Future<Output = Reply> + Send + 'static,
    {
        self.run_detached(call, tool).await.0
    }

    /// Calls a tool with effects that also returns a typed value. The value is none if the tool did not return.
    pub async fn call_returning_with_effects<F, R, T>(&self, call: Call, tool: F) -> (GuardedReply, Option<T>)
    where
        F: FnOnce(ReplyBuilder) -> R + Send + 'static,
        R: Future<Output = (Reply, T)> + Send + 'static,
        T: Send + 'static,
    {
        self.run_detached(call, tool).await
    }

    /// Calls a blocking tool on a thread outside the executor. If the caller goes away the tool still runs to its end,
    /// because a thread cannot be cancelled. For the same reason the time limit ends only the wait of the caller: the
    /// work continues, and its own reply is lost.
    pub async fn call_blocking<F>(&self, call: Call, tool: F) -> GuardedReply
    where
        F: FnOnce(ReplyBuilder) -> Reply + Send + 'static,
    {
        self.run_detached(call, |rb| async move {
            match spawn_blocking(move || catch_panic(|| tool(rb))).await {
                Ok(ended) => ended,
                Err(_) => Err(Panic::from_message("the executor ended before the tool did")),
            }
        })
        .await
        .0
    }

    /// Waits until no detached call is left. For a process that is about to end.
    pub async fn wait_idle(&self) {
        // The sender lives as long as this wrapper, so waiting cannot fail.
        let _ = self.core.running.subscribe().wait_for(|running| *running == 0).await;
    }

    /// Begins a call on the task of the caller. Fails with its reply if the call ends before its tool runs.
    fn start<'a, F, R>(&self, call: Call, tool: F) -> Result<GuardedFuture<'a, R::Output>, Box<GuardedReply>>
    where
        F: FnOnce(ReplyBuilder) -> R,
        R: Future<Output: ToolOutput> + Send + 'a,
    {
        let (flight, rb) = self.begin(call, None)?;
        match catch_panic(|| tool(rb)) {
            Ok(tool) => Ok(GuardedFuture::new(flight, tool)),
            Err(panic) => Err(Box::new(flight.finish(CallEnd::Crashed(panic)))),
        }
    }

    async fn run_detached<F, R>(&self, call: Call, tool: F) -> (GuardedReply, Option<ValueOf<R::Output>>)
    where
        F: FnOnce(ReplyBuilder) -> R,
        R: Future<Output: ToolOutput<Value: Send>> + Send + 'static,
    {
        let abandoned = Arc::new(AtomicBool::new(false));
        let (flight, rb) = match self.begin(call, Some(Arc::clone(&abandoned))) {
            Ok(begun) => begun,
            Err(failed) => return (*failed, None),
        };
        let Ok(executor) = Handle::try_current() else {
            let panic = Panic::from_message("there is no executor to run the call on");
            return (flight.finish(CallEnd::Crashed(panic)), None);
        };
        let watch = flight.watch.clone();
        let running = match catch_panic(|| tool(rb)) {
            Ok(tool) => GuardedFuture::new(flight, tool),
            Err(panic) => return (flight.finish(CallEnd::Crashed(panic)), None),
        };
        let task = executor.spawn(cantrip_trace::inherit(running).in_current_span());
        DetachedCall { task, core: Arc::clone(&self.core), watch, abandoned, answered: false }.await
    }

    /// Begins a call. If the clock or the id source fails, nothing is executed and the call has already ended.
    fn begin(
        &self,
        call: Call,
        runs_on: Option<Arc<AtomicBool>>,
    ) -> Result<(ActiveCall, ReplyBuilder), Box<GuardedReply>> {
        let core = Arc::clone(&self.core);
        let Call { tool, trace, place, bytes_max, time_max } = call;
        let begun = catch_panic(|| {
            let now = core.clock.now();
            let trace = trace.or_else(|| cantrip_trace::current().map(Trace::from_context));
            let trace = trace.unwrap_or_else(|| Trace::root(TraceId::from_bits(core.ids.next_bits(now.wall))));
            (trace, now.monotonic)
        });
        let (watch, fault) = match begun {
            Ok((trace, started)) => (CallTimer { trace, started }, None),
            Err(panic) => (CallTimer::broken(), Some(panic)),
        };
        let builder = ReplyBuilder::new(Arc::clone(&tool), watch.trace.clone(), Arc::clone(&core.redactor));
        let running = runs_on.map(|abandoned| DetachedCount::on(Arc::clone(&core), abandoned));
        let flight = ActiveCall { tool, place, bytes_max, time_max, watch, running, core };
        match fault {
            None => Ok((flight, builder)),
            Some(panic) => Err(Box::new(flight.finish(CallEnd::Crashed(panic)))),
        }
    }
}
