//! What does the runtime ask of anything that can answer?
//!
//! One method, which is given the whole list every time, streams what it says into a [`EventSink`], and ends in an
//! [`Answer`] or a typed [`Failure`]. An iterator of chunks was turned down as the answer: every caller would put the
//! utterance together again and find its own rules for a stream that breaks off. What the answers have in common
//! (empty ones, doubled ids, a call that was required and did not come) is checked by the runtime, with
//! [`contract`](crate::contract), so that no crystal can forget it.

use std::fmt;
use std::sync::Arc;

use cantrip_canon::EntityId;
use cantrip_loom::{Finish, Spawn, Usage, Utterance};
use cantrip_stream::{ItemCancelled, ItemDelta, ItemDone, ItemError, ItemId, ItemStart, Payload};
use futures_util::future::BoxFuture;

use crate::{Failure, Price, Profile, Profiles, Request};

/// Anything that answers a list of messages: a provider's model, a script, a recorded thread, a person's program.
///
/// * One attempt: `ask` sends one request and never repeats it. Whoever asks plans the next attempt
///   ([`RetryPolicy`](crate::RetryPolicy)) and can write down each one before it leaves.
/// * Stateless: what it knows is in the request. A crystal that plays a tape (a script) is at another place of it after
///   each attempt, but what it says does not depend on what it was told before.
/// * In order: of each item the sink hears its start, then its deltas, then one end (done, error or cancelled), and the
///   deltas put together are the text of the end. An item of this request has an id of [`Request::items`].
/// * Equal: the answer holds what was streamed. Its text is that of the message items in order, its thinking that of
///   the reasoning items, its calls those whose items were started; a call whose arguments are no object has no
///   `item_done`.
/// * Ended: when `ask` returns, no item of it is open. After a failure those that were are cancelled with reason
///   `retry`.
/// * Cancel-safe: a dropped future sends nothing more, keeps no task running and says nothing more to the sink. Items
///   that were open then stay so, for the asker knows why they end. Whether the provider charges for it is unknown.
/// * Ready to be shared: concurrent asks do not wait for each other, other than for a limit of their provider, or as a
///   script says.
pub trait Crystal: Send + Sync {
    /// `provider/model`, as it stands in a spell; a part after a second `/` belongs to the model.
    fn name(&self) -> &str;

    /// Sends one request and says what comes.
    fn ask(&self, request: &Request, heard: &dyn EventSink) -> impl Future<Output = Result<Answer, Failure>> + Send;

    /// What a request to it may count on. Only its window may become known while the crystal lives, by
    /// [`learn_window`](Self::learn_window).
    fn profile(&self) -> Profile {
        Profile::of(self.name())
    }

    /// Finds out how many tokens it takes, where nobody has said so: its server is asked, and where that does not tell, a
    /// small window is assumed. Its profile has the window then. A crystal that no server stands behind has none.
    fn learn_window(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// What its answers cost. It does not change while the crystal lives.
    fn price(&self) -> Price {
        Profiles::for_crystal(self.name()).price(self.name())
    }

    /// A child that will ask this crystal came to be. Told for all children of a call, in the order of their places in
    /// it, before the first of them asks.
    fn on_spawn(&self, entity: EntityId, by: Spawn) {
        let _ = (entity, by);
    }

    /// An entity that could have asked this crystal has ended and will not ask again.
    fn on_end(&self, entity: EntityId) {
        let _ = entity;
    }

    /// Whether what it says depends on how often it was asked, as a script's responses do.
    fn is_sequential(&self) -> bool {
        false
    }

    /// A run is gone on with, in which a tape of this name has given so many answers. One that has not been asked here
    /// goes on behind them.
    fn skip_answers(&self, answers: usize) {
        let _ = answers;
    }
}

/// Where a crystal says what it says, while it says it.
///
/// `hear` returns at once, whatever becomes of the event: it never waits for a viewer, and what nobody can take is
/// dropped.
pub trait EventSink: Send + Sync {
    fn emit(&self, event: ItemEvent);
}

/// Nobody listens.
#[derive(Debug, Clone, Copy, Default)]
pub struct NullSink;

impl EventSink for NullSink {
    fn emit(&self, _event: ItemEvent) {}
}

/// The part of the canonical events that is a crystal's to say. A turn begins and ends around them, and is the loop's.
#[derive(Debug, Clone, PartialEq)]
pub enum ItemEvent {
    Start(ItemStart),
    Delta(ItemDelta),
    Done(ItemDone),
    Error(ItemError),
    Cancelled(ItemCancelled),
}

impl ItemEvent {
    /// Which item it speaks of.
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

/// What came back.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// What was said, by which model, and what its provider needs back.
    pub utterance: Utterance,
    /// None if the provider did not say.
    pub usage: Option<Usage>,
    /// The items of the utterance's calls, in the same order.
    pub call_items: Vec<ItemId>,
}

/// The word for it that streams and surfaces use.
pub fn finish_reason(finish: &Finish) -> &str {
    match finish {
        Finish::Stop => "end_turn",
        Finish::Calls => "tool_use",
        Finish::Length => "max_tokens",
        Finish::Refusal => "refusal",
        Finish::Other(word) => word,
    }
}

/// Any crystal, behind one pointer, where it is chosen at run time. Cheap to clone; all clones are the same crystal.
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

/// The object-safe twin.
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
