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

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use cantrip_canon::{Clock, EntityId, IdSource, Instant, Now, Redactor, RunId, Timestamp, TurnId};
use cantrip_trace::{Trace, TraceContext, TraceId};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::coop::{Unconstrained, unconstrained};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Sleep, sleep};
use tracing::Instrument;

use crate::builder::{Reply, ReplyBuilder};
use crate::codes;
use crate::limits::{GATE_RESULT_BYTES_MAX, REPLY_BYTES_MAX};
use crate::log::{self, CallLocation, Line};
use crate::panics::{CatchPanic, Panic, catch_panic, install_hook};

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
        R: Future<Output = Reply>,
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
        R: Future<Output = (Reply, T)>,
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
    fn start<F, R>(&self, call: Call, tool: F) -> Result<GuardedFuture<R>, Box<GuardedReply>>
    where
        F: FnOnce(ReplyBuilder) -> R,
        R: Future<Output: ToolOutput>,
    {
        let (flight, rb) = self.begin(call, None)?;
        match catch_panic(|| tool(rb)) {
            Ok(tool) => Ok(GuardedFuture::new(flight, tool)),
            Err(panic) => Err(Box::new(flight.finish(CallEnd::Crashed(panic)))),
        }
    }

    async fn run_detached<F, R>(&self, call: Call, tool: F) -> (GuardedReply, Option<ValueOf<R>>)
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

/// The way in which a call ended.
enum CallEnd {
    Replied(Reply),
    TimedOut(Duration),
    Crashed(Panic),
}

/// The output of a tool: the way in which its call ended, and a typed value for the caller.
trait ToolOutput {
    type Value: 'static;

    fn into_parts(self) -> (CallEnd, Option<Self::Value>);
}

/// The value that a tool returns besides its reply.
type ValueOf<R> = <<R as Future>::Output as ToolOutput>::Value;

impl ToolOutput for Reply {
    type Value = ();

    fn into_parts(self) -> (CallEnd, Option<()>) {
        (CallEnd::Replied(self), None)
    }
}

impl ToolOutput for Result<Reply, Panic> {
    type Value = ();

    fn into_parts(self) -> (CallEnd, Option<()>) {
        (self.map_or_else(CallEnd::Crashed, CallEnd::Replied), None)
    }
}

impl<T: 'static> ToolOutput for (Reply, T) {
    type Value = T;

    fn into_parts(self) -> (CallEnd, Option<T>) {
        (CallEnd::Replied(self.0), Some(self.1))
    }
}

/// The trace and the start time of a call.
#[derive(Debug, Clone)]
struct CallTimer {
    trace: Trace,
    started: Instant,
}

impl CallTimer {
    /// A timer for a call whose clock or id source failed. The call still needs an id in the log.
    fn broken() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let bits = u128::from(NEXT.fetch_add(1, Ordering::Relaxed));
        Self { trace: Trace::root(TraceId::from_bits(bits)), started: Instant::default() }
    }

    fn meta(&self, now: Option<Now>) -> Meta {
        let (duration, ended_at) = match now {
            Some(Now { monotonic, wall }) => (monotonic.since(self.started), wall),
            None => (Duration::ZERO, Timestamp::EPOCH),
        };
        Meta { trace_id: self.trace.id(), duration, ended_at }
    }
}

/// Counts one detached call until it is dropped.
struct DetachedCount {
    core: Arc<Core>,
    abandoned: Arc<AtomicBool>,
}

impl DetachedCount {
    fn on(core: Arc<Core>, abandoned: Arc<AtomicBool>) -> Self {
        core.running.send_modify(|running| *running += 1);
        Self { core, abandoned }
    }
}

impl Drop for DetachedCount {
    fn drop(&mut self) {
        self.core.running.send_modify(|running| *running = running.saturating_sub(1));
    }
}

/// A call that has begun and not yet ended.
struct ActiveCall {
    core: Arc<Core>,
    tool: Arc<str>,
    place: CallLocation,
    bytes_max: usize,
    time_max: Option<Duration>,
    watch: CallTimer,
    /// None for a call that is cancelled when its caller goes away.
    running: Option<DetachedCount>,
}

impl ActiveCall {
    /// Ends the call: makes its reply and writes its log line.
    fn finish(self, ended: CallEnd) -> GuardedReply {
        let abandoned = self.running.as_ref().is_some_and(|runs| runs.abandoned.load(Ordering::Acquire));
        let reply = match catch_panic(|| self.settle(ended)) {
            Ok(reply) => reply,
            Err(panic) => self.crash(&panic),
        };
        self.log_reply(reply, abandoned)
    }

    /// Ends a call that was dropped before its tool returned.
    fn abandon(self, disposed: Result<(), Panic>) {
        if let Err(panic) = &disposed {
            log::panic(self.watch.trace.id(), panic, &self.core.redactor);
        }
        let (reply, abandoned) = match &self.running {
            None => (catch_panic(|| self.builder().denied(codes::ended_from_outside("caller", "cancelled"))), true),
            // Only the executor drops a detached call, so this is a crash and not a cancellation by the caller.
            Some(runs) => (Ok(self.builder().error(codes::crash())), runs.abandoned.load(Ordering::Acquire)),
        };
        let reply = match reply {
            Ok(reply) => reply,
            Err(panic) => self.crash(&panic),
        };
        let _ = self.log_reply(reply, abandoned);
    }

    fn settle(&self, ended: CallEnd) -> Reply {
        match ended {
            CallEnd::Replied(reply) => {
                let bytes = serialized_len(&reply);
                if bytes <= self.bytes_max {
                    return reply;
                }
                let of = serde_json::json!({ "of": reply.code() });
                self.builder().error(codes::too_large(&*self.tool, bytes, self.bytes_max).data(of))
            }
            CallEnd::TimedOut(limit) => {
                let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
                self.builder().error(codes::timed_out(&*self.tool, limit_ms))
            }
            CallEnd::Crashed(panic) => self.crash(&panic),
        }
    }

    fn crash(&self, panic: &Panic) -> Reply {
        log::panic(self.watch.trace.id(), panic, &self.core.redactor);
        self.builder().error(codes::crash())
    }

    fn log_reply(self, reply: Reply, abandoned: bool) -> GuardedReply {
        let (reply, now) = match catch_panic(|| self.core.clock.now()) {
            Ok(now) => (reply, Some(now)),
            Err(panic) => (self.crash(&panic), None),
        };
        let meta = self.watch.meta(now);
        let line =
            Line { trace_id: meta.trace_id, tool: &self.tool, place: &self.place, duration: meta.duration, abandoned };
        log::call(&line, &reply, &self.core.redactor);
        GuardedReply { reply, meta }
    }

    /// Makes a builder for the wrapper itself; the tool has consumed its own.
    fn builder(&self) -> ReplyBuilder {
        ReplyBuilder::new(Arc::clone(&self.tool), self.watch.trace.clone(), Arc::clone(&self.core.redactor))
    }
}

fn serialized_len(reply: &Reply) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 = self.0.saturating_add(bytes.len());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    serde_json::to_writer(&mut count, reply.data()).expect("JSON values serialise, and counting does not fail");
    count.0
}

/// A running tool, on whichever task polls it. The tool is in memory only once: a cast holds this future for its whole
/// life, and an async function around it would hold the tool again for each of its branches.
struct GuardedFuture<R: Future<Output: ToolOutput>> {
    tool: CatchPanic<R>,
    alarm: Option<Pin<Box<Alarm>>>,
    /// None once the call has ended.
    flight: Option<ActiveCall>,
}

/// The timer of the time limit. It is unconstrained, so it also fires for a tool that uses up the budget of its task.
type Alarm = Unconstrained<Sleep>;

impl<R: Future<Output: ToolOutput>> GuardedFuture<R> {
    fn new(flight: ActiveCall, tool: R) -> Self {
        Self { tool: CatchPanic::new(tool), alarm: None, flight: Some(flight) }
    }

    fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<(CallEnd, Option<ValueOf<R>>)> {
        let time_max = self.flight.as_ref().and_then(|flight| flight.time_max);
        if let (Some(limit), None) = (time_max, &self.alarm) {
            // Panics if the executor has no timer.
            match catch_panic(|| Box::pin(unconstrained(sleep(limit)))) {
                Ok(alarm) => self.alarm = Some(alarm),
                Err(panic) => return Poll::Ready((CallEnd::Crashed(panic), None)),
            }
        }
        if let Poll::Ready(ended) = self.tool.poll(context) {
            return Poll::Ready(match ended {
                Ok(output) => output.into_parts(),
                Err(panic) => (CallEnd::Crashed(panic), None),
            });
        }
        match (&mut self.alarm, time_max) {
            (Some(alarm), Some(limit)) => {
                ready!(alarm.as_mut().poll(context));
                let ended = match self.tool.dispose() {
                    Ok(()) => CallEnd::TimedOut(limit),
                    Err(panic) => CallEnd::Crashed(panic),
                };
                Poll::Ready((ended, None))
            }
            (Some(_) | None, _) => Poll::Pending,
        }
    }
}

impl<R: Future<Output: ToolOutput>> Future for GuardedFuture<R> {
    type Output = (GuardedReply, Option<ValueOf<R>>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (ended, value) = ready!(self.poll_ended(context));
        match self.flight.take() {
            Some(flight) => Poll::Ready((flight.finish(ended), value)),
            None => unreachable!("a future is not polled after its end"),
        }
    }
}

impl<R: Future<Output: ToolOutput>> Drop for GuardedFuture<R> {
    fn drop(&mut self) {
        if let Some(flight) = self.flight.take() {
            flight.abandon(self.tool.dispose());
        }
    }
}

/// The caller's side of a detached call.
struct DetachedCall<T> {
    task: JoinHandle<(GuardedReply, Option<T>)>,
    core: Arc<Core>,
    watch: CallTimer,
    abandoned: Arc<AtomicBool>,
    answered: bool,
}

impl<T> Future for DetachedCall<T> {
    type Output = (GuardedReply, Option<T>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let joined = ready!(Pin::new(&mut self.task).poll(context));
        self.answered = true;
        Poll::Ready(joined.unwrap_or_else(|_| {
            // The executor is shutting down and dropped the task, which wrote its own log line.
            let redactor = Arc::clone(&self.core.redactor);
            let builder = ReplyBuilder::new("".into(), self.watch.trace.clone(), redactor);
            let now = catch_panic(|| self.core.clock.now()).ok();
            (GuardedReply { reply: builder.error(codes::crash()), meta: self.watch.meta(now) }, None)
        }))
    }
}

impl<T> Drop for DetachedCall<T> {
    fn drop(&mut self) {
        if !self.answered {
            self.abandoned.store(true, Ordering::Release);
        }
    }
}
