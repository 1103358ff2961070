//! The live parts of a run's page, as server-sent events.
//!
//! This is the feed of a run in its second dress: the same order, ids, resume, heartbeat and end as the feed of
//! programs, but each event carries finished elements. While a turn is open its items come from the events; once it is
//! closed the whole turn is read from the record and written by the function that writes the page, so a page that was
//! followed and a page that is loaded are the same.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::response::IntoResponse;
use cantrip_pages::{
    Forms, PartContext, answer_part, asks_part, gone_turn, head_part, open_children, open_item, open_turn, side_part,
    thread_articles,
};
use cantrip_service::Service;
use cantrip_service::cantrip::canon::{EntityId, Redactor, RunId, Timestamp, TurnId};
use cantrip_service::cantrip::loom::{Caller, Seq, ThreadSummary};
use cantrip_service::cantrip::reply::{Refusal, ReplyType, codes};
use cantrip_service::cantrip::stream::{self, Item, Status, ToolCall, TurnEvent, Upsert};
use cantrip_view::{OpenCall, OpenCallState, OpenItem, OpenTurn, RunHead, ThreadWindow, Views};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use super::visitor::Visitor;
use crate::feed::{Content, FeedEvent, PartReader, RunFeed};
use crate::http::HttpServer;
use crate::http::extractors::{PathId, QueryParams};
use crate::http::feeds::{self, HEARTBEAT, ViewerStep, ViewerStream};
use crate::limits::RUN_PARTS_MS;

/// The position at which the parts start, and the thread that the page shows.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PartsQuery {
    /// The newest record that the page shows.
    cursor: Option<String>,
    /// The entity whose thread the page shows; the root of the run by default.
    entity: Option<String>,
}

/// Streams the parts of a run's page that change.
pub(super) async fn run_parts(
    visitor: Visitor,
    PathId(run): PathId<RunId>,
    headers: HeaderMap,
    QueryParams(query): QueryParams<PartsQuery>,
) -> Response<Body> {
    let opened = open_stream(&visitor, run, &headers, query).await;
    feeds::feed_response(&visitor.http, run, opened).await
}

async fn open_stream(
    visitor: &Visitor,
    run: RunId,
    headers: &HeaderMap,
    query: PartsQuery,
) -> Result<Response<Body>, Refusal> {
    let entity = query.entity.as_deref();
    let parse = |named: &str| named.parse::<EntityId>().map_err(|_| Refusal::from(codes::not_found("entity", named)));
    let shown = entity.map(parse).transpose()?;
    let root = visitor.service.own_run(run).await?.entity_id;
    // A browser that reconnects repeats the address, whose cursor is older than the last id that it saw.
    let cursor = query.cursor.filter(|_| !headers.contains_key("last-event-id"));
    let from = feeds::From { cursor, from: None };
    let Some(viewing) = ViewerStream::open(&visitor.caller(), run, headers, &from, false).await? else {
        return Ok(StatusCode::NO_CONTENT.into_response());
    };
    let parts = PartStream {
        viewing,
        feed: visitor.http.host().feeds().get_or_create(run),
        http: visitor.http.clone(),
        service: visitor.service.clone(),
        run,
        reader: PartReader { owner: visitor.owner.clone(), shown: shown.filter(|shown| Some(*shown) != root) },
        child: child_of(shown, root),
        held: None,
        run_sent: None,
        last: None,
    };
    Ok(feeds::sse_response(futures_util::stream::unfold(parts, |mut parts| async {
        let text = parts.next().await?;
        Some((text, parts))
    })))
}

/// Returns the name that events have for an entity: none for the root of the run.
fn child_of(shown: Option<EntityId>, root: Option<EntityId>) -> Option<stream::EntityId> {
    shown.filter(|shown| Some(*shown) != root).map(|shown| stream::EntityId::from(&shown))
}

/// A page that follows a run.
struct PartStream {
    viewing: ViewerStream,
    feed: Arc<RunFeed>,
    http: HttpServer,
    service: Service,
    run: RunId,
    reader: PartReader,
    child: Option<stream::EntityId>,
    /// The newest state of the run that is not sent yet. A run with many children changes its state more often than a
    /// person can read it, and each rendering reads the whole tree.
    held: Option<Arc<FeedEvent>>,
    run_sent: Option<Instant>,
    last: Option<Seq>,
}

impl PartStream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let patience = self.held.as_ref().and(self.run_due());
            let line = match self.viewing.next_step(patience).await? {
                ViewerStep::Event(line) if self.holds_back(&line) => {
                    self.held = Some(line);
                    continue;
                }
                ViewerStep::Event(line) => line,
                ViewerStep::Heartbeat => return Some(Bytes::from_static(HEARTBEAT)),
                ViewerStep::Nothing => match self.held.take() {
                    Some(line) => line,
                    None => continue,
                },
                ViewerStep::End => match self.held.take() {
                    Some(line) => line,
                    None => return self.viewing.end(),
                },
            };
            match self.part_event(&line).await {
                Ok(Some(part)) => return Some(part),
                Ok(None) => {}
                Err(refusal) => {
                    // The client reconnects after the last id that it saw, and reads the rest anew.
                    tracing::warn!(run = %self.run, code = %refusal.code(), "a part of a page cannot be read");
                    return None;
                }
            }
        }
    }

    /// Returns the time from which on the state of the run may be sent again.
    fn run_due(&self) -> Option<Instant> {
        self.run_sent.map(|sent| sent + Duration::from_millis(RUN_PARTS_MS))
    }

    fn holds_back(&self, line: &FeedEvent) -> bool {
        let is_run = matches!(line.content(), Content::Run(_));
        is_run && self.run_due().is_some_and(|due| Instant::now() < due)
    }

    /// Returns true for an event of another thread, and for one that a later event makes useless: a page shows a turn
    /// that has ended from its records.
    fn passes_over(&self, line: &FeedEvent) -> bool {
        match line.content() {
            Content::Run(_) => line.is_superseded(),
            Content::Upsert(..) | Content::Turn(_) if line.child() != self.child.as_ref() => true,
            Content::Upsert(upsert, _) => self.feed.has_ended(&upsert.turn_id),
            Content::Turn(TurnEvent::Started { turn_id, .. }) => self.feed.has_ended(turn_id),
            Content::Turn(TurnEvent::Complete { .. } | TurnEvent::Error { .. }) => false,
        }
    }

    /// Returns the event for this page; none if it shows nothing of it.
    async fn part_event(&mut self, line: &FeedEvent) -> Result<Option<Bytes>, Refusal> {
        if self.passes_over(line) {
            return Ok(None);
        }
        // A state that was held back may be older than what was sent meanwhile.
        let id = line.id.filter(|id| self.last.is_none_or(|last| *id > last));
        let part = match line.content() {
            Content::Upsert(upsert, place) => {
                let (Some(number), Some(turn)) = (place.number, turn_id(&upsert.turn_id)) else { return Ok(None) };
                let part = line.item_part(|| {
                    let item = feed_item(upsert, number, place.since, self.viewing.redactor());
                    open_item(&part_context(&self.http), turn, &item).into_string()
                });
                sse_part(id, part)
            }
            Content::Turn(event) => {
                let Some(turn) = turn_id(event.turn_id()) else { return Ok(None) };
                let read = async {
                    match event {
                        TurnEvent::Started { .. } => self.started_part(turn).await,
                        TurnEvent::Complete { .. } | TurnEvent::Error { .. } => self.closed_part(turn).await,
                    }
                };
                sse_part(id, &line.record_part(&self.reader, read).await?)
            }
            Content::Run(_) => {
                let part = line.record_part(&self.reader, self.state_parts()).await?;
                self.held = None;
                self.run_sent = Some(Instant::now());
                sse_part(id, &part)
            }
        };
        self.last = id.or(self.last);
        Ok(Some(part))
    }

    fn views(&self) -> Views<'_> {
        Views::of(&self.service)
    }

    /// Writes a turn without items.
    async fn started_part(&self, turn: TurnId) -> Result<String, Refusal> {
        let head = self.views().head(self.run, self.reader.shown).await?;
        let context = part_context(&self.http);
        let Some(entity_id) = shown_entity(&head) else { return Ok(String::new()) };
        let sequence = next_sequence(&head, entity_id);
        let (items, children) = (Vec::new(), Vec::new());
        let open = OpenTurn { turn_id: turn, entity_id, sequence, since: context.now, items, children };
        Ok(open_turn(&context, &open).into_string())
    }

    /// Writes a closed turn from its records. A turn that ended without being recorded is taken out of the page.
    async fn closed_part(&self, turn: TurnId) -> Result<String, Refusal> {
        let missing = |refusal: &Refusal| refusal.code() == codes::NOT_FOUND.any();
        let context = part_context(&self.http);
        match self.views().group(self.run, turn).await {
            Ok(group) if group.window.turns.is_empty() && group.damaged.is_empty() => Ok(gone_turn(turn).into_string()),
            Ok(group) => Ok(thread_articles(&context, &group).into_string()),
            Err(refusal) if missing(&refusal) => Ok(gone_turn(turn).into_string()),
            Err(refusal) => Err(refusal),
        }
    }

    /// Writes everything that changes with the state of the run: its head, its side, what it asks and its answer.
    async fn state_parts(&self) -> Result<String, Refusal> {
        let views = self.views();
        let head = views.head(self.run, self.reader.shown).await?;
        let now = views.now(self.run).await?;
        let mut asked = Vec::new();
        for pending in &head.pending {
            // A decision that was made meanwhile takes the request away; the next state shows it.
            asked.extend(views.proposal(self.run, pending.approval_id).await.ok());
        }
        let context = part_context(&self.http);
        let mut parts = head_part(&context, &head).into_string();
        parts.push_str(&side_part(&context, &head, &now).into_string());
        parts.push_str(&asks_part(&context, &asked).into_string());
        parts.push_str(&answer_part(&context, &head).into_string());
        if let Some(turn) = self.feed.open_turn(self.child.as_ref()) {
            let children = children_of(&head.threads, turn.turn_id);
            if !children.is_empty() {
                parts.push_str(&open_children(&context, turn.turn_id, &children).into_string());
            }
        }
        Ok(parts)
    }
}

/// Returns the context of a part that is written once for all viewers: its forms get their hidden fields in the browser.
fn part_context(http: &HttpServer) -> PartContext<'_> {
    PartContext { now: http.now(), commands: http.commands(), forms: Forms::BLANK }
}

fn turn_id(id: &stream::TurnId) -> Option<TurnId> {
    id.as_str().parse().ok()
}

fn shown_entity(head: &RunHead) -> Option<EntityId> {
    head.shown.as_ref().map(|shown| shown.entity.entity_id)
}

/// Returns the number that the next turn of an entity will have.
fn next_sequence(head: &RunHead, entity: EntityId) -> u64 {
    let thread = head.threads.iter().find(|thread| thread.entity_id == entity);
    let before = thread.and_then(|thread| {
        // A fork continues the count of the turn at which it branched off; a child counts from one.
        thread.last.or(thread.fork.and(thread.parent_sequence))
    });
    before.unwrap_or(0) + 1
}

/// Returns the children that the calls of a turn spawned.
fn children_of(threads: &[ThreadSummary], turn: TurnId) -> Vec<ThreadSummary> {
    let is_child = |thread: &&ThreadSummary| thread.call_id.is_some_and(|call| call.caller() == Caller::Turn(turn));
    threads.iter().filter(is_child).cloned().collect()
}

/// Shows the open turn of a thread as far as this process knows it: its texts while they are written.
///
/// A turn that is sealed on record while its children work is still open for its viewers. It is shown here as open, and
/// not a second time as closed.
pub(super) fn show_open_turn(http: &HttpServer, head: &RunHead, window: &mut ThreadWindow) {
    let Some(entity_id) = shown_entity(head).filter(|_| head.run.state.is_live()) else { return };
    let child = child_of(Some(entity_id), head.run.entity_id);
    let redactor = http.guard().redactor();
    let feed = http.host().feeds().find(window.run);
    let Some(known) = feed.and_then(|feed| feed.open_turn(child.as_ref())) else { return };
    let Some(sequence) = take_unfinished(window, known.turn_id) else { return };
    let sequence = sequence.unwrap_or_else(|| next_sequence(head, entity_id));
    let items = known.items.iter().filter_map(|line| {
        let place = line.place()?;
        Some(feed_item(line.upsert()?, place.number?, place.since, redactor))
    });
    let mut open = OpenTurn {
        turn_id: known.turn_id,
        entity_id,
        sequence,
        since: known.since,
        items: items.collect(),
        children: children_of(&head.threads, known.turn_id),
    };
    if let Some(at) = window.open.iter().position(|other| other.turn_id == known.turn_id) {
        mark_waiting(&mut open.items, &window.open.remove(at).items);
    }
    window.open.push(open);
}

/// Marks the calls that wait for a person. Only the records say which ones do.
fn mark_waiting(items: &mut [OpenItem], recorded: &[OpenItem]) {
    let call = |item: &OpenItem| match item {
        OpenItem::Call(call) => Some(call.clone()),
        OpenItem::Thinking { .. } | OpenItem::Said { .. } => None,
    };
    let waits = |call: &OpenCall| matches!(call.state, OpenCallState::Waiting(_));
    for waiting in recorded.iter().filter_map(call).filter(waits) {
        let same = items.iter_mut().find_map(|item| match item {
            OpenItem::Call(call) if call.gate == waiting.gate && call.args == waiting.args => Some(call),
            OpenItem::Call(_) | OpenItem::Thinking { .. } | OpenItem::Said { .. } => None,
        });
        if let Some(call) = same {
            call.state = waiting.state;
        }
    }
}

/// Takes the turns of an unfinished group out of the window and returns the number of the first of them. Returns none if
/// the group has ended on record, so that the window shows it already.
fn take_unfinished(window: &mut ThreadWindow, group: TurnId) -> Option<Option<u64>> {
    let turns = &mut window.window.turns;
    let Some(first) = turns.iter().position(|turn| turn.id == group) else {
        // Ids are in the order of time: a turn older than the last one that is recorded has ended before the window.
        return turns.last().is_none_or(|last| last.id < group).then_some(None);
    };
    let sequence = turns.get(first).map(|turn| turn.sequence);
    let after = turns.iter().skip(first + 1).take_while(|turn| turn.continuation_of.is_some()).count();
    if turns.get(first + after).is_some_and(|last| !last.is_sealed()) {
        return None;
    }
    turns.drain(first..=first + after);
    let spans = &mut window.window.spans;
    if first + after < spans.len() {
        spans.drain(first..=first + after);
    }
    Some(sequence)
}

/// Returns an item as a page shows it.
fn feed_item(upsert: &Upsert, n: usize, since: Timestamp, redactor: &Redactor) -> OpenItem {
    let complete = upsert.status.is_final();
    let redacted = |text: &stream::Text| redactor.redact_text(&text.to_string()).into_owned();
    match &upsert.item {
        Item::Message { content, .. } => OpenItem::Said { n, text: redacted(content), complete },
        Item::Thinking { content, .. } => OpenItem::Thinking { n, text: redacted(content), complete },
        Item::ToolCall(call) => {
            let args = redactor.redact_value(&Value::Object(call.arguments.as_map().clone()));
            let gate = redactor.redact_text(call.name.as_str()).into_owned();
            let state = call_state(call, &upsert.status, redactor);
            OpenItem::Call(OpenCall { n, gate, args, state, since })
        }
    }
}

fn call_state(call: &ToolCall, status: &Status, redactor: &Redactor) -> OpenCallState {
    let redacted = |text: &str| redactor.redact_text(text).into_owned();
    match (&call.output, status) {
        (Some(output), _) => {
            let failed = if output.is_error { ReplyType::Failure } else { ReplyType::Success };
            let reply_type = output.reply.as_ref().map_or(failed, |reply| reply_type(reply.kind));
            let code = output.reply.as_ref().map(|reply| reply.code.to_string()).unwrap_or_default();
            OpenCallState::Settled { reply_type, code, text: redacted(&output.text.to_string()) }
        }
        (None, Status::Error { code, message }) => {
            let text = redacted(message.as_deref().unwrap_or_default());
            OpenCallState::Settled { reply_type: ReplyType::Failure, code: code.to_string(), text }
        }
        (None, Status::Complete { .. }) => OpenCallState::Running,
        (None, Status::Create | Status::Update) => OpenCallState::Written,
    }
}

fn reply_type(kind: stream::ReplyKind) -> ReplyType {
    match kind {
        stream::ReplyKind::Success => ReplyType::Success,
        stream::ReplyKind::Invalid => ReplyType::Invalid,
        stream::ReplyKind::Denied => ReplyType::Denied,
        stream::ReplyKind::Failure => ReplyType::Failure,
    }
}

/// Writes elements as one event. A line end inside of them begins a new line of its data.
fn sse_part(id: Option<Seq>, html: &str) -> Bytes {
    let html = html.replace("\r\n", "\n");
    let mut event = String::with_capacity(html.len() + 64);
    if let Some(id) = id {
        event.push_str(&format!("id: {id}\n"));
    }
    event.push_str("event: part\n");
    for line in html.split(['\n', '\r']) {
        event.push_str("data: ");
        event.push_str(line);
        event.push('\n');
    }
    event.push('\n');
    Bytes::from(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_an_element_is_a_line_of_data() {
        let event = sse_part(Some(Seq::new(7)), "<p id=\"a\">one\r\ntwo\rthree\n</p>");
        assert_eq!(
            event,
            Bytes::from_static(b"id: 7\nevent: part\ndata: <p id=\"a\">one\ndata: two\ndata: three\ndata: </p>\n\n")
        );
        assert_eq!(sse_part(None, "<p></p>"), Bytes::from_static(b"event: part\ndata: <p></p>\n\n"));
    }
}
