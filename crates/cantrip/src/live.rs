//! A cast that is watched while it runs: a stream of upserts, then the reply.

use std::collections::VecDeque;
use std::panic::resume_unwind;

use cantrip_canon::Clock;
use cantrip_stream::{Emission, Options, Processor, StreamEvent};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::cancel::Cancel;
use crate::cantrip::Cantrip;
use crate::driver::{MachineClock, Runtime};
use crate::episode::CastReply;
use crate::events::Channel;
use crate::options::CastOptions;

/// The upserts and turn events of a [`Channel`], in the order in which a viewer must see them.
///
/// Text is collected for a moment before it is shown ([`Options`]); no collected text is lost when the channel closes.
#[derive(Debug)]
pub struct UpsertStream {
    events: mpsc::Receiver<StreamEvent>,
    processor: Processor,
    clock: MachineClock,
    ready: VecDeque<Emission>,
    closed: bool,
}

impl UpsertStream {
    pub fn of(events: mpsc::Receiver<StreamEvent>, options: Options) -> Self {
        let (processor, clock) = (Processor::new(options), MachineClock::new());
        Self { events, processor, clock, ready: VecDeque::new(), closed: false }
    }

    /// Returns the next emission; `None` once every sender is gone. Safe to drop while it waits: nothing is lost.
    pub async fn next(&mut self) -> Option<Emission> {
        loop {
            if let Some(emission) = self.ready.pop_front() {
                return Some(emission);
            }
            if self.closed {
                return None;
            }
            let mut out = Vec::new();
            match self.wait().await {
                // A turn that reaches a limit of the viewer continues unseen; the cast is not affected.
                StreamWake::Event(event) => drop(self.processor.process(&event, self.clock.now(), &mut out)),
                StreamWake::Due => self.processor.tick(self.clock.now(), &mut out),
                StreamWake::Closed => {
                    self.closed = true;
                    self.processor.close(None, self.clock.now(), &mut out);
                }
            }
            self.ready.extend(out);
        }
    }

    async fn wait(&mut self) -> StreamWake {
        let now = self.clock.now().monotonic;
        let due = self.processor.next_deadline().map(|due| due.since(now));
        let due = async move {
            match due {
                Some(left) => tokio::time::sleep(left).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            event = self.events.recv() => event.map_or(StreamWake::Closed, |event| StreamWake::Event(Box::new(event))),
            () = due => StreamWake::Due,
        }
    }
}

enum StreamWake {
    Event(Box<StreamEvent>),
    Due,
    Closed,
}

/// A running cast. Dropping it cancels the cast, which is recorded like any other end.
#[derive(Debug)]
#[must_use = "dropping it cancels the cast"]
pub struct LiveCast {
    upserts: UpsertStream,
    cast: Option<JoinHandle<CastReply>>,
    cancel: Cancel,
}

impl LiveCast {
    /// Returns the next emission of this entity or a child of it; `None` once the cast has ended.
    pub async fn next(&mut self) -> Option<Emission> {
        self.upserts.next().await
    }

    /// Returns the handle that ends the cast from outside.
    pub fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// Returns the reply of the cast. Remaining upserts are skipped.
    pub async fn reply(mut self) -> CastReply {
        while self.next().await.is_some() {}
        let cast = self.cast.take().expect("taken here alone, and self is consumed");
        match cast.await {
            Ok(reply) => reply,
            Err(stopped) => resume_unwind(stopped.into_panic()),
        }
    }
}

impl Drop for LiveCast {
    fn drop(&mut self) {
        if self.cast.is_some() {
            self.cancel.cancel();
        }
    }
}

impl Cantrip {
    /// Casts the cantrip, and streams its events while it runs.
    ///
    /// ```
    /// use cantrip::Cantrip;
    /// use cantrip::circle::gate::builtin;
    /// use cantrip::crystal::{Response, Script, ScriptedCrystal};
    /// use cantrip::stream::{Emission, Item};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// let script = Script::new([Response::call("c1", "done", serde_json::json!({"answer": 3}))]);
    /// let cantrip = Cantrip::builder()
    ///     .crystal(ScriptedCrystal::new("scripted/three", script))
    ///     .gate(builtin::done())
    ///     .ward("max_turns", 5)
    ///     .build()
    ///     .unwrap();
    /// let mut live = cantrip.live("how many?");
    /// let mut calls = 0;
    /// while let Some(emission) = live.next().await {
    ///     if let Emission::Upsert(upsert) = emission {
    ///         calls += usize::from(matches!(upsert.item, Item::ToolCall(_)));
    ///     }
    /// }
    /// assert!(calls > 0);
    /// assert_eq!(live.reply().await.answer(), Some(&serde_json::json!(3)));
    /// # });
    /// ```
    pub fn live(&self, intent: impl Into<cantrip_loom::Content>) -> LiveCast {
        self.default_runtime().live(self, CastOptions::on(intent))
    }
}

impl Runtime {
    /// Casts a cantrip in its own task, and streams its events while it runs.
    pub fn live(&self, cantrip: &Cantrip, casting: CastOptions) -> LiveCast {
        let (channel, events) = Channel::new();
        let (runtime, cantrip, cancel) = (self.with_watcher(channel), cantrip.clone(), casting.cancel.clone());
        let cast = tokio::spawn(async move { runtime.cast(&cantrip, casting).await });
        LiveCast { upserts: UpsertStream::of(events, Options::default()), cast: Some(cast), cancel }
    }
}
