//! The two feeds of a run, as server-sent events: the events for viewers, and the records themselves.
//!
//! Both can be interrupted and resumed anywhere: an event id is a sequence number in the run's journal, which is the
//! same for every process. Neither buffers anything for a client that does not read: the first reads the
//! [`RunFeed`](crate::feed::RunFeed) and the second the journal, when the client can be written to.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use axum::response::IntoResponse;
use cantrip_service::cantrip::canon::{Redactor, RunId};
use cantrip_service::cantrip::loom::{AnyLoom, Error, Journal, Loom, Record, RunView, Seq};
use cantrip_service::cantrip::reply::{Refusal, codes};
use cantrip_service::cantrip::store_refusal;
use futures_util::{StreamExt, stream};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;

use super::HttpServer;
use super::answer::Answer;
use super::extractors::{Caller, PathId, QueryParams};
use super::listen::wait_for_stop;
use super::routes::{ResponseKind, RouteDoc, Routes};
use crate::feed::{FeedCursor, FeedEvent, Next, StaleCursor, StartPosition};
use crate::limits::{FEED_RECORDS_BYTES, FEED_RECORDS_MAX, RETRY_MS};

const RUN: &str = "the id of a run";

const EVENTS: &str = "Stream a run's events for viewers (`turn`, `upsert`, `run`), resumable by `Last-Event-ID`.";
const RECORDS: &str = "Stream the records of a run's journal, one event each, resumable by `Last-Event-ID`.";

pub(super) fn routes(routes: &mut Routes) {
    let about = RouteDoc::new("follow_run_events", EVENTS, ResponseKind::Events, &[200, 204, 400, 410])
        .path(RUN)
        .query::<Viewing>();
    routes.get("/v1/runs/{id}/events", events, about);
    let about = RouteDoc::new("follow_run_records", RECORDS, ResponseKind::Events, &[200, 204, 400, 410])
        .path(RUN)
        .query::<From>();
    routes.get("/v1/runs/{id}/records", records, about);
}

/// The position at which the stream starts.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct From {
    /// The id of the last event that the client received: the stream continues after it. The header `Last-Event-ID` has
    /// the same meaning.
    pub(super) cursor: Option<String>,
    /// `tail`: only events from now on. By default the stream starts at the beginning.
    pub(super) from: Option<Tail>,
}

/// The position at which the stream of events starts, and its pace.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Viewing {
    /// The id of the last event that the client received: the stream continues after it. The header `Last-Event-ID` has
    /// the same meaning.
    cursor: Option<String>,
    /// `tail`: only events from now on. By default the stream starts at the beginning.
    from: Option<Tail>,
    /// True: an event for every delta of a text. By default text is collected, for up to 2 seconds.
    every_delta: Option<bool>,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Tail {
    Tail,
}

static LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Returns the start position that the client asks for.
fn begin(headers: &HeaderMap, from: &From, newest: Seq) -> Result<StartPosition, Refusal> {
    let invalid = |cursor: &str, rule: &str| Refusal::from(codes::cursor_invalid(cursor, rule));
    let read = |text: &str| -> Result<Seq, Refusal> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let place = text.parse::<u64>().ok().filter(|_| digits);
        place.map(Seq::new).ok_or_else(|| invalid(text, "it is not a number"))
    };
    let header = match headers.get(&LAST_EVENT_ID) {
        None => None,
        Some(told) => Some(read(told.to_str().map_err(|_| invalid("?", "it is not a number"))?)?),
    };
    let query = from.cursor.as_deref().map(read).transpose()?;
    let cursor = match (header, query) {
        (Some(header), Some(query)) if header != query => {
            return Err(invalid(&query.to_string(), &format!("Last-Event-ID says {header}")));
        }
        (header, query) => header.or(query),
    };
    match (cursor, from.from) {
        (Some(cursor), _) if cursor > newest => {
            Err(invalid(&cursor.to_string(), &format!("the newest record is {newest}")))
        }
        (Some(cursor), _) => Ok(StartPosition::After(cursor)),
        (None, Some(Tail::Tail)) => Ok(StartPosition::Tail),
        (None, None) => Ok(StartPosition::Start),
    }
}

fn stale(cursor: Seq, oldest: Seq, newest: Seq) -> Refusal {
    codes::cursor_stale(cursor.get(), oldest.get()).data(json!({"newest": newest})).into()
}

/// The connection of a client to one of the two feeds.
struct Feed {
    stop: watch::Receiver<bool>,
    heartbeat: Duration,
    redactor: Redactor,
    ended: bool,
    _permit: OwnedSemaphorePermit,
}

impl Feed {
    /// Opens the connection and returns it with the run, as the caller may see it.
    async fn of(caller: &Caller, run: RunId) -> Result<(Self, RunView), Refusal> {
        let Caller { http, service, .. } = caller;
        let view = service.own_run(run).await?;
        let Ok(permit) = Arc::clone(&http.0.feeds).try_acquire_owned() else {
            return Err(codes::overloaded("too many feeds are open; close one or try again later").into());
        };
        let (heartbeat, redactor) = (http.options().heartbeat, http.guard().redactor().clone());
        Ok((Self { stop: http.stopping(), heartbeat, redactor, ended: false, _permit: permit }, view))
    }

    fn end(&mut self) -> Option<Bytes> {
        self.ended = true;
        Some(Bytes::from_static(b"event: end\ndata: {}\n\n"))
    }
}

async fn events(
    caller: Caller,
    PathId(run): PathId<RunId>,
    headers: HeaderMap,
    QueryParams(Viewing { cursor, from, every_delta }): QueryParams<Viewing>,
) -> Response<Body> {
    let from = From { cursor, from };
    let opened = ViewerStream::open(&caller, run, &headers, &from, every_delta == Some(true)).await;
    let opened = opened.map(|viewing| match viewing {
        None => StatusCode::NO_CONTENT.into_response(),
        Some(viewing) => sse_response(stream::unfold(viewing, |mut viewing| async {
            let text = viewing.next().await?;
            Some((text, viewing))
        })),
    });
    feed_response(&caller.http, run, opened).await
}

/// A client that views a run.
pub(super) struct ViewerStream {
    feed: Feed,
    view: FeedCursor,
    last: Option<Seq>,
}

/// The next thing that a viewer is sent.
pub(super) enum ViewerStep {
    Event(Arc<FeedEvent>),
    /// Nothing happened for so long that the client needs a sign of life.
    Heartbeat,
    /// Nothing happened until the time that the caller set.
    Nothing,
    /// The run has ended, and all of it was sent.
    End,
}

impl ViewerStream {
    /// Opens the view of a run; none if the run has ended and the client has seen all of it.
    pub(super) async fn open(
        caller: &Caller,
        run: RunId,
        headers: &HeaderMap,
        from: &From,
        every_delta: bool,
    ) -> Result<Option<Self>, Refusal> {
        let (feed, RunView { newest, .. }) = Feed::of(caller, run).await?;
        let begin = begin(headers, from, newest)?;
        let mut view = caller.http.host().feeds().open_cursor(caller.http.host().runtime(), run);
        if every_delta {
            view.send_every_delta();
        }
        if !view.wait_for_record(newest).await {
            return Err(codes::store_failed("the records of the run cannot be read").into());
        }
        if let StartPosition::After(cursor) = begin
            && view.is_over_after(cursor)
        {
            return Ok(None);
        }
        if let Err(StaleCursor { oldest }) = view.resume(begin) {
            let cursor = match begin {
                StartPosition::After(cursor) => cursor,
                StartPosition::Start | StartPosition::Tail => Seq::START,
            };
            return Err(stale(cursor, oldest, newest));
        }
        Ok(Some(Self { feed, view, last: None }))
    }

    async fn next(&mut self) -> Option<Bytes> {
        match self.next_step(None).await? {
            ViewerStep::Event(line) => Some(sse_event(&line, &self.feed.redactor)),
            ViewerStep::Heartbeat | ViewerStep::Nothing => Some(Bytes::from_static(HEARTBEAT)),
            ViewerStep::End => self.feed.end(),
        }
    }

    /// Waits for the next step, at most until `patience` if it is set. Returns none if the connection has to end.
    pub(super) async fn next_step(&mut self, patience: Option<Instant>) -> Option<ViewerStep> {
        if self.feed.ended {
            return None;
        }
        let silent = Instant::now() + self.feed.heartbeat;
        loop {
            match self.view.next() {
                Next::Line(line) => {
                    self.last = line.id.or(self.last);
                    return Some(ViewerStep::Event(line));
                }
                Next::Over => return Some(ViewerStep::End),
                // Continues as if the client had reconnected with the last id that it saw. If that id is too old, the
                // client gets the error when it reconnects.
                Next::Behind => self.view.resume(self.last.map_or(StartPosition::Start, StartPosition::After)).ok()?,
                Next::Wait(until) => {
                    let now = Instant::now();
                    if patience.is_some_and(|patience| now >= patience) {
                        return Some(ViewerStep::Nothing);
                    }
                    if now >= silent {
                        return Some(ViewerStep::Heartbeat);
                    }
                    let until = [until, patience].into_iter().flatten().fold(silent, Instant::min);
                    tokio::select! { biased;
                        () = wait_for_stop(&mut self.feed.stop) => return None,
                        () = self.view.wait_for_change(Some(until)) => {}
                    }
                }
            }
        }
    }

    pub(super) fn redactor(&self) -> &Redactor {
        &self.feed.redactor
    }

    /// Ends the connection with its last event.
    pub(super) fn end(&mut self) -> Option<Bytes> {
        self.feed.end()
    }
}

/// A comment that shows the client that the connection is alive.
pub(super) const HEARTBEAT: &[u8] = b": hb\n\n";

fn sse_event(line: &FeedEvent, redactor: &Redactor) -> Bytes {
    let id = line.id.map_or_else(String::new, |seq| format!("id: {seq}\n"));
    Bytes::from(format!("{id}event: {}\ndata: {}\n\n", line.name(), line.text(redactor)))
}

pub(super) async fn feed_response(
    http: &HttpServer,
    run: RunId,
    opened: Result<Response<Body>, Refusal>,
) -> Response<Body> {
    match opened {
        Ok(response) => response,
        Err(refusal) => Answer::of(http.run_refusal_reply(run, refusal).await).into_response(),
    }
}

pub(super) fn sse_response(rest: impl futures_util::Stream<Item = Bytes> + Send + 'static) -> Response<Body> {
    event_stream(stream::iter([Bytes::from(format!("retry: {RETRY_MS}\n\n"))]).chain(rest))
}

/// Returns the response that sends these server-sent events.
pub(super) fn event_stream(events: impl futures_util::Stream<Item = Bytes> + Send + 'static) -> Response<Body> {
    let mut response = Response::new(Body::from_stream(events.map(Ok::<_, Infallible>)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

async fn records(
    caller: Caller,
    PathId(run): PathId<RunId>,
    headers: HeaderMap,
    QueryParams(from): QueryParams<From>,
) -> Response<Body> {
    let opened = async {
        let (feed, view) = Feed::of(&caller, run).await?;
        let begin = begin(&headers, &from, view.newest)?;
        let loom = caller.http.host().runtime().loom().clone();
        let oldest = oldest(&loom, run).await.map_err(|error| store_refusal(&error))?;
        let after = match begin {
            StartPosition::Start => Seq::new(oldest.get().saturating_sub(1)),
            StartPosition::Tail => view.newest,
            StartPosition::After(cursor) if cursor.next() < oldest => return Err(stale(cursor, oldest, view.newest)),
            StartPosition::After(cursor) if cursor == view.newest && !view.state.is_live() => {
                return Ok(StatusCode::NO_CONTENT.into_response());
            }
            StartPosition::After(cursor) => cursor,
        };
        let reading = RecordStream { feed, loom, run, after, read: Vec::new() };
        Ok(sse_response(stream::unfold(reading, |mut reading| async {
            let text = reading.next().await?;
            Some((text, reading))
        })))
    };
    feed_response(&caller.http, run, opened.await).await
}

/// Returns the oldest record of a run that is kept.
async fn oldest(loom: &AnyLoom, run: RunId) -> Result<Seq, Error> {
    let first = std::pin::pin!(loom.read(run, Seq::START)).next().await;
    match first {
        Some(Ok(record)) => Ok(record.seq),
        Some(Err(Error::Pruned { through, .. })) => Ok(through.next()),
        Some(Err(error)) => Err(error),
        None => Ok(Seq::new(1)),
    }
}

/// A client that reads a journal.
struct RecordStream {
    feed: Feed,
    loom: AnyLoom,
    run: RunId,
    after: Seq,
    /// The records that were read and not sent yet, the last one first.
    read: Vec<Record>,
}

impl RecordStream {
    async fn next(&mut self) -> Option<Bytes> {
        if self.feed.ended {
            return None;
        }
        let silent = Instant::now() + self.feed.heartbeat;
        loop {
            if let Some(record) = self.read.pop() {
                self.after = record.seq;
                return Some(self.record_event(&record));
            }
            // Checked before the records are read: a run that had ended by then has no further records.
            let over = match self.loom.run(self.run).await {
                Ok(view) => !view.state.is_live(),
                Err(error) => return self.failure_event(&error),
            };
            if let Err(error) = self.fetch().await {
                return self.failure_event(&error);
            }
            if !self.read.is_empty() {
                continue;
            }
            if over {
                return self.feed.end();
            }
            let grown = tokio::time::timeout_at(silent, self.loom.wait_for_growth(self.run, self.after));
            tokio::select! { biased;
                () = wait_for_stop(&mut self.feed.stop) => return None,
                grown = grown => match grown {
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) => return self.failure_event(&error),
                    Err(_) => return Some(Bytes::from_static(HEARTBEAT)),
                },
            }
        }
    }

    /// Reads the next records, bounded so that a client that stops reading costs no more.
    async fn fetch(&mut self) -> Result<(), Error> {
        let mut records = std::pin::pin!(self.loom.read(self.run, self.after).take(FEED_RECORDS_MAX));
        let mut bytes = 0;
        while bytes < FEED_RECORDS_BYTES
            && let Some(record) = records.next().await
        {
            let record = record?;
            bytes += record.payload.len();
            self.read.push(record);
        }
        self.read.reverse();
        Ok(())
    }

    /// Ends the stream. The client reconnects and gets the error.
    fn failure_event(&mut self, error: &Error) -> Option<Bytes> {
        tracing::warn!(run = %self.run, %error, "the records of a run cannot be read");
        None
    }

    fn record_event(&self, record: &Record) -> Bytes {
        let payload: Value = serde_json::from_str(&record.payload).unwrap_or_default();
        let data = json!({
            "run_id": record.run, "seq": record.seq, "type": record.kind.as_str(), "at": record.at,
            "epoch": record.epoch, "payload": self.feed.redactor.redact_value(&payload), "event_hash": record.hash,
        });
        // Another version may have chosen this kind; it must not contain a line end.
        let kind: String = record.kind.as_str().chars().filter(|char| !char.is_control()).collect();
        Bytes::from(format!("id: {}\nevent: {kind}\ndata: {data}\n\n", record.seq))
    }
}
