//! The pages of runs: the list, a thread with its parts, and what a run left.

use axum::body::Body;
use axum::http::{HeaderMap, Response};
use cantrip_pages::{
    LiveFeed, RunPage, files_page, records_page, run_page, runs_page, runs_rows, sent_page, spine, thread_window,
    tree_page, waiting_count,
};
use cantrip_service::cantrip::canon::{EntityId, RunId, TurnId};
use cantrip_service::cantrip::loom::{AnyId, WindowPlace};
use cantrip_service::cantrip::reply::{Refusal, codes};
use cantrip_view::{NowLine, RunHead, ThreadWindow, WaitingView};
use serde::Deserialize;

use super::filters::RunsQuery;
use super::forms::PageNotice;
use super::named::Named;
use super::parts::show_open_turn;
use super::visitor::{Frame, Visitor};
use super::{html, part, wanted_part};
use crate::http::extractors::{Page, QueryParams};

/// Lists the runs.
pub(super) async fn list(visitor: Visitor, headers: HeaderMap, query: RunsQuery) -> Response<Body> {
    let RunsQuery { typed, filter, page, today } = query;
    let view = match visitor.views().runs(filter, page, today).await {
        Ok(view) => view,
        Err(refusal) => return visitor.refuse(refusal).await,
    };
    let frame = visitor.frame().await;
    match wanted_part(&headers) {
        Some("rows") => {
            let rows = runs_rows(&frame.shared_part(), &view, &typed).into_string();
            part(&headers, format!("{rows}{}", waiting_count(frame.waiting).into_string()))
        }
        Some("count") => part(&headers, waiting_count(frame.waiting).into_string()),
        Some(_) | None => html(200, runs_page(&frame.chrome(""), &view, &typed)),
    }
}

/// Which part of which thread of a run is shown.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ThreadPlace {
    /// The entity whose thread is shown; the root of the run by default.
    entity: Option<String>,
    /// A turn, by its id or its number in the thread; by default the end is shown.
    at: Option<String>,
    before: Option<u64>,
    after: Option<u64>,
}

/// The views that the page of a run is made of.
struct RunViews {
    head: RunHead,
    window: ThreadWindow,
    now: Vec<NowLine>,
    waiting: Vec<WaitingView>,
}

impl RunViews {
    async fn read(visitor: &Visitor, run: RunId, asked: &ThreadPlace) -> Result<Self, Refusal> {
        let views = visitor.views();
        let (shown, place) = place(visitor, run, asked).await?;
        let head = views.head(run, shown).await?;
        let mut window = views.window(run, shown, place).await?;
        if window.at_end {
            show_open_turn(&visitor.http, &head, &mut window);
        }
        let mut waiting = Vec::with_capacity(head.pending.len());
        for pending in &head.pending {
            waiting.push(views.proposal(run, pending.approval_id).await?);
        }
        let now = views.now(run).await?;
        Ok(Self { head, window, now, waiting })
    }

    fn page(&self) -> RunPage<'_> {
        RunPage { head: &self.head, window: &self.window, now: &self.now, waiting: &self.waiting }
    }

    /// Returns the page. It moves while the run does.
    fn html(&self, frame: &Frame, refused: Option<&PageNotice>) -> Response<Body> {
        let mut chrome = frame.chrome("");
        chrome.notice = refused.map(|refused| &refused.notice);
        let run = self.head.run.run_id;
        if self.head.run.state.is_live() {
            let url = address(&self.head).replacen(&format!("/runs/{run}"), &format!("/runs/{run}/parts"), 1);
            chrome.live = Some(LiveFeed { url, cursor: self.window.newest });
        }
        html(refused.map_or(200, |refused| refused.status), run_page(&chrome, &self.page()))
    }
}

/// Returns the address of the thread that is shown.
fn address(head: &RunHead) -> String {
    let run = head.run.run_id;
    let shown = head.shown.as_ref().map(|shown| shown.entity.entity_id);
    match shown.filter(|shown| Some(*shown) != head.run.entity_id) {
        Some(entity) => format!("/runs/{run}?entity={entity}"),
        None => format!("/runs/{run}"),
    }
}

/// Returns the entity and the part of its thread that an address names.
async fn place(visitor: &Visitor, run: RunId, asked: &ThreadPlace) -> Result<(Option<EntityId>, WindowPlace), Refusal> {
    let missing = |kind: &str, named: &str| Refusal::from(codes::not_found(kind, named));
    let entity = asked.entity.as_deref();
    let mut shown: Option<EntityId> =
        entity.map(|named| named.parse().map_err(|_| missing("entity", named))).transpose()?;
    let place = match (asked.at.as_deref(), asked.before, asked.after) {
        (None, None, None) => WindowPlace::End,
        (None, Some(before), _) => WindowPlace::Before(before),
        (None, None, Some(after)) => WindowPlace::After(after),
        (Some(at), ..) => match at.parse::<u64>() {
            Ok(sequence) => WindowPlace::Around(sequence),
            Err(_) => {
                let turn = find_turn(visitor, at).await?.ok_or_else(|| missing("turn", at))?;
                let (made_in, entity, sequence) = visitor.views().turn_run(turn).await?;
                // A turn before a fork was made in another run and is in this thread all the same.
                if shown.is_none() && made_in == run {
                    shown = Some(entity);
                }
                WindowPlace::Around(sequence)
            }
        },
    };
    Ok((shown, place))
}

async fn find_turn(visitor: &Visitor, named: &str) -> Result<Option<TurnId>, Refusal> {
    if let Ok(turn) = named.parse() {
        return Ok(Some(turn));
    }
    Ok(match visitor.views().resolve(named).await? {
        AnyId::Turn(turn) => Some(turn),
        AnyId::Loom(_) | AnyId::Run(_) | AnyId::Entity(_) | AnyId::Cast(_) | AnyId::Fold(_) => None,
    })
}

/// Shows a thread, or the part of its page that is asked for.
pub(super) async fn show(
    visitor: Visitor,
    Named(run): Named<RunId>,
    headers: HeaderMap,
    QueryParams(asked): QueryParams<ThreadPlace>,
) -> Response<Body> {
    if wanted_part(&headers) == Some("spine") {
        return show_spine(&visitor, run, &headers, &asked).await;
    }
    let views = match RunViews::read(&visitor, run, &asked).await {
        Ok(views) => views,
        Err(refusal) => return visitor.refuse(refusal).await,
    };
    let frame = visitor.frame().await;
    match wanted_part(&headers) {
        Some("window") => {
            let window = thread_window(&frame.shared_part(), &views.page()).into_string();
            part(&headers, format!("{window}{}", waiting_count(frame.waiting).into_string()))
        }
        Some("count") => part(&headers, waiting_count(frame.waiting).into_string()),
        Some(_) | None => views.html(&frame, None),
    }
}

async fn show_spine(visitor: &Visitor, run: RunId, headers: &HeaderMap, asked: &ThreadPlace) -> Response<Body> {
    let read = async {
        let (shown, _) = place(visitor, run, asked).await?;
        let head = visitor.views().head(run, shown).await?;
        match head.leaf {
            Some(leaf) => Ok(Some((visitor.views().spine(leaf).await?, address(&head)))),
            None => Ok(None),
        }
    };
    match read.await {
        Ok(Some((view, address))) => part(headers, spine(&view, None, &address).into_string()),
        // A run without a turn has no spine yet.
        Ok(None) => part(headers, String::new()),
        Err(refusal) => visitor.refuse(refusal).await,
    }
}

/// Shows the end of a run again, with the reply to what was tried.
pub(super) async fn show_run(visitor: &Visitor, run: RunId, refused: Option<&PageNotice>) -> Response<Body> {
    match RunViews::read(visitor, run, &ThreadPlace::default()).await {
        Ok(views) => views.html(&visitor.frame().await, refused),
        Err(refusal) => visitor.refuse(refusal).await,
    }
}

/// Shows a turn again, with the reply to what was tried.
pub(super) async fn show_turn(visitor: &Visitor, turn: TurnId, refused: &PageNotice) -> Response<Body> {
    let read = async {
        let (run, ..) = visitor.views().turn_run(turn).await?;
        let asked = ThreadPlace { at: Some(turn.to_string()), ..ThreadPlace::default() };
        RunViews::read(visitor, run, &asked).await
    };
    match read.await {
        Ok(views) => views.html(&visitor.frame().await, Some(refused)),
        Err(refusal) => visitor.refuse(refusal).await,
    }
}

/// Shows the entities of a run, nested.
pub(super) async fn tree(visitor: Visitor, Named(run): Named<RunId>) -> Response<Body> {
    let read = visitor.views().head(run, None).await;
    visitor.page(read, None, tree_page).await
}

/// Shows the files that a run changed.
pub(super) async fn files(visitor: Visitor, Named(run): Named<RunId>) -> Response<Body> {
    let read = async { Ok((visitor.views().head(run, None).await?, visitor.views().files(run).await?)) };
    visitor.page(read.await, None, |chrome, (head, files)| files_page(chrome, head, files)).await
}

/// Shows the journal of a run.
pub(super) async fn records(visitor: Visitor, Named(run): Named<RunId>, Page(page): Page) -> Response<Body> {
    let read = async { Ok((visitor.views().head(run, None).await?, visitor.views().records(run, page).await?)) };
    visitor.page(read.await, None, |chrome, (head, records)| records_page(chrome, head, records)).await
}

/// Shows the list of messages that the crystal was sent for a turn.
pub(super) async fn sent(visitor: Visitor, Named(run): Named<RunId>, Named(turn): Named<TurnId>) -> Response<Body> {
    let read = async { Ok((visitor.views().head(run, None).await?, visitor.views().sent(turn).await?)) };
    visitor.page(read.await, None, |chrome, (head, sent)| sent_page(chrome, head, sent)).await
}
