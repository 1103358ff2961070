//! The journal of a run, the list that a crystal was sent, whole outputs and bodies.

use std::collections::{HashMap, HashSet};

use cantrip_service::cantrip::canon::{CastId, EntityId, Hash, RunId, TurnId};
use cantrip_service::cantrip::list::{CastStart, Frame, MessageList};
use cantrip_service::cantrip::loom::{
    Body, CastView, Closing, Content, EntityView, Error, Journal, ListPage, Loom, Message, Origin, Overview,
    PageRequest, Part, Record, RunView, Seq, Thread, ToolMode, Turn, render,
};
use cantrip_service::cantrip::reply::{Refusal, codes};
use futures_util::TryStreamExt;
use serde_json::Value;

use crate::limits::{RECORDS_PAGE, RECORDS_PAGE_BYTES, SENT_TURNS_MAX};
use crate::{RecordLine, SentView, Views, item_text, stored, turn_items};

impl Views<'_> {
    /// Returns a page of a run's journal. [`PageRequest::after`] is the position of a record.
    pub async fn records(&self, run: RunId, page: PageRequest) -> Result<ListPage<RecordLine>, Refusal> {
        let view = self.service.own_run(run).await?;
        let most = page.most.clamp(1, RECORDS_PAGE);
        let (mut items, mut bytes) = (Vec::new(), 0);
        let mut records = std::pin::pin!(self.loom().read(run, Seq::new(page.after.unwrap_or(0))));
        while items.len() < most
            && bytes < RECORDS_PAGE_BYTES
            && let Some(record) = records.try_next().await.map_err(stored)?
        {
            bytes += record.payload.len();
            items.push(self.record_line(&record).map_err(stored)?);
        }
        let last = items.last().map(|line: &RecordLine| line.seq);
        Ok(ListPage { items, next: last.filter(|last| *last < view.newest.get()) })
    }

    fn record_line(&self, record: &Record) -> Result<RecordLine, Error> {
        Ok(RecordLine {
            seq: record.seq.get(),
            kind: record.kind.as_str().to_owned(),
            at: record.at,
            payload: self.value(record.value()?),
            hash: record.hash.to_string(),
        })
    }

    /// Returns the whole text of item `n` of a turn: what a call returned, or what a program printed. The items of a
    /// sealed turn go on in its continuations.
    pub async fn output(&self, turn: TurnId, n: usize) -> Result<Vec<u8>, Refusal> {
        let missing = || Refusal::from(codes::not_found("item", format!("{turn}.{n}")));
        let mut current = self.service.own_turn(turn).await?;
        let mut skipped = 0;
        loop {
            let items = turn_items(&current);
            if let Some(item) = n.checked_sub(skipped).and_then(|at| items.get(at)) {
                return Ok(self.text(item_text(item)).into_bytes());
            }
            skipped += items.len();
            let Closing::Sealed { next, .. } = current.closing else { return Err(missing()) };
            current = match self.loom().turn(next).await {
                Ok(continuation) => continuation,
                Err(Error::NotFound { .. }) => return Err(missing()),
                Err(error) => return Err(stored(error)),
            };
        }
    }

    /// Returns a body that the run refers to: an image of an intent on its path, or a body that one of its records
    /// names. Any other body is not found.
    pub async fn body(&self, run: RunId, hash: Hash) -> Result<Body, Refusal> {
        let view = self.service.own_run(run).await?;
        if self.is_intent_image(&view, hash).await.map_err(stored)? || self.is_recorded_body(run, hash).await? {
            return self.loom().body(hash).await.map_err(stored);
        }
        Err(codes::not_found("body", hash.to_string()).into())
    }

    /// Returns true if an intent of the run, of its children, or of the entities that its root was forked from has this
    /// image.
    async fn is_intent_image(&self, run: &RunView, hash: Hash) -> Result<bool, Error> {
        let threads = self.loom().run_threads(run.run_id).await?;
        let mut entities: Vec<EntityId> = threads.iter().map(|thread| thread.entity_id).chain(run.entity_id).collect();
        let mut seen = HashSet::new();
        while let Some(entity) = entities.pop() {
            if !seen.insert(entity) {
                continue;
            }
            let casts = self.loom().casts(entity).await?;
            if casts.iter().any(|cast| has_image(&cast.intent, hash)) {
                return Ok(true);
            }
            if let Origin::Fork(fork) = self.loom().entity(entity).await?.entity.origin {
                entities.push(self.loom().turn(fork.turn).await?.entity_id);
            }
        }
        Ok(false)
    }

    async fn is_recorded_body(&self, run: RunId, hash: Hash) -> Result<bool, Refusal> {
        let name = hash.to_string();
        let mut records = std::pin::pin!(self.loom().read(run, Seq::START));
        while let Some(record) = records.try_next().await.map_err(stored)? {
            if record.payload.contains(&name) && record.bodies().map_err(stored)?.contains(&hash) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the messages that the crystal was sent for a turn, rebuilt from the records.
    pub async fn sent(&self, turn: TurnId) -> Result<SentView, Refusal> {
        let mut asked = self.service.own_turn(turn).await?;
        // A continuation has no request of its own.
        while let Some(before) = asked.continuation_of {
            asked = self.loom().turn(before).await.map_err(stored)?;
        }
        if asked.sequence > SENT_TURNS_MAX {
            return Err(codes::limit("the turns before this one", asked.sequence, SENT_TURNS_MAX).into());
        }
        let entity = self.loom().entity(asked.entity_id).await.map_err(stored)?;
        let messages = self.messages_for(&asked, &entity).await?;
        let mut shown = Vec::with_capacity(messages.len());
        for message in messages {
            shown.push(self.value(written(message)?));
        }
        let gates_in_words = match entity.entity.mode {
            ToolMode::Fenced => true,
            ToolMode::Tool => false,
        };
        Ok(SentView { turn: asked.id, messages: shown, gates_in_words })
    }

    async fn messages_for(&self, asked: &Turn, entity: &EntityView) -> Result<Vec<Message>, Refusal> {
        let roots = self.loom().roots(entity.loom_id).await.map_err(stored)?;
        let root = roots.into_iter().find(|root| root.cantrip_id == entity.entity.cantrip_id);
        let root = root.ok_or_else(|| codes::not_found("cantrip", entity.entity.cantrip_id.to_string()))?;
        let frame = Frame::of(&root.cantrip, &entity.entity.medium).windowed(entity.entity.window);
        let before = match asked.parent_id.filter(|_| asked.spawned_by.is_none()) {
            Some(parent) => Some(self.loom().thread(parent).await.map_err(stored)?),
            None => None,
        };
        let cast = self.loom().cast(asked.cast_id).await.map_err(stored)?;
        let mut list = list_before(frame, before.as_ref()).ok_or_else(codes::crash)?;
        let goes_on =
            before.as_ref().and_then(|before| before.turns.last()).is_some_and(|last| last.cast_id == asked.cast_id);
        if !goes_on {
            list.begin(CastStart {
                cast: asked.cast_id,
                intent_record: &cast.cast.intent,
                intent: &cast.intent,
                environment: asked.forked_from.map(|fork| fork.environment),
                cancelled: &cast.cancelled,
            });
        }
        let request = list.request().map_err(|_| codes::crash())?;
        Ok((0..request.len()).filter_map(|at| request.get(at).cloned()).collect())
    }
}

/// Builds the list of the turns before a request; none if the records do not fit together.
fn list_before(frame: Frame, before: Option<&Thread>) -> Option<MessageList> {
    let Some(thread) = before else { return Some(MessageList::new(frame)) };
    let casts: HashMap<CastId, &CastView> = thread.casts.iter().map(|cast| (cast.cast.cast_id, cast)).collect();
    MessageList::along(frame, render::own_turns(thread), &casts, &thread.folds).ok()
}

/// Returns a message as its record has it, without the data that only its provider reads.
fn written(message: Message) -> Result<Value, Refusal> {
    let message = match message {
        Message::Assistant { content, calls, parts: _ } => Message::Assistant { content, calls, parts: None },
        Message::System { .. } | Message::User { .. } | Message::Tool { .. } => message,
    };
    serde_json::to_value(message).map_err(|source| stored(Error::Misread { what: "a message".to_owned(), source }))
}

/// Returns true if a content has this image.
fn has_image(content: &Content, hash: Hash) -> bool {
    match content {
        Content::Text(_) => false,
        Content::Parts(parts) => parts.iter().any(|part| match part {
            Part::Text { .. } => false,
            Part::Image { image, .. } => image.hash == hash,
        }),
    }
}
