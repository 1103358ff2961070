//! One event for viewers.
//!
//! An event has two dresses: a line of JSON for programs, and an element of a page for people. Each is written when the
//! first viewer needs it and then kept for all others, so a thousand viewers cost one rendering.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cantrip_service::cantrip::canon::{self, Redactor, Timestamp};
use cantrip_service::cantrip::loom::{Actor, Seq};
use cantrip_service::cantrip::stream::{EntityId, Item, TurnEvent, Upsert};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::Mutex;

/// An event as viewers see it. It is serialized once for all viewers, and not at all without viewers.
#[derive(Debug)]
pub(crate) struct FeedEvent {
    content: Content,
    /// The sequence number of the record that it reports.
    pub(crate) id: Option<Seq>,
    /// The child whose turn this is part of; none for the root of the run.
    child: Option<EntityId>,
    written: OnceLock<String>,
    item_part: OnceLock<String>,
    record_part: Mutex<Vec<(PartReader, Arc<str>)>>,
    /// True if a newer state of the run makes this one useless.
    superseded: AtomicBool,
}

/// The reader for whom a part is written: it shows what an owner may do, and the thread that the page is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartReader {
    pub(crate) owner: Actor,
    /// The child whose thread is shown; none for the root of the run.
    pub(crate) shown: Option<canon::EntityId>,
}

#[derive(Debug)]
pub(crate) enum Content {
    /// An item, with its number among those that a page shows.
    Upsert(Upsert, ItemPlace),
    Turn(TurnEvent),
    Run(Value),
}

/// The place of an item in its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ItemPlace {
    /// The number of the item in its turn. None for the intent and the answer, which a page shows elsewhere.
    pub(crate) number: Option<usize>,
    /// The time at which the item appeared.
    pub(crate) since: Timestamp,
}

impl FeedEvent {
    pub(crate) fn new(content: Content, id: Option<Seq>) -> Self {
        let (written, item_part) = (OnceLock::new(), OnceLock::new());
        let (record_part, superseded) = (Mutex::default(), AtomicBool::new(false));
        Self { content, id, child: None, written, item_part, record_part, superseded }
    }

    /// Sets the child whose turn this is part of.
    pub(crate) fn of_child(self, child: Option<EntityId>) -> Self {
        Self { child, ..self }
    }

    /// Returns the name of the event.
    pub(crate) fn name(&self) -> &'static str {
        match self.content {
            Content::Upsert(..) => "upsert",
            Content::Turn(_) => "turn",
            Content::Run(_) => "run",
        }
    }

    pub(crate) fn content(&self) -> &Content {
        &self.content
    }

    pub(crate) fn upsert(&self) -> Option<&Upsert> {
        match &self.content {
            Content::Upsert(upsert, _) => Some(upsert),
            Content::Turn(_) | Content::Run(_) => None,
        }
    }

    /// Returns the place of the item; none if this is not an item.
    pub(crate) fn place(&self) -> Option<ItemPlace> {
        match &self.content {
            Content::Upsert(_, place) => Some(*place),
            Content::Turn(_) | Content::Run(_) => None,
        }
    }

    /// Returns the child whose turn this is part of; none for the root of the run and for the state of the run.
    pub(crate) fn child(&self) -> Option<&EntityId> {
        self.child.as_ref()
    }

    /// Returns the approximate length of its text.
    pub(crate) fn bytes(&self) -> usize {
        const FRAME: usize = 512;
        let said = match &self.content {
            Content::Upsert(upsert, _) => match &upsert.item {
                Item::Message { content, .. } | Item::Thinking { content, .. } => content.len(),
                Item::ToolCall(call) => {
                    let output = call.output.as_ref().map_or(0, |output| output.text.len());
                    // Arguments are bounded with the utterance that contains them.
                    output + serde_json::to_string(&call.arguments).map_or(0, |arguments| arguments.len())
                }
            },
            Content::Turn(_) | Content::Run(_) => 0,
        };
        FRAME + said
    }

    /// Returns the event as one line of redacted JSON.
    pub(crate) fn text(&self, redactor: &Redactor) -> &str {
        self.written.get_or_init(|| match &self.content {
            Content::Upsert(upsert, _) => redacted_json(upsert, redactor),
            Content::Turn(turn) => redacted_json(turn, redactor),
            Content::Run(run) => redactor.redact_value(run).to_string(),
        })
    }

    /// Returns the element of an item, which depends on nothing but the item.
    pub(crate) fn item_part(&self, write: impl FnOnce() -> String) -> &str {
        self.item_part.get_or_init(write)
    }

    /// Returns the elements that are read from the record for this event, which are the same for all pages of one
    /// reader. A failed read is not kept.
    pub(crate) async fn record_part<E>(
        &self,
        reader: &PartReader,
        read: impl Future<Output = Result<String, E>>,
    ) -> Result<Arc<str>, E> {
        let mut known = self.record_part.lock().await;
        if let Some((_, part)) = known.iter().find(|(other, _)| other == reader) {
            return Ok(Arc::clone(part));
        }
        let part: Arc<str> = read.await?.into();
        known.push((reader.clone(), Arc::clone(&part)));
        Ok(part)
    }

    /// Marks a state of the run as replaced by a newer one. Its parts, which are long, are dropped.
    pub(crate) fn supersede(&self) {
        self.superseded.store(true, Ordering::Relaxed);
        if let Ok(mut known) = self.record_part.try_lock() {
            known.clear();
        }
    }

    pub(crate) fn is_superseded(&self) -> bool {
        self.superseded.load(Ordering::Relaxed)
    }
}

fn redacted_json(content: &impl Serialize, redactor: &Redactor) -> String {
    let value = serde_json::to_value(content).unwrap_or_default();
    redactor.redact_value(&value).to_string()
}
