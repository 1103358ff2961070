//! What does the runtime need from a model?
//!
//! One method, which gets the whole list of messages every time, streams its output into an [`EventSink`], and ends in
//! an [`Answer`] or a typed [`Failure`]. An iterator of chunks was turned down as the return value: every caller would
//! assemble the utterance again and invent its own rules for a stream that breaks off. Rules that hold for every answer
//! (no empty answers, no duplicate ids, no missing required call) are checked by the runtime, with
//! [`contract`](crate::contract), so that no crystal can forget them.

use std::fmt;
use std::sync::Arc;

use cantrip_canon::EntityId;
use cantrip_loom::{Spawn, Usage, Utterance};
use cantrip_stream::{ItemCancelled, ItemDelta, ItemDone, ItemError, ItemId, ItemStart, Payload};
use futures_util::future::BoxFuture;

use crate::{Failure, Price, Profile, Profiles, Request};

/// Anything that answers a list of messages: a provider's model, a script, a recorded thread, a user's program.
///
/// * One attempt: `ask` sends one request and never repeats it. The caller plans the next attempt
///   ([`RetryPolicy`](crate::RetryPolicy)) and can journal each one before it is sent.
/// * Stateless: everything that a crystal knows is in the request. A crystal that plays a tape (a script) advances with
///   each attempt, but its output does not depend on earlier requests.
/// * In order: for each item the sink receives a start, then deltas, then one end (done, error or cancelled), and the
///   concatenated deltas equal the text of the end. Each item of this request has an id from [`Request::items`].
/// * Equal: the answer holds what was streamed. Its text is that of the message items in order, its thinking that of
///   the reasoning items, its calls those whose items were started. A call whose arguments are not an object has no
///   `item_done`.
/// * Ended: when `ask` returns, none of its items is open. After a failure the open items are cancelled with reason
///   `retry`.
/// * Cancel-safe: a dropped future sends nothing more, keeps no task running and emits no more events. Items that were
///   open then stay open, because the caller knows why they end. Whether the provider charges for the request is
///   unknown.
/// * Ready to be shared: concurrent requests do not wait for each other, except for a limit of their provider or as a
///   script demands.
pub trait Crystal: Send + Sync {
    /// Returns `provider/model`, as written in a spell. A part after a second `/` belongs to the model.
    fn name(&self) -> &str;

    /// Sends one request and streams the answer into `heard`.
    fn ask(&self, request: &Request, heard: &dyn EventSink) -> impl Future<Output = Result<Answer, Failure>> + Send;

    /// Returns the capabilities of the model. Only the window may become known while the crystal lives, by
    /// [`learn_window`](Self::learn_window).
    fn profile(&self) -> Profile {
        Profile::of(self.name())
    }

    /// Finds the context window of the model if it is unknown: asks the server, and assumes a small window if the
    /// server does not report one. The profile has the window afterwards. A crystal without a server has none.
    fn learn_window(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Returns the price of its answers now. While the crystal lives, it changes only when a promotion ends.
    fn price(&self) -> Price {
        Profiles::for_crystal(self.name()).price(self.name())
    }

    /// Reports a new child that will use this crystal. Called for all children of a call, ordered by their index in the
    /// call, before the first of them sends a request.
    fn on_spawn(&self, entity: EntityId, by: Spawn) {
        let _ = (entity, by);
    }

    /// Reports that an entity which could use this crystal has ended and will send no more requests.
    fn on_end(&self, entity: EntityId) {
        let _ = entity;
    }

    /// Returns true if an answer depends on the number of earlier requests, as the responses of a script do.
    fn is_sequential(&self) -> bool {
        false
    }

    /// Reports a resumed run in which a tape of this name has already given `answers` answers. A tape that has not been
    /// used in this process continues after them.
    fn skip_answers(&self, answers: usize) {
        let _ = answers;
    }
}

/// Receives the events of a crystal while it answers.
///
/// `emit` returns at once, whatever happens to the event: it never waits for a viewer, and an event that cannot be
/// delivered is dropped.
pub trait EventSink: Send + Sync {
    fn emit(&self, event: ItemEvent);
}

/// A sink that drops every event.
#[derive(Debug, Clone, Copy, Default)]
pub struct NullSink;

impl EventSink for NullSink {
    fn emit(&self, _event: ItemEvent) {}
}

/// The canonical events that a crystal emits. The loop emits the start and the end of the turn around them.
#[derive(Debug, Clone, PartialEq)]
pub enum ItemEvent {
    Start(ItemStart),
    Delta(ItemDelta),
    Done(ItemDone),
    Error(ItemError),
    Cancelled(ItemCancelled),
}

impl ItemEvent {
    /// Returns the id of the event's item.
    pub fn item_id(&self) -> &ItemId {
        match self {
            Self::Start(ItemStart { item_id, .. })
            | Self::Delta(ItemDelta { item_id, .. })
            | Self::Done(ItemDone { item_id, .. })
            | Self::Error(ItemError { item_id, .. })
            | Self::Cancelled(ItemCancelled { item_id, .. }) => item_id,
        }
    }
}

impl From<ItemEvent> for Payload {
    fn from(event: ItemEvent) -> Self {
        match event {
            ItemEvent::Start(start) => Self::ItemStart(start),
            ItemEvent::Delta(delta) => Self::ItemDelta(delta),
            ItemEvent::Done(done) => Self::ItemDone(done),
            ItemEvent::Error(error) => Self::ItemError(error),
            ItemEvent::Cancelled(cancelled) => Self::ItemCancelled(cancelled),
        }
    }
}

/// The complete answer to one request.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The utterance, the model that produced it, and the parts that its provider needs back.
    pub utterance: Utterance,
    /// None if the provider did not report usage.
    pub usage: Option<Usage>,
    /// The items of the utterance's calls, in the same order.
    pub call_items: Vec<ItemId>,
}

/// Any crystal behind one pointer, for crystals chosen at run time. Cheap to clone; all clones are the same crystal.
#[derive(Clone)]
pub struct AnyCrystal(Arc<dyn Erased>);

impl AnyCrystal {
    pub fn new(crystal: impl Crystal + 'static) -> Self {
        Self(Arc::new(crystal))
    }
}

impl fmt::Debug for AnyCrystal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnyCrystal").field(&self.0.name()).finish()
    }
}

/// The object-safe twin of [`Crystal`].
trait Erased: Send + Sync {
    fn name(&self) -> &str;
    fn ask<'a>(&'a self, request: &'a Request, heard: &'a dyn EventSink) -> BoxFuture<'a, Result<Answer, Failure>>;
    fn profile(&self) -> Profile;
    fn learn_window(&self) -> BoxFuture<'_, ()>;
    fn price(&self) -> Price;
    fn on_spawn(&self, entity: EntityId, by: Spawn);
    fn on_end(&self, entity: EntityId);
    fn is_sequential(&self) -> bool;
    fn skip_answers(&self, answers: usize);
}

impl<C: Crystal> Erased for C {
    fn name(&self) -> &str {
        Crystal::name(self)
    }
    fn ask<'a>(&'a self, request: &'a Request, heard: &'a dyn EventSink) -> BoxFuture<'a, Result<Answer, Failure>> {
        Box::pin(Crystal::ask(self, request, heard))
    }
    fn profile(&self) -> Profile {
        Crystal::profile(self)
    }
    fn learn_window(&self) -> BoxFuture<'_, ()> {
        Box::pin(Crystal::learn_window(self))
    }
    fn price(&self) -> Price {
        Crystal::price(self)
    }
    fn on_spawn(&self, entity: EntityId, by: Spawn) {
        Crystal::on_spawn(self, entity, by);
    }
    fn on_end(&self, entity: EntityId) {
        Crystal::on_end(self, entity);
    }
    fn is_sequential(&self) -> bool {
        Crystal::is_sequential(self)
    }
    fn skip_answers(&self, answers: usize) {
        Crystal::skip_answers(self, answers);
    }
}

impl Crystal for AnyCrystal {
    fn name(&self) -> &str {
        self.0.name()
    }
    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        self.0.ask(request, heard).await
    }
    fn profile(&self) -> Profile {
        self.0.profile()
    }
    async fn learn_window(&self) {
        self.0.learn_window().await;
    }
    fn price(&self) -> Price {
        self.0.price()
    }
    fn on_spawn(&self, entity: EntityId, by: Spawn) {
        self.0.on_spawn(entity, by);
    }
    fn on_end(&self, entity: EntityId) {
        self.0.on_end(entity);
    }
    fn is_sequential(&self) -> bool {
        self.0.is_sequential()
    }
    fn skip_answers(&self, answers: usize) {
        self.0.skip_answers(answers);
    }
}
