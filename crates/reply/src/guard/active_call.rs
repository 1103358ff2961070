//! A call from its begin to its one reply and its one log line, on the task of its caller or on its own.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use cantrip_canon::{Instant, Now, Timestamp};
use cantrip_trace::{Trace, TraceId};
use tokio::task::JoinHandle;
use tokio::task::coop::{Unconstrained, unconstrained};
use tokio::time::{Sleep, sleep};

use super::{Core, GuardedReply, Meta};
use crate::builder::{Reply, ReplyBuilder};
use crate::codes;
use crate::log::{self, CallLocation, Line};
use crate::panics::{CatchPanic, Panic, catch_panic};

/// The way in which a call ended.
pub(super) enum CallEnd {
    Replied(Reply),
    TimedOut(Duration),
    Crashed(Panic),
}

/// The output of a tool: the way in which its call ended, and a typed value for the caller.
pub(super) trait ToolOutput {
    type Value: 'static;

    fn into_parts(self) -> (CallEnd, Option<Self::Value>);
}

/// The value that a tool returns besides its reply.
pub(super) type ValueOf<O> = <O as ToolOutput>::Value;

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
pub(super) struct CallTimer {
    pub trace: Trace,
    pub started: Instant,
}

impl CallTimer {
    /// A timer for a call whose clock or id source failed. The call still needs an id in the log.
    pub(super) fn broken() -> Self {
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
pub(super) struct DetachedCount {
    core: Arc<Core>,
    abandoned: Arc<AtomicBool>,
}

impl DetachedCount {
    pub(super) fn on(core: Arc<Core>, abandoned: Arc<AtomicBool>) -> Self {
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
pub(super) struct ActiveCall {
    pub core: Arc<Core>,
    pub tool: Arc<str>,
    pub place: CallLocation,
    pub bytes_max: usize,
    pub time_max: Option<Duration>,
    pub watch: CallTimer,
    /// None for a call that is cancelled when its caller goes away.
    pub running: Option<DetachedCount>,
}

impl ActiveCall {
    /// Ends the call: makes its reply and writes its log line.
    pub(super) fn finish(self, ended: CallEnd) -> GuardedReply {
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
pub(super) struct GuardedFuture<'a, O: ToolOutput> {
    tool: CatchPanic<'a, O>,
    alarm: Option<Pin<Box<Alarm>>>,
    /// None once the call has ended.
    flight: Option<ActiveCall>,
}

/// The timer of the time limit. It is unconstrained, so it also fires for a tool that uses up the budget of its task.
type Alarm = Unconstrained<Sleep>;

impl<'a, O: ToolOutput> GuardedFuture<'a, O> {
    pub(super) fn new(flight: ActiveCall, tool: impl Future<Output = O> + Send + 'a) -> Self {
        Self { tool: CatchPanic::new(tool), alarm: None, flight: Some(flight) }
    }

    fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<(CallEnd, Option<ValueOf<O>>)> {
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

impl<O: ToolOutput> Future for GuardedFuture<'_, O> {
    type Output = (GuardedReply, Option<ValueOf<O>>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (ended, value) = ready!(self.poll_ended(context));
        match self.flight.take() {
            Some(flight) => Poll::Ready((flight.finish(ended), value)),
            None => unreachable!("a future is not polled after its end"),
        }
    }
}

impl<O: ToolOutput> Drop for GuardedFuture<'_, O> {
    fn drop(&mut self) {
        if let Some(flight) = self.flight.take() {
            flight.abandon(self.tool.dispose());
        }
    }
}

/// The caller's side of a detached call.
pub(super) struct DetachedCall<T> {
    pub task: JoinHandle<(GuardedReply, Option<T>)>,
    pub core: Arc<Core>,
    pub watch: CallTimer,
    pub abandoned: Arc<AtomicBool>,
    pub answered: bool,
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
